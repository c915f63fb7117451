//! A tool that implements the wire protocol directly, so that tests can break its rules.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use iof_engine::Engine;
use iof_proto::{
    Channels, Decoder, Failure, FromTool, Granted, Info, PROTOCOL_VERSION, Position, Proc, PushGranted,
    ToTool, encode, socket,
};

/// A tool that sends messages without waiting for answers.
pub struct RawTool {
    socket: UnixStream,
    decoder: Decoder<ToTool>,
    input: Vec<u8>,
    fds: VecDeque<OwnedFd>,
    pub pulled: VecDeque<Result<Granted, Failure>>,
    /// The received messages about ends of registrations and jobs.
    pub ends: Vec<ToTool>,
}

impl RawTool {
    pub fn connect(engine: &Engine) -> RawTool {
        let socket = UnixStream::connect(engine.socket().unwrap()).unwrap();
        let mut raw = RawTool {
            socket,
            decoder: Decoder::new(),
            input: Vec::new(),
            fds: VecDeque::new(),
            pulled: VecDeque::new(),
            ends: Vec::new(),
        };
        raw.send(&FromTool::Hello { version: PROTOCOL_VERSION, pid: 0, name: "raw".into() });
        raw
    }

    pub fn send(&mut self, message: &FromTool) {
        self.socket.write_all(&encode(message).unwrap()).unwrap();
    }

    /// Makes all of the engine's sends to the tool fail. The tool can still send.
    pub fn shut_receiving(&self) {
        self.socket.shutdown(Shutdown::Read).unwrap();
    }

    pub fn pull(&mut self, procs: Vec<Proc>, channels: Channels) {
        self.pull_with(procs, channels, Vec::new());
    }

    pub fn pull_with(&mut self, procs: Vec<Proc>, channels: Channels, directives: Vec<Info>) {
        self.send(&FromTool::Pull {
            request: 1,
            procs,
            channels,
            from: Position::Oldest,
            persistent: false,
            reports_ranks: false,
            directives,
        });
    }

    /// Begins a push. Returns the file of its inlet, too.
    pub fn begin_push(
        &mut self,
        targets: Vec<Proc>,
        directives: Vec<Info>,
    ) -> Result<(PushGranted, File), Failure> {
        self.send(&FromTool::Push { request: 3, targets, size: None, directives });
        loop {
            if let ToTool::PushBegun { result, .. } = self.receive() {
                return result.map(|granted| (granted, self.fds.pop_back().unwrap().into()));
            }
        }
    }

    pub fn fill(&mut self, push: u32, bytes: u64, over: bool) {
        self.send(&FromTool::Fill { push, bytes, last: over });
    }

    /// Sends `message` repeatedly without reading answers, until the engine stops reading. Returns
    /// how many bytes the engine has read.
    pub fn flood(&mut self, message: &FromTool) -> usize {
        let frame = encode(message).unwrap();
        self.socket.set_nonblocking(true).unwrap();
        let (mut sent, mut since) = (0, Instant::now());
        // The engine counts as stopped after 300 ms, because it also serves others meanwhile.
        while since.elapsed() < Duration::from_millis(300) {
            match self.socket.write(&frame) {
                Ok(written) => {
                    sent += written;
                    since = Instant::now();
                    assert_eq!(written, frame.len(), "a frame is sent completely or not at all");
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
        self.socket.set_nonblocking(false).unwrap();
        sent
    }

    /// Blocks until the engine has closed the connection. Earlier messages are discarded.
    pub fn wait_for_disconnect(&mut self) {
        self.socket.set_read_timeout(Some(crate::TIMEOUT)).unwrap();
        loop {
            match self.socket.read(&mut [0; 4096]) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
                // SIGCHLD interrupts a read with a time limit.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("the engine has not closed the connection: {error}"),
            }
        }
    }

    pub fn receive(&mut self) -> ToTool {
        loop {
            let mut bytes = self.input.as_slice();
            let message = self.decoder.decode(&mut bytes).unwrap();
            let used = self.input.len() - bytes.len();
            self.input.drain(..used);
            match message {
                Some(ToTool::Pulled { result, .. }) => self.pulled.push_back(result),
                Some(end @ (ToTool::Announced { .. } | ToTool::JobEnded { .. })) => self.ends.push(end),
                Some(other) => return other,
                None => {
                    let mut chunk = [0; 4096];
                    let count = socket::receive(&self.socket, &mut chunk, &mut self.fds, true, true).unwrap();
                    assert!(count > 0, "the engine has closed the connection");
                    self.input.extend_from_slice(&chunk[..count]);
                }
            }
        }
    }

    /// Returns the number of the next answered request.
    pub fn next_answer(&mut self) -> u32 {
        loop {
            if let ToTool::Answer { request, .. } = self.receive() {
                return request;
            }
        }
    }

    /// Receives what has arrived, only to keep its descriptors.
    pub fn receive_files(&mut self) {
        let receive =
            |fds: &mut VecDeque<OwnedFd>| socket::receive(&self.socket, &mut [0; 4096], fds, true, false);
        while receive(&mut self.fds).is_ok_and(|count| count > 0) {}
    }

    /// Returns the descriptor that arrived last.
    pub fn take_last_fd(&mut self) -> OwnedFd {
        self.fds.pop_back().unwrap()
    }

    /// Blocks until the engine has processed all messages sent so far.
    pub fn sync(&mut self) {
        self.send(&FromTool::Barrier { request: 2 });
        while !matches!(self.receive(), ToTool::Answer { .. }) {}
    }

    pub fn next_pulled(&mut self) -> Result<Granted, Failure> {
        while self.pulled.is_empty() {
            self.sync();
        }
        self.pulled.pop_front().unwrap()
    }
}
