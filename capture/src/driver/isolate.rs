//! The part of the capture thread that gives pipes to threads of their own.

use super::*;
use crate::isolated::{Found, Isolated, ThreadId};

impl<B: Backend> Driver<B> {
    /// Has a source read by a thread of its own, as soon as nothing is in flight.
    pub(super) fn isolate(&mut self, at: usize) {
        match self.sources.source_mut(at).map(|source| source.isolate()) {
            Some(Close::Cancel) => self.backend.cancel(Token::Source(at)),
            Some(Close::Now) => self.hand_over(at),
            Some(Close::Already) | None => {}
        }
    }

    /// Gives the pipe of a source that has nothing in flight to a thread of its own.
    pub(super) fn hand_over(&mut self, at: usize) {
        let Some(pipe) = self.sources.source_mut(at).and_then(|source| source.shared_pipe()) else { return };
        let (commands, ringer) = (self.inbox.commands.clone(), self.inbox.ringer.try_clone());
        let isolated = ringer.and_then(|ringer| {
            Isolated::start(pipe, move |thread, found| {
                // The capture has ended if it is not there to hear it.
                if commands.send(Command::Found { at, thread, found }).is_ok() {
                    ringer.ring();
                }
            })
        });
        let isolated = isolated
            .inspect_err(|error| tracing::error!(%error, "a pipe that blocks gets no thread of its own"))
            .ok();
        if isolated.is_some() {
            self.backend.deregister(Token::Source(at));
            self.watched.remove(Token::Source(at));
        }
        // What follows may put it there again.
        self.waiting.retain(|waiting| *waiting != at);
        if let Some(step) = self.sources.source_mut(at).map(|source| source.isolated(isolated)) {
            self.follow(at, step);
        }
    }

    /// Takes what such a thread has found.
    pub(super) fn found(&mut self, at: usize, thread: &ThreadId, found: Found) {
        // The source may have ended, which counted the bytes, and another have its number.
        let Some(source) = self.sources.source_mut(at) else { return };
        match found {
            Found::Bytes { bytes, time } => {
                if source.take_found(thread, bytes, time) == Some(Ready::Now) {
                    self.pour(at);
                }
            }
            Found::End(end) if source.is_read_by(thread) => self.end(at, end),
            Found::End(_) => {}
        }
    }
}
