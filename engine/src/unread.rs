//! What a tool has not read of forgotten jobs, and what the engine drops when that is too much.
//!
//! A forgotten job has no streams any more, but its rings live on for the tools that were attached
//! to it. Each ring costs a file and several maps until it is sent, and memory as long as the tool
//! has it mapped. So the rings are counted for each tool. Beyond the limit, the older half of the
//! unsent ones is dropped for that tool and added up in [`Missed`]. A tool that has too many rings
//! mapped is not attached to new streams. The embedder's own gating readers lose nothing.

use std::collections::BTreeMap;
use std::mem;

use iof_capture::SourceId;
use iof_proto::limits::{MAX_FORGOTTEN, MAX_FORGOTTEN_PER_TOOL};
use iof_proto::{Channel, Missed, Nspace, ToTool, encode};
use iof_shm_ring::ReaderId;

use crate::outgoing::Outgoing;
use crate::peer::{Peer, Reading};
use crate::state::{State, StreamName};

/// A queued message, as far as it can be dropped or added up.
pub(crate) enum QueuedItem {
    /// The first ring of a stream: its reader, and the key under which it is added up if it is
    /// dropped.
    Ring(ReaderId, UnreadKey),
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
pub(crate) struct Unread {
    /// Streams of forgotten jobs that the tool reads, or will read.
    forgotten: usize,
    /// Those of `forgotten` whose ring waits to be sent.
    unsent: usize,
    /// Ends of jobs that wait to be sent.
    ends: usize,
    /// The numbers of streams and bytes that the tool misses and that are not reported to it yet.
    missed: BTreeMap<UnreadKey, (u64, u64)>,
}

impl QueuedItem {
    /// Returns how `message` is counted.
    pub(crate) fn of(message: &ToTool) -> QueuedItem {
        match message {
            ToTool::Ring { handler, source, channel, slot, follows: None, .. } => {
                QueuedItem::Ring((*slot).into(), (*handler, source.nspace.clone(), *channel))
            }
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
        self.ends = self.ends.saturating_add(usize::from(matches!(item, QueuedItem::End { .. })));
    }

    /// Notes that `item` was sent.
    pub(crate) fn sent(&mut self, item: &QueuedItem) {
        self.ends = self.ends.saturating_sub(usize::from(matches!(item, QueuedItem::End { .. })));
    }

    /// Notes that the ring of `reading` is sent.
    pub(crate) fn ring_sent(&mut self, reading: &Reading) {
        if reading.unread.is_some() && !reading.sent {
            self.unsent = self.unsent.saturating_sub(1);
        }
    }

    /// Notes that the queue was dropped: the tool receives nothing more.
    pub(crate) fn clear_unsent(&mut self) {
        self.ends = 0;
        self.missed.clear();
    }

    /// Adds up a stream that is not sent to the tool. Returns whether it is the first of its key.
    fn add(&mut self, key: &UnreadKey, bytes: u64) -> bool {
        let is_first = !self.missed.contains_key(key);
        let (streams, lost) = self.missed.entry(key.clone()).or_default();
        *streams = streams.saturating_add(1);
        *lost = lost.saturating_add(bytes);
        is_first
    }

    /// Encodes the message that reports what is missing under `key` by now, and clears that sum.
    pub(crate) fn encode_missed(&mut self, key: &UnreadKey) -> Option<Vec<u8>> {
        let (streams, bytes) = self.missed.remove(key)?;
        let (handler, nspace, channel) = key.clone();
        encode(&ToTool::Missed { handler, missed: Missed { nspace, channel, streams, bytes } }).ok()
    }
}

impl Peer {
    /// Returns whether the tool loses what it does not read in time.
    fn may_lose(&self) -> bool {
        !(self.own && self.may_block)
    }

    /// Returns whether the tool reads too many streams of forgotten jobs to be attached to others.
    pub(crate) fn is_behind(&self) -> bool {
        self.may_lose() && self.unread.forgotten >= MAX_FORGOTTEN_PER_TOOL
    }

    /// Notes that a complete stream with `produced` bytes, which the tool reads for `handler`, was
    /// forgotten.
    fn forget(&mut self, source: SourceId, handler: u32, produced: u64) {
        let Some(id) = self.reader_ids.get(&(source, handler)) else { return };
        if let Some(reading) = self.readings.get_mut(id)
            && reading.unread.replace(produced.saturating_sub(reading.begin)).is_none()
        {
            self.unread.forgotten = self.unread.forgotten.saturating_add(1);
            self.unread.unsent = self.unread.unsent.saturating_add(usize::from(!reading.sent));
        }
    }

    /// Adds up a stream that is not sent to the tool, and queues the report if it is the first.
    pub(crate) fn add_missed(&mut self, handler: u32, name: &StreamName, bytes: u64) {
        let key = (handler, name.source.nspace.clone(), name.channel);
        if self.registrations.contains_key(&handler) && self.unread.add(&key, bytes) {
            self.outgoing.push_back(Outgoing::missed(key));
        }
    }

    /// Drops the oldest `rings` unsent rings of forgotten streams, and merges the oldest `ends`
    /// ends of jobs into later ones.
    fn shed(&mut self, mut rings: usize, mut ends: usize) {
        // An end can be merged into a later one of the same registration and job name.
        let mut later: BTreeMap<(u32, Nspace), usize> = BTreeMap::new();
        for out in self.outgoing.iter().filter(|out| out.sent == 0) {
            if let QueuedItem::End { handler, nspace, .. } = &out.item {
                let count = later.entry((*handler, nspace.clone())).or_default();
                *count = count.saturating_add(1);
            }
        }
        let (mut merged, mut missed) = (BTreeMap::<(u32, Nspace), u64>::new(), Vec::new());
        let queue = mem::take(&mut self.outgoing);
        for mut out in queue {
            match &mut out.item {
                _ if out.sent > 0 => {}
                QueuedItem::Ring(reader, key) if rings > 0 => {
                    if let Some(bytes) = self.drop_unread(*reader) {
                        rings = rings.saturating_sub(1);
                        if self.unread.add(key, bytes) {
                            missed.push(key.clone());
                        }
                        continue;
                    }
                }
                QueuedItem::End { handler, nspace, run, exit_code, skipped } => {
                    let key = (*handler, nspace.clone());
                    let left = later.entry(key.clone()).or_default();
                    *left = left.saturating_sub(1);
                    if ends > 0 && *left > 0 {
                        ends = ends.saturating_sub(1);
                        self.unread.ends = self.unread.ends.saturating_sub(1);
                        let sum = merged.entry(key).or_default();
                        *sum = sum.saturating_add(*skipped).saturating_add(1);
                        continue;
                    }
                    if let Some(more) = merged.remove(&key) {
                        *skipped = skipped.saturating_add(more);
                        let (handler, nspace, run) = (*handler, nspace.clone(), *run);
                        let (exit_code, skipped) = (*exit_code, *skipped);
                        let message = ToTool::JobEnded { handler, nspace, run, exit_code, skipped };
                        // The new frame is at most a few bytes longer than the old one.
                        out.frame = encode(&message).unwrap_or(out.frame);
                    }
                }
                QueuedItem::Ring(..) | QueuedItem::Missed(_) | QueuedItem::Other => {}
            }
            self.outgoing.push_back(out);
        }
        // At the front of the queue, but not within a message that is partly sent.
        let index = usize::from(self.outgoing.front().is_some_and(|out| out.sent > 0));
        for key in missed {
            self.outgoing.insert(index, Outgoing::missed(key));
        }
    }

    /// Removes the reader `id`, whose ring was not sent, if its stream was forgotten. Returns
    /// the number of bytes that it misses.
    fn drop_unread(&mut self, id: ReaderId) -> Option<u64> {
        let bytes = self.readings.get(&id)?.unread?;
        self.readings.remove(&id).inspect(|reading| self.remove_reading(reading));
        self.page.return_slot(id);
        Some(bytes)
    }

    /// Updates the counters for a reader that was removed.
    pub(crate) fn remove_reading(&mut self, reading: &Reading) {
        self.reader_ids.remove(&(reading.source, reading.handler));
        self.unread.ring_sent(reading);
        let forgotten = usize::from(reading.unread.is_some());
        self.unread.forgotten = self.unread.forgotten.saturating_sub(forgotten);
    }
}

impl State {
    /// Forgets the complete stream `source`, and notes that at the tools that read it.
    pub(crate) fn forget_stream(&mut self, source: SourceId) {
        let Some(stream) = self.streams.remove(&source) else { return };
        for (peer_id, handler) in stream.readers() {
            if let Some(peer) = self.peers.get_mut(&peer_id) {
                peer.forget(source, handler, stream.produced);
            }
        }
    }

    /// Drops what exceeds the limits on unread data of forgotten jobs, of each tool and of all
    /// tools together.
    pub(crate) fn shed_unread(&mut self) {
        let mut unsent = 0usize;
        for peer in self.peers.values_mut().filter(|peer| peer.may_lose()) {
            let Unread { forgotten, ends, .. } = peer.unread;
            if forgotten.max(ends) > MAX_FORGOTTEN_PER_TOOL {
                let target = MAX_FORGOTTEN_PER_TOOL / 2;
                peer.shed(forgotten.saturating_sub(target), ends.saturating_sub(target));
            }
            unsent = unsent.saturating_add(peer.unread.unsent);
        }
        while unsent > MAX_FORGOTTEN {
            let peers = self.peers.values_mut().filter(|peer| peer.may_lose());
            let Some(peer) = peers.max_by_key(|peer| peer.unread.unsent) else { return };
            let before = peer.unread.unsent;
            peer.shed(before.div_ceil(2), 0);
            let shed = before.saturating_sub(peer.unread.unsent);
            if shed == 0 {
                return;
            }
            unsent = unsent.saturating_sub(shed);
        }
    }
}
