//! An edge whose carrier may be replaced (`--reattach`): what its threads share.
//!
//! Those who send add to what the edge keeps. One thread for each carrier writes from there, so that
//! a carrier that takes nothing holds back no other one.

use std::io::{self, IoSlice, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use iof_nodes::limits::MAX_RECORD;
use iof_nodes::{EdgeError, Frame, LinkEnd};

use crate::carrier::write_frames;

/// How long the end of an edge waits until a carrier has taken what was sent.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// The number of a carrier of one edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CarrierNumber(u64);

/// One end of an edge whose carrier may be replaced.
#[derive(Default)]
pub struct Link {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    end: LinkEnd,
    /// The current carrier, or the last one.
    carrier: CarrierNumber,
    /// When the carrier has ended, if no other one is there yet.
    detached: Option<Instant>,
    /// How long the edge may be without a carrier.
    patience: Duration,
    /// The current carrier is being written to.
    is_writing: bool,
    /// Nothing more is sent. The carrier ends when all is written.
    is_closed: bool,
    /// Until when a closed edge may get another carrier for the end of the job. Given once that was
    /// sent.
    last_carrier_until: Option<Instant>,
    /// No other carrier follows.
    is_abandoned: bool,
}

impl State {
    fn is_current(&self, carrier: CarrierNumber) -> bool {
        self.carrier == carrier && self.detached.is_none()
    }

    fn is_drained(&self) -> bool {
        self.end.is_drained() && !self.is_writing
    }

    /// Returns whether another carrier may follow one that has ended.
    fn takes_carriers(&self) -> bool {
        let is_awaited = self.last_carrier_until.is_some_and(|until| Instant::now() < until);
        !self.is_abandoned && (!self.is_closed || is_awaited && !self.is_drained())
    }

    /// Returns whether the edge has a carrier, or may get one.
    fn has_carrier(&self) -> bool {
        self.detached.is_none() || self.takes_carriers()
    }
}

/// Appends to what an edge sends.
struct Appender<'a>(&'a mut LinkEnd);

impl Write for Appender<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Link {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, State>, deadline: Option<Instant>) -> MutexGuard<'a, State> {
        match deadline {
            Some(deadline) => {
                let limit = deadline.saturating_duration_since(Instant::now());
                self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
            }
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Sends whole frames. Blocks while too much is kept that the peer does not have.
    pub fn send(&self, frames: &[IoSlice<'_>]) {
        drop(self.append(frames));
    }

    /// Sends the last frames, which tell the peer the end of the job. Blocks as [`Link::send`] does.
    /// If a carrier is missing then, the edge may get another one until `limit` has passed: the peer
    /// may wait for these frames.
    pub fn send_end(&self, frames: &[IoSlice<'_>], limit: Duration) {
        let mut state = self.append(frames);
        if !state.is_closed {
            (state.is_closed, state.last_carrier_until) = (true, Some(Instant::now() + limit));
        }
    }

    fn append(&self, frames: &[IoSlice<'_>]) -> MutexGuard<'_, State> {
        let mut state = self.state();
        while !state.end.has_room() && !state.is_closed {
            state = self.wait(state, None);
        }
        if !state.is_closed {
            // Does not fail.
            let _ = write_frames(Appender(&mut state.end), frames);
            self.changed.notify_all();
        }
        state
    }

    /// Sends a last frame, whatever waits, and nothing more.
    pub fn close_with(&self, frame: &[u8]) {
        let mut state = self.state();
        if !state.is_closed {
            let _ = write_frames(Appender(&mut state.end), &[IoSlice::new(frame)]);
        }
        state.is_closed = true;
        self.changed.notify_all();
    }

    /// Sends nothing more.
    pub fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_all();
    }

    /// Returns whether the peer was sent the end of the job.
    pub fn is_ending(&self) -> bool {
        self.state().last_carrier_until.is_some()
    }

    /// Returns whether a carrier that has ended may be replaced.
    pub fn takes_carriers(&self) -> bool {
        self.state().takes_carriers()
    }

    /// Blocks until the edge is closed and its carrier has taken everything, or has ended and is not
    /// replaced, until `deadline` at most.
    pub fn drain(&self, deadline: Instant) {
        let mut state = self.state();
        while !(state.is_closed && state.is_drained()) && state.has_carrier() && Instant::now() < deadline {
            state = self.wait(state, Some(deadline));
        }
    }

    /// Notes bytes that have arrived and are in the decoder.
    pub fn receive(&self, length: usize) {
        let mut state = self.state();
        state.end.receive(length);
        self.changed.notify_all();
    }

    /// Forgets what the peer has.
    pub fn acknowledged(&self, received: u64) -> Result<(), EdgeError> {
        let mut state = self.state();
        state.end.acknowledged(received)?;
        self.changed.notify_all();
        Ok(())
    }

    /// Writes what is sent to a carrier: first the frame with which it begins, unless it is the first
    /// carrier. Returns when it is replaced, or has all of a closed edge.
    ///
    /// # Errors
    /// The carrier can't be written.
    pub fn write_to(&self, carrier: CarrierNumber, mut pipe: impl Write, first: &[u8]) -> io::Result<()> {
        let mut piece = first.to_vec();
        loop {
            pipe.write_all(&piece)?;
            piece.clear();
            if !self.take(carrier, &mut piece) {
                return Ok(());
            }
        }
    }

    /// Takes the next bytes for a carrier, which has written those before. Blocks until there are
    /// some. Returns whether the carrier goes on.
    fn take(&self, carrier: CarrierNumber, piece: &mut Vec<u8>) -> bool {
        let mut state = self.state();
        loop {
            if !state.is_current(carrier) {
                return false;
            }
            state.is_writing = false;
            state.end.take(piece, MAX_RECORD);
            if !piece.is_empty() {
                state.is_writing = true;
                return true;
            }
            self.changed.notify_all();
            if state.is_closed {
                return false;
            }
            state = self.wait(state, None);
        }
    }

    /// Returns whether the edge has a carrier that has not ended.
    pub fn is_attached(&self) -> bool {
        self.state().detached.is_none()
    }

    /// Returns whether this is the current carrier.
    pub fn is_current(&self, carrier: CarrierNumber) -> bool {
        self.state().is_current(carrier)
    }

    /// Returns whether no other carrier has followed this one. What it delivers is received, also
    /// when it can't be written: the peer may have ended the edge over it.
    pub fn is_latest(&self, carrier: CarrierNumber) -> bool {
        self.state().carrier == carrier
    }

    /// Notes that a carrier has ended.
    pub fn detach(&self, carrier: CarrierNumber) {
        let mut state = self.state();
        if state.is_current(carrier) {
            (state.detached, state.is_writing) = (Some(Instant::now()), false);
            self.changed.notify_all();
        }
    }

    /// Notes that the current carrier has ended, and that no other one follows.
    pub fn abandon(&self) {
        self.detach_current();
        self.state().is_abandoned = true;
        self.changed.notify_all();
    }

    /// Notes that the current carrier has ended.
    pub fn detach_current(&self) {
        let carrier = self.state().carrier;
        self.detach(carrier);
    }

    /// Begins another attempt to bring a carrier. Returns the frame with which that one begins.
    /// Nothing that another carrier delivers is received from now on.
    pub fn begin_attempt(&self, session: u64) -> Vec<u8> {
        self.state().end.begin_attempt();
        self.resume_frame(session)
    }

    /// Returns the frame with which a new carrier begins. Nothing that another carrier delivers is
    /// received from now on.
    pub fn resume_frame(&self, session: u64) -> Vec<u8> {
        let mut state = self.state();
        let frame = state.end.resume_frame(session);
        frame.header().unwrap_or_default().to_vec()
    }

    /// Goes over to a new carrier, over which this frame arrived first. Returns its number.
    ///
    /// # Errors
    /// The frame is not that of this edge, which stays with its carrier.
    pub fn resume(&self, session: u64, frame: &Frame<'_>) -> Result<CarrierNumber, EdgeError> {
        let mut state = self.state();
        if !state.takes_carriers() {
            return Err(EdgeError::Unexpected("resume of an edge that has ended"));
        }
        state.end.resume(session, frame)?;
        state.carrier = CarrierNumber(state.carrier.0.wrapping_add(1));
        (state.detached, state.is_writing) = (None, false);
        self.changed.notify_all();
        Ok(state.carrier)
    }

    /// Sets how long the edge may be without a carrier, at first not at all.
    pub fn set_patience(&self, patience: Duration) {
        self.state().patience = patience;
        self.changed.notify_all();
    }

    /// Blocks until the edge has been without a carrier for too long. Returns for how long it may be;
    /// `None` when the edge is closed.
    pub fn wait_for_loss(&self) -> Option<Duration> {
        let mut state = self.state();
        while !state.is_closed {
            let deadline = state.detached.and_then(|since| since.checked_add(state.patience));
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Some(state.patience);
            }
            state = self.wait(state, deadline);
        }
        None
    }

    /// Blocks for `limit`, or until carriers are not replaced any more. Returns whether they are.
    pub fn wait_for_retry(&self, limit: Duration) -> bool {
        let deadline = Instant::now().checked_add(limit);
        let mut state = self.state();
        while state.takes_carriers() && deadline.is_some_and(|deadline| Instant::now() < deadline) {
            state = self.wait(state, deadline);
        }
        state.takes_carriers()
    }
}
