//! The refusals that name a limit of the core.

use iof_proto::{Failure, LogReport, Quota, QuotaLimit, Status};

use super::EngineWorld;
use super::tool::Tool;
use super::truth::Truth;
use crate::driver::Limits;
use crate::rng::Rng;

/// The reason for which a push is refused while files run out.
const NO_FILES: &str = "too many open files";
/// The end of the reason for which a message is refused while readers hold its stream back.
const WAITING: &str = "logged bytes wait for a reader: try again later";

/// The kinds of requests that limits apply to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limited {
    Pull,
    Push,
    Query,
    Log,
    Spawn,
}

/// Returns the limit for which a request was refused, if there is one.
fn limit_of(request: Limited, limits: &Limits, failure: &Failure) -> Option<&'static str> {
    let Failure { status, reason } = failure;
    let quotas: &[Quota] = match request {
        Limited::Pull => &[Quota::Registrations, Quota::Procs, Quota::OwedBytes],
        Limited::Push => &[Quota::Pushes, Quota::PushBytes],
        Limited::Query => &[Quota::Queries, Quota::OwedBytes],
        Limited::Spawn => &[Quota::SpawnedJobs, Quota::SpawnedRanks, Quota::OwedBytes],
        Limited::Log => &[Quota::Logs, Quota::LogBytes, Quota::OwedBytes],
    };
    let is_meant = |quota: Quota, QuotaLimit { name, scope, .. }: &QuotaLimit| {
        let limit = limits.quotas.get(quota, *scope);
        let expected = quota.failure(name, "", 0, limit, 0);
        let counted = expected.reason.trim_start_matches(" has 0").split(", ").next().unwrap_or_default();
        *status == expected.status && reason.contains(counted)
    };
    let named = quotas.iter().find_map(|quota| quota.limits().iter().find(|limit| is_meant(*quota, limit)));
    if let Some(limit) = named {
        return Some(limit.name);
    }
    let (readers, target) = (limits.readers_per_tool, limits.pushes_per_target);
    let (full, busy) = (Status::ERR_OUT_OF_RESOURCE, Status::ERR_RESOURCE_BUSY);
    let others = [
        (Limited::Pull, full, "readers_per_tool", format!("a tool may have {readers} registrations for ")),
        (Limited::Push, busy, "pushes_per_target", format!("{target} pushes wait for the host: ")),
        (Limited::Push, busy, "pushes_per_target", format!("{target} pushes wait at rank ")),
    ];
    let is_meant = |(of, expected, _, begin): &&(Limited, Status, &str, String)| {
        (*of, expected) == (request, status) && reason.starts_with(begin)
    };
    others.iter().find(is_meant).map(|(_, _, name, _)| *name)
}

impl Tool {
    /// Notes the limit for which a request was refused. Returns whether there is one.
    pub(super) fn is_limited(&mut self, request: Limited, failure: &Failure, truth: &Truth) -> bool {
        let limit = limit_of(request, &truth.limits, failure);
        if let Some(limit) = limit {
            self.counts.count("refused", limit);
            self.refused_for.push(limit);
        }
        limit.is_some()
    }

    /// Checks that a message was refused as busy only for a limit.
    pub(super) fn check_log(&mut self, result: &Result<LogReport, Failure>, truth: &Truth) {
        let outcomes = result.iter().flat_map(|report| &report.outcomes);
        let failures =
            outcomes.filter_map(|outcome| outcome.result.as_ref().err()).chain(result.as_ref().err());
        for failure in failures {
            let is_limited = self.is_limited(Limited::Log, failure, truth);
            let is_busy = failure.status == Status::ERR_RESOURCE_BUSY && !failure.reason.ends_with(WAITING);
            assert!(is_limited || !is_busy, "a message was refused: {failure}");
        }
        let is_logged = result.as_ref().is_ok_and(|report| report.status == Status::SUCCESS);
        self.counts.count("log", if is_logged { "done" } else { "failed" });
    }

    /// Checks that a push was refused as busy, or for lack of room, only for a limit or without files.
    pub(super) fn check_refused_push(&mut self, failure: &Failure, truth: &Truth) {
        let is_short = [Status::ERR_RESOURCE_BUSY, Status::ERR_OUT_OF_RESOURCE].contains(&failure.status);
        let is_right =
            !is_short || failure.reason == NO_FILES || self.is_limited(Limited::Push, failure, truth);
        assert!(is_right, "a push was refused: {failure}");
    }

    /// Checks that a query was refused as busy only for a limit.
    pub(super) fn check_refused_query(&mut self, failure: &Failure, truth: &Truth) {
        let is_limited = self.is_limited(Limited::Query, failure, truth);
        assert!(is_limited || failure.status != Status::ERR_RESOURCE_BUSY, "a query was refused: {failure}");
    }
}

impl EngineWorld {
    /// Checks that the limits for which requests were refused have been reached. The sizes of
    /// messages, of requests to the host and of jobs vary, so the limits of their sums are not checked:
    /// one alone may exceed them.
    pub(super) fn check_refusals(&mut self) {
        let reached = self.engine.reached();
        for tool in &mut self.tools {
            for limit in tool.refused_for.drain(..) {
                let varies = [
                    "MAX_LOG_BYTES",
                    "MAX_OWED_BYTES_PER_USER",
                    "MAX_SPAWNED_RANKS",
                    "MAX_SPAWNED_RANKS_PER_JOB",
                ]
                .contains(&limit);
                assert!(varies || reached.contains(limit), "{limit} was not reached");
            }
        }
        self.truth.may_lack_readers |=
            reached.contains("readers_per_tool") || reached.contains("forgotten_per_tool");
    }

    /// In runs with a small limit on streams of removed jobs, jobs end and are removed soon.
    pub(super) fn hurry_jobs(&mut self, rng: &mut Rng) {
        if self.truth.may_shed() && rng.chance(128) {
            self.end_jobs();
            (0..self.jobs.list.len()).rev().for_each(|job| self.remove_job(job));
        }
    }

    /// Counts what has happened in the run.
    pub(super) fn count_reached(&mut self) {
        self.engine.reached().names().for_each(|name| self.past_counts.count("reached", name));
        let has_ended = self.capture.has_ended();
        self.past_counts.count("capture", if has_ended { "ended" } else { "kept" });
    }
}
