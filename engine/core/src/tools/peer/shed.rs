//! The data of forgotten jobs that one tool has not read, and the part of it that is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use iof_capture::SourceId;
use iof_proto::{Nspace, Rank, ToTool};
use iof_shm_ring::ReaderId;

use super::Peer;
use crate::count::Count;
use crate::ids::StreamName;
use crate::streams::completion::Completion;
use crate::streams::reading::Reading;
use crate::tools::grant::Grant;
use crate::tools::outgoing::Outgoing;
use crate::tools::peer::unread::{QueuedItem, Unread, UnreadKey};

impl Peer {
    /// Returns the counters of what the tool has not read of forgotten jobs.
    pub fn unread(&self) -> &Unread {
        &self.unread
    }

    /// Returns whether the tool loses what it does not read in time.
    pub fn may_lose(&self) -> bool {
        !(self.client.own && self.grant == Grant::Block)
    }

    /// Returns whether the tool reads too many streams of forgotten jobs to be attached to others.
    pub fn is_behind(&self) -> bool {
        self.may_lose() && self.unread.forgotten() >= self.limits.forgotten_per_tool
    }

    /// Notes that a stream that has come to `completion`, which the tool reads for `handler`, was
    /// forgotten. The reader ends if the tool receives nothing any more.
    pub(crate) fn forget(&mut self, source: SourceId, handler: u32, completion: Completion) {
        let Some(id) = self.reader_ids.get(&(source, handler)).copied() else { absent!("reader", return) };
        let Some(reading) = self.readings.get_mut(&id) else { absent!("reading", return) };
        if reading.forget(completion) {
            self.unread.reading_forgotten(reading);
        }
        if !self.receives
            && let Some(reading) = self.readings.remove(&id)
        {
            self.release_reading(id, &reading);
        }
    }

    /// Ends the readers of forgotten streams, because the tool receives nothing any more. It can
    /// still read the rings that it has.
    pub(super) fn end_forgotten(&mut self) {
        let is_forgotten = |_: &ReaderId, reading: &mut Reading| reading.forgotten().is_some();
        let ended: Vec<(ReaderId, Reading)> = self.readings.extract_if(.., is_forgotten).collect();
        ended.iter().for_each(|(id, reading)| self.release_reading(*id, reading));
    }

    /// Adds up a stream that is not sent to the tool, and queues the report if it is the first. The tool may be
    /// told its `end`.
    pub(crate) fn add_missed(&mut self, handler: u32, name: &StreamName, bytes: u64, end: Option<u64>) {
        let key = (handler, name.source.nspace.clone(), name.channel);
        if self.registrations.contains_key(&handler) && self.unread.add(&key, name.source.rank, bytes, end) {
            self.queue(Outgoing::missed(key));
        }
    }

    /// Returns the readers of forgotten streams by the slots for which their rings wait to be sent.
    /// A reader that was moved to another slot has two.
    fn forgotten_slots(&self) -> BTreeMap<ReaderId, ReaderId> {
        let forgotten = self.readings.iter().filter(|(_, reading)| reading.forgotten().is_some());
        forgotten.flat_map(|(id, reading)| reading.unsent_ids(*id).map(|slot| (slot, *id))).collect()
    }

    /// Returns the number of forgotten streams that can be dropped: those whose first ring was not
    /// sent. A tool that has received a ring waits for the next one.
    pub(crate) fn droppable(&self) -> usize {
        let slots = self.forgotten_slots();
        let is_droppable = |out: &&Outgoing| match out.item() {
            QueuedItem::Ring(slot, _) => !out.is_begun() && slots.contains_key(slot),
            QueuedItem::Ranks { .. } | QueuedItem::End { .. } | QueuedItem::Missed(_) | QueuedItem::Other => {
                false
            }
        };
        self.outgoing.iter().filter(is_droppable).count()
    }

    /// Drops the oldest `rings` forgotten streams whose first ring was not sent, with all of their
    /// rings, and merges the oldest `ends` ends of jobs into later ones. What is reported of the ranks of these
    /// jobs is dropped.
    pub(crate) fn shed(&mut self, mut rings: usize, mut ends: usize) {
        // An end can be merged into a later one of the same registration and job name.
        let mut later: BTreeMap<(u32, Nspace), usize> = BTreeMap::new();
        for out in self.outgoing.iter().filter(|out| !out.is_begun()) {
            if let QueuedItem::End { handler, nspace, .. } = out.item() {
                let count = later.entry((*handler, nspace.clone())).or_default();
                count.raise(1);
            }
        }
        let mut merged: BTreeMap<(u32, Nspace), u64> = BTreeMap::new();
        let mut merged_runs: BTreeSet<(u32, Nspace, u64)> = BTreeSet::new();
        // A report stands where the first of its rings stood: after the answer to the pull, and
        // before the end of the job.
        let mut reported: BTreeSet<UnreadKey> = BTreeSet::new();
        let (slots, mut dropped) = (self.forgotten_slots(), BTreeSet::new());
        let queue = mem::take(&mut self.outgoing);
        for mut out in queue {
            match out.item() {
                _ if out.is_begun() => {}
                QueuedItem::Ring(slot, key) if rings > 0 => {
                    let missed = slots.get(slot).and_then(|id| self.drop_unread(*id, &mut dropped));
                    if let Some((rank, bytes)) = missed {
                        self.discarded.push(out.attachment());
                        rings.lower(1);
                        self.unread.add(key, rank, bytes, None);
                        if reported.insert(key.clone()) {
                            self.outgoing.push_back(Outgoing::missed(key.clone()));
                        }
                        continue;
                    }
                }
                QueuedItem::End { handler, nspace, run, exit_code, skipped } => {
                    let key = (*handler, nspace.clone());
                    let left = later.entry(key.clone()).or_default();
                    left.lower(1);
                    if ends > 0 && *left > 0 {
                        ends.lower(1);
                        self.unread.end_merged();
                        merged_runs.insert((*handler, nspace.clone(), *run));
                        let sum = merged.entry(key).or_default();
                        *sum = sum.saturating_add(*skipped).saturating_add(1);
                        continue;
                    }
                    if let Some(more) = merged.remove(&key) {
                        let (handler, nspace, run) = (*handler, nspace.clone(), *run);
                        let (exit_code, skipped) = (*exit_code, skipped.saturating_add(more));
                        let message = ToTool::JobEnded { handler, nspace, run, exit_code, skipped };
                        out.replace(&message);
                    }
                }
                QueuedItem::Missed(key) if out.frame().is_empty() && !reported.insert(key.clone()) => {
                    // A report before this one contains it.
                    continue;
                }
                QueuedItem::Ring(..)
                | QueuedItem::Ranks { .. }
                | QueuedItem::Missed(_)
                | QueuedItem::Other => {}
            }
            self.outgoing.push_back(out);
        }
        let is_dropped = |out: &Outgoing| match out.item() {
            QueuedItem::Ranks { handler, nspace, run } => {
                !out.is_begun() && merged_runs.contains(&(*handler, nspace.clone(), *run))
            }
            _ => false,
        };
        self.outgoing.retain(|out| !is_dropped(out));
        self.drop_rings(&dropped);
    }

    /// Removes the reader `id`, whose first ring was not sent, if its stream was forgotten. Adds the
    /// slots for which it has rings to `dropped`. Returns its rank and the number of bytes that it
    /// misses.
    fn drop_unread(&mut self, id: ReaderId, dropped: &mut BTreeSet<ReaderId>) -> Option<(Rank, u64)> {
        let reading = self.readings.get(&id)?;
        let bytes = reading.unread_bytes()?;
        let reading = self.readings.remove(&id)?;
        dropped.extend(reading.unsent_ids(id));
        self.release_reading(id, &reading);
        Some((reading.name.source.rank, bytes))
    }

    /// Updates the counters for a reader that was removed.
    pub(super) fn remove_reading(&mut self, reading: &Reading) {
        self.reader_ids.remove(&(reading.source, reading.handler));
        self.unread.reading_ended(reading);
    }
}
