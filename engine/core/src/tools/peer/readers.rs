//! The readers of one tool: their slots, generations and rings.

use std::collections::BTreeSet;
use std::sync::Arc;

use iof_capture::{Gating, Joined, RequestId, SourceId, StreamStep};
use iof_proto::ToTool;
use iof_shm_ring::{Attached, CreateError, Offset, Policy, ReaderId, Start};

use super::Peer;
use crate::ids::{PageId, RingId, StreamName};
use crate::resources::{PageSlots, Resources};
use crate::spawns::table::Spawns;
use crate::streams::awaited::JoiningReader;
use crate::streams::options::StreamOptions;
use crate::streams::reading::{Joining, Reading};
use crate::tools::grant::Grant;
use crate::tools::outgoing::Attachment;

impl Peer {
    /// Returns the readers with their ids.
    pub fn readings(&self) -> impl Iterator<Item = (ReaderId, &Reading)> {
        self.readings.iter().map(|(id, reading)| (*id, reading))
    }

    /// Returns the ring that a reader reads.
    pub fn reading(&self, id: ReaderId) -> Option<&Reading> {
        self.readings.get(&id)
    }

    /// Returns the id of the reader of a stream for a registration.
    pub fn reader_of(&self, source: SourceId, handler: u32) -> Option<ReaderId> {
        self.reader_ids.get(&(source, handler)).copied()
    }

    /// Takes a slot for one more reader.
    ///
    /// # Errors
    /// All slots are taken, or too little memory is left.
    pub(crate) fn take_slot(&mut self, resources: &dyn Resources) -> Result<ReaderId, CreateError> {
        self.slots.take(resources)
    }

    /// Returns the slots, to reserve some.
    pub(crate) fn slots_mut(&mut self) -> &mut PageSlots {
        &mut self.slots
    }

    /// Returns a slot that no reader has used.
    pub(crate) fn return_slot(&mut self, slot: ReaderId) {
        self.slots.put_back(slot);
    }

    /// Removes and returns the readers `ids`, with their unsent rings. Their slots stay taken until
    /// [`Peer::release_reading`].
    pub(crate) fn take_readings(&mut self, ids: impl Iterator<Item = ReaderId>) -> Vec<(ReaderId, Reading)> {
        let ended: Vec<_> = ids.filter_map(|id| Some((id, self.readings.remove(&id)?))).collect();
        self.drop_rings(&ended.iter().flat_map(|(id, reading)| reading.unsent_ids(*id)).collect());
        ended
    }

    /// Returns the slots of a reader that was removed.
    pub(crate) fn release_reading(&mut self, id: ReaderId, reading: &Reading) {
        reading.slots(id).for_each(|slot| self.slots.put_back(slot));
        self.remove_reading(reading);
    }

    /// Drops the unsent rings of `readers`, whose readings have ended. The tool never maps them.
    pub(super) fn drop_rings(&mut self, readers: &BTreeSet<ReaderId>) {
        if readers.is_empty() {
            return;
        }
        let discarded = &mut self.discarded;
        self.outgoing.retain_mut(|out| {
            let ended = out.forget_reader(readers);
            // The tool has received a part of this message and expects the rest.
            let keeps = !ended || out.is_begun();
            discarded.extend((!keeps).then_some(out.attachment()));
            keeps
        });
    }

    /// Notes that the tool requests the next generation for the reader `id`. Returns the reader,
    /// unless its ring was not sent yet or the next one is on its way.
    pub(crate) fn follow_requested(&mut self, id: ReaderId) -> Option<&Reading> {
        let reading = self.readings.get_mut(&id)?;
        reading.request_next().then_some(reading)
    }

    /// Returns whether the tool may hold back the ranks of the job `run` under the block policy.
    fn may_block(&self, run: u64, spawns: &Spawns) -> bool {
        match self.grant {
            Grant::Block => true,
            Grant::Spawned => spawns.is_of_process(run, self.client.process),
            Grant::Never => false,
        }
    }

    /// Notes that a reader is about to be attached. `spawns` has the jobs that tools have started.
    /// Returns the step that attaches it.
    pub(crate) fn join(
        &mut self,
        request: RequestId,
        source: SourceId,
        name: &Arc<StreamName>,
        reader: &JoiningReader,
        options: StreamOptions,
        spawns: &Spawns,
    ) -> Option<StreamStep<PageId>> {
        let JoiningReader { handler, id, .. } = *reader;
        let page = self.page();
        let may_block = self.may_block(name.run, spawns);
        let registration = self.registrations.get_mut(&handler).or_else(|| absent!("registration", None))?;
        registration.reader_joins();
        self.readings
            .insert(id, Reading::new(source, Arc::clone(name), handler, options, Joining { request, id }));
        self.reader_ids.insert((source, handler), id);
        let gating = match options.policy {
            Policy::DropOldest => Gating::Never,
            Policy::Block if may_block => Gating::Block,
            Policy::DropNewest | Policy::Block => Gating::Keep,
        };
        let (start, group, remote) = (registration.start(), options.buffering.size.into(), !self.client.own);
        Some(StreamStep::Attach { source, page, reader: id, start, gating, group, remote })
    }

    /// Notes that the reader `id` is about to move to the newest generation, in which it is `new`.
    /// Returns the step that moves it.
    pub(crate) fn follow(
        &mut self,
        request: RequestId,
        id: ReaderId,
        new: ReaderId,
    ) -> Option<StreamStep<PageId>> {
        let reading = self.readings.get_mut(&id).or_else(|| absent!("reader", None))?;
        reading.moves(Joining { request, id: new });
        if let Some(registration) = self.registrations.get_mut(&reading.handler) {
            registration.reader_joins();
        }
        Some(StreamStep::Follow { source: reading.source, page: self.page(), reader: id, new })
    }

    /// Removes and returns the reader `id`, if `request` attaches or moves it.
    fn take_joining(&mut self, request: RequestId, id: ReaderId) -> Option<Reading> {
        let joining = self.readings.get(&id)?.joining();
        if joining.is_some_and(|joining| joining.request == request) {
            self.readings.remove(&id)
        } else {
            None
        }
    }

    /// Notes that the request for `ring` has attached or moved the reader `id`, and queues the
    /// ring.
    pub(crate) fn reader_joined(&mut self, ring: RingId, id: ReaderId, joined: Joined<()>) {
        let Joined { attached: Attached { id: new, start, dropped, non_gating, .. }, generation } = joined;
        let Some(mut reading) = self.take_joining(ring.request, id) else {
            // It was detached meanwhile.
            self.discarded.push(Attachment::Ring(ring));
            return;
        };
        self.unread.ring_unsent(&reading);
        let follows = reading.is_attached().then_some(id);
        if follows.is_some() {
            reading.moved(generation, id, new);
        } else {
            let registration = self.registrations.get(&reading.handler);
            let from_start = registration.is_none_or(|registration| registration.start() == Start::Oldest);
            reading.attached(generation, if from_start { 0 } else { start.after(dropped) });
        }
        self.reader_ids.insert((reading.source, reading.handler), new);
        let name = &reading.name;
        let message = ToTool::Ring {
            handler: reading.handler,
            source: name.source.clone(),
            channel: name.channel,
            logged: name.logged,
            run: name.run,
            slot: new.into(),
            follows: follows.map(u32::from),
            start,
            dropped,
            non_gating,
            options: reading.options.effective(),
        };
        self.readings.insert(new, reading);
        self.send_with(&message, Attachment::Ring(ring));
    }

    /// Notes that `request` has not attached or moved the reader `id`. Returns the reader if it was
    /// to be attached, and is removed.
    pub(crate) fn join_failed(&mut self, request: RequestId, id: ReaderId) -> Option<Reading> {
        let mut reading = self.take_joining(request, id)?;
        let new = reading.join_failed(id);
        if reading.is_attached() {
            // It is in the newest generation already, or the capture thread has ended.
            new.filter(|new| *new != id).inspect(|new| self.slots.put_back(*new));
            self.readings.insert(id, reading);
            return None;
        }
        self.slots.put_back(id);
        self.remove_reading(&reading);
        Some(reading)
    }
}
