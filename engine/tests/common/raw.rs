//! A tool that speaks the protocol itself.

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use iof_engine::Engine;
use iof_proto::message::query;
use iof_proto::{
    Channels, Decoder, Failure, FromTool, Granted, Info, PROTOCOL_VERSION, Proc, Query, ToTool, encode,
    socket,
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
        self.send(&FromTool::Pull { request: 1, procs, channels, backlog: true, directives });
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

    /// Waits until the engine has heard all that was sent.
    pub fn until_heard(&mut self) {
        self.send(&FromTool::Query { request: 2, queries: vec![Query::new([query::IOF_STATS])] });
        while !matches!(self.receive(), ToTool::Answer { .. }) {}
    }

    pub fn next_pulled(&mut self) -> Result<Granted, Failure> {
        while self.pulled.is_empty() {
            self.until_heard();
        }
        self.pulled.pop_front().unwrap()
    }
}
