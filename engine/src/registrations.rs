//! Registrations, and which of them name a job: what happens to a job costs what names it, not what
//! there is.

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
    /// In their order, each once.
    procs: Vec<Proc>,
    pub channels: Channels,
    pub start: Start,
    pub directives: Directives,
    /// What it counts for in the budgets of its tool, process and user.
    weight: usize,
    /// What it holds of the host's; nothing if it is the embedder's own.
    pub ticket: Option<Ticket>,
    /// It goes on when its jobs have ended, with later jobs of the same names.
    persistent: bool,
    /// The tool was told that no further source will come.
    announced: bool,
    /// The last run of each name of whose end the tool was told.
    ends_told: BTreeMap<Nspace, u64>,
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
        let ends_told = BTreeMap::new();
        Registration {
            procs,
            channels,
            start,
            directives,
            weight,
            ticket: None,
            persistent: false,
            announced: false,
            ends_told,
        }
    }

    /// The same, but it goes on when its jobs have ended, with later jobs of the same names, if
    /// `persistent`.
    pub(crate) fn persistent(self, persistent: bool) -> Registration {
        Registration { persistent, ..self }
    }

    /// Returns what it counts for in the budgets of its tool, process and user, in processes.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    /// Returns what it names.
    pub(crate) fn procs(&self) -> &[Proc] {
        &self.procs
    }

    /// Returns whether this registration is for `source`, on whatever channel.
    pub(crate) fn covers(&self, source: &Proc) -> bool {
        let names = |rank: Rank| {
            self.procs.binary_search_by(|proc| (&proc.nspace, proc.rank).cmp(&(&source.nspace, rank))).is_ok()
        };
        names(source.rank) || names(Rank::WILDCARD)
    }

    /// Returns the jobs that it names, each once.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = &Nspace> {
        let mut rest = self.procs.as_slice();
        std::iter::from_fn(move || {
            let nspace = &rest.first()?.nspace;
            let next = rest.partition_point(|proc| proc.nspace <= *nspace);
            rest = rest.get(next..).unwrap_or_default();
            Some(nspace)
        })
    }

    /// Returns whether a job that has this name now is part of it.
    pub(crate) fn goes_on(&self, nspace: &Nspace) -> bool {
        self.persistent || !self.ends_told.contains_key(nspace)
    }

    /// Returns whether nothing more will come of it: the first job of each of its names has ended,
    /// and no later one is part of it.
    fn is_over(&self) -> bool {
        !self.jobs().any(|nspace| self.goes_on(nspace))
    }

    /// Notes that the end of run `run` of `nspace`, which it names, is told now; `false` if it was
    /// told before, or is not part of it.
    fn tell_end(&mut self, nspace: &Nspace, run: u64) -> bool {
        if !self.goes_on(nspace) || self.ends_told.get(nspace) == Some(&run) {
            return false;
        }
        self.ends_told.insert(nspace.clone(), run);
        true
    }

    /// Returns what the tool is to be told if no further source will come, once.
    fn announce_if_complete(&mut self, handler: u32, jobs: &BTreeMap<Nspace, JobState>) -> Option<ToTool> {
        // A job that has ended may be forgotten by now.
        let whole = |nspace: &Nspace| {
            self.ends_told.contains_key(nspace) || jobs.get(nspace).is_some_and(JobState::is_whole)
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
    /// Returns those that name `nspace`, in their order.
    pub(crate) fn naming(&self, nspace: &Nspace) -> Vec<(PeerId, u32)> {
        self.0.get(nspace).map(|of| of.iter().copied().collect()).unwrap_or_default()
    }

    fn add(&mut self, peer_id: PeerId, handler: u32, registration: &Registration) {
        for nspace in registration.jobs() {
            self.0.entry(nspace.clone()).or_default().insert((peer_id, handler));
        }
    }

    fn remove(&mut self, peer_id: PeerId, handler: u32, registration: &Registration) {
        for nspace in registration.jobs() {
            if let Some(of) = self.0.get_mut(nspace) {
                of.remove(&(peer_id, handler));
                if of.is_empty() {
                    self.0.remove(nspace);
                }
            }
        }
    }
}

impl State {
    /// Checks that `peer` may have a registration of `weight` more.
    ///
    /// # Errors
    /// It, its process or its user has too many.
    pub(crate) fn check_registrations(&self, peer: &Peer, weight: usize) -> Result<(), Failure> {
        let Some(client) = peer.counted() else { return Ok(()) };
        let full = |reason| Err(Failure { status: Status::ERR_OUT_OF_RESOURCE, reason });
        if peer.registrations.len().saturating_add(peer.waiting.len()) >= MAX_REGISTRATIONS_PER_TOOL {
            return full(format!(
                "a tool may have {MAX_REGISTRATIONS_PER_TOOL} registrations: end one first"
            ));
        }
        let within = |whose: &str, limit: usize, which: &dyn Fn(&Peer) -> bool| {
            let named = self.peers.values().filter(|of| !of.own && which(of)).map(|of| of.procs);
            if named.fold(weight, usize::saturating_add) <= limit {
                return Ok(());
            }
            full(format!(
                "the registrations of a {whose} may name {limit} processes: end one first, or name whole jobs"
            ))
        };
        within("tool", MAX_PROCS_PER_TOOL, &|of| ptr::eq(of, peer))?;
        within("process", MAX_PROCS_PER_PROCESS, &|of| of.client.is_process(client))?;
        within("user", MAX_PROCS_PER_USER, &|of| of.client.uid == client.uid)
    }

    /// Adds a registration of `peer_id`, which must be connected.
    pub(crate) fn add_registration(&mut self, peer_id: PeerId, handler: u32, registration: Registration) {
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        self.by_job.add(peer_id, handler, &registration);
        peer.procs = peer.procs.saturating_add(registration.weight);
        peer.registrations.insert(handler, registration);
    }

    /// Removes a registration. Returns it, or `None` if the tool has none of this number.
    pub(crate) fn remove_registration(&mut self, peer_id: PeerId, handler: u32) -> Option<Registration> {
        let peer = self.peers.get_mut(&peer_id)?;
        let registration = peer.registrations.remove(&handler)?;
        peer.procs = peer.procs.saturating_sub(registration.weight);
        self.by_job.remove(peer_id, handler, &registration);
        Some(registration)
    }

    /// Removes a tool with its registrations.
    pub(crate) fn remove_peer(&mut self, peer_id: PeerId) -> Option<Peer> {
        let peer = self.peers.remove(&peer_id)?;
        for (handler, registration) in &peer.registrations {
            self.by_job.remove(peer_id, *handler, registration);
        }
        Some(peer)
    }

    /// Tells tools whose registrations name `nspace` and can get no further source.
    pub(crate) fn announce_complete_registrations(&mut self, nspace: &Nspace) {
        for (peer_id, handler) in self.by_job.naming(nspace) {
            self.announce_if_complete(peer_id, handler);
        }
    }

    /// Tells `peer_id` that its registration `handler` can get no further source, if that is so.
    pub(crate) fn announce_if_complete(&mut self, peer_id: PeerId, handler: u32) {
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        let registration = peer.registrations.get_mut(&handler);
        if let Some(told) = registration.and_then(|of| of.announce_if_complete(handler, &self.jobs)) {
            peer.answer(&told);
        }
    }

    /// Tells the tools that registered for `nspace` that it is over, if it is, and ends the
    /// registrations of which nothing more will come. All its rings were announced before.
    pub(crate) fn announce_end(&mut self, nspace: &Nspace) {
        if self.jobs.get(nspace).is_some_and(JobState::has_ended) {
            for (peer_id, handler) in self.by_job.naming(nspace) {
                self.tell_end(peer_id, handler, nspace);
            }
        }
    }

    /// Tells `peer_id` of the ends of the jobs that its registration `handler` names.
    pub(crate) fn tell_ends(&mut self, peer_id: PeerId, handler: u32) {
        let registration = self.peers.get(&peer_id).and_then(|peer| peer.registrations.get(&handler));
        let jobs: Vec<Nspace> = registration.map(|of| of.jobs().cloned().collect()).unwrap_or_default();
        jobs.iter().for_each(|nspace| self.tell_end(peer_id, handler, nspace));
    }

    /// Tells `peer_id` that `nspace`, which its registration `handler` names, is over, if it is and
    /// was not told.
    fn tell_end(&mut self, peer_id: PeerId, handler: u32, nspace: &Nspace) {
        let Some(job) = self.jobs.get(nspace).filter(|job| job.has_ended()) else { return };
        let (run, exit_code) = (job.run, job.exit_code());
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        let Some(registration) = peer.registrations.get_mut(&handler) else { return };
        if !registration.tell_end(nspace, run) {
            return;
        }
        let is_over = registration.is_over();
        peer.answer(&ToTool::JobEnded { handler, nspace: nspace.clone(), run, exit_code, skipped: 0 });
        if is_over {
            // It counts towards no limit, and holds nothing of the host's. Its readers stay until they are
            // drained.
            let over = self.remove_registration(peer_id, handler);
            over.and_then(|registration| registration.ticket).inspect(|ticket| self.release(*ticket));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    fn proc(job: &str, rank: Rank) -> Proc {
        Proc { nspace: Nspace::new(job).unwrap(), rank }
    }

    fn registration(procs: Vec<Proc>) -> Registration {
        Registration::new(procs, Channels::STDOUT, Start::Oldest, Directives::default(), &[])
    }

    #[test]
    fn a_registration_covers_the_ranks_and_jobs_that_it_names() {
        let of = registration(vec![
            proc("b", Rank::WILDCARD),
            proc("a", Rank(7)),
            proc("a", Rank(1)),
            proc("a", Rank(7)),
        ]);
        assert_eq!(of.procs().len(), 3);
        for (job, rank, covered) in
            [("a", 1, true), ("a", 7, true), ("a", 2, false), ("b", 0, true), ("b", 9, true), ("c", 1, false)]
        {
            assert_eq!(of.covers(&proc(job, Rank(rank))), covered, "{job}.{rank}");
        }
        let jobs: Vec<&str> = of.jobs().map(Nspace::as_str).collect();
        assert_eq!(jobs, ["a", "b"]);
    }

    #[test]
    fn a_job_is_looked_up_to_the_registrations_that_name_it() {
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
        assert!(by_job.0.is_empty(), "what is named by no registration is forgotten");
    }
}
