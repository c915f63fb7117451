//! A tool that speaks the protocol itself.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use iof_engine::Engine;
use iof_proto::query::key;
use iof_proto::{
    Channels, Decoder, Failure, FromTool, Granted, Info, PROTOCOL_VERSION, Proc, PushGranted, Query, ToTool,
    encode, socket,
};

/// A tool that asks and does not wait.
pub struct Raw {
    socket: UnixStream,
    decoder: Decoder<ToTool>,
    input: Vec<u8>,
    fds: VecDeque<OwnedFd>,
    pub pulled: VecDeque<Result<Granted, Failure>>,
    /// That a registration gets no further source, that a job is over.
    pub ends: Vec<ToTool>,
}

impl Raw {
    pub fn connect(engine: &Engine) -> Raw {
        let socket = UnixStream::connect(engine.socket().unwrap()).unwrap();
        let mut raw = Raw {
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

    pub fn pull(&mut self, procs: Vec<Proc>, channels: Channels) {
        self.pull_with(procs, channels, Vec::new());
    }

    pub fn pull_with(&mut self, procs: Vec<Proc>, channels: Channels, directives: Vec<Info>) {
        self.send(&FromTool::Pull {
            request: 1,
            procs,
            channels,
            backlog: true,
            persistent: false,
            directives,
        });
    }

    /// Begins a push; gives the file of its inlet, too.
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

    /// Says the same without reading any answer until the engine hears no more; gives how many
    /// bytes it heard.
    pub fn flood(&mut self, message: &FromTool) -> usize {
        let frame = encode(message).unwrap();
        self.socket.set_nonblocking(true).unwrap();
        let (mut heard, mut since) = (0, Instant::now());
        // Nothing for a while, though the engine serves others meanwhile.
        while since.elapsed() < Duration::from_millis(300) {
            match self.socket.write(&frame) {
                Ok(written) => {
                    heard += written;
                    since = Instant::now();
                    assert_eq!(written, frame.len(), "a frame is sent whole or not at all");
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
        self.socket.set_nonblocking(false).unwrap();
        heard
    }

    /// Waits until the engine has closed the connection, whatever it sends before.
    pub fn until_dismissed(&mut self) {
        self.socket.set_read_timeout(Some(super::PATIENCE)).unwrap();
        loop {
            match self.socket.read(&mut [0; 4096]) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
                Err(error) => panic!("the engine keeps the connection: {error}"),
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

    /// Returns the request that is answered next.
    pub fn next_answer(&mut self) -> u32 {
        loop {
            if let ToTool::Answer { request, .. } = self.receive() {
                return request;
            }
        }
    }

    /// Receives what has arrived, for its files alone.
    pub fn take_files(&mut self) {
        let receive =
            |fds: &mut VecDeque<OwnedFd>| socket::receive(&self.socket, &mut [0; 4096], fds, true, false);
        while receive(&mut self.fds).is_ok_and(|count| count > 0) {}
    }

    /// Takes the last descriptor that came.
    pub fn take_fd(&mut self) -> OwnedFd {
        self.fds.pop_back().unwrap()
    }

    /// Waits until the engine has heard all that was sent.
    pub fn until_heard(&mut self) {
        self.send(&FromTool::Query { request: 2, queries: vec![Query::new([key::IOF_STATS])] });
        while !matches!(self.receive(), ToTool::Answer { .. }) {}
    }

    pub fn next_pulled(&mut self) -> Result<Granted, Failure> {
        while self.pulled.is_empty() {
            self.until_heard();
        }
        self.pulled.pop_front().unwrap()
    }
}
