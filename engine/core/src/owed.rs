//! Accounting of the upcalls that the host has not answered yet. Their size is bounded for each
//! user, whether or not the tools that caused them are still connected.

use std::collections::BTreeMap;

use iof_proto::limits::{UPCALL_COST, UPCALL_COST_PER_PROC};
use iof_proto::{Failure, Info, InfoValue, Proc, Status};

use crate::client::Client;
use crate::ids::Call;

/// The upcalls that the host has not answered.
pub struct Owed {
    /// The largest sum of each user.
    limit: usize,
    /// The user and the size of each upcall, in bytes.
    calls: BTreeMap<Call, (u32, usize)>,
    /// The sum of these sizes for each user.
    users: BTreeMap<u32, usize>,
}

impl Owed {
    /// Returns a table without upcalls. Each user's sum is at most `limit`.
    pub(crate) fn new(limit: usize) -> Owed {
        Owed { limit, calls: BTreeMap::new(), users: BTreeMap::new() }
    }

    /// Records an upcall made for `client` with arguments of `bytes` bytes. An upcall for the
    /// embedder's own tool (`None`) is not counted.
    ///
    /// # Errors
    /// Fails if the host owes the client's user too many answers. The upcall must not be made then.
    pub(crate) fn note(&mut self, call: Call, client: Option<Client>, bytes: usize) -> Result<(), Failure> {
        let Some(Client { uid, .. }) = client else { return Ok(()) };
        let bytes = bytes.saturating_add(UPCALL_COST);
        let (owed, limit) = (self.users.get(&uid).copied().unwrap_or_default(), self.limit);
        if owed.saturating_add(bytes) > limit {
            let reason = format!(
                "user {uid} has requests of {owed} bytes that the host has not answered, and the limit is \
                 {limit}: try again"
            );
            return Err(Failure::new(Status::ERR_RESOURCE_BUSY, reason));
        }
        self.users.insert(uid, owed.saturating_add(bytes));
        self.calls.insert(call, (uid, bytes));
        Ok(())
    }

    /// Panics if a user's sum is wrong.
    pub fn check(&self) {
        let mut sums: BTreeMap<u32, usize> = BTreeMap::new();
        for (uid, bytes) in self.calls.values() {
            *sums.entry(*uid).or_default() += bytes;
        }
        assert_eq!(sums, self.users, "what the host owes");
    }

    /// Returns the largest sum of a user, in bytes.
    pub fn largest(&self) -> usize {
        self.users.values().copied().max().unwrap_or_default()
    }

    /// Returns whether the host has answered all upcalls.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Records that the host has answered `call`. A second answer has no effect.
    pub(crate) fn answered(&mut self, call: Call) {
        let Some((uid, bytes)) = self.calls.remove(&call) else { return };
        if let Some(owed) = self.users.get_mut(&uid) {
            *owed = owed.saturating_sub(bytes);
            if *owed == 0 {
                self.users.remove(&uid);
            }
        }
    }
}

/// Returns the size at which an upcall counts `procs`, in bytes.
pub(crate) fn size_of_procs(procs: &[Proc]) -> usize {
    let size = |proc: &Proc| proc.nspace.as_str().len().saturating_add(UPCALL_COST_PER_PROC);
    procs.iter().map(size).fold(0, usize::saturating_add)
}

/// Returns the length of the text in directives or qualifiers, in bytes.
pub(crate) fn size_of_infos(infos: &[Info]) -> usize {
    let size = |info: &Info| {
        let value = if let InfoValue::Text(text) = &info.value { text.len() } else { 0 };
        info.key.len().saturating_add(value)
    };
    infos.iter().map(size).fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use iof_proto::limits::MAX_OWED_BYTES_PER_USER;

    use super::*;
    use crate::ids::PeerId;

    fn call(peer: PeerId) -> Call {
        Call::Approve(peer)
    }

    #[test]
    fn unanswered_upcalls_are_bounded_for_each_user() {
        let (one, other) = (Client { pid: 1, uid: 1 }, Client { pid: 1, uid: 2 });
        let mut owed = Owed::new(MAX_OWED_BYTES_PER_USER);
        let half = MAX_OWED_BYTES_PER_USER / 2 - UPCALL_COST;
        owed.note(call(1), Some(one), half).unwrap();
        owed.note(call(2), Some(one), half).unwrap();
        let failure = owed.note(call(3), Some(one), 0).unwrap_err();
        assert_eq!(failure.status, Status::ERR_RESOURCE_BUSY);
        assert!(failure.reason.contains(&MAX_OWED_BYTES_PER_USER.to_string()), "{failure}");
        owed.note(call(3), None, half).unwrap();
        owed.note(call(4), Some(other), half).unwrap();
        owed.answered(call(1));
        owed.answered(call(1));
        owed.note(call(5), Some(one), half).unwrap();
        owed.note(call(6), Some(one), 0).unwrap_err();
        [2, 4, 5].into_iter().for_each(|peer| owed.answered(call(peer)));
        assert!(owed.users.is_empty() && owed.calls.is_empty());
    }
}
