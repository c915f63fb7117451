//! The tool's end of the rendezvous: where engines are looked for, in which order.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::directory::{Directory, DirectoryError, Place};
use super::names::Names;
use super::probe::{is_live_socket, look};
use super::{ConnectError, Level, connect};
use crate::names::Nspace;

/// The environment variable by which an engine tells its ranks, and whatever they start, where it
/// listens: the absolute path of its socket, or nothing if it has none.
pub const SERVER_VARIABLE: &str = "IOF_SERVER";

/// Which engine a tool wants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Target {
    /// Any: the one that [`SERVER_VARIABLE`] names if that is set and the tool names no directory;
    /// else the system's, and if that is not there, or does not want us, the session's.
    #[default]
    Any,
    /// The one that listens on this socket (`PMIX_SERVER_URI`).
    Server(PathBuf),
    /// The session-level one with this pid (`PMIX_SERVER_PIDINFO`).
    Pid(u32),
    /// The session-level one that has a job of this name (`PMIX_SERVER_NSPACE`).
    Nspace(Nspace),
    /// The system's (`PMIX_CONNECT_TO_SYSTEM`).
    System,
    /// The system's, and if that is not there, or does not want us, [`Target::Any`]
    /// (`PMIX_CONNECT_SYSTEM_FIRST`).
    SystemFirst,
    /// The only one of this user's session.
    Session,
}

/// How a tool looks for an engine. By default for any, in the usual directories.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Search {
    /// Which engine.
    pub target: Target,
    /// Where engines of both levels are looked for (`PMIX_SERVER_TMPDIR`, `PMIX_SYSTEM_TMPDIR`);
    /// `None`: where the environment says, see the [module](super).
    pub directory: Option<PathBuf>,
}

/// An engine that may be connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The engine's pid, from the name of its socket.
    pub pid: u32,
    /// Its socket.
    pub path: PathBuf,
}

/// Why there is no one engine to connect to.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// The directory will not do.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// There is none in this directory.
    #[error("no engine has a socket in {}: start one, or look elsewhere with --rendezvous-dir", .0.display())]
    NotFound(PathBuf),
    /// The node has none.
    #[error("no system-level engine listens on {}", .0.display())]
    NoSystem(PathBuf),
    /// The system-level one was set up by somebody whom there is no reason to trust.
    #[error(
        "{} belongs to uid {owner}, who is neither root nor you, in a directory that others can write to: \
         if you trust it, say --server", path.display()
    )]
    Foreign {
        /// The socket.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// The one that the environment names has ended.
    #[error("{SERVER_VARIABLE}: {0}; unset it to look elsewhere, or say which engine")]
    FromEnvironment(#[source] ConnectError),
    /// There is none with that pid.
    #[error("no running engine with pid {pid} has a socket in {}", directory.display())]
    NoSuchPid {
        /// The pid asked for.
        pid: u32,
        /// The directory searched.
        directory: PathBuf,
    },
    /// There is none that has that job.
    #[error("no running engine in {} has a job {nspace}", directory.display())]
    NoSuchNspace {
        /// The job asked for.
        nspace: Nspace,
        /// The directory searched.
        directory: PathBuf,
    },
    /// There are these, by pid.
    #[error("{} engines are running: choose one with --pid{}", .0.len(), listed(.0))]
    Several(Vec<Candidate>),
    /// The system refuses.
    #[error("cannot search {}: {source}", directory.display())]
    Io {
        /// The directory.
        directory: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn listed(candidates: &[Candidate]) -> String {
    candidates.iter().fold(String::new(), |mut list, Candidate { pid, path }| {
        // Writing to a string cannot fail.
        let _ = write!(list, "\n  --pid {pid}  ({})", path.display());
        list
    })
}

/// One thing to try.
#[derive(Debug, PartialEq, Eq)]
enum Step<'a> {
    Named(PathBuf),
    /// Named by the environment.
    Own(PathBuf),
    System,
    Session(Wanted<'a>),
}

/// Which of a session's engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted<'a> {
    Any,
    Pid(u32),
    Nspace(&'a Nspace),
}

impl Search {
    /// The sockets to try, one after the other until an engine accepts. Each is looked for when the
    /// iterator comes to it: on none that is needless.
    ///
    /// Only sockets on which somebody listens count, and only under the names that engines use.
    ///
    /// # Errors
    /// [`FindError`] says where this step looked, or between which engines to choose.
    pub fn sockets(&self) -> impl Iterator<Item = Result<PathBuf, FindError>> + '_ {
        let directory = self.directory.as_deref();
        self.steps(env::var_os(SERVER_VARIABLE)).into_iter().map(move |step| match step {
            Step::Named(path) => Ok(path),
            Step::Own(path) => connect(&path).map(|_| path).map_err(FindError::FromEnvironment),
            Step::System => system(&Place::new(Level::System, directory)),
            Step::Session(wanted) => session(Place::new(Level::Session, directory), wanted),
        })
    }

    fn steps(&self, server: Option<OsString>) -> Vec<Step<'_>> {
        // A directory that was named says more than the surroundings.
        let server = server.filter(|path| !path.is_empty() && self.directory.is_none());
        let anywhere = Step::Session(Wanted::Any);
        match (&self.target, server) {
            (Target::Any, Some(server)) => vec![Step::Own(server.into())],
            (Target::SystemFirst, Some(server)) => vec![Step::System, Step::Own(server.into())],
            (Target::Any | Target::SystemFirst, None) => vec![Step::System, anywhere],
            (Target::Server(path), _) => vec![Step::Named(path.clone())],
            (Target::Pid(pid), _) => vec![Step::Session(Wanted::Pid(*pid))],
            (Target::Nspace(nspace), _) => vec![Step::Session(Wanted::Nspace(nspace))],
            (Target::System, _) => vec![Step::System],
            (Target::Session, _) => vec![anywhere],
        }
    }
}

fn system(place: &Place) -> Result<PathBuf, FindError> {
    let io = |source| FindError::Io { directory: place.path.clone(), source };
    let name = Names::of_this_host().map_err(io)?.system();
    let path = place.path.join(&name);
    let directory = match Directory::of_socket(&place.path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(FindError::NoSystem(path)),
        opened => opened.map_err(io)?,
    };
    let at = directory.at(&name);
    let Some(found) = look(&at).map_err(io)?.filter(|found| found.file_type().is_socket()) else {
        return Err(FindError::NoSystem(path));
    };
    // Before it is connected to: who listens there could keep us waiting.
    if !place.vouches_for(&directory.metadata().map_err(io)?, found.uid()) {
        return Err(FindError::Foreign { path, owner: found.uid() });
    }
    if is_live_socket(&at) { Ok(path) } else { Err(FindError::NoSystem(path)) }
}

fn session(place: Place, wanted: Wanted<'_>) -> Result<PathBuf, FindError> {
    let mut candidates = match place.open() {
        Err(DirectoryError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Vec::new(),
        opened => candidates(&opened?, wanted)
            .map_err(|source| FindError::Io { directory: place.path.clone(), source })?,
    };
    match (candidates.pop(), wanted) {
        (Some(only), _) if candidates.is_empty() => Ok(only.path),
        (Some(last), _) => {
            candidates.push(last);
            Err(FindError::Several(candidates))
        }
        (None, Wanted::Any) => Err(FindError::NotFound(place.path)),
        (None, Wanted::Pid(pid)) => Err(FindError::NoSuchPid { pid, directory: place.path }),
        (None, Wanted::Nspace(nspace)) => {
            Err(FindError::NoSuchNspace { nspace: nspace.clone(), directory: place.path })
        }
    }
}

/// The engines that are wanted and can be connected to, by pid.
fn candidates(directory: &Directory, wanted: Wanted<'_>) -> io::Result<Vec<Candidate>> {
    let names = Names::of_this_host()?;
    let mut pids = BTreeSet::new();
    for file in fs::read_dir(directory.at(Path::new(".")))? {
        let name = file?.file_name();
        pids.extend(match wanted {
            Wanted::Any => names.session_pid(&name),
            Wanted::Pid(pid) => names.session_pid(&name).filter(|found| *found == pid),
            Wanted::Nspace(nspace) => {
                names.entry_parts(&name).filter(|(_, found)| found == nspace).map(|(pid, _)| pid)
            }
        });
    }
    let candidate = |pid| Candidate { pid, path: directory.known_as(names.session(pid)) };
    let is_live = |pid: &u32| is_live_socket(&directory.at(names.session(*pid)));
    Ok(pids.into_iter().filter(is_live).map(candidate).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(target: Target) -> Search {
        Search { target, directory: None }
    }

    #[test]
    fn an_undirected_tool_tries_the_system_before_the_session() {
        let undirected = [Step::System, Step::Session(Wanted::Any)];
        for target in [Target::Any, Target::SystemFirst] {
            assert_eq!(search(target.clone()).steps(None), undirected, "{target:?}");
            assert_eq!(
                search(target.clone()).steps(Some("".into())),
                undirected,
                "{target:?}: empty is unset"
            );
            let elsewhere = Search { directory: Some("/there".into()), ..search(target) };
            assert_eq!(elsewhere.steps(Some("/s".into())), undirected, "the directory was named by the tool");
        }
    }

    #[test]
    fn the_engine_of_our_own_job_comes_before_others_but_not_before_what_the_tool_says() {
        let own = || Step::Own("/s".into());
        let steps = |target: &Target| format!("{:?}", search(target.clone()).steps(Some("/s".into())));
        assert_eq!(search(Target::Any).steps(Some("/s".into())), [own()]);
        assert_eq!(search(Target::SystemFirst).steps(Some("/s".into())), [Step::System, own()]);
        let nspace = Nspace::new("job").unwrap();
        for directed in [
            Target::Server("/x".into()),
            Target::Pid(1),
            Target::Nspace(nspace),
            Target::System,
            Target::Session,
        ] {
            assert!(!steps(&directed).contains("\"/s\""), "{directed:?}");
        }
    }
}
