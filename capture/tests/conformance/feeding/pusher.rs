//! Whoever pushes stdin in these tests, and how the pipes of the targets are looked at.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use iof_capture::{Capture, Event, FeedEnd, TargetId};
use iof_shm_ring::{Bell, Policy, Reader, Ringer, Start, Stream, bell, notify};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::BACKEND;
use crate::common::{pattern, pipe, stream};

pub(super) const KIB: u64 = 1024;
pub(super) const MIB: usize = 1 << 20;
/// Nothing here takes so long: whoever waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Fed {
    pub(super) delivered: u64,
    pub(super) lost: u64,
    pub(super) end: FeedEnd,
}

/// Whoever pushes stdin: a capture, streams, and what became of their targets.
pub(super) struct Pusher {
    pub(super) capture: Capture,
    pub(super) events: Receiver<Event>,
    /// Rings when a reader made room, and when there is an event.
    bell: Bell,
    ringer: Arc<Ringer>,
    pub(super) streams: Vec<Stream>,
    /// The stream and the slot of each target.
    seats: HashMap<TargetId, (usize, u32)>,
    fed: HashMap<TargetId, Fed>,
}

impl Pusher {
    fn new() -> Pusher {
        let (ringer, bell) = bell().unwrap();
        let ringer = Arc::new(ringer);
        let (tell, events) = channel();
        let wake = Arc::clone(&ringer);
        let capture = Capture::start_on(BACKEND, move |event| {
            tell.send(event).unwrap();
            wake.ring();
        })
        .unwrap();
        Pusher {
            capture,
            events,
            bell,
            ringer,
            streams: Vec::new(),
            seats: HashMap::new(),
            fed: HashMap::new(),
        }
    }

    /// With one stream of 64 KiB.
    pub(super) fn with(policy: Policy) -> Pusher {
        let mut pusher = Pusher::new();
        pusher.streams.push(stream(64 * KIB, policy));
        pusher
    }

    /// Feeds a new pipe from a stream; gives its read end, and a second write end to look at, which is to be dropped.
    pub(super) fn feed(&mut self, id: u64, stream: usize, may_block: bool) -> (OwnedFd, File) {
        let (id, (read, write)) = (TargetId(id), pipe());
        let area = self.capture.area();
        let slot = area.take_slot().unwrap();
        let given = self.streams[stream].attach(area, slot, Start::Oldest, may_block).unwrap();
        // SAFETY: it is detached after its end, and moves when it is sealed.
        let mut reader = unsafe { Reader::new(given, Arc::clone(area), Start::Oldest) }.unwrap();
        if may_block {
            reader.tell_room(Arc::clone(&self.ringer));
        }
        let look = write.try_clone().unwrap();
        self.capture.feed(id, write.into(), reader).unwrap();
        self.seats.insert(id, (stream, slot));
        (read, look)
    }

    /// Pushes what the stream takes now.
    pub(super) fn try_push(&mut self, stream: usize, bytes: &[u8]) -> usize {
        let taken = self.streams[stream].push(bytes, 1);
        notify([&self.streams[stream]]);
        taken
    }

    pub(super) fn push(&mut self, stream: usize, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = self.try_push(stream, rest);
            rest = &rest[taken..];
            if !rest.is_empty() {
                self.wait();
            }
        }
    }

    pub(super) fn complete(&mut self, stream: usize) {
        self.streams[stream].complete();
        notify([&self.streams[stream]]);
    }

    /// Waits for room or an event.
    fn wait(&mut self) {
        let patience = PollTimeout::try_from(PATIENCE).unwrap();
        let rang = poll(&mut [PollFd::new(self.bell.as_fd(), PollFlags::POLLIN)], patience);
        assert_eq!(rang, Ok(1), "nobody rang");
        self.bell.silence();
        self.hear();
    }

    fn hear(&mut self) {
        for event in self.events.try_iter() {
            let area = self.capture.area();
            match event {
                Event::Sealed { target } => {
                    let (stream, slot) = self.seats[&target];
                    let given = self.streams[stream].follow(area, slot, slot).unwrap();
                    if given.start == given.ring.base() {
                        // SAFETY: it is for this target's reader.
                        unsafe { self.capture.follow(target, given) }.unwrap();
                    } else {
                        self.capture.unfeed(target).unwrap();
                    }
                }
                Event::Fed { target, delivered, lost, end } => {
                    let (stream, slot) = self.seats.remove(&target).unwrap();
                    assert!(self.streams[stream].detach(area, slot));
                    area.return_slot(slot);
                    let before = self.fed.insert(target, Fed { delivered, lost, end });
                    assert!(before.is_none(), "{target:?} ended twice");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Waits for the end of a target.
    pub(super) fn end(&mut self, id: u64) -> Fed {
        loop {
            self.hear();
            if let Some(fed) = self.fed.remove(&TargetId(id)) {
                return fed;
            }
            self.wait();
        }
    }

    /// Waits until a target that keeps up has all bytes, and the capture thread has done what that takes.
    pub(super) fn wait_until_all_is_fed(&mut self, id: u64) {
        let begun = Instant::now();
        loop {
            self.hear();
            let (stream, slot) = self.seats[&TargetId(id)];
            if self.streams[stream].lag(self.capture.area(), slot) == Some(0) {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not keep up");
            std::thread::yield_now();
        }
        self.capture.with_streams(|_| ()).unwrap();
    }
}

/// Reads to the end of file, `pause` after each read, and compares; gives how many bytes there were.
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

/// Waits until nobody has the read end any more. (A process that another test is about to start holds it until it is.)
pub(super) fn wait_broken(look: &File) {
    wait_until(|| is(look, PollFlags::empty()));
}

pub(super) fn unread(pipe: &OwnedFd) -> u64 {
    let mut n: libc::c_int = 0;
    // SAFETY: it writes one int.
    assert_eq!(unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(pipe), libc::FIONREAD, &raw mut n) }, 0);
    n as u64
}

/// A target with a write in flight.
pub(super) fn stuck() -> (Pusher, OwnedFd, File) {
    let mut pusher = Pusher::with(Policy::Block);
    let (read, look) = pusher.feed(0, 0, true);
    let bytes = pattern(MIB, 13);
    let mut at = 0;
    while is(&look, PollFlags::POLLOUT) {
        at += pusher.try_push(0, &bytes[at..]);
    }
    (pusher, read, look)
}
