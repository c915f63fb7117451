//! A target that is played, and a push: whoever fills its inlet.

use std::collections::HashSet;
use std::ops::Range;
use std::os::fd::{AsFd, RawFd};
use std::slice;
use std::sync::{Arc, Weak};

use iof_shm_ring::{Filler, Inlet, Lent};

use super::pipe::byte;
use crate::event::PushEnd;

/// Who pushes.
pub(super) struct Push {
    pub(super) number: usize,
    /// The driver's. Nobody else keeps it mapped.
    inlet: Weak<Inlet>,
    /// Its addresses, every byte twice.
    place: Range<usize>,
    filler: Option<Filler>,
    pub(super) filled: u64,
    pub(super) over: bool,
    closes: bool,
    /// Targets that were not told of.
    waits_for: HashSet<usize>,
    /// Targets that there were when it came: those with smaller numbers.
    known: usize,
    /// Those who have taken no more were to be cut off.
    cut: Option<u64>,
    pub(super) ended: bool,
}

impl Push {
    /// A push, and what the driver gets of it.
    pub(super) fn new(
        number: usize,
        pages: u64,
        closes: bool,
        targets: &[usize],
        known: usize,
    ) -> (Push, Arc<Inlet>) {
        let inlet = Arc::new(Inlet::create(pages * 4096, "test").unwrap());
        // SAFETY: there is no other, and it is told what is.
        let filler = unsafe { Filler::open(inlet.as_fd().try_clone_to_owned().unwrap()) }.unwrap();
        let start = inlet.lend(0, 0).ptr.addr();
        let push = Push {
            number,
            inlet: Arc::downgrade(&inlet),
            place: start..start + 2 * inlet.capacity() as usize,
            filler: Some(filler),
            filled: 0,
            over: false,
            closes,
            waits_for: targets.iter().copied().collect(),
            known,
            cut: None,
            ended: false,
        };
        (push, inlet)
    }

    /// Whether there is one to be filled.
    pub(super) fn goes_on(&self) -> bool {
        !self.over && !self.ended
    }

    /// Fills as much as there is room for; gives how much.
    pub(super) fn fill(&mut self, bytes: usize, over: bool) -> u64 {
        let filler = self.filler.as_mut().unwrap();
        for (at, place) in (self.filled..).zip(filler.room().iter_mut().take(bytes)) {
            *place = byte(100 + self.number, at);
        }
        let bytes = filler.fill(bytes) as u64;
        self.filled += bytes;
        self.over = over;
        bytes
    }

    /// Room is told: what is there is overwritten at once.
    pub(super) fn freed(&mut self, position: u64) {
        let filler = self.filler.as_mut().unwrap();
        assert!(!self.ended && filler.freed(position), "push {}: {position} is told", self.number);
        filler.room().iter_mut().for_each(|byte| *byte = !*byte);
    }

    pub(super) fn cut_off(&mut self, position: u64) {
        self.cut = self.cut.max(Some(position));
    }

    /// A target is told of.
    fn tell(&mut self, target: usize) {
        assert!(self.waits_for.remove(&target), "push {}: {target} is told of twice", self.number);
        assert!(!self.ended, "push {} was over", self.number);
    }

    /// It is said to be over.
    pub(super) fn end(&mut self) {
        assert!(!self.ended && self.waits_for.is_empty(), "push {}: {:?}", self.number, self.waits_for);
        assert_eq!(self.inlet.strong_count(), 0, "push {} is still mapped", self.number);
        self.ended = true;
    }

    /// Whether the target was there when the push came.
    pub(super) fn reaches(&self, target: usize) -> bool {
        target < self.known
    }

    /// It has not reached a target.
    pub(super) fn miss(&mut self, target: usize, delivered: u64, end: &PushEnd) {
        self.tell(target);
        assert!(matches!(end, PushEnd::Closed) && delivered == 0, "{end:?}");
    }

    /// The filler and all that it has mapped go.
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
    /// Their place in the push.
    pub(super) push: usize,
    at: u64,
}

impl Loan {
    /// The bytes are still there, and the right ones.
    pub(super) fn check(&self) {
        assert!(self.inlet.strong_count() > 0, "push {} was unmapped", self.push);
        // SAFETY: the inlet is mapped, and this thread is the only one that would fill it.
        let bytes = unsafe { slice::from_raw_parts(self.start, self.len) };
        for (at, got) in (self.at..).zip(bytes) {
            assert_eq!(*got, byte(100 + self.push, at), "push {}, byte {at}", self.push);
        }
    }
}

/// A push's turn at a target.
struct Turn {
    push: usize,
    /// Bytes that the pipe took.
    taken: u64,
    /// The same before its last write.
    before: u64,
}

/// A pipe that is written, and what its owner knows of it.
pub(super) struct Target {
    pub(super) fd: RawFd,
    /// The driver knows it.
    pub(super) registered: bool,
    /// Somebody asked for its end.
    pub(super) stopped: bool,
    /// It said that nobody reads it.
    closed: bool,
    /// An error was given.
    failed: bool,
    /// In the order in which they came.
    turns: Vec<Turn>,
    /// So many of them were told of.
    told: usize,
    /// One of these was the last to find it open.
    over: bool,
    /// It was told to be shut.
    pub(super) ended: bool,
}

impl Target {
    pub(super) fn new(fd: RawFd) -> Target {
        Target {
            fd,
            registered: false,
            stopped: false,
            closed: false,
            failed: false,
            turns: Vec::new(),
            told: 0,
            over: false,
            ended: false,
        }
    }

    /// A push comes.
    pub(super) fn enqueue(&mut self, push: usize) {
        self.turns.push(Turn { push, taken: 0, before: 0 });
    }

    /// Whether all pushes that came were told of.
    pub(super) fn is_idle(&self) -> bool {
        self.told == self.turns.len()
    }

    /// Borrows what it is to write, which is the next of the push whose turn it is.
    pub(super) fn borrow(&self, lent: Lent, pushes: &[Push]) -> Loan {
        let push = pushes.iter().find(|push| !push.ended && push.place.contains(&lent.ptr.addr()));
        let push = push.expect("these are no push's bytes");
        let (before, turn) = self.before(push.number);
        let done = |turn: &Turn| {
            let push = &pushes[turn.push];
            push.over && turn.taken == push.filled && !push.closes
        };
        assert!(before.iter().all(done), "push {} comes too early", push.number);
        let offset = lent.ptr.addr() - push.place.start;
        assert_eq!(offset as u64, turn.taken % (push.place.len() as u64 / 2), "at {}", turn.taken);
        assert!(lent.len > 0 && turn.taken + lent.len as u64 <= push.filled, "{lent:?}");
        let (inlet, at) = (push.inlet.clone(), turn.taken);
        let loan = Loan { start: lent.ptr, len: lent.len, inlet, push: push.number, at };
        loan.check();
        loan
    }

    /// A push's turn, and those that came before.
    fn before(&self, push: usize) -> (&[Turn], &Turn) {
        let at = self.turns.iter().position(|turn| turn.push == push).expect("it is not for this target");
        (&self.turns[..at], &self.turns[at])
    }

    /// Takes the first `n` bytes of what was lent.
    pub(super) fn take(&mut self, loan: &Loan, n: usize) -> usize {
        loan.check();
        let turn = self.turns.iter_mut().find(|turn| turn.push == loan.push).unwrap();
        assert_eq!(turn.taken, loan.at);
        turn.before = turn.taken;
        turn.taken += n as u64;
        n
    }

    /// It gives an error.
    pub(super) fn fail(&mut self, errno: i32) {
        match errno {
            libc::EAGAIN | libc::EINTR => {}
            libc::EPIPE => self.closed = true,
            _ => self.failed = true,
        }
    }

    /// A push's turn is over, in its order and for a reason.
    pub(super) fn fed(
        &mut self,
        push: &mut Push,
        number: usize,
        delivered: u64,
        end: &PushEnd,
        broken: bool,
    ) {
        push.tell(number);
        let turn = &self.turns[self.told];
        assert_eq!((turn.push, turn.taken), (push.number, delivered), "at target {number}");
        self.told += 1;
        if self.over {
            assert!(matches!(end, PushEnd::Closed) && delivered == 0, "{end:?} after the end");
            return;
        }
        self.over = push.closes || !matches!(end, PushEnd::Complete);
        match end {
            PushEnd::Complete => assert!(push.over && delivered == push.filled),
            // Who was shut with no push there has told of none.
            PushEnd::Closed => assert!(self.closed || (self.ended && delivered == 0)),
            PushEnd::CutOff => assert!(push.cut.is_some_and(|position| turn.before <= position)),
            PushEnd::Stopped => assert!(self.stopped),
            PushEnd::Error(_) => assert!(self.failed || broken, "{end:?}"),
        }
    }

    /// It is said to be shut.
    pub(super) fn end(&mut self, broken: bool) {
        assert!(!self.ended, "it is shut twice");
        assert!(self.over || self.stopped || broken, "it is shut by itself");
        assert!(self.turns.iter().skip(self.told).all(|turn| turn.taken == 0), "somebody was not told");
        self.ended = true;
    }
}
