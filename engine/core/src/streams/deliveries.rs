//! Deliveries that were taken, and the ends of their streams.

use iof_capture::{SourceBytes, SourceId};
use iof_proto::Nspace;

use crate::Core;
use crate::effects::Command;
use crate::streams::state::StreamState;
use crate::upcall::{TakenCallback, Upcall};

impl Core {
    /// Adds the stream `source`, which deliveries fill, and queues the commands that open it. It begins
    /// with the byte at `offset`.
    pub(crate) fn open_stream(&mut self, source: SourceId, new: StreamState, offset: u64) {
        let first = self.add_stream(source, new);
        let delivery = self.streams.open_delivery(source);
        if offset == 0 {
            return self.effects.commands.push(Command::Open { source, stream: (), first: Some(first) });
        }
        delivery.advance(offset);
        // An end is always queued.
        let _ = delivery.queue(0, true, Box::new(|| {}));
        // What precedes it is a gap for readers that begin with the oldest byte.
        let skipped = SourceBytes { bytes: Vec::new(), lost: offset, ..SourceBytes::default() };
        self.effects.commands.extend([
            Command::Open { source, stream: (), first: None },
            Command::Deliver { source, delivery: skipped },
            Command::Request(first),
        ]);
    }

    /// Queues the host's callbacks for the next `count` deliveries to `stream`, which were taken.
    pub(crate) fn deliveries_taken(&mut self, stream: SourceId, count: usize) {
        let Some(delivery) = self.streams.delivery(stream) else { return };
        let callbacks = std::iter::from_fn(|| delivery.pop()).take(count);
        self.effects.upcalls.extend(callbacks.map(Upcall::Taken));
        if delivery.take_cached() {
            self.pull_is_current(stream);
        }
    }

    /// Removes and returns the callbacks of all deliveries that were not reported as taken, because
    /// the engine ends.
    pub(crate) fn remove_callbacks(&mut self) -> Vec<TakenCallback> {
        let queued = self.take_upcalls().into_iter().filter_map(Upcall::into_callback);
        queued.chain(self.streams.take_callbacks()).collect()
    }

    /// Notes that `stream` is complete if it is filled by deliveries. Returns whether it is.
    pub(crate) fn delivery_completed(&mut self, stream: SourceId, nspace: &Nspace) -> bool {
        let Some(delivery) = self.streams.delivery(stream) else { return false };
        delivery.complete = true;
        let Some(job) = self.jobs.get_mut(nspace) else { absent!("job", return true) };
        job.delivery_completed();
        true
    }
}
