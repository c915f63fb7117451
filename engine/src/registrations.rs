//! Registrations, indexed by the jobs that they name: an event of a job costs time in proportion to
//! its registrations, not to all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr;

use iof_proto::limits::{
    BYTES_PER_PROC, MAX_PROCS_PER_PROCESS, MAX_PROCS_PER_TOOL, MAX_PROCS_PER_USER, MAX_REGISTRATIONS_PER_TOOL,
};
use iof_proto::{Channels, Directives, Failure, Info, Nspace, Proc, Rank, Status, ToTool};
use iof_shm_ring::Start;

use crate::demand::Ticket;
use crate::job::JobState;
use crate::owed::size_of_infos;
use crate::peer::Peer;
use crate::state::{PeerId, State};

/// A registration (one pull).
pub(crate) struct Registration {
    /// The named processes, sorted and without duplicates.
    procs: Vec<Proc>,
    pub channels: Channels,
    pub start: Start,
    pub directives: Directives,
    /// The weight in the budgets of its tool, process and user, in processes.
    weight: usize,
    /// The sources that the registration holds at the host; `None` for the embedder's own.
    pub ticket: Option<Ticket>,
    /// Whether the registration continues after its jobs have ended, with later jobs of the same
    /// names.
    persistent: bool,
    /// The tool was informed that no further source will follow.
    announced: bool,
    /// The last run of each name whose end was reported to the tool.
    reported_ends: BTreeMap<Nspace, u64>,
}

impl Registration {
    pub(crate) fn new(
        mut procs: Vec<Proc>,
        channels: Channels,
        start: Start,
        directives: Directives,
        infos: &[Info],
    ) -> Registration {
        procs.sort_unstable();
        procs.dedup();
        let weight = procs.len().saturating_add(size_of_infos(infos) / BYTES_PER_PROC);
        let reported_ends = BTreeMap::new();
        Registration {
            procs,
            channels,
            start,
            directives,
            weight,
            ticket: None,
            persistent: false,
            announced: false,
            reported_ends,
        }
    }

    /// Sets whether the registration continues after its jobs have ended, with later jobs of the
    /// same names.
    pub(crate) fn persistent(self, persistent: bool) -> Registration {
        Registration { persistent, ..self }
    }

    /// Returns the weight in the budgets of its tool, process and user, in processes.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    /// Returns the named processes.
    pub(crate) fn procs(&self) -> &[Proc] {
        &self.procs
    }

    /// Returns whether this registration names `source`.
    pub(crate) fn covers(&self, source: &Proc) -> bool {
        let names = |rank: Rank| {
            self.procs.binary_search_by(|proc| (&proc.nspace, proc.rank).cmp(&(&source.nspace, rank))).is_ok()
        };
        names(source.rank) || names(Rank::WILDCARD)
    }

    /// Returns the named jobs, each once.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = &Nspace> {
        let mut rest = self.procs.as_slice();
        std::iter::from_fn(move || {
            let nspace = &rest.first()?.nspace;
            let next = rest.partition_point(|proc| proc.nspace <= *nspace);
            rest = rest.get(next..).unwrap_or_default();
            Some(nspace)
        })
    }

    /// Returns whether the current job `nspace` is part of the registration.
    pub(crate) fn includes(&self, nspace: &Nspace) -> bool {
        self.persistent || !self.reported_ends.contains_key(nspace)
    }

    /// Returns whether the registration has ended: the first job of each of its names has ended,
    /// and no later job is part of it.
    fn is_over(&self) -> bool {
        !self.jobs().any(|nspace| self.includes(nspace))
    }

    /// Marks the end of run `run` of `nspace` as reported. Returns `false` if it was reported
    /// before or is not part of the registration.
    fn mark_end_reported(&mut self, nspace: &Nspace, run: u64) -> bool {
        if !self.includes(nspace) || self.reported_ends.get(nspace) == Some(&run) {
            return false;
        }
        self.reported_ends.insert(nspace.clone(), run);
        true
    }

    /// Returns the message that no further source will follow, the first time that this is so.
    fn announce_if_complete(&mut self, handler: u32, jobs: &BTreeMap<Nspace, JobState>) -> Option<ToTool> {
        // A job that has ended may have been removed already.
        let whole = |nspace: &Nspace| {
            self.reported_ends.contains_key(nspace) || jobs.get(nspace).is_some_and(JobState::all_ranks_known)
        };
        if self.announced || !self.jobs().all(whole) {
            return None;
        }
        self.announced = true;
        Some(ToTool::Announced { handler })
    }
}

/// The registrations that name each job.
#[derive(Default)]
pub(crate) struct ByJob(BTreeMap<Nspace, BTreeSet<(PeerId, u32)>>);

impl ByJob {
    /// Returns the registrations that name `nspace`, in order.
    pub(crate) fn naming(&self, nspace: &Nspace) -> Vec<(PeerId, u32)> {
        self.0.get(nspace).map(|registrations| registrations.iter().copied().collect()).unwrap_or_default()
    }

    fn add(&mut self, peer_id: PeerId, handler: u32, registration: &Registration) {
        for nspace in registration.jobs() {
            self.0.entry(nspace.clone()).or_default().insert((peer_id, handler));
        }
    }

    fn remove(&mut self, peer_id: PeerId, handler: u32, registration: &Registration) {
        for nspace in registration.jobs() {
            if let Some(registrations) = self.0.get_mut(nspace) {
                registrations.remove(&(peer_id, handler));
                if registrations.is_empty() {
                    self.0.remove(nspace);
                }
            }
        }
    }
}

impl State {
    /// Checks that `peer` may have another registration of this weight.
    ///
    /// # Errors
    /// Fails if the tool, its process or its user has too many registrations.
    pub(crate) fn check_registrations(&self, peer: &Peer, weight: usize) -> Result<(), Failure> {
        let Some(client) = peer.counted() else { return Ok(()) };
        let full = |reason| Err(Failure { status: Status::ERR_OUT_OF_RESOURCE, reason });
        if peer.registrations.len().saturating_add(peer.waiting.len()) >= MAX_REGISTRATIONS_PER_TOOL {
            return full(format!(
                "a tool may have {MAX_REGISTRATIONS_PER_TOOL} registrations: end one first"
            ));
        }
        let check_limit = |owner: &str, limit: usize, counts: &dyn Fn(&Peer) -> bool| {
            let named =
                self.peers.values().filter(|other| !other.own && counts(other)).map(|other| other.weight);
            if named.fold(weight, usize::saturating_add) <= limit {
                return Ok(());
            }
            full(format!(
                "the registrations of a {owner} may name {limit} processes: end one first, or name whole jobs"
            ))
        };
        check_limit("tool", MAX_PROCS_PER_TOOL, &|other| ptr::eq(other, peer))?;
        check_limit("process", MAX_PROCS_PER_PROCESS, &|other| other.client.is_process(client))?;
        check_limit("user", MAX_PROCS_PER_USER, &|other| other.client.uid == client.uid)
    }

    /// Adds a registration of the connected tool `peer_id`.
    pub(crate) fn add_registration(&mut self, peer_id: PeerId, handler: u32, registration: Registration) {
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        self.by_job.add(peer_id, handler, &registration);
        peer.weight = peer.weight.saturating_add(registration.weight);
        peer.registrations.insert(handler, registration);
    }

    /// Removes a registration. Returns `None` if the tool does not have this registration.
    pub(crate) fn remove_registration(&mut self, peer_id: PeerId, handler: u32) -> Option<Registration> {
        let peer = self.peers.get_mut(&peer_id)?;
        let registration = peer.registrations.remove(&handler)?;
        peer.weight = peer.weight.saturating_sub(registration.weight);
        self.by_job.remove(peer_id, handler, &registration);
        Some(registration)
    }

    /// Removes a tool and its registrations.
    pub(crate) fn remove_peer(&mut self, peer_id: PeerId) -> Option<Peer> {
        let peer = self.peers.remove(&peer_id)?;
        for (handler, registration) in &peer.registrations {
            self.by_job.remove(peer_id, *handler, registration);
        }
        Some(peer)
    }

    /// Informs the tools whose registrations name `nspace` and can get no further source.
    pub(crate) fn announce_complete_registrations(&mut self, nspace: &Nspace) {
        for (peer_id, handler) in self.by_job.naming(nspace) {
            self.announce_if_complete(peer_id, handler);
        }
    }

    /// Informs `peer_id` if its registration `handler` can get no further source.
    pub(crate) fn announce_if_complete(&mut self, peer_id: PeerId, handler: u32) {
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        let registration = peer.registrations.get_mut(&handler);
        let complete =
            registration.and_then(|registration| registration.announce_if_complete(handler, &self.jobs));
        if let Some(message) = complete {
            peer.answer(&message);
        }
    }

    /// If `nspace` has ended, informs the tools that registered for it, and ends the registrations
    /// that can receive nothing more. All its rings were announced before.
    pub(crate) fn announce_end(&mut self, nspace: &Nspace) {
        if self.jobs.get(nspace).is_some_and(JobState::has_ended) {
            for (peer_id, handler) in self.by_job.naming(nspace) {
                self.report_end(peer_id, handler, nspace);
            }
        }
    }

    /// Informs `peer_id` of each job named by its registration `handler` that has ended.
    pub(crate) fn report_ends(&mut self, peer_id: PeerId, handler: u32) {
        let registration = self.peers.get(&peer_id).and_then(|peer| peer.registrations.get(&handler));
        let jobs: Vec<Nspace> =
            registration.map(|registration| registration.jobs().cloned().collect()).unwrap_or_default();
        jobs.iter().for_each(|nspace| self.report_end(peer_id, handler, nspace));
    }

    /// Informs `peer_id` that `nspace`, which its registration `handler` names, has ended, unless
    /// it has not or the tool was informed before.
    fn report_end(&mut self, peer_id: PeerId, handler: u32, nspace: &Nspace) {
        let Some(job) = self.jobs.get(nspace).filter(|job| job.has_ended()) else { return };
        let (run, exit_code) = (job.run, job.exit_code());
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        let Some(registration) = peer.registrations.get_mut(&handler) else { return };
        if !registration.mark_end_reported(nspace, run) {
            return;
        }
        let is_over = registration.is_over();
        peer.answer(&ToTool::JobEnded { handler, nspace: nspace.clone(), run, exit_code, skipped: 0 });
        if is_over {
            // A registration that has ended counts towards no limit and holds no sources at the
            // host. Its readers remain until the tool has drained them.
            let ended = self.remove_registration(peer_id, handler);
            ended.and_then(|registration| registration.ticket).inspect(|ticket| self.release(*ticket));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    fn proc(job: &str, rank: Rank) -> Proc {
        Proc::new(Nspace::new(job).unwrap(), rank)
    }

    fn registration(procs: Vec<Proc>) -> Registration {
        Registration::new(procs, Channels::STDOUT, Start::Oldest, Directives::default(), &[])
    }

    #[test]
    fn a_registration_covers_the_ranks_and_jobs_it_names() {
        let registration = registration(vec![
            proc("b", Rank::WILDCARD),
            proc("a", Rank(7)),
            proc("a", Rank(1)),
            proc("a", Rank(7)),
        ]);
        assert_eq!(registration.procs().len(), 3);
        for (job, rank, covered) in
            [("a", 1, true), ("a", 7, true), ("a", 2, false), ("b", 0, true), ("b", 9, true), ("c", 1, false)]
        {
            assert_eq!(registration.covers(&proc(job, Rank(rank))), covered, "{job}.{rank}");
        }
        let jobs: Vec<&str> = registration.jobs().map(Nspace::as_str).collect();
        assert_eq!(jobs, ["a", "b"]);
    }

    #[test]
    fn each_job_is_mapped_to_the_registrations_that_name_it() {
        let (one, two) = (
            registration(vec![proc("a", Rank(0)), proc("b", Rank(0))]),
            registration(vec![proc("b", Rank(1))]),
        );
        let mut by_job = ByJob::default();
        by_job.add(5, 1, &one);
        by_job.add(4, 9, &two);
        let naming = |by_job: &ByJob, job: &str| by_job.naming(&Nspace::new(job).unwrap());
        assert_eq!(naming(&by_job, "a"), [(5, 1)]);
        assert_eq!(naming(&by_job, "b"), [(4, 9), (5, 1)]);
        assert_eq!(naming(&by_job, "c"), []);
        by_job.remove(5, 1, &one);
        assert_eq!(naming(&by_job, "b"), [(4, 9)]);
        by_job.remove(4, 9, &two);
        assert!(by_job.0.is_empty(), "a job that no registration names is removed");
    }
}
