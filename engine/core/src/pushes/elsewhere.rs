//! Pushes to ranks that run elsewhere: the host and the nodes of jobs receive the bytes, one piece
//! at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use iof_capture::PushId;
use iof_proto::{Nspace, PartialCause, Proc, Rank};

use crate::Core;
use crate::clients::owed::size_of_procs;
use crate::count::Count;
use crate::effects::HandleOp;
use crate::ids::Call;
use crate::jobs::job::{JobState, RankState};
use crate::jobs::nodes::{NodeKey, StdinAnswer};
use crate::pushes::push::elsewhere::{PieceAnswered, ReceiverShare};
use crate::pushes::push::{Elsewhere, Push};
use crate::pushes::stdin_calls::{StdinTaker, closed};
use crate::tools::peer::Peer;
use crate::upcall::Upcall;

impl Core {
    /// Returns the ongoing pushes that share a target with `targets`.
    pub(crate) fn earlier_elsewhere(&self, targets: &BTreeSet<Proc>) -> BTreeSet<PushId> {
        let jobs: BTreeSet<&Nspace> = targets.iter().map(|target| &target.nspace).collect();
        let whole: BTreeSet<&Nspace> = targets
            .iter()
            .filter(|target| target.rank == Rank::WILDCARD)
            .map(|target| &target.nspace)
            .collect();
        let meets = |other: &Proc| {
            targets.contains(other)
                || whole.contains(&other.nspace)
                || (other.rank == Rank::WILDCARD && jobs.contains(&other.nspace))
        };
        let earlier = self
            .pushes
            .iter()
            .filter(|(_, push)| push.elsewhere().is_some_and(|elsewhere| elsewhere.targets().any(meets)));
        earlier.map(|(id, _)| id).collect()
    }

    /// Returns the most ongoing pushes that the host has for any of `targets`. A push to a whole job
    /// counts at each of its ranks.
    pub(crate) fn waiting_elsewhere(&self, targets: &BTreeSet<Proc>) -> usize {
        let mut of_targets: BTreeMap<&Proc, usize> = targets.iter().map(|target| (target, 0)).collect();
        let whole = targets.iter().filter(|target| target.rank == Rank::WILDCARD);
        let mut ranks_of: BTreeMap<&Nspace, Vec<Rank>> =
            whole.map(|target| (&target.nspace, Vec::new())).collect();
        let mut of_jobs: BTreeMap<&Nspace, usize> = BTreeMap::new();
        for elsewhere in self.pushes.values().filter_map(Push::elsewhere) {
            let whole = elsewhere.targets().filter(|proc| proc.rank == Rank::WILDCARD);
            let whole: BTreeSet<&Nspace> = whole.map(|proc| &proc.nspace).collect();
            for proc in elsewhere.targets().filter(|proc| !whole.contains(&proc.nspace)) {
                of_targets.entry(proc).and_modify(increment);
                if let Some(ranks) = ranks_of.get_mut(&proc.nspace) {
                    ranks.push(proc.rank);
                }
            }
            whole.into_iter().for_each(|job| increment(of_jobs.entry(job).or_default()));
        }
        ranks_of.values_mut().for_each(|ranks| ranks.sort_unstable());
        let most_of = |job: &Nspace| {
            let runs = ranks_of.get(job).into_iter().flat_map(|ranks| ranks.chunk_by(PartialEq::eq));
            runs.map(<[Rank]>::len).max().unwrap_or_default()
        };
        let most = |(target, count): (&&Proc, &usize)| {
            let count = if target.rank == Rank::WILDCARD { most_of(&target.nspace) } else { *count };
            count.saturating_add(of_jobs.get(&target.nspace).copied().unwrap_or_default())
        };
        of_targets.iter().map(most).max().unwrap_or_default()
    }

    /// Records that the push `ended` has nothing more for the host. Returns the pushes that may
    /// continue now.
    pub(crate) fn yield_elsewhere(&mut self, ended: PushId) -> Vec<PushId> {
        let next = self.pushes.iter_mut().filter_map(|(id, push)| push.gets_turn_after(ended).then_some(id));
        next.collect()
    }

    /// Gives the host and the nodes of jobs the next piece of a push, if one is due.
    pub(crate) fn continue_elsewhere(&mut self, id: PushId) {
        let paused = self.is_paused(id);
        let Some(push) = self.pushes.get_mut(&id) else { return };
        let Some(piece) = push.next_piece(paused) else { return };
        let Some(elsewhere) = push.elsewhere() else { absent!("part elsewhere", return) };
        let (stdin, takers, nodes) = (Arc::clone(elsewhere.stdin()), elsewhere.takers(), elsewhere.nodes());
        let (payer, size) = (push.charge.payer, piece.len.saturating_add(size_of_procs(&stdin.targets)));
        if let Err(failure) = self.owe(Call::Stdin(id), payer, size) {
            let cause = PartialCause::Failed(failure.to_string());
            return self.pushes.get_mut(&id).map_or((), |push| push.give_up_elsewhere(cause));
        }
        if takers.contains(&None) {
            self.effects.upcalls.push(Upcall::Stdin { push: id, stdin, piece });
        }
        if !nodes.is_empty() {
            self.effects.handles.push(HandleOp::Stdin { push: id, nodes, piece });
        }
        self.stdin_calls.insert(id, takers);
    }

    /// Divides targets by the receivers of their bytes: the host, and the nodes of jobs.
    pub(crate) fn shares(&self, targets: BTreeSet<Proc>) -> BTreeMap<StdinTaker, ReceiverShare> {
        let mut shares = BTreeMap::<StdinTaker, ReceiverShare>::new();
        for target in targets {
            let node = self.jobs.rank(&target).and_then(RankState::node);
            let job = self.jobs.get(&target.nspace).map(JobState::run);
            shares.entry(job.zip(node)).or_default().targets.insert(target);
        }
        for (taker, share) in &mut shares {
            let job = share.targets.first().and_then(|target| self.jobs.get(&target.nspace));
            let all = job.zip(*taker).map(|(job, (_, node))| job.ranks_of(node));
            if all.is_some_and(|all| share.targets.len() < all) {
                share.named = Some(share.targets.iter().map(|target| target.rank).collect());
            }
        }
        shares
    }

    /// Lets the ranks of a node that has ended leave all pushes, also those that send nothing at present.
    pub(crate) fn end_stdin_of(&mut self, node: NodeKey) {
        let taker = Some(node);
        let takes = |push: &Push| push.elsewhere().is_some_and(|elsewhere| elsewhere.has_taker(taker));
        let with_taker = self.pushes.iter().filter_map(|(id, push)| takes(push).then_some(id));
        let all: BTreeSet<PushId> = with_taker.chain(self.stdin_calls.waiting_for(taker)).collect();
        // A push that goes on may let another one begin, which is not to send the node anything.
        all.iter().for_each(|push| self.note_taken(*push, taker, Err(closed())));
        all.into_iter().for_each(|push| self.piece_settled(push, taker));
    }

    /// Processes an answer for a piece.
    pub(crate) fn stdin_answered(&mut self, id: PushId, taker: StdinTaker, answer: StdinAnswer) {
        if self.stdin_calls.waits_for(id, taker) {
            self.note_taken(id, taker, answer);
            self.piece_settled(id, taker);
        }
    }

    /// Notes what a receiver has taken of the last piece.
    fn note_taken(&mut self, id: PushId, taker: StdinTaker, answer: StdinAnswer) {
        let Some(push) = self.pushes.get_mut(&id) else { return };
        let PieceAnswered { shut, paused } = push.piece_answered(taker, answer);
        self.jobs.shut_there(&shut);
        if let Some(source) = paused {
            self.set_stdin_flow(Some(source), true);
        }
    }

    /// Continues a push whose last piece no longer waits for a receiver.
    fn piece_settled(&mut self, id: PushId, taker: StdinTaker) {
        if self.stdin_calls.answered(id, taker) {
            self.owes_no_more(Call::Stdin(id));
            self.pushes.get_mut(&id).map(Push::piece_over);
        }
        self.continue_push(id);
    }

    /// Notes that the host takes stdin of `source`, or of all tools, no more (`paused`) or again.
    pub(crate) fn set_stdin_flow(&mut self, source: Option<Proc>, paused: bool) {
        if !paused || source.as_ref().is_none_or(|source| self.stdin_sources().contains(source)) {
            self.pushes.set_flow(source, paused);
        }
        let due: Vec<PushId> = self.pushing_elsewhere().map(|(id, _)| id).collect();
        due.into_iter().for_each(|id| self.continue_push(id));
    }

    /// Forgets the pauses of tools that have gone, and whose pushes have ended.
    pub(crate) fn forget_pauses(&mut self) {
        if self.pushes.has_paused() {
            let sources = self.stdin_sources();
            self.pushes.retain_paused(|source| sources.contains(source));
        }
    }

    /// Returns the tools, and those that have gone but whose pushes have not ended.
    pub(crate) fn stdin_sources(&self) -> BTreeSet<Proc> {
        let tools = self.tools.values().map(Peer::proc);
        tools.chain(self.pushing_elsewhere().map(|(_, source)| source.clone())).collect()
    }

    /// Returns whether the host takes nothing of the tool of a push at present.
    fn is_paused(&self, id: PushId) -> bool {
        let elsewhere = self.pushes.get(&id).and_then(Push::elsewhere);
        elsewhere.is_some_and(|elsewhere| self.pushes.is_paused(elsewhere.source()))
    }

    /// Returns the pushes with targets elsewhere, each with its source.
    fn pushing_elsewhere(&self) -> impl Iterator<Item = (PushId, &Proc)> {
        self.pushes.iter().filter_map(|(id, push)| Some((id, push.elsewhere()?.source())))
    }

    /// Gives up on the host if it has not taken more than the bytes before `position`. If the push
    /// waits for pushes whose tools have disconnected, gives up on the host for those of them from
    /// which it has taken nothing since the tool last asked: no tool of their own could cut them off.
    pub(crate) fn cut_off_elsewhere(&mut self, id: PushId, position: u64) {
        let paused = self.is_paused(id);
        let Some(push) = self.pushes.get(&id) else { return };
        let cut_off = if push.is_slow_elsewhere(position, paused) {
            vec![id]
        } else if push.elsewhere().is_some_and(|elsewhere| elsewhere.position() <= position) {
            let orphans = self.slow_orphans_before(id);
            self.pushes.get_mut(&id).map(|push| push.note_orphans(orphans)).unwrap_or_default()
        } else {
            Vec::new()
        };
        for id in cut_off {
            if let Some(push) = self.pushes.get_mut(&id) {
                push.give_up_elsewhere(PartialCause::CutOff);
            }
            self.continue_push(id);
        }
    }

    /// Returns the pushes of tools that have disconnected for which a push waits, directly or because
    /// such a push waits for them, and for which the host owes an answer, with the bytes that it has
    /// taken of each.
    fn slow_orphans_before(&self, id: PushId) -> BTreeMap<PushId, u64> {
        let (mut slow, mut seen, mut due) = (BTreeMap::new(), BTreeSet::new(), vec![id]);
        while let Some(elsewhere) = due.pop().map(|id| self.pushes.get(&id).and_then(Push::elsewhere)) {
            for earlier in elsewhere.into_iter().flat_map(Elsewhere::waits_for) {
                let is_orphan = self.pushes.get(&earlier).is_some_and(|push| push.tool().is_none());
                if is_orphan && seen.insert(earlier) {
                    match self.slow_position(earlier) {
                        Some(position) => drop(slow.insert(earlier, position)),
                        None => due.push(earlier),
                    }
                }
            }
        }
        slow
    }

    /// Returns the number of bytes that the host has taken of a push that has its turn, if the host
    /// has not answered its last piece or takes nothing of its tool.
    fn slow_position(&self, id: PushId) -> Option<u64> {
        let push = self.pushes.get(&id)?;
        let elsewhere = push.elsewhere().filter(|elsewhere| elsewhere.has_turn())?;
        push.is_slow_elsewhere(u64::MAX, self.is_paused(id)).then_some(elsewhere.position())
    }
}

fn increment(count: &mut usize) {
    count.raise(1);
}
