//! The edges of an agent that is a relay. Each has a carrier, a thread that starts it and passes
//! frames up, and a thread that passes frames down.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{IoSlice, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use iof_nodes::{ChildNode, ChildUp, EdgeError, Frame, Place, RelayDown, StartRelay, StdinPiece};
use nix::sys::signal::Signal;

use super::uplink::Uplink;
use crate::carrier::{
    Carrier, CarrierEnd, MAX_STARTS, Template, ended, lock, reap, signal_group, write_frames,
};
use crate::thread::start_thread;

/// The interval at which a relay that waits for a child looks whether the front end is gone.
const GONE_INTERVAL: Duration = Duration::from_millis(100);

/// The edges of a relay.
pub struct Relay {
    state: Mutex<State>,
    /// By child: frames wait for it, or its edge has ended.
    wake: Vec<Condvar>,
    /// A child has taken its frames, has greeted, or is lost.
    progress: Condvar,
    template: Template,
    /// The shell command of an agent.
    agent: OsString,
}

struct State {
    down: RelayDown,
    /// The carriers that were started, by child.
    carriers: Vec<Option<Arc<Mutex<CarrierEnd>>>>,
    /// The children that are being started, and have not greeted.
    starting: BTreeSet<usize>,
    /// The front end is gone.
    is_closed: bool,
}

/// A carrier's output, and the carrier.
type StartedCarrier = (File, Arc<Mutex<CarrierEnd>>);

/// Why an edge did not start, and its carrier if that runs.
type NotStarted = (String, Option<Arc<Mutex<CarrierEnd>>>);

/// One edge, as its thread that passes frames up sees it.
struct ChildEdge {
    relay: Arc<Relay>,
    uplink: Arc<Uplink>,
    child: usize,
    host: String,
    up: ChildUp,
}

impl Relay {
    /// Creates the edges to all children, and their ends for what comes up. Frames for them may be
    /// passed at once.
    pub fn new(start: &StartRelay) -> (Arc<Relay>, Vec<ChildUp>) {
        let down = RelayDown::new(start);
        let ups: Vec<ChildUp> = down.places().map(ChildUp::new).collect();
        let carriers = ups.iter().map(|_| None).collect();
        let wake = ups.iter().map(|_| Condvar::new()).collect();
        let state = State { down, carriers, starting: BTreeSet::new(), is_closed: false };
        let (state, template) = (Mutex::new(state), Template::of_words(start.rsh.clone()));
        let agent = start.agent.clone();
        (Arc::new(Relay { state, wake, progress: Condvar::new(), template, agent }), ups)
    }

    /// Starts the threads of the edges.
    pub fn start(
        self: &Arc<Self>,
        children: Vec<ChildNode>,
        ups: Vec<ChildUp>,
        uplink: &Arc<Uplink>,
    ) -> Result<(), String> {
        for (child, (node, up)) in children.into_iter().zip(ups).enumerate() {
            let (relay, uplink) = (Arc::clone(self), Arc::clone(uplink));
            let edge = ChildEdge { relay, uplink, child, host: node.host, up };
            start_thread("iof-up", move || edge.run()).map_err(|_| "cannot start a thread".to_owned())?;
        }
        Ok(())
    }

    /// Passes a frame of the front end to a node behind this one. Blocks while too much waits for a
    /// child, unless `is_gone` finds that the front end is gone.
    pub fn pass(&self, place: Place, frame: &Frame<'_>, is_gone: impl Fn() -> bool) -> Result<(), EdgeError> {
        let mut state = lock(&self.state);
        let child = state.down.pass(place, frame)?;
        self.wake(child);
        self.wait_for_room(state, is_gone);
        Ok(())
    }

    /// Passes a piece of stdin to the nodes behind this one that are among its targets, as
    /// [`Relay::pass`] does. Leaves the target that is this node.
    pub fn pass_stdin(&self, piece: &mut StdinPiece, is_gone: impl Fn() -> bool) -> Result<(), EdgeError> {
        let mut state = lock(&self.state);
        let children = state.down.pass_stdin(piece)?;
        children.into_iter().for_each(|child| self.wake(child));
        self.wait_for_room(state, is_gone);
        Ok(())
    }

    /// Blocks while too much waits for a child, unless `is_gone` finds that the front end is gone.
    fn wait_for_room(&self, mut state: MutexGuard<'_, State>, is_gone: impl Fn() -> bool) {
        while !state.down.has_room() && !state.is_closed && !is_gone() {
            let waited = self.progress.wait_timeout(state, GONE_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends the edge to the child at this place.
    pub fn cut(&self, place: Place, signal: Signal) {
        let mut state = lock(&self.state);
        let Some(child) = state.down.places().position(|places| places.start == place.0) else { return };
        // The agent at its end sees the end of its stdin.
        state.down.close(child);
        self.wake(child);
        let carrier = state.carriers.get(child).cloned().flatten();
        drop(state);
        // It may wait for others to start, and then does not start any more.
        self.progress.notify_all();
        if let Some(carrier) = carrier {
            signal_group(&carrier, signal);
        }
    }

    /// Ends all edges: the front end is gone.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        for child in 0..self.wake.len() {
            state.down.close(child);
            self.wake(child);
        }
        self.progress.notify_all();
        // Agents end with their edge. What still connects is not one.
        let starting = state.starting.iter().filter_map(|child| state.carriers.get(*child)?.clone());
        let starting: Vec<_> = starting.collect();
        drop(state);
        starting.iter().for_each(|carrier| signal_group(carrier, Signal::SIGTERM));
    }

    fn wake(&self, child: usize) {
        if let Some(wake) = self.wake.get(child) {
            wake.notify_one();
        }
    }

    /// Returns the frames that wait for a child, or `None` when its edge has ended. Blocks until
    /// there are some.
    fn take(&self, child: usize) -> Option<Vec<u8>> {
        let wake = self.wake.get(child)?;
        let mut state = lock(&self.state);
        loop {
            let frames = state.down.take(child)?;
            if !frames.is_empty() {
                self.progress.notify_all();
                return Some(frames);
            }
            state = wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notes that a child has greeted, or is lost.
    fn started(&self, child: usize) {
        lock(&self.state).starting.remove(&child);
        self.progress.notify_all();
    }
}

impl ChildEdge {
    fn run(mut self) {
        let (reason, carrier) = match self.start() {
            Ok(Some((pipe, carrier))) => match self.receive(pipe) {
                Ok(()) => (ended(&carrier), Some(carrier)),
                Err(reason) => {
                    signal_group(&carrier, Signal::SIGTERM);
                    (reason, Some(carrier))
                }
            },
            Ok(None) => return,
            Err(not_started) => not_started,
        };
        self.lose(&reason);
        if let Some(carrier) = carrier {
            reap(&carrier);
        }
    }

    /// Starts the carrier when few others are being started, and the thread that passes frames
    /// down. Returns `None` if the front end is gone.
    ///
    /// # Errors
    /// [`NotStarted`]. The carrier was asked to end.
    fn start(&self) -> Result<Option<StartedCarrier>, NotStarted> {
        let relay = &self.relay;
        let mut state = lock(&relay.state);
        while state.starting.len() >= MAX_STARTS && !state.down.is_closed(self.child) {
            state = relay.progress.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_closed {
            return Ok(None);
        }
        if state.down.is_closed(self.child) {
            return Err(("it was not started".into(), None));
        }
        state.starting.insert(self.child);
        drop(state);
        let started = relay.template.start(&self.host, &relay.agent, relay.wake.len(), false);
        let Carrier { end, down, up } = started.map_err(|error| (format!("{error} (see --rsh)"), None))?;
        let carrier = Arc::new(Mutex::new(end));
        let mut state = lock(&relay.state);
        if let Some(place) = state.carriers.get_mut(self.child) {
            *place = Some(Arc::clone(&carrier));
        }
        if state.down.is_closed(self.child) {
            // The signal of the one who closed it came too early.
            signal_group(&carrier, Signal::SIGTERM);
        }
        let is_alone = state.is_closed;
        drop(state);
        if is_alone {
            reap(&carrier);
            return Ok(None);
        }
        let (relay, child) = (Arc::clone(relay), self.child);
        if start_thread("iof-down", move || send(&relay, child, down)).is_err() {
            signal_group(&carrier, Signal::SIGTERM);
            return Err(("its relay cannot start a thread".to_owned(), Some(carrier)));
        }
        Ok(Some((up, carrier)))
    }

    /// Passes frames up until the carrier ends its output, or the front end is gone.
    ///
    /// # Errors
    /// The child has broken a rule, or its output can't be read.
    fn receive(&mut self, mut pipe: File) -> Result<(), String> {
        let (mut piece, mut frames) = (vec![0; 64 << 10], Vec::new());
        while !self.uplink.is_closed() {
            let length = match pipe.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(length) => length,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(format!("cannot read from its carrier: {error}")),
            };
            let is_starting = !self.up.has_greeted();
            let passed = self.up.pass(piece.get(..length).unwrap_or_default(), &mut frames);
            if is_starting && self.up.has_greeted() {
                self.relay.started(self.child);
            }
            if !frames.is_empty() {
                self.uplink.write(&[IoSlice::new(&frames)]);
                frames.clear();
            }
            passed.map_err(|error| format!("its agent is cut off: {error}"))?;
        }
        Ok(())
    }

    /// Tells the front end that the edge has ended.
    fn lose(&self, reason: &str) {
        self.relay.started(self.child);
        let mut state = lock(&self.relay.state);
        state.down.close(self.child);
        let is_alone = state.is_closed;
        drop(state);
        self.relay.wake(self.child);
        // The relay may have waited for this child to take its frames.
        self.relay.progress.notify_all();
        if !is_alone {
            self.uplink.send(&self.up.lost(reason));
        }
    }
}

/// Writes the frames for a child until its edge has ended or can't be written. The thread that
/// passes frames up notices that it has ended.
fn send(relay: &Relay, child: usize, mut pipe: File) {
    while let Some(frames) = relay.take(child) {
        if write_frames(&mut pipe, &[IoSlice::new(&frames)]).is_err() {
            return;
        }
    }
}
