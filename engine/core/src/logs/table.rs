//! Log requests (`PMIx_Log`, RFC0010, RFC0032): each follows a plan through its channels, and its
//! requester receives the outcome.
//!
//! Nothing here blocks. Messages for stdout and stderr are handed to the capture thread like
//! deliveries. Channels that may block are served by threads with bounded queues, one each for this
//! node's syslog, the job record, mail and the gateway. The host answers asynchronously.

use std::collections::BTreeMap;
use std::sync::Arc;

use iof_log::{LogOptions, LogOrigin, LogPlan};
use iof_proto::names::sanitize;
use iof_proto::{Failure, Info, LogEntry, LogReport};

use crate::clients::client::{ClientId, Requester};
use crate::clients::quotas::Charge;
use crate::ids::{LogId, LogStep, PeerId};
use crate::logs::channel_entry::ChannelEntry;
use crate::logs::routes::LogRoutes;

/// A request that was checked and has a plan.
pub(crate) struct PreparedLog {
    plan: LogPlan,
    options: Arc<LogOptions>,
    origin: LogOrigin,
    directives: Vec<Info>,
    ignored: Vec<String>,
    /// The length of the messages, in bytes.
    pub(crate) bytes: usize,
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
        let description = requester.client.description();
        let description = match &options.relayed {
            Some(first) => format!("{} through {description}", sanitize(first)),
            None => description,
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
    pub(crate) charge: Charge,
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
}

/// The destinations of this engine's log messages, and the ongoing requests.
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

    /// Adds a request, with its charge. Returns its number.
    pub(crate) fn begin(&mut self, requester: Requester, log: PreparedLog, charge: Charge) -> LogId {
        self.last = self.last.wrapping_add(1);
        let id = LogId(self.last);
        self.ongoing.insert(id, OngoingLog { requester, log, charge });
        id
    }

    pub(crate) fn get(&self, id: LogId) -> Option<&OngoingLog> {
        self.ongoing.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: LogId) -> Option<&mut OngoingLog> {
        self.ongoing.get_mut(&id)
    }

    /// Returns the charges of the ongoing requests.
    pub(crate) fn charges(&self) -> impl Iterator<Item = &Charge> {
        self.ongoing.values().map(|ongoing| &ongoing.charge)
    }

    /// Returns the clients whose requests are ongoing, once for each.
    pub fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.ongoing.values().map(|ongoing| ongoing.requester.client.id)
    }

    /// Removes a request if it has an outcome. Returns the requester with the outcome, and the
    /// charge.
    pub(crate) fn take_ended(&mut self, id: LogId) -> Option<(Requester, LogReport, Charge)> {
        let report = self.ongoing.get(&id)?.report()?;
        let OngoingLog { requester, charge, .. } = self.ongoing.remove(&id)?;
        Some((requester, report, charge))
    }

    /// Drops the requests of a tool that has disconnected, so no reply is sent. Steps that have
    /// begun are completed. With `PMIX_LOG_ONCE` no further channel is tried. Returns the charges.
    pub(crate) fn forget(&mut self, gone: PeerId) -> impl Iterator<Item = Charge> {
        let is_gone = move |_: &LogId, ongoing: &mut OngoingLog| ongoing.requester.tool() == Some(gone);
        self.ongoing.extract_if(.., is_gone).map(|(_, ongoing)| ongoing.charge)
    }
}
