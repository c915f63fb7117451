//! The agent's edge: what its threads send, and the thread that receives.

use std::io::{IoSlice, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crossbeam::channel::Sender;
use iof_nodes::{AgentEnd, AgentEvent, Decoder, EdgeError, Frame, ToAgent, ToFrontEnd};
use iof_proto::Channel;

use super::AgentError;
use super::shared_pipe::SharedPipe;
use crate::carrier::lock;
use crate::carriers::NodeConnection;
use crate::link::{CarrierNumber, Link};
use crate::thread::start_thread;

/// What the agent waits for.
#[derive(Debug)]
pub enum Input {
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

/// The agent's end of the edge, shared by its threads.
///
/// The thread that receives never sends, so the two ends can't wait for each other.
pub struct Uplink {
    up: Up,
    receiver: Mutex<Receiver>,
    state: Mutex<State>,
    credit: Condvar,
}

/// What the agent writes to.
enum Up {
    Pipe(SharedPipe),
    /// Carriers that replace one another.
    Link(Arc<Link>),
}

/// What the bytes that arrive become, over whichever carrier.
struct Receiver {
    decoder: Decoder,
    inputs: Sender<Input>,
}

struct State {
    end: AgentEnd,
    is_closed: bool,
}

impl Uplink {
    /// Greets the front end and starts to receive.
    pub fn start(
        NodeConnection { down, up }: NodeConnection,
        inputs: Sender<Input>,
    ) -> Result<Arc<Uplink>, AgentError> {
        let uplink = Uplink::new(Up::Pipe(SharedPipe::new(up)), inputs);
        let receiving = Arc::clone(&uplink);
        start_thread("iof-down", move || {
            let reason = receiving.receive(down, CarrierNumber::default());
            receiving.lose(reason.err());
        })?;
        Ok(uplink)
    }

    /// Greets the front end over the first carrier that `link` gets.
    pub fn with_link(link: &Arc<Link>, inputs: Sender<Input>) -> Arc<Uplink> {
        Uplink::new(Up::Link(Arc::clone(link)), inputs)
    }

    fn new(up: Up, inputs: Sender<Input>) -> Arc<Uplink> {
        let uplink = Uplink {
            up,
            receiver: Mutex::new(Receiver { decoder: Decoder::of_front_end(), inputs }),
            state: Mutex::new(State { end: AgentEnd::default(), is_closed: false }),
            credit: Condvar::new(),
        };
        uplink.write(&[IoSlice::new(&Frame::HELLO.header().unwrap_or_default())]);
        Arc::new(uplink)
    }

    /// Returns the link, if carriers may be replaced.
    fn link(&self) -> Option<&Link> {
        match &self.up {
            Up::Link(link) => Some(link),
            Up::Pipe(_) => None,
        }
    }

    /// Ends the edge, for this reason if any.
    pub fn lose(&self, reason: Option<String>) {
        self.close();
        // The agent may have ended.
        let _ = lock(&self.receiver).inputs.send(Input::Lost(reason));
    }

    /// Does something while nothing is received.
    pub fn between_receipts<T>(&self, work: impl FnOnce() -> T) -> T {
        let _receiver = lock(&self.receiver);
        work()
    }

    /// Receives until a carrier ends, or is not the latest one.
    ///
    /// # Errors
    /// The front end has broken a rule, or the only carrier can't be read.
    pub fn receive(&self, mut down: impl Read, carrier: CarrierNumber) -> Result<(), String> {
        let mut piece = vec![0; 64 << 10];
        loop {
            let length = match down.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(length) => length,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                // Such as a socket whose other end was closed before all was read, or a carrier that
                // another one follows.
                Err(_) if self.link().is_some() => return Ok(()),
                Err(error) => return Err(format!("cannot read from the front end: {error}")),
            };
            let mut receiver = lock(&self.receiver);
            if self.link().is_some_and(|link| !link.is_latest(carrier)) {
                return Ok(());
            }
            self.handle(&mut receiver, piece.get(..length).unwrap_or_default())?;
        }
    }

    /// Does what the front end asks for in these bytes.
    fn handle(&self, Receiver { decoder, inputs }: &mut Receiver, bytes: &[u8]) -> Result<(), String> {
        decoder.receive(bytes);
        if let Some(link) = self.link() {
            link.receive(bytes.len());
        }
        let refused = |error: EdgeError| format!("the front end is cut off: {error}");
        while let Some(frame) = decoder.decode().map_err(|error| refused(error.into()))? {
            if let (Some(link), Frame::Ack { received }) = (self.link(), &frame) {
                link.acknowledged(*received).map_err(refused)?;
                continue;
            }
            let event = self.state().end.receive(&frame).map_err(refused)?;
            match event {
                AgentEvent::None => {}
                AgentEvent::Credit => self.credit.notify_all(),
                AgentEvent::Message(message) => drop(inputs.send(Input::Message(message))),
            }
        }
        Ok(())
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

    /// Writes whole frames. Blocks while the carrier takes nothing, or while too much waits for one.
    /// When the only one can't be written, the edge is closed.
    pub fn write(&self, frames: &[IoSlice<'_>]) {
        match &self.up {
            Up::Pipe(pipe) => {
                if pipe.write(frames).is_err() {
                    self.close();
                }
            }
            Up::Link(link) => link.send(frames),
        }
    }

    /// Lets threads that wait for credit go on.
    pub fn close(&self) {
        self.state().is_closed = true;
        self.credit.notify_all();
        if let Some(link) = self.link() {
            link.close();
        }
    }

    pub fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
