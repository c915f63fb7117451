//! Queries of tools.

use std::time::Instant;

use iof_capture::{RequestId, StreamAnswer};
use iof_proto::query::key;
use iof_proto::{Answer, Failure, Found, Query, Status};

use crate::Core;
use crate::ids::{Call, PeerId, QueryId};
use crate::owed::size_of_infos;
use crate::queries::answers::{Scope, count_streams, find, stream_stats};
use crate::queries::partial_answer::PartialAnswer;
use crate::queries::query::{CountedStream, QueryRequest};
use crate::streams::awaited::Awaited;
use crate::tools::peer::Peer;
use crate::upcall::Upcall;

impl Core {
    /// Answers a request: now, or when the capture thread has read the counters and the host has
    /// answered its part.
    pub(crate) fn query(&mut self, peer: PeerId, request: u32, queries: Vec<Query>, now: Instant) {
        let request = QueryRequest::new(peer, request);
        if queries.iter().any(|query| query.keys.iter().any(|key| key == key::IOF_QUERY_STATS))
            && let Some(counters) = self.refresh_stats(peer, now)
        {
            self.request_begun(peer);
            return self.queries.wait_for_counters(request, queries, counters);
        }
        self.answer_query(request, &queries);
    }

    /// Answers a request for which the counters are fresh enough, now or when the host has answered
    /// its part.
    fn answer_query(&mut self, request: QueryRequest, queries: &[Query]) {
        let limit = self.settings.limits.waiting_per_tool;
        let result = match self.look_up(queries) {
            Ok(answer) if !answer.needs_host() => answer.conclude(),
            Ok(_) if self.queries.waiting_of(request.peer()) >= limit => {
                let reason = format!("{limit} queries of this tool wait for the host: try again");
                Err(Failure::new(Status::ERR_RESOURCE_BUSY, reason))
            }
            Ok(answer) => match self.ask_host(request, answer) {
                Ok(()) => return,
                Err(failure) => Err(failure),
            },
            Err(failure) => Err(failure),
        };
        self.answer(request, result);
    }

    /// Returns the request that reads the counters of all streams, for which a query must wait. The
    /// embedder's own tools always get new counters; other tools get those of the last
    /// `STATS_AGE`.
    fn refresh_stats(&mut self, peer_id: PeerId, now: Instant) -> Option<RequestId> {
        let own = self.tools.get(&peer_id).is_some_and(Peer::is_own);
        if !own && self.queries.has_counters(now) {
            return None;
        }
        let joined = self.queries.counting().filter(|_| !own);
        Some(joined.unwrap_or_else(|| {
            let (streams, steps) = count_streams(self);
            let request = self.request(Awaited::Counters(streams), steps);
            self.queries.count(request);
            request
        }))
    }

    /// Continues with the counters that `request` has read.
    pub(crate) fn counted(
        &mut self,
        request: RequestId,
        streams: &[CountedStream],
        answers: Vec<StreamAnswer<()>>,
        now: Instant,
    ) {
        let streams = stream_stats(self, streams, answers);
        let (waiting, outdated) = self.queries.counted(request, streams, now);
        for (request, queries) in waiting {
            self.request_done(request.peer());
            self.answer_query(request, &queries);
        }
        if outdated {
            self.queries.discard_counters();
        }
    }

    fn look_up(&self, queries: &[Query]) -> Result<PartialAnswer, Failure> {
        let mut answer = PartialAnswer::default();
        for (index, Query { keys, qualifiers }) in (0u32..).zip(queries) {
            let scope = Scope::read(qualifiers)?;
            for key in keys {
                if !answer.request(index, key) {
                    continue;
                }
                let value = match scope.as_ref().map(|scope| find(self, key, scope)) {
                    Some(Ok(value)) => value,
                    Some(Err(failure)) => {
                        answer.failed(failure);
                        continue;
                    }
                    None => None,
                };
                if value.is_none() || self.settings.host_queries.contains(key) {
                    answer.leave_to_host(index, key, qualifiers);
                }
                if let Some(value) = value {
                    answer.found(index, key, value);
                }
            }
        }
        Ok(answer)
    }

    fn ask_host(&mut self, request: QueryRequest, mut answer: PartialAnswer) -> Result<(), Failure> {
        let queries = answer.take_for_host();
        let id = self.queries.next_id();
        let client = self.tools.get(&request.peer()).and_then(Peer::counted);
        self.owed.note(Call::Query(id), client, size(&queries))?;
        self.queries.wait_for_host(id, request, answer);
        self.effects.upcalls.push(Upcall::Query { id, queries });
        Ok(())
    }

    /// Processes the host's answer to its part of a request.
    pub(crate) fn query_answered(&mut self, id: QueryId, theirs: Result<Vec<Found>, Failure>) {
        let Some((request, mut answer)) = self.queries.take(id) else { return };
        answer.add_of_host(theirs);
        self.answer(request, answer.conclude());
    }

    fn answer(&mut self, request: QueryRequest, result: Result<Answer, Failure>) {
        if let Some(peer) = self.tools.get_mut(&request.peer()) {
            peer.answer(&request.answer(result));
        }
    }
}

/// Returns the length of the text in queries, in bytes.
fn size(queries: &[Query]) -> usize {
    let keys = |query: &Query| query.keys.iter().map(String::len).fold(0, usize::saturating_add);
    let size = |query: &Query| keys(query).saturating_add(size_of_infos(&query.qualifiers));
    queries.iter().map(size).fold(0, usize::saturating_add)
}
