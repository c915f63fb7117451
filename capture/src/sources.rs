//! All sources, their readers' notifications and the events: the part of the capture thread that
//! does no I/O on pipes.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use iof_shm_ring::{StreamStats, notify};

use crate::event::{End, Event, SourceId};
use crate::slots::Slots;
use crate::source::Source;

/// The callback that receives the events.
pub(crate) type OnEvent = Arc<dyn Fn(Event) + Send + Sync>;

/// The sources by index and by id, and the notifications and events of one turn.
pub(crate) struct Sources {
    slots: Slots<Source>,
    by_id: BTreeMap<SourceId, usize>,
    /// Sources whose readers may have to be notified. A source may occur more than once.
    ready: Vec<usize>,
    /// Sources to drop once the turn's notifications are flushed.
    removed: Vec<usize>,
    events: Vec<Event>,
    on_event: OnEvent,
}

impl Default for Sources {
    /// Returns an empty table that reports no events.
    fn default() -> Sources {
        Sources::new(Arc::new(|_| {}))
    }
}

impl Sources {
    pub(crate) fn new(on_event: OnEvent) -> Sources {
        Sources {
            slots: Slots::default(),
            by_id: BTreeMap::new(),
            ready: Vec::new(),
            removed: Vec::new(),
            events: Vec::new(),
            on_event,
        }
    }

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

    /// Marks the source's readers as ready and returns the source, for a change that its readers
    /// may have to be notified of.
    pub(crate) fn mark_ready(&mut self, index: usize) -> Option<&mut Source> {
        let source = self.slots.get_mut(index)?;
        self.ready.push(index);
        Some(source)
    }

    /// Ends a source that has nothing in flight.
    pub(crate) fn end(&mut self, index: usize, end: End) {
        let Some(source) = self.mark_ready(index) else { return };
        source.end();
        let id = source.id();
        self.report_complete(index, end);
        if self.find(id) != Some(index) {
            self.removed.push(index);
        }
    }

    /// Completes the stream of a source whose request in flight is never answered. The source keeps
    /// its memory.
    pub(crate) fn abandon(&mut self, index: usize, end: End) {
        if let Some(source) = self.mark_ready(index) {
            source.abandon();
            self.report_complete(index, end);
        }
    }

    fn report_complete(&mut self, index: usize, end: End) {
        let Some(source) = self.slots.get(index) else { return };
        let (source, stats) = (source.id(), source.stream().stats());
        let StreamStats { produced, dropped, generation, .. } = stats;
        self.report(Event::Complete { source, produced, dropped, generation, end });
    }

    /// Frees the id of a source and returns its index. The source is dropped when it has ended.
    pub(crate) fn remove(&mut self, id: SourceId) -> Option<usize> {
        let index = self.by_id.remove(&id)?;
        if self.slots.get(index).is_some_and(Source::has_ended) {
            self.removed.push(index);
        }
        Some(index)
    }

    /// Frees the id of a source that has ended, and drops the source.
    pub(crate) fn remove_ended(&mut self, id: SourceId) {
        if let Some(index) = self.by_id.remove(&id) {
            self.slots.remove(index);
        }
    }

    /// Returns the sources with their ids. No event is reported for them any more.
    pub(crate) fn take(&mut self) -> Sources {
        let (slots, by_id) = (mem::take(&mut self.slots), mem::take(&mut self.by_id));
        Sources { slots, by_id, ..Sources::default() }
    }

    /// Reports `event` after this turn's notifications are flushed.
    pub(crate) fn report(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Ends the turn: notifies the readers of all ready sources, then reports the events.
    pub(crate) fn flush_notifications(&mut self) {
        let sources = &mut self.slots;
        // `take_ready` clears the flag, so a source that occurs twice notifies its readers once.
        self.ready.retain(|&index| sources.get_mut(index).is_some_and(Source::take_ready));
        let sources = &self.slots;
        notify(self.ready.iter().filter_map(|&index| sources.get(index)).map(Source::stream));
        for index in self.ready.drain(..) {
            let moved =
                self.slots.get_mut(index).and_then(|source| Some((source.id(), source.take_moved()?)));
            self.events.extend(moved.map(|(source, generation)| Event::Moved { source, generation }));
        }
        for index in self.removed.drain(..) {
            self.slots.remove(index);
        }
        for event in self.events.drain(..) {
            (self.on_event)(event);
        }
    }

    /// Leaks all sources, so that every stream stays mapped for the rest of the process.
    pub(crate) fn leak(&mut self) {
        mem::forget(mem::take(&mut self.slots));
    }
}
