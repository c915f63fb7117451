//! The infos of the functions that begin a tool, an engine or a job, and of pulls and pushes. A key
//! has the same meaning in all of them.

use std::path::PathBuf;
use std::process;

use iof_engine::{App, BackendKind, Config, JobSpec, KillOnBadExit, Mpi, Policy, Rendezvous, Stdin};
use iof_proto::attribute::{Given, Place};
use iof_proto::directive::DirectiveLevel;
use iof_proto::rendezvous::{Search, Target};
use iof_proto::{Channels, Directives, Info, InfoValue, Nspace, Proc, Rank};
use iof_tool::Pull;

use crate::constants::*;
use crate::guard::{Outcome, or_failure};
use crate::keys::*;
use crate::read;

/// Infos. The methods remove those that they read.
pub(crate) struct Infos(pub Vec<Info>);

impl Infos {
    /// Removes the infos with this key, and returns the value of the last one.
    fn take(&mut self, key: &str) -> Option<InfoValue> {
        let index = self.0.iter().rposition(|info| info.key == key)?;
        let value = self.0.remove(index).value;
        self.0.retain(|info| info.key != key);
        Some(value)
    }

    fn flag(&mut self, key: &str) -> Outcome<Option<bool>> {
        self.take(key)
            .map(|value| if let InfoValue::Bool(flag) = value { Ok(flag) } else { mismatch() })
            .transpose()
    }

    fn text(&mut self, key: &str) -> Outcome<Option<String>> {
        self.take(key)
            .map(|value| if let InfoValue::Text(text) = value { Ok(text) } else { mismatch() })
            .transpose()
    }

    fn number(&mut self, key: &str) -> Outcome<Option<u32>> {
        let number = |value| match value {
            InfoValue::Number(number) => u32::try_from(number).map_err(|_| IOF_ERR_BAD_PARAM),
            _ => mismatch(),
        };
        self.take(key).map(number).transpose()
    }

    /// Takes a rank, given as a number or as a process.
    fn rank(&mut self, key: &str) -> Outcome<Option<Rank>> {
        let rank = |value| match value {
            InfoValue::Number(number) => u32::try_from(number).map(Rank).map_err(|_| IOF_ERR_BAD_PARAM),
            InfoValue::Proc(proc) => Ok(proc.rank),
            _ => mismatch(),
        };
        self.take(key).map(rank).transpose()
    }

    /// Takes IOF_IOF_PUSH_STDIN. Its value may be the process that receives the bytes (RFC0025),
    /// which counts as true.
    pub(crate) fn push_stdin(&mut self) -> Outcome<Option<(bool, Option<Proc>)>> {
        match self.take(IOF_IOF_PUSH_STDIN) {
            None => Ok(None),
            Some(InfoValue::Bool(flag)) => Ok(Some((flag, None))),
            Some(InfoValue::Proc(target)) => Ok(Some((true, Some(target)))),
            Some(_) => mismatch(),
        }
    }

    /// Fails if one of the infos that remain, which no method has read, is required.
    pub(crate) fn done(self) -> Outcome<()> {
        if self.0.iter().any(|info| info.required) { Err(IOF_ERR_NOT_SUPPORTED) } else { Ok(()) }
    }

    /// Takes the way in which a tool finds its engine. If several are given, the first of these
    /// applies: path, pid, name of a job, system-level engine only, system-level engine first.
    fn search(&mut self) -> Outcome<Search> {
        let (uri, pid) = (self.text(IOF_SERVER_URI)?, self.number(IOF_SERVER_PIDINFO)?);
        let nspace = self.text(IOF_SERVER_NSPACE)?;
        let (only_system, system_first) =
            (self.flag(IOF_CONNECT_TO_SYSTEM)?, self.flag(IOF_CONNECT_SYSTEM_FIRST)?);
        let target = if let Some(path) = uri {
            Target::Server(PathBuf::from(path))
        } else if let Some(pid) = pid {
            Target::Pid(pid)
        } else if let Some(name) = nspace {
            Target::Nspace(read::nspace(&name)?)
        } else if only_system == Some(true) {
            Target::System
        } else if system_first == Some(true) {
            Target::SystemFirst
        } else {
            Target::Any
        };
        Ok(Search { target, directory: self.directory()? })
    }

    /// Takes the directory of the sockets.
    fn directory(&mut self) -> Outcome<Option<PathBuf>> {
        let (session, system) = (self.text(IOF_SERVER_TMPDIR)?, self.text(IOF_SYSTEM_TMPDIR)?);
        Ok(session.or(system).map(PathBuf::from))
    }
}

fn mismatch<T>() -> Outcome<T> {
    Err(IOF_ERR_TYPE_MISMATCH)
}

/// The infos of `iof_tool_init`.
pub(crate) struct ToolInfos {
    pub proc: Proc,
    /// Whether the tool connects to an engine.
    pub connects: bool,
    /// Whether the tool begins without a connection if it cannot connect.
    pub may_fail: bool,
    /// Whether the library has a thread for callbacks.
    pub own_thread: bool,
    pub search: Search,
}

impl ToolInfos {
    pub(crate) fn read(infos: Vec<Info>) -> Outcome<ToolInfos> {
        let mut infos = Infos(infos);
        let name = infos.text(IOF_TOOL_NSPACE)?.unwrap_or_else(|| Nspace::of_tool(process::id()).to_string());
        let rank = infos.rank(IOF_TOOL_RANK)?.unwrap_or(Rank(0));
        let all = ToolInfos {
            proc: Proc::new(read::nspace(&name)?, rank),
            connects: infos.flag(IOF_TOOL_DO_NOT_CONNECT)? != Some(true),
            may_fail: infos.flag(IOF_TOOL_CONNECT_OPTIONAL)? == Some(true),
            own_thread: infos.flag(IOF_EXTERNAL_PROGRESS)? != Some(true),
            search: infos.search()?,
        };
        infos.done()?;
        Ok(all)
    }
}

/// The infos of `iof_server_init`.
pub(crate) struct ServerInfos {
    pub config: Config,
    /// Whether the library has a thread for callbacks.
    pub own_thread: bool,
}

impl ServerInfos {
    pub(crate) fn read(infos: Vec<Info>) -> Outcome<ServerInfos> {
        let mut infos = Infos(infos);
        let own_thread = infos.flag(IOF_EXTERNAL_PROGRESS)? != Some(true);
        let mut config = Config::default();
        let tools = infos.flag(IOF_SERVER_TOOL_SUPPORT)? != Some(false);
        // Accepted without effect: a session's engine is the default.
        infos.flag(IOF_SERVER_SESSION_SUPPORT)?;
        let system = infos.flag(IOF_SERVER_SYSTEM_SUPPORT)? == Some(true);
        let directory = infos.directory()?;
        config.rendezvous = match (tools, system) {
            (false, _) => Rendezvous::None,
            (true, true) => Rendezvous::System(directory),
            (true, false) => Rendezvous::Session(directory),
        };
        let block = infos.flag(IOF_DROP_NONE)?;
        config.backend = match infos.text(IOF_BACKEND)?.as_deref() {
            None => None,
            Some("io-uring") => Some(BackendKind::IoUring),
            Some("epoll") => Some(BackendKind::Epoll),
            Some(_) => return Err(IOF_ERR_BAD_PARAM),
        };
        or_failure(config.apply_directives(&infos.0))?;
        match block {
            Some(true) => config.policy = Policy::Block,
            Some(false) if config.policy == Policy::Block => config.policy = Policy::DropNewest,
            _ => {}
        }
        Ok(ServerInfos { config, own_thread })
    }
}

/// Reads the infos of `iof_server_spawn`, for a job of `apps`. `default_name` names the job if they
/// do not.
pub(crate) fn job_spec(
    infos: Vec<Info>,
    apps: Vec<App>,
    default_name: impl FnOnce() -> String,
) -> Outcome<JobSpec> {
    let mut infos = Infos(infos);
    let name = infos.text(IOF_NSPACE)?.unwrap_or_else(default_name);
    let mut spec = JobSpec::new(read::nspace(&name)?, apps);
    spec.stdin.extend(infos.rank(IOF_STDIN_TGT)?.map(|rank| (rank, Stdin::Pipe)));
    spec.stdin.extend(infos.rank(IOF_STDIN_INHERIT)?.map(|rank| (rank, Stdin::Inherit)));
    spec.mpi = match infos.text(IOF_MPI)?.as_deref() {
        None | Some("none") => Mpi::None,
        Some("auto") => Mpi::Auto,
        Some("pmi1") => Mpi::Pmi1,
        Some("pmix") => Mpi::Pmix,
        Some(_) => return Err(IOF_ERR_BAD_PARAM),
    };
    if spec.mpi != Mpi::None {
        spec.kill_on_bad_exit = KillOnBadExit::Signal;
    }
    (spec.elsewhere, spec.directives) = adoption(infos.0)?;
    Ok(spec)
}

/// Reads the infos of `iof_server_adopt`: whether the job has ranks elsewhere, and its directives.
pub(crate) fn adoption(infos: Vec<Info>) -> Outcome<(bool, Directives)> {
    let mut infos = Infos(infos);
    let elsewhere = infos.flag(IOF_ELSEWHERE)? == Some(true);
    Ok((elsewhere, or_failure(Directives::read(&infos.0, DirectiveLevel::Spawn))?.0))
}

/// Returns a pull with the directives of C. The library itself honours IOF_NO_BACKLOG.
pub(crate) fn pull(procs: Vec<Proc>, channels: Channels, infos: Vec<Info>) -> Pull {
    let (own, directives): (Vec<Info>, Vec<Info>) =
        infos.into_iter().partition(|info| Given::new(info, Place::LibraryPull).is_ok());
    let backlog = !own.iter().any(|info| info.key == IOF_NO_BACKLOG && info.value == InfoValue::Bool(true));
    // PMIx's registrations last until they are deregistered.
    Pull { backlog, persistent: true, directives, ..Pull::new(procs, channels) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use iof_proto::PushDirectives;
    use iof_proto::attribute::mismatches;

    use super::*;

    /// Returns the keys on which a reader and the table disagree.
    fn wrong(places: &[Place], accepts: impl Fn(Vec<Info>) -> bool) -> Vec<String> {
        let infos = mismatches(places, |info| accepts(vec![info.clone()]));
        infos.into_iter().map(|info| info.key).collect()
    }

    #[test]
    fn each_function_honours_exactly_its_attributes_of_the_table() {
        assert_eq!(wrong(&[Place::ToolInit], |infos| ToolInfos::read(infos).is_ok()), [""; 0]);
        let server = wrong(&[Place::ServerInit, Place::Server], |infos| ServerInfos::read(infos).is_ok());
        assert_eq!(server, [IOF_BACKEND], "only two texts are names of backends");
        let spawn = |infos| job_spec(infos, Vec::new(), || "job".into()).is_ok();
        let spawn = wrong(&[Place::ServerSpawn, Place::Spawn], spawn);
        assert_eq!(spawn, [IOF_MPI], "only four texts are names of protocols");
        assert_eq!(wrong(&[Place::ServerAdopt, Place::Spawn], |infos| adoption(infos).is_ok()), [""; 0]);
        let pull = |infos| {
            let pull = pull(Vec::new(), Channels::ALL, infos);
            Directives::read(&pull.directives, DirectiveLevel::Registration).is_ok()
        };
        assert_eq!(wrong(&[Place::LibraryPull, Place::Pull], pull), [""; 0]);
        let push = |infos| {
            let mut infos = Infos(infos);
            infos.push_stdin().is_ok() && PushDirectives::read(&infos.0).is_ok()
        };
        assert_eq!(wrong(&[Place::Push], push), [""; 0]);
    }

    fn infos(entries: &[(&str, InfoValue)]) -> Vec<Info> {
        let info =
            |(key, value): &(&str, InfoValue)| Info { value: value.clone(), ..Info::required(*key, true) };
        entries.iter().map(info).collect()
    }

    #[test]
    fn the_infos_of_a_server_select_the_level_and_the_directory_of_its_socket() {
        let rendezvous = |entries: &[_]| ServerInfos::read(infos(entries)).unwrap().config.rendezvous;
        let (session, system) =
            ((IOF_SERVER_TMPDIR, "/session".into()), (IOF_SYSTEM_TMPDIR, "/system".into()));
        let is_system = (IOF_SERVER_SYSTEM_SUPPORT, true.into());
        assert_eq!(rendezvous(&[]), Rendezvous::Session(None));
        assert_eq!(rendezvous(&[(IOF_SERVER_SESSION_SUPPORT, true.into())]), Rendezvous::Session(None));
        assert_eq!(rendezvous(&[(IOF_SERVER_TOOL_SUPPORT, false.into())]), Rendezvous::None);
        assert_eq!(rendezvous(std::slice::from_ref(&is_system)), Rendezvous::System(None));
        assert_eq!(rendezvous(std::slice::from_ref(&session)), Rendezvous::Session(Some("/session".into())));
        assert_eq!(rendezvous(&[is_system, system]), Rendezvous::System(Some("/system".into())));
    }

    #[test]
    fn the_infos_of_a_tool_select_its_engine_and_its_name() {
        let read = |entries: &[_]| ToolInfos::read(infos(entries)).unwrap();
        let job = read::nspace("job").unwrap();
        let choices: [(&str, InfoValue, Target); 5] = [
            (IOF_SERVER_URI, "/socket".into(), Target::Server("/socket".into())),
            (IOF_SERVER_PIDINFO, 7u32.into(), Target::Pid(7)),
            (IOF_SERVER_NSPACE, "job".into(), Target::Nspace(job.clone())),
            (IOF_CONNECT_TO_SYSTEM, true.into(), Target::System),
            (IOF_CONNECT_SYSTEM_FIRST, true.into(), Target::SystemFirst),
        ];
        assert_eq!(read(&[]).search, Search::default());
        // Of several choices, the first one applies.
        for index in 0..choices.len() {
            let given = choices[index..].iter().rev().map(|(key, value, _)| (*key, value.clone()));
            assert_eq!(read(&given.collect::<Vec<_>>()).search.target, choices[index].2);
        }
        let directory = |key| read(&[(key, "/there".into())]).search.directory;
        assert_eq!(directory(IOF_SERVER_TMPDIR), Some("/there".into()));
        assert_eq!(directory(IOF_SYSTEM_TMPDIR), Some("/there".into()));

        let named = read(&[(IOF_TOOL_NSPACE, "job".into()), (IOF_TOOL_RANK, 3u32.into())]);
        assert_eq!(named.proc, Proc::new(job, Rank(3)));
        assert!(named.connects && !named.may_fail && named.own_thread);
        assert!(!read(&[(IOF_TOOL_DO_NOT_CONNECT, true.into())]).connects);
        assert!(read(&[(IOF_TOOL_CONNECT_OPTIONAL, true.into())]).may_fail);
        assert!(!read(&[(IOF_EXTERNAL_PROGRESS, true.into())]).own_thread);
    }

    #[test]
    fn a_job_may_leave_the_stdin_of_one_rank_open_or_let_it_inherit() {
        let stdin = |entries: &[_]| job_spec(infos(entries), Vec::new(), || "job".into()).unwrap().stdin;
        let rank = Proc::new(read::nspace("job").unwrap(), Rank(2));
        assert_eq!(stdin(&[]).len(), 0);
        for (key, wanted) in [(IOF_STDIN_TGT, Stdin::Pipe), (IOF_STDIN_INHERIT, Stdin::Inherit)] {
            for value in [InfoValue::Number(2), InfoValue::Proc(rank.clone())] {
                let stdin: Vec<_> = stdin(&[(key, value)]).into_iter().collect();
                assert_eq!(stdin, [(Rank(2), wanted.clone())]);
            }
        }
    }
}
