//! Signals to ranks: from the embedder, from tools, and from the engine itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use iof_capture::Signal;
use iof_proto::{Failure, Nspace, Proc, Rank, Status, ToTool};

use crate::Core;
use crate::clients::client::{Client, Requester};
use crate::effects::HandleOp;
use crate::ids::{PeerId, SignalRequest};
use crate::jobs::job::Receivers;
use crate::upcall::Upcall;

impl Core {
    /// Sends the signal with this number to the ranks among `procs` that the engine knows, and has
    /// the host send it to the other remote ones. The answer to the tool follows when the signals are sent.
    pub(crate) fn signal(
        &mut self,
        peer_id: PeerId,
        request: u32,
        procs: &[Proc],
        number: i32,
        now: Instant,
    ) {
        let Some(peer) = self.tools.get(&peer_id) else { absent!("tool", return) };
        let permitted = permit(peer.client(), self.settings.uid);
        match permitted.and_then(|()| self.note_signal(procs, number, now)) {
            Ok((signal, receivers)) => {
                let requested = SignalRequest { peer: peer_id, request, elsewhere: 0 };
                self.request_begun(peer_id);
                let remote = self.elsewhere_of(procs);
                if remote.is_empty() {
                    let requested = Some(requested);
                    self.effects.handles.push(HandleOp::Signal { receivers, signal, requested });
                } else {
                    let upcall = Upcall::Signal { procs: remote, signal, requested, receivers };
                    self.effects.upcalls.push(upcall);
                }
            }
            Err(failure) => self.answer_signal(peer_id, request, Err(failure)),
        }
    }

    /// Sends a signal to ranks of the requester's own job.
    pub(crate) fn signal_own(&mut self, requester: Requester, procs: &[Proc], number: i32, now: Instant) {
        let own = requester.client.rank.as_ref().map(|rank| &rank.nspace);
        let result = match procs.iter().find(|proc| own != Some(&proc.nspace)) {
            None => self.note_signal(procs, number, now),
            Some(Proc { nspace, .. }) => {
                let reason = format!("a rank may only signal its own job, not {nspace}");
                Err(Failure::new(Status::ERR_NO_PERMISSIONS, reason))
            }
        };
        let result = result.map(|(signal, receivers)| {
            let count = u32::try_from(receivers.processes.len()).unwrap_or(u32::MAX);
            self.effects.handles.push(HandleOp::Signal { receivers, signal, requested: None });
            count
        });
        self.reply(requester, |request| ToTool::Signalled { request, result });
    }

    /// Answers a tool whose signal was sent to `count` ranks that the engine knows.
    pub(crate) fn signalled(&mut self, requested: SignalRequest, count: usize) {
        let SignalRequest { peer, request, elsewhere } = requested;
        let count = count.saturating_add(elsewhere);
        self.request_done(peer);
        self.answer_signal(peer, request, Ok(u32::try_from(count).unwrap_or(u32::MAX)));
    }

    fn answer_signal(&mut self, peer_id: PeerId, request: u32, result: Result<u32, Failure>) {
        if let Some(peer) = self.tools.get_mut(&peer_id) {
            peer.answer(&ToTool::Signalled { request, result });
        }
    }

    /// Notes that a signal is sent. Returns it, with those that are to receive it. Nothing is sent if a job or a rank does not exist.
    fn note_signal(
        &mut self,
        procs: &[Proc],
        number: i32,
        now: Instant,
    ) -> Result<(Signal, Receivers), Failure> {
        let signal = Signal::try_from(number)
            .map_err(|error| Failure::new(Status::ERR_BAD_PARAM, error.to_string()))?;
        procs.iter().try_for_each(|proc| self.check_signalled(proc))?;
        // A rank that is named twice receives one signal.
        let mut wanted: BTreeMap<&Nspace, BTreeSet<Rank>> = BTreeMap::new();
        for Proc { nspace, rank } in procs {
            wanted.entry(nspace).or_default().insert(*rank);
        }
        let mut all = Receivers::default();
        for (nspace, ranks) in wanted {
            let is_wanted = |rank: Rank| ranks.contains(&Rank::WILDCARD) || ranks.contains(&rank);
            if let Some(job) = self.jobs.get_mut(nspace) {
                let Receivers { processes, there } = job.signal(signal, now, |rank, _| is_wanted(rank));
                all.processes.extend(processes);
                all.there.extend(there);
            }
        }
        Ok((signal, all))
    }

    /// Returns those of `procs` among which ranks of the host are, or may be, each once. A whole job
    /// includes its ranks.
    fn elsewhere_of(&self, procs: &[Proc]) -> Vec<Proc> {
        let elsewhere: BTreeSet<&Proc> = procs.iter().filter(|proc| self.is_elsewhere(proc)).collect();
        let is_whole = |proc: &Proc| proc.rank == Rank::WILDCARD;
        let whole: BTreeSet<&Nspace> =
            elsewhere.iter().filter(|proc| is_whole(proc)).map(|proc| &proc.nspace).collect();
        let is_named = |proc: &&Proc| is_whole(proc) || !whole.contains(&proc.nspace);
        elsewhere.into_iter().filter(is_named).cloned().collect()
    }

    /// Returns whether ranks of the host are, or may be, among `proc`, or a whole job without running
    /// ranks, which the host may keep.
    fn is_elsewhere(&self, Proc { nspace, rank }: &Proc) -> bool {
        self.jobs.get(nspace).is_some_and(|job| {
            let is_kept = *rank == Rank::WILDCARD && job.has_exited();
            is_kept || job.has_ranks_of_host() && !job.has_local_rank(*rank)
        })
    }

    /// Checks that `proc` is a known rank, one that may be remote, or the wildcard rank of a job
    /// whose known ranks are all started.
    fn check_signalled(&self, proc: &Proc) -> Result<(), Failure> {
        let Proc { nspace, rank } = proc;
        let failed = |status, reason: String| Err(Failure::new(status, reason));
        let Some(job) = self.jobs.get(nspace) else {
            return failed(Status::ERR_NOT_FOUND, format!("there is no job {nspace}"));
        };
        if job.is_starting() {
            return failed(Status::ERR_RESOURCE_BUSY, format!("job {nspace} is being started: try again"));
        }
        if *rank == Rank::WILDCARD || job.rank(*rank).is_some() || self.is_elsewhere(proc) {
            return Ok(());
        }
        let place = if job.has_nodes() { "" } else { " on this node" };
        failed(Status::ERR_NOT_FOUND, format!("job {nspace} has no rank {rank}{place}"))
    }
}

/// Permits signals to the engine's own user and to root. A host that lets other users attach does
/// not thereby let them signal.
fn permit(client: &Client, own: u32) -> Result<(), Failure> {
    let uid = client.process.uid;
    if uid == own || uid == 0 {
        return Ok(());
    }
    let reason = format!("user {uid} may not signal the ranks of user {own}");
    Err(Failure::new(Status::ERR_NO_PERMISSIONS, reason))
}
