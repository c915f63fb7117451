//! The infos of the functions that begin a tool or an engine, and of pulls and pushes. A key has
//! the same meaning in all of them.

use std::path::PathBuf;
use std::process;

use iof_engine::{BackendKind, Config, Policy, Rendezvous};
use iof_proto::attribute::key::*;
use iof_proto::rendezvous::Search;
use iof_proto::{Channels, Info, Nspace, Position, Proc, Rank, Status};
use iof_tool::Pull;

use crate::ffi::guard::{OrStatus, Outcome, or_failure};
use crate::ffi::read;
use crate::infos::Infos;
use crate::infos::format::Format;

/// The infos of `iof_tool_init`.
pub(crate) struct ToolInfos {
    pub proc: Proc,
    /// Set if the tool connects to an engine.
    pub connects: bool,
    /// Set if the tool begins without a connection if it cannot connect.
    pub may_fail: bool,
    /// Set if the library has a thread for callbacks.
    pub own_thread: bool,
    pub format: Format,
    pub search: Search,
}

impl ToolInfos {
    pub(crate) fn read(infos: Vec<Info>) -> Outcome<ToolInfos> {
        let mut infos = Infos(infos);
        let name =
            infos.text(PMIX_TOOL_NSPACE)?.unwrap_or_else(|| Nspace::of_tool(process::id()).to_string());
        let rank = infos.rank(PMIX_TOOL_RANK)?.unwrap_or(Rank(0));
        let all = ToolInfos {
            proc: Proc::new(read::nspace(&name)?, rank),
            connects: infos.flag(PMIX_TOOL_DO_NOT_CONNECT)? != Some(true),
            may_fail: infos.flag(PMIX_TOOL_CONNECT_OPTIONAL)? == Some(true),
            own_thread: infos.flag(PMIX_EXTERNAL_PROGRESS)? != Some(true),
            format: Format::take(&mut infos)?,
            search: infos.search()?,
        };
        // Accepted without effect: jobs continue when a tool ends.
        infos.flag(PMIX_NOHUP)?;
        infos.done()?;
        Ok(all)
    }
}

/// The infos of `iof_server_init`.
pub(crate) struct ServerInfos {
    pub config: Config,
    /// Set if the library has a thread for callbacks.
    pub own_thread: bool,
    pub format: Format,
    pub host: HostInfos,
}

/// The facts that a launcher tells the engine about its callbacks, see [`iof_engine::Host`].
#[derive(Default)]
pub(crate) struct HostInfos {
    pub directives: Vec<String>,
    pub queries: Vec<String>,
    pub log_channels: Vec<String>,
    /// The socket of the gateway.
    pub gateway: Option<PathBuf>,
}

impl ServerInfos {
    pub(crate) fn read(infos: Vec<Info>) -> Outcome<ServerInfos> {
        let mut infos = Infos(infos);
        let own_thread = infos.flag(PMIX_EXTERNAL_PROGRESS)? != Some(true);
        let mut config = Config::default();
        let tools = infos.flag(PMIX_SERVER_TOOL_SUPPORT)? != Some(false);
        // Accepted without effect: a session's engine is the default.
        infos.flag(PMIX_SERVER_SESSION_SUPPORT)?;
        let system = infos.flag(PMIX_SERVER_SYSTEM_SUPPORT)? == Some(true);
        let (session_directory, system_directory) =
            (infos.path(PMIX_SERVER_TMPDIR)?, infos.path(PMIX_SYSTEM_TMPDIR)?);
        config.rendezvous = match (tools, system) {
            (false, _) => Rendezvous::None,
            (true, true) => Rendezvous::System(system_directory),
            (true, false) => Rendezvous::Session(session_directory),
        };
        let host = HostInfos {
            directives: infos.keys(IOF_HOST_DIRECTIVES)?,
            queries: infos.keys(IOF_HOST_QUERIES)?,
            log_channels: infos.keys(IOF_HOST_LOG_CHANNELS)?,
            gateway: infos.path(IOF_GATEWAY)?,
        };
        if let Some(order) = infos.text(IOF_LOG_ORDER)? {
            config.log.order = order.parse().or_status(Status::ERR_BAD_PARAM)?;
        }
        config.log.once = infos.flag(PMIX_LOG_ONCE)? == Some(true);
        let format = Format::take(&mut infos)?;
        let block = infos.flag(IOF_DROP_NONE)?;
        config.backend = match infos.text(IOF_BACKEND)?.as_deref() {
            None => None,
            Some("io-uring") => Some(BackendKind::IoUring),
            Some("epoll") => Some(BackendKind::Epoll),
            Some(_) => return Err(Status::ERR_BAD_PARAM),
        };
        or_failure(config.apply_directives(&infos.0))?;
        match block {
            Some(true) => config.policy = Policy::Block,
            Some(false) if config.policy == Policy::Block => config.policy = Policy::DropNewest,
            _ => {}
        }
        Ok(ServerInfos { config, own_thread, format, host })
    }
}

/// Returns a pull with the directives of C, and the attributes of its output. The library itself
/// honours the latter, the position, IOF_UNTIL and IOF_LINES, which is the last value.
pub(crate) fn pull(procs: Vec<Proc>, channels: Channels, infos: Vec<Info>) -> Outcome<(Pull, Format, bool)> {
    let mut infos = Infos(infos);
    let format = Format::take(&mut infos)?;
    let positions = [
        infos.long_number(IOF_FROM_OFFSET)?.map(Position::Offset),
        infos.long_number(IOF_FROM_TIME)?.map(Position::Time),
        infos.long_number(IOF_FROM_LINES)?.map(Position::Lines),
    ];
    let mut positions = positions.into_iter().flatten();
    let from = positions.next().unwrap_or_default();
    if positions.next().is_some() {
        return Err(Status::ERR_BAD_PARAM);
    }
    let (until, lines) = (infos.long_number(IOF_UNTIL)?, infos.flag(IOF_LINES)? == Some(true));
    // PMIx's registrations last until they are deregistered.
    let pull = Pull { until, persistent: true, directives: infos.0, ..Pull::new(procs, channels).from(from) };
    Ok((pull, format, lines))
}

/// Returns the keys on which a reader and the table disagree.
#[cfg(test)]
pub(crate) fn wrong(
    places: &[iof_proto::attribute::Place],
    accepts: impl Fn(Vec<Info>) -> bool,
) -> Vec<String> {
    let infos = iof_proto::attribute::mismatches(places, |info| accepts(vec![info.clone()]));
    infos.into_iter().map(|info| info.key).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use iof_proto::attribute::Place;
    use iof_proto::directive::DirectiveLevel;
    use iof_proto::rendezvous::Target;
    use iof_proto::{Directives, InfoValue, PushDirectives};

    use super::*;
    use crate::infos::infos;

    #[test]
    fn each_function_honours_exactly_its_attributes_of_the_table() {
        assert_eq!(wrong(&[Place::ToolInit], |infos| ToolInfos::read(infos).is_ok()), [""; 0]);
        let server = wrong(&[Place::ServerInit, Place::Server], |infos| ServerInfos::read(infos).is_ok());
        assert_eq!(server, [IOF_BACKEND], "only two texts are names of backends");
        let pull = |infos| {
            let pull = pull(Vec::new(), Channels::ALL, infos);
            let read = |pull: Pull| Directives::read(&pull.directives, DirectiveLevel::Registration).is_ok();
            pull.is_ok_and(|(pull, ..)| read(pull))
        };
        let pull = wrong(&[Place::LibraryPull, Place::Pull], pull);
        assert_eq!(pull, [PMIX_IOF_REDIRECT], "only false is accepted");
        let push = |infos| {
            let mut infos = Infos(infos);
            infos.push_stdin().is_ok() && PushDirectives::read(&infos.0).is_ok()
        };
        assert_eq!(wrong(&[Place::Push], push), [""; 0]);
    }

    #[test]
    fn the_infos_of_a_server_select_the_level_and_the_directory_of_its_socket() {
        let rendezvous = |entries: &[_]| ServerInfos::read(infos(entries)).unwrap().config.rendezvous;
        let (session, system) =
            ((PMIX_SERVER_TMPDIR, "/session".into()), (PMIX_SYSTEM_TMPDIR, "/system".into()));
        let is_system = (PMIX_SERVER_SYSTEM_SUPPORT, true.into());
        assert_eq!(rendezvous(&[]), Rendezvous::Session(None));
        assert_eq!(rendezvous(&[(PMIX_SERVER_SESSION_SUPPORT, true.into())]), Rendezvous::Session(None));
        assert_eq!(rendezvous(&[(PMIX_SERVER_TOOL_SUPPORT, false.into())]), Rendezvous::None);
        assert_eq!(rendezvous(std::slice::from_ref(&is_system)), Rendezvous::System(None));
        assert_eq!(rendezvous(std::slice::from_ref(&session)), Rendezvous::Session(Some("/session".into())));
        // Each level has its own directory.
        let both = [session.clone(), system.clone()];
        assert_eq!(rendezvous(&both), Rendezvous::Session(Some("/session".into())));
        assert_eq!(rendezvous(&[is_system.clone(), session]), Rendezvous::System(None));
        assert_eq!(rendezvous(&[is_system, system]), Rendezvous::System(Some("/system".into())));
    }

    #[test]
    fn a_pull_begins_at_one_position_and_ends_at_a_time() {
        let read = |entries: &[(&str, InfoValue)]| {
            pull(vec![], Channels::STDOUT, infos(entries)).map(|(pull, ..)| (pull.from, pull.until))
        };
        let number = InfoValue::Number;
        assert_eq!(read(&[]), Ok((Position::Oldest, None)));
        assert_eq!(read(&[(IOF_FROM_OFFSET, number(7))]), Ok((Position::Offset(7), None)));
        assert_eq!(read(&[(IOF_FROM_TIME, number(u64::MAX))]), Ok((Position::Time(u64::MAX), None)));
        let lines = [(IOF_FROM_LINES, number(0)), (IOF_UNTIL, number(8))];
        assert_eq!(read(&lines), Ok((Position::Lines(0), Some(8))));
        let two = [(IOF_FROM_LINES, number(1)), (IOF_FROM_OFFSET, number(1))];
        assert_eq!(read(&two), Err(Status::ERR_BAD_PARAM));
        assert_eq!(read(&[(IOF_FROM_LINES, InfoValue::Bool(true))]), Err(Status::ERR_TYPE_MISMATCH));
    }

    #[test]
    fn the_infos_of_a_tool_select_its_engine_and_its_name() {
        let read = |entries: &[_]| ToolInfos::read(infos(entries)).unwrap();
        let job = read::nspace("job").unwrap();
        let choices: [(&str, InfoValue, Target); 5] = [
            (PMIX_SERVER_URI, "/socket".into(), Target::Server("/socket".into())),
            (PMIX_SERVER_PIDINFO, 7u32.into(), Target::Pid(7)),
            (PMIX_SERVER_NSPACE, "job".into(), Target::Nspace(job.clone())),
            (PMIX_CONNECT_TO_SYSTEM, true.into(), Target::System),
            (PMIX_CONNECT_SYSTEM_FIRST, true.into(), Target::SystemFirst),
        ];
        assert_eq!(read(&[]).search, Search::default());
        // Of several choices, the first one applies.
        for index in 0..choices.len() {
            let given = choices[index..].iter().rev().map(|(key, value, _)| (*key, value.clone()));
            assert_eq!(read(&given.collect::<Vec<_>>()).search.target, choices[index].2);
        }
        let directories = [(PMIX_SERVER_TMPDIR, "/session".into()), (PMIX_SYSTEM_TMPDIR, "/system".into())]
            .map(|info| read(&[info]).search);
        let [session, system] = directories.map(|search| (search.session_directory, search.system_directory));
        assert_eq!((session, system), ((Some("/session".into()), None), (None, Some("/system".into()))));

        let named = read(&[(PMIX_TOOL_NSPACE, "job".into()), (PMIX_TOOL_RANK, 3u32.into())]);
        assert_eq!(named.proc, Proc::new(job, Rank(3)));
        assert!(named.connects && !named.may_fail && named.own_thread);
        assert!(!read(&[(PMIX_TOOL_DO_NOT_CONNECT, true.into())]).connects);
        assert!(read(&[(PMIX_TOOL_CONNECT_OPTIONAL, true.into())]).may_fail);
        assert!(!read(&[(PMIX_EXTERNAL_PROGRESS, true.into())]).own_thread);
    }
}
