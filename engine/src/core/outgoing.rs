//! The messages that wait until a tool has room for them, with their descriptors.

use iof_capture::PushId;
use iof_proto::{EncodeError, Message, ToTool, encode};
use iof_shm_ring::ReaderId;

use crate::core::ids::RingId;
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

/// What the driver sends with the first byte of a message. It holds that until the message is sent
/// or
/// [discarded](super::peer::Peer::take_discarded).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Attachment {
    None,
    Ring(RingId),
    /// The inlet of a push.
    Inlet(PushId),
    /// The reader page, the doorbell and, if the tool may hold back sources, the bell by which it
    /// signals room.
    Welcome {
        may_block: bool,
    },
}

impl Attachment {
    /// Returns the number of descriptors that a tool of another process receives.
    fn len(self) -> usize {
        match self {
            Attachment::None => 0,
            Attachment::Ring(_) | Attachment::Inlet(_) => 1,
            Attachment::Welcome { may_block } => 2usize.saturating_add(usize::from(may_block)),
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
