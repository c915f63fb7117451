//! The agent's edge: what its threads send, and the thread that receives.

use std::fs::File;
use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use crossbeam::channel::Sender;
use iof_nodes::{AgentEnd, AgentEvent, Decoder, EdgeError, Frame, Place, ToAgent, ToFrontEnd};
use iof_proto::Channel;
use nix::sys::signal::Signal;

use super::own_files;
use super::relay::Relay;
use super::shared_pipe::SharedPipe;
use crate::error::Failure;
use crate::threads::start_thread;

/// What the agent waits for.
pub enum Input {
    Message(ToAgent),
    Signal(Signal),
    /// The front end has been sent everything.
    Over,
    /// The edge has ended, or the front end broke a rule, for this reason.
    Lost(Option<String>),
}

/// The agent's end of the edge, shared by its threads.
///
/// The thread that receives never sends, so the two ends can't wait for each other.
pub struct Uplink {
    pipe: SharedPipe,
    state: Mutex<State>,
    credit: Condvar,
    /// The edges to further agents, if this one is a relay.
    relay: OnceLock<Arc<Relay>>,
}

struct State {
    end: AgentEnd,
    is_closed: bool,
}

impl Uplink {
    /// Greets the front end and starts to receive.
    pub fn start(inputs: Sender<Input>) -> Result<Arc<Uplink>, Failure> {
        let (down, up) = own_files().map_err(Failure::running)?;
        let state = State { end: AgentEnd::default(), is_closed: false };
        let uplink = Arc::new(Uplink {
            pipe: SharedPipe::new(up),
            state: Mutex::new(state),
            credit: Condvar::new(),
            relay: OnceLock::new(),
        });
        uplink.write(&Frame::HELLO.header().unwrap_or_default());
        let receiving = Arc::clone(&uplink);
        start_thread("iof-down", move || {
            let reason = receiving.receive(down, &inputs);
            receiving.close();
            // The agent may have ended.
            let _ = inputs.send(Input::Lost(reason.err()));
        })?;
        Ok(uplink)
    }

    fn receive(self: &Arc<Self>, mut down: File, inputs: &Sender<Input>) -> Result<(), String> {
        let (mut decoder, mut piece) = (Decoder::of_front_end(), vec![0; 64 << 10]);
        loop {
            let length = match down.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(length) => length,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(format!("cannot read from the front end: {error}")),
            };
            decoder.receive(piece.get(..length).unwrap_or_default());
            let refused = |error: EdgeError| format!("the front end is cut off: {error}");
            while let Some((place, frame)) = decoder.decode().map_err(|error| refused(error.into()))? {
                if place != Place::NEXT {
                    let unknown = EdgeError::Place(place.0, 1);
                    let passed = self.relay.get().ok_or(unknown).and_then(|relay| relay.pass(place, &frame));
                    passed.map_err(refused)?;
                    continue;
                }
                let event = self.state().end.receive(&frame).map_err(refused)?;
                match event {
                    AgentEvent::None => {}
                    AgentEvent::Credit => self.credit.notify_all(),
                    AgentEvent::Message(ToAgent::Relay(start)) => {
                        if self.relay.set(Relay::start(start, self)?).is_err() {
                            return Err(refused(EdgeError::Unexpected("second start of a relay")));
                        }
                    }
                    AgentEvent::Message(ToAgent::CutChild { child }) => {
                        if let Some(relay) = self.relay.get() {
                            relay.cut(child);
                        }
                    }
                    AgentEvent::Message(message) => drop(inputs.send(Input::Message(message))),
                }
            }
        }
    }

    /// Blocks until the front end has room for a record of `channel`. Returns the number of bytes
    /// that the record may have; `None` when the edge has ended.
    pub fn wait_for_window(&self, channel: Channel, waiting: usize) -> Option<usize> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return None;
            }
            match state.end.take_window(channel, waiting) {
                0 => state = self.credit.wait(state).unwrap_or_else(PoisonError::into_inner),
                bytes => return Some(bytes),
            }
        }
    }

    /// Returns the number of bytes that a record of `channel` may have now.
    pub fn take_window(&self, channel: Channel, waiting: usize) -> usize {
        self.state().end.take_window(channel, waiting)
    }

    /// Sends a message. Blocks while the carrier takes nothing.
    pub fn send(&self, message: &ToFrontEnd) {
        // Messages of the agent are within their limits.
        if let Ok(frame) = message.frame() {
            self.write(&frame);
        }
    }

    /// Writes whole frames. Blocks while the carrier takes nothing. When it can't be written, the
    /// edge is closed.
    pub fn write(&self, frames: &[u8]) {
        let written = self.pipe.write(frames);
        if written.is_err() {
            self.close();
        }
    }

    /// Lets threads that wait for credit go on, and ends the edges of a relay.
    pub fn close(&self) {
        self.state().is_closed = true;
        self.credit.notify_all();
        if let Some(relay) = self.relay.get() {
            relay.close();
        }
    }

    pub fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
