//! The table of published values.

use std::collections::BTreeMap;
use std::time::Instant;

use iof_proto::{DataRange, FoundValue, Persistence, Rank};

use crate::clients::client::Requester;
use crate::clients::quotas::Charge;

/// A rank, by the run of its job.
pub(crate) type Publisher = (u64, Rank);

/// The processes that find a value, among which its key is unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Finders {
    Rank(Publisher),
    Job(u64),
    All,
}

impl Finders {
    pub(crate) fn new(range: DataRange, rank: Publisher) -> Finders {
        match range {
            DataRange::Process => Finders::Rank(rank),
            DataRange::Job => Finders::Job(rank.0),
            DataRange::Session => Finders::All,
        }
    }
}

/// A value that a rank has published.
pub(crate) struct PublishedValue {
    pub publisher: Publisher,
    pub found: FoundValue,
    pub persistence: Persistence,
    pub charge: Charge,
}

/// The keys and the range in which a rank looks for them.
pub(crate) struct KeySearch {
    pub rank: Publisher,
    pub keys: Vec<String>,
    pub range: DataRange,
}

/// A lookup that waits for values.
pub(crate) struct WaitingLookup {
    pub requester: Requester,
    pub search: KeySearch,
    /// The number of values that end the wait.
    pub wait: usize,
    pub limit: Option<Instant>,
    pub charge: Charge,
}

/// The values that ranks have published, and the lookups that wait for some.
#[derive(Default)]
pub struct PublishedValues {
    pub(crate) values: BTreeMap<(String, Finders), PublishedValue>,
    pub(crate) lookups: Vec<WaitingLookup>,
    /// The groups, by their jobs. Disjoint groups of a job may have the same name.
    pub(crate) groups: BTreeMap<(u64, String), Vec<Charge>>,
    /// The number of the last group that has one.
    pub(crate) last_context: u32,
}

impl PublishedValues {
    /// Returns the place of each value that is found: that with the fewest finders.
    pub(crate) fn find(&self, search: &KeySearch) -> Vec<(String, Finders)> {
        let place = |key: &String| {
            let ranges = [DataRange::Process, DataRange::Job, DataRange::Session].into_iter();
            let finders = ranges.filter(|range| *range <= search.range);
            let mut places = finders.map(|range| (key.clone(), Finders::new(range, search.rank)));
            places.find(|place| self.values.contains_key(place))
        };
        search.keys.iter().filter_map(place).collect()
    }

    /// Returns when the first lookup no longer waits.
    pub(crate) fn next_limit(&self) -> Option<Instant> {
        self.lookups.iter().filter_map(|lookup| lookup.limit).min()
    }

    /// Returns all charges.
    pub(crate) fn charges(&self) -> impl Iterator<Item = &Charge> {
        let of_lookups = self.lookups.iter().map(|lookup| &lookup.charge);
        let of_groups = self.groups.values().flatten();
        self.values.values().map(|value| &value.charge).chain(of_lookups).chain(of_groups)
    }
}
