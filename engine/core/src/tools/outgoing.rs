//! The messages that wait until a tool has room for them, with their descriptors.

use std::collections::BTreeSet;

use iof_capture::PushId;
use iof_proto::{EncodeError, Message, ToTool, encode};
use iof_shm_ring::ReaderId;

use crate::count::Count;
use crate::ids::RingId;
use crate::tools::peer::unread::{QueuedItem, Unread, UnreadKey};

/// A message on its way to the tool.
pub struct Outgoing {
    frame: Vec<u8>,
    /// The number of bytes of the frame that the socket has accepted.
    sent: usize,
    attachment: Attachment,
    /// Set if the message is an answer to a request.
    is_answer: bool,
    /// The push whose credit the message returns.
    credit_push: Option<u32>,
    /// The reader whose ring the message announces.
    ring_reader: Option<ReaderId>,
    /// The item as which [`Unread`] counts the message.
    item: QueuedItem,
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
    /// Returns the encoded message; empty if it is encoded when it is sent.
    pub fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// Returns the bytes of the message that the socket has not accepted.
    pub fn unsent(&self) -> &[u8] {
        self.frame.get(self.sent..).unwrap_or_default()
    }

    /// Returns whether a part of the message was sent, so that the rest must follow.
    pub fn is_begun(&self) -> bool {
        self.sent > 0
    }

    /// Notes that the socket has accepted `bytes` more bytes. Returns whether these are the last.
    pub(crate) fn sent(&mut self, bytes: usize) -> bool {
        self.sent.raise(bytes);
        debug_assert!(self.sent <= self.frame.len(), "{} bytes of {} are sent", self.sent, self.frame.len());
        self.sent >= self.frame.len()
    }

    /// Returns what is sent with the first byte of the message.
    pub fn attachment(&self) -> Attachment {
        self.attachment
    }

    /// Returns what is sent with the next byte of the message.
    pub fn due_attachment(&self) -> Option<Attachment> {
        (!self.is_begun() && self.attachment != Attachment::None).then_some(self.attachment)
    }

    /// Returns whether the message is an answer to a request.
    pub fn is_answer(&self) -> bool {
        self.is_answer
    }

    /// Returns whether the message returns credit of a push.
    pub(crate) fn returns_credit_of(&self, push: u32) -> bool {
        self.credit_push == Some(push)
    }

    /// Returns the reader whose ring the message announces.
    pub fn ring_reader(&self) -> Option<ReaderId> {
        self.ring_reader
    }

    /// Notes that readers have ended. Returns whether the message announces the ring of one.
    pub(crate) fn forget_reader(&mut self, ended: &BTreeSet<ReaderId>) -> bool {
        self.ring_reader.take_if(|id| ended.contains(id)).is_some()
    }

    /// Returns how [`Unread`] counts the message.
    pub fn item(&self) -> &QueuedItem {
        &self.item
    }

    /// Replaces the message, which was not begun, by another of its kind. Keeps it if the other is
    /// too long.
    pub(crate) fn replace(&mut self, message: &ToTool) {
        debug_assert!(!self.is_begun(), "a message that is begun is replaced");
        if let Ok(frame) = encode(message) {
            self.frame = frame;
            self.item = QueuedItem::of(message);
        }
    }

    /// Encodes a message about missed bytes, with the sums of now.
    pub(crate) fn encode_missed(&mut self, unread: &mut Unread) {
        if let QueuedItem::Missed(key) = &self.item
            && self.frame.is_empty()
        {
            self.frame = unread.encode_missed(key).unwrap_or_else(|| absent!("report", Vec::new()));
        }
    }
}

/// The object that the driver sends with the first byte of a message. It holds that until the
/// message is sent or [discarded](crate::tools::peer::Peer::take_discarded).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Attachment {
    /// Nothing.
    None,
    /// A ring.
    Ring(RingId),
    /// The inlet of a push.
    Inlet(PushId),
    /// The reader page, the doorbell and, if the tool may hold back sources, the bell by which it
    /// signals room.
    Welcome {
        /// `true` if the tool may hold back sources.
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
        | ToTool::Spawned { .. }
        | ToTool::Pushed { .. } => true,
        ToTool::Welcome { .. }
        | ToTool::Refused { .. }
        | ToTool::Ring { .. }
        | ToTool::Cached { .. }
        | ToTool::Announced { .. }
        | ToTool::Ranks { .. }
        | ToTool::JobEnded { .. }
        | ToTool::Missed { .. }
        | ToTool::Exchanged(_)
        | ToTool::Fenced(_)
        // A push has at most one of these in the queue.
        | ToTool::Room { .. } => false,
    }
}
