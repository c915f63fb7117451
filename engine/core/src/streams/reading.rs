//! A ring that a tool reads.

use std::sync::Arc;

use iof_capture::{RequestId, SourceId};
use iof_shm_ring::ReaderId;

use crate::ids::StreamName;
use crate::streams::completion::Completion;
use crate::streams::options::StreamOptions;

/// A ring that the tool reads.
pub struct Reading {
    /// The stream.
    pub source: SourceId,
    /// The name of the stream.
    pub name: Arc<StreamName>,
    /// The registration.
    pub handler: u32,
    /// The options of the registration.
    pub options: StreamOptions,
    /// The request that attaches or moves the reader, until it is answered.
    joining: Option<Joining>,
    /// The generation that it reads; `None` until it is attached.
    generation: Option<u64>,
    /// The id in the previous generation, until the tool has certainly left its slot.
    old_id: Option<ReaderId>,
    /// The tool has requested the next generation, and has not received it: it no longer uses its
    /// slot.
    waits: bool,
    /// The ring was sent to the tool, or dropped because the tool receives nothing any more.
    sent: bool,
    /// The number of bytes that the source had produced at the position where the registration
    /// begins.
    begin: u64,
    /// The outcome of the stream, once its job is removed.
    forgotten: Option<Completion>,
}

/// A request to the capture thread that attaches or moves a reader.
#[derive(Clone, Copy)]
pub struct Joining {
    /// The request that attaches or moves it.
    pub request: RequestId,
    /// The id that the reader has afterwards.
    pub id: ReaderId,
}

impl Reading {
    /// Returns a reader that is about to be attached.
    pub(crate) fn new(
        source: SourceId,
        name: Arc<StreamName>,
        handler: u32,
        options: StreamOptions,
        joining: Joining,
    ) -> Reading {
        Reading {
            source,
            name,
            handler,
            options,
            joining: Some(joining),
            generation: None,
            old_id: None,
            waits: false,
            sent: false,
            begin: 0,
            forgotten: None,
        }
    }

    /// Returns the request that attaches or moves the reader, until it is answered.
    pub fn joining(&self) -> Option<Joining> {
        self.joining
    }

    /// Returns whether the tool has requested the next generation and has not received it.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Returns whether the ring was sent to the tool.
    pub fn is_sent(&self) -> bool {
        self.sent
    }

    /// Returns whether the reader is attached.
    pub(crate) fn is_attached(&self) -> bool {
        self.generation.is_some()
    }

    /// Returns what the stream has come to, once its job is removed.
    pub fn forgotten(&self) -> Option<Completion> {
        self.forgotten
    }

    /// Notes that the job of the stream, which has come to `completion`, was removed. Returns
    /// `false` if that was noted before.
    pub(crate) fn forget(&mut self, completion: Completion) -> bool {
        self.forgotten.replace(completion).is_none()
    }

    /// Notes that the tool requests the next generation. Returns `false` if the ring was not sent
    /// yet, or the next one is on its way. If that does not arrive, the reader waits.
    pub(crate) fn request_next(&mut self) -> bool {
        self.waits |= self.sent;
        self.sent && self.joining.is_none()
    }

    /// Notes that a request moves the reader.
    pub(crate) fn moves(&mut self, joining: Joining) {
        self.joining = Some(joining);
    }

    /// Notes that the reader was attached in a generation. `begin` is the position where the
    /// registration begins.
    pub(crate) fn attached(&mut self, generation: u64, begin: u64) {
        self.begin = begin;
        self.arrive(generation);
    }

    /// Notes that the reader, whose id was `id`, was moved to a generation, in which it is `new`.
    pub(crate) fn moved(&mut self, generation: u64, id: ReaderId, new: ReaderId) {
        if new != id {
            // The tool may still borrow bytes through its old slot.
            self.old_id = Some(id);
        }
        self.arrive(generation);
    }

    fn arrive(&mut self, generation: u64) {
        self.generation = Some(generation);
        (self.joining, self.waits, self.sent) = (None, false, false);
    }

    /// Notes that the reader, whose id is `id`, was not attached or moved. Returns the id that it
    /// would have had.
    pub(crate) fn join_failed(&mut self, id: ReaderId) -> Option<ReaderId> {
        let new = self.joining.take().map(|joining| joining.id);
        self.waits |= self.is_attached() && new == Some(id);
        new
    }

    /// Notes that the ring was sent to the tool, or dropped because the tool receives nothing any
    /// more.
    pub(crate) fn ring_sent(&mut self) {
        self.sent = true;
    }

    /// Returns the number of bytes that the tool misses if the ring is not sent; `None` while the
    /// stream's job is known.
    pub(crate) fn unread_bytes(&self) -> Option<u64> {
        Some(self.forgotten?.produced.saturating_sub(self.begin))
    }

    /// Returns the slots of this reader, whose id is `id`. One that is about to move, or that has
    /// moved, may have two.
    pub fn slots(&self, id: ReaderId) -> impl Iterator<Item = ReaderId> {
        [Some(id), self.old_id, self.moved_id(id)].into_iter().flatten()
    }

    /// Returns the ids for which a ring may wait to be sent, if the reader's id is `id`.
    pub(crate) fn unsent_ids(&self, id: ReaderId) -> impl Iterator<Item = ReaderId> {
        // A reader that was moved to the last generation may have two slots.
        [(!self.sent).then_some(id), self.old_id].into_iter().flatten()
    }

    /// Returns the second id of this reader, whose id is `id`, while it moves.
    pub(crate) fn moved_id(&self, id: ReaderId) -> Option<ReaderId> {
        self.joining.map(|joining| joining.id).filter(|moved| *moved != id)
    }

    /// Returns whether the reader is in a generation before `newest`, and no request moves it.
    pub(crate) fn is_left_behind(&self, newest: u64) -> bool {
        self.joining.is_none() && self.is_before(newest)
    }

    /// Returns whether the reader is in a generation before `newest`.
    pub(crate) fn is_before(&self, newest: u64) -> bool {
        self.generation.is_some_and(|generation| generation < newest)
    }
}
