//! A scripted engine, which sends exactly what a test wants and when.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use iof_proto::{
    Answer, Channel, Channels, Decoder, EffectiveOptions, FromTool, Granted, Nspace, PROTOCOL_VERSION, Proc,
    Rank, Status, ToTool, encode, socket,
};
use iof_shm_ring::{Policy, ReaderPage, Start, Stream, StreamConfig, doorbell};
use iof_tool::{Pull, Tool};

use crate::TIMEOUT;

/// The engine's end of a connection.
pub struct Engine {
    pub socket: UnixStream,
    /// The reader page. It holds the ringing end of the doorbell, which must stay open.
    page: Arc<ReaderPage>,
}

impl Engine {
    /// Sends `messages` so that they arrive together.
    pub fn send(&self, messages: &[ToTool]) {
        let bytes: Vec<u8> = messages.iter().flat_map(|message| encode(message).unwrap()).collect();
        assert_eq!(socket::send(&self.socket, &bytes, &[]).unwrap(), bytes.len());
    }

    /// Announces a stream of `rank` to handler 1. It must be kept until the tool has read it.
    pub fn announce(&self, rank: u32, channel: Channel, mut stream: Stream) -> Stream {
        let slot = self.page.take_slot().unwrap();
        let attached = stream.attach(&self.page, slot, Start::Oldest, false).unwrap();
        let ring = ToTool::Ring {
            handler: 1,
            source: Proc::new(nspace(), Rank(rank)),
            channel,
            logged: false,
            run: 1,
            slot: attached.id.into(),
            follows: None,
            start: attached.start,
            dropped: attached.dropped,
            non_gating: attached.non_gating,
            options: EffectiveOptions::default(),
        };
        let frame = encode(&ring).unwrap();
        let sent = socket::send(&self.socket, &frame, &[attached.ring.as_fd().unwrap()]);
        assert_eq!(sent.unwrap(), frame.len());
        stream
    }

    /// Receives the next message of the tool; panics if more follows it.
    pub fn receive(&self) -> FromTool {
        let mut messages = self.arrived();
        let message = messages.pop().unwrap();
        assert!(messages.is_empty(), "{messages:?} before {message:?}");
        message
    }

    /// Blocks until messages of the tool arrive, and returns them; none if it has closed the
    /// connection.
    fn arrived(&self) -> Vec<FromTool> {
        let mut bytes = [0; 16 << 10];
        let received = socket::receive(&self.socket, &mut bytes, &mut VecDeque::new(), false, true);
        let mut unread = &bytes[..received.unwrap()];
        let mut decoder = Decoder::new();
        std::iter::from_fn(|| decoder.decode(&mut unread).unwrap()).collect()
    }

    /// Receives messages until one is not about a drained stream; `None` if the tool closes the
    /// connection before. Panics if more follows that message.
    pub fn next_request(&self) -> Option<FromTool> {
        loop {
            let messages = self.arrived();
            if messages.is_empty() {
                return None;
            }
            let is_request = |message: &FromTool| !matches!(message, FromTool::Drained { .. });
            let mut requests: Vec<FromTool> = messages.into_iter().filter(is_request).collect();
            if let Some(request) = requests.pop() {
                assert!(requests.is_empty(), "{requests:?} before {request:?}");
                return Some(request);
            }
        }
    }

    /// Receives a barrier. Returns its number.
    pub fn receive_barrier(&self) -> u32 {
        match self.next_request() {
            Some(FromTool::Barrier { request }) => request,
            other => panic!("{other:?}"),
        }
    }

    pub fn answer_barrier(&self, request: u32) {
        self.send(&[ToTool::Answer {
            request,
            result: Ok(Answer { status: Status::SUCCESS, found: Vec::new() }),
        }]);
    }
}

/// Returns an engine, and a tool that is connected to it.
pub fn connect() -> (Engine, Tool) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(TIMEOUT)).unwrap();
    let (ringer, bell) = doorbell().unwrap();
    let page = ReaderPage::create(ringer).unwrap();
    let welcome = ToTool::Welcome { version: PROTOCOL_VERSION, engine_pid: 1, may_block: false };
    let frame = encode(&welcome).unwrap();
    socket::send(&ours, &frame, &[page.as_fd().unwrap(), bell.as_fd()]).unwrap();
    // SAFETY: the socket belongs to nothing else.
    let tool = unsafe { Tool::over(theirs, "test") }.unwrap();
    let engine = Engine { socket: ours, page: Arc::new(page) };
    engine.receive();
    (engine, tool)
}

pub fn nspace() -> Nspace {
    Nspace::new("job").unwrap()
}

/// Registers for `channels` of the job as handler 1; `with` arrives together with the answer.
pub fn pull(engine: &Engine, tool: &mut Tool, channels: Channels, with: &[ToTool]) {
    let result = Ok(Granted { handler: 1, ignored: Vec::new() });
    engine.send(&[&[ToTool::Pulled { request: 1, result }], with].concat());
    let all = Proc::all(nspace());
    assert_eq!(tool.pull(&Pull::new(vec![all], channels)).unwrap().handler, 1);
    engine.receive();
}

/// Returns a stream with these bytes, each read at its time.
pub fn stream(reads: &[(&str, u64)]) -> Stream {
    let config = StreamConfig { capacity: 4096, policy: Policy::DropNewest };
    let mut stream = Stream::create(config, "stream").unwrap();
    for (bytes, time) in reads {
        assert_eq!(stream.push(bytes.as_bytes(), *time), bytes.len());
    }
    stream
}
