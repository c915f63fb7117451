//! Queries (`PMIx_Query_info`, RFC0001, RFC0010): the engine answers what it knows and asks its
//! host for the rest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use iof_capture::RequestId;
use iof_proto::limits::STATS_AGE;
use iof_proto::{Query, StreamStats};

use crate::clients::client::Requester;
use crate::clients::quotas::Charge;
use crate::ids::{PeerId, QueryId, StreamName};
use crate::queries::partial_answer::PartialAnswer;

/// A request that waits for its answer.
pub(crate) struct QueryRequest {
    pub requester: Requester,
    /// Once it must wait.
    pub charge: Option<Charge>,
}

/// A request that waits for counters.
struct WaitsForCounters {
    request: QueryRequest,
    queries: Vec<Query>,
    /// The request to the capture thread that reads the counters.
    counters: RequestId,
}

/// The requests that wait for the host or for counters, and the cached counters.
#[derive(Default)]
pub struct Queries {
    /// The requests that the host answers in part.
    waiting: BTreeMap<QueryId, (QueryRequest, PartialAnswer)>,
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
    pub(crate) fn discard_counters(&mut self) {
        self.stats = None;
    }

    /// Returns whether counters are cached that are younger than [`STATS_AGE`] at `now`.
    pub(crate) fn has_counters(&self, now: Instant) -> bool {
        self.stats.as_ref().is_some_and(|stats| now.saturating_duration_since(stats.taken) < STATS_AGE)
    }

    /// Returns the cached counters.
    pub(crate) fn counters(&self) -> &[StreamStats] {
        self.stats.as_ref().map(|stats| stats.streams.as_slice()).unwrap_or_default()
    }

    /// Returns the request for counters that a further query can wait for.
    pub(crate) fn counting(&self) -> Option<RequestId> {
        self.counting
    }

    /// Notes that `request` reads the counters.
    pub(crate) fn count(&mut self, request: RequestId) {
        self.counting = Some(request);
    }

    /// Keeps a query until its counters are read.
    pub(crate) fn wait_for_counters(
        &mut self,
        request: QueryRequest,
        queries: Vec<Query>,
        counters: RequestId,
    ) {
        self.wait_for_counters.push(WaitsForCounters { request, queries, counters });
    }

    /// Caches the counters that `request` has read. Returns the queries that wait for them, and
    /// whether streams have changed meanwhile, so that the counters serve no others.
    pub(crate) fn counted(
        &mut self,
        request: RequestId,
        streams: Vec<StreamStats>,
        now: Instant,
    ) -> (Vec<(QueryRequest, Vec<Query>)>, bool) {
        self.stats = Some(Stats { taken: now, streams });
        let is_current = self.counting.take_if(|counting| *counting == request).is_some();
        let waiting = self.wait_for_counters.extract_if(.., |waits| waits.counters == request);
        (waiting.map(|waits| (waits.request, waits.queries)).collect(), !is_current)
    }

    /// Returns the tools whose queries wait, for counters and for the host.
    pub fn waiting_tools(&self) -> (Vec<PeerId>, Vec<PeerId>) {
        let for_counters = self.wait_for_counters.iter().filter_map(|waits| waits.request.requester.tool());
        let for_host = self.waiting.values().filter_map(|(request, _)| request.requester.tool());
        (for_counters.collect(), for_host.collect())
    }

    /// Returns the number of the next request that waits for the host.
    pub(crate) fn next_id(&mut self) -> QueryId {
        self.last = self.last.wrapping_add(1);
        QueryId(self.last)
    }

    /// Keeps a request until the host has answered its part.
    pub(crate) fn wait_for_host(&mut self, id: QueryId, request: QueryRequest, answer: PartialAnswer) {
        self.waiting.insert(id, (request, answer));
    }

    /// Removes and returns a request that the host has answered.
    pub(crate) fn take(&mut self, id: QueryId) -> Option<(QueryRequest, PartialAnswer)> {
        self.waiting.remove(&id)
    }

    /// Drops the requests of a tool that has disconnected. Returns the charges.
    pub(crate) fn forget(&mut self, gone: PeerId) -> impl Iterator<Item = Charge> {
        let is_gone = move |request: &QueryRequest| request.requester.tool() == Some(gone);
        let for_host = self.waiting.extract_if(.., move |_, (request, _)| is_gone(request));
        let for_counters = self.wait_for_counters.extract_if(.., move |waits| is_gone(&waits.request));
        let requests = for_host.map(|(_, (request, _))| request);
        requests.chain(for_counters.map(|waits| waits.request)).filter_map(|request| request.charge)
    }

    /// Returns the charges of the requests that wait.
    pub(crate) fn charges(&self) -> impl Iterator<Item = &Charge> {
        let for_counters = self.wait_for_counters.iter().map(|waits| &waits.request);
        let waiting = self.waiting.values().map(|(request, _)| request).chain(for_counters);
        waiting.filter_map(|request| request.charge.as_ref())
    }
}

/// A stream whose counters are read, with the tools that read it.
pub(crate) struct CountedStream {
    name: Arc<StreamName>,
    readers: Vec<(PeerId, u32)>,
}

impl CountedStream {
    /// Creates an entry for a stream with the tool and the registration of each reader.
    pub(crate) fn new(name: Arc<StreamName>, readers: Vec<(PeerId, u32)>) -> CountedStream {
        CountedStream { name, readers }
    }

    pub(crate) fn name(&self) -> &StreamName {
        &self.name
    }

    /// Returns the tool and the registration of each reader.
    pub(crate) fn readers(&self) -> &[(PeerId, u32)] {
        &self.readers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::client::ClientProcess;

    #[test]
    fn counters_requested_before_streams_changed_serve_no_later_query() {
        let (mut queries, now) = (Queries::default(), Instant::now());
        queries.count(RequestId(1));
        let request = || {
            let process = ClientProcess { pid: 1, uid: 1 };
            QueryRequest { requester: Requester::embedder(process, Box::new(drop)), charge: None }
        };
        queries.wait_for_counters(request(), Vec::new(), RequestId(1));
        assert_eq!(queries.counting(), Some(RequestId(1)), "another query can wait for them");
        queries.streams_changed();
        assert_eq!(queries.counting(), None);
        queries.count(RequestId(2));
        (0..2).for_each(|_| queries.wait_for_counters(request(), Vec::new(), RequestId(2)));
        let (waiting, outdated) = queries.counted(RequestId(1), Vec::new(), now);
        assert_eq!((waiting.len(), outdated), (1, true));
        let (waiting, outdated) = queries.counted(RequestId(2), Vec::new(), now);
        assert_eq!((waiting.len(), outdated), (2, false));
        assert!(queries.has_counters(now) && !queries.has_counters(now + STATS_AGE));
    }
}
