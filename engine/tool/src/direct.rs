//! Output that another thread of the tool's process passes to it without a ring: that of ranks on
//! other nodes, which arrives in frames.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, mem};

use iof_proto::{Channel, Channels, Nspace, Rank};
use iof_shm_ring::{Behind, Gap, Interaction, LastRead, Peek, Ringer, Stepper};

use crate::Pull;

/// Bytes of a stream. Dropping the last reference states that no tool needs them.
pub type DirectBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The next item of a stream.
#[derive(Clone)]
pub enum DirectItem {
    /// Bytes.
    Bytes {
        /// The bytes, at least one.
        bytes: DirectBytes,
        /// The time at which they were read from their source, in nanoseconds since 1970; 0 if
        /// unknown.
        time: u64,
    },
    /// This number of missing bytes.
    Gap(u64),
    /// The end of a complete stream.
    End,
    /// The end of a broken stream. The source has produced this number of further bytes, at least.
    Broken(u64),
}

/// Passes streams to a tool of this process ([`Tool::direct_input`](crate::Tool::direct_input)). All
/// streams of one job that pass here are those of its ranks on other nodes.
#[derive(Clone)]
pub struct DirectInput {
    queue: Arc<DirectQueue>,
    channels: Channels,
    /// `None` for all ranks.
    ranks: Option<Arc<BTreeSet<Rank>>>,
    ringer: Arc<Ringer>,
    stepper: Stepper,
}

/// Items of streams that the tool has not taken.
#[derive(Default)]
pub(crate) struct DirectQueue(Mutex<Queue>);

/// The owner's side of a [`DirectInput`].
pub(crate) struct DirectSource {
    pub queue: Arc<DirectQueue>,
    /// The registration that the streams belong to.
    pub handler: u32,
    pub nspace: Nspace,
    /// Reusable memory for what is taken of the queue.
    pub taken: Vec<QueuedItem>,
}

impl Drop for DirectSource {
    fn drop(&mut self) {
        self.queue.lock().is_closed = true;
        // Dropped without the lock.
        drop(self.queue.take(Vec::new()));
    }
}

pub(crate) type QueuedItem = (Rank, Channel, DirectItem);

#[derive(Default)]
struct Queue {
    items: Vec<QueuedItem>,
    /// The items that are gaps, and the last of their streams. A sender has credit for bytes only.
    gaps: BTreeMap<(Rank, Channel), usize>,
    /// The tool sleeps until its bell rings.
    is_asleep: bool,
    /// The tool is gone.
    is_closed: bool,
}

impl Queue {
    /// Adds an item. A gap that follows one of its stream becomes part of it.
    fn push(&mut self, (rank, channel, item): QueuedItem) {
        let index = self.items.len();
        if let DirectItem::Gap(more) = item {
            let last = *self.gaps.entry((rank, channel)).or_insert(index);
            if let Some((_, _, DirectItem::Gap(lost))) = self.items.get_mut(last) {
                *lost = lost.saturating_add(more);
                return;
            }
        } else if !self.gaps.is_empty() {
            self.gaps.remove(&(rank, channel));
        }
        self.items.push((rank, channel, item));
    }
}

impl DirectQueue {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exchanges the items for an empty vector.
    pub(crate) fn take(&self, empty: Vec<QueuedItem>) -> Vec<QueuedItem> {
        let mut queue = self.lock();
        queue.gaps.clear();
        mem::replace(&mut queue.items, empty)
    }

    /// Notes that the tool is about to sleep. Returns `false` if there are items.
    pub(crate) fn arm(&self) -> bool {
        let mut queue = self.lock();
        queue.is_asleep = queue.items.is_empty();
        queue.is_asleep
    }
}

impl DirectInput {
    /// Returns the input of a tool for the streams of `pull`, which names one job.
    pub(crate) fn new(
        queue: Arc<DirectQueue>,
        pull: &Pull,
        (ringer, stepper): (Ringer, Stepper),
    ) -> DirectInput {
        let ranks: BTreeSet<Rank> = pull.procs.iter().map(|proc| proc.rank).collect();
        let ranks = (!ranks.contains(&Rank::WILDCARD)).then(|| Arc::new(ranks));
        DirectInput { queue, channels: pull.channels, ranks, ringer: Arc::new(ringer), stepper }
    }

    /// Adds an item of a stream, if the tool has pulled it. [`DirectInput::flush`] lets the tool have
    /// it.
    pub fn push(&self, rank: Rank, channel: Channel, item: &DirectItem) {
        let is_pulled = self.channels.contains(channel.into())
            && self.ranks.as_ref().is_none_or(|ranks| ranks.contains(&rank));
        if is_pulled {
            let mut queue = self.queue.lock();
            if !queue.is_closed {
                queue.push((rank, channel, item.clone()));
            }
        }
    }

    /// Wakes the tool if it has something to read, or performs its step.
    pub fn flush(&self) {
        let is_awaited = |queue: &Queue| queue.is_asleep && !queue.items.is_empty();
        if is_awaited(&self.queue.lock()) && !self.stepper.step() {
            self.queue.lock().is_asleep = false;
            self.ringer.ring();
        }
    }
}

impl fmt::Debug for DirectInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectInput").field("channels", &self.channels).finish_non_exhaustive()
    }
}

impl fmt::Debug for DirectItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirectItem::Bytes { bytes, time } => {
                write!(f, "Bytes({} bytes, {time})", (**bytes).as_ref().len())
            }
            DirectItem::Gap(lost) => write!(f, "Gap({lost})"),
            DirectItem::End => f.write_str("End"),
            DirectItem::Broken(missing) => write!(f, "Broken({missing})"),
        }
    }
}

/// A reader of one stream, with the methods of [`Reader`](iof_shm_ring::Reader).
#[derive(Default)]
pub(crate) struct DirectReader {
    items: VecDeque<DirectItem>,
    /// The number of bytes of the first item that were consumed.
    taken: usize,
    delivered: u64,
    lost: u64,
    is_gone: bool,
}

impl DirectReader {
    pub(crate) fn push(&mut self, item: DirectItem) {
        match (self.items.back_mut(), &item) {
            (Some(DirectItem::Gap(lost)), DirectItem::Gap(more)) => *lost = lost.saturating_add(*more),
            _ => self.items.push_back(item),
        }
    }

    pub(crate) fn peek(&mut self) -> Peek {
        match self.items.front() {
            Some(DirectItem::Bytes { .. }) => Peek::Bytes,
            Some(DirectItem::Gap(lost)) => {
                let gap = Gap { offset: self.produced(), lost: *lost };
                self.lost = self.lost.saturating_add(gap.lost);
                self.items.pop_front();
                Peek::Gap(gap)
            }
            Some(DirectItem::End) => Peek::Ended,
            Some(DirectItem::Broken(missing)) => Peek::Broken { missing: *missing },
            None if self.is_gone => Peek::Gone,
            None => Peek::Empty,
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self.items.front() {
            Some(DirectItem::Bytes { bytes, .. }) => (**bytes).as_ref().get(self.taken..).unwrap_or_default(),
            _ => &[],
        }
    }

    pub(crate) fn consume(&mut self, n: usize) {
        let found = self.bytes().len();
        let count = n.min(found);
        self.delivered = self.delivered.saturating_add(count as u64);
        self.taken = self.taken.saturating_add(count);
        if count == found && found > 0 {
            self.items.pop_front();
            self.taken = 0;
        }
    }

    pub(crate) fn behind(&self) -> Behind {
        match self.items.get(1) {
            Some(DirectItem::Gap(_)) => Behind::Gap,
            Some(DirectItem::End | DirectItem::Broken(_)) => Behind::Nothing,
            Some(DirectItem::Bytes { .. }) | None => Behind::Bytes,
        }
    }

    pub(crate) fn has_only_bytes(&self) -> bool {
        matches!(self.items.front(), Some(DirectItem::Bytes { .. })) && self.items.len() == 1
    }

    pub(crate) fn time(&self) -> Option<u64> {
        match self.items.front() {
            Some(DirectItem::Bytes { time, .. }) => (*time != 0).then_some(*time),
            _ => None,
        }
    }

    pub(crate) fn times(&self, times: &mut Vec<(u64, u64)>) {
        times.extend(self.time().map(|time| (self.produced(), time)));
    }

    /// Returns the newest read. The sender has waited for the ends of lines.
    pub(crate) fn last_read(&self) -> Option<LastRead> {
        let Some(DirectItem::Bytes { bytes, .. }) = self.items.back() else { return None };
        let len = (**bytes).as_ref().len() as u64;
        Some(LastRead { len, interaction: Interaction::Unbuffered, is_answer: false })
    }

    pub(crate) fn position(&self) -> u64 {
        self.delivered
    }

    pub(crate) fn newest(&self) -> Option<u64> {
        let len = |item: &DirectItem| match item {
            DirectItem::Bytes { bytes, .. } => (**bytes).as_ref().len() as u64,
            _ => 0,
        };
        let held = self.items.iter().map(len).fold(0, u64::saturating_add);
        Some(self.delivered.saturating_add(held).saturating_sub(self.taken as u64))
    }

    pub(crate) fn produced(&self) -> u64 {
        self.delivered.saturating_add(self.lost)
    }

    pub(crate) fn delivered(&self) -> u64 {
        self.delivered
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    pub(crate) fn set_writer_gone(&mut self) {
        self.is_gone = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_of_streams_in_turn_take_no_more_memory_than_one_of_each() {
        let mut queue = Queue::default();
        let bytes = || DirectItem::Bytes { bytes: Arc::new(vec![1u8]), time: 0 };
        for _ in 0..3 {
            queue.push((Rank(1), Channel::Stdout, DirectItem::Gap(5)));
            queue.push((Rank(2), Channel::Stdout, DirectItem::Gap(7)));
        }
        queue.push((Rank(1), Channel::Stdout, bytes()));
        queue.push((Rank(1), Channel::Stdout, DirectItem::Gap(2)));
        let shown: Vec<String> =
            queue.items.iter().map(|(rank, _, item)| format!("{}: {item:?}", rank.0)).collect();
        assert_eq!(shown, ["1: Gap(15)", "2: Gap(21)", "1: Bytes(1 bytes, 0)", "1: Gap(2)"]);
        let mut reader = DirectReader::default();
        (0..3).for_each(|_| reader.push(DirectItem::Gap(4)));
        assert!(matches!(reader.peek(), Peek::Gap(Gap { offset: 0, lost: 12 })));
        assert!(matches!(reader.peek(), Peek::Empty));
    }
}
