//! Admission of a push: all targets are checked before any of them gets a byte.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use iof_capture::TargetId;
use iof_proto::ranges::ranges;
use iof_proto::{Failure, Info, Proc, PushDirectives, Quota, Rank, Status, StdinUnavailable};

use crate::Core;
use crate::clients::client::Payer;
use crate::clients::quotas::Charge;
use crate::jobs::job::RankState;
use crate::pushes::push::Push;
use crate::streams::options::MIN_CACHE_SIZE;
use crate::streams::options::limit_cache_size;

/// The number of ranges of ranks that a message lists.
const MAX_LISTED_RANGES: usize = 16;

/// The directives of a push and what follows from them.
pub(crate) struct PushOptions {
    pub directives: PushDirectives,
    /// The keys of directives that are not supported.
    pub ignored: Vec<String>,
    /// The capacity of the inlet, in bytes.
    pub capacity: u64,
}

/// The targets of a push, by where they run.
#[derive(Default)]
pub(crate) struct Admitted {
    pub local: BTreeMap<TargetId, Proc>,
    pub elsewhere: BTreeSet<Proc>,
    /// The targets that cannot be reached.
    pub unavailable: BTreeMap<Proc, StdinUnavailable>,
}

impl Admitted {
    /// Adds a rank that runs here or on a node. The embedder's `own` tools may push to more of them.
    /// Other pushes are `ending` the stdin of these on nodes.
    fn admit(&mut self, proc: Proc, rank: &RankState, own: bool, ending: &BTreeSet<&Proc>) {
        match (rank.stdin_unavailable(own), rank.target()) {
            (Some(why), _) => drop(self.unavailable.insert(proc, why)),
            (None, Some(target)) => drop(self.local.insert(target, proc)),
            (None, None) if ending.contains(&proc) => {
                self.unavailable.insert(proc, StdinUnavailable::Closed);
            }
            (None, None) => drop(self.elsewhere.insert(proc)),
        }
    }
}

impl Core {
    /// Parses directives, and chooses the capacity of the inlet for `size` bytes.
    pub(crate) fn push_options(&self, infos: &[Info], size: Option<u64>) -> Result<PushOptions, Failure> {
        let ours: Vec<Info> =
            infos.iter().filter(|info| !self.settings.host_keys.contains(&info.key)).cloned().collect();
        let (mut directives, mut ignored) = PushDirectives::read(&ours)?;
        limit_cache_size(&mut directives.cache_size, self.settings.max_cache_size, infos, &mut ignored)?;
        // A large default cache for output does not apply to stdin.
        let default = self.settings.options.cache_size.min(self.settings.max_cache_size.max(MIN_CACHE_SIZE));
        let cache = u64::from(directives.cache_size.unwrap_or(default));
        let capacity = size.map_or(cache, |size| size.min(cache)).max(1);
        Ok(PushOptions { directives, ignored, capacity })
    }

    /// Charges a tool for a push with an inlet of `capacity` bytes. Deferred requests count like
    /// pushes.
    pub(crate) fn charge_push(&mut self, payer: Payer, capacity: u64) -> Result<Charge, Failure> {
        self.quotas.charge(payer, [(Quota::Pushes, 1), (Quota::PushBytes, capacity)])
    }

    /// Resolves the targets.
    ///
    /// # Errors
    /// Fails if a job or rank does not exist, or if too many pushes wait for the host.
    pub(crate) fn admit_push(&self, procs: &[Proc], own: bool) -> Result<Admitted, Failure> {
        let mut admitted = Admitted::default();
        if procs.is_empty() {
            let reason = "a push must name at least one process";
            return Err(Failure::new(Status::ERR_BAD_PARAM, reason));
        }
        let ending: BTreeSet<&Proc> = self.pushes.values().flat_map(Push::ending_elsewhere).collect();
        for proc in procs.iter().collect::<BTreeSet<_>>() {
            let job = self.jobs.get(&proc.nspace).ok_or_else(|| {
                Failure::new(Status::ERR_NOT_FOUND, format!("job {} does not exist", proc.nspace))
            })?;
            if proc.rank == Rank::WILDCARD {
                let mut all = Admitted::default();
                for (rank, state) in job.ranks() {
                    all.admit(Proc::new(proc.nspace.clone(), rank), state, own, &ending);
                }
                admitted.local.extend(all.local);
                admitted.elsewhere.extend(all.elsewhere);
                admitted.unavailable.extend(all.unavailable);
                if job.has_ranks_of_host() {
                    self.admit_at_host(&mut admitted, proc);
                }
            } else if let Some(state) = job.rank(proc.rank) {
                admitted.admit(proc.clone(), state, own, &ending);
            } else if job.has_ranks_of_host() {
                self.admit_at_host(&mut admitted, proc);
            } else {
                return Err(self.jobs.unknown_rank(proc));
            }
        }
        let limit = self.settings.limits.pushes_per_target;
        if self.waiting_elsewhere(&admitted.elsewhere) >= limit {
            let reason = format!("{limit} pushes wait for the host: wait for one to end");
            return Err(Failure::new(Status::ERR_RESOURCE_BUSY, reason));
        }
        Ok(admitted)
    }

    /// Checks that not too many pushes wait for a target.
    pub(crate) fn check_turns(&self, local: &BTreeMap<TargetId, Proc>) -> Result<(), Failure> {
        let limit = self.settings.limits.pushes_per_target;
        match local.iter().find(|(target, _)| self.waiting(**target) >= limit) {
            None => Ok(()),
            Some((_, Proc { rank, .. })) => {
                let reason = format!("{limit} pushes wait at rank {rank}: wait for one to end");
                Err(Failure::new(Status::ERR_RESOURCE_BUSY, reason))
            }
        }
    }

    fn admit_at_host(&self, admitted: &mut Admitted, proc: &Proc) {
        if self.settings.host_stdin {
            admitted.elsewhere.insert(proc.clone());
        } else {
            admitted.unavailable.insert(proc.clone(), StdinUnavailable::Elsewhere);
        }
    }

    /// Moves the targets that no process reads any more, which are not in `open`, or whose end was
    /// pushed, to the unavailable ones.
    pub(crate) fn exclude_closed(&self, admitted: Admitted, open: &BTreeSet<TargetId>) -> Admitted {
        let Admitted { mut local, elsewhere, mut unavailable } = admitted;
        let ends = |target: &TargetId| self.pushes.values().any(|push| push.completes(*target));
        let closed = local.extract_if(.., |target, _| !open.contains(target) || ends(target));
        unavailable.extend(closed.map(|(_, proc)| (proc, StdinUnavailable::Closed)));
        Admitted { local, elsewhere, unavailable }
    }

    /// Returns how many pushes have or wait for their turn at a target.
    fn waiting(&self, target: TargetId) -> usize {
        self.pushes.values().filter(|push| push.local(target).is_some()).count()
    }
}

/// Returns the reason why nothing was pushed, with the targets that cannot be reached.
pub(crate) fn refusal(unavailable: &BTreeMap<Proc, StdinUnavailable>) -> Failure {
    let mut by_reason: BTreeMap<StdinUnavailable, Vec<&Proc>> = BTreeMap::new();
    for (proc, why) in unavailable {
        by_reason.entry(*why).or_default().push(proc);
    }
    let closed = by_reason.keys().all(|why| *why == StdinUnavailable::Closed);
    let status = if closed { Status::ERR_IOF_COMPLETE } else { Status::ERR_NOT_SUPPORTED };
    let mut reason = String::from("nothing was pushed:");
    for (number, (why, procs)) in by_reason.iter().enumerate() {
        let separator = if number > 0 { ";" } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(reason, "{separator} {}: {why}", names(procs));
    }
    Failure::new(status, reason)
}

/// Formats ranks as "rank 1" or "ranks 1,3-5", with the job's name if there are several jobs.
fn names(procs: &[&Proc]) -> String {
    let jobs = || procs.chunk_by(|one, other| one.nspace == other.nspace);
    let has_several = jobs().count() > 1;
    let of_job = |procs: &[&Proc]| {
        let job = procs.first().filter(|_| has_several).map(|proc| format!(" of {}", proc.nspace));
        let job = job.unwrap_or_default();
        ranges(procs.iter().map(|proc| &proc.rank)).into_iter().map(move |range| range + &job)
    };
    let mut parts: Vec<String> = jobs().flat_map(of_job).collect();
    let others = if parts.len() > MAX_LISTED_RANGES { " and others" } else { "" };
    parts.truncate(MAX_LISTED_RANGES);
    let noun = if procs.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}{others}", parts.join(","))
}

#[cfg(test)]
mod tests {
    use iof_proto::Nspace;

    use super::*;

    fn proc(job: &str, rank: u32) -> Proc {
        Proc::new(Nspace::new(job).unwrap(), Rank(rank))
    }

    #[test]
    fn a_refusal_groups_the_ranks_by_why_they_cannot_be_reached() {
        let unavailable = [
            (1, StdinUnavailable::NotOpen),
            (2, StdinUnavailable::Closed),
            (3, StdinUnavailable::NotOpen),
            (4, StdinUnavailable::NotOpen),
        ];
        let refused = refusal(&unavailable.map(|(rank, why)| (proc("a", rank), why)).into());
        assert_eq!(refused.status, Status::ERR_NOT_SUPPORTED);
        let expected = "nothing was pushed: ranks 1,3-4: stdin was not left open; rank 2: stdin is closed";
        assert_eq!(refused.reason, expected);
        let closed = refusal(&[(proc("a", 0), StdinUnavailable::Closed)].into());
        assert_eq!(closed.status, Status::ERR_IOF_COMPLETE);
        let two = refusal(
            &[(proc("a", 0), StdinUnavailable::NotOpen), (proc("b", 1), StdinUnavailable::NotOpen)].into(),
        );
        assert!(two.reason.contains("ranks 0 of a,1 of b:"), "{two}");
    }

    #[test]
    fn a_refusal_of_many_ranks_stays_short() {
        let many = (0..1000).map(|rank| (proc("a", 2 * rank), StdinUnavailable::NotOpen)).collect();
        let refused = refusal(&many);
        assert!(refused.reason.len() < 200 && refused.reason.contains(",30 and others:"), "{refused}");
    }
}
