//! Sockets: queues of bytes, whose direction to the tool has little room.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use iof_core::{self, Attachment, DisconnectReason, Peer, PeerId, SharedMemory, Welcome};
use iof_proto::{Decoder, FromTool};
use iof_shm_ring::{Bell, Inlet, ReaderPage, Ring, Ringer};

use super::Digest;

/// A message that a tool receives.
#[derive(Debug)]
pub struct Packet {
    /// The encoded message.
    pub frame: Vec<u8>,
    /// The objects that are shared with it.
    pub shared: Shared,
}

/// The objects that accompany a message, where a real engine sends descriptors.
#[allow(missing_docs, reason = "as in `crate::memory`")]
pub enum Shared {
    Nothing,
    Ring(Arc<Ring>),
    Inlet(Arc<Inlet>),
    Welcome { page: Arc<ReaderPage>, bell: Bell, room: Option<Ringer> },
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

impl From<Option<iof_core::Shared>> for Shared {
    fn from(shared: Option<iof_core::Shared>) -> Shared {
        match shared {
            None => Shared::Nothing,
            Some(iof_core::Shared::Ring(ring)) => Shared::Ring(ring),
            Some(iof_core::Shared::Inlet(inlet)) => Shared::Inlet(inlet),
            // It was removed from the table, so this is the only reference.
            Some(iof_core::Shared::Welcome(welcome)) => Arc::into_inner(welcome)
                .map_or(Shared::Nothing, |Welcome { page, bell, room }| Shared::Welcome { page, bell, room }),
        }
    }
}

/// A connection.
pub(super) struct Socket {
    decoder: Decoder<FromTool>,
    /// Bytes from the tool that are not decoded.
    input: Vec<u8>,
    /// The tool has closed its end.
    closed: bool,
    /// The tool has shut its receiving side: the engine's sends fail.
    receives_nothing: bool,
    /// The engine has closed its end.
    ended: bool,
    /// The number of bytes to the tool for which there is room.
    room: usize,
    /// The first part of a message, with what it shares.
    partial: Vec<u8>,
    shared: Shared,
    /// The number of bytes of this part that the tool has received.
    received: usize,
    /// Whole messages, each with the number of bytes that still take room.
    output: VecDeque<(Packet, usize)>,
}

impl Socket {
    pub(super) fn new(room: usize) -> Socket {
        Socket {
            decoder: Decoder::new(),
            input: Vec::new(),
            closed: false,
            receives_nothing: false,
            ended: false,
            room,
            partial: Vec::new(),
            shared: Shared::Nothing,
            received: 0,
            output: VecDeque::new(),
        }
    }

    pub(super) fn send(&mut self, bytes: &[u8]) {
        if !self.ended {
            self.input.extend_from_slice(bytes);
        }
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
        self.shut_receiving();
    }

    pub(super) fn shut_receiving(&mut self) {
        self.receives_nothing = true;
        self.output.clear();
    }

    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    pub(super) fn refuse(&mut self, frame: Vec<u8>) {
        self.output.push_back((Packet { frame, shared: Shared::Nothing }, 0));
    }

    pub(super) fn receive(&mut self) -> Option<Packet> {
        let Some((packet, room)) = self.output.pop_front() else {
            let received = mem::replace(&mut self.received, self.partial.len());
            self.room = self.room.saturating_add(self.partial.len().saturating_sub(received));
            return None;
        };
        self.room = self.room.saturating_add(room);
        Some(packet)
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }

    pub(super) fn is_over(&self) -> bool {
        self.ended && self.output.is_empty()
    }

    /// Returns the next message that has arrived.
    pub(super) fn next(&mut self) -> Result<Option<FromTool>, DisconnectReason> {
        let mut bytes = self.input.as_slice();
        let message = self.decoder.decode(&mut bytes)?;
        let used = self.input.len().saturating_sub(bytes.len());
        self.input.drain(..used);
        if message.is_none() && self.closed {
            return Err(DisconnectReason::Closed);
        }
        Ok(message)
    }

    /// Sends what is queued for `peer`, as far as there is room. Returns whether anything was sent.
    pub(super) fn flush(
        &mut self,
        (id, peer): (PeerId, &mut Peer),
        memory: &SharedMemory,
        now: Instant,
        digest: &mut Digest,
    ) -> bool {
        let mut busy = false;
        memory.remove_unsent(id, peer.take_discarded());
        loop {
            if self.receives_nothing && peer.front().is_some() {
                peer.stop_sending();
                memory.remove_unsent(id, peer.take_discarded());
            }
            let Some(out) = peer.front() else { return busy };
            let unsent = out.unsent();
            let count = unsent.len().min(self.room);
            if count == 0 {
                return busy;
            }
            let ends = count == unsent.len();
            self.partial.extend_from_slice(unsent.get(..count).unwrap_or_default());
            if !out.is_begun() {
                let attachment = out.attachment();
                let shared = memory.unsent(id, attachment);
                assert_eq!(shared.is_none(), attachment == Attachment::None, "{attachment:?}");
                memory.remove_unsent(id, [attachment]);
                self.shared = shared.into();
            }
            self.room = self.room.saturating_sub(count);
            peer.sent(count, now);
            busy = true;
            if ends {
                digest.add_word(id as u64);
                digest.add(&self.partial);
                let (frame, shared) =
                    (mem::take(&mut self.partial), mem::replace(&mut self.shared, Shared::Nothing));
                let unread = frame.len().saturating_sub(mem::take(&mut self.received));
                self.output.push_back((Packet { frame, shared }, unread));
            }
        }
    }
}
