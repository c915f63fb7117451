//! The front end's edges, each to one node, and the events that arrive over them.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, IoSlice};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use iof_engine::Signal;
use iof_nodes::limits::MAX_PIECE;
use iof_nodes::{
    BrokenEnd, BrokenPull, Bundle, ControlError, ExchangeAnswer, FrontEnd, LinkEnd, NodeStart, ToAgent,
    ToFrontEnd,
};
use iof_proto::{Failure, NodeStream, Status, StreamPull, ToTool};
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nix::sys::socket::{Shutdown, shutdown};

use crate::carrier::{CarrierEnd, DRAIN_LIMIT, END_LIMIT, lock};
use crate::greeting::CarrierText;

/// An event of a node.
pub enum NodeEvent {
    /// The agent runs.
    Greeted,
    Message(ToFrontEnd),
    /// The node can't be reached any more, and its end was not due.
    Lost {
        reason: String,
        broken: BrokenEnd,
    },
    /// Nothing has arrived from the agent for this time.
    Silent(Duration),
}

/// An event of the node with this number.
pub type NumberedEvent = (usize, NodeEvent);

/// The front end's handle of one node. The edge ends with the last clone.
#[derive(Clone)]
pub struct Edge(Arc<Handle>);

struct Handle {
    ends: Arc<EdgeEnds>,
    /// Lets the driver look at what has changed.
    look: Box<dyn Fn() + Send + Sync>,
}

/// The two ends of an edge that the front end has, the pure one and the carrier: shared by the
/// handles, the driver, and deliveries that the engine has not taken.
pub struct EdgeEnds {
    state: Mutex<State>,
    changed: Condvar,
    /// Locked while no state is locked.
    text: Mutex<CarrierText>,
}

pub struct State {
    pub front: FrontEnd,
    pub link: LinkEnd,
    /// The current carrier, or the last one.
    pub carrier: CarrierEnd,
    /// The input of the carrier, until all is written or it can't be.
    pub down: Option<File>,
    /// The registration of this input with the driver.
    pub watched: Option<(Arc<Registry>, Token)>,
    /// Messages that were sent while the link had no room. Bounded: answers and credit by their limit, stdin by its replies.
    waiting: VecDeque<Waiting>,
    /// The broken end of a node that was given up, until the driver reports it.
    pub given_up: Option<BrokenEnd>,
}

/// Frames that wait for room.
#[derive(Default)]
struct Waiting {
    /// The values that precede them, in pieces, and the number of bytes of these that were sent. Those of a fence are
    /// the same for all nodes.
    values: Option<(Arc<[u8]>, usize)>,
    frames: Vec<u8>,
    /// An answer counts until it is in the link.
    _answer: Option<Arc<()>>,
}

impl Waiting {
    /// Returns the frame of the next piece.
    fn next_piece(&mut self) -> Option<Vec<u8>> {
        let (values, sent) = self.values.as_mut()?;
        let piece = values.get(*sent..).filter(|rest| !rest.is_empty())?;
        let piece = piece.get(..MAX_PIECE).unwrap_or(piece);
        *sent = sent.saturating_add(piece.len());
        // A piece is within the limits.
        ToAgent::Piece(piece.to_vec()).frame().ok()
    }
}

impl State {
    /// Sends whole frames, which may be an answer. They are lost if the edge has ended.
    fn send(&mut self, frames: Vec<u8>, answer: Option<Arc<()>>) {
        self.send_waiting(Waiting { frames, _answer: answer, values: None });
    }

    fn send_waiting(&mut self, waiting: Waiting) {
        if !self.link.is_closed() {
            self.waiting.push_back(waiting);
            self.write();
        }
    }

    /// Writes what the carrier takes now. The driver goes on when it takes more.
    pub fn write(&mut self) {
        loop {
            while self.link.has_room()
                && let Some(waiting) = self.waiting.front_mut()
            {
                let piece = waiting.next_piece();
                let frames = piece.or_else(|| self.waiting.pop_front().map(|waiting| waiting.frames));
                self.link.send_frames(&[IoSlice::new(&frames.unwrap_or_default())]);
            }
            let Some(down) = &mut self.down else { return };
            match self.link.write_to(down) {
                Ok(()) if !self.waiting.is_empty() && self.link.has_room() => {}
                Ok(()) => break,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break self.await_room(),
                Err(_) => return self.write_failed(),
            }
        }
        if self.link.is_closed() && self.is_drained() {
            // Ends a socket, which has duplicates. A pipe is closed.
            let _ = self.down.take().map(|down| shutdown(down.as_raw_fd(), Shutdown::Write));
        }
    }

    /// Asks for an event when the carrier takes bytes. That is not left to the edges of its readiness: the
    /// kernel also refuses bytes for which it has no memory, and no edge follows if the carrier was
    /// writable all the time.
    fn await_room(&self) {
        if let (Some(down), Some((registry, token))) = (&self.down, &self.watched) {
            let _ = registry.reregister(&mut SourceFd(&down.as_raw_fd()), *token, Interest::WRITABLE);
        }
    }

    /// Goes on writing, unless the input of the carrier `is_closed`.
    pub fn take_event(&mut self, is_closed: bool) {
        if is_closed && self.down.is_some() { self.write_failed() } else { self.write() }
    }

    fn write_failed(&mut self) {
        self.down = None;
        // The driver notices that its output ends.
        if self.link.is_resumable() {
            self.carrier.signal(Signal::TERM);
        }
    }

    /// Returns whether all that was sent is where it is to be, as in [`LinkEnd::is_drained`].
    pub fn is_drained(&self) -> bool {
        self.waiting.is_empty() && self.link.is_drained()
    }

    /// Ends the edge after what was sent, with which the job ends. Another carrier may bring it for a
    /// while.
    fn end(&mut self) {
        // Nothing waits for values now.
        let waiting = self.waiting.drain(..).filter(|waiting| waiting.values.is_none());
        waiting.for_each(|waiting| self.link.send_frames(&[IoSlice::new(&waiting.frames)]));
        self.link.end(Instant::now() + self.link.limit().clamp(DRAIN_LIMIT, END_LIMIT));
        self.write();
    }

    /// Ends the edge: sends nothing of what waits. An agent that would wait for another carrier is told
    /// so; another one ends with its input.
    pub fn hang_up(&mut self) {
        if !self.link.is_closed() {
            self.waiting.clear();
            if self.link.is_resumable() {
                // The message is within its limits.
                self.link.send_frames(&[IoSlice::new(&ToAgent::HangUp.frame().unwrap_or_default())]);
            }
            self.link.close();
        }
        self.write();
    }

    /// Returns whether everything is written, or no carrier brings the rest.
    fn needs_no_carrier(&self) -> bool {
        let is_cut = || !self.link.is_attached() && !self.link.takes_carriers(Instant::now());
        self.is_drained() || is_cut()
    }

    /// Notes that no other carrier follows.
    pub fn abandon(&mut self, now: Instant) {
        self.link.abandon(now);
        self.waiting.clear();
        self.down = None;
    }
}

impl EdgeEnds {
    /// `down` follows later if the agent connects itself.
    pub fn new(host: &str, front: FrontEnd, carrier: CarrierEnd, down: Option<File>) -> EdgeEnds {
        let (link, waiting) = (LinkEnd::default(), VecDeque::new());
        let state = State { front, link, carrier, down, watched: None, waiting, given_up: None };
        let text = Mutex::new(CarrierText::new(host));
        EdgeEnds { state: Mutex::new(state), changed: Condvar::new(), text }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub fn text(&self) -> MutexGuard<'_, CarrierText> {
        lock(&self.text)
    }

    /// Wakes those who wait until the edge is drained.
    pub fn notify(&self) {
        self.changed.notify_all();
    }

    /// Sends an answer to an agent.
    pub fn send_answer(&self, frames: Vec<u8>, answer: Arc<()>) {
        self.state().send(frames, Some(answer));
    }

    /// Sends the answer to an exchange of ranks.
    pub fn send_exchanged(&self, call: u64, answer: ToTool, counted: Arc<()>) {
        let values =
            if let ToTool::Fenced(Ok(values)) = &answer { Some((Arc::clone(values), 0)) } else { None };
        let Some(answer) = ExchangeAnswer::of(answer) else { return };
        let frames = ToAgent::Exchanged { call, answer }.frame().or_else(|error| {
            let failure = Failure::new(Status::ERR_OUT_OF_RESOURCE, error.to_string());
            ToAgent::Exchanged { call, answer: ExchangeAnswer::Found(Err(failure)) }.frame()
        });
        // The second one is within the limits.
        let frames = frames.unwrap_or_default();
        self.state().send_waiting(Waiting { values, frames, _answer: Some(counted) });
    }

    /// Gives credit for bytes of a bundle that are where they belong.
    pub fn give_credit(&self, bundle: Bundle, length: usize) {
        let mut state = self.state();
        if let Some(header) =
            state.front.taken(bundle, length, Instant::now()).and_then(|credit| credit.header())
        {
            let answer = state.front.answer();
            state.send(header.to_vec(), Some(answer));
        }
    }
}

impl Edge {
    /// Returns a handle, which calls `look` when the driver is to look at the edge.
    pub fn new(ends: Arc<EdgeEnds>, look: impl Fn() + Send + Sync + 'static) -> Edge {
        Edge(Arc::new(Handle { ends, look: Box::new(look) }))
    }

    /// Sends a message. It is lost if the edge has ended.
    pub fn send(&self, message: &ToAgent) -> Result<(), ControlError> {
        let frame = message.frame()?;
        let mut state = self.0.ends.state();
        state.send(frame, None);
        if matches!(message, ToAgent::Close | ToAgent::HangUp) {
            state.end();
            drop(state);
            (self.0.look)();
        }
        Ok(())
    }

    /// Notes a piece of stdin that is about to be sent, and which the node answers.
    pub fn note_call(&self, call: u64) {
        self.0.ends.state().front.note_call(call);
    }

    /// Begins to pull streams of the node.
    pub fn pull(&self, pulls: &[StreamPull]) -> Result<(), ControlError> {
        // Before the agent sends any of them.
        self.0.ends.state().front.begin_pulls(pulls);
        self.send(&ToAgent::Pull(pulls.into()))
    }

    /// Ends pulls.
    pub fn end_pulls(&self, pulls: &[u32]) -> Result<(), ControlError> {
        self.0.ends.state().front.end_pulls(pulls);
        self.send(&ToAgent::EndPulls(pulls.into()))
    }

    /// Returns the pulls whose streams have not ended, and whether what is missing may still arrive.
    pub fn open_pulls(&self) -> (Vec<BrokenPull>, bool) {
        let state = self.0.ends.state();
        (state.front.open_pulls().collect(), !state.link.is_closed())
    }

    /// Returns how far the streams of the node have come, also if what is missing does not arrive.
    pub fn streams(&self, is_lost: bool) -> Vec<NodeStream> {
        self.0.ends.state().front.streams(is_lost)
    }

    /// Greets an agent, opens its windows, and lets it prepare the start of its ranks.
    pub fn prepare(&self, start: NodeStart) -> Result<(), ControlError> {
        let mut state = self.0.ends.state();
        let greeting = state.front.greeting();
        state.send(greeting, None);
        drop(state);
        self.send(&ToAgent::Start(start.into()))
    }

    /// Ends the edge, and sends a signal to the carrier and what it has started on this node. An agent
    /// that would wait for another carrier is asked to end instead of SIGTERM.
    pub fn signal_carrier(&self, signal: Signal) {
        // Before the end of the carrier, which takes the text for its reason.
        self.0.ends.text().show(true);
        let mut state = self.0.ends.state();
        state.hang_up();
        let is_asked = state.link.is_resumable() && state.link.is_attached();
        if signal != Signal::TERM || !is_asked {
            state.carrier.signal(signal);
        }
        drop(state);
        (self.0.look)();
    }

    /// Returns whether the carrier could not connect.
    pub fn was_refused(&self) -> bool {
        self.0.ends.state().carrier.was_refused()
    }

    /// Gives up the node, which is reported as lost.
    pub fn give_up(&self) {
        let mut state = self.0.ends.state();
        state.given_up = state.front.cut().or(state.given_up.take());
        drop(state);
        self.signal_carrier(Signal::KILL);
    }

    /// Returns until when the agent can be told the end of the job, once that was sent.
    pub fn ends_at(&self) -> Option<Instant> {
        self.0.ends.state().link.ends_at()
    }

    /// Returns whether the edge has sent everything, or has no carrier for it.
    pub fn is_drained(&self) -> bool {
        self.0.ends.state().needs_no_carrier()
    }

    /// Blocks until the edge has sent everything, or has no carrier for it, until `deadline` at most.
    pub fn drain(&self, deadline: Instant) {
        let mut state = self.0.ends.state();
        while !state.needs_no_carrier() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.0.ends.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.ends.state().hang_up();
        (self.look)();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::io::{Read, Write};

    use iof_proto::Rank;
    use mio::{Events, Poll};
    use nix::sys::eventfd::{EfdFlags, EventFd};

    use super::*;

    #[test]
    fn a_carrier_that_refuses_bytes_although_it_is_writable_is_written_later() {
        // It takes small numbers only, and the first bytes of a frame are a large one.
        let counter = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK).unwrap();
        let mut counter = File::from(std::os::fd::OwnedFd::from(counter));
        counter.write_all(&(u64::MAX - 3).to_ne_bytes()).unwrap();
        let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(8));
        let registry = Arc::new(poll.registry().try_clone().unwrap());
        registry.register(&mut SourceFd(&counter.as_raw_fd()), Token(1), Interest::WRITABLE).unwrap();
        poll.poll(&mut events, None).unwrap();
        let front = FrontEnd::new(&[Rank(0)].into(), 1..=1);
        // The registration is that of the first descriptor.
        let mut same = counter.try_clone().unwrap();
        let ends = EdgeEnds::new("a", front, CarrierEnd::of_connection(None, None), Some(counter));
        let mut state = ends.state();
        state.watched = Some((registry, Token(1)));
        state.send(b"a frame\n".to_vec(), None);
        assert!(!state.is_drained());
        poll.poll(&mut events, Some(Duration::from_secs(60))).unwrap();
        assert!(events.iter().any(|event| event.is_writable()), "there is no event");
        same.read_exact(&mut [0; 8]).unwrap();
        state.take_event(false);
        assert!(state.is_drained());
    }
}
