//! One end of an edge: the bytes that it sends, and the carriers that bring them.
//!
//! The carrier of an edge may end at any byte. An edge has a limit, for which it may be without a
//! carrier. With the limit 0 it ends with its carrier, and [`LinkEnd`] holds only what is not
//! written. Otherwise it keeps what it sent until the peer has it. When a new carrier is there,
//! each end tells the other how many bytes have arrived ([`Frame::Resume`]), and goes on with the
//! next one. So each byte arrives once and in order, and decoders go on in the middle of a frame.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Write};
use std::time::{Duration, Instant};

use crate::EdgeError;
use crate::frame::Frame;
use crate::limits::{MAX_KEPT, MAX_RECORD};

/// An ack follows this number of bytes, so that acks cost little.
const ACK_INTERVAL: u64 = 256 << 10;

/// The bytes that the end of an edge still sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Whatever it is given.
    #[default]
    Open,
    /// The rest, which tells the peer the end of the job. Until then another carrier may bring it.
    Ending(Instant),
    /// The rest, over the current carrier only.
    Closed,
}

/// One end of an edge: what was sent and is not acknowledged, how much has arrived, and whether it
/// has a carrier.
#[derive(Debug, Default)]
pub struct LinkEnd {
    /// The bytes that were sent, up to `sent`, and are not acknowledged; with the limit 0, not written.
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
    /// The time for which the edge may be without a carrier.
    limit: Duration,
    /// When the carrier has ended, if no other one is there yet.
    detached: Option<Instant>,
    phase: Phase,
}

impl LinkEnd {
    /// Lets the edge be without a carrier for this time, from now on. The agent does so when it
    /// listens for carriers, and the front end when it knows where: then each has all that the other
    /// one sent before.
    pub fn outlive_carriers(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// Returns whether the edge outlives its carriers.
    pub fn is_resumable(&self) -> bool {
        !self.limit.is_zero()
    }

    /// Returns how long the edge may be without a carrier.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Returns whether more may be sent. Acks are sent in any case: otherwise both ends could wait
    /// for each other.
    pub fn has_room(&self) -> bool {
        self.kept.len() < if self.is_resumable() { MAX_KEPT } else { MAX_RECORD }
    }

    /// Adds bytes to send.
    pub fn send(&mut self, bytes: &[u8]) {
        self.kept.extend(bytes);
        self.sent = self.sent.saturating_add(bytes.len() as u64);
    }

    /// Adds whole frames to send, and padding if they do not end in a newline.
    pub fn send_frames(&mut self, frames: &[IoSlice<'_>]) {
        frames.iter().for_each(|frame| self.send(frame));
        if frames.last().and_then(|last| last.last()) != Some(&b'\n') {
            self.send(&Frame::Padding.header().unwrap_or_default());
        }
    }

    /// Writes what the current carrier was not given.
    ///
    /// # Errors
    /// Those of `output`, which has then taken only a part, such as [`ErrorKind::WouldBlock`].
    pub fn write_to(&mut self, output: &mut impl Write) -> io::Result<()> {
        loop {
            let (first, second) = self.kept.as_slices();
            let waiting = usize::try_from(self.sent.saturating_sub(self.given)).unwrap_or(usize::MAX);
            debug_assert!(waiting <= self.kept.len(), "{waiting} bytes to send are not all kept");
            let skipped = self.kept.len().saturating_sub(waiting);
            let rest = first.get(skipped..).unwrap_or_default();
            let second = second.get(skipped.saturating_sub(first.len())..).unwrap_or_default();
            if rest.is_empty() && second.is_empty() {
                return Ok(());
            }
            match output.write_vectored(&[IoSlice::new(rest), IoSlice::new(second)]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.given = self.given.saturating_add(written as u64);
                    if !self.is_resumable() {
                        self.forget(self.given);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns whether the current carrier was given all bytes. What tells the peer the end of the job
    /// must have arrived as well, if other carriers can bring it.
    pub fn is_drained(&self) -> bool {
        if let Phase::Ending(_) = self.phase { self.kept.is_empty() } else { self.given == self.sent }
    }

    /// Notes that `length` bytes have arrived, and sends an ack if one is due. Called when they are
    /// in the decoder, which outlives the carrier. Returns whether there is an ack to write.
    pub fn receive(&mut self, length: usize) -> bool {
        self.received = self.received.saturating_add(length as u64);
        // A peer that is owed more does not read what it is sent.
        let is_owed = self.is_resumable() && self.kept.len() < MAX_KEPT.saturating_mul(2);
        let is_due = is_owed && self.received.saturating_sub(self.told) >= ACK_INTERVAL;
        if is_due {
            self.acknowledge();
        }
        is_due
    }

    /// Sends an ack of all bytes that have arrived.
    pub fn acknowledge(&mut self) {
        self.told = self.received;
        self.send(&Frame::Ack { received: self.received }.header().unwrap_or_default());
    }

    /// Forgets what the peer has. An ack that a later one overtook by a resume means nothing.
    ///
    /// # Errors
    /// The peer can't have that number of bytes. The edge is to be closed.
    pub fn acknowledged(&mut self, received: u64) -> Result<(), EdgeError> {
        if received > self.given {
            return Err(EdgeError::Acknowledged { received, sent: self.given });
        }
        self.forget(received);
        Ok(())
    }

    fn forget(&mut self, position: u64) {
        let from = self.sent.saturating_sub(self.kept.len() as u64);
        let count = usize::try_from(position.saturating_sub(from)).unwrap_or(usize::MAX);
        self.kept.drain(..count.min(self.kept.len()));
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
    /// [`LinkEnd::write_to`] goes on with the first byte that the peer does not have.
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
                (self.given, self.attempt, self.detached) = (received, attempt, None);
                Ok(())
            }
            Frame::Resume { .. } => Err(EdgeError::Session),
            _ => Err(EdgeError::Unexpected("frame before a resume")),
        }
    }

    /// Notes that the current carrier has ended.
    pub fn detach(&mut self, now: Instant) {
        self.detached.get_or_insert(now);
    }

    /// Returns whether the edge has a carrier that has not ended.
    pub fn is_attached(&self) -> bool {
        self.detached.is_none()
    }

    /// Returns when the edge is lost, if it has no carrier, and gets none until then.
    pub fn lost_at(&self) -> Option<Instant> {
        self.detached.filter(|_| self.phase == Phase::Open)?.checked_add(self.limit)
    }

    /// Sends nothing more, except that what was sent before may need another carrier until the
    /// deadline: it tells the peer the end of the job.
    pub fn end(&mut self, until: Instant) {
        if self.phase == Phase::Open {
            self.phase = Phase::Ending(until);
        }
    }

    /// Sends nothing more.
    pub fn close(&mut self) {
        if self.phase == Phase::Open {
            self.phase = Phase::Closed;
        }
    }

    /// Notes that the current carrier has ended, and that no other one follows.
    pub fn abandon(&mut self, now: Instant) {
        self.detach(now);
        self.phase = Phase::Closed;
    }

    /// Returns whether the edge sends nothing more.
    pub fn is_closed(&self) -> bool {
        self.phase != Phase::Open
    }

    /// Returns until when the end of the job may need another carrier, once it was sent.
    pub fn ends_at(&self) -> Option<Instant> {
        if let Phase::Ending(until) = self.phase { Some(until) } else { None }
    }

    /// Returns whether another carrier may follow one that has ended.
    pub fn takes_carriers(&self, now: Instant) -> bool {
        let is_needed = match self.phase {
            Phase::Open => true,
            Phase::Ending(until) => now < until && !self.is_drained(),
            Phase::Closed => false,
        };
        self.is_resumable() && is_needed
    }

    /// Returns the number of bytes that it holds.
    pub fn held(&self) -> usize {
        self.kept.len()
    }
}
