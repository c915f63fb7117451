use std::os::fd::AsFd;
use std::sync::Arc;

use iof_shm_ring::{Filler, Inlet};

use super::*;
use crate::ids::PushId;

/// The index of the target in these tests.
const TARGET: usize = 3;

/// A target, its pushes with their fillers, and the read end of its pipe.
struct TargetRig {
    target: Target,
    pushes: Slab<Push>,
    fillers: Vec<Filler>,
    _read: OwnedFd,
}

impl TargetRig {
    /// Creates a target with this many pushes in a row.
    fn new(pushes: u64) -> TargetRig {
        let (read, write) = nix::unistd::pipe().unwrap();
        let target = Target::new(TargetId(1), write);
        let mut rig = TargetRig { target, pushes: Slab::default(), fillers: Vec::new(), _read: read };
        for id in 0..pushes {
            let inlet = Inlet::create(4096, "test").unwrap();
            // SAFETY: this is the inlet's only filler, and these tests never call `freed`.
            let filler = unsafe { Filler::open(inlet.as_fd().try_clone_to_owned().unwrap()) };
            rig.fillers.push(filler.unwrap());
            let number = rig.pushes.insert(Push::new(PushId(id), Arc::new(inlet), false, &[TARGET]));
            rig.target.enqueue(number);
        }
        rig
    }

    fn fill(&mut self, push: usize, bytes: &[u8], over: bool) {
        let filler = &mut self.fillers[push];
        filler.room()[..bytes.len()].copy_from_slice(bytes);
        assert_eq!(filler.fill(bytes.len()), bytes.len());
        self.pushes.get_mut(push).unwrap().fill(bytes.len() as u64, over);
    }

    fn next(&mut self) -> TargetAction<'_> {
        self.target.next(TARGET, &self.pushes)
    }

    /// Starts the next write and returns its bytes.
    fn start_write(&mut self) -> Vec<u8> {
        let TargetAction::Write(_, lent) = self.next() else { panic!("the target has nothing to write") };
        // SAFETY: the bytes lie in the inlet of a push, which stays mapped, and which only this
        // thread fills.
        unsafe { std::slice::from_raw_parts(lent.ptr, lent.len) }.to_vec()
    }

    /// Answers the request in flight and counts the bytes written. Returns the reason if the target
    /// must be closed.
    fn done(&mut self, result: io::Result<usize>) -> Option<PushEnd> {
        let (bytes, end) = match self.target.done(result) {
            Done::Written(bytes) => (bytes, None),
            Done::Close(bytes, end) => (bytes, Some(end)),
        };
        let turn = self.target.turn().unwrap();
        self.pushes.get_mut(turn).unwrap().record_taken(TARGET, bytes);
        end
    }
}

fn errno(errno: i32) -> io::Result<usize> {
    Err(io::Error::from_raw_os_error(errno))
}

#[test]
fn only_one_write_is_in_flight_and_a_partial_write_continues_behind_its_bytes() {
    let mut rig = TargetRig::new(1);
    assert!(matches!(rig.next(), TargetAction::Nothing));
    rig.fill(0, b"abcdef", false);
    assert_eq!(rig.start_write(), b"abcdef");
    rig.fill(0, b"ghi", false);
    assert!(matches!(rig.next(), TargetAction::Nothing));
    assert!(rig.done(Ok(4)).is_none());
    assert_eq!(rig.start_write(), b"efghi");
    assert!(rig.done(errno(libc::EINTR)).is_none());
    assert_eq!(rig.start_write(), b"efghi");
    assert!(rig.done(Ok(5)).is_none());
    assert!(matches!(rig.next(), TargetAction::Nothing));
    rig.fill(0, b"", true);
    assert!(matches!(rig.next(), TargetAction::TurnOver));
}

#[test]
fn a_push_waits_for_its_turn_until_the_one_before_is_over_not_only_empty() {
    let mut rig = TargetRig::new(2);
    rig.fill(1, b"second", true);
    assert!(matches!(rig.next(), TargetAction::Nothing), "the first has no bytes yet");
    rig.fill(0, b"first", false);
    assert_eq!(rig.start_write(), b"first");
    assert!(rig.done(Ok(5)).is_none());
    assert!(matches!(rig.next(), TargetAction::Nothing), "the first has no bytes now");
    rig.fill(0, b"", true);
    assert!(matches!(rig.next(), TargetAction::TurnOver));
    assert_eq!(rig.target.turn_over(), Some(0));
    assert_eq!(rig.start_write(), b"second");
    assert!(rig.done(Ok(6)).is_none());
    assert!(matches!(rig.next(), TargetAction::TurnOver));
    assert_eq!(rig.target.turn_over(), Some(1));
    assert!(matches!(rig.next(), TargetAction::Nothing));
}

#[test]
fn a_pipe_that_would_block_is_polled() {
    let mut rig = TargetRig::new(1);
    rig.fill(0, b"abc", false);
    assert_eq!(rig.start_write(), b"abc");
    assert!(rig.done(errno(libc::EAGAIN)).is_none());
    assert!(matches!(rig.next(), TargetAction::Poll(_)));
    assert!(matches!(rig.next(), TargetAction::Nothing));
    assert!(rig.done(Ok(1)).is_none(), "the result of a poll is not a byte");
    assert_eq!(rig.start_write(), b"abc");
}

#[test]
fn errors_end_a_target_and_epipe_counts_as_closed() {
    let ends = [(errno(libc::EPIPE), true), (errno(libc::EIO), false), (Ok(0), false)];
    for (result, closed) in ends {
        let mut rig = TargetRig::new(1);
        rig.fill(0, b"abc", false);
        assert_eq!(rig.start_write(), b"abc");
        let end = rig.done(result);
        assert!(if closed {
            matches!(end, Some(PushEnd::Closed))
        } else {
            matches!(end, Some(PushEnd::Error(_)))
        });
    }
}

#[test]
fn bytes_written_before_the_cancellation_count_and_the_first_reason_wins() {
    let mut rig = TargetRig::new(1);
    rig.fill(0, b"abc", false);
    assert_eq!(rig.start_write(), b"abc");
    assert!(rig.target.close(PushEnd::CutOff).is_ok());
    assert!(rig.target.close(PushEnd::Stopped).is_ok());
    assert!(matches!(rig.next(), TargetAction::Nothing));
    assert!(matches!(rig.done(Ok(2)), Some(PushEnd::CutOff)));
    assert_eq!(rig.pushes.get_mut(0).unwrap().remove_target(TARGET), 2);
}

#[test]
fn a_cancelled_target_ends_for_the_given_reason() {
    let answers = [errno(libc::ECANCELED), errno(libc::EAGAIN), errno(libc::EINTR), errno(libc::EIO), Ok(0)];
    for answer in answers {
        let mut rig = TargetRig::new(1);
        rig.fill(0, b"abc", false);
        assert_eq!(rig.start_write(), b"abc");
        assert!(rig.target.close(PushEnd::Stopped).is_ok());
        assert!(matches!(rig.done(answer), Some(PushEnd::Stopped)));
    }
}

#[test]
fn a_target_with_nothing_in_flight_can_be_closed_at_once() {
    let mut rig = TargetRig::new(1);
    assert!(matches!(rig.target.close(PushEnd::Stopped), Err(PushEnd::Stopped)));
}
