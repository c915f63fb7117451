//! Queries (`PMIx_Query_info`, RFC0001, RFC0010): the engine answers what it knows and asks its
//! host for the rest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use iof_capture::RequestId;
use iof_proto::limits::STATS_AGE;
use iof_proto::{Failure, Query, StreamStats, Value};

use crate::core::ids::{PeerId, QueryId, StreamName};

/// A requested key, with the index of its query in the request.
pub(super) type RequestedKey = (u32, String);

/// The keys of a request, as far as the engine can answer them without its host.
#[derive(Default)]
pub(super) struct LookedUp {
    pub(super) requested: Vec<RequestedKey>,
    pub(super) found: BTreeMap<RequestedKey, Value>,
    /// The queries for the host, by their index in the request.
    pub(super) for_host: BTreeMap<u32, Query>,
    /// The first error of a key that is invalid with its qualifiers.
    pub(super) failure: Option<Failure>,
}

/// A request that the host answers in part.
pub(super) struct Waiting {
    pub(super) peer: PeerId,
    pub(super) request: u32,
    pub(super) requested: Vec<RequestedKey>,
    pub(super) found: BTreeMap<RequestedKey, Value>,
    /// The indices of the queries that the host was asked.
    pub(super) indices: Vec<u32>,
    pub(super) failure: Option<Failure>,
}

/// A request that waits for counters.
pub(super) struct WaitsForCounters {
    pub(super) peer: PeerId,
    pub(super) request: u32,
    pub(super) queries: Vec<Query>,
    /// The request to the capture thread that reads the counters.
    pub(super) counters: RequestId,
}

/// The requests that wait for the host or for counters, and the cached counters.
#[derive(Default)]
pub(crate) struct Queries {
    waiting: BTreeMap<QueryId, Waiting>,
    last: u64,
    stats: Option<Stats>,
    wait_for_counters: Vec<WaitsForCounters>,
    /// The latest request for counters, unless streams have changed since it was made.
    counting: Option<RequestId>,
}

/// The counters of all streams.
struct Stats {
    taken: Instant,
    streams: Vec<StreamStats>,
}

impl Queries {
    /// Discards the counters, including those that are just read: a stream was added or is
    /// complete, and the next query must see it.
    pub(crate) fn streams_changed(&mut self) {
        self.discard_counters();
        self.counting = None;
    }

    /// Discards the counters that were read.
    pub(super) fn discard_counters(&mut self) {
        self.stats = None;
    }

    /// Returns whether counters are cached that are younger than [`STATS_AGE`] at `now`.
    pub(super) fn has_counters(&self, now: Instant) -> bool {
        self.stats.as_ref().is_some_and(|stats| now.saturating_duration_since(stats.taken) < STATS_AGE)
    }

    /// Returns the cached counters.
    pub(super) fn counters(&self) -> &[StreamStats] {
        self.stats.as_ref().map(|stats| stats.streams.as_slice()).unwrap_or_default()
    }

    /// Returns the request for counters that a further query can wait for.
    pub(super) fn counting(&self) -> Option<RequestId> {
        self.counting
    }

    /// Notes that `request` reads the counters.
    pub(super) fn count(&mut self, request: RequestId) {
        self.counting = Some(request);
    }

    /// Keeps a query until its counters are read.
    pub(super) fn wait_for_counters(&mut self, waits: WaitsForCounters) {
        self.wait_for_counters.push(waits);
    }

    /// Caches the counters that `request` has read. Returns the queries that wait for them, and
    /// whether streams have changed meanwhile, so that the counters serve no others.
    pub(super) fn counted(
        &mut self,
        request: RequestId,
        streams: Vec<StreamStats>,
        now: Instant,
    ) -> (Vec<WaitsForCounters>, bool) {
        self.stats = Some(Stats { taken: now, streams });
        let is_current = self.counting.take_if(|counting| *counting == request).is_some();
        let waiting = self.wait_for_counters.extract_if(.., |waits| waits.counters == request).collect();
        (waiting, !is_current)
    }

    /// Returns the tools whose queries wait, for counters and for the host.
    #[cfg(feature = "simulation")]
    pub(super) fn waiting_tools(&self) -> (Vec<PeerId>, Vec<PeerId>) {
        let for_counters = self.wait_for_counters.iter().map(|waits| waits.peer);
        (for_counters.collect(), self.waiting.values().map(|waiting| waiting.peer).collect())
    }

    /// Returns the number of the next request that waits for the host.
    pub(super) fn next_id(&mut self) -> QueryId {
        self.last = self.last.wrapping_add(1);
        QueryId(self.last)
    }

    /// Keeps a request until the host has answered its part.
    pub(super) fn wait_for_host(&mut self, id: QueryId, waiting: Waiting) {
        self.waiting.insert(id, waiting);
    }

    /// Removes and returns a request that the host has answered.
    pub(super) fn take(&mut self, id: QueryId) -> Option<Waiting> {
        self.waiting.remove(&id)
    }

    /// Drops the requests of a tool that has disconnected.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.waiting.retain(|_, waiting| waiting.peer != peer);
        self.wait_for_counters.retain(|waiting| waiting.peer != peer);
    }

    pub(super) fn waiting_of(&self, peer: PeerId) -> usize {
        self.waiting.values().filter(|waiting| waiting.peer == peer).count()
    }
}

/// A stream whose counters are read, with the tools that read it.
pub(crate) struct CountedStream {
    pub name: Arc<StreamName>,
    /// The tool and the registration of each reader.
    pub readers: Vec<(PeerId, u32)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(request: u64) -> WaitsForCounters {
        WaitsForCounters { peer: 1, request: 0, queries: Vec::new(), counters: RequestId(request) }
    }

    #[test]
    fn counters_requested_before_streams_changed_serve_no_later_query() {
        let (mut queries, now) = (Queries::default(), Instant::now());
        queries.count(RequestId(1));
        queries.wait_for_counters(waits(1));
        assert_eq!(queries.counting(), Some(RequestId(1)), "another query can wait for them");
        queries.streams_changed();
        assert_eq!(queries.counting(), None);
        queries.count(RequestId(2));
        queries.wait_for_counters(waits(2));
        let (waiting, outdated) = queries.counted(RequestId(1), Vec::new(), now);
        assert_eq!((waiting.len(), outdated), (1, true));
        let (waiting, outdated) = queries.counted(RequestId(2), Vec::new(), now);
        assert_eq!((waiting.len(), outdated), (1, false));
        assert!(queries.has_counters(now) && !queries.has_counters(now + STATS_AGE));
    }
}
