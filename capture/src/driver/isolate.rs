//! Isolation: the part of the capture thread that moves a pipe to a thread of its own.

use super::*;
use crate::isolated::{Found, Isolated, ThreadId};

impl<B: Backend> Driver<B> {
    /// Moves a source to a thread of its own: at once, or when its request in flight is answered.
    pub(super) fn isolate(&mut self, at: usize) {
        match self.sources.source_mut(at).map(|source| source.isolate()) {
            Some(Close::Cancel) => self.backend.cancel(Token::Source(at)),
            Some(Close::Now) => self.hand_over(at),
            Some(Close::Already) | None => {}
        }
    }

    /// Starts a thread that reads the pipe of a source. The source must have nothing in flight. If
    /// the thread cannot be started, the capture thread continues to read the pipe.
    pub(super) fn hand_over(&mut self, at: usize) {
        let Some(pipe) = self.sources.source_mut(at).and_then(|source| source.shared_pipe()) else { return };
        let (commands, ringer) = (self.inbox.commands.clone(), self.inbox.ringer.try_clone());
        let isolated = ringer.and_then(|ringer| {
            Isolated::start(pipe, move |thread, found| {
                // An error means that the capture has ended.
                if commands.send(Command::Found { at, thread, found }).is_ok() {
                    ringer.ring();
                }
            })
        });
        let isolated = isolated
            .inspect_err(|error| tracing::error!(%error, "cannot start a thread for a pipe that blocks"))
            .ok();
        if isolated.is_some() {
            self.backend.deregister(Token::Source(at));
            self.watched.remove(Token::Source(at));
        }
        // `follow` may add it again.
        self.waiting.retain(|waiting| *waiting != at);
        if let Some(step) = self.sources.source_mut(at).map(|source| source.isolated(isolated)) {
            self.follow(at, step);
        }
    }

    /// Handles bytes, or the end, that an isolated source's thread has read.
    pub(super) fn found(&mut self, at: usize, thread: &ThreadId, found: Found) {
        // The source may have ended, which counted these bytes, and another source may have its number.
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
