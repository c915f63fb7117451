//! Log requests (`PMIx_Log`, RFC0010, RFC0032): each takes its course through its channels, and whoever asked is told what
//! came of it.
//!
//! Nothing here waits: what goes to stdout and stderr is handed to the capture thread like any delivery; what may take its
//! time is done by threads with bounded queues, one each for this node's syslog, the job record, mail and the gateway; the
//! host answers when it likes.

mod gateway;
mod streams;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use iof_capture::Capture;
use iof_log::{
    Course, How, JobRecord, Kind, Mail, MailServer, Order, Origin, Stalls, Syslog, Worker, plan, syslog_line,
};
use iof_proto::limits::{MAX_LOGS, MAX_LOGS_PER_PROCESS, MAX_WAITING_PER_TOOL};
use iof_proto::log::key;
use iof_proto::{Channel, Failure, Info, Log, LogEntry, LogReport, Rank, Status, ToTool};

use crate::control::Reports;
use crate::engine::Engine;
use crate::host::{Call, Host, Reply, Upcall};
use crate::job::{Elsewhere, JobState};
use crate::peer::Peer;
use crate::state::{PeerId, State};

/// Where an engine logs to.
#[derive(Clone, Debug, Default)]
pub struct LogConfig {
    /// The channels of messages that name none, in the order of preference (`plog_base_order`).
    pub order: Order,
    /// Messages go to the first channel only that takes them, unless they say otherwise (`plog_base_log_once`).
    pub once: bool,
    /// The syslog of this node.
    pub syslog: Syslog,
    /// The mail server, unless a request names another. Without one email goes by the gateway if there is one, or else to the node's own.
    pub mail: Option<MailServer>,
    /// The job record: a file that is made, with mode 0600, when the first message comes. Without it the name of the
    /// engine's socket with `.record` behind it (what is there already is put away as `.record.old`); if that has none
    /// either, there is no record. It stays when the engine ends.
    pub job_record: Option<PathBuf>,
    /// This engine is a gateway (`PMIX_SERVER_GATEWAY`): its syslog is the global one. Other engines reach it as tools do,
    /// see [`ViaGateway`](crate::ViaGateway).
    pub gateway: bool,
}

/// Names a request that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LogId(u64);

/// Names one of its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogStep {
    log: LogId,
    step: usize,
}

/// What an embedder wants to have called when its message was logged.
pub(crate) type Done = Box<dyn FnOnce(LogReport) + Send>;

/// Who wants something logged.
pub(crate) struct Asker {
    /// In words.
    by: String,
    to: To,
    /// Until it goes; the embedder stays.
    here: Option<Weak<()>>,
}

/// Who is told what came of it.
enum To {
    Tool {
        peer: PeerId,
        /// Its number for the request.
        request: u32,
        /// The process; `None` if that is the embedder's.
        pid: Option<u32>,
    },
    Embedder(Done),
}

impl Asker {
    /// A tool, in its request of this number.
    pub(crate) fn tool(id: PeerId, peer: &Peer, request: u32) -> Asker {
        // Its name is what it likes, and ends up in files and terminals.
        let name: String = peer.name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        Asker {
            by: format!("{name} (pid {})", peer.pid),
            to: To::Tool { peer: id, request, pid: (!peer.own).then_some(peer.pid) },
            here: Some(Arc::downgrade(&peer.here)),
        }
    }
}

/// A request under way.
struct Underway {
    asker: Asker,
    course: Course,
    how: Arc<How>,
    directives: Vec<Info>,
    ignored: Vec<String>,
}

/// Where this engine logs to, and what is under way.
pub(crate) struct Logs {
    config: LogConfig,
    node: String,
    record: Option<JobRecord>,
    gateway: Option<PathBuf>,
    host_channels: BTreeSet<String>,
    reports: Arc<Reports>,
    syslog: Worker,
    records: Worker,
    mail: Worker,
    stalls: Stalls,
    relay: Worker,
    underway: BTreeMap<LogId, Underway>,
    last: u64,
}

impl Logs {
    pub(crate) fn new(
        config: &LogConfig,
        host: &dyn Host,
        node: &str,
        socket: Option<&Path>,
        reports: Arc<Reports>,
    ) -> Logs {
        let beside = || {
            let mut name = socket?.as_os_str().to_owned();
            name.push(".record");
            Some(PathBuf::from(name))
        };
        // Another engine had our pid, or our place.
        let fresh = |path| {
            let record = JobRecord::at(path);
            if let Err(error) = record.put_away() {
                tracing::warn!(path = %record.path().display(), %error, "an earlier job record stays in the way");
            }
            record
        };
        Logs {
            config: config.clone(),
            node: node.to_owned(),
            record: config.job_record.clone().map(JobRecord::at).or_else(|| beside().map(fresh)),
            gateway: if config.gateway { None } else { host.gateway() },
            host_channels: host.log_channels().into_iter().collect(),
            reports,
            syslog: Worker::new("iof-syslog"),
            records: Worker::new("iof-record"),
            mail: Worker::new("iof-mail"),
            stalls: Stalls::default(),
            relay: Worker::new("iof-gateway"),
            underway: BTreeMap::new(),
            last: 0,
        }
    }

    /// The keys of the channels that there are.
    pub(crate) fn channels(&self) -> Vec<String> {
        let own = [
            key::PMIX_LOG_STDOUT,
            key::PMIX_LOG_STDERR,
            key::PMIX_LOG_SYSLOG,
            key::PMIX_LOG_LOCAL_SYSLOG,
            key::PMIX_LOG_GLOBAL_SYSLOG,
            key::PMIX_LOG_EMAIL,
            key::PMIX_LOG_JOB_RECORD,
        ];
        let has = |channel: &&str| match Kind::of(channel) {
            Kind::Syslog => self.has_local_syslog() || self.has_global_syslog(false),
            Kind::LocalSyslog => self.has_local_syslog(),
            Kind::GlobalSyslog => self.has_global_syslog(false),
            Kind::JobRecord => self.record.is_some(),
            _ => true,
        };
        let own = own.into_iter().filter(has).map(str::to_owned);
        let theirs = self.host_channels.iter().filter(|channel| Kind::of(channel) == Kind::Host).cloned();
        own.chain(theirs).collect()
    }

    fn has_local_syslog(&self) -> bool {
        self.config.syslog.is_there()
    }

    fn has_global_syslog(&self, relayed: bool) -> bool {
        let others = self.gateway.is_some() || self.host_channels.contains(key::PMIX_LOG_GLOBAL_SYSLOG);
        self.config.gateway || (others && !relayed)
    }

    /// A tool has gone: nobody is to be told. What was begun is done; with `PMIX_LOG_ONCE` no further channel is tried.
    pub(crate) fn forget(&mut self, gone: PeerId) {
        self.underway.retain(|_, of| !matches!(of.asker.to, To::Tool { peer, .. } if peer == gone));
    }

    /// Whether one request more may be under way for this asker.
    fn check_room(&self, asker: &To) -> Result<(), Failure> {
        let within = |whose: &str, limit: usize, of: &dyn Fn(&To) -> bool| {
            let count = self.underway.values().filter(|underway| of(&underway.asker.to)).count();
            if count < limit {
                return Ok(());
            }
            let reason = format!("{limit} messages{whose} are being logged: try again");
            Err(Failure { status: Status::ERR_RESOURCE_BUSY, reason })
        };
        within("", MAX_LOGS, &|_| true)?;
        let To::Tool { peer: tool, pid, .. } = asker else { return Ok(()) };
        let is_of_tool = |to: &To| matches!(to, To::Tool { peer, .. } if peer == tool);
        within(" of this tool", MAX_WAITING_PER_TOOL, &is_of_tool)?;
        let is_of_process = |to: &To| matches!(to, To::Tool { pid: of, .. } if of == pid);
        if pid.is_some() { within(" of this process", MAX_LOGS_PER_PROCESS, &is_of_process) } else { Ok(()) }
    }

    /// Has `job` done by the worker that `of` picks; its result comes back as that of `step`.
    fn submit(
        &mut self,
        of: fn(&mut Logs) -> &mut Worker,
        step: LogStep,
        job: impl FnOnce() -> Result<(), Failure> + Send + 'static,
    ) -> Option<Result<(), Failure>> {
        let reply = Reply::new(Call::Log(step), Arc::clone(&self.reports));
        let answered = move || match job() {
            Ok(()) => reply.grant(),
            Err(Failure { status, reason }) => reply.deny(status, reason),
        };
        of(self).submit(answered).err().map(Err)
    }
}

impl Engine {
    /// Logs something on the embedder's own behalf (`PMIx_Log_nb`), as a tool's [`log`](iof_tool::Tool::log) does. Does not
    /// wait: `done` runs when it is done or has failed, on the engine's control thread, with the same rules as
    /// [upcalls](crate::Host). It does not run if the engine ends before.
    ///
    /// # Errors
    /// The request makes no sense or is too long ([`limits`](iof_proto::limits)), or too many are under way; `done` is
    /// dropped.
    pub fn log(&self, log: &Log, done: impl FnOnce(LogReport) + Send + 'static) -> Result<(), Failure> {
        log.check()
            .map_err(|excess| Failure { status: Status::ERR_BAD_PARAM, reason: excess.to_string() })?;
        let asker = Asker {
            by: format!("engine (pid {})", std::process::id()),
            to: To::Embedder(Box::new(done)),
            here: None,
        };
        let mut state = self.tables.lock();
        let begun = state.begin_log(asker, log).map_err(|(_, failure)| failure);
        begun.map(|id| state.go_on_logging(&self.capture, id))?;
        drop(state);
        // There may be upcalls.
        self.tables.reports.wake();
        Ok(())
    }
}

impl State {
    /// A tool wants something logged.
    pub(crate) fn log(&mut self, capture: &Capture, asker: Asker, log: Log) {
        match self.begin_log(asker, &log) {
            Ok(id) => self.go_on_logging(capture, id),
            Err((asker, failure)) => self.tell_logged(asker, Err(failure)),
        }
    }

    fn begin_log(&mut self, asker: Asker, log: &Log) -> Result<LogId, (Asker, Failure)> {
        match self.prepare(&asker, log) {
            Ok((course, how, ignored)) => {
                self.logs.last = self.logs.last.wrapping_add(1);
                let id = LogId(self.logs.last);
                let directives = log.directives.clone();
                let underway = Underway { asker, course, how: Arc::new(how), directives, ignored };
                self.logs.underway.insert(id, underway);
                Ok(id)
            }
            Err(failure) => Err((asker, failure)),
        }
    }

    fn prepare(&self, asker: &Asker, log: &Log) -> Result<(Course, How, Vec<String>), Failure> {
        self.logs.check_room(&asker.to)?;
        let (how, ignored) = How::read(&log.directives, &self.host_keys)?;
        self.check_source(asker, &how)?;
        let available = |channel: &str| match Kind::of(channel) {
            Kind::Stdout | Kind::Stderr => self.log_target(&how).is_ok(),
            Kind::LocalSyslog => self.logs.has_local_syslog(),
            Kind::GlobalSyslog => self.logs.has_global_syslog(how.relayed),
            Kind::Email => how.email.iter().any(|info| info.key == key::PMIX_LOG_EMAIL_ADDR),
            Kind::JobRecord => self.logs.record.is_some(),
            Kind::Host => self.logs.host_channels.contains(channel),
            Kind::Syslog | Kind::Any => false,
        };
        let entries = plan(log, &self.logs.config.order, available)?;
        let once = how.once.unwrap_or(self.logs.config.once);
        Ok((Course::new(entries, once), how, ignored))
    }

    /// Whether a message may be said to be of its source. What is not known here, others may know: the embedder, who hands
    /// messages on to a gateway, and a host that says that it understands this directive.
    fn check_source(&self, asker: &Asker, how: &How) -> Result<(), Failure> {
        let Some(source) = &how.source else { return Ok(()) };
        let is_known = |job: &JobState| {
            let has_rank = job.has_rank(source.rank) || job.elsewhere == Elsewhere::Running;
            [Rank::WILDCARD, Rank::UNDEF].contains(&source.rank) || has_rank
        };
        let is_others = matches!(asker.to, To::Embedder(_))
            || (how.relayed && self.logs.config.gateway)
            || self.host_keys.contains(key::PMIX_LOG_SOURCE);
        if is_others || self.jobs.get(&source.nspace).is_some_and(is_known) {
            return Ok(());
        }
        let reason = format!("there is no {source} here, whose message it could be: name another, or none");
        Err(Failure { status: Status::ERR_NOT_FOUND, reason })
    }

    /// A step was done by somebody else.
    pub(crate) fn log_answered(&mut self, capture: &Capture, step: LogStep, answer: Result<(), Failure>) {
        if let Some(underway) = self.logs.underway.get_mut(&step.log) {
            underway.course.done(step.step, answer);
        }
        self.go_on_logging(capture, step.log);
    }

    fn go_on_logging(&mut self, capture: &Capture, log: LogId) {
        loop {
            let Some(underway) = self.logs.underway.get_mut(&log) else { return };
            let begun = underway.course.begin();
            if begun.is_empty() {
                break;
            }
            for step in begun {
                let result = self.log_step(capture, LogStep { log, step });
                if let (Some(result), Some(underway)) = (result, self.logs.underway.get_mut(&log)) {
                    underway.course.done(step, result);
                }
            }
        }
        let outcome = self.logs.underway.get(&log).and_then(|underway| underway.course.outcome());
        if let Some((status, outcomes)) = outcome
            && let Some(Underway { asker, ignored, .. }) = self.logs.underway.remove(&log)
        {
            self.tell_logged(asker, Ok(LogReport { status, outcomes, ignored }));
        }
    }

    /// Begins a step; gives what became of it if that is known at once.
    fn log_step(&mut self, capture: &Capture, step: LogStep) -> Option<Result<(), Failure>> {
        let underway = self.logs.underway.get(&step.log)?;
        let entry = underway.course.entry(step.step)?.clone();
        let (how, directives) = (Arc::clone(&underway.how), underway.directives.clone());
        let origin = Origin { source: how.source.clone(), by: underway.asker.by.clone() };
        let here = underway.asker.here.clone();
        let text = entry.text().unwrap_or_default().to_owned();
        let logs = &mut self.logs;
        match Kind::of(&entry.channel) {
            Kind::Stdout => self.log_output(capture, step, Channel::Stdout, &text, &how),
            Kind::Stderr => self.log_output(capture, step, Channel::Stderr, &text, &how),
            Kind::LocalSyslog => logs.submit_syslog(step, &text, &origin, &how),
            Kind::GlobalSyslog if logs.config.gateway => logs.submit_syslog(step, &text, &origin, &how),
            Kind::GlobalSyslog if how.relayed => {
                let reason =
                    "this engine is no gateway, and hands nothing on that others handed to it".into();
                Some(Err(Failure { status: Status::ERR_NOT_SUPPORTED, reason }))
            }
            Kind::GlobalSyslog if logs.gateway.is_some() => logs.submit_relay(step, entry, &how),
            Kind::Email => logs.submit_mail(step, entry, &how, here),
            Kind::JobRecord => {
                let Some(record) = logs.record.clone() else {
                    let reason = "this engine keeps no job record".into();
                    return Some(Err(Failure { status: Status::ERR_NOT_AVAILABLE, reason }));
                };
                logs.submit(|logs| &mut logs.records, step, move || record.append(&text, &origin, &how))
            }
            Kind::GlobalSyslog | Kind::Host | Kind::Syslog | Kind::Any => {
                self.upcalls.push(Upcall::Log { step, log: Log { data: vec![entry], directives } });
                None
            }
        }
    }

    fn tell_logged(&mut self, asker: Asker, result: Result<LogReport, Failure>) {
        match (asker.to, result) {
            (To::Tool { peer, request, .. }, result) => {
                if let Some(peer) = self.peers.get_mut(&peer) {
                    peer.answer(&ToTool::Logged { request, result });
                }
            }
            (To::Embedder(done), Ok(report)) => self.upcalls.push(Upcall::Logged { done, report }),
            // It was told when it asked.
            (To::Embedder(_), Err(_)) => {}
        }
    }
}

impl Logs {
    fn submit_syslog(
        &mut self,
        step: LogStep,
        text: &str,
        origin: &Origin,
        how: &How,
    ) -> Option<Result<(), Failure>> {
        let line = syslog_line(text, origin, &self.node, how);
        let (syslog, priority) = (self.config.syslog.clone(), how.priority);
        self.submit(|logs| &mut logs.syslog, step, move || syslog.send(priority, &line))
    }

    /// Mail is not begun once its asker has gone: behind a slow server it would only keep others waiting.
    fn submit_mail(
        &mut self,
        step: LogStep,
        entry: LogEntry,
        how: &How,
        here: Option<Weak<()>>,
    ) -> Option<Result<(), Failure>> {
        let iof_proto::LogValue::Email(fields) = &entry.value else {
            let reason = "an email is no plain text".into();
            return Some(Err(Failure { status: Status::ERR_BAD_PARAM, reason }));
        };
        let names_server = fields.iter().chain(&how.email).any(|info| info.key == key::PMIX_LOG_EMAIL_SERVER);
        if self.config.mail.is_none() && !names_server && !how.relayed && self.gateway.is_some() {
            return self.submit_relay(step, entry, how);
        }
        let server = self.config.mail.clone().unwrap_or_default();
        match Mail::new(fields, how, &server, &self.node) {
            Ok(mail) => {
                let stalls = self.stalls.clone();
                self.submit(
                    |logs| &mut logs.mail,
                    step,
                    move || {
                        if here.is_some_and(|here| here.strong_count() == 0) {
                            let reason = "whoever asked for it has gone".into();
                            return Err(Failure { status: Status::ERR_NOT_AVAILABLE, reason });
                        }
                        mail.send(&stalls)
                    },
                )
            }
            Err(failure) => Some(Err(failure)),
        }
    }

    fn submit_relay(&mut self, step: LogStep, entry: LogEntry, how: &How) -> Option<Result<(), Failure>> {
        let gateway = self.gateway.clone()?;
        let log = gateway::relayed(entry, how);
        self.submit(|logs| &mut logs.relay, step, move || gateway::relay(&gateway, &log))
    }
}
