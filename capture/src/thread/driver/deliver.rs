//! Delivery: the part of the capture thread that fills the streams of sources without a pipe.

use super::*;
use crate::source::queue::{AfterPour, Dequeued, SourceBytes};

impl<B: Backend> Driver<B> {
    /// Queues `delivery` for a source without a pipe and moves what fits into its stream. If the
    /// source does not exist or has ended, reports the delivery as done.
    pub(super) fn deliver(&mut self, id: SourceId, delivery: SourceBytes) {
        let len = delivery.bytes.len() as u64;
        self.tick();
        let index = self.sources.table.find(id);
        let source = index.and_then(|index| self.sources.table.source_mut(index));
        match source.and_then(|source| source.deliver(delivery, self.time)) {
            Some(Ready::Now) => index.into_iter().for_each(|index| self.pour(index)),
            // The source continues after this command, when the bell retries the waiting sources,
            // or after its pause.
            Some(Ready::Later) => {}
            None => self.report_dequeued(id, Dequeued { deliveries: 1, bytes: len }),
        }
    }

    /// Moves delivered bytes into the stream until the queue is empty or the stream takes no more.
    pub(super) fn pour(&mut self, index: usize) {
        let Some(source) = self.sources.mark_ready(index) else { absent!("source", return) };
        let id = source.id();
        let (dequeued, after_pour) = source.pour();
        if !source.is_isolated() {
            self.report_dequeued(id, dequeued);
        } else if dequeued.deliveries > 0 {
            source.go_on_isolated();
        }
        match after_pour {
            AfterPour::Nothing => {}
            AfterPour::Wait => self.wait(index),
            AfterPour::Pause => self.backend.pause(Token::Source(index), Pause::Long),
            AfterPour::End => self.end(index, End::EndOfFile),
        }
    }

    /// Reports that deliveries were taken from the queue of `source`, if there were any.
    pub(super) fn report_dequeued(&mut self, source: SourceId, Dequeued { deliveries, bytes }: Dequeued) {
        if deliveries > 0 {
            self.sources.report(Event::Delivered { source, deliveries, bytes });
        }
    }
}
