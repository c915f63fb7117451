//! What is pushed to ranks that run elsewhere: the host is brought it, a piece at a time.

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;

use iof_capture::PushId;
use iof_proto::{Failure, Info, Nspace, PartialCause, PartialDelivery, Proc, PushReport, Rank};

use crate::host::{Call, Upcall};
use crate::owed::size_of_procs;
use crate::push::Push;
use crate::state::State;

/// Bytes that the host is brought at once at most.
const PIECE: u64 = 64 * 1024;

/// Stdin for processes that run elsewhere, as [`Host::push_stdin`](crate::Host::push_stdin) gets
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StdinPush {
    /// Its own number. The pieces of one push come in their order, and behind those of all pushes
    /// to any of the same processes that came before.
    pub id: u64,
    /// Who is to get it. A wildcard rank stands for all processes of its job that run elsewhere.
    pub targets: Vec<Proc>,
    /// What the tool said of it (RFC0025).
    pub directives: Vec<Info>,
}

/// The targets of a push that run elsewhere, all of which the host answers for.
pub(super) struct Elsewhere {
    stdin: Arc<StdinPush>,
    /// The pushes that have their turn before it somewhere.
    behind: BTreeSet<PushId>,
    /// Bytes that the host has taken.
    pub position: u64,
    /// Bytes that it has not answered for, and whether it was told of the end.
    asked: Option<u64>,
    told_end: bool,
}

impl Elsewhere {
    pub(super) fn new(
        id: PushId,
        targets: Vec<Proc>,
        directives: Vec<Info>,
        behind: BTreeSet<PushId>,
    ) -> Elsewhere {
        let stdin = Arc::new(StdinPush { id: id.0, targets, directives });
        Elsewhere { stdin, behind, position: 0, asked: None, told_end: false }
    }

    /// Whether the host may be brought it.
    pub(super) fn has_turn(&self) -> bool {
        self.behind.is_empty()
    }

    pub(super) fn targets(&self) -> &[Proc] {
        &self.stdin.targets
    }
}

impl Push {
    /// What the host is to be brought next: bytes, or none for the end. The last of it ends this
    /// part of the push.
    fn next_piece(&mut self) -> Option<(Arc<StdinPush>, Vec<u8>)> {
        let far = self.elsewhere.as_mut()?;
        if far.asked.is_some() || !far.has_turn() {
            return None;
        }
        let left = self.filled.saturating_sub(far.position);
        let ends = left == 0 && self.over;
        if ends && self.completes && !mem::replace(&mut far.told_end, true) {
            far.asked = Some(0);
            return Some((Arc::clone(&far.stdin), Vec::new()));
        }
        if ends {
            let targets = far.targets().len() as u64;
            self.report.complete = self.report.complete.saturating_add(targets);
            self.elsewhere = None;
            self.yields = true;
            return None;
        }
        if left == 0 {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(left.min(PIECE)).unwrap_or_default()];
        let copied = self.inlet.copy(far.position, &mut bytes);
        bytes.truncate(copied);
        far.asked = Some(copied as u64);
        Some((Arc::clone(&far.stdin), bytes))
    }

    /// None of the targets elsewhere gets any more.
    fn give_up_elsewhere(&mut self, cause: PartialCause) {
        let Some(Elsewhere { stdin, position: delivered, .. }) = self.elsewhere.take() else { return };
        self.yields = true;
        let PushReport { partial, .. } = &mut self.report;
        let targets = stdin.targets.iter().cloned();
        partial.extend(targets.map(|target| PartialDelivery { target, delivered, cause: cause.clone() }));
    }
}

impl State {
    /// The pushes under way that go to some of `targets`, too.
    pub(super) fn ahead_elsewhere(&self, targets: &[Proc]) -> BTreeSet<PushId> {
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
        let ahead = self
            .pushes
            .iter()
            .filter(|(_, push)| push.elsewhere.as_ref().is_some_and(|far| far.targets().iter().any(meets)));
        ahead.map(|(id, _)| *id).collect()
    }

    /// A push has nothing more for the host; gives those that have their turn now.
    pub(super) fn yield_elsewhere(&mut self, ended: PushId) -> Vec<PushId> {
        let behind = self.pushes.iter_mut().filter_map(|(id, push)| Some((*id, push.elsewhere.as_mut()?)));
        let next = behind.filter_map(|(id, far)| (far.behind.remove(&ended) && far.has_turn()).then_some(id));
        next.collect()
    }

    /// Brings the host what it can have now.
    pub(super) fn go_on_elsewhere(&mut self, id: PushId) {
        let Some(push) = self.pushes.get_mut(&id) else { return };
        let Some((stdin, bytes)) = push.next_piece() else { return };
        let size = bytes.len().saturating_add(size_of_procs(&stdin.targets));
        match self.owed.note(Call::Stdin(id), push.client, size) {
            Ok(()) => self.upcalls.push(Upcall::Stdin { push: id, stdin, bytes }),
            Err(failure) => push.give_up_elsewhere(PartialCause::Failed(failure.to_string())),
        }
    }

    /// The host has taken what it was brought, or says no.
    pub(crate) fn stdin_answered(&mut self, id: PushId, answer: Result<(), Failure>) {
        let Some(push) = self.pushes.get_mut(&id) else { return };
        let Some(far) = push.elsewhere.as_mut() else { return };
        let Some(bytes) = far.asked.take() else { return };
        match answer {
            Ok(()) => far.position = far.position.saturating_add(bytes),
            Err(failure) => push.give_up_elsewhere(PartialCause::Failed(failure.to_string())),
        }
        self.go_on(id);
    }

    /// Waits no longer for a host that has taken no more than what lies before `position`.
    pub(super) fn cut_off_elsewhere(&mut self, id: PushId, position: u64) {
        let Some(push) = self.pushes.get_mut(&id) else { return };
        if push.elsewhere.as_ref().is_some_and(|far| far.asked.is_some() && far.position <= position) {
            push.give_up_elsewhere(PartialCause::CutOff);
            self.go_on(id);
        }
    }
}
