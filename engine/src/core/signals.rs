//! Signals to ranks: from the embedder, from tools, and from the engine itself.

use std::collections::{BTreeMap, BTreeSet};

use iof_capture::{Signal, Signaller};
use iof_proto::{Failure, Nspace, Proc, Rank, Status, ToTool};

use crate::core::Core;
use crate::core::client::Client;
use crate::core::ids::PeerId;
use crate::core::job::JobState;

impl JobState {
    /// Sends `signal` to the local ranks for which `is_wanted`, see
    /// [`Job::signal`](crate::Job::signal). Returns their number.
    pub(crate) fn signal(&mut self, signal: Signal, is_wanted: impl Fn(Rank, &Signaller) -> bool) -> usize {
        let mut count = 0usize;
        for (rank, state) in &mut self.ranks {
            let Some(signaller) = &state.signaller else { continue };
            if (state.exit.is_none() || signaller.has_group()) && is_wanted(*rank, signaller) {
                // Noted first, because the rank may end at once.
                state.sent.insert(signal);
                count = count.saturating_add(usize::from(signaller.send(signal).is_ok()));
            }
        }
        count
    }

    /// Notes that the terminal has sent `signal` to the ranks in the embedder's process group.
    pub(crate) fn note_signal_of_terminal(&mut self, signal: Signal) {
        for state in self.ranks.values_mut().filter(|state| state.shares_group()) {
            state.sent.insert(signal);
        }
    }
}

impl Core {
    /// Sends the signal with this number to the local ranks among `procs`, and answers the tool.
    pub(crate) fn signal(&mut self, peer_id: PeerId, request: u32, procs: &[Proc], number: i32) {
        let Some(peer) = self.tools.get(&peer_id) else { return };
        let result = permit(peer.client, self.settings.uid).and_then(|()| self.send_signal(procs, number));
        if let Some(peer) = self.tools.get_mut(&peer_id) {
            peer.answer(&ToTool::Signalled { request, result });
        }
    }

    /// Sends a signal. Nothing is sent if a job or a rank does not exist.
    fn send_signal(&mut self, procs: &[Proc], number: i32) -> Result<u32, Failure> {
        let signal = Signal::try_from(number)
            .map_err(|error| Failure::new(Status::ERR_BAD_PARAM, error.to_string()))?;
        procs.iter().try_for_each(|proc| self.check_signalled(proc))?;
        // A rank that is named twice receives one signal.
        let mut wanted: BTreeMap<&Nspace, BTreeSet<Rank>> = BTreeMap::new();
        for Proc { nspace, rank } in procs {
            wanted.entry(nspace).or_default().insert(*rank);
        }
        let count = wanted.into_iter().fold(0usize, |count, (nspace, ranks)| {
            let is_wanted = |local: Rank| ranks.contains(&Rank::WILDCARD) || ranks.contains(&local);
            let sent =
                self.jobs.get_mut(nspace).map_or(0, |job| job.signal(signal, |local, _| is_wanted(local)));
            count.saturating_add(sent)
        });
        Ok(u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// Checks that `proc` is a local rank, or the wildcard rank of a job whose local ranks are all
    /// started.
    fn check_signalled(&self, Proc { nspace, rank }: &Proc) -> Result<(), Failure> {
        let failed = |status, reason: String| Err(Failure::new(status, reason));
        let Some(job) = self.jobs.get(nspace) else {
            return failed(Status::ERR_NOT_FOUND, format!("there is no job {nspace}"));
        };
        if !job.started {
            return failed(Status::ERR_RESOURCE_BUSY, format!("job {nspace} is being started: try again"));
        }
        if *rank == Rank::WILDCARD || job.has_local_rank(*rank) {
            return Ok(());
        }
        failed(Status::ERR_NOT_FOUND, format!("job {nspace} has no rank {rank} on this node"))
    }
}

/// Permits signals to the engine's own user and to root. A host that lets other users attach does
/// not thereby let them signal.
fn permit(client: Client, own: u32) -> Result<(), Failure> {
    if client.uid == own || client.uid == 0 {
        return Ok(());
    }
    let reason = format!("user {} may not signal the ranks of user {}", client.uid, own);
    Err(Failure::new(Status::ERR_NO_PERMISSIONS, reason))
}
