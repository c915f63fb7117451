//! The targets of a push that run elsewhere, and the pieces that the host and nodes receive for them.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use iof_capture::PushId;
use iof_proto::{Failure, Info, PartialCause, PartialDelivery, Proc, Rank, Status, UntakenStdin};
use iof_shm_ring::Offset;

use super::Push;
use crate::count::Count;
use crate::jobs::nodes::{StdinAnswer, StdinNodes};
use crate::pushes::stdin_calls::StdinTaker;
use crate::upcall::{Piece, StdinPush};

/// The largest piece that the host receives at once, in bytes.
const MAX_PIECE: u64 = 64 * 1024;

/// The targets of a push that run elsewhere. Each piece goes to all of their receivers, and the next
/// one follows all answers.
pub struct Elsewhere {
    /// The request that the host receives with each piece, for its own targets.
    stdin: Arc<StdinPush>,
    shares: BTreeMap<StdinTaker, ReceiverShare>,
    /// The earlier pushes that this push waits for.
    waits_for: BTreeSet<PushId>,
    /// The positions of pushes of disconnected tools that this push waited for when its tool last
    /// asked to cut off what is slow.
    orphans: BTreeMap<PushId, u64>,
    /// The number of bytes that all receivers have taken.
    position: u64,
    /// The length of the piece that some receivers have not answered, in bytes.
    unanswered: Option<u64>,
    /// `true` once the end of the push was sent.
    end_sent: bool,
}

/// The targets of one receiver that still take bytes.
#[derive(Default)]
pub(crate) struct ReceiverShare {
    pub targets: BTreeSet<Proc>,
    /// The ranks as the pieces for a node name them; `None` for all of the node.
    pub named: Option<Arc<[Rank]>>,
    /// The number of bytes that all of the targets have.
    delivered: u64,
}

/// The consequences of the answer for a piece.
#[derive(Default)]
pub(crate) struct PieceAnswered {
    /// The targets that take nothing more.
    pub shut: Vec<Proc>,
    /// The tool whose further bytes the host refuses for now.
    pub paused: Option<Proc>,
}

impl Elsewhere {
    pub(crate) fn new(
        id: PushId,
        source: Proc,
        shares: BTreeMap<StdinTaker, ReceiverShare>,
        directives: Vec<Info>,
        waits_for: BTreeSet<PushId>,
    ) -> Elsewhere {
        let targets = shares.get(&None).map(|host| host.targets.iter().cloned().collect());
        let targets = targets.unwrap_or_default();
        let stdin = Arc::new(StdinPush { id: id.0, source, targets, directives });
        Elsewhere {
            stdin,
            shares,
            waits_for,
            orphans: BTreeMap::new(),
            position: 0,
            unanswered: None,
            end_sent: false,
        }
    }

    /// Returns whether the receivers may receive the next piece.
    pub(crate) fn has_turn(&self) -> bool {
        self.waits_for.is_empty()
    }

    /// Returns the earlier pushes that this push waits for.
    pub(crate) fn waits_for(&self) -> impl Iterator<Item = PushId> {
        self.waits_for.iter().copied()
    }

    /// Returns the number of bytes that all receivers have taken.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the tool that pushes.
    pub(crate) fn source(&self) -> &Proc {
        &self.stdin.source
    }

    /// Returns what the host receives with each piece.
    pub(crate) fn stdin(&self) -> &Arc<StdinPush> {
        &self.stdin
    }

    /// Returns the receivers of the next piece.
    pub(crate) fn takers(&self) -> BTreeSet<StdinTaker> {
        self.shares.keys().copied().collect()
    }

    /// Returns whether `taker` receives pieces.
    pub(crate) fn has_taker(&self, taker: StdinTaker) -> bool {
        self.shares.contains_key(&taker)
    }

    /// Returns the nodes that receive the next piece.
    pub(crate) fn nodes(&self) -> StdinNodes {
        self.shares.iter().filter_map(|(taker, share)| Some(((*taker)?, share.named.clone()))).collect()
    }

    /// Returns the targets that still take bytes.
    pub fn targets(&self) -> impl Iterator<Item = &Proc> {
        self.shares.values().flat_map(|share| &share.targets)
    }

    /// Returns the targets whose receivers have not taken the last piece.
    pub(crate) fn slow_targets(&self) -> impl Iterator<Item = &Proc> {
        let slow = self.shares.values().filter(|share| share.delivered <= self.position);
        slow.flat_map(|share| &share.targets)
    }
}

impl ReceiverShare {
    /// Notes that the targets have a piece of `bytes` bytes but for those that have not taken it,
    /// which leave. Returns them.
    fn leave(&mut self, untaken: Vec<UntakenStdin>, bytes: u64) -> Vec<PartialDelivery> {
        let before = self.delivered;
        self.delivered = before.after(bytes);
        let nspace = self.targets.first().map(|target| target.nspace.clone());
        let leave = |UntakenStdin { rank, delivered, cause }| {
            let target = self.targets.take(&Proc { nspace: nspace.clone()?, rank })?;
            Some(PartialDelivery { target, delivered: before.after(delivered.min(bytes)), cause })
        };
        untaken.into_iter().filter_map(leave).collect()
    }

    /// Lets all targets leave, for this reason. Returns them.
    fn leave_all(&mut self, cause: &PartialCause) -> Vec<PartialDelivery> {
        let (delivered, targets) = (self.delivered, mem::take(&mut self.targets));
        let leave = |target| PartialDelivery { target, delivered, cause: cause.clone() };
        targets.into_iter().map(leave).collect()
    }
}

impl Push {
    /// Returns the next piece for all receivers: bytes of the inlet, or none for the end. After the
    /// last piece, this part of the push ends.
    ///
    /// While the host takes nothing of the tool (`paused`), returns `None`.
    pub(crate) fn next_piece(&mut self, paused: bool) -> Option<Piece> {
        let elsewhere = self.elsewhere.as_mut()?;
        if elsewhere.unanswered.is_some() || !elsewhere.has_turn() {
            return None;
        }
        let remaining = self.filled.since(elsewhere.position);
        let ends = remaining == 0 && self.has_end;
        let sends_end = ends && self.completes && !elsewhere.end_sent;
        if paused && (sends_end || !ends) {
            return None;
        }
        if sends_end {
            elsewhere.end_sent = true;
            elsewhere.unanswered = Some(0);
            return Some(Piece { position: elsewhere.position, len: 0 });
        }
        if ends {
            let targets = elsewhere.targets().count() as u64;
            self.report.complete.raise(targets);
            self.elsewhere = None;
            self.yields = true;
            return None;
        }
        if remaining == 0 {
            return None;
        }
        let len = remaining.min(MAX_PIECE).min(self.capacity);
        elsewhere.unanswered = Some(len);
        Some(Piece { position: elsewhere.position, len: len as usize })
    }

    /// Notes the answer of a receiver for a piece. Its targets that did not take the piece leave the
    /// push.
    pub(crate) fn piece_answered(&mut self, taker: StdinTaker, answer: StdinAnswer) -> PieceAnswered {
        let mut answered = PieceAnswered::default();
        let Some(elsewhere) = self.elsewhere.as_mut() else { return answered };
        let (bytes, end_sent) = (elsewhere.unanswered.unwrap_or_default(), elsewhere.end_sent);
        let Some(share) = elsewhere.shares.get_mut(&taker) else { return answered };
        let left = match answer {
            Ok(untaken) => {
                let left = share.leave(untaken, bytes);
                answered.shut.extend(share.targets.iter().filter(|_| end_sent).cloned());
                left
            }
            Err(Failure { status: Status::ERR_IOF_XOFF, .. }) if taker.is_none() => {
                answered.paused = Some(elsewhere.stdin.source.clone());
                share.leave(Vec::new(), bytes)
            }
            Err(Failure { status: Status::ERR_IOF_COMPLETE, .. }) => share.leave_all(&PartialCause::Closed),
            Err(failure) => share.leave_all(&PartialCause::Refused(failure)),
        };
        if share.targets.is_empty() {
            elsewhere.shares.remove(&taker);
        }
        if elsewhere.shares.is_empty() {
            (self.elsewhere, self.yields) = (None, true);
        }
        for left in left {
            let is_closed = left.cause == PartialCause::Closed;
            answered.shut.extend(is_closed.then(|| left.target.clone()));
            if is_closed && end_sent {
                self.report.complete.raise(1);
            } else {
                self.report.partial.push(left);
            }
        }
        answered
    }

    /// Notes that all receivers have answered the last piece.
    pub(crate) fn piece_over(&mut self) {
        if let Some(elsewhere) = self.elsewhere.as_mut() {
            let bytes = elsewhere.unanswered.take().unwrap_or_else(|| absent!("piece", 0));
            elsewhere.position = elsewhere.position.after(bytes);
        }
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
        let Some(elsewhere) = self.elsewhere.as_mut() else { absent!("part elsewhere", return Vec::new()) };
        let before = mem::replace(&mut elsewhere.orphans, positions);
        let stands = |(id, position): &(&PushId, &u64)| before.get(*id) == Some(*position);
        elsewhere.orphans.iter().filter(stands).map(|(id, _)| *id).collect()
    }

    /// Ends the push for all targets elsewhere.
    pub(crate) fn give_up_elsewhere(&mut self, cause: PartialCause) {
        let Some(Elsewhere { mut shares, .. }) = self.elsewhere.take() else { return };
        self.yields = true;
        self.report.partial.extend(shares.values_mut().flat_map(|share| share.leave_all(&cause)));
    }

    /// Notes that this push waits for the push `ended` no more. Returns whether the host may
    /// receive its next piece because of that.
    pub(crate) fn gets_turn_after(&mut self, ended: PushId) -> bool {
        let elsewhere = self.elsewhere.as_mut();
        elsewhere.is_some_and(|elsewhere| elsewhere.waits_for.remove(&ended) && elsewhere.has_turn())
    }

    /// Returns whether pushes that waited for this one elsewhere may continue. Returns `true` once.
    pub(crate) fn take_yields(&mut self) -> bool {
        mem::take(&mut self.yields)
    }
}
