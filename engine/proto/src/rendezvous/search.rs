//! The tool's side of the rendezvous: where and in which order it searches for engines.

use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use super::directory::{Directory, DirectoryError, DirectoryPath};
use super::entries::SessionEntries;
use super::names::FileNames;
use super::probe::{is_live_socket, metadata_if_exists};
use super::{ConnectError, Level, connect};
use crate::names::Nspace;

/// The environment variable with the absolute path of the engine's socket. An engine sets it for
/// its ranks, whose child processes inherit it; it is empty if the engine has no socket.
pub const SERVER_VARIABLE: &str = "IOF_SERVER";

/// The engine to which a tool wants to connect.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Target {
    /// Any engine. If [`SERVER_VARIABLE`] is set and the tool chooses no directory, the engine that
    /// it names. Otherwise the system-level engine or, if there is none or it refuses the tool,
    /// the only session-level engine.
    #[default]
    Any,
    /// The engine that listens on this socket (`PMIX_SERVER_URI`).
    Server(PathBuf),
    /// The session-level engine or the agent with this pid (`PMIX_SERVER_PIDINFO`).
    Pid(u32),
    /// The session-level engine that has a job of this name (`PMIX_SERVER_NSPACE`). If there is
    /// none, the only agent that has ranks of the job.
    Nspace(Nspace),
    /// The system-level engine (`PMIX_CONNECT_TO_SYSTEM`).
    System,
    /// The system-level engine or, if there is none or it refuses the tool, [`Target::Any`]
    /// (`PMIX_CONNECT_SYSTEM_FIRST`).
    SystemFirst,
    /// The only session-level engine of this user or, if there is none, the user's only agent.
    Session,
}

/// A search for an engine. By default it accepts any engine and searches the default directories.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Search {
    /// The engine to search for.
    pub target: Target,
    /// The directory to search for session-level engines (`PMIX_SERVER_TMPDIR`). `None` selects the
    /// default directory (see the [module](super)).
    pub session_directory: Option<PathBuf>,
    /// The directory to search for the system-level engine (`PMIX_SYSTEM_TMPDIR`). `None` selects
    /// the default directory.
    pub system_directory: Option<PathBuf>,
}

impl Search {
    /// Returns a search for the engine that runs the job `nspace`.
    pub fn nspace(nspace: Nspace) -> Search {
        Search { target: Target::Nspace(nspace), ..Search::default() }
    }

    /// Sets the directory of both levels. `None` selects the default directories.
    pub fn within(self, directory: Option<PathBuf>) -> Search {
        Search { session_directory: directory.clone(), system_directory: directory, ..self }
    }

    /// Returns a search for the engine of the process `pid`.
    pub fn pid(pid: u32) -> Search {
        Search { target: Target::Pid(pid), ..Search::default() }
    }
}

/// An engine to which a tool can connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The engine's pid, from the name of its socket.
    pub pid: u32,
    /// The engine's level.
    pub level: Level,
    /// The path of its socket.
    pub path: PathBuf,
    /// The names of its jobs, sorted.
    pub jobs: Vec<Nspace>,
}

/// The reason why a search has not found exactly one engine.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// The directory is unusable.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The directory has no socket of an engine.
    #[error("no engine has a socket in {}: start one, or choose another directory", .0.display())]
    NotFound(PathBuf),
    /// The node has no system-level engine.
    #[error("no system-level engine listens on {}", .0.display())]
    NoSystem(PathBuf),
    /// The socket of the system-level engine belongs to a user who is not trusted.
    #[error(
        "{} belongs to uid {owner}, neither root nor your own, in a directory that other users can write \
         to: if you trust it, select it", path.display()
    )]
    Foreign {
        /// The path of the socket.
        path: PathBuf,
        /// The user who owns the socket.
        owner: u32,
    },
    /// The engine that [`SERVER_VARIABLE`] names cannot be reached.
    #[error("{SERVER_VARIABLE}: {0}; unset the variable, or select an engine")]
    FromEnvironment(#[source] ConnectError),
    /// No engine has this pid.
    #[error("no running engine with pid {pid} has a socket in {}", directory.display())]
    NoSuchPid {
        /// The requested pid.
        pid: u32,
        /// The directory searched.
        directory: PathBuf,
    },
    /// No engine has this job.
    #[error("no running engine in {} has a job {nspace}", directory.display())]
    NoSuchNspace {
        /// The requested job.
        nspace: Nspace,
        /// The directory searched.
        directory: PathBuf,
    },
    /// Several engines match. They are sorted by pid.
    #[error("{} engines are running: choose one", .0.len())]
    Several(Vec<Candidate>),
    /// Several engines have a job of the requested name. They are sorted by pid.
    #[error("{} engines have a job {nspace}: choose one", engines.len())]
    SameName {
        /// The requested job.
        nspace: Nspace,
        /// The engines.
        engines: Vec<Candidate>,
    },
    /// A system call failed.
    #[error("cannot search {}: {source}", directory.display())]
    Io {
        /// The directory searched.
        directory: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// The number of jobs of one engine that are listed.
const LISTED_JOBS: usize = 4;

/// The names of an interface for what selects an engine, such as those of options.
#[derive(Debug, Clone, Copy)]
pub struct SearchNames {
    /// The name for [`Target::Pid`].
    pub pid: &'static str,
    /// The name for [`Target::Nspace`].
    pub nspace: &'static str,
    /// The name for [`Target::Server`].
    pub server: &'static str,
    /// The name for [`Search::within`].
    pub directory: &'static str,
}

impl FindError {
    /// Returns the message of an interface: the reason, the names of the remedy, and the engines to
    /// choose from in further lines.
    pub fn message(&self, names: &SearchNames) -> String {
        let SearchNames { pid, nspace, server, directory } = names;
        match self {
            FindError::Directory(_) | FindError::NotFound(_) => format!("{self} with {directory}"),
            FindError::Foreign { .. } => format!("{self} with {server}"),
            FindError::Several(engines) => format!("{self} with {pid} or {nspace}{}", list(engines, names)),
            FindError::SameName { engines, .. } => format!("{self} with {pid}{}", list(engines, names)),
            _ => self.to_string(),
        }
    }
}

fn list(candidates: &[Candidate], names: &SearchNames) -> String {
    candidates.iter().fold(String::new(), |mut list, Candidate { pid, path, jobs, .. }| {
        // Writing to a string cannot fail.
        let _ = write!(list, "\n  {} {pid}  (", names.pid);
        for job in jobs.iter().take(LISTED_JOBS) {
            let _ = write!(list, "{} {job}, ", names.nspace);
        }
        if let more @ 1.. = jobs.len().saturating_sub(LISTED_JOBS) {
            let _ = write!(list, "{more} more jobs, ");
        }
        let _ = write!(list, "{})", path.display());
        list
    })
}

/// One step of a search.
#[derive(Debug, PartialEq, Eq)]
enum SearchStep<'a> {
    /// The socket that the tool names.
    Socket(PathBuf),
    /// The socket that [`SERVER_VARIABLE`] names.
    Environment(PathBuf),
    /// The system-level engine.
    System,
    /// A session-level engine or an agent.
    Session(SessionFilter<'a>),
}

/// The session-level engines and agents that match a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionFilter<'a> {
    Any,
    Pid(u32),
    Nspace(&'a Nspace),
}

impl Search {
    /// Returns the sockets to try in this order until an engine accepts. The iterator is lazy: each
    /// step of the search runs when its item is requested.
    ///
    /// A search by directory finds only sockets that have a listener and the name of an engine's
    /// socket.
    ///
    /// # Errors
    /// [`FindError`] for a step that has not found exactly one engine.
    pub fn sockets(&self) -> impl Iterator<Item = Result<PathBuf, FindError>> + '_ {
        let (session, system) = (self.session_directory.as_deref(), self.system_directory.as_deref());
        self.steps(env::var_os(SERVER_VARIABLE)).into_iter().map(move |step| match step {
            SearchStep::Socket(path) => Ok(path),
            SearchStep::Environment(path) => connect(&path).map(|_| path).map_err(FindError::FromEnvironment),
            SearchStep::System => find_system(&DirectoryPath::new(Level::System, system)),
            SearchStep::Session(filter) => find_session(DirectoryPath::new(Level::Session, session), filter),
        })
    }

    /// Returns all session-level engines and agents in the directory of the search, whatever its
    /// target is.
    ///
    /// # Errors
    /// [`FindError`] if the directory is unusable or cannot be read. A missing directory has no
    /// engines.
    pub fn engines(&self) -> Result<Vec<Candidate>, FindError> {
        engines(&DirectoryPath::new(Level::Session, self.session_directory.as_deref()), SessionFilter::Any)
    }

    /// Returns the steps of the search; `server` is the value of [`SERVER_VARIABLE`].
    fn steps(&self, server: Option<OsString>) -> Vec<SearchStep<'_>> {
        // A directory chosen by the tool takes precedence over the environment.
        let has_directory = self.session_directory.is_some() || self.system_directory.is_some();
        let server = server.filter(|path| !path.is_empty() && !has_directory);
        let any_session = SearchStep::Session(SessionFilter::Any);
        match (&self.target, server) {
            (Target::Any, Some(server)) => vec![SearchStep::Environment(server.into())],
            (Target::SystemFirst, Some(server)) => {
                vec![SearchStep::System, SearchStep::Environment(server.into())]
            }
            (Target::Any | Target::SystemFirst, None) => vec![SearchStep::System, any_session],
            (Target::Server(path), _) => vec![SearchStep::Socket(path.clone())],
            (Target::Pid(pid), _) => vec![SearchStep::Session(SessionFilter::Pid(*pid))],
            (Target::Nspace(nspace), _) => vec![SearchStep::Session(SessionFilter::Nspace(nspace))],
            (Target::System, _) => vec![SearchStep::System],
            (Target::Session, _) => vec![any_session],
        }
    }
}

/// Returns the socket of the system-level engine in a directory.
fn find_system(directory_path: &DirectoryPath) -> Result<PathBuf, FindError> {
    let io = |source| FindError::Io { directory: directory_path.path.clone(), source };
    let name = FileNames::of_this_host().map_err(io)?.system();
    let path = directory_path.path.join(&name);
    let directory = match Directory::open_path(&directory_path.path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(FindError::NoSystem(path)),
        opened => opened.map_err(io)?,
    };
    let short = directory.short_path(&name);
    let metadata = metadata_if_exists(&short).map_err(io)?;
    let Some(socket) = metadata.filter(|metadata| metadata.file_type().is_socket()) else {
        return Err(FindError::NoSystem(path));
    };
    // This check comes before any connection: an untrusted listener could make the tool wait.
    if !directory_path.trusts(&directory.metadata().map_err(io)?, socket.uid()) {
        return Err(FindError::Foreign { path, owner: socket.uid() });
    }
    if is_live_socket(&short) { Ok(path) } else { Err(FindError::NoSystem(path)) }
}

/// Returns the socket of the only session-level engine in a directory that matches `filter`; if
/// none does, that of the only agent.
fn find_session(directory: DirectoryPath, filter: SessionFilter<'_>) -> Result<PathBuf, FindError> {
    let mut candidates = engines(&directory, filter)?;
    // An agent has some ranks of a job. A front end on the same node has all of them.
    if candidates.iter().any(|engine| engine.level == Level::Session) {
        candidates.retain(|engine| engine.level == Level::Session);
    }
    match (candidates.pop(), filter) {
        (Some(only), _) if candidates.is_empty() => Ok(only.path),
        (Some(last), _) => {
            candidates.push(last);
            Err(match filter {
                SessionFilter::Nspace(nspace) => {
                    FindError::SameName { nspace: nspace.clone(), engines: candidates }
                }
                _ => FindError::Several(candidates),
            })
        }
        (None, SessionFilter::Any) => Err(FindError::NotFound(directory.path)),
        (None, SessionFilter::Pid(pid)) => Err(FindError::NoSuchPid { pid, directory: directory.path }),
        (None, SessionFilter::Nspace(nspace)) => {
            Err(FindError::NoSuchNspace { nspace: nspace.clone(), directory: directory.path })
        }
    }
}

/// Returns the session-level engines and agents in a directory, which need not exist, that match
/// `filter`.
fn engines(directory: &DirectoryPath, filter: SessionFilter<'_>) -> Result<Vec<Candidate>, FindError> {
    match directory.open() {
        Err(DirectoryError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        opened => candidates(&opened?, filter)
            .map_err(|source| FindError::Io { directory: directory.path.clone(), source }),
    }
}

/// Returns the engines that match `filter` and have a listening socket, sorted by pid.
fn candidates(directory: &Directory, filter: SessionFilter<'_>) -> io::Result<Vec<Candidate>> {
    let names = FileNames::of_this_host()?;
    let SessionEntries { mut levels, mut jobs } = SessionEntries::read(directory, &names)?;
    levels.retain(|pid, _| match filter {
        SessionFilter::Any => true,
        SessionFilter::Pid(wanted) => *pid == wanted,
        SessionFilter::Nspace(wanted) => jobs.get(pid).is_some_and(|jobs| jobs.contains(wanted)),
    });
    levels.retain(|pid, level| is_live_socket(&directory.short_path(names.socket(*level, *pid))));
    let candidate = |(pid, level)| Candidate {
        pid,
        level,
        path: directory.full_path(names.socket(level, pid)),
        jobs: jobs.remove(&pid).into_iter().flatten().collect(),
    };
    Ok(levels.into_iter().map(candidate).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(target: Target) -> Search {
        Search { target, ..Search::default() }
    }

    #[test]
    fn by_default_the_system_level_is_searched_before_the_session_level() {
        let default_steps = [SearchStep::System, SearchStep::Session(SessionFilter::Any)];
        for target in [Target::Any, Target::SystemFirst] {
            assert_eq!(search(target.clone()).steps(None), default_steps, "{target:?}");
            assert_eq!(
                search(target.clone()).steps(Some("".into())),
                default_steps,
                "{target:?}: an empty variable counts as unset"
            );
            let there = Some("/there".into());
            for in_directory in [
                Search { session_directory: there.clone(), ..search(target.clone()) },
                Search { system_directory: there, ..search(target) },
            ] {
                assert_eq!(
                    in_directory.steps(Some("/s".into())),
                    default_steps,
                    "the tool's directory takes precedence"
                );
            }
        }
    }

    #[test]
    fn the_engine_named_by_the_environment_comes_first_unless_the_tool_selects_one() {
        let environment = || SearchStep::Environment("/s".into());
        let steps = |target: &Target| format!("{:?}", search(target.clone()).steps(Some("/s".into())));
        assert_eq!(search(Target::Any).steps(Some("/s".into())), [environment()]);
        assert_eq!(search(Target::SystemFirst).steps(Some("/s".into())), [SearchStep::System, environment()]);
        let nspace = Nspace::new("job").unwrap();
        for target in [
            Target::Server("/x".into()),
            Target::Pid(1),
            Target::Nspace(nspace),
            Target::System,
            Target::Session,
        ] {
            assert!(!steps(&target).contains("\"/s\""), "{target:?}");
        }
    }
}
