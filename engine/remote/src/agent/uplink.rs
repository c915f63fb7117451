//! The agent's edge: what its threads send, and what the current carrier delivers.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam::channel::Sender;
use iof_nodes::{AgentEnd, AgentEvent, Bundle, EdgeError, Frame, FrameDecoder, LinkEnd, ToAgent, ToFrontEnd};

use super::carrier_files::{CarrierOutput, WaitEnd, write_frames};
use crate::carrier::lock;

/// The events for which the agent waits.
#[derive(Debug)]
pub enum AgentInput {
    Message(ToAgent),
    /// The embedder ends the agent.
    Stop,
    /// The front end has been sent everything.
    Over,
    /// Files accept nothing after the end of the ranks.
    FilesBlocked,
    /// The edge has ended, or the front end broke a rule, for this reason.
    Lost(Option<String>),
}

/// The number of a carrier of the edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CarrierNumber(u64);

/// A carrier, whose threads end with it.
pub struct AgentCarrier {
    /// The output to the carrier, unless it can't be written.
    pub output: Option<Arc<CarrierOutput>>,
    /// The connection to its process; `None` for the first carrier.
    pub connection: Option<UnixStream>,
    /// Lets its threads end when another one follows.
    pub end: Option<WaitEnd>,
}

/// The agent's end of the edge, shared by its threads.
///
/// Threads write in the order in which they ask. So a lone line waits for at most one turn of each
/// other writer, whatever they have to write. A mutex lets the thread that has just released it lock
/// it again, and so a busy thread keeps others from writing.
///
/// The thread that receives never waits until it can send, so the two ends can't wait for each other.
pub struct Uplink {
    /// The frames that have arrived, over whichever carrier.
    decoder: Mutex<FrameDecoder>,
    inputs: Sender<AgentInput>,
    state: Mutex<State>,
    /// Credit, room, a turn, or another carrier.
    changed: Condvar,
}

struct State {
    end: AgentEnd,
    link: LinkEnd,
    /// The current carrier, or the last one.
    carrier: AgentCarrier,
    number: CarrierNumber,
    /// The turn of the next thread that writes.
    next_turn: u64,
    turn: u64,
}

impl State {
    /// Notes that the carrier has ended.
    fn detach(&mut self) {
        self.link.detach(Instant::now());
        (self.carrier.output, self.carrier.connection) = (None, None);
    }

    /// Notes that the carrier can't be written. Without another one, the edge is closed, and ends once
    /// what has arrived is received: the carrier's input may stay open.
    fn write_failed(&mut self) {
        if self.link.is_resumable() {
            self.detach();
        } else {
            (self.carrier.output, self.carrier.end) = (None, None);
            self.link.close();
        }
    }
}

impl Uplink {
    /// Greets the front end over the first carrier.
    pub fn new(carrier: AgentCarrier, inputs: Sender<AgentInput>) -> Arc<Uplink> {
        let uplink = Uplink {
            decoder: Mutex::new(FrameDecoder::of_front_end()),
            inputs,
            state: Mutex::new(State {
                end: AgentEnd::default(),
                link: LinkEnd::default(),
                carrier,
                number: CarrierNumber::default(),
                next_turn: 0,
                turn: 0,
            }),
            changed: Condvar::new(),
        };
        uplink.write(&[IoSlice::new(&Frame::HELLO.header().unwrap_or_default())]);
        Arc::new(uplink)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, State>, until: Option<Instant>) -> MutexGuard<'a, State> {
        match until.map(|until| until.saturating_duration_since(Instant::now())) {
            Some(limit) => self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0,
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Ends the edge, for this reason if any.
    pub fn lose(&self, reason: Option<String>) {
        self.close();
        // The agent may have ended.
        let _ = self.inputs.send(AgentInput::Lost(reason));
    }

    /// Receives until a carrier ends, or another one follows.
    pub fn receive(&self, down: impl Read, number: CarrierNumber) {
        let received = self.receive_all(down, number);
        let mut state = self.state();
        let is_only = !state.link.is_resumable();
        if state.number == number {
            state.detach();
            self.changed.notify_all();
        }
        drop(state);
        if is_only || received.is_err() {
            self.lose(received.err());
        }
    }

    /// Receives from a carrier.
    ///
    /// # Errors
    /// The front end has broken a rule, or the only carrier can't be read.
    fn receive_all(&self, mut down: impl Read, number: CarrierNumber) -> Result<(), String> {
        let mut piece = vec![0; 64 << 10];
        loop {
            let length = match down.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // Such as a socket whose other end was closed before all was read, or a carrier that
                // another one follows, or that can't be written.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => return Ok(()),
                Err(_) if self.state().link.is_resumable() => return Ok(()),
                Err(error) => return Err(format!("cannot read from the front end: {error}")),
            };
            let mut decoder = lock(&self.decoder);
            if self.state().number != number {
                return Ok(());
            }
            self.handle(&mut decoder, piece.get(..length).unwrap_or_default())?;
        }
    }

    /// Does what the front end asks for in these bytes.
    fn handle(&self, decoder: &mut FrameDecoder, bytes: &[u8]) -> Result<(), String> {
        decoder.receive(bytes);
        let mut state = self.state();
        if state.link.receive(bytes.len()) {
            drop(self.flush(state, |_| false));
        } else {
            drop(state);
        }
        let refused = |error: EdgeError| format!("the front end is cut off: {error}");
        while let Some(frame) = decoder.decode().map_err(|error| refused(error.into()))? {
            let mut state = self.state();
            if let Frame::Ack { received } = frame {
                let had_room = state.link.has_room();
                state.link.acknowledged(received).map_err(refused)?;
                if !had_room {
                    self.changed.notify_all();
                }
                continue;
            }
            match state.end.receive(&frame).map_err(refused)? {
                AgentEvent::None => {}
                AgentEvent::Credit => self.changed.notify_all(),
                AgentEvent::Message(message) => drop(self.inputs.send(AgentInput::Message(message))),
            }
        }
        Ok(())
    }

    /// Takes window for a record of `bundle`. Returns whether there was room; if `waits`, blocks
    /// until there is. Returns `None` when the edge has ended.
    pub fn take_window(&self, bundle: Bundle, bytes: usize, waits: bool) -> Option<bool> {
        let mut state = self.state();
        while !state.link.is_closed() {
            if state.end.take_window(bundle, bytes) {
                return Some(true);
            }
            if !waits {
                return Some(false);
            }
            state = self.wait(state, None);
        }
        None
    }

    /// Sends a message. Blocks while the carrier takes nothing. Returns whether the message is within its limits and the
    /// edge has not ended.
    pub fn send(&self, message: &ToFrontEnd) -> bool {
        let Ok(frame) = message.frame() else { return false };
        self.write(&[IoSlice::new(&frame)]);
        !self.is_closed()
    }

    /// Writes whole frames when it is the turn of this thread. Blocks while the carrier takes nothing,
    /// or while too much is kept.
    pub fn write(&self, frames: &[IoSlice<'_>]) {
        let mut state = self.state();
        let own = state.next_turn;
        state.next_turn = own.wrapping_add(1);
        while state.turn != own || !state.link.has_room() && !state.link.is_closed() {
            state = self.wait(state, None);
        }
        match state.carrier.output.clone() {
            _ if state.link.is_closed() => {}
            // The bytes are not needed again, so they are not copied.
            Some(output) if output.is_only() => {
                drop(state);
                let written = write_frames(&*output, frames);
                state = self.state();
                if written.is_err() {
                    state.write_failed();
                    self.changed.notify_all();
                }
            }
            _ => {
                state.link.send_frames(frames);
                state = self.flush(state, |_| true);
            }
        }
        state.turn = own.wrapping_add(1);
        if state.turn != state.next_turn {
            self.changed.notify_all();
        }
    }

    /// Writes what is kept for the current carrier. Blocks until that has it all, as long as `waits`
    /// returns `true`.
    fn flush<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        waits: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        while let Some(output) = state.carrier.output.clone() {
            match state.link.write_to(&mut &*output) {
                Ok(()) => break,
                Err(error) if error.kind() == ErrorKind::WouldBlock && waits(&state) => {
                    drop(state);
                    output.wait();
                    state = self.state();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    state.write_failed();
                    self.changed.notify_all();
                }
            }
        }
        if state.link.is_closed() {
            // It may be drained.
            self.changed.notify_all();
        }
        state
    }

    /// Writes what is kept to a carrier that has followed another one. Blocks until it has it all, or
    /// yet another one follows.
    pub fn write_kept(&self, number: CarrierNumber) {
        drop(self.flush(self.state(), |state| state.number == number));
    }

    /// Goes over to a new carrier, over which this frame arrived first. Returns its number. Nothing that
    /// the old carrier delivers is received from here on.
    ///
    /// # Errors
    /// The frame is not that of this edge, which stays with its carrier.
    pub fn resume(
        &self,
        session: u64,
        frame: &Frame<'_>,
        carrier: AgentCarrier,
    ) -> Result<CarrierNumber, EdgeError> {
        let _decoder = lock(&self.decoder);
        let mut state = self.state();
        if !state.link.takes_carriers(Instant::now()) {
            return Err(EdgeError::Unexpected("resume of an edge that has ended"));
        }
        state.link.resume(session, frame)?;
        state.number = CarrierNumber(state.number.0.wrapping_add(1));
        // The process and the threads of the old carrier end.
        state.carrier = carrier;
        let first = state.link.resume_frame(session).header().unwrap_or_default();
        let output = state.carrier.output.clone();
        // A new carrier takes a header at once.
        if output.is_some_and(|output| (&*output).write_all(&first).is_err()) {
            state.detach();
        }
        self.changed.notify_all();
        Ok(state.number)
    }

    /// Notes that the threads of a carrier could not be started. Ends its process.
    pub fn lacks_threads(&self, number: CarrierNumber) {
        let mut state = self.state();
        if state.number == number {
            state.detach();
            state.carrier.end = None;
            self.changed.notify_all();
        }
    }

    /// Lets the edge be without a carrier for this time from now on.
    pub fn outlive_carriers(&self, limit: Duration) {
        self.state().link.outlive_carriers(limit);
    }

    /// Blocks until the edge has no carrier, and returns `true`; `false` when the edge has ended.
    pub fn wait_for_carrier_end(&self) -> bool {
        let mut state = self.state();
        while state.link.is_attached() && !state.link.is_closed() {
            state = self.wait(state, None);
        }
        !state.link.is_closed()
    }

    /// Blocks until the edge has been without a carrier for too long, and then ends it.
    pub fn wait_for_loss(&self) {
        let mut state = self.state();
        while !state.link.is_closed() {
            let deadline = state.link.lost_at();
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let time = state.link.limit().as_secs_f64();
                drop(state);
                return self.lose(Some(format!("no connection reached the agent for {time} s")));
            }
            state = self.wait(state, deadline);
        }
    }

    /// Sends nothing more. Lets threads that wait go on.
    pub fn close(&self) {
        self.state().link.close();
        self.changed.notify_all();
    }

    pub fn is_closed(&self) -> bool {
        self.state().link.is_closed()
    }

    /// Sends nothing more, except that all has arrived: the front end waits for that at the end of the
    /// job. Blocks until the carrier has taken everything, or has ended, until `deadline` at most.
    pub fn drain(&self, deadline: Instant) {
        self.close();
        let mut state = self.state();
        if state.link.is_resumable() {
            state.link.acknowledge();
            state = self.flush(state, |_| false);
        }
        while !state.link.is_drained() && state.link.is_attached() && Instant::now() < deadline {
            state = self.wait(state, Some(deadline));
        }
    }
}
