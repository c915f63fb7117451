//! Queries of tools: what the engine knows itself, what the host adds, and what tools must receive.

use std::collections::{BTreeMap, BTreeSet};

use iof_proto::query::key;
use iof_proto::{
    Answer, Failure, Found, Info, InfoValue, JobInfo, Nspace, Proc, ProcInfo, ProcState, Query, Rank, Status,
    Value,
};

use super::EngineWorld;
use super::jobs::{MAX_RANKS, NAMES};
use crate::rng::{Rng, mix};

/// The qualifier with the number of a request. The engine ignores it, and the host receives it.
const NUMBER: &str = "sim.number";

/// The keys that the engine answers and the host, too.
const HOST_KEYS: [&str; 3] =
    [key::PMIX_QUERY_PROC_TABLE, key::PMIX_QUERY_NAMESPACES, key::PMIX_QUERY_NAMESPACE_INFO];

/// The index of a query in its request, and a key.
type Key = (u32, String);
/// The host's answer to its part of a request.
pub type HostAnswer = Result<Vec<Found>, Failure>;

/// A request of a tool, with all that is known of its answer.
#[derive(Debug)]
struct QueryRecord {
    queries: Vec<Query>,
    /// The values that the engine knew when it asked the host; `None` if it has not asked.
    ours: Option<BTreeMap<Key, Value>>,
    /// The first answer of the host.
    theirs: Option<HostAnswer>,
}

/// The requests of tools by their numbers.
#[derive(Debug, Default)]
pub struct Queries {
    records: BTreeMap<u32, QueryRecord>,
}

impl Queries {
    /// Adds a request. Returns its queries with their number.
    pub fn add(&mut self, mut queries: Vec<Query>) -> (u32, Vec<Query>) {
        let number = self.records.len() as u32;
        queries.iter_mut().for_each(|query| query.qualifiers.push(Info::new(NUMBER, number)));
        let record = QueryRecord { queries: queries.clone(), ours: None, theirs: None };
        self.records.insert(number, record);
        (number, queries)
    }

    /// Notes the host's answer to a request.
    fn answered(&mut self, number: u32, answer: HostAnswer) {
        self.records.get_mut(&number).expect("a query that was asked").theirs.get_or_insert(answer);
    }

    /// Checks the answer to a request.
    pub fn check(&self, number: u32, result: &Result<Answer, Failure>) {
        let record = &self.records[&number];
        if record.ours.is_none() {
            let is_busy = result.as_ref().is_err_and(|failure| failure.status == Status::ERR_RESOURCE_BUSY);
            return assert!(is_busy, "{result:?} answers a query without its host: {record:?}");
        }
        let expected = record.answer();
        assert_eq!(result.is_ok(), expected.is_ok(), "{result:?} instead of {expected:?}");
        let (Ok(answer), Ok(mut expected)) = (result, expected) else {
            return assert_eq!(*result, record.answer(), "the failure of {record:?}");
        };
        // The counters of streams are not predicted.
        for (found, expected) in answer.found.iter().zip(&mut expected.found) {
            if expected.key == key::IOF_QUERY_STATS && matches!(found.value, Value::Streams(_)) {
                expected.value = found.value.clone();
            }
        }
        assert_eq!(*answer, expected, "the answer to {record:?}");
    }
}

impl QueryRecord {
    /// Returns the keys of the request, in their order, each once.
    fn keys(&self) -> Vec<Key> {
        let mut keys = Vec::new();
        for (index, query) in (0..).zip(&self.queries) {
            for key in &query.keys {
                let key = (index, key.clone());
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
        }
        keys
    }

    /// Returns the keys that the host is asked for.
    fn keys_of_host(&self) -> Vec<Key> {
        let ours = self.ours.as_ref().expect("a query that was asked");
        let is_theirs = |key: &Key| !ours.contains_key(key) || HOST_KEYS.contains(&key.1.as_str());
        self.keys().into_iter().filter(is_theirs).collect()
    }

    /// Returns the queries that the host is asked.
    fn queries_of_host(&self) -> Vec<Query> {
        let mut queries: BTreeMap<u32, Query> = BTreeMap::new();
        for (index, key) in self.keys_of_host() {
            let qualifiers = self.queries[index as usize].qualifiers.clone();
            let new = || Query { keys: Vec::new(), qualifiers };
            queries.entry(index).or_insert_with(new).keys.push(key);
        }
        queries.into_values().collect()
    }

    /// Returns the right answer to the request.
    fn answer(&self) -> Result<Answer, Failure> {
        let asked: BTreeSet<u32> = self.keys_of_host().into_iter().map(|(index, _)| index).collect();
        let asked: Vec<u32> = asked.into_iter().collect();
        let theirs = self.theirs.clone().expect("an answer of the host");
        let mut values = self.ours.clone().expect("a query that was asked");
        for Found { query, key, value } in theirs.iter().flatten().cloned() {
            if let Some(index) = asked.get(query as usize) {
                let value = match values.remove(&(*index, key.clone())) {
                    Some(ours) => join(ours, value),
                    None => value,
                };
                values.insert((*index, key), value);
            }
        }
        let keys = self.keys();
        let found = |key: &Key| Some(Found { query: key.0, key: key.1.clone(), value: values.remove(key)? });
        let found: Vec<Found> = keys.iter().filter_map(found).collect();
        if found.is_empty() {
            let names: Vec<&str> = keys.iter().map(|(_, key)| key.as_str()).collect();
            let reason = format!("no answer for {}", names.join(", "));
            return Err(theirs.err().unwrap_or(Failure::new(Status::ERR_NOT_FOUND, reason)));
        }
        let is_whole = found.len() == keys.len();
        let status = if is_whole { Status::SUCCESS } else { Status::ERR_PARTIAL_SUCCESS };
        Ok(Answer { status, found })
    }
}

/// Returns both parts of a value: everything of the engine, and what the host adds to it. A process
/// whose state the engine does not know is described by the host.
fn join(ours: Value, theirs: Value) -> Value {
    match (ours, theirs) {
        (Value::Text(ours), Value::Text(theirs)) => {
            let mut names: Vec<&str> = Vec::new();
            for name in ours.split(',').chain(theirs.split(',')) {
                if !name.is_empty() && !names.contains(&name) {
                    names.push(name);
                }
            }
            Value::Text(names.join(","))
        }
        (Value::Procs(ours), Value::Procs(theirs)) => {
            let row = |row: ProcInfo| (row.proc.clone(), row);
            let mut rows: BTreeMap<Proc, ProcInfo> = theirs.into_iter().map(row).collect();
            for ours in ours {
                if ours.state != ProcState::Unknown || !rows.contains_key(&ours.proc) {
                    rows.insert(ours.proc.clone(), ours);
                }
            }
            Value::Procs(rows.into_values().collect())
        }
        (Value::Jobs(mut ours), Value::Jobs(theirs)) => {
            for theirs in theirs {
                if !ours.iter().any(|job| job.nspace == theirs.nspace) {
                    ours.push(theirs);
                }
            }
            Value::Jobs(ours)
        }
        (ours, _) => ours,
    }
}

/// Returns the keys that the engine answers and the host, too.
pub fn host_keys() -> BTreeSet<String> {
    HOST_KEYS.map(str::to_owned).into()
}

/// Returns the number of a request, if these are queries of one with a number.
pub fn number_of(queries: &[Query]) -> Option<u32> {
    let found = queries.iter().flat_map(|query| &query.qualifiers).find(|info| info.key == NUMBER)?;
    if let InfoValue::Number(number) = found.value { u32::try_from(number).ok() } else { None }
}

/// Returns what the host answers to the queries of the request `number`: values for most keys, some
/// of the wrong type, and some that were not asked for.
pub fn values_of_host(number: u32, queries: &[Query]) -> Vec<Found> {
    let rng = &mut Rng::new(mix(number.into()));
    let mut found = Vec::new();
    for (query, Query { keys, .. }) in (0..).zip(queries) {
        for key in keys {
            if rng.chance(208) {
                found.push(Found { query, key: key.clone(), value: value_of_host(key, rng) });
            }
        }
        if rng.chance(32) {
            let query = rng.pick(&[query, query + queries.len() as u32]);
            found.push(Found { query, key: "not.asked".into(), value: Value::Text("unused".into()) });
        }
    }
    found
}

fn value_of_host(key: &str, rng: &mut Rng) -> Value {
    if rng.chance(16) {
        return Value::Status(Status::ERR_BAD_PARAM);
    }
    let names = NAMES.iter().chain(&["d"]).map(|name| Nspace::new(*name).expect("a valid name"));
    let names: Vec<Nspace> = names.filter(|_| rng.chance(128)).collect();
    match key {
        key::PMIX_QUERY_PROC_TABLE | key::PMIX_QUERY_LOCAL_PROC_TABLE => {
            let procs = names.into_iter().flat_map(|name| {
                [0, MAX_RANKS, MAX_RANKS + 1, MAX_RANKS + 2].map(|rank| Proc::new(name.clone(), Rank(rank)))
            });
            let procs: Vec<Proc> = procs.filter(|_| rng.chance(96)).collect();
            let row = |proc| ProcInfo {
                pid: rng.below(1 << 20) as u32,
                host: "elsewhere".into(),
                executable: "theirs".into(),
                state: rng.pick(&[ProcState::Running, ProcState::Terminated, ProcState::Unknown]),
                exit_code: rng.pick(&[None, Some(0), Some(3)]),
                ..ProcInfo::new(proc, ProcState::Unknown)
            };
            Value::Procs(procs.into_iter().map(row).collect())
        }
        key::PMIX_QUERY_NAMESPACE_INFO => {
            let row = |nspace| JobInfo {
                nspace,
                procs: rng.below(100) as u32,
                status: rng.pick(&[Status::EVENT_JOB_START, Status::EVENT_JOB_END]),
                exit_code: None,
                command: "theirs".into(),
                run: 0,
            };
            Value::Jobs(names.into_iter().map(row).collect())
        }
        key::PMIX_QUERY_NAMESPACES => {
            let names: Vec<&str> = names.iter().chain(names.first()).map(|name| name.as_str()).collect();
            Value::Text(names.join(rng.pick(&[",", ",,"])))
        }
        key::PMIX_QUERY_JOB_STATUS => Value::Status(rng.pick(&[Status::SUCCESS, Status::EVENT_JOB_END])),
        _ => Value::Infos(vec![Info::new(key, rng.below(1000) as u32)]),
    }
}

impl EngineWorld {
    /// Notes what the engine knew when it asked the host, and what the host has answered since.
    pub(super) fn note_queries(&mut self) {
        for (number, queries) in self.host.take_queries() {
            let record = &self.truth.queries.records[&number];
            let keys = record.keys().into_iter();
            let value = |key: Key| {
                let value = self.own_value(&key.1, &record.queries[key.0 as usize])?;
                Some((key, value))
            };
            let ours = Some(keys.filter_map(value).collect());
            let record = self.truth.queries.records.get_mut(&number).expect("a query of a tool");
            assert!(record.ours.is_none(), "the host was asked twice for {record:?}");
            record.ours = ours;
            assert_eq!(queries, record.queries_of_host(), "what the host is asked for {record:?}");
        }
        let answers = self.host.take_answers();
        answers.into_iter().for_each(|(number, answer)| self.truth.queries.answered(number, answer));
    }
}
