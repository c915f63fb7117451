//! A ring that a tool reads.

use std::sync::Arc;

use iof_capture::{RequestId, SourceId};
use iof_shm_ring::ReaderId;

use crate::core::completion::Completion;
use crate::core::ids::StreamName;
use crate::core::stream_options::StreamOptions;

/// A ring that the tool reads.
pub(crate) struct Reading {
    pub source: SourceId,
    pub name: Arc<StreamName>,
    pub handler: u32,
    pub options: StreamOptions,
    /// The request that attaches or moves the reader, until it is answered.
    pub joining: Option<Joining>,
    /// The generation that it reads; `None` until it is attached.
    pub generation: Option<u64>,
    /// The id in the previous generation, until the tool has certainly left its slot.
    pub old_id: Option<ReaderId>,
    /// The tool has requested the next generation, and has not received it: it no longer uses its
    /// slot.
    pub waits: bool,
    /// The ring was sent to the tool.
    pub sent: bool,
    /// How many bytes the source had produced at the position where the registration begins.
    pub begin: u64,
    /// What the stream has come to, once its job is removed.
    pub forgotten: Option<Completion>,
}

/// A request to the capture thread that attaches or moves a reader.
#[derive(Clone, Copy)]
pub(crate) struct Joining {
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

    /// Returns the slots of this reader, whose id is `id`. One that is about to move, or that has
    /// moved, may have two.
    pub(crate) fn slots(&self, id: ReaderId) -> impl Iterator<Item = ReaderId> {
        let moved = self.joining.map(|joining| joining.id).filter(|moved| *moved != id);
        [Some(id), self.old_id, moved].into_iter().flatten()
    }

    /// Returns whether the reader is in a generation before `newest`.
    pub(crate) fn is_before(&self, newest: u64) -> bool {
        self.generation.is_some_and(|generation| generation < newest)
    }
}
