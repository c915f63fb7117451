//! The edges of an agent that is a relay: what waits for each child, and what ends them. The threads
//! of an edge are in [`child_edge`](super::child_edge).

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use iof_nodes::{ChildUp, EdgeError, Frame, Place, RelayDown, StartRelay, StdinPiece};
use nix::sys::signal::Signal;

use crate::carrier::{CarrierEnd, MAX_STARTS, lock, signal_group};
use crate::carriers::Carriers;
use crate::reattach::{Down, LinkedEdge, Reattach};

/// The interval at which a relay that waits for a child looks whether it must read on.
const READ_INTERVAL: Duration = Duration::from_millis(100);

/// The edges of a relay.
pub struct Relay {
    state: Mutex<State>,
    /// By child: frames wait for it, or its edge has ended.
    wake: Vec<Condvar>,
    /// A child has taken its frames, has greeted, or is lost.
    progress: Condvar,
    carriers: Carriers,
    /// By child, if their carriers may be replaced.
    linked: Vec<Arc<LinkedEdge>>,
}

struct State {
    down: RelayDown,
    /// The carriers that were started, by child.
    carriers: Vec<Option<Arc<Mutex<CarrierEnd>>>>,
    /// The children that are being started, and have not greeted.
    starting: BTreeSet<usize>,
    /// The children that were cut off because too much waited for them.
    overfull: BTreeSet<usize>,
    /// The front end is gone.
    is_closed: bool,
}

/// Whether an edge goes on that was added to those of a relay.
pub enum Added {
    GoesOn,
    /// It was ended meanwhile, or the front end is gone.
    Ended,
}

impl Relay {
    /// Creates the edges to all children, and their ends for what comes up. Frames for them may be
    /// passed at once.
    pub fn new(start: &StartRelay) -> (Arc<Relay>, Vec<ChildUp>) {
        let (down, carriers) = (RelayDown::new(start), Carriers::of_relay(start));
        let reattach = start.reattach.as_ref().map(|reattach| {
            let limit = Duration::from_millis(reattach.limit);
            Reattach::new(carriers.clone(), limit)
        });
        let child_up = if reattach.is_some() { ChildUp::linked } else { ChildUp::new };
        let ups: Vec<ChildUp> = down.places().map(child_up).collect();
        let edge = |reattach: &Reattach| {
            let edges = start.children.len();
            start.children.iter().map(|child| reattach.edge(&child.host, edges)).collect()
        };
        let state = State {
            down,
            carriers: ups.iter().map(|_| None).collect(),
            starting: BTreeSet::new(),
            overfull: BTreeSet::new(),
            is_closed: false,
        };
        let relay = Relay {
            state: Mutex::new(state),
            wake: ups.iter().map(|_| Condvar::new()).collect(),
            progress: Condvar::new(),
            carriers,
            linked: reattach.as_ref().map(edge).unwrap_or_default(),
        };
        (Arc::new(relay), ups)
    }

    pub fn carriers(&self) -> &Carriers {
        &self.carriers
    }

    /// Returns the number of edges.
    pub fn edges(&self) -> usize {
        self.wake.len()
    }

    /// Returns the edge to a child, if its carrier may be replaced.
    pub fn linked(&self, child: usize) -> Option<&Arc<LinkedEdge>> {
        self.linked.get(child)
    }

    /// Passes a frame of the front end to a node behind this one. Blocks while too much waits for a
    /// child, unless the relay must read on.
    pub fn pass(
        &self,
        place: Place,
        frame: &Frame<'_>,
        must_read: impl Fn() -> bool,
    ) -> Result<(), EdgeError> {
        let mut state = lock(&self.state);
        let child = state.down.pass(place, frame)?;
        self.wake(child);
        self.wait_for_room(state, must_read);
        Ok(())
    }

    /// Passes a piece of stdin to the nodes behind this one that are among its targets, as
    /// [`Relay::pass`] does. Leaves the target that is this node.
    pub fn pass_stdin(&self, piece: &mut StdinPiece, must_read: impl Fn() -> bool) -> Result<(), EdgeError> {
        let mut state = lock(&self.state);
        let children = state.down.pass_stdin(piece)?;
        children.into_iter().for_each(|child| self.wake(child));
        self.wait_for_room(state, must_read);
        Ok(())
    }

    /// Blocks while too much waits for a child, unless the relay must read on. Then cuts off a child
    /// for which more waits than the relay holds.
    fn wait_for_room(&self, mut state: MutexGuard<'_, State>, must_read: impl Fn() -> bool) {
        while !state.down.has_room() && !state.is_closed {
            if must_read() {
                let overfull: BTreeSet<usize> = state.down.overfull().collect();
                state.overfull.extend(&overfull);
                drop(state);
                // Its carrier takes nothing, so its agent can't be told.
                overfull.into_iter().for_each(|child| self.end(child, Signal::SIGKILL));
                return;
            }
            let waited = self.progress.wait_timeout(state, READ_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends the edge to the child at this place.
    pub fn cut(&self, place: Place, signal: Signal) {
        let child = lock(&self.state).down.places().position(|places| places.start == place.0);
        if let Some(child) = child {
            self.end(child, signal);
        }
    }

    fn end(&self, child: usize, signal: Signal) {
        let mut state = lock(&self.state);
        // The agent at its end sees the end of its stdin, or `HangUp`.
        state.down.close(child);
        self.wake(child);
        let carrier = state.carriers.get(child).cloned().flatten();
        drop(state);
        // It may wait for others to start, and then does not start any more.
        self.progress.notify_all();
        match (carrier, self.linked(child)) {
            (Some(carrier), Some(linked)) => linked.signal(&carrier, signal),
            (Some(carrier), None) => signal_group(&carrier, signal),
            (None, linked) => linked.into_iter().for_each(|linked| linked.hang_up()),
        }
    }

    /// Ends all edges: the front end is gone, or has ended the edge.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        self.hang_up(&mut state);
        self.progress.notify_all();
        // Agents end with their edge. What still connects is not one.
        let starting = state.starting.iter().filter_map(|child| state.carriers.get(*child)?.clone());
        let starting: Vec<_> = starting.collect();
        drop(state);
        starting.iter().for_each(|carrier| signal_group(carrier, Signal::SIGTERM));
    }

    /// Ends the edges whose agents would otherwise wait for other carriers when this process ends,
    /// and waits until the carriers have what was sent last, until `deadline` at most.
    pub fn finish(&self, deadline: Instant) {
        self.hang_up(&mut lock(&self.state));
        self.linked.iter().for_each(|linked| linked.drain(deadline));
    }

    /// Ends the edges to the children that are not sent the end of the job. The end of the others'
    /// edges follows that.
    fn hang_up(&self, state: &mut State) {
        for child in (0..self.wake.len()).filter(|child| !state.down.is_over(*child)).collect::<Vec<_>>() {
            state.down.close(child);
            self.wake(child);
            self.linked(child).into_iter().for_each(|linked| linked.hang_up());
        }
    }

    fn wake(&self, child: usize) {
        if let Some(wake) = self.wake.get(child) {
            wake.notify_one();
        }
    }

    /// Returns the frames that wait for a child, or `None` when its edge has ended. Blocks until
    /// there are some.
    pub fn take(&self, child: usize) -> Option<Down> {
        let wake = self.wake.get(child)?;
        let mut state = lock(&self.state);
        loop {
            let frames = state.down.take(child)?;
            if !frames.is_empty() {
                self.progress.notify_all();
                return Some(Down { is_last: state.down.is_over(child), ..frames.into() });
            }
            state = wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Blocks until few others are being started. Returns whether the child is to be started, which
    /// counts as being started then; `None` if the front end is gone.
    pub fn wait_for_start(&self, child: usize) -> Option<bool> {
        let mut state = lock(&self.state);
        while state.starting.len() >= MAX_STARTS && !state.down.is_closed(child) {
            state = self.progress.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_closed {
            return None;
        }
        let starts = !state.down.is_closed(child);
        if starts {
            state.starting.insert(child);
        }
        Some(starts)
    }

    /// Notes the carrier of a child, which was started.
    pub fn add_carrier(&self, child: usize, carrier: &Arc<Mutex<CarrierEnd>>) -> Added {
        let mut state = lock(&self.state);
        if let Some(place) = state.carriers.get_mut(child) {
            *place = Some(Arc::clone(carrier));
        }
        if state.down.is_closed(child) {
            // The signal of the one who closed it came too early.
            signal_group(carrier, Signal::SIGTERM);
        }
        if state.is_closed { Added::Ended } else { Added::GoesOn }
    }

    /// Notes that a child has greeted, or is lost.
    pub fn started(&self, child: usize) {
        lock(&self.state).starting.remove(&child);
        self.progress.notify_all();
    }

    /// Returns whether too much waited for a child, which was therefore cut off.
    pub fn was_overfull(&self, child: usize) -> bool {
        lock(&self.state).overfull.contains(&child)
    }

    /// Notes that the edge to a child has ended. Returns whether the front end is there, which is to
    /// be told.
    pub fn lose(&self, child: usize) -> bool {
        self.started(child);
        let mut state = lock(&self.state);
        state.down.close(child);
        let is_alone = state.is_closed;
        drop(state);
        self.wake(child);
        // The relay may have waited for this child to take its frames.
        self.progress.notify_all();
        !is_alone
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::iter;

    use iof_nodes::{ChildNode, Decoder, RelayReattach, ToAgent};

    use super::*;
    use crate::link::CarrierNumber;

    /// Returns whether this is the first message that the carrier of the only child is given if the
    /// relay ends before the thread that passes frames down has passed any.
    fn is_first(message: &ToAgent, passed: Option<&ToAgent>, end: impl FnOnce(&Relay)) -> bool {
        let start = StartRelay {
            rsh: Vec::new(),
            agent: "iof".into(),
            reattach: Some(RelayReattach { link: "iof".into(), limit: 1000 }),
            children: vec![ChildNode { host: "a".into(), nodes: 1 }],
        };
        let (relay, _) = Relay::new(&start);
        if let Some(message) = passed {
            let frame = message.frame(Place::NEXT).unwrap();
            let mut decoder = Decoder::of_front_end();
            decoder.receive(&frame);
            let (_, frame) = decoder.decode().unwrap().unwrap();
            relay.pass(Place(1), &frame, || false).unwrap();
        }
        end(&relay);
        let linked = relay.linked(0).unwrap();
        linked.send_all(iter::from_fn(|| relay.take(0)));
        let mut sent = Vec::new();
        linked.link.write_to(CarrierNumber::default(), &mut sent, &[]).unwrap();
        sent.starts_with(&message.frame(Place::NEXT).unwrap())
    }

    #[test]
    fn a_child_learns_the_end_although_its_relay_ends_first() {
        let end = ToAgent::Close;
        assert!(is_first(&end, Some(&end), |relay| relay.finish(Instant::now())));
        assert!(is_first(&end, Some(&end), |relay| relay.close()));
    }

    #[test]
    fn a_child_that_was_not_sent_the_end_is_hung_up_on() {
        let resize = ToAgent::Resize { rows: 1, columns: 1 };
        for passed in [None, Some(&resize)] {
            assert!(is_first(&ToAgent::HangUp, passed, |relay| relay.finish(Instant::now())));
            assert!(is_first(&ToAgent::HangUp, passed, |relay| relay.close()));
        }
    }
}
