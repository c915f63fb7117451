//! Checks of one tool's state, for simulators.

use std::collections::{BTreeMap, BTreeSet};

use iof_proto::{Decoder, FromTool, ToTool};
use iof_shm_ring::ReaderId;

use super::{Peer, is_request};
use crate::core::ids::StreamName;
use crate::core::limits::ReachedLimits;
use crate::core::outgoing::{Attachment, Outgoing};
use crate::core::registration::Registration;
use crate::core::unread::QueuedItem;

impl Peer {
    /// Panics if the state contradicts itself.
    pub(crate) fn check(&self) {
        self.check_queues();
        let counted = self.outgoing.len() + self.answers + self.unread.forgotten() + self.unread.ends();
        assert!(self.receives || counted == 0, "tool {} receives nothing", self.name);
        let (id, waiting) = (&self.name, self.waiting.values().map(|pull| &pull.registration));
        let weight: usize = self.registrations.values().chain(waiting).map(Registration::weight).sum();
        assert_eq!(weight, self.weight, "the weight of tool {id}");
        self.check_readings();
        let items =
            |matches: fn(&QueuedItem) -> bool| self.outgoing.iter().filter(|out| matches(out.item())).count();
        assert_eq!(
            items(|item| matches!(item, QueuedItem::End { .. })),
            self.unread.ends(),
            "ends for tool {id}"
        );
        // One that is encoded is about to be sent, and adds nothing up any more.
        let adds_up = |out: &&Outgoing| matches!(out.item(), QueuedItem::Missed(_)) && out.frame().is_empty();
        assert_eq!(self.outgoing.iter().filter(adds_up).count(), self.unread.sums());
    }

    /// Returns what the driver keeps for messages to the tool.
    pub(crate) fn attachments(&self) -> BTreeSet<Attachment> {
        let unsent = self.outgoing.iter().filter(|out| !out.is_begun()).map(Outgoing::attachment);
        let all = unsent.chain(self.discarded.iter().copied());
        all.filter(|attachment| *attachment != Attachment::None).collect()
    }

    fn check_readings(&self) {
        let (id, mut slots) = (&self.name, BTreeSet::new());
        let (mut forgotten, mut unsent) = (0, 0);
        let mut joining: BTreeMap<u32, usize> = BTreeMap::new();
        let queued: BTreeSet<ReaderId> = self.outgoing.iter().filter_map(Outgoing::ring_reader).collect();
        for (reader, reading) in self.readings() {
            let known = self.reader_of(reading.source, reading.handler);
            assert_eq!(known, Some(reader), "the id of a reader of tool {id}");
            let is_due = reading.joining().is_some() || queued.contains(&reader);
            assert!(reading.is_sent() || is_due, "a ring of tool {id} is neither sent nor queued");
            for slot in reading.slots(reader) {
                assert!(slots.insert(slot), "two readers of tool {id} have the slot {slot:?}");
            }
            forgotten += usize::from(reading.forgotten().is_some());
            unsent += usize::from(reading.forgotten().is_some() && !reading.is_sent());
            *joining.entry(reading.handler).or_default() += usize::from(reading.joining().is_some());
        }
        assert_eq!(self.reader_ids.len(), self.readings.len(), "readers of tool {id}");
        assert_eq!(
            (forgotten, unsent),
            (self.unread.forgotten(), self.unread.unsent()),
            "unread by tool {id}"
        );
        for (handler, registration) in &self.registrations {
            let joining = joining.remove(handler).unwrap_or(0);
            // A reader that was detached while it moved is still waited for.
            assert!(registration.joining() >= joining, "readers of registration {handler} of tool {id}");
        }
    }

    /// Panics if the counters of the queues are wrong.
    fn check_queues(&self) {
        let answers = self.outgoing.iter().filter(|out| out.is_answer());
        let bytes = answers.clone().map(|out| out.frame().len()).sum::<usize>();
        assert_eq!((answers.count(), bytes), (self.answers, self.answer_bytes), "answers of {}", self.name);
        let deferred: usize = self.deferred.iter().map(Vec::len).sum();
        assert_eq!(deferred, self.deferred_bytes, "deferred requests of {}", self.name);
    }

    /// Panics if a limit of this tool is exceeded, and notes those that are reached.
    pub(crate) fn check_limits(&self, reached: &mut ReachedLimits) {
        let (limits, count) = (&self.limits, |count: usize| count as u64);
        if !self.own {
            let (found, most) = (self.registration_count(), limits.registrations_per_tool);
            reached.check("registrations_per_tool", count(found), 1, count(most));
            // A pull of a simulated tool names two processes at most.
            reached.check("procs_per_tool", count(self.weight), 2, count(limits.procs_per_tool));
        }
        // The last request may exceed the limit.
        let before = self.deferred_bytes.saturating_sub(self.deferred.back().map_or(0, Vec::len));
        assert!(before == 0 || before < limits.deferred_bytes, "{before} bytes are deferred");
        reached.note("deferred_bytes", self.deferred_bytes >= limits.deferred_bytes);
        reached.note("answers_waiting", self.has_deferred() && self.answers >= limits.answers_waiting);
        reached.note("bytes_waiting", self.has_deferred() && self.answer_bytes >= limits.bytes_waiting);
        reached.note("forgotten_per_tool", self.is_behind());
    }

    /// Panics if `message` must not be served yet.
    pub(crate) fn check_serves(&self, message: &FromTool) {
        let has_room =
            self.answers < self.limits.answers_waiting && self.answer_bytes < self.limits.bytes_waiting;
        assert!(!is_request(message) || has_room, "a request was not deferred: {message:?}");
    }

    /// Panics if the tool has more unread data of forgotten jobs than it may have, and some of it
    /// can be dropped.
    pub(crate) fn check_shed(&self) {
        if !self.may_lose() {
            return;
        }
        let (limit, mut ends) = (self.limits.forgotten_per_tool, BTreeMap::new());
        let unsent = self.outgoing.iter().filter(|out| !out.is_begun());
        for out in unsent {
            if let QueuedItem::End { handler, nspace, .. } = out.item() {
                *ends.entry((*handler, nspace.clone())).or_insert(0) += 1;
            }
        }
        let can_merge = ends.values().any(|ends| *ends > 1);
        assert!(self.unread.ends() <= limit || !can_merge, "{} ends of jobs are kept", self.unread.ends());
        let (forgotten, droppable) = (self.unread.forgotten(), self.unsent_streams());
        assert!(forgotten <= limit || droppable == 0, "{droppable} of {forgotten} streams are kept");
    }

    /// Returns the number of forgotten streams whose first ring was not sent, found by the streams
    /// that the messages name.
    pub(crate) fn unsent_streams(&self) -> usize {
        let unsent = self.outgoing.iter().filter(|out| !out.is_begun());
        let mut streams: BTreeSet<(u32, StreamName)> = unsent.filter_map(first_ring).collect();
        let forgotten = self.readings.values().filter(|reading| reading.forgotten().is_some());
        forgotten.filter(|reading| streams.remove(&(reading.handler, (*reading.name).clone()))).count()
    }
}

/// Returns the registration and the stream whose first ring a message announces.
fn first_ring(out: &Outgoing) -> Option<(u32, StreamName)> {
    match Decoder::new().decode(&mut out.frame()) {
        Ok(Some(ToTool::Ring { handler, source, channel, logged, run, follows: None, .. })) => {
            Some((handler, StreamName { source, channel, logged, run }))
        }
        _ => None,
    }
}
