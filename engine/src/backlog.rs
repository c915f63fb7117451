//! What a tool has not read of jobs that were forgotten, and what becomes of it when that is too
//! much.
//!
//! A forgotten job has no streams, but its rings live on for the tools that were attached to it:
//! each is a file and several maps as long as it waits to be sent, and memory as long as the tool
//! has it mapped. So they are counted for each tool. Beyond the limit the older half of what waits
//! is dropped for that tool and added up in [`Missed`]; a tool that has too many mapped is not
//! attached to new streams. The embedder's own readers that sources wait for lose nothing.

use std::collections::BTreeMap;
use std::mem;

use iof_capture::SourceId;
use iof_proto::limits::{MAX_FORGOTTEN, MAX_FORGOTTEN_PER_TOOL};
use iof_proto::{Channel, Missed, Nspace, ToTool, encode};

use crate::peer::{Outgoing, Peer, Reading};
use crate::state::{State, StreamName};

/// What of a queue can be dropped or added up.
pub(crate) enum Item {
    /// The first ring of a stream, at this slot, and what it is added to if it is dropped.
    Ring(u32, Key),
    /// [`ToTool::JobEnded`].
    End { handler: u32, nspace: Nspace, run: u64, exit_code: Option<i32>, skipped: u64 },
    /// [`ToTool::Missed`]: encoded when it is sent, of what is missing by then.
    Missed(Key),
    /// None of it.
    Other,
}

/// What is added up together: a registration, a job's name and a channel.
pub(crate) type Key = (u32, Nspace, Channel);

/// What waits for a tool, as far as it is counted here.
#[derive(Default)]
pub(crate) struct Backlog {
    /// Streams of forgotten jobs that the tool reads, or is going to.
    forgotten: usize,
    /// Those of them whose ring waits to be sent.
    unsent: usize,
    /// Ends of jobs that wait to be sent.
    ends: usize,
    /// Streams and bytes that are missing, of which the tool is to be told.
    missed: BTreeMap<Key, (u64, u64)>,
}

impl Item {
    /// What `message` is.
    pub(crate) fn of(message: &ToTool) -> Item {
        match message {
            ToTool::Ring { handler, source, channel, slot, follows: None, .. } => {
                Item::Ring(*slot, (*handler, source.nspace.clone(), *channel))
            }
            ToTool::JobEnded { handler, nspace, run, exit_code, skipped } => {
                let (nspace, exit_code) = (nspace.clone(), *exit_code);
                Item::End { handler: *handler, nspace, run: *run, exit_code, skipped: *skipped }
            }
            _ => Item::Other,
        }
    }
}

impl Backlog {
    pub(crate) fn queued(&mut self, item: &Item) {
        self.ends = self.ends.saturating_add(usize::from(matches!(item, Item::End { .. })));
    }

    pub(crate) fn sent(&mut self, item: &Item) {
        self.ends = self.ends.saturating_sub(usize::from(matches!(item, Item::End { .. })));
    }

    /// Notes that the ring of `reading` is sent.
    pub(crate) fn ring_sent(&mut self, reading: &Reading) {
        if reading.unread.is_some() && !reading.sent {
            self.unsent = self.unsent.saturating_sub(1);
        }
    }

    /// Notes that the tool hears no more.
    pub(crate) fn nothing_is_sent(&mut self) {
        self.ends = 0;
        self.missed.clear();
    }

    /// Adds up a stream that the tool is not sent; whether it is the first of its key.
    fn add(&mut self, key: &Key, bytes: u64) -> bool {
        let is_first = !self.missed.contains_key(key);
        let (streams, lost) = self.missed.entry(key.clone()).or_default();
        *streams = streams.saturating_add(1);
        *lost = lost.saturating_add(bytes);
        is_first
    }

    /// The message that says what is missing by now.
    pub(crate) fn tell(&mut self, key: &Key) -> Option<Vec<u8>> {
        let (streams, bytes) = self.missed.remove(key)?;
        let (handler, nspace, channel) = key.clone();
        encode(&ToTool::Missed { handler, missed: Missed { nspace, channel, streams, bytes } }).ok()
    }
}

impl Peer {
    /// Whether it loses what it does not read in time.
    fn may_lose(&self) -> bool {
        !(self.own && self.may_block)
    }

    /// Whether it reads so many streams of forgotten jobs that it is attached to no others.
    pub(crate) fn is_behind(&self) -> bool {
        self.may_lose() && self.backlog.forgotten >= MAX_FORGOTTEN_PER_TOOL
    }

    /// Notes that a complete stream with `produced` bytes that it reads for `handler` was
    /// forgotten.
    fn forget(&mut self, source: SourceId, handler: u32, produced: u64) {
        let Some(slot) = self.slots.get(&(source, handler)) else { return };
        if let Some(reading) = self.readings.get_mut(slot)
            && reading.unread.replace(produced.saturating_sub(reading.begin)).is_none()
        {
            self.backlog.forgotten = self.backlog.forgotten.saturating_add(1);
            self.backlog.unsent = self.backlog.unsent.saturating_add(usize::from(!reading.sent));
        }
    }

    /// Tells it that it is not sent a stream.
    pub(crate) fn misses(&mut self, handler: u32, name: &StreamName, bytes: u64) {
        let key = (handler, name.source.nspace.clone(), name.channel);
        if self.registrations.contains_key(&handler) && self.backlog.add(&key, bytes) {
            self.outgoing.push_back(Outgoing::missed(key));
        }
    }

    /// Drops the oldest `rings` rings of forgotten streams that wait to be sent, and adds the
    /// oldest `ends` ends to later ones.
    fn shed(&mut self, mut rings: usize, mut ends: usize) {
        // An end is added to a later one of the same name.
        let mut later: BTreeMap<(u32, Nspace), usize> = BTreeMap::new();
        for out in self.outgoing.iter().filter(|out| out.sent == 0) {
            if let Item::End { handler, nspace, .. } = &out.item {
                let count = later.entry((*handler, nspace.clone())).or_default();
                *count = count.saturating_add(1);
            }
        }
        let (mut skipped, mut missed) = (BTreeMap::<(u32, Nspace), u64>::new(), Vec::new());
        let queue = mem::take(&mut self.outgoing);
        for mut out in queue {
            match &mut out.item {
                _ if out.sent > 0 => {}
                Item::Ring(slot, key) if rings > 0 => {
                    if let Some(bytes) = self.drop_unread(*slot) {
                        rings = rings.saturating_sub(1);
                        if self.backlog.add(key, bytes) {
                            missed.push(key.clone());
                        }
                        continue;
                    }
                }
                Item::End { handler, nspace, run, exit_code, skipped: before } => {
                    let key = (*handler, nspace.clone());
                    let left = later.entry(key.clone()).or_default();
                    *left = left.saturating_sub(1);
                    if ends > 0 && *left > 0 {
                        ends = ends.saturating_sub(1);
                        self.backlog.ends = self.backlog.ends.saturating_sub(1);
                        let sum = skipped.entry(key).or_default();
                        *sum = sum.saturating_add(*before).saturating_add(1);
                        continue;
                    }
                    if let Some(more) = skipped.remove(&key) {
                        *before = before.saturating_add(more);
                        let (handler, nspace, run) = (*handler, nspace.clone(), *run);
                        let (exit_code, skipped) = (*exit_code, *before);
                        let told = ToTool::JobEnded { handler, nspace, run, exit_code, skipped };
                        // It has the length of the one before, or a few bytes more.
                        out.frame = encode(&told).unwrap_or(out.frame);
                    }
                }
                Item::Ring(..) | Item::Missed(_) | Item::Other => {}
            }
            self.outgoing.push_back(out);
        }
        // Before what comes later, but not within a message.
        let at = usize::from(self.outgoing.front().is_some_and(|out| out.sent > 0));
        for key in missed {
            self.outgoing.insert(at, Outgoing::missed(key));
        }
    }

    /// Removes the reader at `slot`, whose ring was not sent, if its stream was forgotten; returns
    /// the bytes that it misses.
    fn drop_unread(&mut self, slot: u32) -> Option<u64> {
        let bytes = self.readings.get(&slot)?.unread?;
        self.readings.remove(&slot).inspect(|reading| self.left(reading));
        self.page.return_slot(slot);
        Some(bytes)
    }

    /// Notes that a reader has gone.
    pub(crate) fn left(&mut self, reading: &Reading) {
        self.slots.remove(&(reading.source, reading.handler));
        self.backlog.ring_sent(reading);
        let forgotten = usize::from(reading.unread.is_some());
        self.backlog.forgotten = self.backlog.forgotten.saturating_sub(forgotten);
    }
}

impl State {
    /// Notes that the complete stream `source` is forgotten, for those who read it.
    pub(crate) fn forget_stream(&mut self, source: SourceId) {
        let Some(stream) = self.streams.remove(&source) else { return };
        for (peer_id, handler) in stream.readers() {
            if let Some(peer) = self.peers.get_mut(&peer_id) {
                peer.forget(source, handler, stream.produced);
            }
        }
    }

    /// Drops what is too much of what tools have not read of forgotten jobs.
    pub(crate) fn shed(&mut self) {
        let mut unsent = 0usize;
        for peer in self.peers.values_mut().filter(|peer| peer.may_lose()) {
            let Backlog { forgotten, ends, .. } = peer.backlog;
            if forgotten.max(ends) > MAX_FORGOTTEN_PER_TOOL {
                let most = MAX_FORGOTTEN_PER_TOOL / 2;
                peer.shed(forgotten.saturating_sub(most), ends.saturating_sub(most));
            }
            unsent = unsent.saturating_add(peer.backlog.unsent);
        }
        while unsent > MAX_FORGOTTEN {
            let peers = self.peers.values_mut().filter(|peer| peer.may_lose());
            let Some(peer) = peers.max_by_key(|peer| peer.backlog.unsent) else { return };
            let before = peer.backlog.unsent;
            peer.shed(before.div_ceil(2), 0);
            let shed = before.saturating_sub(peer.backlog.unsent);
            if shed == 0 {
                return;
            }
            unsent = unsent.saturating_sub(shed);
        }
    }
}
