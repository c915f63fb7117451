//! A tool that reads rings as another process would.

use std::os::fd::AsFd;
use std::sync::Arc;

use iof_shm_ring::{
    Attached, Bell, Peek, Policy, Reader, ReaderId, ReaderPage, Ring, Start, Stream, StreamConfig, doorbell,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

pub const CAPACITY: u64 = 64 * 1024;

pub struct Tool {
    pub page: Arc<ReaderPage>,
    pub bell: Bell,
}

impl Tool {
    pub fn new() -> Tool {
        let (ringer, bell) = doorbell().unwrap();
        Tool { page: Arc::new(ReaderPage::create(ringer).unwrap()), bell }
    }

    pub fn attach(&self, stream: &mut Stream, start: Start, may_block: bool) -> Reader {
        let id = self.page.take_slot().unwrap();
        if !may_block {
            stream.grow();
        }
        stream.allocate().unwrap();
        let attached = stream.attach(&self.page, id, start, may_block).unwrap();
        self.open(attached, start)
    }

    pub fn attach_non_gating(&self, stream: &mut Stream, start: Start) -> Reader {
        let id = self.page.take_slot().unwrap();
        stream.grow();
        stream.allocate().unwrap();
        let attached = stream.attach_non_gating(&self.page, id, start).unwrap();
        self.open(attached, start)
    }

    pub fn attach_holder(&self, stream: &mut Stream) -> ReaderId {
        let id = self.page.take_slot().unwrap();
        stream.attach_holder(&self.page, id, Start::Oldest).unwrap();
        id
    }

    fn open(&self, attached: Attached, start: Start) -> Reader {
        // SAFETY: this test owns the stream, and moves and detaches readers only when they are
        // done.
        unsafe { Reader::new(mapped(attached), Arc::clone(&self.page), start) }.unwrap()
    }

    pub fn follow(&self, stream: &mut Stream, reader: &mut Reader) {
        let id = self.page.take_slot().unwrap();
        let attached = stream.follow(&self.page, reader.id(), id).unwrap();
        self.page.return_slot(reader.id());
        // SAFETY: this test owns the stream, and moves and detaches readers only when they are
        // done.
        unsafe { reader.follow(mapped(attached)) }.unwrap();
    }

    pub fn rings(&self) -> bool {
        poll(&mut [PollFd::new(self.bell.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() > 0
    }

    pub fn ready(&self) -> Vec<ReaderId> {
        let mut ready = Vec::new();
        self.page.take_ready(64, |id| ready.push(id));
        ready
    }
}

/// Maps the ring again, as a reader in another process does.
pub fn mapped(given: Attached) -> Attached {
    let file = given.ring.as_fd().unwrap().try_clone_to_owned().unwrap();
    Attached { ring: Arc::new(Ring::open(file).unwrap()), ..given }
}

pub fn stream(policy: Policy) -> Stream {
    Stream::create(StreamConfig { capacity: CAPACITY, policy }, "test").unwrap()
}

pub fn bytes(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i % 251) as u8).collect()
}

pub fn read(reader: &mut Reader) -> Vec<u8> {
    let mut all = Vec::new();
    while reader.peek() == Peek::Bytes {
        all.extend_from_slice(reader.bytes());
        reader.consume(usize::MAX);
    }
    all
}

/// Reads to the end of the newest generation, and returns the bytes.
pub fn catch_up(tool: &Tool, stream: &mut Stream, reader: &mut Reader) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        match reader.peek() {
            Peek::Bytes => {
                all.extend_from_slice(reader.bytes());
                reader.consume(usize::MAX);
            }
            Peek::Gap(_) => {}
            Peek::Sealed => tool.follow(stream, reader),
            Peek::Empty | Peek::Ended | Peek::Broken { .. } | Peek::Gone => return all,
        }
    }
}
