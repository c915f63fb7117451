//! Log requests (`PMIx_Log`, RFC0010, RFC0032): each follows a plan through its channels, and its
//! requester receives the outcome.
//!
//! Nothing here blocks. Messages for stdout and stderr are handed to the capture thread like
//! deliveries. Channels that may block are served by threads with bounded queues, one each for this
//! node's syslog, the job record, mail and the gateway. The host answers asynchronously.

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
use crate::job::{JobState, RemoteRanks};
use crate::owed::size_of_infos;
use crate::peer::Peer;
use crate::state::{PeerId, State};

use channels::{ChannelEntry, LogChannels, Submission};

/// The longest part of a tool's name that is logged, in characters.
const MAX_NAME_CHARS: usize = 64;

/// The channels to which an engine logs messages (`PMIx_Log`), and their settings.
#[derive(Clone, Debug, Default)]
pub struct LogConfig {
    /// The channels for messages that do not name a channel, in order of preference
    /// (`plog_base_order`).
    pub order: Order,
    /// Whether a message goes only to the first channel that accepts it, unless the message
    /// specifies otherwise (`plog_base_log_once`).
    pub once: bool,
    /// The syslog of this node.
    pub syslog: Syslog,
    /// The mail server for requests that do not name one. With `None`, the gateway sends email if
    /// there is one, otherwise the node's own mail server.
    pub mail: Option<MailServer>,
    /// The path of the job record, a file for logged messages. It is created with mode 0600 for the
    /// first message, and remains when the engine ends. With `None`, the path is that of the
    /// engine's socket with `.record` appended; a file that exists there is renamed to
    /// `.record.old`. An engine without a socket and without this path keeps no record.
    pub job_record: Option<PathBuf>,
    /// Whether this engine is a gateway (`PMIX_SERVER_GATEWAY`). The syslog of a gateway is the
    /// global one. Other engines connect to it as tools do, see [`ViaGateway`](crate::ViaGateway).
    pub gateway: bool,
}

/// The number of an ongoing request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct LogId(u64);

/// The number of a step of an ongoing request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LogStep {
    log: LogId,
    step: usize,
}

/// The callback that an embedder passes with a message.
pub(crate) type LogCallback = Box<dyn FnOnce(LogReport) + Send>;

/// The tool or embedder that wants something logged.
pub(crate) struct Requester {
    /// A description for people and files.
    description: String,
    reply_to: ReplyTo,
    /// Expires when the tool disconnects; `None` for the embedder.
    connection: Option<Weak<()>>,
}

/// The receiver of the outcome.
enum ReplyTo {
    Tool {
        peer: PeerId,
        /// The tool's number for the request.
        request: u32,
        /// The process; `None` for the embedder's own tool.
        client: Option<Client>,
    },
    Embedder(LogCallback),
}

impl Requester {
    /// Describes the tool `id` and its request number `request`.
    pub(crate) fn tool(id: PeerId, peer: &Peer, request: u32) -> Requester {
        // The tool chooses its name freely, and the name ends up in files and terminals.
        let name: String = sanitize(&peer.name).chars().take(MAX_NAME_CHARS).collect();
        Requester {
            description: format!("{name} (pid {})", peer.client.pid),
            reply_to: ReplyTo::Tool { peer: id, request, client: peer.counted() },
            connection: Some(Arc::downgrade(&peer.alive)),
        }
    }
}

/// An ongoing request.
struct OngoingLog {
    requester: Requester,
    plan: LogPlan,
    options: Arc<LogOptions>,
    origin: LogOrigin,
    directives: Vec<Info>,
    ignored: Vec<String>,
    /// The length of the messages, in bytes.
    bytes: usize,
}

/// A request that was checked and has a plan.
struct PreparedLog {
    plan: LogPlan,
    options: LogOptions,
    origin: LogOrigin,
    ignored: Vec<String>,
    bytes: usize,
}

/// Where this engine logs messages, and the ongoing requests.
pub(crate) struct Logs {
    channels: LogChannels,
    reports: Arc<Reports>,
    ongoing: BTreeMap<LogId, OngoingLog>,
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
        Logs { channels, reports, ongoing: BTreeMap::new(), last: 0 }
    }

    /// Returns the keys of the available channels.
    pub(crate) fn channels(&self) -> Vec<String> {
        self.channels.keys()
    }

    /// Drops the requests of a tool that has disconnected, so no reply is sent. Steps that have
    /// begun are completed. With `PMIX_LOG_ONCE` no further channel is tried.
    pub(crate) fn forget(&mut self, gone: PeerId) {
        self.ongoing.retain(
            |_, ongoing| !matches!(ongoing.requester.reply_to, ReplyTo::Tool { peer, .. } if peer == gone),
        );
    }

    /// Checks that another request of this requester may be ongoing, with messages of `bytes` bytes
    /// in all.
    fn check_room(&self, reply_to: &ReplyTo, bytes: usize) -> Result<(), Failure> {
        let check_limit = |of_requester: &str, limit: usize, counts: &dyn Fn(&ReplyTo) -> bool| {
            let count = self.ongoing.values().filter(|ongoing| counts(&ongoing.requester.reply_to)).count();
            if count < limit {
                return Ok(());
            }
            let reason = format!("{limit} messages{of_requester} are being logged: try again");
            Err(Failure::new(Status::ERR_RESOURCE_BUSY, reason))
        };
        check_limit("", MAX_LOGS, &|_| true)?;
        let all = self.ongoing.values().map(|ongoing| ongoing.bytes).fold(bytes, usize::saturating_add);
        if all > MAX_LOG_BYTES {
            let reason = format!("messages of {MAX_LOG_BYTES} bytes are being logged: try again");
            return Err(Failure::new(Status::ERR_RESOURCE_BUSY, reason));
        }
        let ReplyTo::Tool { peer: tool, client, .. } = reply_to else { return Ok(()) };
        let is_of_tool = |other: &ReplyTo| matches!(other, ReplyTo::Tool { peer, .. } if peer == tool);
        check_limit(" of this tool", MAX_WAITING_PER_TOOL, &is_of_tool)?;
        let is_of_process =
            |other: &ReplyTo| matches!(other, ReplyTo::Tool { client: process, .. } if process == client);
        if client.is_some() {
            check_limit(" of this process", MAX_LOGS_PER_PROCESS, &is_of_process)
        } else {
            Ok(())
        }
    }
}

impl Engine {
    /// Logs a message on the embedder's behalf (`PMIx_Log_nb`), as
    /// [`Tool::log`](iof_tool::Tool::log) does for a tool. Does not block.
    ///
    /// `done` is called with the outcome, on the engine's control thread and under the same rules
    /// as [upcalls](crate::Host). It is not called if the engine ends first.
    ///
    /// # Errors
    /// Fails if the request is invalid or exceeds the [`limits`](iof_proto::limits), or if too many
    /// requests are in progress. `done` is then dropped without being called.
    pub fn log(&self, log: &Log, done: impl FnOnce(LogReport) + Send + 'static) -> Result<(), Failure> {
        log.check()
            .map_err(|excess| Failure { status: Status::ERR_BAD_PARAM, reason: excess.to_string() })?;
        let requester = Requester {
            description: format!("engine (pid {})", std::process::id()),
            reply_to: ReplyTo::Embedder(Box::new(done)),
            connection: None,
        };
        let mut state = self.tables.lock();
        let begun = state.begin_log(requester, log).map_err(|(_, failure)| failure);
        begun.map(|id| state.continue_log(&self.capture, id))?;
        drop(state);
        // Steps for the host have queued upcalls.
        self.tables.reports.wake();
        Ok(())
    }
}

impl State {
    /// Serves a tool's log request.
    pub(crate) fn log(&mut self, capture: &Capture, requester: Requester, log: Log) {
        match self.begin_log(requester, &log) {
            Ok(id) => self.continue_log(capture, id),
            Err((requester, failure)) => self.reply_logged(requester, Err(failure)),
        }
    }

    fn begin_log(&mut self, requester: Requester, log: &Log) -> Result<LogId, (Requester, Failure)> {
        let PreparedLog { plan, options, origin, ignored, bytes } = match self.prepare(&requester, log) {
            Ok(prepared) => prepared,
            Err(failure) => return Err((requester, failure)),
        };
        self.logs.last = self.logs.last.wrapping_add(1);
        let id = LogId(self.logs.last);
        let (options, directives) = (Arc::new(options), log.directives.clone());
        let ongoing = OngoingLog { requester, plan, options, origin, directives, ignored, bytes };
        self.logs.ongoing.insert(id, ongoing);
        Ok(id)
    }

    fn prepare(&self, requester: &Requester, log: &Log) -> Result<PreparedLog, Failure> {
        let (mut options, mut ignored) = LogOptions::parse(&log.directives, &self.host_keys)?;
        let relayed = options.relayed.is_some();
        if relayed && !self.logs.channels.config.gateway {
            let reason = "this engine is not a gateway: it does not log relayed messages";
            return Err(Failure::new(Status::ERR_NOT_SUPPORTED, reason));
        }
        self.check_source(requester, &options)?;
        if options.source.is_none() && !relayed {
            options.source = self.only_job();
        }
        let available = |channel: &str| match ChannelKind::from_key(channel) {
            ChannelKind::Stdout | ChannelKind::Stderr => self.log_target(&options).is_ok(),
            ChannelKind::Email => {
                self.logs.channels.sends_mail()
                    && options.email.iter().any(|info| info.key == key::PMIX_LOG_EMAIL_ADDR)
            }
            _ => self.logs.channels.has(channel),
        };
        let config = &self.logs.channels.config;
        let entries = resolve_channels(log, &config.order, available)?;
        ignored.extend(options.ignored_by(entries.iter().map(|entry| ChannelKind::from_key(&entry.channel))));
        let length = |entry: &iof_proto::LogEntry| entry.text().map_or(0, str::len);
        let bytes = entries.iter().map(length).fold(0, usize::saturating_add);
        self.logs.check_room(&requester.reply_to, bytes)?;
        let description = match &options.relayed {
            Some(first) => format!("{} through {}", sanitize(first), requester.description),
            None => requester.description.clone(),
        };
        let origin = LogOrigin { source: options.source.clone(), requester: description };
        let plan = LogPlan::new(entries, options.once.unwrap_or(config.once));
        Ok(PreparedLog { plan, options, origin, ignored, bytes })
    }

    /// Returns the engine's only job as a process without a rank. It is the source of messages that
    /// do not specify one.
    fn only_job(&self) -> Option<Proc> {
        let mut jobs = self.jobs.keys();
        let (Some(nspace), None) = (jobs.next(), jobs.next()) else { return None };
        Some(Proc::new(nspace.clone(), Rank::UNDEF))
    }

    /// Checks that the source of a message may be its source. A source that is unknown here may be
    /// known to others: the embedder, an engine that relays messages to this gateway, or a host
    /// that understands the directive.
    fn check_source(&self, requester: &Requester, options: &LogOptions) -> Result<(), Failure> {
        let Some(source) = &options.source else { return Ok(()) };
        let is_known = |job: &JobState| {
            let has_rank = job.has_rank(source.rank) || job.remote == RemoteRanks::Running;
            [Rank::WILDCARD, Rank::UNDEF].contains(&source.rank) || has_rank
        };
        let is_known_elsewhere = matches!(requester.reply_to, ReplyTo::Embedder(_))
            || options.relayed.is_some()
            || self.host_keys.contains(key::PMIX_LOG_SOURCE);
        if is_known_elsewhere || self.jobs.get(&source.nspace).is_some_and(is_known) {
            return Ok(());
        }
        let reason = format!("the source {source} does not exist here: name another source or none");
        Err(Failure::new(Status::ERR_NOT_FOUND, reason))
    }

    /// Records the result of a step that another thread or the host has done.
    pub(crate) fn log_answered(&mut self, capture: &Capture, step: LogStep, answer: Result<(), Failure>) {
        if let Some(ongoing) = self.logs.ongoing.get_mut(&step.log) {
            ongoing.plan.complete(step.step, answer);
        }
        self.continue_log(capture, step.log);
    }

    fn continue_log(&mut self, capture: &Capture, log: LogId) {
        loop {
            let Some(ongoing) = self.logs.ongoing.get_mut(&log) else { return };
            let begun = ongoing.plan.start_next();
            if begun.is_empty() {
                break;
            }
            for step in begun {
                let result = self.log_step(capture, LogStep { log, step });
                if let (Some(result), Some(ongoing)) = (result, self.logs.ongoing.get_mut(&log)) {
                    ongoing.plan.complete(step, result);
                }
            }
        }
        let outcome = self.logs.ongoing.get(&log).and_then(|ongoing| ongoing.plan.outcome());
        if let Some((status, outcomes)) = outcome
            && let Some(OngoingLog { requester, ignored, .. }) = self.logs.ongoing.remove(&log)
        {
            self.reply_logged(requester, Ok(LogReport { status, outcomes, ignored }));
        }
    }

    /// Begins a step. Returns its result if that is known at once.
    fn log_step(&mut self, capture: &Capture, step: LogStep) -> Option<Result<(), Failure>> {
        let ongoing = self.logs.ongoing.get(&step.log)?;
        let entry = ChannelEntry {
            step,
            entry: ongoing.plan.entry(step.step)?.clone(),
            options: Arc::clone(&ongoing.options),
            origin: ongoing.origin.clone(),
            directives: ongoing.directives.clone(),
            requester: ongoing.requester.connection.clone(),
        };
        let kind = ChannelKind::from_key(&entry.entry.channel);
        if let Err(failure) = entry.options.check_style(kind) {
            return Some(Err(failure));
        }
        let to_output = |channel| (channel, entry.entry.text().unwrap_or_default());
        let output = match kind {
            ChannelKind::Stdout => Some(to_output(Channel::Stdout)),
            ChannelKind::Stderr => Some(to_output(Channel::Stderr)),
            _ => None,
        };
        if let Some((channel, text)) = output {
            return self.log_output(capture, step, channel, text, &entry.options);
        }
        match self.logs.channels.begin(entry) {
            Submission::Done(result) => Some(result),
            Submission::Pending => None,
            Submission::Host(ChannelEntry { entry, directives, .. }) => {
                let client = match self.logs.ongoing.get(&step.log)?.requester.reply_to {
                    ReplyTo::Tool { client, .. } => client,
                    ReplyTo::Embedder(_) => None,
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

    fn reply_logged(&mut self, requester: Requester, result: Result<LogReport, Failure>) {
        match (requester.reply_to, result) {
            (ReplyTo::Tool { peer, request, .. }, result) => {
                if let Some(peer) = self.peers.get_mut(&peer) {
                    peer.answer(&ToTool::Logged { request, result });
                }
            }
            (ReplyTo::Embedder(done), Ok(report)) => self.upcalls.push(Upcall::Logged { done, report }),
            // `Engine::log` has returned the error.
            (ReplyTo::Embedder(_), Err(_)) => {}
        }
    }
}
