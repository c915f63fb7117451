//! The messages that wait until a tool has room for them, with their descriptors.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use iof_proto::{EncodeError, Message, ToTool, encode};
use iof_shm_ring::{Bell, Inlet, ReaderId, ReaderPage, Ring, Ringer};

use crate::core::unread::{QueuedItem, UnreadKey};

/// A message on its way to the tool.
pub(crate) struct Outgoing {
    pub frame: Vec<u8>,
    pub sent: usize,
    pub attachment: Attachment,
    /// Whether the message is an answer to a request.
    pub is_answer: bool,
    /// The push whose credit the message returns.
    pub credit_push: Option<u32>,
    /// The reader whose ring the message announces.
    pub ring_reader: Option<ReaderId>,
    /// How [`Unread`] counts the message.
    pub item: QueuedItem,
}

impl Outgoing {
    /// Encodes `message`, whose descriptors are `attachment`.
    pub(crate) fn new(message: &ToTool, attachment: Attachment) -> Result<Outgoing, EncodeError> {
        debug_assert_eq!(attachment.len(), usize::from(message.fds()));
        Ok(Outgoing {
            frame: encode(message)?,
            sent: 0,
            attachment,
            is_answer: is_answer(message),
            credit_push: if let ToTool::Room { push, .. } = message { Some(*push) } else { None },
            ring_reader: if let ToTool::Ring { slot, .. } = message {
                Some(ReaderId::from(*slot))
            } else {
                None
            },
            item: QueuedItem::of(message),
        })
    }

    /// Returns a message about the bytes that the tool misses under `key`. It is encoded when it is
    /// sent.
    pub(crate) fn missed(key: UnreadKey) -> Outgoing {
        Outgoing {
            frame: Vec::new(),
            sent: 0,
            attachment: Attachment::None,
            is_answer: false,
            credit_push: None,
            ring_reader: None,
            item: QueuedItem::Missed(key),
        }
    }
}

/// The descriptors that are sent with the first byte of a message.
pub(crate) enum Attachment {
    None,
    Ring(Arc<Ring>),
    Inlet(Arc<Inlet>),
    Welcome { page: Arc<ReaderPage>, bell: Bell, room: Option<Ringer> },
}

impl Attachment {
    /// Returns the number of descriptors that a tool receives. A simulator's rings have none.
    fn len(&self) -> usize {
        match self {
            Attachment::None => 0,
            Attachment::Ring(_) | Attachment::Inlet(_) => 1,
            Attachment::Welcome { room, .. } => 2usize.saturating_add(usize::from(room.is_some())),
        }
    }

    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Attachment::None => Vec::new(),
            Attachment::Ring(ring) => ring.as_fd().into_iter().collect(),
            Attachment::Inlet(inlet) => vec![inlet.as_fd()],
            Attachment::Welcome { page, bell, room } => {
                page.as_fd().into_iter().chain([bell.as_fd()]).chain(room.as_ref().map(AsFd::as_fd)).collect()
            }
        }
    }
}

/// Returns whether `message` answers a request of the tool.
fn is_answer(message: &ToTool) -> bool {
    match message {
        ToTool::Pulled { .. }
        | ToTool::Deregistered { .. }
        | ToTool::Answer { .. }
        | ToTool::PushBegun { .. }
        | ToTool::SlowTargets { .. }
        | ToTool::Logged { .. }
        | ToTool::Signalled { .. }
        | ToTool::Pushed { .. } => true,
        ToTool::Welcome { .. }
        | ToTool::Refused { .. }
        | ToTool::Ring { .. }
        | ToTool::Announced { .. }
        | ToTool::JobEnded { .. }
        | ToTool::Missed { .. }
        // A push has at most one of these in the queue.
        | ToTool::Room { .. } => false,
    }
}
