//! A capture with a queue of its events, and a tool that reads its streams.

use std::collections::HashMap;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use iof_capture::{
    BackendKind, Capture, Child, Command, Event, Gating, NewProcess, NewSource, ProcessId, SourceBytes,
    SourceId, StreamAnswer, StreamRequest, StreamStep,
};
use iof_shm_ring::{
    Attached, Bell, CacheBudget, Gap, Growth, Peek, Policy, Reader, ReaderId, ReaderPage, Start, Stream,
    StreamConfig, doorbell,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{TIMEOUT, wait_for};

/// The end of a source, as the capture reported it.
#[derive(Debug)]
pub struct Completion {
    pub produced: u64,
    pub dropped: u64,
    /// The capture closed the pipe before end of file.
    pub closed: bool,
    pub error: Option<std::io::Error>,
}

/// A capture and its events, without the last one, [`Event::Ended`].
pub struct CaptureRig {
    pub capture: Capture,
    pub events: Receiver<Event>,
}

/// Starts a capture on the best available backend.
pub fn rig() -> CaptureRig {
    let (sender, events) = channel();
    let capture = Capture::start(move |event| forward(&sender, event)).unwrap();
    CaptureRig { capture, events }
}

/// Starts a capture on `backend`.
pub fn rig_on(backend: BackendKind) -> CaptureRig {
    let (sender, events) = channel();
    let capture = Capture::start_on(backend, move |event| forward(&sender, event)).unwrap();
    CaptureRig { capture, events }
}

fn forward(sender: &Sender<Event>, event: Event) {
    if !matches!(event, Event::Ended { .. }) {
        let _ = sender.send(event);
    }
}

/// Returns the command that adds a source.
pub fn add(id: SourceId, pipe: OwnedFd, stream: Stream) -> Command {
    let sources = vec![NewSource { id, pipe, stream, first: None }];
    Command::Add(NewProcess { sources, ..NewProcess::default() })
}

/// Returns the command that watches a process.
pub fn watch(id: ProcessId, child: Child) -> Command {
    Command::Add(NewProcess { process: Some((id, child)), ..NewProcess::default() })
}

/// Returns the command that adds a source without a pipe.
pub fn open(source: SourceId, stream: Stream) -> Command {
    Command::Open { source, stream: Box::new(stream), first: None }
}

/// Returns the command that delivers bytes to a source.
pub fn deliver(source: SourceId, delivery: impl Into<SourceBytes>) -> Command {
    Command::Deliver { source, delivery: delivery.into() }
}

/// Performs a step that attaches or moves a reader.
fn join(capture: &Capture, step: StreamStep) -> Option<Attached> {
    let mut answers = capture.with_streams(|streams| streams.perform(vec![step])).unwrap();
    let Some(StreamAnswer::Joined(joined)) = answers.pop() else { panic!("no answer") };
    joined.map(|joined| joined.attached)
}

/// Waits for the next event.
pub fn next(events: &Receiver<Event>) -> Event {
    loop {
        let event = events.recv_timeout(TIMEOUT).expect("an event");
        // Only the core needs this event.
        if !matches!(event, Event::Moved { .. }) {
            return event;
        }
    }
}

/// Waits until `sources` are complete and `processes` have exited.
pub fn wait_for_ends(
    events: &Receiver<Event>,
    sources: usize,
    processes: usize,
) -> (HashMap<SourceId, Completion>, HashMap<ProcessId, ExitStatus>) {
    let (mut ends, mut exits) = (HashMap::new(), HashMap::new());
    while ends.len() < sources || exits.len() < processes {
        match next(events) {
            Event::Complete { source, produced, dropped, end, .. } => {
                let (closed, error) = match end {
                    iof_capture::End::EndOfFile => (false, None),
                    iof_capture::End::Closed => (true, None),
                    iof_capture::End::Error(error) => (false, Some(error)),
                };
                let before = ends.insert(source, Completion { produced, dropped, closed, error });
                assert!(before.is_none(), "{source:?} completed twice");
            }
            Event::Exited { process, status, .. } => {
                assert!(exits.insert(process, status.unwrap()).is_none(), "{process:?} exited twice");
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    (ends, exits)
}

/// Waits for the next completion, which must be that of source `id`.
pub fn wait_end(events: &Receiver<Event>, id: SourceId) -> Completion {
    let (mut ends, _) = wait_for_ends(events, 1, 0);
    ends.remove(&id).expect("source `id` must complete first")
}

/// Returns a stream without memory, as the streams of ranks are.
pub fn stream(capacity: u64, policy: Policy) -> Stream {
    let growth = Growth { first: capacity, budget: Arc::new(CacheBudget::new(u64::MAX)) };
    Stream::create_growing(StreamConfig { capacity, policy }, &growth, "test").unwrap()
}

/// Creates a pipe whose writer uses packet mode: each read returns one write, and the kernel
/// discards the bytes for which the read has no room.
pub fn packet_pipe() -> (OwnedFd, std::fs::File) {
    let flags = nix::fcntl::OFlag::O_CLOEXEC | nix::fcntl::OFlag::O_DIRECT;
    let (read, write) = nix::unistd::pipe2(flags).unwrap();
    (read, write.into())
}

/// Waits until no process has the read end open. (A process that another test is starting holds it
/// for a moment.)
pub fn wait_closed(write: &mut std::fs::File) {
    wait_for_error_or_end(write);
    assert_eq!(write.write_all(b"x").unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
}

/// Waits until no process has the write end open, for the same reason.
pub fn wait_for_end_of_file(read: &OwnedFd) {
    wait_for_error_or_end(read);
}

fn wait_for_error_or_end(pipe: &impl AsFd) {
    let timeout = PollTimeout::try_from(TIMEOUT).unwrap();
    assert_eq!(poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::empty())], timeout), Ok(1));
}

/// Waits until the capture thread has submitted the requests for all earlier commands. No source
/// has the id 99.
pub fn wait_for_turn(rig: &CaptureRig) {
    // The first event ends a turn, and the second belongs to a later turn.
    for _ in 0..2 {
        rig.capture.send([deliver(SourceId(99), Vec::new())]).unwrap();
        let event = next(&rig.events);
        assert!(matches!(event, Event::Delivered { source: SourceId(99), .. }), "{event:?}");
    }
}

/// Writes `bytes` on a thread, in pieces of varying sizes, and closes the pipe.
pub fn write_in_pieces(mut pipe: std::fs::File, bytes: Vec<u8>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut rest = &bytes[..];
        let mut size = 1;
        while !rest.is_empty() {
            let (piece, later) = rest.split_at(size.min(rest.len()));
            pipe.write_all(piece).unwrap();
            rest = later;
            size = size * 7 % 100_003 + 1;
        }
    })
}

/// A tool in this process: a reader page and its doorbell.
pub struct TestTool {
    pub page: Arc<ReaderPage>,
    bell: Bell,
    slots: u32,
}

pub fn tool() -> TestTool {
    let (ringer, bell) = doorbell().unwrap();
    TestTool { page: Arc::new(ReaderPage::create(ringer).unwrap()), bell, slots: 0 }
}

impl TestTool {
    fn take_slot(&mut self) -> ReaderId {
        let reader_id = self.page.take_slot().unwrap();
        self.slots = self.slots.max(reader_id.slots());
        reader_id
    }

    fn reader(&self, attached: Attached, start: Start) -> Reader {
        // SAFETY: the stream belongs to the test, which neither moves nor detaches a reader in use.
        unsafe { Reader::new(attached, Arc::clone(&self.page), start) }.unwrap()
    }

    /// Attaches to a stream before it is added to a capture.
    pub fn attach_first(&mut self, stream: &mut Stream, may_block: bool) -> Reader {
        let reader_id = self.take_slot();
        let attached = stream.attach(&self.page, reader_id, Start::Oldest, may_block).unwrap();
        self.reader(attached, Start::Oldest)
    }

    /// Attaches to the stream of source `id`. Returns `None` if there is no such source.
    pub fn attach(&mut self, capture: &Capture, id: SourceId, may_block: bool) -> Option<Reader> {
        let (reader, page) = (self.take_slot(), Arc::clone(&self.page));
        let gating = if may_block { Gating::Block } else { Gating::Keep };
        let (start, group, remote) = (Start::Oldest, 0, false);
        let step = StreamStep::Attach { source: id, page, reader, start, gating, group, remote };
        Some(self.reader(join(capture, step)?, Start::Oldest))
    }

    /// Returns the command that detaches a reader from source `id`.
    pub fn detach(&self, id: SourceId, reader: ReaderId) -> Command {
        let steps = vec![StreamStep::Detach { source: id, page: Arc::clone(&self.page), reader }];
        Command::Request(StreamRequest { id: None, steps })
    }

    /// Sleeps until a ready bit is set.
    fn sleep(&self) {
        if self.page.arm(self.slots) {
            let mut polled = [PollFd::new(self.bell.as_fd(), PollFlags::POLLIN)];
            let timeout = PollTimeout::try_from(TIMEOUT).unwrap();
            assert_eq!(poll(&mut polled, timeout), Ok(1), "the doorbell did not ring");
        }
        self.page.disarm();
        self.bell.silence();
        self.page.take_ready(self.slots, |_| ());
    }

    /// Reads to the end of the stream. Returns the bytes and the gaps, after checking that they
    /// make up every byte that was produced.
    pub fn read_to_end(
        &mut self,
        capture: &Capture,
        id: SourceId,
        reader: &mut Reader,
    ) -> (Vec<u8>, Vec<Gap>) {
        self.read_in_pieces(capture, id, reader, usize::MAX)
    }

    /// Reads to the end of the stream like [`TestTool::read_to_end`], and consumes at most
    /// `max_piece` bytes at a time.
    pub fn read_in_pieces(
        &mut self,
        capture: &Capture,
        id: SourceId,
        reader: &mut Reader,
        max_piece: usize,
    ) -> (Vec<u8>, Vec<Gap>) {
        let (mut bytes, mut gaps) = (Vec::new(), Vec::new());
        loop {
            match reader.peek() {
                Peek::Bytes => {
                    let available = reader.bytes();
                    let n = available.len().min(max_piece);
                    bytes.extend_from_slice(&available[..n]);
                    reader.consume(n);
                }
                Peek::Gap(gap) => gaps.push(gap),
                Peek::Empty => self.sleep(),
                Peek::Sealed => {
                    let (new, page) = (self.take_slot(), Arc::clone(&self.page));
                    let step = StreamStep::Follow { source: id, page, reader: reader.id(), new };
                    let attached = join(capture, step).unwrap();
                    // SAFETY: the stream belongs to the test, which neither moves nor detaches a
                    // reader in use.
                    unsafe { reader.follow(attached) }.unwrap();
                }
                Peek::Ended | Peek::Broken { .. } => break,
                Peek::Gone => panic!("the writer is alive"),
            }
        }
        let lost: u64 = gaps.iter().map(|gap| gap.lost).sum();
        assert_eq!(lost, reader.lost());
        assert_eq!(bytes.len() as u64, reader.delivered());
        assert_eq!(reader.delivered() + reader.lost(), reader.produced());
        (bytes, gaps)
    }
}

/// Waits until `ready` returns `true` for the counters of source `id`.
pub fn wait_until(capture: &Capture, id: SourceId, ready: impl Fn(iof_shm_ring::StreamStats) -> bool + Sync) {
    let is_ready = || capture.with_streams(|streams| ready(streams.get(id).unwrap().stats())).unwrap();
    wait_for("the counters of a stream", || is_ready().then_some(()));
}
