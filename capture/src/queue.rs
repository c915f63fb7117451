//! Bytes that were delivered to a source instead of written to a pipe, on their way into its
//! stream. No I/O here.

use std::collections::VecDeque;

use iof_shm_ring::{Reserve, Stream};

/// Some deliveries that the queue has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dequeued {
    pub deliveries: usize,
    pub bytes: u64,
}

/// What a queue needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterPour {
    /// The next delivery.
    Nothing,
    /// That a reader makes room.
    Wait,
    /// That some time passes.
    Pause,
    /// Its source's end: no delivery will follow.
    End,
}

struct QueuedDelivery {
    bytes: Vec<u8>,
    /// Bytes of it that the stream has.
    stored: usize,
    /// When they were read from their source, in nanoseconds since 1970.
    time: u64,
}

impl QueuedDelivery {
    fn rest(&self) -> &[u8] {
        self.bytes.get(self.stored..).unwrap_or_default()
    }
}

/// The deliveries of one source that its stream has not taken whole.
#[derive(Default)]
pub(crate) struct DeliveryQueue {
    deliveries: VecDeque<QueuedDelivery>,
    finished: bool,
}

impl DeliveryQueue {
    /// Adds a delivery; `false` if the last one has come already.
    pub(crate) fn push(&mut self, bytes: Vec<u8>, time: u64) -> bool {
        if !self.finished {
            self.deliveries.push_back(QueuedDelivery { bytes, stored: 0, time });
        }
        !self.finished
    }

    /// No delivery will follow.
    pub(crate) fn finish(&mut self) {
        self.finished = true;
    }

    /// Bytes that are not in the stream.
    pub(crate) fn unread(&self) -> u64 {
        self.deliveries.iter().map(|delivery| delivery.rest().len() as u64).sum()
    }

    /// Whether the stream has all of it.
    pub(crate) fn is_empty(&self) -> bool {
        self.deliveries.is_empty()
    }

    /// Moves what `stream` takes.
    pub(crate) fn pour(&mut self, stream: &mut Stream) -> (Dequeued, AfterPour) {
        let mut taken = Dequeued::default();
        let mut in_vain = false;
        while let Some(delivery) = self.deliveries.front_mut() {
            let stored = stream.push(delivery.rest(), delivery.time);
            delivery.stored = delivery.stored.saturating_add(stored);
            if delivery.rest().is_empty() {
                taken.add(delivery);
                self.deliveries.pop_front();
                continue;
            }
            // Why it took no more: for as much room as it was asked for just now.
            match stream.reserve(delivery.rest().len()) {
                // Room, and no memory behind it.
                Reserve::Ready(_) if stored == 0 && in_vain => return (taken, AfterPour::Pause),
                // Somebody has made room since.
                Reserve::Ready(_) | Reserve::Discard => in_vain = stored == 0,
                Reserve::Wait => return (taken, AfterPour::Wait),
                Reserve::Later => return (taken, AfterPour::Pause),
            }
        }
        (taken, if self.finished { AfterPour::End } else { AfterPour::Nothing })
    }

    /// Gives up what is left: the stream counts it as dropped.
    pub(crate) fn drop_queued(&mut self, stream: &mut Stream) -> Dequeued {
        let mut taken = Dequeued::default();
        for delivery in self.deliveries.drain(..) {
            if !delivery.rest().is_empty() {
                stream.discard(delivery.rest().len() as u64, delivery.time);
            }
            taken.add(&delivery);
        }
        taken
    }
}

impl Dequeued {
    fn add(&mut self, delivery: &QueuedDelivery) {
        self.deliveries = self.deliveries.saturating_add(1);
        self.bytes = self.bytes.saturating_add(delivery.bytes.len() as u64);
    }
}
