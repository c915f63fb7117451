//! Registrations, indexed by the jobs that they name: an event of a job costs time in proportion to
//! its registrations, not to all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use iof_proto::limits::BYTES_PER_PROC;
use iof_proto::{Channel, Channels, Directives, Info, Nspace, Proc, Rank, ToTool};
use iof_shm_ring::Start;

use crate::clients::owed::size_of_infos;
use crate::clients::quotas::Charge;
use crate::count::Count;
use crate::ids::PeerId;
use crate::jobs::job::endings::Ending;
use crate::jobs::job::{JobState, NodePull};
use crate::jobs::table::Jobs;
use crate::tools::demand::Ticket;

/// A registration (one pull).
pub struct Registration {
    /// The named processes, sorted and without duplicates.
    procs: Vec<Proc>,
    channels: Channels,
    start: Start,
    directives: Directives,
    /// The weight in the budgets of its tool, process and user, in processes.
    weight: usize,
    /// The charge of the registration and of its weight; `None` for the embedder's own.
    pub(crate) charge: Option<Charge>,
    /// The sources that the registration holds at the host; `None` for the embedder's own.
    ticket: Option<Ticket>,
    /// Set if the registration continues after its jobs have ended, with later jobs of the same
    /// names.
    persistent: bool,
    /// The pull was answered: the tool knows the registration.
    pub(crate) answered: bool,
    /// The tool was informed that no further source will follow.
    announced: bool,
    /// The tool was informed that it has all that was cached when the registration was made.
    cached: bool,
    /// The last run of each name whose end was reported to the tool, or is due.
    reported_ends: BTreeMap<Nspace, u64>,
    /// Set if the tool asks for starts and ends of ranks.
    reports_ranks: bool,
    /// For each name, the last run whose starts were reported to the tool, and the number of endings that were.
    reported_ranks: BTreeMap<Nspace, (u64, usize)>,
    /// The number of readers whose rings are not queued yet. Meanwhile neither the end of a job nor
    /// that no further source follows is reported.
    joining: usize,
    /// The messages about ranks and ends of jobs that follow the rings.
    due: Vec<ToTool>,
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
            charge: None,
            ticket: None,
            persistent: false,
            answered: false,
            announced: false,
            cached: false,
            reported_ends,
            reports_ranks: false,
            reported_ranks: BTreeMap::new(),
            joining: 0,
            due: Vec::new(),
        }
    }

    /// Sets the sources that the registration holds at the host.
    pub(crate) fn hold(&mut self, ticket: Ticket) {
        self.ticket = Some(ticket);
    }

    /// Returns the sources that the registration holds at the host; `None` for the embedder's own.
    pub fn ticket(&self) -> Option<Ticket> {
        self.ticket
    }

    /// Returns whether the tool was not informed that it has what was cached, and has all its rings.
    pub(crate) fn awaits_cached(&self) -> bool {
        !self.cached && self.joining == 0
    }

    /// Notes that the tool is informed that it has what was cached.
    pub(crate) fn has_cached(&mut self) {
        self.cached = true;
    }

    /// Returns the channels that the registration covers.
    pub(crate) fn channels(&self) -> Channels {
        self.channels
    }

    /// Returns where its readers start.
    pub fn start(&self) -> Start {
        self.start
    }

    /// Returns the directives for its streams.
    pub fn directives(&self) -> &Directives {
        &self.directives
    }

    /// Returns the number of readers whose rings are not queued yet.
    pub fn joining(&self) -> usize {
        self.joining
    }

    /// Notes that a message about ranks or the end of a job is due. Returns whether it follows no ring that
    /// is not queued yet.
    pub(crate) fn is_due(&mut self, message: ToTool) -> bool {
        self.due.push(message);
        self.joining == 0
    }

    /// Returns the messages about ranks and ends of jobs that are due, once.
    pub(crate) fn take_due(&mut self) -> Vec<ToTool> {
        mem::take(&mut self.due)
    }

    /// Notes that a reader is about to be attached or moved.
    pub(crate) fn reader_joins(&mut self) {
        self.joining.raise(1);
    }

    /// Notes that a reader was attached or moved, or was not. Returns whether it was the last.
    pub(crate) fn reader_settled(&mut self) -> bool {
        self.joining.lower(1);
        self.joining == 0
    }

    /// Sets whether the registration continues after its jobs have ended, with later jobs of the
    /// same names.
    pub(crate) fn persistent(self, persistent: bool) -> Registration {
        Registration { persistent, ..self }
    }

    /// Sets whether the tool asks for starts and ends of ranks.
    pub(crate) fn reporting_ranks(self, reports_ranks: bool) -> Registration {
        Registration { reports_ranks, ..self }
    }

    /// Returns whether the starts of the ranks of `job` are to be reported, and the ranks whose ends are; `None`
    /// for neither now. Notes that they are reported.
    pub(crate) fn take_ranks(&mut self, nspace: &Nspace, job: &JobState) -> Option<(bool, Vec<Rank>)> {
        let is_known = !job.is_starting() && job.ranks().next().is_some();
        if !self.reports_ranks || !self.includes(nspace) || !is_known {
            return None;
        }
        let reported = &mut self.reported_ranks;
        let known = reported.get(nspace).filter(|(run, _)| *run == job.run()).map(|(_, count)| *count);
        let (mut count, mut ended) = (known.unwrap_or(0), Vec::new());
        while let Some(ending) = job.ending(count) {
            count.raise(1);
            match ending {
                Ending::Rank(exit) => ended.push(exit.rank),
                Ending::NodeLost(lost) => ended.extend(lost.ranks),
                Ending::Early(_) | Ending::Mpi { .. } => {}
            }
        }
        reported.insert(nspace.clone(), (job.run(), count));
        Some((known.is_none(), ended))
    }

    /// Returns the weight in the budgets of its tool, process and user, in processes.
    pub fn weight(&self) -> usize {
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

    /// Returns whether each pull of a stream of `nspace` that the registration covers `is_done`, or is
    /// missed.
    pub(crate) fn pulls_are(
        &self,
        (nspace, job): (&Nspace, &JobState),
        is_done: impl Fn(&NodePull) -> bool,
    ) -> bool {
        let mut source = Proc::new(nspace.clone(), Rank::UNDEF);
        job.pulled().iter().all(|(&(rank, channel), pull)| {
            source.rank = rank;
            pull.is_missed || is_done(pull) || !self.covers_stream(&source, channel)
        })
    }

    /// Returns whether this registration covers a stream.
    pub(crate) fn covers_stream(&self, source: &Proc, channel: Channel) -> bool {
        self.channels.contains(channel.into()) && self.covers(source)
    }

    /// Returns the named jobs, each once.
    pub fn jobs(&self) -> impl Iterator<Item = &Nspace> {
        let mut rest = self.procs.as_slice();
        std::iter::from_fn(move || {
            let nspace = &rest.first()?.nspace;
            let next = rest.partition_point(|proc| proc.nspace <= *nspace);
            rest = rest.get(next..).unwrap_or_default();
            Some(nspace)
        })
    }

    /// Returns a named job that has ended for the registration, unless it continues with later jobs.
    pub(crate) fn gone_job(&self, is_gone: impl Fn(&Nspace) -> bool) -> Option<&Nspace> {
        self.jobs().find(|nspace| !self.persistent && is_gone(nspace))
    }

    /// Returns whether the current job `nspace` is part of the registration.
    pub(crate) fn includes(&self, nspace: &Nspace) -> bool {
        self.persistent || !self.reported_ends.contains_key(nspace)
    }

    /// Returns whether run `run` of `nspace` is part of the registration, also when its end was reported.
    pub(crate) fn includes_run(&self, nspace: &Nspace, run: u64) -> bool {
        self.persistent || self.reported_ends.get(nspace).is_none_or(|reported| *reported == run)
    }

    /// Returns whether the registration has ended: the first job of each of its names has ended,
    /// and no later job is part of it.
    pub(crate) fn is_over(&self) -> bool {
        !self.jobs().any(|nspace| self.includes(nspace))
    }

    /// Marks the end of run `run` of `nspace` as reported. Returns `false` if it was reported
    /// before or is not part of the registration.
    pub(crate) fn mark_end_reported(&mut self, nspace: &Nspace, run: u64) -> bool {
        if !self.includes(nspace) || self.reported_ends.get(nspace) == Some(&run) {
            return false;
        }
        self.reported_ends.insert(nspace.clone(), run);
        true
    }

    /// Returns the message that no further source will follow, the first time that this is so.
    /// The registration `may_pull` the streams of other nodes. `is_missing` returns whether a report of a stream
    /// that the tool misses is still to come.
    pub(crate) fn announce_if_complete(
        &mut self,
        (handler, may_pull): (u32, bool),
        jobs: &Jobs,
        is_missing: impl FnOnce() -> bool,
    ) -> Option<ToTool> {
        let has_rings = |job: &JobState, nspace: &Nspace| {
            let mut source = Proc::new(nspace.clone(), Rank::UNDEF);
            job.has_rings(self.channels, |rank| {
                source.rank = rank;
                self.covers(&source)
            })
        };
        // A job that has ended may have been removed already.
        let whole = |nspace: &Nspace| {
            self.reported_ends.contains_key(nspace)
                || jobs.get(nspace).is_some_and(|job| {
                    let is_attached =
                        self.start == Start::Oldest || self.pulls_are((nspace, job), |pull| pull.is_marked);
                    job.all_ranks_known() || may_pull && is_attached && has_rings(job, nspace)
                })
        };
        if self.announced || self.joining > 0 || !self.jobs().all(whole) || is_missing() {
            return None;
        }
        self.announced = true;
        Some(ToTool::Announced { handler })
    }
}

/// The registrations that name each job.
#[derive(Default)]
pub(crate) struct ByJob {
    registrations: BTreeMap<Nspace, BTreeSet<(PeerId, u32)>>,
    /// The jobs whose registrations have changed.
    changed: BTreeSet<Nspace>,
}

impl ByJob {
    /// Returns the registrations that name `nspace`, in order.
    pub(crate) fn naming(&self, nspace: &Nspace) -> Vec<(PeerId, u32)> {
        self.registrations
            .get(nspace)
            .map(|registrations| registrations.iter().copied().collect())
            .unwrap_or_default()
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.registrations.values().map(BTreeSet::len).sum()
    }

    /// Notes that what the registrations for a job cover may have changed.
    pub(crate) fn note_change(&mut self, nspace: &Nspace) {
        self.changed.insert(nspace.clone());
    }

    /// Returns whether the registrations for a job have changed.
    pub(crate) fn is_changed(&self, nspace: &Nspace) -> bool {
        self.changed.contains(nspace)
    }

    /// Removes and returns the jobs whose registrations have changed.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<Nspace> {
        mem::take(&mut self.changed)
    }

    pub(crate) fn add(&mut self, peer_id: PeerId, handler: u32, registration: &Registration) {
        self.changed.extend(registration.jobs().cloned());
        for nspace in registration.jobs() {
            self.registrations.entry(nspace.clone()).or_default().insert((peer_id, handler));
        }
    }

    pub(crate) fn remove(&mut self, peer_id: PeerId, handler: u32, registration: &Registration) {
        self.changed.extend(registration.jobs().cloned());
        for nspace in registration.jobs() {
            let Some(registrations) = self.registrations.get_mut(nspace) else {
                absent!("registration", continue)
            };
            registrations.remove(&(peer_id, handler));
            if registrations.is_empty() {
                self.registrations.remove(nspace);
            }
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
        assert!(by_job.registrations.is_empty(), "a job that no registration names is removed");
    }
}
