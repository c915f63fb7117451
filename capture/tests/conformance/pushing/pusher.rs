//! Whoever pushes stdin in these tests, and how the pipes of the targets are looked at.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use iof_capture::{Capture, Event, PushEnd, PushId, SlowTargets, TargetId};
use iof_shm_ring::{Filler, Inlet};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::BACKEND;
use crate::common::{next, pattern, pipe};

pub(super) const KIB: u64 = 1024;
pub(super) const MIB: usize = 1 << 20;
/// Bytes that each push's inlet holds.
pub(super) const INLET: u64 = 64 * KIB;
/// Nothing here takes so long: whoever waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a push's turn at a target ended.
#[derive(Debug)]
pub(super) struct Fed {
    pub(super) delivered: u64,
    pub(super) end: PushEnd,
}

impl Fed {
    /// Whether the target took so many bytes, and these were all.
    pub(super) fn is_complete(&self, bytes: usize) -> bool {
        self.delivered == bytes as u64 && matches!(self.end, PushEnd::Complete)
    }

    /// Whether the push came too late.
    pub(super) fn came_too_late(&self) -> bool {
        self.delivered == 0 && matches!(self.end, PushEnd::Closed)
    }
}

/// Whoever pushes stdin: a capture, the inlets of the pushes that are not over, and what became of
/// them.
pub(super) struct Pusher {
    pub(super) capture: Capture,
    pub(super) events: Receiver<Event>,
    fillers: HashMap<u64, Filler>,
    fed: HashMap<(u64, u64), Fed>,
    over: HashSet<u64>,
    shut: HashSet<u64>,
}

impl Pusher {
    pub(super) fn new() -> Pusher {
        let (tell, events) = channel();
        let capture = Capture::start_on(BACKEND, move |event| drop(tell.send(event))).unwrap();
        Pusher {
            capture,
            events,
            fillers: HashMap::new(),
            fed: HashMap::new(),
            over: HashSet::new(),
            shut: HashSet::new(),
        }
    }

    /// Adds a new pipe as a target; gives its read end, and a second write end to look at, which is
    /// to be dropped.
    pub(super) fn target(&mut self, id: u64) -> (OwnedFd, File) {
        let (read, write) = pipe();
        let look = write.try_clone().unwrap();
        self.capture.add_target(TargetId(id), write.into()).unwrap();
        self.shut.remove(&id);
        (read, look)
    }

    /// The same, where nobody looks.
    pub(super) fn unseen_target(&mut self, id: u64) -> OwnedFd {
        self.target(id).0
    }

    pub(super) fn begin(&mut self, push: u64, targets: &[u64], closes: bool) {
        let inlet = Inlet::create(INLET, "test").unwrap();
        // SAFETY: there is no other, and it is told what is.
        let filler = unsafe { Filler::open(inlet.as_fd().try_clone_to_owned().unwrap()) }.unwrap();
        let targets = targets.iter().copied().map(TargetId).collect();
        self.capture.begin_push(PushId(push), Arc::new(inlet), targets, closes).unwrap();
        self.fillers.insert(push, filler);
        self.over.remove(&push);
    }

    /// Pushes what there is room for now.
    pub(super) fn try_push(&mut self, push: u64, bytes: &[u8]) -> usize {
        self.hear_all();
        let Some(filler) = self.fillers.get_mut(&push) else { return 0 };
        let room = filler.room();
        let n = room.len().min(bytes.len());
        room[..n].copy_from_slice(&bytes[..n]);
        assert_eq!(filler.fill(n), n);
        if n > 0 {
            self.capture.fill(PushId(push), n as u64, false).unwrap();
        }
        n
    }

    /// Pushes all, or until the push is over.
    pub(super) fn push(&mut self, push: u64, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() && self.fillers.contains_key(&push) {
            let taken = self.try_push(push, rest);
            rest = &rest[taken..];
            if taken == 0 && self.fillers.contains_key(&push) {
                self.wait();
            }
        }
    }

    /// Those were all.
    pub(super) fn end(&mut self, push: u64) {
        self.capture.fill(PushId(push), 0, true).unwrap();
    }

    /// Pushes all, and says so.
    pub(super) fn push_all(&mut self, push: u64, bytes: &[u8]) {
        self.push(push, bytes);
        self.end(push);
    }

    fn wait(&mut self) {
        let event = next(&self.events);
        self.hear(event);
    }

    fn hear_all(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            self.hear(event);
        }
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Freed { push, position } => {
                assert!(self.fillers.get_mut(&push.0).unwrap().freed(position), "{position}");
            }
            Event::Fed { push, target, delivered, end } => {
                assert!(self.fillers.contains_key(&push.0), "{push:?} is over");
                let before = self.fed.insert((push.0, target.0), Fed { delivered, end });
                assert!(before.is_none(), "{target:?} was told of twice");
            }
            Event::PushOver { push } => {
                assert!(self.over.insert(push.0), "{push:?} is over twice");
                self.fillers.remove(&push.0);
            }
            Event::Shut { target } => assert!(self.shut.insert(target.0), "{target:?} is shut twice"),
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the end of a push's turn at a target.
    pub(super) fn fed(&mut self, push: u64, target: u64) -> Fed {
        loop {
            if let Some(fed) = self.fed.remove(&(push, target)) {
                return fed;
            }
            self.wait();
        }
    }

    /// Whether a push's turn at a target has ended by now.
    pub(super) fn is_fed(&mut self, push: u64, target: u64) -> bool {
        self.hear_all();
        self.fed.contains_key(&(push, target))
    }

    pub(super) fn wait_over(&mut self, push: u64) {
        while !self.over.contains(&push) {
            self.wait();
        }
    }

    pub(super) fn wait_shut(&mut self, target: u64) {
        while !self.shut.contains(&target) {
            self.wait();
        }
    }

    pub(super) fn lagging(&self, push: u64) -> Option<SlowTargets> {
        self.capture.with_streams(|streams| streams.lagging(PushId(push))).unwrap()
    }

    pub(super) fn takes(&self, target: u64) -> bool {
        self.capture.with_streams(|streams| streams.takes(TargetId(target))).unwrap()
    }

    /// Waits until all targets of a push have taken what was pushed so far.
    pub(super) fn wait_taken(&mut self, push: u64) {
        let filled = self.fillers[&push].filled();
        wait_until(|| self.lagging(push).is_some_and(|lagging| lagging.position == filled));
    }

    /// Drops the capture; gives what it still had to say.
    pub(super) fn stop(mut self) -> Vec<Event> {
        self.hear_all();
        let Pusher { capture, events, .. } = self;
        drop(capture);
        events.try_iter().collect()
    }
}

/// Reads to the end of file, `pause` after each read, and compares; gives how many bytes there
/// were.
pub(super) fn compare(from: OwnedFd, expected: &Arc<Vec<u8>>, pause: Duration) -> JoinHandle<usize> {
    let expected = Arc::clone(expected);
    std::thread::spawn(move || {
        let (mut from, mut at, mut buffer) = (File::from(from), 0, vec![0; 64 << 10]);
        loop {
            let n = from.read(&mut buffer).unwrap();
            assert!(buffer[..n] == expected[at..at + n], "another byte, from {at} on");
            at += n;
            if n == 0 {
                return at;
            }
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
        }
    })
}

/// What is there up to the end of file.
pub(super) fn read_to_end(from: OwnedFd) -> Vec<u8> {
    let mut got = Vec::new();
    File::from(from).read_to_end(&mut got).unwrap();
    got
}

/// As many bytes, once they are there.
pub(super) fn read_some(from: &OwnedFd, bytes: usize) -> Vec<u8> {
    let mut got = vec![0; bytes];
    File::from(from.try_clone().unwrap()).read_exact(&mut got).unwrap();
    got
}

pub(super) fn wait_until(ready: impl Fn() -> bool) {
    let begun = Instant::now();
    while !ready() {
        assert!(begun.elapsed() < PATIENCE, "it never came");
        std::thread::yield_now();
    }
}

pub(super) fn is(file: impl AsFd, flag: PollFlags) -> bool {
    poll(&mut [PollFd::new(file.as_fd(), flag)], PollTimeout::ZERO).unwrap() == 1
}

/// Waits until a pipe holds all that it can, so that a write to it is in flight.
pub(super) fn wait_full(look: &File) {
    wait_until(|| !is(look, PollFlags::POLLOUT));
}

/// Waits until nobody has the read end any more. (A process that another test is about to start
/// holds it until it is.)
pub(super) fn wait_broken(look: &File) {
    wait_until(|| is(look, PollFlags::empty()));
}

pub(super) fn unread(pipe: &OwnedFd) -> u64 {
    let mut n: libc::c_int = 0;
    // SAFETY: it writes one int.
    assert_eq!(unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(pipe), libc::FIONREAD, &raw mut n) }, 0);
    n as u64
}

/// Pushes until the pipe of target 0 is full and a write of what is left in flight, and all others
/// have taken all; gives how much.
pub(super) fn stuff(pusher: &mut Pusher, push: u64, look: &File, bytes: &[u8]) -> usize {
    let is_stuck = |pusher: &Pusher| {
        // In this order: what it lacks once it is full it can't take any more.
        !is(look, PollFlags::POLLOUT)
            && matches!(pusher.lagging(push).unwrap().targets[..], [who] if who.target == TargetId(0))
    };
    let mut at = 0;
    while !is_stuck(pusher) {
        at += pusher.try_push(push, &bytes[at..]);
    }
    at
}

/// Target 0 with a write of push 0, which closes it, in flight.
pub(super) fn stuck() -> (Pusher, OwnedFd, File) {
    let mut pusher = Pusher::new();
    let (read, look) = pusher.target(0);
    pusher.begin(0, &[0], true);
    stuff(&mut pusher, 0, &look, &pattern(MIB, 13));
    (pusher, read, look)
}
