//! The queue of bytes that were delivered to a source instead of written to a pipe, on their way
//! into its stream. No I/O here.

use std::collections::VecDeque;

use iof_shm_ring::{InputState, Reserve, Stream};

/// A count of deliveries that have left the queue, and of their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dequeued {
    pub deliveries: usize,
    pub bytes: u64,
}

/// The step that a queue needs after [`DeliveryQueue::pour`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterPour {
    /// Nothing until the next delivery.
    Nothing,
    /// Wait until a reader makes room.
    Wait,
    /// Pause, then pour again.
    Pause,
    /// End the source: no delivery will follow.
    End,
}

/// Bytes for a source without a pipe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceBytes {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The number of bytes of the source that were lost before these.
    pub lost: u64,
    /// When the bytes were read from their source, in nanoseconds since 1970; `None` for now.
    pub time: Option<u64>,
    /// The stdin of their process, if it is not as before.
    pub input: Option<InputState>,
}

impl From<Vec<u8>> for SourceBytes {
    fn from(bytes: Vec<u8>) -> SourceBytes {
        SourceBytes { bytes, ..SourceBytes::default() }
    }
}

struct QueuedDelivery {
    bytes: Vec<u8>,
    /// Bytes that were lost before these, and that the stream has not counted.
    lost: u64,
    /// Bytes that the stream has stored.
    stored: usize,
    /// When the bytes were read from their source, in nanoseconds since 1970.
    time: u64,
    /// The stdin of their process, unless the stream knows it.
    input: Option<InputState>,
}

impl QueuedDelivery {
    /// Returns the bytes that the stream has not stored.
    fn rest(&self) -> &[u8] {
        self.bytes.get(self.stored..).unwrap_or_default()
    }

    /// Counts the bytes that were lost before these as dropped.
    fn count_lost(&mut self, stream: &mut Stream) {
        if self.lost > 0 {
            stream.discard(std::mem::take(&mut self.lost), self.time);
        }
    }
}

/// The deliveries of one source that its stream has not stored completely.
#[derive(Default)]
pub(crate) struct DeliveryQueue {
    deliveries: VecDeque<QueuedDelivery>,
    finished: bool,
}

impl DeliveryQueue {
    /// Adds a delivery, with `now` as its time unless it has one. Returns `false`, and drops it, if
    /// the queue is finished.
    pub(crate) fn push(&mut self, SourceBytes { bytes, lost, time, input }: SourceBytes, now: u64) -> bool {
        if !self.finished {
            let time = time.unwrap_or(now);
            self.deliveries.push_back(QueuedDelivery { bytes, lost, stored: 0, time, input });
        }
        !self.finished
    }

    /// Finishes the queue: no delivery will follow.
    pub(crate) fn finish(&mut self) {
        self.finished = true;
    }

    /// Returns the number of bytes that are not in the stream.
    pub(crate) fn unread(&self) -> u64 {
        self.deliveries.iter().map(|delivery| delivery.rest().len() as u64).sum()
    }

    /// Returns whether the stream has all bytes.
    pub(crate) fn is_empty(&self) -> bool {
        self.deliveries.is_empty()
    }

    /// Moves bytes into `stream` until the queue is empty or the stream takes no more.
    pub(crate) fn pour(&mut self, stream: &mut Stream) -> (Dequeued, AfterPour) {
        let mut dequeued = Dequeued::default();
        let mut stored_nothing = false;
        while let Some(delivery) = self.deliveries.front_mut() {
            delivery.count_lost(stream);
            if let Some(input) = delivery.input.take() {
                stream.copy_input(input, delivery.time);
            }
            let stored = stream.push(delivery.rest(), delivery.time);
            delivery.stored = delivery.stored.saturating_add(stored);
            if delivery.rest().is_empty() {
                dequeued.add(delivery);
                self.deliveries.pop_front();
                continue;
            }
            // Reserving as many bytes again tells why the stream took no more.
            match stream.reserve(delivery.rest().len()) {
                // There is room, but no memory for it.
                Reserve::Ready(_) if stored == 0 && stored_nothing => return (dequeued, AfterPour::Pause),
                // A reader has made room since.
                Reserve::Ready(_) | Reserve::Discard => stored_nothing = stored == 0,
                Reserve::Wait => return (dequeued, AfterPour::Wait),
                Reserve::Later => return (dequeued, AfterPour::Pause),
            }
        }
        (dequeued, if self.finished { AfterPour::End } else { AfterPour::Nothing })
    }

    /// Empties the queue. The stream counts the bytes as dropped.
    pub(crate) fn drop_queued(&mut self, stream: &mut Stream) -> Dequeued {
        let mut dequeued = Dequeued::default();
        for mut delivery in self.deliveries.drain(..) {
            delivery.count_lost(stream);
            if !delivery.rest().is_empty() {
                stream.discard(delivery.rest().len() as u64, delivery.time);
            }
            dequeued.add(&delivery);
        }
        dequeued
    }
}

impl Dequeued {
    fn add(&mut self, delivery: &QueuedDelivery) {
        self.deliveries = self.deliveries.saturating_add(1);
        self.bytes = self.bytes.saturating_add(delivery.bytes.len() as u64);
    }
}
