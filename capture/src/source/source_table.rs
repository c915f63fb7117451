//! The sources by index and by id, and the streams that remain of them when the capture thread ends.

use std::collections::BTreeMap;
use std::fmt;
use std::mem;

use crate::ids::SourceId;
use crate::slots::Slab;
use crate::source::Source;

/// The sources by index and by id.
#[derive(Default)]
pub(crate) struct SourceTable {
    pub slots: Slab<Source>,
    pub by_id: BTreeMap<SourceId, usize>,
}

impl SourceTable {
    /// Adds a source and returns its index.
    pub(crate) fn add(&mut self, source: Source) -> usize {
        let id = source.id();
        let index = self.slots.insert(source);
        self.by_id.insert(id, index);
        index
    }

    pub(crate) fn find(&self, id: SourceId) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = SourceId> {
        self.by_id.keys().copied()
    }

    /// Returns the indices of all sources, those whose id was removed included.
    pub(crate) fn indices(&self) -> Vec<usize> {
        self.slots.indices()
    }

    pub(crate) fn source(&self, index: usize) -> Option<&Source> {
        self.slots.get(index)
    }

    pub(crate) fn source_mut(&mut self, index: usize) -> Option<&mut Source> {
        self.slots.get_mut(index)
    }

    /// Frees the id of a source that has ended, and drops the source.
    pub(crate) fn remove_ended(&mut self, id: SourceId) {
        if let Some(index) = self.by_id.remove(&id) {
            self.slots.remove(index);
        }
    }

    /// Leaks all sources, so that every stream stays mapped for the rest of the process.
    pub(crate) fn leak(&mut self) {
        mem::forget(mem::take(&mut self.slots));
    }
}

/// The streams of a capture that has ended. All of them are complete, and readers can still be
/// attached to them, moved to their last generations, and detached.
///
/// Dropping it drops the streams. Readers keep their mappings. If the kernel has not answered a
/// read into a stream, the memory of all streams stays mapped until the process ends.
#[derive(Default)]
pub struct EndedStreams {
    pub(crate) sources: SourceTable,
    /// The kernel may still write to the memory of a stream.
    pub(crate) in_flight: bool,
}

impl EndedStreams {
    /// Drops a stream.
    pub(crate) fn remove(&mut self, id: SourceId) {
        // The memory of any of them may be the one that the kernel still uses.
        if !self.in_flight {
            self.sources.remove_ended(id);
        }
    }

    /// Drops the streams for which `keep` returns `false`.
    pub fn retain(&mut self, keep: impl Fn(SourceId) -> bool) {
        let ids: Vec<SourceId> = self.sources.ids().filter(|id| !keep(*id)).collect();
        ids.into_iter().for_each(|id| self.remove(id));
    }
}

impl Drop for EndedStreams {
    fn drop(&mut self) {
        if mem::take(&mut self.in_flight) {
            self.sources.leak();
        }
    }
}

impl fmt::Debug for EndedStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndedStreams").field("streams", &self.sources.ids().count()).finish_non_exhaustive()
    }
}
