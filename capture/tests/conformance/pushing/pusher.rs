//! The pusher of these tests, and the ways to inspect the targets' pipes.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use iof_capture::{Capture, Command, Event, PushEnd, PushId, SlowTargets, TargetId};
use iof_shm_ring::{Filler, Inlet};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::BACKEND;
use iof_testing::capture::{CaptureRig, next, rig_on};
use iof_testing::noise::seeded_pattern;
use iof_testing::pipes::pipe;

pub(super) const KIB: u64 = 1024;
pub(super) const MIB: usize = 1 << 20;
/// Capacity of each push's inlet in bytes.
pub(super) const INLET: u64 = 64 * KIB;
/// The longest time that a test waits for a condition. No condition takes as long.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The end of a push's turn at a target, as the capture reported it.
#[derive(Debug)]
pub(super) struct Fed {
    pub(super) delivered: u64,
    pub(super) end: PushEnd,
}

impl Fed {
    /// Returns whether the target took this many bytes and the push was complete.
    pub(super) fn is_complete(&self, bytes: usize) -> bool {
        self.delivered == bytes as u64 && matches!(self.end, PushEnd::Complete)
    }

    /// Returns whether the target was already closed when the push had its turn.
    pub(super) fn came_too_late(&self) -> bool {
        self.delivered == 0 && matches!(self.end, PushEnd::Closed)
    }
}

/// A capture, the fillers of the pushes that are not over, and the reported ends.
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
        let CaptureRig { capture, events } = rig_on(BACKEND);
        Pusher {
            capture,
            events,
            fillers: HashMap::new(),
            fed: HashMap::new(),
            over: HashSet::new(),
            shut: HashSet::new(),
        }
    }

    /// Adds the write end of a new pipe as target `id`. Returns the read end, and a second write
    /// end with which the test can poll the pipe. The pipe stays open until both write ends are
    /// dropped.
    pub(super) fn add_watched_target(&mut self, id: u64) -> (OwnedFd, File) {
        let (read, write) = pipe();
        let poll_end = write.try_clone().unwrap();
        self.capture.send([Command::AddTarget { target: TargetId(id), pipe: write.into() }]).unwrap();
        self.shut.remove(&id);
        (read, poll_end)
    }

    /// Adds the write end of a new pipe as target `id`. Returns the read end.
    pub(super) fn add_target(&mut self, id: u64) -> OwnedFd {
        self.add_watched_target(id).0
    }

    /// Begins push `push` with a new inlet.
    pub(super) fn begin(&mut self, push: u64, targets: &[u64], closes: bool) {
        let inlet = Inlet::create(INLET, "test").unwrap();
        // SAFETY: this is the inlet's only filler, and `freed` receives only what the capture
        // reports.
        let filler = unsafe { Filler::open(inlet.as_fd().try_clone_to_owned().unwrap()) }.unwrap();
        let targets = targets.iter().copied().map(TargetId).collect();
        self.capture
            .send([Command::BeginPush { push: PushId(push), inlet: Arc::new(inlet), targets, closes }])
            .unwrap();
        self.fillers.insert(push, filler);
        self.over.remove(&push);
    }

    /// Pushes the bytes for which the inlet has room now. Returns their number.
    pub(super) fn try_push(&mut self, push: u64, bytes: &[u8]) -> usize {
        self.take_events();
        let Some(filler) = self.fillers.get_mut(&push) else { return 0 };
        let room = filler.room();
        let n = room.len().min(bytes.len());
        room[..n].copy_from_slice(&bytes[..n]);
        assert_eq!(filler.fill(n), n);
        if n > 0 {
            self.capture.send([Command::Fill { push: PushId(push), bytes: n as u64, last: false }]).unwrap();
        }
        n
    }

    /// Pushes all bytes, or stops when the push is over.
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

    /// Marks the push as complete.
    pub(super) fn end(&mut self, push: u64) {
        self.capture.send([Command::Fill { push: PushId(push), bytes: 0, last: true }]).unwrap();
    }

    /// Pushes all bytes and marks the push as complete.
    pub(super) fn push_all(&mut self, push: u64, bytes: &[u8]) {
        self.push(push, bytes);
        self.end(push);
    }

    fn wait(&mut self) {
        let event = next(&self.events);
        self.handle(event);
    }

    fn take_events(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            self.handle(event);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Freed { push, position } => {
                assert!(self.fillers.get_mut(&push.0).unwrap().freed(position), "{position}");
            }
            Event::Fed { push, target, delivered, end } => {
                assert!(self.fillers.contains_key(&push.0), "{push:?} is over");
                let before = self.fed.insert((push.0, target.0), Fed { delivered, end });
                assert!(before.is_none(), "the turn at {target:?} ended twice");
            }
            Event::PushOver { push } => {
                assert!(self.over.insert(push.0), "{push:?} is over twice");
                self.fillers.remove(&push.0);
            }
            Event::Shut { target } => assert!(self.shut.insert(target.0), "{target:?} is shut twice"),
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the end of a push's turn at a target, and returns it.
    pub(super) fn fed(&mut self, push: u64, target: u64) -> Fed {
        loop {
            if let Some(fed) = self.fed.remove(&(push, target)) {
                return fed;
            }
            self.wait();
        }
    }

    /// Returns whether a push's turn at a target has ended.
    pub(super) fn is_fed(&mut self, push: u64, target: u64) -> bool {
        self.take_events();
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

    /// Waits until all targets of a push have taken all bytes pushed so far.
    pub(super) fn wait_taken(&mut self, push: u64) {
        let filled = self.fillers[&push].filled();
        wait_until(|| self.lagging(push).is_some_and(|lagging| lagging.position == filled));
    }

    /// Drops the capture. Returns the events that it reported meanwhile.
    pub(super) fn stop(mut self) -> Vec<Event> {
        self.take_events();
        let Pusher { capture, events, .. } = self;
        drop(capture);
        events.try_iter().collect()
    }
}

/// Starts a thread that reads to end of file, with `pause` after each read, and compares the bytes.
/// The thread returns their number.
pub(super) fn spawn_comparison(pipe: OwnedFd, expected: &Arc<Vec<u8>>, pause: Duration) -> JoinHandle<usize> {
    let expected = Arc::clone(expected);
    std::thread::spawn(move || {
        let (mut pipe, mut position, mut buffer) = (File::from(pipe), 0, vec![0; 64 << 10]);
        loop {
            let n = pipe.read(&mut buffer).unwrap();
            assert!(buffer[..n] == expected[position..position + n], "wrong byte at {position} or later");
            position += n;
            if n == 0 {
                return position;
            }
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
        }
    })
}

/// Reads to end of file.
pub(super) fn read_to_end(pipe: OwnedFd) -> Vec<u8> {
    let mut bytes = Vec::new();
    File::from(pipe).read_to_end(&mut bytes).unwrap();
    bytes
}

/// Reads exactly `len` bytes. Blocks until they are available.
pub(super) fn read_exactly(pipe: &OwnedFd, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    File::from(pipe.try_clone().unwrap()).read_exact(&mut bytes).unwrap();
    bytes
}

pub(super) fn wait_until(ready: impl Fn() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < TIMEOUT, "the condition did not become true");
        std::thread::yield_now();
    }
}

/// Returns whether poll(2) reports `file` for `flag`, or with an error or hang-up.
pub(super) fn is_ready(file: impl AsFd, flag: PollFlags) -> bool {
    poll(&mut [PollFd::new(file.as_fd(), flag)], PollTimeout::ZERO).unwrap() == 1
}

/// Waits until a pipe is full, so that the next write to it stays in flight.
pub(super) fn wait_full(poll_end: &File) {
    wait_until(|| !is_ready(poll_end, PollFlags::POLLOUT));
}

/// Waits until no process has the read end open. (A process that another test is starting holds it
/// for a moment.)
pub(super) fn wait_broken(poll_end: &File) {
    wait_until(|| is_ready(poll_end, PollFlags::empty()));
}

/// Returns the number of bytes in a pipe.
pub(super) fn unread(pipe: &OwnedFd) -> u64 {
    let mut n: libc::c_int = 0;
    // SAFETY: the call writes one int.
    assert_eq!(unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(pipe), libc::FIONREAD, &raw mut n) }, 0);
    n as u64
}

/// Pushes until target 0 has a full pipe and a write in flight, and all other targets have taken
/// all bytes. Returns the number of bytes pushed.
pub(super) fn push_until_full(pusher: &mut Pusher, push: u64, poll_end: &File, bytes: &[u8]) -> usize {
    let is_stuck = |pusher: &Pusher| {
        // The order matters: a target that is behind after its pipe was seen full stays behind.
        !is_ready(poll_end, PollFlags::POLLOUT)
            && matches!(pusher.lagging(push).unwrap().targets[..], [slow] if slow.target == TargetId(0))
    };
    let mut pushed = 0;
    while !is_stuck(pusher) {
        pushed += pusher.try_push(push, &bytes[pushed..]);
    }
    pushed
}

/// Returns a pusher whose target 0 has a full pipe and a write of push 0 in flight. Push 0 closes
/// the target.
pub(super) fn pusher_with_full_target() -> (Pusher, OwnedFd, File) {
    let mut pusher = Pusher::new();
    let (read, poll_end) = pusher.add_watched_target(0);
    pusher.begin(0, &[0], true);
    push_until_full(&mut pusher, 0, &poll_end, &seeded_pattern(MIB, 13));
    (pusher, read, poll_end)
}
