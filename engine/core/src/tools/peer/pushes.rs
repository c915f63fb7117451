//! The pushes of one tool that are under way, by the tool's numbers for them.

use iof_capture::PushId;

use super::Peer;
use crate::count::Count;

impl Peer {
    /// Returns the push under way with this number of the tool.
    pub fn push(&self, number: u32) -> Option<PushId> {
        self.pushes.get(&number).copied()
    }

    /// Returns all pushes.
    pub fn pushes(&self) -> impl Iterator<Item = PushId> {
        self.pushes.values().copied()
    }

    /// Adds a push. Returns its number.
    pub(crate) fn add_push(&mut self, id: PushId) -> u32 {
        self.last_push.raise(1);
        self.pushes.insert(self.last_push, id);
        self.last_push
    }

    /// Removes a push that is over.
    pub(crate) fn remove_push(&mut self, number: u32) {
        self.pushes.remove(&number);
    }

    /// Returns whether a push has had this number.
    pub(crate) fn has_had_push(&self, number: u32) -> bool {
        number > 0 && number <= self.last_push
    }
}
