//! Log requests (`PMIx_Log`, RFC0010, RFC0032): each follows a plan through its channels, and its
//! requester receives the outcome.
//!
//! Nothing here blocks. Messages for stdout and stderr are handed to the capture thread like
//! deliveries. Channels that may block are served by threads with bounded queues, one each for this
//! node's syslog, the job record, mail and the gateway. The host answers asynchronously.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use iof_log::{LogOptions, LogOrigin, LogPlan};
use iof_proto::names::sanitize;
use iof_proto::{Failure, Info, LogEntry, LogReport, Status};

use crate::client::Client;
use crate::ids::{LogId, LogStep, PeerId};
use crate::limits::Limits;
use crate::logs::channel_entry::ChannelEntry;
use crate::logs::routes::LogRoutes;
use crate::tools::peer::Peer;
use crate::upcall::LogCallback;

/// The longest part of a tool's name that is logged, in characters.
const MAX_NAME_CHARS: usize = 64;

/// The tool or embedder that wants something logged.
pub(crate) struct Requester {
    /// A description for people and files.
    description: String,
    reply_to: ReplyTo,
    /// Expires when the tool disconnects; `None` for the embedder.
    connection: Option<Weak<()>>,
}

/// The receiver of the outcome.
pub enum ReplyTo {
    /// A tool.
    Tool {
        /// The tool.
        peer: PeerId,
        /// The tool's number for the request.
        request: u32,
        /// The process; `None` for the embedder's own tool.
        client: Option<Client>,
    },
    /// The embedder, by a callback.
    Embedder(LogCallback),
}

impl Requester {
    /// Describes the tool `id` and its request number `request`.
    pub(crate) fn tool(id: PeerId, peer: &Peer, request: u32) -> Requester {
        // The tool chooses its name freely, and the name ends up in files and terminals.
        let name: String = sanitize(peer.name()).chars().take(MAX_NAME_CHARS).collect();
        Requester {
            description: format!("{name} (pid {})", peer.client().pid),
            reply_to: ReplyTo::Tool { peer: id, request, client: peer.counted() },
            connection: Some(peer.connection()),
        }
    }

    /// Describes the embedder, whose process is `pid`. `done` is called with the outcome.
    pub(crate) fn embedder(pid: u32, done: LogCallback) -> Requester {
        Requester {
            description: format!("engine (pid {pid})"),
            reply_to: ReplyTo::Embedder(done),
            connection: None,
        }
    }

    /// Returns whether this is the embedder.
    pub(crate) fn is_embedder(&self) -> bool {
        matches!(self.reply_to, ReplyTo::Embedder(_))
    }

    /// Returns the receiver of the outcome.
    pub(crate) fn into_receiver(self) -> ReplyTo {
        self.reply_to
    }
}

/// A request that was checked and has a plan.
pub(crate) struct PreparedLog {
    plan: LogPlan,
    options: Arc<LogOptions>,
    origin: LogOrigin,
    directives: Vec<Info>,
    ignored: Vec<String>,
    /// The length of the messages, in bytes.
    bytes: usize,
}

impl PreparedLog {
    /// Plans to log `entries` for `requester`: to the first channel that works if the `options`, or
    /// else `once`, require that. The options stem from the `directives`, without those `ignored`.
    pub(crate) fn new(
        requester: &Requester,
        entries: Vec<LogEntry>,
        once: bool,
        options: LogOptions,
        directives: Vec<Info>,
        ignored: Vec<String>,
    ) -> PreparedLog {
        let description = match &options.relayed {
            Some(first) => format!("{} through {}", sanitize(first), requester.description),
            None => requester.description.clone(),
        };
        let origin = LogOrigin { source: options.source.clone(), requester: description };
        let length = |entry: &LogEntry| entry.text().map_or(0, str::len);
        let bytes = entries.iter().map(length).fold(0, usize::saturating_add);
        let plan = LogPlan::new(entries, options.once.unwrap_or(once));
        PreparedLog { plan, options: Arc::new(options), origin, directives, ignored, bytes }
    }
}

/// An ongoing request.
pub(crate) struct OngoingLog {
    requester: Requester,
    log: PreparedLog,
}

impl OngoingLog {
    /// Begins the steps that can run now, and returns their indices.
    pub(crate) fn start_next(&mut self) -> Vec<usize> {
        self.log.plan.start_next()
    }

    /// Records the result of a step.
    pub(crate) fn complete(&mut self, step: usize, result: Result<(), Failure>) {
        self.log.plan.complete(step, result);
    }

    /// Returns the outcome, unless a step is waiting or running.
    fn report(&self) -> Option<LogReport> {
        let (status, outcomes) = self.log.plan.outcome()?;
        Some(LogReport { status, outcomes, ignored: self.log.ignored.clone() })
    }

    /// Returns what `step` logs.
    pub(crate) fn entry(&self, step: LogStep) -> Option<ChannelEntry> {
        Some(ChannelEntry {
            step,
            entry: self.log.plan.entry(step.step)?.clone(),
            options: Arc::clone(&self.log.options),
            origin: self.log.origin.clone(),
            directives: self.log.directives.clone(),
            requester: self.requester.connection.clone(),
        })
    }

    /// Returns the process that wants the message logged; `None` for the embedder and its own
    /// tools.
    pub(crate) fn client(&self) -> Option<Client> {
        match self.requester.reply_to {
            ReplyTo::Tool { client, .. } => client,
            ReplyTo::Embedder(_) => None,
        }
    }
}

/// Where this engine logs messages, and the ongoing requests.
pub struct Logs {
    routes: LogRoutes,
    ongoing: BTreeMap<LogId, OngoingLog>,
    last: u64,
}

impl Logs {
    /// Creates a table without requests.
    pub fn new(routes: LogRoutes) -> Logs {
        Logs { routes, ongoing: BTreeMap::new(), last: 0 }
    }

    pub(crate) fn routes(&self) -> &LogRoutes {
        &self.routes
    }

    /// Adds a request. Returns its number.
    pub(crate) fn begin(&mut self, requester: Requester, log: PreparedLog) -> LogId {
        self.last = self.last.wrapping_add(1);
        let id = LogId(self.last);
        self.ongoing.insert(id, OngoingLog { requester, log });
        id
    }

    pub(crate) fn get(&self, id: LogId) -> Option<&OngoingLog> {
        self.ongoing.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: LogId) -> Option<&mut OngoingLog> {
        self.ongoing.get_mut(&id)
    }

    /// Returns the requesters of the ongoing requests, each with the length of its messages in bytes.
    pub fn requesters(&self) -> impl Iterator<Item = (&ReplyTo, usize)> {
        self.ongoing.values().map(|ongoing| (&ongoing.requester.reply_to, ongoing.log.bytes))
    }

    /// Removes a request if it has an outcome. Returns the requester with the outcome.
    pub(crate) fn take_ended(&mut self, id: LogId) -> Option<(Requester, LogReport)> {
        let report = self.ongoing.get(&id)?.report()?;
        let ended = self.ongoing.remove(&id)?;
        Some((ended.requester, report))
    }

    /// Drops the requests of a tool that has disconnected, so no reply is sent. Steps that have
    /// begun are completed. With `PMIX_LOG_ONCE` no further channel is tried.
    pub(crate) fn forget(&mut self, gone: PeerId) {
        self.ongoing.retain(
            |_, ongoing| !matches!(ongoing.requester.reply_to, ReplyTo::Tool { peer, .. } if peer == gone),
        );
    }

    /// Checks that another request of this requester may be ongoing.
    pub(crate) fn check_room(
        &self,
        requester: &Requester,
        log: &PreparedLog,
        limits: &Limits,
    ) -> Result<(), Failure> {
        let Limits { logs, log_bytes, waiting_per_tool, logs_per_process, .. } = *limits;
        let check_limit = |of_requester: &str, limit: usize, counts: &dyn Fn(&ReplyTo) -> bool| {
            let count = self.ongoing.values().filter(|ongoing| counts(&ongoing.requester.reply_to)).count();
            if count < limit {
                return Ok(());
            }
            let reason = format!("{limit} messages{of_requester} are being logged: try again");
            Err(Failure::new(Status::ERR_RESOURCE_BUSY, reason))
        };
        check_limit("", logs, &|_| true)?;
        let all =
            self.ongoing.values().map(|ongoing| ongoing.log.bytes).fold(log.bytes, usize::saturating_add);
        if all > log_bytes {
            let reason = format!("messages of {log_bytes} bytes are being logged: try again");
            return Err(Failure::new(Status::ERR_RESOURCE_BUSY, reason));
        }
        let ReplyTo::Tool { peer: tool, client, .. } = &requester.reply_to else { return Ok(()) };
        let is_of_tool = |other: &ReplyTo| matches!(other, ReplyTo::Tool { peer, .. } if peer == tool);
        check_limit(" of this tool", waiting_per_tool, &is_of_tool)?;
        let is_of_process =
            |other: &ReplyTo| matches!(other, ReplyTo::Tool { client: process, .. } if process == client);
        if client.is_some() {
            check_limit(" of this process", logs_per_process, &is_of_process)
        } else {
            Ok(())
        }
    }
}
