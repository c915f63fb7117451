//! What is pushed to ranks that run elsewhere: the host is brought it, a piece at a time.

use std::mem;
use std::sync::Arc;

use iof_capture::PushId;
use iof_proto::{Failure, Info, Proc, PushReport, Short, ShortBy};

use crate::host::Upcall;
use crate::push::Push;
use crate::state::State;

/// Bytes that the host is brought at once at most.
const PIECE: u64 = 64 * 1024;

/// Stdin for processes that run elsewhere, as [`Host::push_stdin`](crate::Host::push_stdin) gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StdinPush {
    /// Its own number: the pieces of one push come in their order.
    pub id: u64,
    /// Who is to get it. A wildcard rank stands for all processes of its job that run elsewhere.
    pub targets: Vec<Proc>,
    /// What the tool said of it (RFC0025).
    pub directives: Vec<Info>,
}

/// The targets of a push that run elsewhere, all of which the host answers for.
pub(super) struct Elsewhere {
    stdin: Arc<StdinPush>,
    /// Bytes that the host has taken.
    pub position: u64,
    /// Bytes that it has not answered for, and whether it was told of the end.
    asked: Option<u64>,
    told_end: bool,
}

impl Elsewhere {
    pub(super) fn new(id: PushId, targets: Vec<Proc>, directives: Vec<Info>) -> Elsewhere {
        let stdin = Arc::new(StdinPush { id: id.0, targets, directives });
        Elsewhere { stdin, position: 0, asked: None, told_end: false }
    }

    pub(super) fn targets(&self) -> &[Proc] {
        &self.stdin.targets
    }
}

impl Push {
    /// What the host is to be brought next: bytes, or none for the end. The last of it ends this part of the push.
    fn next_piece(&mut self) -> Option<(Arc<StdinPush>, Vec<u8>)> {
        let far = self.elsewhere.as_mut()?;
        if far.asked.is_some() {
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
            self.report.whole = self.report.whole.saturating_add(targets);
            self.elsewhere = None;
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
    fn give_up_elsewhere(&mut self, why: ShortBy) {
        let Some(Elsewhere { stdin, position: delivered, .. }) = self.elsewhere.take() else { return };
        let PushReport { short, .. } = &mut self.report;
        let targets = stdin.targets.iter().cloned();
        short.extend(targets.map(|target| Short { target, delivered, why: why.clone() }));
    }
}

impl State {
    /// Brings the host what it can have now.
    pub(super) fn go_on_elsewhere(&mut self, id: PushId) {
        let Some(push) = self.pushes.get_mut(&id) else { return };
        if let Some((stdin, bytes)) = push.next_piece() {
            self.upcalls.push(Upcall::Stdin { push: id, stdin, bytes });
        }
    }

    /// The host has taken what it was brought, or says no.
    pub(crate) fn stdin_answered(&mut self, id: PushId, answer: Result<(), Failure>) {
        let Some(push) = self.pushes.get_mut(&id) else { return };
        let Some(far) = push.elsewhere.as_mut() else { return };
        let Some(bytes) = far.asked.take() else { return };
        match answer {
            Ok(()) => far.position = far.position.saturating_add(bytes),
            Err(failure) => push.give_up_elsewhere(ShortBy::Failed(failure.to_string())),
        }
        self.go_on(id);
    }

    /// Waits no longer for a host that has taken no more than what lies before `position`.
    pub(super) fn cut_off_elsewhere(&mut self, id: PushId, position: u64) {
        let Some(push) = self.pushes.get_mut(&id) else { return };
        if push.elsewhere.as_ref().is_some_and(|far| far.asked.is_some() && far.position <= position) {
            push.give_up_elsewhere(ShortBy::CutOff);
            self.go_on(id);
        }
    }
}
