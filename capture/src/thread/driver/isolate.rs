//! Isolation: the part of the capture thread that moves a pipe to a thread of its own.

use super::*;
use crate::source::isolated::{IsolatedReader, ReadOutcome, ThreadId};

impl<B: Backend> Driver<B> {
    /// Moves a source to a thread of its own: at once, or when its request in flight is answered.
    pub(super) fn isolate(&mut self, index: usize) {
        match self.sources.table.source_mut(index).map(|source| source.isolate()) {
            Some(Close::Cancel) => self.backend.cancel(Token::Source(index)),
            Some(Close::Now) => self.hand_over(index),
            Some(Close::Already) | None => {}
        }
    }

    /// Starts a thread that reads the pipe of a source. The source must have nothing in flight. If
    /// the thread cannot be started, the capture thread continues to read the pipe.
    pub(super) fn hand_over(&mut self, index: usize) {
        let Some(pipe) = self.sources.table.source_mut(index).and_then(|source| source.shared_pipe()) else {
            return;
        };
        let inbox = self.inbox.clone();
        let isolated = IsolatedReader::start(pipe, move |thread, outcome| {
            // An error means that the capture has ended.
            let _ = inbox.send(InboxItem::ReadOutcome { index, thread, outcome });
        });
        let isolated = isolated
            .inspect_err(|error| tracing::error!(%error, "cannot start a thread for a pipe that blocks"))
            .ok();
        if isolated.is_some() {
            self.backend.deregister(Token::Source(index));
            self.watched.remove(Token::Source(index));
        }
        // `advance` may add it again.
        self.waiting.retain(|waiting| *waiting != index);
        let Some(source) = self.sources.table.source_mut(index) else { absent!("source", return) };
        let step = source.isolated(isolated);
        self.advance(index, step);
    }

    /// Handles bytes, or the end, that an isolated source's thread has read.
    pub(super) fn take_outcome(&mut self, index: usize, thread: &ThreadId, outcome: ReadOutcome) {
        // The source may have ended, which counted these bytes, and another source may have its
        // number.
        let Some(source) = self.sources.table.source_mut(index) else { return };
        match outcome {
            ReadOutcome::Bytes { bytes, time } => {
                if source.take_read(thread, bytes, time) == Some(Ready::Now) {
                    self.pour(index);
                }
            }
            ReadOutcome::End(end) if source.is_read_by(thread) => self.end(index, end),
            ReadOutcome::End(_) => {}
        }
    }
}
