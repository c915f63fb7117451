//! The targets of a push that run elsewhere, and the pieces that the host receives for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use iof_capture::PushId;
use iof_proto::{Failure, Info, PartialCause, PartialDelivery, Proc, Status};

use super::Push;
use crate::upcall::{Piece, StdinPush};

/// The largest piece that the host receives at once, in bytes.
const MAX_PIECE: u64 = 64 * 1024;

/// The targets of a push that run elsewhere, for which the host answers together.
pub struct Elsewhere {
    stdin: Arc<StdinPush>,
    /// The earlier pushes that this push waits for.
    waits_for: BTreeSet<PushId>,
    /// The positions of pushes of disconnected tools that this push waited for when its tool last
    /// asked to cut off what is slow.
    orphans: BTreeMap<PushId, u64>,
    /// The number of bytes that the host has taken.
    position: u64,
    /// The length of the piece that the host has not answered, in bytes.
    unanswered: Option<u64>,
    /// Whether the host was sent the end of the push.
    end_sent: bool,
}

impl Elsewhere {
    pub(crate) fn new(
        id: PushId,
        source: Proc,
        targets: BTreeSet<Proc>,
        directives: Vec<Info>,
        waits_for: BTreeSet<PushId>,
    ) -> Elsewhere {
        let targets = targets.into_iter().collect();
        let stdin = Arc::new(StdinPush { id: id.0, source, targets, directives });
        Elsewhere {
            stdin,
            waits_for,
            orphans: BTreeMap::new(),
            position: 0,
            unanswered: None,
            end_sent: false,
        }
    }

    /// Returns whether the host may receive the next piece.
    pub(crate) fn has_turn(&self) -> bool {
        self.waits_for.is_empty()
    }

    /// Returns the earlier pushes that this push waits for.
    pub(crate) fn waits_for(&self) -> impl Iterator<Item = PushId> {
        self.waits_for.iter().copied()
    }

    /// Returns the number of bytes that the host has taken.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the tool that pushes.
    pub(crate) fn source(&self) -> &Proc {
        &self.stdin.source
    }

    /// Returns whether its targets take nothing more after this answer for a piece.
    pub(crate) fn is_closed_by(&self, answer: &Result<(), Failure>) -> bool {
        match answer {
            Ok(()) => self.end_sent,
            Err(failure) => failure.status == Status::ERR_IOF_COMPLETE,
        }
    }

    /// Returns the remote targets.
    pub fn targets(&self) -> &[Proc] {
        &self.stdin.targets
    }
}

impl Push {
    /// Returns the next piece for the host: bytes of the inlet, or none for the end. After the last
    /// piece, this part of the push ends.
    ///
    /// While the host takes nothing of the tool (`paused`), returns `None`.
    pub(crate) fn next_piece(&mut self, paused: bool) -> Option<(Arc<StdinPush>, Piece)> {
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

    /// Notes the host's answer for a piece. Returns the tool whose further bytes the host
    /// refuses for now.
    pub(crate) fn piece_answered(&mut self, answer: Result<(), Failure>) -> Option<Proc> {
        let elsewhere = self.elsewhere.as_mut()?;
        let bytes = elsewhere.unanswered.take()?;
        match answer {
            Ok(()) => elsewhere.position = elsewhere.position.saturating_add(bytes),
            // The host confirms the end.
            Err(Failure { status: Status::ERR_IOF_COMPLETE, .. }) if elsewhere.end_sent => {}
            Err(Failure { status: Status::ERR_IOF_XOFF, .. }) => {
                elsewhere.position = elsewhere.position.saturating_add(bytes);
                return Some(elsewhere.source().clone());
            }
            Err(Failure { status: Status::ERR_IOF_COMPLETE, .. }) => {
                self.give_up_elsewhere(PartialCause::Closed);
            }
            Err(failure) => self.give_up_elsewhere(PartialCause::Refused(failure)),
        }
        None
    }

    /// Returns whether the host has taken at most the bytes before `position`, and could take more.
    /// While it takes nothing of the tool (`paused`), it counts as slow.
    pub(crate) fn is_slow_elsewhere(&self, position: u64, paused: bool) -> bool {
        let is_slow = |elsewhere: &Elsewhere| {
            (elsewhere.unanswered.is_some() || paused) && elsewhere.position <= position
        };
        self.elsewhere.as_ref().is_some_and(is_slow)
    }

    /// Notes the positions of pushes of disconnected tools that this push waits for. Returns those
    /// pushes that have not moved since the last call.
    pub(crate) fn note_orphans(&mut self, positions: BTreeMap<PushId, u64>) -> Vec<PushId> {
        let Some(elsewhere) = self.elsewhere.as_mut() else { return Vec::new() };
        let before = std::mem::replace(&mut elsewhere.orphans, positions);
        let stands = |(id, position): &(&PushId, &u64)| before.get(*id) == Some(*position);
        elsewhere.orphans.iter().filter(stands).map(|(id, _)| *id).collect()
    }

    /// Ends the push for all targets elsewhere.
    pub(crate) fn give_up_elsewhere(&mut self, cause: PartialCause) {
        let Some(Elsewhere { stdin, position: delivered, .. }) = self.elsewhere.take() else { return };
        self.yields = true;
        let targets = stdin.targets.iter().cloned();
        let partial = targets.map(|target| PartialDelivery { target, delivered, cause: cause.clone() });
        self.report.partial.extend(partial);
    }

    /// Notes that this push waits for the push `ended` no more. Returns whether the host may
    /// receive its next piece because of that.
    pub(crate) fn gets_turn_after(&mut self, ended: PushId) -> bool {
        let elsewhere = self.elsewhere.as_mut();
        elsewhere.is_some_and(|elsewhere| elsewhere.waits_for.remove(&ended) && elsewhere.has_turn())
    }

    /// Returns whether pushes that waited for this one elsewhere may continue. Returns `true` once.
    pub(crate) fn take_yields(&mut self) -> bool {
        std::mem::take(&mut self.yields)
    }
}
