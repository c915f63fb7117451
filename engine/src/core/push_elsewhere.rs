//! Pushes to ranks that run elsewhere: the host receives the bytes, one piece at a time.

use std::collections::BTreeSet;
use std::sync::Arc;

use iof_capture::PushId;
use iof_proto::{Failure, Nspace, PartialCause, PartialDelivery, Proc, PushReport, Rank, Status};

use crate::core::Core;
use crate::core::elsewhere::Elsewhere;
use crate::core::ids::Call;
use crate::core::owed::size_of_procs;
use crate::core::push::Push;
use crate::core::upcall::{Piece, StdinPush, Upcall};

/// The largest piece that the host receives at once, in bytes.
const MAX_PIECE: u64 = 64 * 1024;

impl Push {
    /// Returns the next piece for the host: bytes of the inlet, or none for the end. After the last
    /// piece, this part of the push ends.
    ///
    /// While the host takes nothing of the tool (`paused`), returns `None`.
    fn next_piece(&mut self, paused: bool) -> Option<(Arc<StdinPush>, Piece)> {
        let elsewhere = self.elsewhere.as_mut()?;
        if elsewhere.unanswered.is_some() || !elsewhere.has_turn() {
            return None;
        }
        let remaining = self.filled.saturating_sub(elsewhere.position);
        let ends = remaining == 0 && self.has_end;
        let sends_end = ends && self.completes && !elsewhere.end_sent;
        if paused && (sends_end || !ends) {
            return None;
        }
        if sends_end {
            elsewhere.end_sent = true;
            elsewhere.unanswered = Some(0);
            return Some((Arc::clone(&elsewhere.stdin), Piece { position: elsewhere.position, len: 0 }));
        }
        if ends {
            let targets = elsewhere.targets().len() as u64;
            self.report.complete = self.report.complete.saturating_add(targets);
            self.elsewhere = None;
            self.yields = true;
            return None;
        }
        if remaining == 0 {
            return None;
        }
        let len = remaining.min(MAX_PIECE).min(self.capacity);
        elsewhere.unanswered = Some(len);
        Some((Arc::clone(&elsewhere.stdin), Piece { position: elsewhere.position, len: len as usize }))
    }

    /// Ends the push for all targets elsewhere.
    fn give_up_elsewhere(&mut self, cause: PartialCause) {
        let Some(Elsewhere { stdin, position: delivered, .. }) = self.elsewhere.take() else { return };
        self.yields = true;
        let PushReport { partial, .. } = &mut self.report;
        let targets = stdin.targets.iter().cloned();
        partial.extend(targets.map(|target| PartialDelivery { target, delivered, cause: cause.clone() }));
    }
}

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
            push.elsewhere.as_ref().is_some_and(|elsewhere| elsewhere.targets().iter().any(meets))
        });
        earlier.map(|(id, _)| id).collect()
    }

    /// Records that the push `ended` has nothing more for the host. Returns the pushes that may
    /// continue now.
    pub(super) fn yield_elsewhere(&mut self, ended: PushId) -> Vec<PushId> {
        let waits_for = self.pushes.iter_mut().filter_map(|(id, push)| Some((id, push.elsewhere.as_mut()?)));
        let next = waits_for.filter_map(|(id, elsewhere)| {
            (elsewhere.waits_for.remove(&ended) && elsewhere.has_turn()).then_some(id)
        });
        next.collect()
    }

    /// Gives the host the next piece of a push, if one is due.
    pub(super) fn continue_elsewhere(&mut self, id: PushId) {
        let paused = self.is_paused(id);
        let Some(push) = self.pushes.get_mut(&id) else { return };
        let Some((stdin, piece)) = push.next_piece(paused) else { return };
        let size = piece.len.saturating_add(size_of_procs(&stdin.targets));
        match self.owed.note(Call::Stdin(id), push.client, size) {
            Ok(()) => self.effects.upcalls.push(Upcall::Stdin { push: id, stdin, piece }),
            Err(failure) => push.give_up_elsewhere(PartialCause::Failed(failure.to_string())),
        }
    }

    /// Processes the host's answer for a piece.
    pub(crate) fn stdin_answered(&mut self, id: PushId, answer: Result<(), Failure>) {
        let Some(push) = self.pushes.get_mut(&id) else { return };
        let Some(elsewhere) = push.elsewhere.as_mut() else { return };
        let Some(bytes) = elsewhere.unanswered.take() else { return };
        let mut pauses = None;
        match answer {
            Ok(()) => elsewhere.position = elsewhere.position.saturating_add(bytes),
            // The host confirms the end.
            Err(Failure { status: Status::ERR_IOF_COMPLETE, .. }) if elsewhere.end_sent => {}
            Err(Failure { status: Status::ERR_IOF_XOFF, .. }) => {
                elsewhere.position = elsewhere.position.saturating_add(bytes);
                pauses = Some(elsewhere.source().clone());
            }
            Err(Failure { status: Status::ERR_IOF_COMPLETE, .. }) => {
                push.give_up_elsewhere(PartialCause::Closed);
            }
            Err(failure) => push.give_up_elsewhere(PartialCause::Failed(failure.to_string())),
        }
        if let Some(source) = pauses {
            self.set_stdin_flow(Some(source), true);
        }
        self.continue_push(id);
    }

    /// Notes that the host takes stdin of `source`, or of all tools, no more (`paused`) or again.
    pub(crate) fn set_stdin_flow(&mut self, source: Option<Proc>, paused: bool) {
        // What is kept of tools that have gone is bounded by the pushes.
        let known: BTreeSet<Proc> = self.tools.iter().map(|(_, peer)| peer.proc()).collect();
        let pushing: BTreeSet<Proc> = self.pushing_elsewhere().map(|(_, source)| source.clone()).collect();
        let is_known = |source: &Proc| known.contains(source) || pushing.contains(source);
        self.pushes.retain_paused(is_known);
        if !paused || source.as_ref().is_none_or(is_known) {
            self.pushes.set_flow(source, paused);
        }
        let due: Vec<PushId> = self.pushing_elsewhere().map(|(id, _)| id).collect();
        due.into_iter().for_each(|id| self.continue_push(id));
    }

    /// Returns whether the host takes nothing of the tool of a push at present.
    fn is_paused(&self, id: PushId) -> bool {
        let elsewhere = self.pushes.get(&id).and_then(|push| push.elsewhere.as_ref());
        elsewhere.is_some_and(|elsewhere| self.pushes.is_paused(elsewhere.source()))
    }

    /// Returns the pushes with targets elsewhere, each with its source.
    fn pushing_elsewhere(&self) -> impl Iterator<Item = (PushId, &Proc)> {
        self.pushes.iter().filter_map(|(id, push)| Some((id, push.elsewhere.as_ref()?.source())))
    }

    /// Gives up on the host if it has not taken more than the bytes before `position`.
    pub(super) fn cut_off_elsewhere(&mut self, id: PushId, position: u64) {
        let paused = self.is_paused(id);
        let Some(push) = self.pushes.get_mut(&id) else { return };
        let is_slow = |elsewhere: &Elsewhere| {
            (elsewhere.unanswered.is_some() || paused) && elsewhere.position <= position
        };
        if push.elsewhere.as_ref().is_some_and(is_slow) {
            push.give_up_elsewhere(PartialCause::CutOff);
            self.continue_push(id);
        }
    }
}
