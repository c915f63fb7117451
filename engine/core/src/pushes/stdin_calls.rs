//! The pieces of stdin that their receivers have not answered.

use std::collections::{BTreeMap, BTreeSet};

use iof_capture::PushId;
use iof_proto::{Failure, Status};

use crate::jobs::nodes::NodeKey;

/// A receiver of the pieces of a push: a node, or `None` for the host.
pub(crate) type StdinTaker = Option<NodeKey>;

/// The pieces of pushes that some of their receivers have not answered: one for each push, with the
/// answer so far.
#[derive(Default)]
pub struct StdinCalls(BTreeMap<PushId, (BTreeSet<StdinTaker>, Result<(), Failure>)>);

impl StdinCalls {
    /// Adds a piece of a push for these receivers.
    pub(crate) fn insert(&mut self, push: PushId, takers: BTreeSet<StdinTaker>) {
        self.0.insert(push, (takers, closed()));
    }

    /// Returns the pushes with a piece that `taker` has not answered.
    pub(crate) fn waiting_for(&self, taker: StdinTaker) -> Vec<PushId> {
        let calls = self.0.iter().filter(|(_, (waiting, _))| waiting.contains(&taker));
        calls.map(|(push, _)| *push).collect()
    }

    /// Returns whether all pieces were answered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes an answer. Returns that of all receivers, if this is the last one.
    pub(crate) fn answered(
        &mut self,
        push: PushId,
        taker: StdinTaker,
        answer: Result<(), Failure>,
    ) -> Option<Result<(), Failure>> {
        let (waiting, combined) = self.0.get_mut(&push)?;
        if !waiting.remove(&taker) {
            return None;
        }
        if weight(&answer) > weight(combined) {
            *combined = answer;
        }
        if waiting.is_empty() { self.0.remove(&push).map(|(_, combined)| combined) } else { None }
    }
}

/// Returns how much an answer counts among those of all receivers of a piece. It is taken if one has
/// taken it.
fn weight(answer: &Result<(), Failure>) -> u8 {
    match answer.as_ref().map_err(|failure| failure.status) {
        Err(Status::ERR_IOF_XOFF) => 3,
        Ok(()) => 2,
        Err(Status::ERR_IOF_COMPLETE) => 0,
        Err(_) => 1,
    }
}

/// Returns the answer for ranks that no longer take stdin.
pub(crate) fn closed() -> Result<(), Failure> {
    Err(Failure::new(Status::ERR_IOF_COMPLETE, "these ranks have ended or closed their stdin"))
}
