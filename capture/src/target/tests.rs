use std::os::fd::AsFd;
use std::sync::Arc;

use iof_shm_ring::{Filler, Inlet};

use super::*;
use crate::event::PushId;

/// The number of the target in these tests.
const AT: usize = 3;

/// A target, what is fed to it, and the other end of its pipe.
struct Rig {
    target: Target,
    pushes: Slots<Push>,
    fillers: Vec<Filler>,
    _read: OwnedFd,
}

impl Rig {
    /// With so many pushes, one behind the other.
    fn new(pushes: u64) -> Rig {
        let (read, write) = nix::unistd::pipe().unwrap();
        let target = Target::new(TargetId(1), write);
        let mut rig = Rig { target, pushes: Slots::default(), fillers: Vec::new(), _read: read };
        for id in 0..pushes {
            let inlet = Inlet::create(4096, "test").unwrap();
            // SAFETY: there is no other, and it is told what is.
            let filler = unsafe { Filler::open(inlet.as_fd().try_clone_to_owned().unwrap()) };
            rig.fillers.push(filler.unwrap());
            let number = rig.pushes.insert(Push::new(PushId(id), Arc::new(inlet), false, &[AT]));
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

    fn next(&mut self) -> Next<'_> {
        self.target.next(AT, &self.pushes)
    }

    /// The bytes that are to be written now.
    fn written(&mut self) -> Vec<u8> {
        let Next::Write(_, lent) = self.next() else { panic!("nothing is to be written") };
        // SAFETY: they lie in the inlet of a push that stays, and nobody fills it meanwhile.
        unsafe { std::slice::from_raw_parts(lent.ptr, lent.len) }.to_vec()
    }

    /// What is in flight comes back, and is counted.
    fn done(&mut self, result: io::Result<usize>) -> Option<PushEnd> {
        let (bytes, end) = match self.target.done(result) {
            Done::Written(bytes) => (bytes, None),
            Done::Close(bytes, end) => (bytes, Some(end)),
        };
        let turn = self.target.turn().unwrap();
        self.pushes.get_mut(turn).unwrap().record_taken(AT, bytes);
        end
    }
}

fn errno(errno: i32) -> io::Result<usize> {
    Err(io::Error::from_raw_os_error(errno))
}

#[test]
fn what_is_in_flight_is_asked_for_once_and_a_partial_write_goes_on_behind_it() {
    let mut rig = Rig::new(1);
    assert!(matches!(rig.next(), Next::Nothing));
    rig.fill(0, b"abcdef", false);
    assert_eq!(rig.written(), b"abcdef");
    rig.fill(0, b"ghi", false);
    assert!(matches!(rig.next(), Next::Nothing));
    assert!(rig.done(Ok(4)).is_none());
    assert_eq!(rig.written(), b"efghi");
    assert!(rig.done(errno(libc::EINTR)).is_none());
    assert_eq!(rig.written(), b"efghi");
    assert!(rig.done(Ok(5)).is_none());
    assert!(matches!(rig.next(), Next::Nothing));
    rig.fill(0, b"", true);
    assert!(matches!(rig.next(), Next::TurnOver));
}

#[test]
fn a_push_has_its_turn_when_the_one_before_is_over_and_not_when_that_is_only_empty() {
    let mut rig = Rig::new(2);
    rig.fill(1, b"second", true);
    assert!(matches!(rig.next(), Next::Nothing), "the first has no bytes yet");
    rig.fill(0, b"first", false);
    assert_eq!(rig.written(), b"first");
    assert!(rig.done(Ok(5)).is_none());
    assert!(matches!(rig.next(), Next::Nothing), "the first has no bytes now");
    rig.fill(0, b"", true);
    assert!(matches!(rig.next(), Next::TurnOver));
    assert_eq!(rig.target.turn_over(), Some(0));
    assert_eq!(rig.written(), b"second");
    assert!(rig.done(Ok(6)).is_none());
    assert!(matches!(rig.next(), Next::TurnOver));
    assert_eq!(rig.target.turn_over(), Some(1));
    assert!(matches!(rig.next(), Next::Nothing));
}

#[test]
fn a_pipe_that_takes_nothing_now_is_polled() {
    let mut rig = Rig::new(1);
    rig.fill(0, b"abc", false);
    assert_eq!(rig.written(), b"abc");
    assert!(rig.done(errno(libc::EAGAIN)).is_none());
    assert!(matches!(rig.next(), Next::Poll(_)));
    assert!(matches!(rig.next(), Next::Nothing));
    assert!(rig.done(Ok(1)).is_none(), "that one is no byte");
    assert_eq!(rig.written(), b"abc");
}

#[test]
fn errors_end_it_and_a_closed_stdin_is_not_called_one() {
    let ends = [(errno(libc::EPIPE), true), (errno(libc::EIO), false), (Ok(0), false)];
    for (result, closed) in ends {
        let mut rig = Rig::new(1);
        rig.fill(0, b"abc", false);
        assert_eq!(rig.written(), b"abc");
        let end = rig.done(result);
        assert!(if closed {
            matches!(end, Some(PushEnd::Closed))
        } else {
            matches!(end, Some(PushEnd::Error(_)))
        });
    }
}

#[test]
fn bytes_that_were_written_when_the_cancellation_came_count_and_the_first_reason_does() {
    let mut rig = Rig::new(1);
    rig.fill(0, b"abc", false);
    assert_eq!(rig.written(), b"abc");
    assert!(rig.target.close(PushEnd::CutOff).is_ok());
    assert!(rig.target.close(PushEnd::Stopped).is_ok());
    assert!(matches!(rig.next(), Next::Nothing));
    assert!(matches!(rig.done(Ok(2)), Some(PushEnd::CutOff)));
    assert_eq!(rig.pushes.get_mut(0).unwrap().remove_target(AT), 2);
}

#[test]
fn who_is_cancelled_ends_for_the_reason_that_was_given() {
    let answers = [errno(libc::ECANCELED), errno(libc::EAGAIN), errno(libc::EINTR), errno(libc::EIO), Ok(0)];
    for answer in answers {
        let mut rig = Rig::new(1);
        rig.fill(0, b"abc", false);
        assert_eq!(rig.written(), b"abc");
        assert!(rig.target.close(PushEnd::Stopped).is_ok());
        assert!(matches!(rig.done(answer), Some(PushEnd::Stopped)));
    }
}

#[test]
fn who_has_nothing_in_flight_can_be_closed_at_once() {
    let mut rig = Rig::new(1);
    assert!(matches!(rig.target.close(PushEnd::Stopped), Err(PushEnd::Stopped)));
}
