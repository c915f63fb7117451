//! Values that ranks publish for others (`PMIx_Publish`, `PMIx_Lookup`, `PMIx_Unpublish`), and groups of
//! ranks (`PMIx_Group_construct`, `PMIx_Group_destruct`).

use std::time::Duration;

use crate::names::Proc;

/// The key of the number of a group.
pub const PMIX_GROUP_CONTEXT_ID: &str = "pmix.grp.ctxid";

/// The processes that find a published value, or the values that a request is about
/// (`pmix_data_range_t`). Ordered from the narrowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DataRange {
    /// The process that publishes it.
    Process,
    /// The processes of its job.
    Job,
    /// All processes of the engine's jobs.
    Session,
}

/// The end of a published value, unless it is unpublished before (`pmix_persistence_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// The first lookup that returns it, or the exit of all processes of the job.
    FirstRead,
    /// The exit of the process.
    Process,
    /// The exit of all processes of its job.
    Job,
    /// The end of the engine.
    Session,
}

/// A value of any type under its key, with the process that has published it (`pmix_pdata_t`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundValue {
    /// The process.
    pub source: Proc,
    /// The key.
    pub key: String,
    /// The [type](crate::attribute::data_type).
    pub kind: u16,
    /// The bytes: of a text without the final zero, of a number as they lie in the memory of C.
    pub bytes: Vec<u8>,
}

/// A request of a rank about published values or groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exchange {
    /// Publish values under their keys, or none of them.
    Publish {
        /// The values.
        values: Vec<FoundValue>,
        /// The processes that find them. A key is unique among them.
        range: DataRange,
        /// The end of the values.
        persistence: Persistence,
    },
    /// Return values.
    Lookup {
        /// Their keys.
        keys: Vec<String>,
        /// The range that is searched, with those that are narrower.
        range: DataRange,
        /// The number of values to wait for; 0 answers at once.
        wait: usize,
        /// The longest time to wait; `None` means without limit.
        limit: Option<Duration>,
    },
    /// Remove values that the process has published.
    Unpublish {
        /// Their keys; empty means all of its values in `range`.
        keys: Vec<String>,
        /// The range in which they were published.
        range: DataRange,
    },
    /// Construct or destruct a group of processes, whose members have all called. Answered by
    /// [`ToTool::Answer`](crate::ToTool::Answer).
    Group {
        /// Its name.
        name: String,
        /// `true` to construct the group, `false` to destruct it.
        constructs: bool,
        /// `true` if it gets a number that no other group of the engine has.
        with_context: bool,
    },
}
