//! Queries (`PMIx_Query_info`, RFC0001, RFC0010): the engine answers what it knows, and asks its
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
use crate::query::answers::{Scope, find, look_at_streams, merge};
use crate::state::{PeerId, State};

/// Names a request that waits for the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct QueryId(u64);

/// What was asked: the place of a query in its request, and a key of it.
type Asked = (u32, String);

/// A request, as far as the engine itself can answer it.
#[derive(Default)]
struct LookedUp {
    asked: Vec<Asked>,
    found: BTreeMap<Asked, Value>,
    /// What the host is to be asked, by the place in the request.
    left: BTreeMap<u32, Query>,
    /// Why the first key of some was not answered that make no sense with their qualifiers.
    refused: Option<Failure>,
}

/// A request of which the host was asked a part.
struct Waiting {
    peer: PeerId,
    request: u32,
    asked: Vec<Asked>,
    found: BTreeMap<Asked, Value>,
    /// The places of the queries that the host was asked.
    places: Vec<u32>,
    refused: Option<Failure>,
}

/// The requests that wait for the host.
#[derive(Default)]
pub(crate) struct Queries {
    waiting: BTreeMap<QueryId, Waiting>,
    last: u64,
    stats: Option<Stats>,
}

/// The figures of all streams.
struct Stats {
    taken: Instant,
    streams: Vec<StreamStats>,
}

impl Queries {
    /// A stream has come or is complete, which the next query is to know.
    pub(crate) fn streams_changed(&mut self) {
        self.stats = None;
    }

    /// A tool has gone.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.waiting.retain(|_, waiting| waiting.peer != peer);
    }

    fn of(&self, peer: PeerId) -> usize {
        self.waiting.values().filter(|waiting| waiting.peer == peer).count()
    }
}

impl State {
    /// Answers a request, now or when the host has said its part.
    pub(crate) fn query(
        &mut self,
        capture: &Capture,
        node: &str,
        peer_id: PeerId,
        request: u32,
        queries: &[Query],
    ) {
        if queries.iter().any(|query| query.keys.iter().any(|key| key == key::IOF_STATS)) {
            self.look_at_streams(capture, peer_id);
        }
        let result = match self.look_up(node, queries) {
            Ok(LookedUp { asked, found, left, refused }) if left.is_empty() => {
                conclude(&asked, found, refused)
            }
            Ok(_) if self.queries.of(peer_id) >= MAX_WAITING_PER_TOOL => {
                let reason =
                    format!("{MAX_WAITING_PER_TOOL} queries of this tool wait for the host: try again");
                Err(Failure { status: Status::ERR_RESOURCE_BUSY, reason })
            }
            Ok(looked_up) => match self.ask_host(peer_id, request, looked_up) {
                Ok(()) => return,
                Err(failure) => Err(failure),
            },
            Err(failure) => Err(failure),
        };
        self.answer(peer_id, request, result);
    }

    /// Looks at all streams, unless that was done for another tool just before.
    fn look_at_streams(&mut self, capture: &Capture, peer_id: PeerId) {
        let own = self.peers.get(&peer_id).is_some_and(|peer| peer.own);
        let now = Instant::now();
        let is_fresh = |stats: &Stats| now.saturating_duration_since(stats.taken) < STATS_AGE;
        if own || !self.queries.stats.as_ref().is_some_and(is_fresh) {
            let streams = look_at_streams(self, capture);
            self.queries.stats = Some(Stats { taken: now, streams });
        }
    }

    fn look_up(&self, node: &str, queries: &[Query]) -> Result<LookedUp, Failure> {
        let mut all = LookedUp::default();
        for (place, Query { keys, qualifiers }) in (0u32..).zip(queries) {
            let scope = Scope::read(qualifiers)?;
            for key in keys {
                let of = (place, key.clone());
                // However often it is asked for: answers are long.
                if all.asked.contains(&of) {
                    continue;
                }
                all.asked.push(of.clone());
                let value = match scope.as_ref().map(|scope| find(self, node, key, scope)) {
                    Some(Ok(value)) => value,
                    Some(Err(failure)) => {
                        all.refused.get_or_insert(failure);
                        continue;
                    }
                    None => None,
                };
                if value.is_none() || self.host_queries.contains(key) {
                    let new = || Query { keys: Vec::new(), qualifiers: qualifiers.clone() };
                    all.left.entry(place).or_insert_with(new).keys.push(key.clone());
                }
                all.found.extend(value.map(|value| (of, value)));
            }
        }
        Ok(all)
    }

    fn ask_host(&mut self, peer: PeerId, request: u32, looked_up: LookedUp) -> Result<(), Failure> {
        let LookedUp { asked, found, left, refused } = looked_up;
        let (places, queries): (Vec<u32>, Vec<Query>) = left.into_iter().unzip();
        self.queries.last = self.queries.last.wrapping_add(1);
        let id = QueryId(self.queries.last);
        let client = self.peers.get(&peer).and_then(Peer::counted);
        self.owed.note(Call::Query(id), client, size(&queries))?;
        let waiting = Waiting { peer, request, asked, found, places, refused };
        self.queries.waiting.insert(id, waiting);
        self.upcalls.push(Upcall::Query { id, queries });
        Ok(())
    }

    /// The host has said its part.
    pub(crate) fn query_answered(&mut self, id: QueryId, answer: Result<Vec<Found>, Failure>) {
        let Some(waiting) = self.queries.waiting.remove(&id) else { return };
        let Waiting { peer, request, asked, mut found, places, refused } = waiting;
        let theirs = match answer {
            Ok(theirs) => {
                for Found { query, key, value } in theirs {
                    let place = usize::try_from(query).ok().and_then(|at| places.get(at));
                    let Some(of) = place.map(|place| (*place, key)) else { continue };
                    let value = match found.remove(&of) {
                        Some(ours) => merge(ours, value),
                        None => value,
                    };
                    found.insert(of, value);
                }
                None
            }
            Err(failure) => Some(failure),
        };
        self.answer(peer, request, conclude(&asked, found, refused.or(theirs)));
    }

    fn answer(&mut self, peer_id: PeerId, request: u32, result: Result<Answer, Failure>) {
        if let Some(peer) = self.peers.get_mut(&peer_id) {
            peer.answer(&ToTool::Answer { request, result });
        }
    }
}

/// How many bytes of text queries have.
fn size(queries: &[Query]) -> usize {
    let keys = |query: &Query| query.keys.iter().map(String::len).fold(0, usize::saturating_add);
    let size = |query: &Query| keys(query).saturating_add(size_of_infos(&query.qualifiers));
    queries.iter().map(size).fold(0, usize::saturating_add)
}

/// The answer from what was found; if that is nothing, why it was `refused`, or else that it is
/// nothing.
fn conclude(
    asked: &[Asked],
    mut found: BTreeMap<Asked, Value>,
    refused: Option<Failure>,
) -> Result<Answer, Failure> {
    let found: Vec<Found> = asked
        .iter()
        .filter_map(|of| {
            let value = found.remove(of)?;
            Some(Found { query: of.0, key: of.1.clone(), value })
        })
        .collect();
    if found.is_empty() {
        let keys: Vec<&str> = asked.iter().map(|(_, key)| key.as_str()).collect();
        let reason = format!("nothing is known of {}", keys.join(", "));
        return Err(refused.unwrap_or(Failure { status: Status::ERR_NOT_FOUND, reason }));
    }
    let status = if found.len() == asked.len() { Status::SUCCESS } else { Status::ERR_PARTIAL_SUCCESS };
    Ok(Answer { status, found })
}

/// The host's answer to [`Host::query`](crate::Host::query), to be given once, on any thread.
/// Dropping it means that nothing is known.
#[derive(Debug)]
pub struct QueryReply {
    id: QueryId,
    /// Until it is used.
    reports: Option<Arc<Reports>>,
}

impl QueryReply {
    pub(crate) fn new(id: QueryId, reports: Arc<Reports>) -> QueryReply {
        QueryReply { id, reports: Some(reports) }
    }

    /// What is known. [`Found::query`] is the query's place among those that the host was asked;
    /// what was not asked for is left out.
    pub fn answer(mut self, found: Vec<Found>) {
        self.send(Ok(found));
    }

    /// Nothing, for this reason, which the tool is told if the engine knows nothing either.
    pub fn deny(mut self, status: Status, reason: impl Into<String>) {
        self.send(Err(Failure { status, reason: reason.into() }));
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
