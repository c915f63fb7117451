//! The answer to a query request, in parts: what the engine has found itself, and what its host adds.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use iof_proto::{Answer, Failure, Found, Info, Nspace, Proc, ProcState, Query, Status, Value};

/// A requested key, with the index of its query in the request.
type RequestedKey = (u32, String);

/// The answer to the keys of a request, as far as it is known.
#[derive(Default)]
pub(crate) struct PartialAnswer {
    requested: Vec<RequestedKey>,
    found: BTreeMap<RequestedKey, Value>,
    /// The queries for the host, by their index in the request, until it is asked.
    for_host: BTreeMap<u32, Query>,
    /// The indices in the request of the queries that the host was asked.
    asked: Vec<u32>,
    /// The first error of a key that is invalid with its qualifiers, or that of the host.
    failure: Option<Failure>,
}

impl PartialAnswer {
    /// Adds a key of the query with this index. Returns `false` if it was added before: it is
    /// answered once, because answers are long.
    pub(crate) fn request(&mut self, index: u32, key: &str) -> bool {
        let is_new = !self.requested.iter().any(|(query, other)| *query == index && other == key);
        self.requested.extend(is_new.then(|| (index, key.to_owned())));
        is_new
    }

    /// Adds what the engine has found for a key.
    pub(crate) fn found(&mut self, index: u32, key: &str, value: Value) {
        self.found.insert((index, key.to_owned()), value);
    }

    /// Notes that a key is invalid with its qualifiers.
    pub(crate) fn failed(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// Leaves a key to the host.
    pub(crate) fn leave_to_host(&mut self, index: u32, key: &str, qualifiers: &[Info]) {
        let new = || Query { keys: Vec::new(), qualifiers: qualifiers.to_vec() };
        self.for_host.entry(index).or_insert_with(new).keys.push(key.to_owned());
    }

    /// Returns whether there are queries for the host.
    pub(crate) fn needs_host(&self) -> bool {
        !self.for_host.is_empty()
    }

    /// Takes the queries for the host.
    pub(crate) fn take_for_host(&mut self) -> Vec<Query> {
        let (asked, queries) = mem::take(&mut self.for_host).into_iter().unzip();
        self.asked = asked;
        queries
    }

    /// Adds the answer of the host to its queries.
    pub(crate) fn add_of_host(&mut self, answer: Result<Vec<Found>, Failure>) {
        let theirs = match answer {
            Ok(theirs) => theirs,
            Err(failure) => return self.failed(failure),
        };
        for Found { query, key, value } in theirs {
            let index = usize::try_from(query).ok().and_then(|index| self.asked.get(index));
            let Some(requested) = index.map(|index| (*index, key)) else { continue };
            let value = match self.found.remove(&requested) {
                Some(ours) => merge(ours, value),
                None => value,
            };
            self.found.insert(requested, value);
        }
    }

    /// Builds the answer from what was found.
    ///
    /// # Errors
    /// Nothing was found. The error is that of a key or of the host, if they have failed.
    pub(crate) fn conclude(mut self) -> Result<Answer, Failure> {
        let found: Vec<Found> = self
            .requested
            .iter()
            .filter_map(|key| {
                let value = self.found.remove(key)?;
                Some(Found { query: key.0, key: key.1.clone(), value })
            })
            .collect();
        if found.is_empty() {
            let keys: Vec<&str> = self.requested.iter().map(|(_, key)| key.as_str()).collect();
            let reason = format!("no answer for {}", keys.join(", "));
            return Err(self.failure.unwrap_or(Failure::new(Status::ERR_NOT_FOUND, reason)));
        }
        let is_whole = found.len() == self.requested.len();
        let status = if is_whole { Status::SUCCESS } else { Status::ERR_PARTIAL_SUCCESS };
        Ok(Answer { status, found })
    }
}

/// Combines the values of the engine and its host for one key. The engine's value takes precedence
/// for what it knows.
fn merge(ours: Value, theirs: Value) -> Value {
    match (ours, theirs) {
        (Value::Text(ours), Value::Text(theirs)) => {
            let mut names: Vec<&str> = ours.split(',').filter(|name| !name.is_empty()).collect();
            for name in theirs.split(',').filter(|name| !name.is_empty()) {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            Value::Text(names.join(","))
        }
        (Value::Procs(mut ours), Value::Procs(theirs)) => {
            // The host knows more about a process elsewhere.
            let from_host: BTreeSet<Proc> = theirs.iter().map(|info| info.proc.clone()).collect();
            ours.retain(|info| info.state != ProcState::Unknown || !from_host.contains(&info.proc));
            let known: BTreeSet<Proc> = ours.iter().map(|info| info.proc.clone()).collect();
            ours.extend(theirs.into_iter().filter(|info| !known.contains(&info.proc)));
            ours.sort_by(|one, other| one.proc.cmp(&other.proc));
            Value::Procs(ours)
        }
        (Value::Jobs(mut ours), Value::Jobs(theirs)) => {
            let known: BTreeSet<Nspace> = ours.iter().map(|job| job.nspace.clone()).collect();
            ours.extend(theirs.into_iter().filter(|job| !known.contains(&job.nspace)));
            Value::Jobs(ours)
        }
        (Value::Attributes(mut ours), Value::Attributes(theirs)) => {
            ours.extend(theirs);
            Value::Attributes(ours)
        }
        (ours, _) => ours,
    }
}
