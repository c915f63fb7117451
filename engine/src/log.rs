//! Log requests (`PMIx_Log`, RFC0010, RFC0032): each takes its course through its channels, and
//! whoever asked is told what came of it.
//!
//! Nothing here waits: what goes to stdout and stderr is handed to the capture thread like any
//! delivery; what may take its time is done by threads with bounded queues, one each for this
//! node's syslog, the job record, mail and the gateway; the host answers when it likes.

mod channels;
mod gateway;
mod streams;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use iof_capture::Capture;
use iof_log::{ChannelKind, LogOptions, LogOrigin, LogPlan, MailServer, Order, Syslog, resolve_channels};
use iof_proto::limits::{MAX_LOG_BYTES, MAX_LOGS, MAX_LOGS_PER_PROCESS, MAX_WAITING_PER_TOOL};
use iof_proto::log::key;
use iof_proto::names::sanitize;
use iof_proto::{Channel, Failure, Info, Log, LogReport, Proc, Rank, Status, ToTool};

use crate::client::Client;
use crate::control::Reports;
use crate::engine::Engine;
use crate::host::{Call, Host, Upcall};
use crate::job::{Elsewhere, JobState};
use crate::owed::size_of_infos;
use crate::peer::Peer;
use crate::state::{PeerId, State};

use channels::{Begun, Entry, LogChannels};

/// Characters of a tool's name that are logged.
const MAX_NAME: usize = 64;

/// Where an engine logs to.
#[derive(Clone, Debug, Default)]
pub struct LogConfig {
    /// The channels of messages that name none, in the order of preference (`plog_base_order`).
    pub order: Order,
    /// Messages go to the first channel only that takes them, unless they say otherwise
    /// (`plog_base_log_once`).
    pub once: bool,
    /// The syslog of this node.
    pub syslog: Syslog,
    /// The mail server, unless a request names another. Without one email goes by the gateway if
    /// there is one, or else to the node's own.
    pub mail: Option<MailServer>,
    /// The job record: a file that is made, with mode 0600, when the first message comes. Without
    /// it the name of the engine's socket with `.record` behind it (what is there already is
    /// put away as `.record.old`); if that has none either, there is no record. It stays when
    /// the engine ends.
    pub job_record: Option<PathBuf>,
    /// This engine is a gateway (`PMIX_SERVER_GATEWAY`): its syslog is the global one. Other
    /// engines reach it as tools do, see [`ViaGateway`](crate::ViaGateway).
    pub gateway: bool,
}

/// Names a request that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct LogId(u64);

/// Names one of its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
        client: Option<Client>,
    },
    Embedder(Done),
}

impl Asker {
    /// A tool, in its request of this number.
    pub(crate) fn tool(id: PeerId, peer: &Peer, request: u32) -> Asker {
        // Its name is what it likes, and ends up in files and terminals.
        let name: String = sanitize(&peer.name).chars().take(MAX_NAME).collect();
        Asker {
            by: format!("{name} (pid {})", peer.client.pid),
            to: To::Tool { peer: id, request, client: peer.counted() },
            here: Some(Arc::downgrade(&peer.here)),
        }
    }
}

/// A request under way.
struct Underway {
    asker: Asker,
    course: LogPlan,
    how: Arc<LogOptions>,
    origin: LogOrigin,
    directives: Vec<Info>,
    ignored: Vec<String>,
    /// Of its messages.
    bytes: usize,
}

/// A request that makes sense.
struct Prepared {
    course: LogPlan,
    how: LogOptions,
    origin: LogOrigin,
    ignored: Vec<String>,
    bytes: usize,
}

/// Where this engine logs to, and what is under way.
pub(crate) struct Logs {
    channels: LogChannels,
    reports: Arc<Reports>,
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
        let channels = LogChannels::new(config, host, node, socket, Arc::clone(&reports));
        Logs { channels, reports, underway: BTreeMap::new(), last: 0 }
    }

    /// The keys of the channels that there are.
    pub(crate) fn channels(&self) -> Vec<String> {
        self.channels.keys()
    }

    /// A tool has gone: nobody is to be told. What was begun is done; with `PMIX_LOG_ONCE` no
    /// further channel is tried.
    pub(crate) fn forget(&mut self, gone: PeerId) {
        self.underway.retain(|_, of| !matches!(of.asker.to, To::Tool { peer, .. } if peer == gone));
    }

    /// Whether one request more may be under way for this asker, with messages of `bytes` in all.
    fn check_room(&self, asker: &To, bytes: usize) -> Result<(), Failure> {
        let within = |whose: &str, limit: usize, of: &dyn Fn(&To) -> bool| {
            let count = self.underway.values().filter(|underway| of(&underway.asker.to)).count();
            if count < limit {
                return Ok(());
            }
            let reason = format!("{limit} messages{whose} are being logged: try again");
            Err(Failure { status: Status::ERR_RESOURCE_BUSY, reason })
        };
        within("", MAX_LOGS, &|_| true)?;
        let all = self.underway.values().map(|of| of.bytes).fold(bytes, usize::saturating_add);
        if all > MAX_LOG_BYTES {
            let reason = format!("messages of {MAX_LOG_BYTES} bytes are being logged: try again");
            return Err(Failure { status: Status::ERR_RESOURCE_BUSY, reason });
        }
        let To::Tool { peer: tool, client, .. } = asker else { return Ok(()) };
        let is_of_tool = |to: &To| matches!(to, To::Tool { peer, .. } if peer == tool);
        within(" of this tool", MAX_WAITING_PER_TOOL, &is_of_tool)?;
        let is_of_process = |to: &To| matches!(to, To::Tool { client: of, .. } if of == client);
        if client.is_some() {
            within(" of this process", MAX_LOGS_PER_PROCESS, &is_of_process)
        } else {
            Ok(())
        }
    }
}

impl Engine {
    /// Logs something on the embedder's own behalf (`PMIx_Log_nb`), as a tool's
    /// [`log`](iof_tool::Tool::log) does. Does not wait: `done` runs when it is done or has
    /// failed, on the engine's control thread, with the same rules as [upcalls](crate::Host).
    /// It does not run if the engine ends before.
    ///
    /// # Errors
    /// The request makes no sense or is too long ([`limits`](iof_proto::limits)), or too many are
    /// under way; `done` is dropped.
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
        let Prepared { course, how, origin, ignored, bytes } = match self.prepare(&asker, log) {
            Ok(prepared) => prepared,
            Err(failure) => return Err((asker, failure)),
        };
        self.logs.last = self.logs.last.wrapping_add(1);
        let id = LogId(self.logs.last);
        let (how, directives) = (Arc::new(how), log.directives.clone());
        let underway = Underway { asker, course, how, origin, directives, ignored, bytes };
        self.logs.underway.insert(id, underway);
        Ok(id)
    }

    fn prepare(&self, asker: &Asker, log: &Log) -> Result<Prepared, Failure> {
        let (mut how, mut ignored) = LogOptions::parse(&log.directives, &self.host_keys)?;
        let relayed = how.relayed.is_some();
        if relayed && !self.logs.channels.config.gateway {
            let reason = "this engine is no gateway: it logs nothing that others hand on to it".into();
            return Err(Failure { status: Status::ERR_NOT_SUPPORTED, reason });
        }
        self.check_source(asker, &how)?;
        if how.source.is_none() && !relayed {
            how.source = self.only_job();
        }
        let available = |channel: &str| match ChannelKind::from_key(channel) {
            ChannelKind::Stdout | ChannelKind::Stderr => self.log_target(&how).is_ok(),
            ChannelKind::Email => how.email.iter().any(|info| info.key == key::PMIX_LOG_EMAIL_ADDR),
            _ => self.logs.channels.has(channel),
        };
        let config = &self.logs.channels.config;
        let entries = resolve_channels(log, &config.order, available)?;
        ignored.extend(how.ignored_by(entries.iter().map(|entry| ChannelKind::from_key(&entry.channel))));
        let length = |entry: &iof_proto::LogEntry| entry.text().map_or(0, str::len);
        let bytes = entries.iter().map(length).fold(0, usize::saturating_add);
        self.logs.check_room(&asker.to, bytes)?;
        let by = match &how.relayed {
            Some(first) => format!("{} through {}", sanitize(first), asker.by),
            None => asker.by.clone(),
        };
        let origin = LogOrigin { source: how.source.clone(), requester: by };
        let course = LogPlan::new(entries, how.once.unwrap_or(config.once));
        Ok(Prepared { course, how, origin, ignored, bytes })
    }

    /// The engine's only job, as the process of no rank: whose message it is of which nobody says
    /// that.
    fn only_job(&self) -> Option<Proc> {
        let mut jobs = self.jobs.keys();
        let (Some(nspace), None) = (jobs.next(), jobs.next()) else { return None };
        Some(Proc { nspace: nspace.clone(), rank: Rank::UNDEF })
    }

    /// Whether a message may be said to be of its source. What is not known here, others may know:
    /// the embedder, who hands messages on to a gateway, and a host that says that it
    /// understands this directive.
    fn check_source(&self, asker: &Asker, how: &LogOptions) -> Result<(), Failure> {
        let Some(source) = &how.source else { return Ok(()) };
        let is_known = |job: &JobState| {
            let has_rank = job.has_rank(source.rank) || job.elsewhere == Elsewhere::Running;
            [Rank::WILDCARD, Rank::UNDEF].contains(&source.rank) || has_rank
        };
        let is_others = matches!(asker.to, To::Embedder(_))
            || how.relayed.is_some()
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
            underway.course.complete(step.step, answer);
        }
        self.go_on_logging(capture, step.log);
    }

    fn go_on_logging(&mut self, capture: &Capture, log: LogId) {
        loop {
            let Some(underway) = self.logs.underway.get_mut(&log) else { return };
            let begun = underway.course.start_next();
            if begun.is_empty() {
                break;
            }
            for step in begun {
                let result = self.log_step(capture, LogStep { log, step });
                if let (Some(result), Some(underway)) = (result, self.logs.underway.get_mut(&log)) {
                    underway.course.complete(step, result);
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
        let entry = Entry {
            step,
            entry: underway.course.entry(step.step)?.clone(),
            how: Arc::clone(&underway.how),
            origin: underway.origin.clone(),
            directives: underway.directives.clone(),
            asker: underway.asker.here.clone(),
        };
        let kind = ChannelKind::from_key(&entry.entry.channel);
        if let Err(failure) = entry.how.check_style(kind) {
            return Some(Err(failure));
        }
        let to_output = |channel| (channel, entry.entry.text().unwrap_or_default());
        let output = match kind {
            ChannelKind::Stdout => Some(to_output(Channel::Stdout)),
            ChannelKind::Stderr => Some(to_output(Channel::Stderr)),
            _ => None,
        };
        if let Some((channel, text)) = output {
            return self.log_output(capture, step, channel, text, &entry.how);
        }
        match self.logs.channels.begin(entry) {
            Begun::Done(result) => Some(result),
            Begun::Later => None,
            Begun::Host(Entry { entry, directives, .. }) => {
                let client = match self.logs.underway.get(&step.log)?.asker.to {
                    To::Tool { client, .. } => client,
                    To::Embedder(_) => None,
                };
                let bytes = entry.text().map_or(0, str::len).saturating_add(size_of_infos(&directives));
                if let Err(failure) = self.owed.note(Call::Log(step), client, bytes) {
                    return Some(Err(failure));
                }
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
