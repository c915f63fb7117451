//! Values that ranks publish and look up, and their groups: which rank finds which value, and when each
//! ends. A model answers every request, and the engine must answer the same.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use iof_proto::{
    DataRange, Exchange, FoundValue, FromTool, Info, Nspace, PMIX_GROUP_CONTEXT_ID, Persistence, Proc, Quota,
    QuotaScope, Rank, Spawn, Status, ToTool, Value,
};

use super::EngineWorld;
use crate::driver::Limits;
use crate::rng::Rng;

/// A rank, by the run of its job.
type Caller = (u64, Rank);

/// The ranges, from the narrowest.
const RANGES: [DataRange; 3] = [DataRange::Process, DataRange::Job, DataRange::Session];
/// The names of values and groups.
const KEYS: [&str; 4] = ["port", "name", "key", "x"];

/// A value that a rank has published.
#[derive(Debug)]
struct Published {
    publisher: Caller,
    range: DataRange,
    persistence: Persistence,
    found: FoundValue,
}

impl Published {
    fn is_found_by(&self, caller: Caller) -> bool {
        match self.range {
            DataRange::Process => self.publisher == caller,
            DataRange::Job => self.publisher.0 == caller.0,
            DataRange::Session => true,
        }
    }

    fn bytes(&self) -> u64 {
        (self.found.key.len() + self.found.bytes.len()) as u64
    }
}

/// A lookup that waits for values.
#[derive(Debug)]
struct Lookup {
    number: u64,
    caller: Caller,
    keys: Vec<String>,
    range: DataRange,
    wait: usize,
    limit: Option<Instant>,
}

/// The answer to a request.
#[derive(Debug, PartialEq)]
enum Answered {
    Found(Vec<FoundValue>),
    /// With the limit that is named.
    Refused(Status, Option<&'static str>),
    /// With the number of the group, if it was asked for.
    Group(Option<u32>),
}

/// The values that ranks have published, and the keys that they wait for.
#[derive(Debug, Default)]
pub struct Exchanges {
    values: Vec<Published>,
    lookups: Vec<Lookup>,
    groups: Vec<(u64, String)>,
    contexts: u32,
    requests: u64,
    /// The numbers of the jobs that ranks spawn, by those of their requests.
    spawns: BTreeMap<u64, usize>,
    /// The answers that the engine must give before the next step.
    expected: BTreeMap<u64, Answered>,
}

impl Exchanges {
    /// Returns the limit that is exceeded if `amount` is added to `held` by each scope.
    fn excess(limits: &Limits, quota: Quota, held: &[(QuotaScope, u64)], amount: u64) -> Option<Answered> {
        let failure = quota.failure("", "", 0, 0, 0);
        quota.limits().iter().find_map(|limit| {
            let (_, held) = held.iter().find(|(scope, _)| *scope == limit.scope)?;
            let exceeds = amount > 0 && held + amount > limits.quotas.get(quota, limit.scope);
            exceeds.then_some(Answered::Refused(failure.status, Some(limit.name)))
        })
    }

    fn publish(
        &mut self,
        caller: Caller,
        values: &[FoundValue],
        (range, persistence): (DataRange, Persistence),
        limits: &Limits,
    ) -> Answered {
        let before = self.values.len();
        for found in values {
            let new = Published { publisher: caller, range, persistence, found: found.clone() };
            let is_same =
                |old: &Published| old.found.key == found.key && old.range == range && old.is_found_by(caller);
            let is_taken = self.values.iter().any(is_same);
            let held = |amount: fn(&Published) -> u64| {
                let of_job = self.values.iter().filter(|value| value.publisher.0 == caller.0);
                let (job, user) = (of_job.map(amount).sum(), self.values.iter().map(amount).sum());
                [(QuotaScope::Job, job), (QuotaScope::User, user)]
            };
            let refused = if is_taken {
                Some(Answered::Refused(Status::ERR_DUPLICATE_KEY, None))
            } else {
                Self::excess(limits, Quota::Published, &held(|_| 1), 1).or_else(|| {
                    Self::excess(limits, Quota::PublishedBytes, &held(Published::bytes), new.bytes())
                })
            };
            if let Some(refused) = refused {
                self.values.truncate(before);
                return refused;
            }
            self.values.push(new);
        }
        Answered::Found(Vec::new())
    }

    /// Returns the indexes of the values that a lookup finds: of each key that with the narrowest range.
    fn find(&self, caller: Caller, keys: &[String], range: DataRange) -> Vec<usize> {
        let of_key = |key: &String| {
            let mut ranges = RANGES.iter().filter(|narrower| **narrower <= range);
            ranges.find_map(|range| {
                self.values.iter().position(|value| {
                    value.found.key == *key && value.range == *range && value.is_found_by(caller)
                })
            })
        };
        keys.iter().filter_map(of_key).collect()
    }

    /// Returns what a lookup finds, and removes what is read once.
    fn read(&mut self, caller: Caller, keys: &[String], range: DataRange) -> Answered {
        let mut indexes = self.find(caller, keys, range);
        let found: Vec<FoundValue> = indexes.iter().map(|index| self.values[*index].found.clone()).collect();
        indexes.sort_unstable();
        for index in indexes.into_iter().rev() {
            if self.values[index].persistence == Persistence::FirstRead {
                self.values.remove(index);
            }
        }
        if found.is_empty() { Answered::Refused(Status::ERR_NOT_FOUND, None) } else { Answered::Found(found) }
    }

    /// Ends the lookups whose values are published, and those whose time is over.
    fn end_lookups(&mut self, now: Instant) {
        for lookup in std::mem::take(&mut self.lookups) {
            let Lookup { number, caller, ref keys, range, wait, limit } = lookup;
            let answer = if self.find(caller, keys, range).len() >= wait {
                self.read(caller, keys, range)
            } else if limit.is_some_and(|limit| limit <= now) {
                Answered::Refused(Status::ERR_TIMEOUT, None)
            } else {
                self.lookups.push(lookup);
                continue;
            };
            self.expected.insert(number, answer);
        }
    }

    /// Serves a request. Its answer is expected now, unless it waits.
    fn serve(&mut self, number: u64, caller: Caller, exchange: &Exchange, limits: &Limits, now: Instant) {
        let answer = match exchange {
            Exchange::Publish { values, range, persistence } => {
                self.publish(caller, values, (*range, *persistence), limits)
            }
            Exchange::Lookup { keys, range, wait, limit } => {
                if self.find(caller, keys, *range).len() >= *wait {
                    self.read(caller, keys, *range)
                } else {
                    let sum = |lookups: &mut dyn Iterator<Item = &Lookup>| {
                        lookups.map(|lookup| lookup.keys.len() as u64).sum()
                    };
                    let own = sum(&mut self.lookups.iter().filter(|lookup| lookup.caller == caller));
                    let of_job = self.lookups.iter().filter(|lookup| lookup.caller.0 == caller.0);
                    let (job, user) = (sum(&mut { of_job }), sum(&mut self.lookups.iter()));
                    let held = [(QuotaScope::Tool, own), (QuotaScope::Job, job), (QuotaScope::User, user)];
                    match Self::excess(limits, Quota::AwaitedKeys, &held, keys.len() as u64) {
                        Some(refused) => refused,
                        None => {
                            let (keys, range, limit) = (keys.clone(), *range, limit.map(|limit| now + limit));
                            self.lookups.push(Lookup { number, caller, keys, range, wait: *wait, limit });
                            return;
                        }
                    }
                }
            }
            Exchange::Unpublish { keys, range } => {
                let before = self.values.len();
                self.values.retain(|value| {
                    let is_named = keys.is_empty() || keys.contains(&value.found.key);
                    !(value.publisher == caller && value.range == *range && is_named)
                });
                if before > self.values.len() || keys.is_empty() {
                    Answered::Found(Vec::new())
                } else {
                    Answered::Refused(Status::ERR_NOT_FOUND, None)
                }
            }
            Exchange::Group { name, constructs, with_context, .. } => {
                self.group((caller.0, name.clone()), *constructs, *with_context, limits)
            }
            Exchange::Fence { .. } | Exchange::Modex(_) | Exchange::Fail(_) | Exchange::Spawn(_) => {
                panic!("no other node")
            }
        };
        self.expected.insert(number, answer);
        if !matches!(exchange, Exchange::Group { .. }) {
            self.end_lookups(now);
        }
    }

    fn group(&mut self, group: (u64, String), constructs: bool, numbered: bool, limits: &Limits) -> Answered {
        if constructs {
            let of_job = self.groups.iter().filter(|(run, _)| *run == group.0).count();
            let held = [(QuotaScope::Job, of_job as u64), (QuotaScope::User, self.groups.len() as u64)];
            Self::excess(limits, Quota::Groups, &held, 1).unwrap_or_else(|| {
                self.groups.push(group);
                self.contexts += u32::from(numbered);
                Answered::Group(numbered.then_some(self.contexts))
            })
        } else {
            match self.groups.iter().position(|known| *known == group) {
                Some(index) => {
                    self.groups.remove(index);
                    Answered::Group(None)
                }
                None => Answered::Refused(Status::ERR_NOT_FOUND, None),
            }
        }
    }

    /// Notes that time has passed.
    pub fn tick(&mut self, now: Instant) {
        self.end_lookups(now);
    }

    /// Notes that a rank has exited, or all ranks of a job.
    pub fn exited(&mut self, run: u64, rank: Option<Rank>) {
        let is_gone = |caller: Caller| caller.0 == run && rank.is_none_or(|rank| rank == caller.1);
        self.values.retain(|value| {
            let ends = match value.persistence {
                Persistence::Process => true,
                Persistence::FirstRead | Persistence::Job => rank.is_none(),
                Persistence::Session => false,
            };
            !(ends && is_gone(value.publisher))
        });
        self.lookups.retain(|lookup| !is_gone(lookup.caller));
        self.groups.retain(|(of, _)| rank.is_some() || *of != run);
    }

    /// Returns what clients hold of these quotas.
    pub fn held(&self) -> [(Quota, u64); 4] {
        [
            (Quota::Published, self.values.len() as u64),
            (Quota::PublishedBytes, self.values.iter().map(Published::bytes).sum()),
            (Quota::AwaitedKeys, self.lookups.iter().map(|lookup| lookup.keys.len() as u64).sum()),
            (Quota::Groups, self.groups.len() as u64),
        ]
    }

    /// Panics unless only values are left that last as long as the engine.
    pub fn check_end(&self) {
        assert!(self.lookups.is_empty() && self.groups.is_empty(), "left at the end: {self:?}");
        let lasts = |value: &Published| value.persistence == Persistence::Session;
        assert!(self.values.iter().all(lasts), "left at the end: {self:?}");
    }
}

/// Returns any request of a rank.
fn any_exchange(source: &Proc, number: u64, rng: &mut Rng) -> Exchange {
    let (range, first) = (rng.pick(&RANGES), rng.index(KEYS.len()));
    let keys = (0..=rng.below(2) as usize).map(|more| KEYS[(first + more) % KEYS.len()].to_owned());
    let keys: Vec<String> = keys.collect();
    match rng.below(8) {
        0..3 => {
            let kinds =
                [Persistence::FirstRead, Persistence::Process, Persistence::Job, Persistence::Session];
            let value = |key: String| FoundValue {
                source: source.clone(),
                key,
                kind: 3,
                bytes: number.to_string().into_bytes(),
            };
            let mut values: Vec<FoundValue> = keys.into_iter().map(value).collect();
            values.extend(rng.chance(24).then(|| values[0].clone()));
            Exchange::Publish { values, range, persistence: rng.pick(&kinds) }
        }
        3..5 => {
            let limit = rng.pick(&[None, Some(Duration::from_secs(2))]);
            Exchange::Lookup { wait: rng.index(keys.len() + 1), keys, range, limit }
        }
        5 => Exchange::Unpublish { keys: if rng.chance(48) { Vec::new() } else { keys }, range },
        kind => {
            let (name, with_context) = (KEYS[first].to_owned(), rng.chance(128));
            Exchange::Group { name, members: Vec::new(), constructs: kind == 6, with_context }
        }
    }
}

impl EngineWorld {
    /// A rank publishes, looks up or removes values, or is the first of a group. One of an earlier job,
    /// or that does not exist, gets no answer.
    pub(super) fn exchange(&mut self, actor: usize, rng: &mut Rng) {
        let Some(job) = self.job(actor).map(|index| &self.jobs.list[index]) else { return };
        let Some(number) = (actor >> 8).checked_rem(job.ranks.len()) else { return };
        let (mut run, mut rank) = (job.run, Rank(number as u32));
        let exists = !rng.chance(12);
        if !exists {
            (run, rank) = rng.pick(&[(run.wrapping_sub(1), rank), (run, Rank(70))]);
        }
        let exchanges = &mut self.truth.exchanges;
        exchanges.requests += 1;
        let number = exchanges.requests;
        let exchange = any_exchange(&Proc::new(job.nspace.clone(), rank), number, rng);
        if exists {
            exchanges.serve(number, (run, rank), &exchange, &self.setting.limits, self.now);
        }
        let nspace = job.nspace.clone();
        self.engine.request_of_rank((&nspace, run), rank, FromTool::Exchange(exchange), number);
    }

    /// Lets a rank spawn a job.
    pub(super) fn ask_for_spawn(&mut self, job: (&Nspace, u64), rank: Rank, spawn: (usize, Spawn)) {
        let (index, spawn) = spawn;
        let exchanges = &mut self.truth.exchanges;
        exchanges.requests += 1;
        let number = exchanges.requests;
        exchanges.spawns.insert(number, index);
        let message = FromTool::Spawn { request: 0, spawn: Box::new(spawn) };
        self.engine.request_of_rank(job, rank, message, number);
    }

    /// Checks the answers that ranks have received, and what they hold.
    pub(super) fn check_exchanges(&mut self) {
        let exchanges = &mut self.truth.exchanges;
        for (number, answer) in self.engine.take_answers_of_ranks() {
            if let ToTool::Spawned { result, .. } = &answer {
                let spawn = exchanges.spawns.remove(&number).expect("a rank that has spawned a job");
                self.past_counts
                    .count("spawn of a rank", if result.is_ok() { "answered" } else { "refused" });
                self.truth.spawns.check(spawn, result);
                continue;
            }
            let expected = exchanges.expected.remove(&number);
            let expected = expected.unwrap_or_else(|| panic!("{answer:?} answers no request"));
            let answer = match answer {
                ToTool::Exchanged(Ok(found)) => Answered::Found(found),
                ToTool::Exchanged(Err(failure)) | ToTool::Answer { result: Err(failure), .. } => {
                    let names = |name: &&str| failure.reason.contains(&format!("({name})"));
                    let limits = Quota::ALL.iter().flat_map(|quota| quota.limits());
                    let limit = limits.map(|limit| limit.name).find(names);
                    limit.into_iter().for_each(|limit| self.past_counts.count("refused", limit));
                    Answered::Refused(failure.status, limit)
                }
                ToTool::Answer { result: Ok(answer), .. } => {
                    Answered::Group(answer.found.first().map(|found| {
                        let context =
                            |number: u32| Value::Infos(vec![Info::new(PMIX_GROUP_CONTEXT_ID, number)]);
                        let number = (0..=exchanges.contexts).find(|number| found.value == context(*number));
                        number.expect("the number of a group")
                    }))
                }
                answer => panic!("{answer:?} answers a rank"),
            };
            assert_eq!(answer, expected, "the answer to a rank");
            let name = match &answer {
                Answered::Found(found) if found.is_empty() => "done",
                Answered::Found(_) => "found",
                Answered::Refused(Status::ERR_TIMEOUT, _) => "timed out",
                Answered::Refused(..) => "refused",
                Answered::Group(None) => "group",
                Answered::Group(Some(_)) => "numbered group",
            };
            self.past_counts.count("exchange", name);
        }
        assert!(exchanges.expected.is_empty(), "ranks without an answer: {:?}", exchanges.expected);
        for (quota, held) in exchanges.held() {
            assert_eq!(self.engine.held(quota), held, "{quota:?}");
        }
    }
}
