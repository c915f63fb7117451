//! All sources, their readers' notifications and the events: the part of the capture thread that
//! does no I/O on pipes.

use std::sync::Arc;

use iof_shm_ring::{StreamStats, notify};

use crate::messages::event::{End, Event, SourceId};
use crate::source::Source;
use crate::source::source_table::SourceTable;

/// The callback that receives the events.
pub(crate) type OnEvent = Arc<dyn Fn(Event) + Send + Sync>;

/// The sources, and the notifications and events of one turn.
pub(crate) struct Sources {
    pub table: SourceTable,
    /// Sources whose readers may have to be notified. A source may occur more than once.
    ready: Vec<usize>,
    /// Sources to drop once the turn's notifications are flushed.
    removed: Vec<usize>,
    events: Vec<Event>,
    on_event: OnEvent,
}

impl Sources {
    pub(crate) fn new(on_event: OnEvent) -> Sources {
        Sources {
            table: SourceTable::default(),
            ready: Vec::new(),
            removed: Vec::new(),
            events: Vec::new(),
            on_event,
        }
    }

    /// Marks the source's readers as ready and returns the source, for a change that its readers
    /// may have to be notified of.
    pub(crate) fn mark_ready(&mut self, index: usize) -> Option<&mut Source> {
        let source = self.table.slots.get_mut(index)?;
        self.ready.push(index);
        Some(source)
    }

    /// Ends a source that has nothing in flight.
    pub(crate) fn end(&mut self, index: usize, end: End) {
        let Some(source) = self.mark_ready(index) else { absent!("source", return) };
        source.end();
        let id = source.id();
        self.report_complete(index, end);
        if self.table.find(id) != Some(index) {
            self.removed.push(index);
        }
    }

    /// Breaks off the stream of a source whose request in flight is never answered. The source keeps
    /// its memory.
    pub(crate) fn abandon(&mut self, index: usize, end: End) {
        let Some(source) = self.mark_ready(index) else { absent!("source", return) };
        source.break_off(0);
        source.abandon();
        self.report_complete(index, end);
    }

    fn report_complete(&mut self, index: usize, end: End) {
        let Some(source) = self.table.slots.get(index) else { absent!("source", return) };
        let (source, stats) = (source.id(), source.stream().stats());
        let StreamStats { produced, dropped, generation, .. } = stats;
        self.report(Event::Complete { source, produced, dropped, generation, end });
    }

    /// Frees the id of a source and returns its index. The source is dropped when it has ended.
    pub(crate) fn remove(&mut self, id: SourceId) -> Option<usize> {
        let index = self.table.by_id.remove(&id)?;
        if self.table.slots.get(index).is_some_and(Source::has_ended) {
            self.removed.push(index);
        }
        Some(index)
    }

    /// Reports `event` after this turn's notifications are flushed.
    pub(crate) fn report(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Ends the turn: notifies the readers of all ready sources, then reports the events.
    pub(crate) fn flush_notifications(&mut self) {
        let sources = &mut self.table.slots;
        // `take_ready` clears the flag, so a source that occurs twice notifies its readers once.
        self.ready.retain(|&index| sources.get_mut(index).is_some_and(Source::take_ready));
        let sources = &self.table.slots;
        notify(self.ready.iter().filter_map(|&index| sources.get(index)).map(Source::stream));
        for index in self.ready.drain(..) {
            let moved =
                self.table.slots.get_mut(index).and_then(|source| Some((source.id(), source.take_moved()?)));
            self.events.extend(moved.map(|(source, generation)| Event::Moved { source, generation }));
        }
        for index in self.removed.drain(..) {
            self.table.slots.remove(index);
        }
        for event in self.events.drain(..) {
            (self.on_event)(event);
        }
    }
}
