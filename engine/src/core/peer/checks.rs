//! Checks of one tool's state, for simulators.

use std::collections::{BTreeMap, BTreeSet};

use iof_proto::limits::{
    MAX_DEFERRED_BYTES, MAX_PROCS_PER_TOOL, MAX_PUSHES_PER_TOOL, MAX_REGISTRATIONS_PER_TOOL,
};

use super::Peer;
use crate::core::outgoing::{Attachment, Outgoing};
use crate::core::registration::Registration;
use crate::core::unread::QueuedItem;

impl Peer {
    /// Panics if a limit is exceeded or the state contradicts itself.
    pub(crate) fn check(&self) {
        self.check_queues();
        let (id, waiting) = (&self.name, self.waiting.values().map(|pull| &pull.registration));
        let weight: usize = self.registrations.values().chain(waiting).map(Registration::weight).sum();
        assert_eq!(weight, self.weight, "the weight of tool {id}");
        if !self.own {
            assert!(weight <= MAX_PROCS_PER_TOOL, "tool {id} names too much");
            assert!(self.registration_count() <= MAX_REGISTRATIONS_PER_TOOL);
        }
        assert!(self.pushes.len() <= MAX_PUSHES_PER_TOOL, "tool {id} has too many pushes");
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
        for (reader, reading) in self.readings() {
            let known = self.reader_of(reading.source, reading.handler);
            assert_eq!(known, Some(reader), "the id of a reader of tool {id}");
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

    /// Panics if the counters of the queues are wrong or beyond their limits.
    fn check_queues(&self) {
        let answers = self.outgoing.iter().filter(|out| out.is_answer());
        let bytes = answers.clone().map(|out| out.frame().len()).sum::<usize>();
        assert_eq!((answers.count(), bytes), (self.answers, self.answer_bytes), "answers of {}", self.name);
        let deferred: usize = self.deferred.iter().map(Vec::len).sum();
        assert_eq!(deferred, self.deferred_bytes, "deferred requests of {}", self.name);
        // The last request may exceed the limit.
        assert!(deferred < 2 * MAX_DEFERRED_BYTES + 8, "{deferred} bytes are deferred");
    }
}
