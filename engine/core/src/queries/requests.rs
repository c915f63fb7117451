//! Queries of clients.

use std::time::Instant;

use iof_capture::{RequestId, StreamAnswer};
use iof_proto::query::key;
use iof_proto::{Answer, Failure, Found, Query, Quota, ToTool};

use crate::Core;
use crate::clients::client::Requester;
use crate::clients::owed::size_of_infos;
use crate::ids::{Call, QueryId};
use crate::queries::answers::{Scope, count_streams, find, stream_stats};
use crate::queries::partial_answer::PartialAnswer;
use crate::queries::query::{CountedStream, QueryRequest};
use crate::streams::awaited::Awaited;
use crate::upcall::Upcall;

impl Core {
    /// Answers a request: now, or when the capture thread has read the counters and the host has
    /// answered its part.
    pub(crate) fn query(&mut self, requester: Requester, queries: Vec<Query>, now: Instant) {
        let mut request = QueryRequest { requester, charge: None };
        let asks_for_counters = |query: &Query| query.keys.iter().any(|key| key == key::IOF_QUERY_STATS);
        let has_counters = !request.requester.client.own && self.queries.has_counters(now);
        if has_counters || !queries.iter().any(asks_for_counters) {
            return self.answer_query(request, &queries);
        }
        if let Err(failure) = self.charge_query(&mut request) {
            return self.answer(request, Err(failure));
        }
        let counters = self.refresh_stats(&request.requester);
        request.requester.tool().into_iter().for_each(|peer| self.request_begun(peer));
        self.queries.wait_for_counters(request, queries, counters);
    }

    /// Charges a request that must wait.
    fn charge_query(&mut self, request: &mut QueryRequest) -> Result<(), Failure> {
        if request.charge.is_none() {
            request.charge =
                Some(self.quotas.charge(request.requester.client.payer(), [(Quota::Queries, 1)])?);
        }
        Ok(())
    }

    /// Answers a request for which the counters are fresh enough, now or when the host has answered
    /// its part.
    fn answer_query(&mut self, mut request: QueryRequest, queries: &[Query]) {
        let result = match self.look_up(queries) {
            Ok(answer) if answer.needs_host() => match self.ask_host(&mut request, answer) {
                Ok((id, answer)) => return self.queries.wait_for_host(id, request, answer),
                Err(failure) => Err(failure),
            },
            Ok(answer) => answer.conclude(),
            Err(failure) => Err(failure),
        };
        self.answer(request, result);
    }

    /// Returns the request that reads the counters of all streams, for which a query must wait. The
    /// embedder's own tools always get new counters; other clients get those of the last
    /// `STATS_AGE`.
    fn refresh_stats(&mut self, requester: &Requester) -> RequestId {
        let joined = self.queries.counting().filter(|_| !requester.client.own);
        joined.unwrap_or_else(|| {
            let (streams, steps) = count_streams(self);
            let request = self.request(Awaited::Counters(streams), steps);
            self.queries.count(request);
            request
        })
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
            request.requester.tool().into_iter().for_each(|peer| self.request_done(peer));
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

    fn ask_host(
        &mut self,
        request: &mut QueryRequest,
        mut answer: PartialAnswer,
    ) -> Result<(QueryId, PartialAnswer), Failure> {
        self.charge_query(request)?;
        let queries = answer.take_for_host();
        let id = self.queries.next_id();
        self.owe(Call::Query(id), request.requester.client.payer(), size(&queries))?;
        self.effects.upcalls.push(Upcall::Query { id, queries });
        Ok((id, answer))
    }

    /// Processes the host's answer to its part of a request.
    pub(crate) fn query_answered(&mut self, id: QueryId, theirs: Result<Vec<Found>, Failure>) {
        let Some((request, mut answer)) = self.queries.take(id) else { return };
        answer.add_of_host(theirs);
        self.answer(request, answer.conclude());
    }

    fn answer(&mut self, QueryRequest { requester, charge }: QueryRequest, result: Result<Answer, Failure>) {
        self.quotas.give_back(charge);
        self.reply(requester, |request| ToTool::Answer { request, result });
    }
}

/// Returns the length of the text in queries, in bytes.
fn size(queries: &[Query]) -> usize {
    let keys = |query: &Query| query.keys.iter().map(String::len).fold(0, usize::saturating_add);
    let size = |query: &Query| keys(query).saturating_add(size_of_infos(&query.qualifiers));
    queries.iter().map(size).fold(0, usize::saturating_add)
}
