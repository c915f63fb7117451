//! Queries (`PMIx_Query_info`, RFC0001, RFC0010): the engine answers what it knows and asks its
//! host for the rest.

mod answers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use iof_capture::Capture;
use iof_proto::limits::{MAX_WAITING_PER_TOOL, STATS_AGE};
use iof_proto::query::key;
use iof_proto::{Answer, Failure, Found, Query, Status, StreamStats, ToTool, Value};

use crate::control::{Report, Reports};
use crate::host::{Call, Upcall};
use crate::owed::size_of_infos;
use crate::peer::Peer;
use crate::query::answers::{Scope, find, merge, read_counters};
use crate::state::{PeerId, State};

/// The number of a request that waits for the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct QueryId(u64);

/// A requested key, with the index of its query in the request.
type RequestedKey = (u32, String);

/// The keys of a request, as far as the engine can answer them without its host.
#[derive(Default)]
struct LookedUp {
    requested: Vec<RequestedKey>,
    found: BTreeMap<RequestedKey, Value>,
    /// The queries for the host, by their index in the request.
    for_host: BTreeMap<u32, Query>,
    /// The first error of a key that is invalid with its qualifiers.
    failure: Option<Failure>,
}

/// A request of which the host answers a part.
struct Waiting {
    peer: PeerId,
    request: u32,
    requested: Vec<RequestedKey>,
    found: BTreeMap<RequestedKey, Value>,
    /// The indices of the queries that the host was asked.
    indices: Vec<u32>,
    failure: Option<Failure>,
}

/// The requests that wait for the host, and the cached counters.
#[derive(Default)]
pub(crate) struct Queries {
    waiting: BTreeMap<QueryId, Waiting>,
    last: u64,
    stats: Option<Stats>,
}

/// The counters of all streams.
struct Stats {
    taken: Instant,
    streams: Vec<StreamStats>,
}

impl Queries {
    /// Discards the cached counters: a stream was added or is complete, and the next query must see
    /// it.
    pub(crate) fn streams_changed(&mut self) {
        self.stats = None;
    }

    /// Drops the requests of a tool that has disconnected.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.waiting.retain(|_, waiting| waiting.peer != peer);
    }

    fn waiting_of(&self, peer: PeerId) -> usize {
        self.waiting.values().filter(|waiting| waiting.peer == peer).count()
    }
}

impl State {
    /// Answers a request, now or when the host has answered its part.
    pub(crate) fn query(
        &mut self,
        capture: &Capture,
        node: &str,
        peer_id: PeerId,
        request: u32,
        queries: &[Query],
    ) {
        if queries.iter().any(|query| query.keys.iter().any(|key| key == key::IOF_QUERY_STATS)) {
            self.refresh_stats(capture, peer_id);
        }
        let result = match self.look_up(node, queries) {
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

    /// Reads the counters of all streams. The embedder's own tools always get new ones; other tools
    /// get those of the last [`STATS_AGE`].
    fn refresh_stats(&mut self, capture: &Capture, peer_id: PeerId) {
        let own = self.peers.get(&peer_id).is_some_and(|peer| peer.own);
        let now = Instant::now();
        let is_fresh = |stats: &Stats| now.saturating_duration_since(stats.taken) < STATS_AGE;
        if own || !self.queries.stats.as_ref().is_some_and(is_fresh) {
            let streams = read_counters(self, capture);
            self.queries.stats = Some(Stats { taken: now, streams });
        }
    }

    fn look_up(&self, node: &str, queries: &[Query]) -> Result<LookedUp, Failure> {
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
                let value = match scope.as_ref().map(|scope| find(self, node, key, scope)) {
                    Some(Ok(value)) => value,
                    Some(Err(failure)) => {
                        all.failure.get_or_insert(failure);
                        continue;
                    }
                    None => None,
                };
                if value.is_none() || self.host_queries.contains(key) {
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
        self.queries.last = self.queries.last.wrapping_add(1);
        let id = QueryId(self.queries.last);
        let client = self.peers.get(&peer).and_then(Peer::counted);
        self.owed.note(Call::Query(id), client, size(&queries))?;
        let waiting = Waiting { peer, request, requested, found, indices, failure };
        self.queries.waiting.insert(id, waiting);
        self.upcalls.push(Upcall::Query { id, queries });
        Ok(())
    }

    /// Processes the host's answer to its part of a request.
    pub(crate) fn query_answered(&mut self, id: QueryId, answer: Result<Vec<Found>, Failure>) {
        let Some(waiting) = self.queries.waiting.remove(&id) else { return };
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
        if let Some(peer) = self.peers.get_mut(&peer_id) {
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

/// A handle with which the host answers one call of [`Host::query`](crate::Host::query), on any
/// thread and without blocking. Dropping it answers that the host knows nothing.
#[derive(Debug)]
pub struct QueryReply {
    id: QueryId,
    /// `None` after the answer was given.
    reports: Option<Arc<Reports>>,
}

impl QueryReply {
    pub(crate) fn new(id: QueryId, reports: Arc<Reports>) -> QueryReply {
        QueryReply { id, reports: Some(reports) }
    }

    /// Answers with the values that the host knows. [`Found::query`] is the index of the query in
    /// the list that the host received. The engine ignores keys that were not requested.
    pub fn answer(mut self, found: Vec<Found>) {
        self.send(Ok(found));
    }

    /// Answers that the host knows nothing. If the engine knows nothing either, the tool receives
    /// this status and reason.
    pub fn deny(mut self, status: Status, reason: impl Into<String>) {
        self.send(Err(Failure::new(status, reason)));
    }

    fn send(&mut self, answer: Result<Vec<Found>, Failure>) {
        if let Some(reports) = self.reports.take() {
            reports.send(Report::QueryAnswered { id: self.id, answer });
        }
    }
}

impl Drop for QueryReply {
    fn drop(&mut self) {
        self.send(Ok(Vec::new()));
    }
}
