//! Log requests (`PMIx_Log`, RFC0010, RFC0032): each follows a plan through its channels, and its
//! requester receives the outcome.
//!
//! Nothing here blocks. Messages for stdout and stderr are handed to the capture thread like
//! deliveries. Channels that may block are served by threads with bounded queues, one each for this
//! node's syslog, the job record, mail and the gateway. The host answers asynchronously.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use iof_log::{LogOptions, LogOrigin, LogPlan};
use iof_proto::limits::{MAX_LOG_BYTES, MAX_LOGS, MAX_LOGS_PER_PROCESS, MAX_WAITING_PER_TOOL};
use iof_proto::names::sanitize;
use iof_proto::{Failure, Info, Status};

use crate::core::client::Client;
use crate::core::ids::{LogId, PeerId};
use crate::core::log_routes::LogRoutes;
use crate::core::peer::Peer;
use crate::core::upcall::LogCallback;

/// The longest part of a tool's name that is logged, in characters.
const MAX_NAME_CHARS: usize = 64;

/// The tool or embedder that wants something logged.
pub(crate) struct Requester {
    /// A description for people and files.
    pub(crate) description: String,
    pub(crate) reply_to: ReplyTo,
    /// Expires when the tool disconnects; `None` for the embedder.
    pub(crate) connection: Option<Weak<()>>,
}

/// The receiver of the outcome.
pub(crate) enum ReplyTo {
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
        let name: String = sanitize(peer.name()).chars().take(MAX_NAME_CHARS).collect();
        Requester {
            description: format!("{name} (pid {})", peer.client().pid),
            reply_to: ReplyTo::Tool { peer: id, request, client: peer.counted() },
            connection: Some(peer.connection()),
        }
    }
}

/// An ongoing request.
pub(crate) struct OngoingLog {
    pub(super) requester: Requester,
    pub(super) plan: LogPlan,
    pub(super) options: Arc<LogOptions>,
    pub(super) origin: LogOrigin,
    pub(super) directives: Vec<Info>,
    pub(super) ignored: Vec<String>,
    /// The length of the messages, in bytes.
    pub(super) bytes: usize,
}

/// A request that was checked and has a plan.
pub(crate) struct PreparedLog {
    pub(super) plan: LogPlan,
    pub(super) options: LogOptions,
    pub(super) origin: LogOrigin,
    pub(super) ignored: Vec<String>,
    pub(super) bytes: usize,
}

/// Where this engine logs messages, and the ongoing requests.
pub(crate) struct Logs {
    routes: LogRoutes,
    ongoing: BTreeMap<LogId, OngoingLog>,
    last: u64,
}

impl Logs {
    pub(crate) fn new(routes: LogRoutes) -> Logs {
        Logs { routes, ongoing: BTreeMap::new(), last: 0 }
    }

    pub(super) fn routes(&self) -> &LogRoutes {
        &self.routes
    }

    /// Adds a request. Returns its number.
    pub(super) fn begin(&mut self, log: OngoingLog) -> LogId {
        self.last = self.last.wrapping_add(1);
        let id = LogId(self.last);
        self.ongoing.insert(id, log);
        id
    }

    pub(super) fn get(&self, id: LogId) -> Option<&OngoingLog> {
        self.ongoing.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: LogId) -> Option<&mut OngoingLog> {
        self.ongoing.get_mut(&id)
    }

    /// Returns the requesters of the ongoing requests.
    #[cfg(feature = "simulation")]
    pub(super) fn requesters(&self) -> impl Iterator<Item = &ReplyTo> {
        self.ongoing.values().map(|ongoing| &ongoing.requester.reply_to)
    }

    /// Removes a request that has an outcome.
    pub(super) fn end(&mut self, id: LogId) -> Option<OngoingLog> {
        self.ongoing.remove(&id)
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
    pub(super) fn check_room(&self, reply_to: &ReplyTo, bytes: usize) -> Result<(), Failure> {
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
