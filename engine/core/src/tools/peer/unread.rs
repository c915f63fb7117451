//! The accounting of what a tool has not read of forgotten jobs. `shed` drops what is too much.
//!
//! A forgotten job has no streams any more, but its rings live on for the tools that were attached
//! to it. Each ring costs a file and several maps until it is sent, and memory as long as the tool
//! has it mapped. So the rings are counted for each tool. Beyond the limit, the older half of the
//! unsent ones is dropped for that tool and added up in [`Missed`]. A tool that has too many rings
//! mapped is not attached to new streams. The embedder's own gating readers lose nothing.

use std::collections::BTreeMap;

use iof_proto::{Channel, Missed, Nspace, Rank, ToTool, encode};
use iof_shm_ring::ReaderId;

use crate::count::Count;
use crate::streams::reading::Reading;

/// A queued message, as far as it can be dropped or added up.
#[allow(missing_docs, reason = "the variants describe their fields")]
pub enum QueuedItem {
    /// The first ring of a stream: the first slot of its reader, and the key under which it is added
    /// up if it is dropped.
    Ring(ReaderId, UnreadKey),
    /// [`ToTool::Ranks`] of a run.
    Ranks { handler: u32, nspace: Nspace, run: u64 },
    /// [`ToTool::JobEnded`].
    End { handler: u32, nspace: Nspace, run: u64, exit_code: Option<i32>, skipped: u64 },
    /// [`ToTool::Missed`]. It is encoded when it is sent, with the sums of that time.
    Missed(UnreadKey),
    /// Any other message, which is never dropped.
    Other,
}

/// The key under which missing streams are added up: a registration, a job's name and a channel.
pub(crate) type UnreadKey = (u32, Nspace, Channel);

/// The counters of what one tool has not read of forgotten jobs.
#[derive(Default)]
pub struct Unread {
    /// Streams of forgotten jobs that the tool reads, or will read.
    forgotten: usize,
    /// Those of `forgotten` whose ring waits to be sent.
    unsent: usize,
    /// Ends of jobs that wait to be sent.
    ends: usize,
    /// The streams that the tool misses and that are not reported to it yet.
    missed: BTreeMap<UnreadKey, Missed>,
}

impl QueuedItem {
    /// Returns how `message` is counted.
    pub(crate) fn of(message: &ToTool) -> QueuedItem {
        match message {
            ToTool::Ring { handler, source, channel, slot, follows: None, .. } => {
                QueuedItem::Ring((*slot).into(), (*handler, source.nspace.clone(), *channel))
            }
            ToTool::Ranks { handler, run, ranks } => ranks.first().map_or(QueuedItem::Other, |first| {
                QueuedItem::Ranks { handler: *handler, nspace: first.proc.nspace.clone(), run: *run }
            }),
            ToTool::JobEnded { handler, nspace, run, exit_code, skipped } => {
                let (nspace, exit_code) = (nspace.clone(), *exit_code);
                QueuedItem::End { handler: *handler, nspace, run: *run, exit_code, skipped: *skipped }
            }
            _ => QueuedItem::Other,
        }
    }
}

impl Unread {
    /// Notes that `item` was queued.
    pub(crate) fn queued(&mut self, item: &QueuedItem) {
        self.ends.raise(usize::from(matches!(item, QueuedItem::End { .. })));
    }

    /// Notes that `item` was sent, or dropped because the tool receives nothing any more.
    pub(crate) fn sent(&mut self, item: &QueuedItem) {
        self.ends.lower(usize::from(matches!(item, QueuedItem::End { .. })));
    }

    /// Notes that the end of a job is merged into a later one and not sent.
    pub(crate) fn end_merged(&mut self) {
        self.ends.lower(1);
    }

    /// Notes that the job of the stream that `reading` reads was removed.
    pub(crate) fn reading_forgotten(&mut self, reading: &Reading) {
        self.forgotten.raise(1);
        self.unsent.raise(usize::from(!reading.is_sent()));
    }

    /// Notes that `reading` has ended.
    pub(crate) fn reading_ended(&mut self, reading: &Reading) {
        self.ring_sent(reading);
        self.forgotten.lower(usize::from(reading.forgotten().is_some()));
    }

    /// Notes that the ring of `reading` does not wait to be sent any more.
    pub(crate) fn ring_sent(&mut self, reading: &Reading) {
        if reading.forgotten().is_some() && !reading.is_sent() {
            self.unsent.lower(1);
        }
    }

    /// Notes that another ring of `reading` is about to be queued.
    pub(crate) fn ring_unsent(&mut self, reading: &Reading) {
        if reading.forgotten().is_some() && reading.is_sent() {
            self.unsent.raise(1);
        }
    }

    /// Returns the number of streams of removed jobs that the tool reads, or will read.
    pub fn forgotten(&self) -> usize {
        self.forgotten
    }

    /// Returns the number of those whose ring waits to be sent.
    pub fn unsent(&self) -> usize {
        self.unsent
    }

    /// Returns the number of ends of jobs that wait to be sent.
    pub fn ends(&self) -> usize {
        self.ends
    }

    /// Returns the number of sums that are not reported to the tool yet.
    pub fn sums(&self) -> usize {
        self.missed.len()
    }

    /// Notes that nothing is reported to the tool any more.
    pub(crate) fn clear_missed(&mut self) {
        self.missed.clear();
    }

    /// Adds up a stream of `rank` that is not sent to the tool, and notes its `end`. Returns whether it is the
    /// first of its key.
    pub(crate) fn add(&mut self, key: &UnreadKey, rank: Rank, bytes: u64, end: Option<u64>) -> bool {
        let (nspace, channel, ended, offset) = (key.1.clone(), key.2, Vec::new(), None);
        let new = || Missed { nspace, rank, channel, streams: 0, bytes: 0, ended, offset };
        let missed = self.missed.entry(key.clone()).or_insert_with(new);
        let is_first = missed.streams == 0;
        missed.rank = if missed.rank == rank { rank } else { Rank::WILDCARD };
        missed.streams.raise(1);
        missed.ended.extend(end.map(|end| (rank, end)));
        missed.bytes = missed.bytes.saturating_add(bytes);
        is_first
    }

    /// Returns the number of ends that wait to be told.
    pub(crate) fn untold(&self) -> usize {
        self.missed.values().map(|missed| missed.ended.len()).sum()
    }

    /// Encodes the message that reports what is missing under `key` by now, and clears that sum.
    pub(crate) fn encode_missed(&mut self, key: &UnreadKey) -> Option<Vec<u8>> {
        let missed = self.missed.remove(key)?;
        encode(&ToTool::Missed { handler: key.0, missed }).ok()
    }
}
