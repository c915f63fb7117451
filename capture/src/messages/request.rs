//! Requests about streams and targets, as data. The capture thread performs a request in one piece,
//! in order with its other commands, and reports the answers as an event. Nothing waits for it.

use std::sync::Arc;

use iof_shm_ring::{Attached, ReaderId, ReaderPage, Ring, Start, Stream, StreamConfig, StreamStats};

use crate::ids::{PushId, RequestId, SourceId, TargetId};

/// A list of steps, which the capture thread performs one after the other and without a pause.
///
/// `P` is a reader page. Code without access to pages can use a number for each, see
/// [`StreamRequest::with_pages`].
#[derive(Clone, Debug)]
pub struct StreamRequest<P = Arc<ReaderPage>> {
    /// The id that [`Event::Answered`](crate::Event::Answered) reports. With `None`, nothing is
    /// reported.
    pub id: Option<RequestId>,
    /// The steps.
    pub steps: Vec<StreamStep<P>>,
}

impl<P> StreamRequest<P> {
    /// Returns the request with the pages that `page` returns for those of its steps; `None` if
    /// `page` returns `None` for one of them.
    pub fn with_pages<Q>(self, page: impl Fn(P) -> Option<Q>) -> Option<StreamRequest<Q>> {
        let steps: Option<_> = self.steps.into_iter().map(|step| step.with_pages(&page)).collect();
        Some(StreamRequest { id: self.id, steps: steps? })
    }
}

/// The degrees to which a reader holds its stream back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// It never does, see [`Stream::attach_non_gating`].
    Never,
    /// Bytes that it has not read are not overwritten, but the source does not wait for it.
    Keep,
    /// In addition, the source waits for it under [`Policy::Block`](iof_shm_ring::Policy::Block).
    Block,
    /// In addition, the stream stays in its generation, see [`Stream::attach_holder`].
    Hold,
}

/// One step of a [`StreamRequest`]. A step on a source that does not exist has no effect.
#[derive(Clone, Debug)]
pub enum StreamStep<P = Arc<ReaderPage>> {
    /// Attaches a reader, see [`Stream::attach`]. Answered with [`StreamAnswer::Joined`].
    Attach {
        /// The source.
        source: SourceId,
        /// The reader page of the reader.
        page: P,
        /// A slot of that page, which [`ReaderPage::take_slot`] has returned.
        reader: ReaderId,
        /// The position of its first byte.
        start: Start,
        /// The degree to which it holds the stream back.
        gating: Gating,
        /// Number of bytes that it reads at a time; 0 if any number is enough.
        group: u64,
        /// Set if the reader is in another process, so that the ring needs a file, see
        /// [`Stream::allocate`]. Without memory for it, the reader is not attached.
        remote: bool,
    },
    /// Moves a reader to the newest generation, see [`Stream::follow`]. Answered with
    /// [`StreamAnswer::Joined`].
    Follow {
        /// The source.
        source: SourceId,
        /// The reader page of the reader.
        page: P,
        /// The reader's id so far.
        reader: ReaderId,
        /// Its id in the newest generation.
        new: ReaderId,
    },
    /// Detaches a reader, see [`Stream::detach`]. Not answered.
    Detach {
        /// The source.
        source: SourceId,
        /// The reader page of the reader.
        page: P,
        /// The reader.
        reader: ReaderId,
    },
    /// Changes capacity and policy of a stream, see [`Stream::reconfigure`]. Not answered.
    Reconfigure {
        /// The source.
        source: SourceId,
        /// The new configuration.
        config: StreamConfig,
    },
    /// Reads counters. Answered with [`StreamAnswer::Counted`].
    Count {
        /// The source.
        source: SourceId,
        /// The readers whose lag is read.
        readers: Vec<(P, ReaderId)>,
    },
    /// Asks whether a target can be fed. Answered with [`StreamAnswer::Takes`].
    Takes(TargetId),
    /// Asks for the slowest targets of a push. Answered with [`StreamAnswer::Lagging`].
    Lagging(PushId),
}

impl<P> StreamStep<P> {
    fn with_pages<Q>(self, page: impl Fn(P) -> Option<Q>) -> Option<StreamStep<Q>> {
        Some(match self {
            StreamStep::Attach { source, page: of, reader, start, gating, group, remote } => {
                StreamStep::Attach { source, page: page(of)?, reader, start, gating, group, remote }
            }
            StreamStep::Follow { source, page: of, reader, new } => {
                StreamStep::Follow { source, page: page(of)?, reader, new }
            }
            StreamStep::Detach { source, page: of, reader } => {
                StreamStep::Detach { source, page: page(of)?, reader }
            }
            StreamStep::Reconfigure { source, config } => StreamStep::Reconfigure { source, config },
            StreamStep::Count { source, readers } => {
                let readers: Option<_> = readers.into_iter().map(|(of, id)| Some((page(of)?, id))).collect();
                StreamStep::Count { source, readers: readers? }
            }
            StreamStep::Takes(target) => StreamStep::Takes(target),
            StreamStep::Lagging(push) => StreamStep::Lagging(push),
        })
    }

    /// Returns whether the step attaches a reader for which `stream` should grow before: it reads
    /// more bytes at a time than the ring gives, or the stream has no memory yet and the reader may
    /// not hold the source back, or keeps the stream from growing later. (With memory, the stream
    /// grows as the reader attaches.)
    pub(crate) fn needs_full_size(&self, stream: &Stream) -> bool {
        match self {
            StreamStep::Attach { gating: Gating::Block, group, .. } => *group > stream.largest_group(),
            StreamStep::Attach { .. } => stream.is_unallocated(),
            _ => false,
        }
    }
}

/// The answer to a [`StreamStep`]. `R` is a ring, or nothing in [`StreamAnswer::without_ring`].
#[derive(Debug)]
pub enum StreamAnswer<R = Arc<Ring>> {
    /// The reader in its generation; `None` if the source or reader does not exist, a reader that
    /// was to follow is in the newest generation already, or the kernel has no memory for a ring.
    Joined(Option<Joined<R>>),
    /// The counters; `None` if the source does not exist.
    Counted(Option<Counted>),
    /// `true` if the target exists and its pipe has a reader.
    Takes(bool),
    /// The slowest targets; `None` if the push does not exist or is over.
    Lagging(Option<SlowTargets>),
}

impl StreamAnswer {
    /// Returns the ring of an attached or moved reader apart from the rest.
    pub fn without_ring(self) -> (StreamAnswer<()>, Option<Arc<Ring>>) {
        let answer = match self {
            StreamAnswer::Joined(Some(Joined { attached, generation })) => {
                let (attached, ring) = attached.without_ring();
                return (StreamAnswer::Joined(Some(Joined { attached, generation })), Some(ring));
            }
            StreamAnswer::Joined(None) => StreamAnswer::Joined(None),
            StreamAnswer::Counted(counted) => StreamAnswer::Counted(counted),
            StreamAnswer::Takes(takes) => StreamAnswer::Takes(takes),
            StreamAnswer::Lagging(slow) => StreamAnswer::Lagging(slow),
        };
        (answer, None)
    }
}

/// A reader that was attached or moved.
#[derive(Clone, Debug)]
pub struct Joined<R = Arc<Ring>> {
    /// The data that the reader needs.
    pub attached: Attached<R>,
    /// The number of the generation that it reads.
    pub generation: u64,
}

/// The counters of a stream.
#[derive(Clone, Debug)]
pub struct Counted {
    /// Those of the stream itself.
    pub stats: StreamStats,
    /// For each of the readers in the step, the number of bytes that it is behind, see
    /// [`Stream::lag`].
    pub lags: Vec<Option<u64>>,
}

/// A push's slowest targets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlowTargets {
    /// Bytes that all targets have taken.
    pub position: u64,
    /// The targets that have taken no more than that although the push has more bytes.
    pub targets: Vec<SlowTarget>,
}

/// One of the slowest targets of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowTarget {
    /// The target.
    pub target: TargetId,
    /// The push that has its turn at the target. If that is the lagging push itself, the target's
    /// process does not read. Otherwise it is an earlier push that is not over.
    pub turn: PushId,
}
