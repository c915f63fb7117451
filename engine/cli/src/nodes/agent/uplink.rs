//! The agent's edge: what its threads send, and the thread that receives.

use std::fs::File;
use std::io::{IoSlice, Read};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use crossbeam::channel::Sender;
use iof_nodes::{AgentEnd, AgentEvent, Decoder, EdgeError, Frame, Place, StartRelay, ToAgent, ToFrontEnd};
use iof_proto::Channel;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
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
        uplink.write(&[IoSlice::new(&Frame::HELLO.header().unwrap_or_default())]);
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
                    let relay = self.relay.get().ok_or(unknown).map_err(refused)?;
                    relay.pass(place, &frame, || has_hung_up(&down)).map_err(refused)?;
                    continue;
                }
                let event = self.state().end.receive(&frame).map_err(refused)?;
                match event {
                    AgentEvent::None => {}
                    AgentEvent::Credit => self.credit.notify_all(),
                    AgentEvent::Message(ToAgent::Relay(start)) => self.start_relay(start)?,
                    AgentEvent::Message(ToAgent::CutChild { child, kill }) => {
                        if let Some(relay) = self.relay.get() {
                            relay.cut(child, if kill { Signal::SIGKILL } else { Signal::SIGTERM });
                        }
                    }
                    AgentEvent::Message(message) => drop(inputs.send(Input::Message(message))),
                }
            }
        }
    }

    /// Starts the edges to further agents.
    fn start_relay(self: &Arc<Self>, start: StartRelay) -> Result<(), String> {
        let (relay, ups) = Relay::new(&start);
        if self.relay.set(Arc::clone(&relay)).is_err() {
            return Err("the front end is cut off: unexpected second start of a relay".into());
        }
        if self.is_closed() {
            // Closed before it was known.
            relay.close();
        }
        relay.start(start.children, ups, self)
    }

    /// Takes window for a record of `channel`. Returns whether there was room; if `waits`, blocks
    /// until there is. Returns `None` when the edge has ended.
    pub fn take_window(&self, channel: Channel, bytes: usize, waits: bool) -> Option<bool> {
        let mut state = self.state();
        while !state.is_closed {
            if state.end.take_window(channel, bytes) {
                return Some(true);
            }
            if !waits {
                return Some(false);
            }
            state = self.credit.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// Sends a message. Blocks while the carrier takes nothing.
    pub fn send(&self, message: &ToFrontEnd) {
        // Messages of the agent are within their limits.
        if let Ok(frame) = message.frame() {
            self.write(&[IoSlice::new(&frame)]);
        }
    }

    /// Writes whole frames. Blocks while the carrier takes nothing. When it can't be written, the
    /// edge is closed.
    pub fn write(&self, frames: &[IoSlice<'_>]) {
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

/// Returns whether the other end of a pipe or socket is closed, whatever can still be read.
fn has_hung_up(down: &File) -> bool {
    let mut files = [PollFd::new(down.as_fd(), PollFlags::empty())];
    let hung_up = PollFlags::POLLHUP | PollFlags::POLLERR;
    poll(&mut files, PollTimeout::ZERO).is_ok_and(|ready| {
        ready > 0 && files.iter().any(|file| file.revents().is_some_and(|events| events.intersects(hung_up)))
    })
}
