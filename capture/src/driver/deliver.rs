//! The part of the capture thread that fills the streams of sources without a pipe.

use super::*;
use crate::queue::{Taken, Then};

impl<B: Backend> Driver<B> {
    pub(super) fn deliver(&mut self, id: SourceId, bytes: Vec<u8>, time: Option<u64>) {
        let len = bytes.len() as u64;
        let at = self.sources.find(id);
        let source = at.and_then(|at| self.sources.source_mut(at));
        match source.and_then(|source| source.deliver(bytes, time.unwrap_or(self.time))) {
            Some(Ready::Now) => at.into_iter().for_each(|at| self.pour(at)),
            // It goes on with the bell that has brought this command, or after its pause.
            Some(Ready::Later) => {}
            None => self.report_taken(id, Taken { deliveries: 1, bytes: len }),
        }
    }

    /// Moves what was delivered into the stream, as far as that can be done now.
    pub(super) fn pour(&mut self, at: usize) {
        let Some(source) = self.sources.mark_ready(at) else { return };
        let id = source.id();
        let (taken, then) = source.pour();
        if !source.is_isolated() {
            self.report_taken(id, taken);
        } else if taken.deliveries > 0 {
            source.go_on_isolated();
        }
        match then {
            Then::Nothing => {}
            Then::Wait => self.waiting.push(at),
            Then::Pause => self.backend.pause(Token::Source(at)),
            Then::End => self.end(at, End::EndOfFile),
        }
    }

    pub(super) fn report_taken(&mut self, source: SourceId, Taken { deliveries, bytes }: Taken) {
        if deliveries > 0 {
            self.sources.report(Event::Delivered { source, deliveries, bytes });
        }
    }
}
