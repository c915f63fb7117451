//! Requests about published values.

use std::slice;
use std::time::Instant;

use iof_proto::{
    Answer, Exchange, Failure, Found, FoundValue, Info, PMIX_GROUP_CONTEXT_ID, Persistence, Quota, Rank,
    Status, ToTool, Value,
};

use crate::Core;
use crate::clients::client::{Client, Payer, Requester};
use crate::ids::JobId;
use crate::jobs::job::JobState;
use crate::published::table::{Finders, KeySearch, PublishedValue, Publisher, WaitingLookup};

impl Core {
    /// Serves a rank's request about published values.
    pub(crate) fn exchange(&mut self, requester: Requester, exchange: Exchange, now: Instant) {
        let Some((requester, exchange)) = self.pass_on(requester, exchange) else { return };
        let Some((job, rank)) = requester.client.job_and_rank() else { return };
        let (run, rank) = (job.run, (job.run, rank));
        let result = match exchange {
            Exchange::Publish { values, range, persistence } => {
                let finders = Finders::new(range, rank);
                self.publish(&requester.client, rank, (finders, persistence), values).map(|()| Vec::new())
            }
            Exchange::Lookup { keys, range, wait, limit } => {
                let (wait, search) = (wait.min(keys.len()), KeySearch { rank, keys, range });
                if self.published.find(&search).len() >= wait {
                    self.look_up_published(&search)
                } else {
                    let keys = (Quota::AwaitedKeys, search.keys.len() as u64);
                    match self.quotas.charge(requester.client.payer(), [keys]) {
                        Ok(charge) => {
                            // A limit beyond the clock's range is none.
                            let limit = limit.and_then(|limit| now.checked_add(limit));
                            let lookup = WaitingLookup { requester, search, wait, limit, charge };
                            return self.published.lookups.push(lookup);
                        }
                        Err(failure) => Err(failure),
                    }
                }
            }
            Exchange::Unpublish { keys, range } => {
                let finders = Finders::new(range, rank);
                let is_named = |key: &String| keys.is_empty() || keys.contains(key);
                let count = self.remove_published(|(key, of), value| {
                    value.publisher == rank && *of == finders && is_named(key)
                });
                let is_done = count > 0 || keys.is_empty();
                is_done.then(Vec::new).ok_or_else(|| not_found("this rank has not published", &keys))
            }
            Exchange::Group { constructs: true, .. } if self.node_of(&job, rank.1).is_some() => {
                return self.fence(requester, (&job, rank.1), exchange, now);
            }
            Exchange::Group { name, constructs, with_context, .. } => {
                let group = (run, name);
                let result = if constructs {
                    self.construct_group(requester.client.payer(), group, with_context)
                } else {
                    self.destruct_group(&group)
                };
                return self.reply(requester, |request| ToTool::Answer { request, result });
            }
            Exchange::Fence { .. } => return self.fence(requester, (&job, rank.1), exchange, now),
            Exchange::Modex(owner) => return self.modex(requester, &owner),
            Exchange::Fail(reason) => return self.exchange_failed(&job, rank.1, reason, now),
            // A spawn is not served here.
            Exchange::Spawn(_) => return,
        };
        self.reply(requester, |_| ToTool::Exchanged(result));
        self.end_lookups(now);
    }

    pub(crate) fn construct_group(
        &mut self,
        payer: Payer,
        group: (u64, String),
        with_context: bool,
    ) -> Result<Answer, Failure> {
        let charge = self.quotas.charge(payer, [(Quota::Groups, 1)])?;
        self.published.groups.entry(group).or_default().push(charge);
        let mut answer = Answer { status: Status::SUCCESS, found: Vec::new() };
        if with_context {
            self.published.last_context = self.published.last_context.wrapping_add(1);
            let context = Info::new(PMIX_GROUP_CONTEXT_ID, self.published.last_context);
            let value = Value::Infos(vec![context]);
            answer.found.push(Found { query: 0, key: PMIX_GROUP_CONTEXT_ID.into(), value });
        }
        Ok(answer)
    }

    fn destruct_group(&mut self, group: &(u64, String)) -> Result<Answer, Failure> {
        let unknown = || not_found("there is no group", slice::from_ref(&group.1));
        let charges = self.published.groups.get_mut(group).ok_or_else(unknown)?;
        let charge = charges.pop();
        debug_assert!(charge.is_some(), "a group without members is kept");
        if charges.is_empty() {
            self.published.groups.remove(group);
        }
        self.quotas.give_back(charge);
        Ok(Answer { status: Status::SUCCESS, found: Vec::new() })
    }

    /// Publishes all `values`, or none.
    fn publish(
        &mut self,
        client: &Client,
        publisher: Publisher,
        (finders, persistence): (Finders, Persistence),
        values: Vec<FoundValue>,
    ) -> Result<(), Failure> {
        let mut added = Vec::new();
        let result = values.into_iter().try_for_each(|found| {
            let place = (found.key.clone(), finders);
            if self.published.values.contains_key(&place) {
                let reason = format!("{} is published in this range: choose another key", found.key);
                return Err(Failure::new(Status::ERR_DUPLICATE_KEY, reason));
            }
            let bytes = found.key.len().saturating_add(found.bytes.len()) as u64;
            let amounts = [(Quota::Published, 1), (Quota::PublishedBytes, bytes)];
            let charge = self.quotas.charge(client.payer(), amounts)?;
            added.push(place.clone());
            let value = PublishedValue { publisher, found, persistence, charge };
            self.published.values.insert(place, value);
            Ok(())
        });
        if result.is_err() {
            self.remove_published(|place, _| added.contains(place));
        }
        result
    }

    fn look_up_published(&mut self, search: &KeySearch) -> Result<Vec<FoundValue>, Failure> {
        let mut found = Vec::new();
        for place in self.published.find(search) {
            let Some(value) = self.published.values.get(&place) else { absent!("value", continue) };
            found.push(value.found.clone());
            if value.persistence == Persistence::FirstRead {
                let read = self.published.values.remove(&place);
                self.quotas.give_back(read.map(|value| value.charge));
            }
        }
        if found.is_empty() { Err(not_found("no rank has published", &search.keys)) } else { Ok(found) }
    }

    /// Answers the lookups whose values are published, and those whose time is over.
    pub(crate) fn end_lookups(&mut self, now: Instant) {
        let waiting = std::mem::take(&mut self.published.lookups);
        for lookup in waiting {
            let has_values = self.published.find(&lookup.search).len() >= lookup.wait;
            if !has_values && lookup.limit.is_none_or(|limit| limit > now) {
                self.published.lookups.push(lookup);
                continue;
            }
            let WaitingLookup { requester, search, charge, .. } = lookup;
            self.quotas.give_back([charge]);
            let reason = || format!("not published in time: {}", search.keys.join(", "));
            let result = if has_values {
                self.look_up_published(&search)
            } else {
                Err(Failure::new(Status::ERR_TIMEOUT, reason()))
            };
            self.reply(requester, |_| ToTool::Exchanged(result));
        }
    }

    /// Removes what a rank leaves that has exited: of all ranks of its job if it was the last one.
    pub(crate) fn withdraw_published_by(&mut self, job: &JobId, rank: Rank) {
        let has_exited = self.jobs.find(job).is_some_and(JobState::has_exited);
        self.withdraw_published(job.run, (!has_exited).then_some(rank));
    }

    /// Removes the lookups of a rank that has exited, or of all ranks of a job, and their values that
    /// end then.
    pub(crate) fn withdraw_published(&mut self, run: u64, rank: Option<Rank>) {
        let is_gone = |of: Publisher| of.0 == run && rank.is_none_or(|rank| rank == of.1);
        self.remove_published(|_, value| match value.persistence {
            Persistence::Process => is_gone(value.publisher),
            Persistence::FirstRead | Persistence::Job => rank.is_none() && is_gone(value.publisher),
            Persistence::Session => false,
        });
        let lookups = self.published.lookups.extract_if(.., |lookup| is_gone(lookup.search.rank));
        self.quotas.give_back(lookups.map(|lookup| lookup.charge));
        let groups = self.published.groups.extract_if(.., |(of, _), _| *of == run && rank.is_none());
        self.quotas.give_back(groups.flat_map(|(_, charges)| charges));
    }

    /// Removes values. Returns their number.
    fn remove_published(
        &mut self,
        is_removed: impl Fn(&(String, Finders), &PublishedValue) -> bool,
    ) -> usize {
        let removed = self.published.values.extract_if(.., |place, value| is_removed(place, value));
        let removed: Vec<PublishedValue> = removed.map(|(_, value)| value).collect();
        let count = removed.len();
        self.quotas.give_back(removed.into_iter().map(|value| value.charge));
        count
    }
}

fn not_found(reason: &str, keys: &[String]) -> Failure {
    Failure::new(Status::ERR_NOT_FOUND, format!("{reason} {}", keys.join(", ")))
}
