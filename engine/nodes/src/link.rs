//! The bytes of an edge whose carrier may be replaced.
//!
//! What carries an edge may end at any byte. [`LinkEnd`] keeps what it sent until the peer has it.
//! When a new carrier is there, each end tells the other how many bytes have arrived
//! ([`Frame::Resume`]), and goes on with the next one. So each byte arrives once and in order, and
//! decoders go on in the middle of a frame.

use std::collections::VecDeque;

use crate::EdgeError;
use crate::frame::Frame;
use crate::limits::MAX_KEPT;

/// An ack follows this number of bytes, so that acks cost little.
const ACK_INTERVAL: u64 = 256 << 10;

/// One end of an edge whose carrier may be replaced: what was sent and is not acknowledged, and how
/// much has arrived.
#[derive(Debug, Default)]
pub struct LinkEnd {
    /// What was sent, up to `sent`, and is not acknowledged.
    kept: VecDeque<u8>,
    /// The bytes that were sent.
    sent: u64,
    /// Those that the current carrier was given, or an earlier one delivered.
    given: u64,
    /// The bytes that have arrived.
    received: u64,
    /// Those that the peer was told of.
    told: u64,
    /// The attempt that brought the current carrier, or a later one that this end has begun.
    attempt: u32,
}

impl LinkEnd {
    /// Returns whether more may be sent. Acks are sent in any case: otherwise both ends could wait
    /// for each other.
    pub fn has_room(&self) -> bool {
        self.kept.len() < MAX_KEPT
    }

    /// Adds bytes to send.
    pub fn send(&mut self, bytes: &[u8]) {
        self.kept.extend(bytes);
        self.sent = self.sent.saturating_add(bytes.len() as u64);
    }

    /// Appends the next bytes for the current carrier to `piece`, at most `limit`.
    pub fn take(&mut self, piece: &mut Vec<u8>, limit: usize) {
        let waiting = usize::try_from(self.sent.saturating_sub(self.given)).unwrap_or(usize::MAX);
        let mut skipped = self.kept.len().saturating_sub(waiting);
        let mut left = waiting.min(limit);
        self.given = self.given.saturating_add(left as u64);
        let (first, second) = self.kept.as_slices();
        for part in [first, second] {
            let rest = part.get(skipped..).unwrap_or_default();
            skipped = skipped.saturating_sub(part.len());
            let next = rest.get(..left).unwrap_or(rest);
            piece.extend_from_slice(next);
            left = left.saturating_sub(next.len());
        }
    }

    /// Returns whether the current carrier was given all bytes.
    pub fn is_drained(&self) -> bool {
        self.given == self.sent
    }

    /// Notes that `length` bytes have arrived, and sends an ack if one is due. Called when they are
    /// in the decoder, which outlives the carrier.
    pub fn receive(&mut self, length: usize) {
        self.received = self.received.saturating_add(length as u64);
        // A peer that is owed more does not read what it is sent.
        let is_owed = self.kept.len() < MAX_KEPT.saturating_mul(2);
        if is_owed && self.received.saturating_sub(self.told) >= ACK_INTERVAL {
            self.told = self.received;
            let mut ack = Vec::new();
            Frame::Ack { received: self.received }.append_to(&mut ack);
            self.send(&ack);
        }
    }

    /// Forgets what the peer has. An ack that a later one overtook by a resume means nothing.
    ///
    /// # Errors
    /// The peer can't have that number of bytes. The edge is to be closed.
    pub fn acknowledged(&mut self, received: u64) -> Result<(), EdgeError> {
        if received > self.given {
            return Err(EdgeError::Acknowledged { received, sent: self.given });
        }
        let from = self.sent.saturating_sub(self.kept.len() as u64);
        let count = usize::try_from(received.saturating_sub(from)).unwrap_or(usize::MAX);
        self.kept.drain(..count.min(self.kept.len()));
        Ok(())
    }

    /// Begins another attempt to bring a carrier. The end that starts carriers calls this before
    /// [`LinkEnd::resume_frame`]; the other one returns the number in its own frame.
    pub fn begin_attempt(&mut self) {
        self.attempt = self.attempt.saturating_add(1);
    }

    /// Returns the first frame to send over a new carrier, which is not part of the bytes of the
    /// edge. No bytes may arrive over the old carrier from now on.
    pub fn resume_frame(&mut self, session: u64) -> Frame<'static> {
        self.told = self.received;
        Frame::Resume { session, attempt: self.attempt, received: self.received }
    }

    /// Processes the first frame that arrived over a new carrier, which becomes the current one.
    /// [`LinkEnd::take`] goes on with the first byte that the peer does not have.
    ///
    /// # Errors
    /// The frame is not that of this edge. The carrier is to be closed; the edge may get another.
    pub fn resume(&mut self, session: u64, frame: &Frame<'_>) -> Result<(), EdgeError> {
        match *frame {
            Frame::Resume { session: theirs, attempt, received } if theirs == session => {
                // Its carrier was given up, and knows less than the peer.
                if attempt < self.attempt {
                    return Err(EdgeError::Unexpected("resume of an earlier attempt"));
                }
                if received < self.sent.saturating_sub(self.kept.len() as u64) {
                    return Err(EdgeError::Unexpected("resume before bytes that were acknowledged"));
                }
                self.acknowledged(received)?;
                (self.given, self.attempt) = (received, attempt);
                Ok(())
            }
            Frame::Resume { .. } => Err(EdgeError::Session),
            _ => Err(EdgeError::Unexpected("frame before a resume")),
        }
    }

    /// Returns the number of bytes that it holds.
    pub fn held(&self) -> usize {
        self.kept.len()
    }
}
