//! Accounting of the upcalls that the host has not answered yet. Their size is bounded for each
//! user, whether or not the tools that caused them are still connected.

use iof_proto::limits::{UPCALL_COST, UPCALL_COST_PER_PROC};
use iof_proto::{Failure, Info, InfoValue, Proc, Quota};

use crate::Core;
use crate::clients::client::Payer;
use crate::ids::Call;

impl Core {
    /// Records an upcall made for a client with arguments of `bytes` bytes. An upcall for the
    /// embedder's own tool is not counted.
    ///
    /// # Errors
    /// Fails if the host owes the client's user too many answers. The upcall must not be made then.
    pub(crate) fn owe(&mut self, call: Call, payer: Payer, bytes: usize) -> Result<(), Failure> {
        if payer.process.is_some() {
            let size = bytes.saturating_add(UPCALL_COST) as u64;
            let charge = self.quotas.charge(payer, [(Quota::OwedBytes, size)])?;
            let before = self.owed.insert(call, charge);
            self.quotas.give_back(before);
        }
        Ok(())
    }

    /// Records that the host has answered `call`. A second answer has no effect.
    pub(crate) fn owes_no_more(&mut self, call: Call) {
        self.quotas.give_back(self.owed.remove(&call));
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
