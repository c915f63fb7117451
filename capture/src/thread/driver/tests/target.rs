//! The models of a simulated target, and of a push with the filler of its inlet.

use std::collections::HashSet;
use std::ops::Range;
use std::os::fd::{AsFd, RawFd};
use std::slice;
use std::sync::{Arc, Weak};

use iof_shm_ring::{Filler, Inlet, Lent};

use super::pipe::byte;
use crate::ids::PushEnd;

/// Most pushes of one script.
pub(super) const PUSHES: usize = 6;

/// A simulated push.
pub(super) struct PushModel {
    pub(super) number: usize,
    /// The driver's inlet. Only the driver keeps it mapped.
    inlet: Weak<Inlet>,
    /// The addresses of the inlet, which is mapped twice in a row.
    addresses: Range<usize>,
    filler: Option<Filler>,
    pub(super) filled: u64,
    pub(super) over: bool,
    closes: bool,
    /// Targets whose turn the driver has not reported as ended.
    unreported: HashSet<usize>,
    /// The number of targets that existed when the push began. Targets with smaller numbers
    /// existed.
    known_targets: usize,
    /// Targets that have taken at most this many bytes may be cut off.
    cut_off_at: Option<u64>,
    pub(super) ended: bool,
}

impl PushModel {
    /// Creates a push and the inlet that the driver receives.
    pub(super) fn new(
        number: usize,
        pages: u64,
        closes: bool,
        targets: &[usize],
        known_targets: usize,
    ) -> (PushModel, Arc<Inlet>) {
        let inlet = Arc::new(Inlet::create(pages * 4096, "test").unwrap());
        // SAFETY: this is the inlet's only filler, and `freed` receives only what the driver
        // reports.
        let filler = unsafe { Filler::open(inlet.as_fd().try_clone_to_owned().unwrap()) }.unwrap();
        let start = inlet.lend(0, 0).ptr.addr();
        let push = PushModel {
            number,
            inlet: Arc::downgrade(&inlet),
            addresses: start..start + 2 * inlet.capacity() as usize,
            filler: Some(filler),
            filled: 0,
            over: false,
            closes,
            unreported: targets.iter().copied().collect(),
            known_targets,
            cut_off_at: None,
            ended: false,
        };
        (push, inlet)
    }

    /// Returns whether the push can be filled.
    pub(super) fn is_open(&self) -> bool {
        !self.over && !self.ended
    }

    /// Adds at most `bytes` bytes, as far as there is room. Returns how many.
    pub(super) fn fill(&mut self, bytes: usize, over: bool) -> u64 {
        let filler = self.filler.as_mut().unwrap();
        for (position, room) in (self.filled..).zip(filler.room().iter_mut().take(bytes)) {
            *room = byte(100 + self.number, position);
        }
        let bytes = filler.fill(bytes) as u64;
        self.filled += bytes;
        self.over = over;
        bytes
    }

    /// Takes the driver's report of free room, and overwrites that room at once.
    pub(super) fn freed(&mut self, position: u64) {
        let filler = self.filler.as_mut().unwrap();
        assert!(!self.ended && filler.freed(position), "push {}: wrong position {position}", self.number);
        filler.room().iter_mut().for_each(|byte| *byte = !*byte);
    }

    /// Records that targets which have taken at most `position` bytes may be cut off.
    pub(super) fn cut_off(&mut self, position: u64) {
        self.cut_off_at = self.cut_off_at.max(Some(position));
    }

    /// Records that the turn at a target was reported as ended.
    fn report_target(&mut self, target: usize) {
        assert!(self.unreported.remove(&target), "push {}: target {target} ended twice", self.number);
        assert!(!self.ended, "push {} had ended before", self.number);
    }

    /// Checks the driver's report that the push is over.
    pub(super) fn report_over(&mut self) {
        assert!(!self.ended && self.unreported.is_empty(), "push {}: {:?}", self.number, self.unreported);
        assert_eq!(self.inlet.strong_count(), 0, "push {} is still mapped", self.number);
        self.ended = true;
    }

    /// Returns whether the target existed when the push began.
    pub(super) fn reaches(&self, target: usize) -> bool {
        target < self.known_targets
    }

    /// Checks the report for a target that did not exist when the push began.
    pub(super) fn report_missing(&mut self, target: usize, delivered: u64, end: &PushEnd) {
        self.report_target(target);
        assert!(matches!(end, PushEnd::Closed) && delivered == 0, "{end:?}");
    }

    /// Drops the filler and its mapping.
    pub(super) fn release(&mut self) {
        self.filler = None;
    }
}

/// Bytes of a push that are lent to the kernel.
#[derive(Clone, Debug)]
pub(super) struct Loan {
    start: *const u8,
    pub(super) len: usize,
    inlet: Weak<Inlet>,
    pub(super) push: usize,
    /// The position of the first byte in the push.
    position: u64,
}

impl Loan {
    /// Checks that the bytes are still mapped and unchanged.
    pub(super) fn check(&self) {
        assert!(self.inlet.strong_count() > 0, "push {} was unmapped", self.push);
        // SAFETY: the inlet is mapped, and only this thread fills it.
        let bytes = unsafe { slice::from_raw_parts(self.start, self.len) };
        for (position, lent) in (self.position..).zip(bytes) {
            assert_eq!(*lent, byte(100 + self.push, position), "push {}, byte {position}", self.push);
        }
    }
}

/// A push's turn at a target.
struct TurnModel {
    push: usize,
    /// Bytes that the pipe took.
    taken: u64,
    /// Bytes that the pipe had taken before the last write.
    taken_before: u64,
}

/// A simulated target.
pub(super) struct TargetModel {
    pub(super) fd: RawFd,
    /// The driver has registered it.
    pub(super) registered: bool,
    /// The target was shut, or the driver stopped.
    pub(super) stopped: bool,
    /// A write was answered with EPIPE.
    closed: bool,
    /// A write was answered with another error.
    failed: bool,
    /// The turns of all pushes, in the order in which they began.
    turns: Vec<TurnModel>,
    /// The number of turns that the driver has reported as ended.
    reported: usize,
    /// A reported turn has closed the target. All later turns end with `PushEnd::Closed`.
    closed_by_turn: bool,
    /// The driver has reported it as shut.
    pub(super) ended: bool,
}

impl TargetModel {
    pub(super) fn new(fd: RawFd) -> TargetModel {
        TargetModel {
            fd,
            registered: false,
            stopped: false,
            closed: false,
            failed: false,
            turns: Vec::new(),
            reported: 0,
            closed_by_turn: false,
            ended: false,
        }
    }

    /// Adds a turn for a push that begins.
    pub(super) fn enqueue(&mut self, push: usize) {
        self.turns.push(TurnModel { push, taken: 0, taken_before: 0 });
    }

    /// Returns whether all turns were reported as ended.
    pub(super) fn is_idle(&self) -> bool {
        self.reported == self.turns.len()
    }

    /// Checks that `lent` are the next bytes of the push whose turn it is.
    pub(super) fn check_loan(&self, lent: Lent, pushes: &[PushModel]) -> Loan {
        let push = pushes.iter().find(|push| !push.ended && push.addresses.contains(&lent.ptr.addr()));
        let push = push.expect("the bytes must lie in the inlet of a push");
        let (earlier, turn) = self.turn(push.number);
        let done = |turn: &TurnModel| {
            let push = &pushes[turn.push];
            push.over && turn.taken == push.filled && !push.closes
        };
        assert!(earlier.iter().all(done), "push {} has its turn too early", push.number);
        let offset = lent.ptr.addr() - push.addresses.start;
        assert_eq!(offset as u64, turn.taken % (push.addresses.len() as u64 / 2), "at {}", turn.taken);
        assert!(lent.len > 0 && turn.taken + lent.len as u64 <= push.filled, "{lent:?}");
        let (inlet, position) = (push.inlet.clone(), turn.taken);
        let loan = Loan { start: lent.ptr, len: lent.len, inlet, push: push.number, position };
        loan.check();
        loan
    }

    /// Returns the turns before that of `push`, and the turn of `push`.
    fn turn(&self, push: usize) -> (&[TurnModel], &TurnModel) {
        let turn = self.turns.iter().position(|turn| turn.push == push);
        let index = turn.expect("the push must have this target");
        (&self.turns[..index], &self.turns[index])
    }

    /// Takes the first `n` lent bytes.
    pub(super) fn take(&mut self, loan: &Loan, n: usize) -> usize {
        loan.check();
        let turn = self.turns.iter_mut().find(|turn| turn.push == loan.push).unwrap();
        assert_eq!(turn.taken, loan.position);
        turn.taken_before = turn.taken;
        turn.taken += n as u64;
        n
    }

    /// Records that a write is answered with this errno.
    pub(super) fn fail(&mut self, errno: i32) {
        match errno {
            libc::EAGAIN | libc::EINTR => {}
            libc::EPIPE => self.closed = true,
            _ => self.failed = true,
        }
    }

    /// Checks the driver's report that a push's turn has ended: its order, its bytes and its
    /// reason.
    pub(super) fn turn_ended(
        &mut self,
        push: &mut PushModel,
        number: usize,
        delivered: u64,
        end: &PushEnd,
        broken: bool,
    ) {
        push.report_target(number);
        let turn = &self.turns[self.reported];
        assert_eq!((turn.push, turn.taken), (push.number, delivered), "at target {number}");
        self.reported += 1;
        if self.closed_by_turn {
            assert!(matches!(end, PushEnd::Closed) && delivered == 0, "{end:?} after the end");
            return;
        }
        self.closed_by_turn = push.closes || !matches!(end, PushEnd::Complete);
        match end {
            PushEnd::Complete => assert!(push.over && delivered == push.filled),
            // A target that was shut while it had no push closed without reporting a turn.
            PushEnd::Closed => assert!(self.closed || (self.ended && delivered == 0)),
            PushEnd::CutOff => {
                assert!(push.cut_off_at.is_some_and(|position| turn.taken_before <= position));
            }
            PushEnd::Stopped => assert!(self.stopped),
            PushEnd::Error(_) => assert!(self.failed || broken, "{end:?}"),
        }
    }

    /// Checks the driver's report that the target is shut.
    pub(super) fn report_shut(&mut self, broken: bool) {
        assert!(!self.ended, "the target was shut twice");
        assert!(self.closed_by_turn || self.stopped || broken, "the target was shut without a reason");
        let unreported = &self.turns[self.reported..];
        assert!(unreported.iter().all(|turn| turn.taken == 0), "a turn was not reported as ended");
        self.ended = true;
    }
}
