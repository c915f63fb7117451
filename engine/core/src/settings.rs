//! The settings that the embedder and its host chose when the engine started.

use std::collections::BTreeSet;

use crate::limits::Limits;
use crate::streams::options::StreamOptions;

/// The settings, which never change.
pub struct Settings {
    /// The keys of directives that the host understands.
    pub host_keys: BTreeSet<String>,
    /// The keys of queries to which the host contributes a part of the answer.
    pub host_queries: BTreeSet<String>,
    /// Set if the host forwards stdin to ranks elsewhere.
    pub host_stdin: bool,
    /// The options of streams for which a job sets no others.
    pub options: StreamOptions,
    /// The largest cache size that a registration may set, in bytes.
    pub max_cache_size: u32,
    /// The number of connections from outside that may exist at a time.
    pub places: usize,
    /// The number of readers that a tool may have.
    pub slots: usize,
    /// The limits.
    pub limits: Limits,
    /// A random number, to which that of a job among those of its name is added.
    pub run: u128,
    /// The engine's own process and user.
    pub pid: u32,
    /// The user that the engine belongs to.
    pub uid: u32,
    /// This node's name, as process tables show it.
    pub node: String,
}
