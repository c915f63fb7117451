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
    pub(crate) fn waiting_for(&self, taker: StdinTaker) -> Vec<PushId> {
        let calls = self.0.iter().filter(|(_, waiting)| waiting.contains(&taker));
        calls.map(|(push, _)| *push).collect()
    }

    /// Returns whether all pieces were answered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes an answer. Returns whether it is the last one for its piece; `None` if it is not due.
    pub(crate) fn answered(&mut self, push: PushId, taker: StdinTaker) -> Option<bool> {
        let waiting = self.0.get_mut(&push)?;
        if !waiting.remove(&taker) {
            return None;
        }
        let is_last = waiting.is_empty();
        if is_last {
            self.0.remove(&push);
        }
        Some(is_last)
    }
}

/// Returns the answer for ranks that no longer take stdin.
pub(crate) fn closed() -> Failure {
    Failure::new(Status::ERR_IOF_COMPLETE, "these ranks have ended or closed their stdin")
}
