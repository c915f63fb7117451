//! The answers that tools that ask to push must get, and the engine's actions on the stdin of
//! ranks.

use std::collections::BTreeMap;

use iof_capture::{Event, PushId, TargetId};
use iof_proto::{Failure, Proc, PushGranted, PushReport, Rank, Status, StdinUnavailable};

use super::EngineWorld;
use super::jobs::{Job, RankProcess};
use super::stdins::{PushRecord, PushRequest, Stdins};
use crate::driver::{PushAnswer, RankStdin, SentCommand};

/// Why a rank may be left out of a push, and whether it may be part of it.
#[derive(Debug, Default)]
struct Allowed {
    target: Option<TargetId>,
    may_receive: bool,
    reasons: Vec<StdinUnavailable>,
}

/// The ranks that a request to push refers to.
#[derive(Debug, Default)]
struct Resolved {
    /// A job or rank does not exist.
    has_unknown: bool,
    /// A job is being started.
    has_starting: bool,
    ranks: BTreeMap<Proc, Allowed>,
    elsewhere: Vec<Proc>,
}

impl Resolved {
    /// Returns whether the reason applies to a rank, and whether no other does.
    fn has(&self, why: StdinUnavailable) -> (bool, bool) {
        let mut those = self.ranks.values().filter(|allowed| allowed.reasons.contains(&why)).peekable();
        let may_apply = those.peek().is_some();
        (may_apply, those.any(|allowed| !allowed.may_receive && allowed.reasons.len() == 1))
    }

    /// Checks that a push is refused, because targets can't be reached.
    fn check_refusal(&self, failure: &Failure, partial: bool) {
        use StdinUnavailable::{Closed, Elsewhere, Inherited, NotOpen};
        let is_closed = failure.status == Status::ERR_IOF_COMPLETE;
        for why in [NotOpen, Inherited, Closed, Elsewhere] {
            let (may_apply, applies) = self.has(why);
            let is_named = failure.reason.contains(&format!(": {why}"));
            assert!(!is_named || may_apply, "{failure} of {self:?}");
            assert!(!applies || is_named, "{failure} does not name {why:?} of {self:?}");
            assert!(!is_named || !is_closed || why == Closed, "{failure}");
        }
        let all_unavailable = || self.elsewhere.is_empty() && !self.ranks.values().any(Allowed::must_receive);
        assert!(!partial || all_unavailable(), "{failure} although ranks can be reached: {self:?}");
    }
}

impl Allowed {
    fn must_receive(&self) -> bool {
        self.may_receive && self.reasons.is_empty()
    }
}

impl EngineWorld {
    /// Notes a command about stdin.
    pub(super) fn note_stdin_command(&mut self, command: SentCommand) {
        match command {
            SentCommand::PushBegun { push, targets, closes } => {
                self.truth.stdins.begun(push, &targets, closes);
            }
            SentCommand::CutOff { push, position } => self.truth.stdins.cut_off(push, position),
            SentCommand::Shut(target) => {
                assert!(self.may_shut(target), "the stdin of {target:?} is closed for no reason");
                if let Some(stdin) = self.truth.stdins.stdins.get_mut(&target) {
                    stdin.is_stopped = true;
                }
            }
            _ => {}
        }
    }

    /// Returns whether the engine may close a stdin: its job was removed or has failed to start, or a
    /// push of a tool that has left does not end there and makes another one wait.
    fn may_shut(&self, target: TargetId) -> bool {
        if self.rank_with(target).is_none() {
            return true;
        }
        let mut waiting = self.truth.stdins.waiting(target);
        let first_is_orphan = waiting.next().is_some_and(|push| self.is_orphan(push));
        first_is_orphan && waiting.any(Stdins::was_cut_off)
    }

    /// Returns whether the tool of a push has left.
    fn is_orphan(&self, push: &PushRecord) -> bool {
        let is_gone = |(id, _): (usize, u32)| !self.tools.iter().any(|tool| tool.id == id && !tool.closed);
        // A push without a known tool is that of a tool that has left.
        push.tool.is_none_or(is_gone)
    }

    fn rank_with(&self, target: TargetId) -> Option<&RankProcess> {
        let mut ranks = self.jobs.list.iter().flat_map(|job| &job.ranks);
        ranks.find(|rank| rank.target == Some(target))
    }

    /// Notes an event of the capture about stdin.
    pub(super) fn note_stdin_event(&mut self, event: &Event) {
        match event {
            Event::Fed { push, target, delivered, end } => {
                self.truth.stdins.fed(*push, *target, *delivered, end);
            }
            Event::Shut { target } => {
                let is_read = self.rank_with(*target).is_some_and(|rank| rank.stdin.is_some());
                let is_explained = !is_read || self.truth.is_cut || self.truth.stdins.explains_shut(*target);
                let stdin = self.truth.stdins.stdins.get_mut(target).expect("a known stdin");
                assert!(is_explained || stdin.is_stopped, "the stdin of {} was closed", stdin.proc);
                stdin.is_shut = true;
            }
            _ => {}
        }
    }

    /// Notes that the engine learns of an event of the capture.
    pub(super) fn note_known(&mut self, event: &Event) {
        match event {
            Event::Shut { target } => {
                self.truth.stdins.stdins.get_mut(target).expect("a known stdin").is_known_shut = true;
            }
            Event::Fed { push, target, .. } => self.truth.stdins.note_known_end(*push, *target),
            _ => {}
        }
    }

    /// Checks the report of a push that has ended. It is not known if no tool receives it.
    pub(super) fn check_push_over(&mut self, push: PushId, report: Option<PushReport>) {
        let is_orphan = self.truth.stdins.pushes.get(&push).is_some_and(|push| self.is_orphan(push));
        let Some(report) = report else {
            return self.truth.stdins.note_over(push, PushReport::default());
        };
        let EngineWorld { jobs, truth, .. } = self;
        let runs = |target| {
            let mut ranks = jobs.list.iter().flat_map(|job| &job.ranks);
            ranks.any(|rank| rank.target == Some(target) && !rank.exited)
        };
        let limits = truth.limits;
        // No tool can cut off a push whose tool has left, so one that waits for it does.
        let may_be_cut_off = is_orphan && truth.stdins.is_cut_off_behind(push);
        let may_be = (truth.is_cut, may_be_cut_off, &limits);
        truth.stdins.check_report(push, report, may_be, |target| !runs(target));
    }

    /// Checks the answers to requests to push.
    pub(super) fn check_push_answers(&mut self, answers: Vec<PushAnswer>) {
        // The pushes that begin after an answer are known already, but do not count.
        let begun: Vec<PushId> = answers.iter().filter_map(PushAnswer::push).collect();
        let mut begun = begun.into_iter().peekable();
        for PushAnswer { tool, request, result } in answers {
            let next = begun.peek().copied();
            let asked = self.truth.stdins.take_request((tool, request));
            match (result, asked) {
                (Ok((push, granted)), asked) => {
                    begun.next();
                    self.truth.stdins.granted(push, (tool, granted.push), asked.as_ref());
                    if let Some(asked) = asked {
                        let resolved = self.resolve(&asked, next);
                        let record = self.truth.stdins.pushes.get_mut(&push).expect("a known push");
                        record.elsewhere.clone_from(&resolved.elsewhere);
                        let local: Vec<TargetId> = record.local.keys().copied().collect();
                        check_granted(&granted, &local, &resolved, asked.partial);
                    }
                }
                (Err(failure), Some(asked)) => self.check_push_refusal(&failure, &asked, next),
                (Err(_), None) => {}
            }
        }
    }

    fn check_push_refusal(&self, failure: &Failure, asked: &PushRequest, next: Option<PushId>) {
        // Limits are checked elsewhere.
        if failure.reason.ends_with("to end") {
            return;
        }
        let resolved = self.resolve(asked, next);
        assert!(!resolved.has_starting, "{failure} while a job is being started");
        match failure.status {
            Status::ERR_NOT_FOUND => assert!(resolved.has_unknown, "{failure} of {resolved:?}"),
            Status::ERR_OUT_OF_RESOURCE => assert!(self.engine.lacks_files(), "{failure}"),
            Status::ERR_IOF_COMPLETE | Status::ERR_NOT_SUPPORTED => {
                assert!(!resolved.has_unknown, "{failure} of {resolved:?}");
                resolved.check_refusal(failure, asked.partial);
            }
            _ => panic!("{failure} of {resolved:?}"),
        }
    }

    /// Returns what a request refers to before the push `next` begins.
    fn resolve(&self, asked: &PushRequest, next: Option<PushId>) -> Resolved {
        let mut found = Resolved::default();
        for proc in &asked.targets {
            let Some(job) = self.jobs.list.iter().find(|job| job.nspace == proc.nspace) else {
                found.has_unknown = true;
                continue;
            };
            found.has_starting |= !job.registered;
            let has_remote = job.elsewhere && !job.remote_ended;
            let whole = proc.rank == Rank::WILDCARD;
            let local = (0..).map(Rank).zip(&job.ranks).filter(|(rank, _)| whole || *rank == proc.rank);
            let local: Vec<(Proc, Allowed)> =
                local.map(|(rank, state)| self.allowed(job, rank, state, (asked.own, next))).collect();
            let has_local = !local.is_empty();
            found.ranks.extend(local);
            match has_remote && (whole || !has_local) {
                true if self.has_host_stdin() => found.elsewhere.push(proc.clone()),
                true => {
                    let reasons = vec![StdinUnavailable::Elsewhere];
                    found.ranks.insert(proc.clone(), Allowed { reasons, ..Allowed::default() });
                }
                false => found.has_unknown |= !whole && !has_local,
            }
        }
        found.elsewhere.sort();
        found.elsewhere.dedup();
        found
    }

    fn has_host_stdin(&self) -> bool {
        self.setting.tools > 2
    }

    fn allowed(
        &self,
        job: &Job,
        rank: Rank,
        state: &RankProcess,
        (own, next): (bool, Option<PushId>),
    ) -> (Proc, Allowed) {
        let stdins = &self.truth.stdins;
        let stdin = state.target.and_then(|target| stdins.stdins.get(&target));
        let is_known_shut = stdin.is_some_and(|stdin| stdin.is_known_shut);
        let mut allowed = Allowed { target: state.target, ..Allowed::default() };
        match state.stdin_kind {
            RankStdin::Closed => allowed.reasons.push(StdinUnavailable::NotOpen),
            RankStdin::Own if !own && !is_known_shut => allowed.reasons.push(StdinUnavailable::Inherited),
            RankStdin::Own | RankStdin::Open => {
                let ends = |target| stdins.will_end(target, next);
                let is_closed = is_known_shut || state.target.is_none_or(ends);
                let is_stopped = stdin.is_none_or(|stdin| stdin.is_shut || stdin.is_stopped);
                allowed.may_receive = !is_closed && !self.engine.is_without_capture();
                let may_be_closed = state.stdin.is_none() || is_stopped || self.capture.has_ended();
                let is_possible = may_be_closed || !allowed.may_receive;
                allowed.reasons.extend(is_possible.then_some(StdinUnavailable::Closed));
            }
        }
        (Proc::new(job.nspace.clone(), rank), allowed)
    }
}

/// Checks the targets that a push has.
fn check_granted(granted: &PushGranted, local: &[TargetId], resolved: &Resolved, partial: bool) {
    assert!(!resolved.has_unknown && !resolved.has_starting, "a push to {resolved:?}");
    let mut skipped: BTreeMap<&Proc, StdinUnavailable> = BTreeMap::new();
    for found in &granted.skipped {
        assert!(skipped.insert(&found.target, found.reason).is_none(), "{found:?} is skipped twice");
    }
    assert!(partial || skipped.is_empty(), "{skipped:?} are skipped unasked");
    let has_targets = !local.is_empty() || !resolved.elsewhere.is_empty();
    assert!(has_targets || skipped.is_empty(), "a push without targets: {skipped:?}");
    let mut receiving = 0;
    for (proc, allowed) in &resolved.ranks {
        let receives = allowed.target.is_some_and(|target| local.contains(&target));
        receiving += usize::from(receives);
        match skipped.remove(proc) {
            Some(why) => {
                assert!(
                    !receives && allowed.reasons.contains(&why),
                    "{proc} is skipped: {why:?}, {allowed:?}"
                );
            }
            None => assert!(receives && allowed.may_receive, "{proc} of {local:?}: {allowed:?}"),
        }
    }
    assert!(skipped.is_empty(), "{skipped:?} are not named");
    assert_eq!(receiving, local.len(), "a push to ranks that are not named: {local:?}");
}
