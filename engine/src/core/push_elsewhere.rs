//! Pushes to ranks that run elsewhere: the host receives the bytes, one piece at a time.

use std::collections::{BTreeMap, BTreeSet};

use iof_capture::PushId;
use iof_proto::{Failure, Nspace, PartialCause, Proc, Rank};

use crate::core::Core;
use crate::core::ids::Call;
use crate::core::owed::size_of_procs;
use crate::core::peer::Peer;
use crate::core::push::{Elsewhere, Push};
use crate::core::upcall::Upcall;

impl Core {
    /// Returns the ongoing pushes that share a target with `targets`.
    pub(super) fn earlier_elsewhere(&self, targets: &[Proc]) -> BTreeSet<PushId> {
        let named: BTreeSet<&Proc> = targets.iter().collect();
        let jobs: BTreeSet<&Nspace> = targets.iter().map(|target| &target.nspace).collect();
        let whole: BTreeSet<&Nspace> = targets
            .iter()
            .filter(|target| target.rank == Rank::WILDCARD)
            .map(|target| &target.nspace)
            .collect();
        let meets = |other: &Proc| {
            named.contains(other)
                || whole.contains(&other.nspace)
                || (other.rank == Rank::WILDCARD && jobs.contains(&other.nspace))
        };
        let earlier = self.pushes.iter().filter(|(_, push)| {
            push.elsewhere().is_some_and(|elsewhere| elsewhere.targets().iter().any(meets))
        });
        earlier.map(|(id, _)| id).collect()
    }

    /// Returns how many ongoing pushes the host has for one of `targets`: for that with the most. A
    /// push to a whole job counts at each of its ranks.
    pub(super) fn waiting_elsewhere(&self, targets: &[Proc]) -> usize {
        let mut jobs: BTreeMap<&Nspace, (usize, BTreeMap<Rank, usize>)> = BTreeMap::new();
        for named in self.pushes.values().filter_map(Push::elsewhere).map(Elsewhere::targets) {
            let mut ranks_of: BTreeMap<&Nspace, BTreeSet<Rank>> = BTreeMap::new();
            for Proc { nspace, rank } in named {
                ranks_of.entry(nspace).or_default().insert(*rank);
            }
            for (job, ranks) in ranks_of {
                let (whole, of_ranks) = jobs.entry(job).or_default();
                if ranks.contains(&Rank::WILDCARD) {
                    increment(whole);
                } else {
                    ranks.into_iter().for_each(|rank| increment(of_ranks.entry(rank).or_default()));
                }
            }
        }
        let most = |Proc { nspace, rank }: &Proc| {
            let Some((whole, of_ranks)) = jobs.get(nspace) else { return 0 };
            let is_whole = *rank == Rank::WILDCARD;
            let most = if is_whole { of_ranks.values().max() } else { of_ranks.get(rank) };
            whole.saturating_add(most.copied().unwrap_or_default())
        };
        targets.iter().map(most).max().unwrap_or_default()
    }

    /// Records that the push `ended` has nothing more for the host. Returns the pushes that may
    /// continue now.
    pub(super) fn yield_elsewhere(&mut self, ended: PushId) -> Vec<PushId> {
        let next = self.pushes.iter_mut().filter_map(|(id, push)| push.gets_turn_after(ended).then_some(id));
        next.collect()
    }

    /// Gives the host the next piece of a push, if one is due.
    pub(super) fn continue_elsewhere(&mut self, id: PushId) {
        let paused = self.is_paused(id);
        let Some(push) = self.pushes.get_mut(&id) else { return };
        let Some((stdin, piece)) = push.next_piece(paused) else { return };
        let size = piece.len.saturating_add(size_of_procs(&stdin.targets));
        match self.owed.note(Call::Stdin(id), push.client(), size) {
            Ok(()) => self.effects.upcalls.push(Upcall::Stdin { push: id, stdin, piece }),
            Err(failure) => push.give_up_elsewhere(PartialCause::Failed(failure.to_string())),
        }
    }

    /// Processes the host's answer for a piece.
    pub(crate) fn stdin_answered(&mut self, id: PushId, answer: Result<(), Failure>) {
        let Some(push) = self.pushes.get_mut(&id) else { return };
        if let Some(source) = push.piece_answered(answer) {
            self.set_stdin_flow(Some(source), true);
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
    pub(super) fn forget_pauses(&mut self) {
        if self.pushes.has_paused() {
            let sources = self.stdin_sources();
            self.pushes.retain_paused(|source| sources.contains(source));
        }
    }

    /// Returns the tools, and those that have gone but whose pushes have not ended.
    pub(super) fn stdin_sources(&self) -> BTreeSet<Proc> {
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
    /// waits for pushes whose tools have disconnected, gives up on the host for these instead, as no
    /// tool could cut them off.
    pub(super) fn cut_off_elsewhere(&mut self, id: PushId, position: u64) {
        let paused = self.is_paused(id);
        let Some(push) = self.pushes.get(&id) else { return };
        let cut_off = if push.is_slow_elsewhere(position, paused) {
            vec![id]
        } else if push.elsewhere().is_some_and(|elsewhere| elsewhere.position() <= position) {
            self.slow_orphans_before(id)
        } else {
            Vec::new()
        };
        for id in cut_off {
            self.pushes
                .get_mut(&id)
                .into_iter()
                .for_each(|push| push.give_up_elsewhere(PartialCause::CutOff));
            self.continue_push(id);
        }
    }

    /// Returns the slow pushes of tools that have disconnected for which a push waits, directly or
    /// because such a push waits for them.
    fn slow_orphans_before(&self, id: PushId) -> Vec<PushId> {
        let (mut slow, mut seen, mut due) = (Vec::new(), BTreeSet::new(), vec![id]);
        while let Some(elsewhere) = due.pop().map(|id| self.pushes.get(&id).and_then(Push::elsewhere)) {
            for earlier in elsewhere.into_iter().flat_map(Elsewhere::waits_for) {
                let is_orphan = self.pushes.get(&earlier).is_some_and(|push| push.tool().is_none());
                if is_orphan && seen.insert(earlier) {
                    if self.is_slow_orphan(earlier) { &mut slow } else { &mut due }.push(earlier);
                }
            }
        }
        slow
    }

    /// Returns whether a push has its turn at the host, the host takes none of its bytes, and its
    /// tool has disconnected.
    fn is_slow_orphan(&self, id: PushId) -> bool {
        let paused = self.is_paused(id);
        let push = self.pushes.get(&id).filter(|push| push.tool().is_none());
        push.is_some_and(|push| {
            push.elsewhere().is_some_and(Elsewhere::has_turn) && push.is_slow_elsewhere(u64::MAX, paused)
        })
    }
}

fn increment(count: &mut usize) {
    *count = count.saturating_add(1);
}
