//! One edge of the front end, with all nodes of the subtree behind it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use iof_proto::{Channel, Rank};

use crate::EdgeError;
use crate::control::ToFrontEnd;
use crate::frame::{Frame, Place};
use crate::front_end::{BrokenEnd, FrontEnd, FrontEvent};
use crate::tree::subtrees;

/// The node that broke a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The place of the node. It is to be cut off, with the nodes behind it.
    pub place: Place,
    /// The rule.
    pub error: EdgeError,
}

/// A node of the subtree.
#[derive(Debug)]
struct BranchNode {
    end: FrontEnd,
    /// The places of the node and those behind it.
    subtree: Range<u32>,
    /// The relay that has the edge to the node. `None` for the first node.
    relay: Option<Place>,
    is_cut: bool,
}

/// The front end's end of one edge: a [`FrontEnd`] for each node behind it.
#[derive(Debug)]
pub struct Branch {
    /// By place.
    nodes: Vec<BranchNode>,
    radix: u32,
}

impl Branch {
    /// Creates the end of an edge to these nodes, each with its ranks, in a tree of this radix.
    pub fn new<'a>(nodes: impl IntoIterator<Item = &'a BTreeSet<Rank>>, radix: u32, window: u64) -> Branch {
        let node = |ranks| BranchNode {
            end: FrontEnd::new(ranks, window),
            subtree: 0..0,
            relay: None,
            is_cut: false,
        };
        let mut branch = Branch { nodes: nodes.into_iter().map(node).collect(), radix };
        let count = u32::try_from(branch.nodes.len()).unwrap_or(u32::MAX);
        let mut open = vec![(None, 0..count)];
        while let Some((relay, subtree)) = open.pop() {
            let place = Place(subtree.start);
            if let Some(node) = branch.node_mut(place) {
                (node.subtree, node.relay) = (subtree, relay);
            }
            open.extend(branch.children(place).into_iter().map(|subtree| (Some(place), subtree)));
        }
        branch
    }

    fn node(&self, place: Place) -> Option<&BranchNode> {
        self.nodes.get(usize::try_from(place.0).ok()?)
    }

    fn node_mut(&mut self, place: Place) -> Option<&mut BranchNode> {
        self.nodes.get_mut(usize::try_from(place.0).ok()?)
    }

    /// Processes a frame of the node at `place`, which arrived at `now`. Frames of nodes that were
    /// cut off mean nothing.
    ///
    /// # Errors
    /// [`Fault`]: a node is to be cut off. It is the first one if no node has that place.
    pub fn receive<'a>(
        &mut self,
        place: Place,
        frame: &Frame<'a>,
        now: Instant,
    ) -> Result<FrontEvent<'a>, Fault> {
        let count = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        let unknown = Fault { place: Place::NEXT, error: EdgeError::Place(place.0, count) };
        let node = self.node_mut(place).ok_or(unknown)?;
        if node.is_cut {
            return Ok(FrontEvent::None);
        }
        let event = node.end.receive(frame, now).map_err(|error| Fault { place, error })?;
        match &event {
            FrontEvent::Message(ToFrontEnd::ChildLost { child, .. })
                if self.child(place, *child).is_none() =>
            {
                Err(Fault { place, error: EdgeError::Unexpected("child of a relay") })
            }
            _ => Ok(event),
        }
    }

    /// Returns the places behind each edge of the node at `place`; none if it is not a relay.
    pub fn children(&self, place: Place) -> Vec<Range<u32>> {
        let subtree = self.node(place).map_or(0..0, |node| node.subtree.clone());
        subtrees(subtree.start.saturating_add(1)..subtree.end, self.radix)
    }

    /// Returns the place of a relay's child, which the relay calls `child`; `None` if the relay has
    /// no such child.
    pub fn child(&self, relay: Place, child: Place) -> Option<Place> {
        let place = Place(relay.0.checked_add(child.0)?);
        (self.node(place)?.relay == Some(relay)).then_some(place)
    }

    /// Returns the relay that has the edge to the node at `place`, and what it calls that node.
    /// `None` if that is the front end.
    pub fn relay(&self, place: Place) -> Option<(Place, Place)> {
        let relay = self.node(place)?.relay?;
        Some((relay, Place(place.0.saturating_sub(relay.0))))
    }

    /// Cuts off the node at `place` and those behind it. Returns what is known about those that
    /// were not over, the first one first.
    pub fn cut(&mut self, place: Place) -> Vec<(Place, BrokenEnd)> {
        let subtree = self.node(place).map_or(0..0, |node| node.subtree.clone());
        let mut cut = Vec::new();
        for place in subtree.map(Place) {
            if let Some(node) = self.node_mut(place).filter(|node| !node.is_cut) {
                node.is_cut = true;
                if !node.end.is_over() {
                    cut.push((place, node.end.broken()));
                }
            }
        }
        cut
    }

    /// Notes that `bytes` bytes of a record are where they belong, as [`FrontEnd::taken`]. Returns
    /// the frame to send, if any.
    pub fn taken(&mut self, place: Place, channel: Channel, bytes: usize) -> Option<Frame<'static>> {
        self.node_mut(place)?.end.taken(channel, bytes)
    }

    /// Notes a piece of stdin that is about to be sent, as [`FrontEnd::note_call`].
    pub fn note_call(&mut self, place: Place, call: u64) {
        self.node_mut(place).into_iter().for_each(|node| node.end.note_call(call));
    }

    /// Returns the front end's end for the node at `place`.
    pub fn end(&self, place: Place) -> Option<&FrontEnd> {
        self.node(place).map(|node| &node.end)
    }
}
