//! The pieces of stdin that their receivers have not answered.

use std::collections::{BTreeMap, BTreeSet};

use iof_capture::PushId;
use iof_proto::{Failure, Status};

use crate::jobs::nodes::NodeKey;

/// A receiver of the pieces of a push: a node, or `None` for the host.
pub(crate) type StdinTaker = Option<NodeKey>;

/// The receivers that have not answered the piece of a push that they have: one piece for each push.
#[derive(Default)]
pub struct StdinCalls(BTreeMap<PushId, BTreeSet<StdinTaker>>);

impl StdinCalls {
    /// Adds a piece of a push for these receivers.
    pub(crate) fn insert(&mut self, push: PushId, takers: BTreeSet<StdinTaker>) {
        self.0.insert(push, takers);
    }

    /// Returns the pushes with a piece that `taker` has not answered.
    pub(crate) fn waiting_for(&self, taker: StdinTaker) -> impl Iterator<Item = PushId> {
        self.0.iter().filter(move |(_, waiting)| waiting.contains(&taker)).map(|(push, _)| *push)
    }

    /// Returns whether `taker` has not answered a piece of a push.
    pub(crate) fn waits_for(&self, push: PushId, taker: StdinTaker) -> bool {
        self.0.get(&push).is_some_and(|waiting| waiting.contains(&taker))
    }

    /// Returns whether all pieces were answered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes that `taker` has answered. Returns whether that was the last answer for a piece.
    pub(crate) fn answered(&mut self, push: PushId, taker: StdinTaker) -> bool {
        let is_last =
            self.0.get_mut(&push).is_some_and(|waiting| waiting.remove(&taker) && waiting.is_empty());
        is_last && self.0.remove(&push).is_some()
    }
}

/// Returns the answer for ranks that no longer take stdin.
pub(crate) fn closed() -> Failure {
    Failure::new(Status::ERR_IOF_COMPLETE, "these ranks have ended or closed their stdin")
}
