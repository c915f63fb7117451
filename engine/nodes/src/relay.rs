//! What an agent passes on between the front end and the agents behind its own edges.
//!
//! A relay drops nothing and has no window. Down, frames wait for each child; when
//! [`MAX_RELAY_DOWN`] bytes wait for one, the relay ceases to read what the front end sends. Up, a
//! relay holds at most what it read from each child at once, and reads on when that is written. All
//! that writes to the edge to the front end takes turns.
//!
//! If carriers may be replaced, a relay and its child are the two ends of an edge
//! ([`LinkEnd`](crate::LinkEnd)): what concerns only that edge, the relay keeps to itself
//! ([`ChildNote`]). Such a relay must read on while it has no room to send: the acks that it waits
//! for may be behind what waits for a child.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::ops::Range;

use crate::EdgeError;
use crate::control::{
    LinkAddress, StartRelay, StdinPiece, StdinTarget, ToAgent, ToFrontEnd, cut_text, decode,
};
use crate::frame::{Decoder, Frame, Place};
use crate::limits::MAX_RELAY_DOWN;

/// The children of a relay, and the frames that wait for them.
#[derive(Debug, Default)]
pub struct RelayDown {
    children: Vec<ChildDown>,
}

#[derive(Debug)]
struct ChildDown {
    places: Range<u32>,
    /// Whole frames.
    waiting: Vec<u8>,
    /// The front end has told the child that it has everything.
    is_over: bool,
    is_closed: bool,
}

impl ChildDown {
    /// Returns whether frames are queued for the child.
    fn is_open(&self) -> bool {
        !self.is_closed && !self.is_over
    }

    /// Returns what the child calls the node that this one calls `place`.
    fn inner(&self, place: Place) -> Place {
        Place(place.0.saturating_sub(self.places.start))
    }
}

impl RelayDown {
    /// Creates the children of a relay: the agents that it is to start, with the nodes behind them.
    pub fn new(relay: &StartRelay) -> RelayDown {
        let mut next = 1u32;
        let mut child = |nodes: u32| {
            let end = next.saturating_add(nodes);
            let places = mem::replace(&mut next, end)..end;
            ChildDown { places, waiting: Vec::new(), is_over: false, is_closed: false }
        };
        RelayDown { children: relay.children.iter().map(|node| child(node.nodes)).collect() }
    }

    /// Returns the places behind each edge of the relay.
    pub fn places(&self) -> impl Iterator<Item = Range<u32>> {
        self.children.iter().map(|child| child.places.clone())
    }

    /// Queues a frame for a node behind this one. Returns the number of the child that has the node
    /// behind its edge. Frames for a child whose edge has ended are dropped, as are those that
    /// follow the end of the job.
    ///
    /// # Errors
    /// The node does not exist.
    pub fn pass(&mut self, place: Place, frame: &Frame<'_>) -> Result<usize, EdgeError> {
        let number = self.child(place)?;
        if let Some(child) = self.children.get_mut(number).filter(|child| child.is_open()) {
            let inner = child.inner(place);
            child.is_over |= inner == Place::NEXT && is_close(frame);
            frame.append_to(&mut child.waiting, inner);
        }
        Ok(number)
    }

    /// Queues a piece of stdin once for each child behind whose edge are some of its targets.
    /// Returns the numbers of these children. Removes their targets from `piece`: what is left is
    /// for this node.
    ///
    /// # Errors
    /// A node does not exist. Nothing is queued then.
    pub fn pass_stdin(&mut self, piece: &mut StdinPiece) -> Result<Vec<usize>, EdgeError> {
        let (own, behind): (Vec<StdinTarget>, Vec<StdinTarget>) =
            mem::take(&mut piece.targets).into_iter().partition(|target| target.place == Place::NEXT);
        piece.targets = own;
        let mut by_child: BTreeMap<usize, Vec<StdinTarget>> = BTreeMap::new();
        for target in behind {
            by_child.entry(self.child(target.place)?).or_default().push(target);
        }
        let mut passed = Vec::new();
        for (number, mut targets) in by_child {
            passed.push(number);
            let Some(child) = self.children.get_mut(number).filter(|child| child.is_open()) else {
                continue;
            };
            targets.iter_mut().for_each(|target| target.place = child.inner(target.place));
            let piece = StdinPiece { call: piece.call, targets, bytes: piece.bytes.clone() };
            child.waiting.extend(ToAgent::Stdin(piece).frame(Place::NEXT)?);
        }
        Ok(passed)
    }

    /// Returns the number of the child that has the node at `place` behind its edge.
    fn child(&self, place: Place) -> Result<usize, EdgeError> {
        let nodes = self.children.last().map_or(1, |child| child.places.end);
        let found = self.children.iter().position(|child| child.places.contains(&place.0));
        found.ok_or(EdgeError::Place(place.0, nodes))
    }

    /// Returns whether the relay reads on what the front end sends.
    pub fn has_room(&self) -> bool {
        self.children.iter().all(|child| child.waiting.len() < MAX_RELAY_DOWN)
    }

    /// Returns the children that a relay which must read on is to cut off.
    pub fn overfull(&self) -> impl Iterator<Item = usize> {
        let is_overfull = |child: &ChildDown| child.waiting.len() >= MAX_RELAY_DOWN.saturating_mul(2);
        (0..).zip(&self.children).filter(move |(_, child)| is_overfull(child)).map(|(number, _)| number)
    }

    /// Returns whether the front end has told a child that it has everything, so that the child
    /// ends.
    pub fn is_over(&self, child: usize) -> bool {
        self.children.get(child).is_none_or(|child| child.is_over)
    }

    /// Returns all frames that wait for a child; `None` if its edge has ended.
    pub fn take(&mut self, child: usize) -> Option<Vec<u8>> {
        let child = self.children.get_mut(child).filter(|child| !child.is_closed)?;
        Some(mem::take(&mut child.waiting))
    }

    /// Returns the number of bytes that wait for a child.
    pub fn held(&self, child: usize) -> usize {
        self.children.get(child).map_or(0, |child| child.waiting.len())
    }

    /// Notes that the edge to a child has ended, or is to end. Returns whether that is new.
    pub fn close(&mut self, child: usize) -> bool {
        let Some(child) = self.children.get_mut(child) else { return false };
        child.waiting = Vec::new();
        !mem::replace(&mut child.is_closed, true)
    }

    /// Returns whether the edge to a child has ended, or is to end.
    pub fn is_closed(&self, child: usize) -> bool {
        self.children.get(child).is_none_or(|child| child.is_closed)
    }
}

/// Returns whether a frame tells an agent that the front end has everything.
fn is_close(frame: &Frame<'_>) -> bool {
    matches!(frame, Frame::Control(payload) if matches!(decode(payload), Ok(ToAgent::Close)))
}

/// What a child tells its relay about their edge, whose carrier may be replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChildNote {
    /// The number of bytes that have arrived at the child.
    Acknowledged(u64),
    /// Where the child listens for carriers.
    Address(LinkAddress),
}

/// What a relay passes up from one of its children.
#[derive(Debug)]
pub struct ChildUp {
    places: Range<u32>,
    decoder: Decoder,
    has_greeted: bool,
    /// The carrier may be replaced.
    is_linked: bool,
}

impl ChildUp {
    /// Creates the end of an edge behind which are the nodes with these places.
    pub fn new(places: Range<u32>) -> ChildUp {
        ChildUp { places, decoder: Decoder::of_agent(), has_greeted: false, is_linked: false }
    }

    /// Creates the end of such an edge whose carrier may be replaced.
    pub fn linked(places: Range<u32>) -> ChildUp {
        ChildUp { is_linked: true, ..ChildUp::new(places) }
    }

    /// Processes bytes that were read from the child, and appends to `up` the frames that are
    /// whole. Returns what is for the relay.
    ///
    /// # Errors
    /// [`EdgeError`]: the edge to the child is to be closed. What was appended is to be sent.
    pub fn pass(&mut self, bytes: &[u8], up: &mut Vec<u8>) -> Result<Vec<ChildNote>, EdgeError> {
        self.decoder.receive(bytes);
        let nodes = self.places.end.saturating_sub(self.places.start);
        let mut notes = Vec::new();
        while let Some((place, frame)) = self.decoder.decode()? {
            let outer = self.places.start.checked_add(place.0).filter(|place| self.places.contains(place));
            let outer = outer.ok_or(EdgeError::Place(place.0, nodes))?;
            match frame {
                Frame::Hello { .. } if place == Place::NEXT => self.has_greeted = true,
                _ if !self.has_greeted => return Err(EdgeError::NoHello),
                Frame::Padding => continue,
                Frame::Ack { received } if self.is_linked => {
                    notes.push(ChildNote::Acknowledged(received));
                    continue;
                }
                Frame::Control(payload) if self.is_linked && place == Place::NEXT => {
                    if let ToFrontEnd::Link(address) = ToFrontEnd::decode(payload)? {
                        notes.push(ChildNote::Address(address));
                        continue;
                    }
                }
                Frame::Ack { .. } | Frame::Resume { .. } => {
                    return Err(EdgeError::Unexpected("frame of a link"));
                }
                _ => {}
            }
            frame.append_to(up, Place(outer));
        }
        Ok(notes)
    }

    /// Returns whether the agent at the end of the edge has sent anything.
    pub fn has_greeted(&self) -> bool {
        self.has_greeted
    }

    /// Returns the message about the end of the edge.
    pub fn lost(&self, reason: &str) -> ToFrontEnd {
        ToFrontEnd::ChildLost { child: Place(self.places.start), reason: cut_text(reason) }
    }

    /// Returns the number of bytes that it holds.
    pub fn held(&self) -> usize {
        self.decoder.held()
    }
}

/// The turns of those who write to one pipe: first come, first served. So a lone line waits for at
/// most one turn of each other writer, whatever they have to write.
#[derive(Debug)]
pub struct Turns<T> {
    waiting: VecDeque<T>,
    is_taken: bool,
}

impl<T> Default for Turns<T> {
    fn default() -> Turns<T> {
        Turns { waiting: VecDeque::new(), is_taken: false }
    }
}

impl<T> Turns<T> {
    /// Begins a turn if the pipe is free. Returns whether it was.
    pub fn begin(&mut self) -> bool {
        !mem::replace(&mut self.is_taken, true)
    }

    /// Lets a writer wait until [`Turns::end`] returns it.
    pub fn wait(&mut self, writer: T) {
        self.waiting.push_back(writer);
    }

    /// Ends the turn. Returns the writer whose turn begins.
    pub fn end(&mut self) -> Option<T> {
        let next = self.waiting.pop_front();
        self.is_taken = next.is_some();
        next
    }
}
