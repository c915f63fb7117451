//! A capture whose events can be waited for, and a tool that reads its streams.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::HashMap;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use iof_capture::{BackendKind, Capture, Event, ProcessId, SourceId};
use iof_shm_ring::{
    Attached, Bell, Gap, Peek, Policy, Reader, ReaderPage, Start, Stream, StreamConfig, doorbell,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Nothing here takes so long: whoever waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a source ended.
#[derive(Debug)]
pub struct End {
    pub produced: u64,
    pub dropped: u64,
    /// By us, while somebody might still write.
    pub closed: bool,
    pub error: Option<std::io::Error>,
}

pub struct Rig {
    pub capture: Capture,
    pub events: Receiver<Event>,
}

/// Works with whatever there is.
pub fn rig() -> Rig {
    let (tell, events) = channel();
    let capture = Capture::start(move |event| drop(tell.send(event))).unwrap();
    Rig { capture, events }
}

/// Works with `backend`.
pub fn rig_on(backend: BackendKind) -> Rig {
    let (tell, events) = channel();
    let capture = Capture::start_on(backend, move |event| drop(tell.send(event))).unwrap();
    Rig { capture, events }
}

pub fn next(events: &Receiver<Event>) -> Event {
    events.recv_timeout(PATIENCE).expect("an event")
}

/// Waits until `sources` are complete and `processes` have exited.
pub fn wait_for(
    events: &Receiver<Event>,
    sources: usize,
    processes: usize,
) -> (HashMap<SourceId, End>, HashMap<ProcessId, ExitStatus>) {
    let (mut ends, mut exits) = (HashMap::new(), HashMap::new());
    while ends.len() < sources || exits.len() < processes {
        match next(events) {
            Event::Complete { source, produced, dropped, end } => {
                let (closed, error) = match end {
                    iof_capture::End::EndOfFile => (false, None),
                    iof_capture::End::Closed => (true, None),
                    iof_capture::End::Error(error) => (false, Some(error)),
                };
                let before = ends.insert(source, End { produced, dropped, closed, error });
                assert!(before.is_none(), "{source:?} completed twice");
            }
            Event::Exited { process, status } => {
                assert!(exits.insert(process, status.unwrap()).is_none(), "{process:?} exited twice");
            }
            other => panic!("nothing is fed: {other:?}"),
        }
    }
    (ends, exits)
}

/// Waits for the completion of the one source `id`.
pub fn wait_end(events: &Receiver<Event>, id: SourceId) -> End {
    let (mut ends, _) = wait_for(events, 1, 0);
    ends.remove(&id).expect("another source ended")
}

pub fn stream(capacity: u64, policy: Policy) -> Stream {
    Stream::create(StreamConfig { capacity, policy }, "test").unwrap()
}

pub fn pipe() -> (OwnedFd, std::fs::File) {
    let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
    (read, write.into())
}

/// A pipe whose writer has it in packet mode: each read gives one write, and what it has no room
/// for is lost.
pub fn packet_pipe() -> (OwnedFd, std::fs::File) {
    let flags = nix::fcntl::OFlag::O_CLOEXEC | nix::fcntl::OFlag::O_DIRECT;
    let (read, write) = nix::unistd::pipe2(flags).unwrap();
    (read, write.into())
}

/// Waits until nobody has the other end any more. (A process that another test is about to start
/// holds it until it is.)
pub fn wait_closed(write: &mut std::fs::File) {
    poll(&mut [PollFd::new(write.as_fd(), PollFlags::empty())], PollTimeout::NONE).unwrap();
    assert!(write.write_all(b"x").is_err());
}

/// Bytes of which no two stretches are alike.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Writes `bytes` from a thread of its own, in pieces of odd sizes, and closes the pipe.
pub fn write_slowly(mut to: std::fs::File, bytes: Vec<u8>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut rest = &bytes[..];
        let mut piece = 1;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(piece.min(rest.len()));
            to.write_all(now).unwrap();
            rest = later;
            piece = piece * 7 % 100_003 + 1;
        }
    })
}

pub struct Tool {
    pub page: Arc<ReaderPage>,
    bell: Bell,
    slots: u32,
}

pub fn tool() -> Tool {
    let (ringer, bell) = doorbell().unwrap();
    Tool { page: Arc::new(ReaderPage::create(ringer).unwrap()), bell, slots: 0 }
}

impl Tool {
    fn slot(&mut self) -> u32 {
        let slot = self.page.take_slot().unwrap();
        self.slots = self.slots.max(slot + 1);
        slot
    }

    fn reader(&self, attached: Attached, start: Start) -> Reader {
        // SAFETY: the stream is this test's, which moves and detaches readers only when they are done.
        unsafe { Reader::new(attached, Arc::clone(&self.page), start) }.unwrap()
    }

    /// Attaches to a stream that is not captured yet.
    pub fn attach_first(&mut self, stream: &mut Stream, may_block: bool) -> Reader {
        let slot = self.slot();
        let attached = stream.attach(&self.page, slot, Start::Oldest, may_block).unwrap();
        self.reader(attached, Start::Oldest)
    }

    pub fn attach(&mut self, capture: &Capture, id: SourceId, may_block: bool) -> Option<Reader> {
        let slot = self.slot();
        let page = &self.page;
        let attached = capture.with_streams(|streams| {
            Some(streams.get_mut(id)?.attach(page, slot, Start::Oldest, may_block).unwrap())
        });
        Some(self.reader(attached.unwrap()?, Start::Oldest))
    }

    /// Sleeps until there is news.
    fn sleep(&self) {
        if self.page.arm(self.slots) {
            let mut ready = [PollFd::new(self.bell.as_fd(), PollFlags::POLLIN)];
            let patience = PollTimeout::try_from(PATIENCE).unwrap();
            assert_eq!(poll(&mut ready, patience), Ok(1), "nobody rang");
        }
        self.page.disarm();
        self.bell.silence();
        self.page.take_ready(self.slots, |_| ());
    }

    /// Reads what there is until the end; with the gaps. Checks that every byte is accounted for.
    pub fn read_to_end(
        &mut self,
        capture: &Capture,
        id: SourceId,
        reader: &mut Reader,
    ) -> (Vec<u8>, Vec<Gap>) {
        self.read_in_bites(capture, id, reader, usize::MAX)
    }

    /// The same, with room made for so many bytes at a time.
    pub fn read_in_bites(
        &mut self,
        capture: &Capture,
        id: SourceId,
        reader: &mut Reader,
        bite: usize,
    ) -> (Vec<u8>, Vec<Gap>) {
        let (mut bytes, mut gaps) = (Vec::new(), Vec::new());
        loop {
            match reader.peek() {
                Peek::Bytes => {
                    let here = reader.bytes();
                    let n = here.len().min(bite);
                    bytes.extend_from_slice(&here[..n]);
                    reader.consume(n);
                }
                Peek::Gap(gap) => gaps.push(gap),
                Peek::Empty => self.sleep(),
                Peek::Sealed => {
                    let (page, old, new) = (&self.page, reader.slot(), self.page.take_slot().unwrap());
                    self.slots = self.slots.max(new + 1);
                    let follow = |streams: &mut iof_capture::Streams<'_>| {
                        streams.get_mut(id).unwrap().follow(page, old, new).unwrap()
                    };
                    let attached = capture.with_streams(follow).unwrap();
                    // SAFETY: the stream is this test's, which moves and detaches readers only when they are
                    // done.
                    unsafe { reader.follow(attached) }.unwrap();
                }
                Peek::Ended => break,
                Peek::Gone => panic!("nobody said that the writer is gone"),
            }
        }
        let lost: u64 = gaps.iter().map(|gap| gap.lost).sum();
        assert_eq!(lost, reader.lost());
        assert_eq!(bytes.len() as u64, reader.delivered());
        assert_eq!(reader.delivered() + reader.lost(), reader.produced());
        (bytes, gaps)
    }
}

/// Waits until `ready` says yes of the stream `id`.
pub fn wait_until(capture: &Capture, id: SourceId, ready: impl Fn(iof_shm_ring::StreamStats) -> bool + Sync) {
    let begun = std::time::Instant::now();
    while !capture.with_streams(|streams| ready(streams.get_mut(id).unwrap().stats())).unwrap() {
        assert!(begun.elapsed() < PATIENCE, "it never came");
        std::thread::yield_now();
    }
}
