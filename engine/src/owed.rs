//! What the host was asked on behalf of tools and has not answered: its size is bounded for each
//! user, whether or not the tools that asked are still here.

use std::collections::HashMap;

use iof_proto::limits::{MAX_OWED_BYTES_PER_USER, UPCALL_COST, UPCALL_COST_PER_PROC};
use iof_proto::{Failure, Info, InfoValue, Proc, Status};

use crate::client::Client;
use crate::host::Call;

/// The upcalls without an answer.
#[derive(Default)]
pub(crate) struct Owed {
    /// The user of each, and its size.
    calls: HashMap<Call, (u32, usize)>,
    users: HashMap<u32, usize>,
}

impl Owed {
    /// Notes an upcall for `client`, unless that is the embedder's own, with arguments of `bytes`.
    ///
    /// # Errors
    /// The host owes the client's user too many answers; the upcall must not be made.
    pub(crate) fn note(&mut self, call: Call, client: Option<Client>, bytes: usize) -> Result<(), Failure> {
        let Some(Client { uid, .. }) = client else { return Ok(()) };
        let bytes = bytes.saturating_add(UPCALL_COST);
        let owed = self.users.entry(uid).or_default();
        if owed.saturating_add(bytes) > MAX_OWED_BYTES_PER_USER {
            let reason = format!(
                "the host has not answered requests of user {uid} of {owed} bytes, and the limit is \
                 {MAX_OWED_BYTES_PER_USER}: try again"
            );
            return Err(Failure { status: Status::ERR_RESOURCE_BUSY, reason });
        }
        *owed = owed.saturating_add(bytes);
        self.calls.insert(call, (uid, bytes));
        Ok(())
    }

    /// Notes that the host has answered.
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

/// Returns what processes count for in an upcall.
pub(crate) fn size_of_procs(procs: &[Proc]) -> usize {
    let size = |proc: &Proc| proc.nspace.as_str().len().saturating_add(UPCALL_COST_PER_PROC);
    procs.iter().map(size).fold(0, usize::saturating_add)
}

/// Returns how many bytes of text directives or qualifiers have.
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

    use super::*;
    use crate::state::PeerId;

    fn call(peer: PeerId) -> Call {
        Call::Approve(peer)
    }

    #[test]
    fn what_the_host_owes_is_bounded_for_each_user_until_it_answers() {
        let (one, other) = (Client { pid: 1, uid: 1 }, Client { pid: 1, uid: 2 });
        let mut owed = Owed::default();
        let half = MAX_OWED_BYTES_PER_USER / 2 - UPCALL_COST;
        owed.note(call(1), Some(one), half).unwrap();
        owed.note(call(2), Some(one), half).unwrap();
        let refused = owed.note(call(3), Some(one), 0).unwrap_err();
        assert_eq!(refused.status, Status::ERR_RESOURCE_BUSY);
        assert!(refused.reason.contains(&MAX_OWED_BYTES_PER_USER.to_string()), "{refused}");
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
