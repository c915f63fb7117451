//! Queries of tools.

use std::collections::BTreeMap;
use std::time::Instant;

use iof_capture::{RequestId, StreamAnswer};
use iof_proto::limits::MAX_WAITING_PER_TOOL;
use iof_proto::query::key;
use iof_proto::{Answer, Failure, Found, Query, Status, ToTool, Value};

use crate::core::Core;
use crate::core::answers_to_queries::{Scope, count_streams, find, merge, stream_stats};
use crate::core::awaited::Awaited;
use crate::core::ids::{Call, PeerId, QueryId};
use crate::core::owed::size_of_infos;
use crate::core::peer::Peer;
use crate::core::query::{CountedStream, LookedUp, RequestedKey, Waiting, WaitsForCounters};
use crate::core::upcall::Upcall;

impl Core {
    /// Answers a request: now, or when the capture thread has read the counters and the host has
    /// answered its part.
    pub(crate) fn query(&mut self, peer: PeerId, request: u32, queries: Vec<Query>, now: Instant) {
        if queries.iter().any(|query| query.keys.iter().any(|key| key == key::IOF_QUERY_STATS))
            && let Some(counters) = self.refresh_stats(peer, now)
        {
            self.request_begun(peer);
            let waits = WaitsForCounters { peer, request, queries, counters };
            return self.queries.wait_for_counters(waits);
        }
        self.answer_query(peer, request, &queries);
    }

    /// Answers a request for which the counters are fresh enough, now or when the host has answered
    /// its part.
    fn answer_query(&mut self, peer_id: PeerId, request: u32, queries: &[Query]) {
        let result = match self.look_up(queries) {
            Ok(LookedUp { requested, found, for_host, failure }) if for_host.is_empty() => {
                conclude(&requested, found, failure)
            }
            Ok(_) if self.queries.waiting_of(peer_id) >= MAX_WAITING_PER_TOOL => {
                let reason =
                    format!("{MAX_WAITING_PER_TOOL} queries of this tool wait for the host: try again");
                Err(Failure::new(Status::ERR_RESOURCE_BUSY, reason))
            }
            Ok(looked_up) => match self.ask_host(peer_id, request, looked_up) {
                Ok(()) => return,
                Err(failure) => Err(failure),
            },
            Err(failure) => Err(failure),
        };
        self.answer(peer_id, request, result);
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
        for WaitsForCounters { peer, request, queries, .. } in waiting {
            self.request_done(peer);
            self.answer_query(peer, request, &queries);
        }
        if outdated {
            self.queries.discard_counters();
        }
    }

    fn look_up(&self, queries: &[Query]) -> Result<LookedUp, Failure> {
        let mut all = LookedUp::default();
        for (index, Query { keys, qualifiers }) in (0u32..).zip(queries) {
            let scope = Scope::read(qualifiers)?;
            for key in keys {
                let requested = (index, key.clone());
                // A repeated key is answered once, because answers are long.
                if all.requested.contains(&requested) {
                    continue;
                }
                all.requested.push(requested.clone());
                let value = match scope.as_ref().map(|scope| find(self, key, scope)) {
                    Some(Ok(value)) => value,
                    Some(Err(failure)) => {
                        all.failure.get_or_insert(failure);
                        continue;
                    }
                    None => None,
                };
                if value.is_none() || self.settings.host_queries.contains(key) {
                    let new = || Query { keys: Vec::new(), qualifiers: qualifiers.clone() };
                    all.for_host.entry(index).or_insert_with(new).keys.push(key.clone());
                }
                all.found.extend(value.map(|value| (requested, value)));
            }
        }
        Ok(all)
    }

    fn ask_host(&mut self, peer: PeerId, request: u32, looked_up: LookedUp) -> Result<(), Failure> {
        let LookedUp { requested, found, for_host, failure } = looked_up;
        let (indices, queries): (Vec<u32>, Vec<Query>) = for_host.into_iter().unzip();
        let id = self.queries.next_id();
        let client = self.tools.get(&peer).and_then(Peer::counted);
        self.owed.note(Call::Query(id), client, size(&queries))?;
        let waiting = Waiting { peer, request, requested, found, indices, failure };
        self.queries.wait_for_host(id, waiting);
        self.effects.upcalls.push(Upcall::Query { id, queries });
        Ok(())
    }

    /// Processes the host's answer to its part of a request.
    pub(crate) fn query_answered(&mut self, id: QueryId, answer: Result<Vec<Found>, Failure>) {
        let Some(waiting) = self.queries.take(id) else { return };
        let Waiting { peer, request, requested, mut found, indices, failure } = waiting;
        let host_failure = match answer {
            Ok(theirs) => {
                for Found { query, key, value } in theirs {
                    let index = usize::try_from(query).ok().and_then(|index| indices.get(index));
                    let Some(requested) = index.map(|index| (*index, key)) else { continue };
                    let value = match found.remove(&requested) {
                        Some(ours) => merge(ours, value),
                        None => value,
                    };
                    found.insert(requested, value);
                }
                None
            }
            Err(failure) => Some(failure),
        };
        self.answer(peer, request, conclude(&requested, found, failure.or(host_failure)));
    }

    fn answer(&mut self, peer_id: PeerId, request: u32, result: Result<Answer, Failure>) {
        if let Some(peer) = self.tools.get_mut(&peer_id) {
            peer.answer(&ToTool::Answer { request, result });
        }
    }
}

/// Returns the length of the text in queries, in bytes.
fn size(queries: &[Query]) -> usize {
    let keys = |query: &Query| query.keys.iter().map(String::len).fold(0, usize::saturating_add);
    let size = |query: &Query| keys(query).saturating_add(size_of_infos(&query.qualifiers));
    queries.iter().map(size).fold(0, usize::saturating_add)
}

/// Builds the answer from what was found.
///
/// # Errors
/// Fails with `failure`, or a general error, if nothing was found.
fn conclude(
    requested: &[RequestedKey],
    mut found: BTreeMap<RequestedKey, Value>,
    failure: Option<Failure>,
) -> Result<Answer, Failure> {
    let found: Vec<Found> = requested
        .iter()
        .filter_map(|key| {
            let value = found.remove(key)?;
            Some(Found { query: key.0, key: key.1.clone(), value })
        })
        .collect();
    if found.is_empty() {
        let keys: Vec<&str> = requested.iter().map(|(_, key)| key.as_str()).collect();
        let reason = format!("no answer for {}", keys.join(", "));
        return Err(failure.unwrap_or(Failure::new(Status::ERR_NOT_FOUND, reason)));
    }
    let status = if found.len() == requested.len() { Status::SUCCESS } else { Status::ERR_PARTIAL_SUCCESS };
    Ok(Answer { status, found })
}
