//! The relay between a tool and its server, which shows how much the tool has received.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::linux::net::TcpStreamExt;

use nix::poll::{PollFd, PollFlags};

use crate::tools::filter::{Answers, Filter, HeldRequest};

/// The size of each buffer.
const BUFFER_BYTES: usize = 64 << 10;
/// The largest number of times that one call reads each socket.
const READS_PER_CALL: usize = 8;

/// The flag by which poll(2) reports that the other end sends no more.
const END_OF_INPUT: PollFlags = PollFlags::from_bits_retain(libc::POLLRDHUP);

/// Two connected sockets, and the bytes between them. Requests that nothing carries out are changed
/// into ones that libpmix refuses. libpmix queues without a limit what a tool
/// does not receive. The relay reads the server only when the tool has taken what was read before,
/// so that it knows when nothing waits any more.
#[derive(Debug)]
pub struct Relay {
    tool: TcpStream,
    server: TcpStream,
    to_tool: Buffer,
    to_server: Buffer,
    filter: Filter,
    answers: Answers,
    /// The number of bytes that the tool's socket has taken.
    carried: u64,
    /// Set if the last read of the server has found nothing.
    is_drained: bool,
    /// Set if poll(2) has reported that a socket is closed.
    is_closed: bool,
}

/// The state of a relay after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// Both sockets are open.
    Open,
    /// One of them is closed.
    Ended,
}

impl Relay {
    /// Connects to the server of a tool.
    ///
    /// # Errors
    /// The error of connect(2) or of fcntl(2).
    pub fn connect(tool: TcpStream, server: SocketAddr) -> io::Result<Relay> {
        let server = TcpStream::connect(server)?;
        for socket in [&tool, &server] {
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
        }
        Ok(Relay {
            tool,
            server,
            to_tool: Buffer::new(),
            to_server: Buffer::new(),
            filter: Filter::default(),
            answers: Answers::default(),
            carried: 0,
            is_drained: false,
            is_closed: false,
        })
    }

    /// Returns the address of the relay's socket that is connected to the server.
    ///
    /// # Errors
    /// The error of getsockname(2).
    pub fn server_side(&self) -> io::Result<SocketAddr> {
        self.server.local_addr()
    }

    /// Returns what to wait for before the next call of [`Relay::carry`], with the same `requests`.
    /// The results are to be passed to [`Relay::polled`].
    pub fn poll_fds(&self, requests: bool) -> [PollFd<'_>; 2] {
        let flags = |read: bool, write: bool| {
            let flag = |flag, is_wanted| if is_wanted { flag } else { PollFlags::empty() };
            flag(PollFlags::POLLIN, read) | flag(PollFlags::POLLOUT, write)
        };
        let tool = flags(requests && self.to_server.is_empty(), !self.to_tool.is_empty());
        // Otherwise a read finds the end.
        let end = if requests { PollFlags::empty() } else { END_OF_INPUT };
        [
            PollFd::new(self.tool.as_fd(), tool | end),
            PollFd::new(self.server.as_fd(), flags(self.to_tool.is_empty(), self.to_server.has_passed())),
        ]
    }

    /// Takes note of what poll(2) has reported for the sockets. `None` stands for POLLRDHUP, which
    /// [`PollFd::revents`] does not know.
    pub fn polled(&mut self, results: [Option<PollFlags>; 2]) {
        let is_end = |result: PollFlags| result.intersects(PollFlags::POLLERR | PollFlags::POLLHUP);
        self.is_closed |= results.into_iter().any(|result| result.is_none_or(is_end));
    }

    /// Carries bytes in both directions, those of the tool only if `requests`. Does not block.
    pub fn carry(&mut self, requests: bool) -> Carried {
        match self.carry_some(requests) {
            Ok(()) if !self.is_closed => Carried::Open,
            _ => Carried::Ended,
        }
    }

    /// Returns the number of bytes that the tool's socket has taken so far.
    pub fn carried(&self) -> u64 {
        self.carried
    }

    /// Returns whether the tool's socket has taken all that the server has sent so far.
    pub fn is_clear(&self) -> bool {
        self.is_drained && self.to_tool.is_empty()
    }

    /// Returns the request of the tool that waits, as those after it do, for [`Relay::release`].
    pub fn held(&self) -> Option<HeldRequest> {
        self.filter.held()
    }

    /// Lets the request pass that waits. The status of its answer becomes a success, if
    /// `is_success`.
    pub fn release(&mut self, is_success: bool) {
        let tag = self.filter.release();
        if is_success {
            self.answers.expect_success(tag);
        }
        self.pass_requests();
    }

    /// Lets requests pass that were read.
    fn pass_requests(&mut self) {
        self.to_server.pass(&mut self.filter);
        for (tag, status) in self.filter.take_answers() {
            self.answers.expect(tag, status);
        }
    }

    fn carry_some(&mut self, requests: bool) -> io::Result<()> {
        for _ in 0..READS_PER_CALL {
            let sent = self.to_tool.write(&mut self.tool)?;
            self.carried = self.carried.saturating_add(sent);
            if !self.to_tool.is_empty() {
                break;
            }
            self.is_drained = !self.to_tool.read(&mut self.server)?;
            acknowledge(&self.server)?;
            if self.is_drained {
                break;
            }
            if self.filter.has_requests() {
                let end = self.to_tool.end;
                self.answers.pass(self.to_tool.bytes.get_mut(..end).unwrap_or_default());
            }
        }
        for _ in 0..READS_PER_CALL {
            self.to_server.write(&mut self.server)?;
            if !self.to_server.is_empty() || !requests || !self.to_server.read(&mut self.tool)? {
                break;
            }
            self.to_server.passed = 0;
            self.pass_requests();
            acknowledge(&self.tool)?;
        }
        Ok(())
    }
}

/// Acknowledges what was read at once. libpmix writes the head of a message and its rest one after
/// the other, and the kernel holds the rest back until the head is acknowledged.
fn acknowledge(socket: &TcpStream) -> io::Result<()> {
    socket.set_quickack(true)
}

/// Bytes that were read and not written yet.
#[derive(Debug)]
struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    /// The end of what may be written.
    passed: usize,
    end: usize,
}

impl Buffer {
    fn new() -> Buffer {
        Buffer { bytes: vec![0; BUFFER_BYTES].into(), start: 0, passed: 0, end: 0 }
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Returns whether there is something to write.
    fn has_passed(&self) -> bool {
        self.start < self.passed
    }

    /// Lets pass what was read, as far as the filter does.
    fn pass(&mut self, filter: &mut Filter) {
        let rest = self.bytes.get_mut(self.passed..self.end).unwrap_or_default();
        self.passed = self.passed.saturating_add(filter.pass(rest));
    }

    /// Reads into the buffer, which is empty. Returns whether there was something to read.
    fn read(&mut self, source: &mut impl Read) -> io::Result<bool> {
        match source.read(&mut self.bytes) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                (self.start, self.passed, self.end) = (0, count, count);
                Ok(true)
            }
            Err(error) if is_passing(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes from the buffer. Returns the number of bytes.
    fn write(&mut self, sink: &mut impl Write) -> io::Result<u64> {
        let mut sent = 0u64;
        while let Some(rest) = self.bytes.get(self.start..self.passed).filter(|rest| !rest.is_empty()) {
            match sink.write(rest) {
                Ok(count) => {
                    self.start = self.start.saturating_add(count).min(self.end);
                    sent = sent.saturating_add(count as u64);
                }
                Err(error) if is_passing(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::net::TcpListener;

    use nix::poll::{PollTimeout, poll};

    use super::*;

    /// Returns a relay, the other end of the tool's socket, and that of the server's.
    fn relay() -> (Relay, TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let tool = TcpStream::connect(address).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let relay = Relay::connect(accepted, address).unwrap();
        (relay, tool, listener.accept().unwrap().0)
    }

    fn carry_until(relay: &mut Relay, done: impl Fn(&Relay) -> bool) {
        while !done(relay) {
            assert_eq!(relay.carry(true), Carried::Open);
        }
    }

    #[test]
    fn bytes_pass_in_both_directions() {
        let (mut relay, mut tool, mut server) = relay();
        tool.write_all(b"request").unwrap();
        server.write_all(b"answer").unwrap();
        carry_until(&mut relay, |relay| relay.carried() == 6 && relay.to_server.end == 7);
        let (mut request, mut answer) = ([0; 7], [0; 6]);
        server.read_exact(&mut request).unwrap();
        tool.read_exact(&mut answer).unwrap();
        assert_eq!((&request, &answer), (b"request", b"answer"));
    }

    #[test]
    fn a_tool_that_does_not_read_stops_the_reading_of_its_server() {
        let (mut relay, mut tool, mut server) = relay();
        server.set_nonblocking(true).unwrap();
        let (chunk, mut written) = ([7; 1 << 16], 0);
        // The tool's socket is full when many calls carry nothing.
        let mut quiet = 0;
        while quiet < 1000 {
            let before = relay.carried();
            written += server.write(&chunk).unwrap_or(0);
            relay.carry(true);
            quiet = if relay.carried() == before { quiet + 1 } else { 0 };
        }
        assert!(!relay.is_clear());
        assert!(usize::try_from(relay.carried()).unwrap() < written);
        let reader = std::thread::spawn(move || {
            let mut read = 0;
            let mut bytes = [0; 1 << 16];
            while read < written {
                read += tool.read(&mut bytes).unwrap();
            }
            // Its end would end the relay.
            tool
        });
        carry_until(&mut relay, |relay| relay.is_clear() && relay.carried() == written as u64);
        reader.join().unwrap();
    }

    #[test]
    fn a_relay_that_reads_no_requests_ends_with_the_tool() {
        for resets in [false, true] {
            let (mut relay, mut tool, mut server) = relay();
            if resets {
                // A socket that is closed with unread bytes resets its connection.
                server.write_all(b"answer").unwrap();
                carry_until(&mut relay, |relay| relay.carried() == 6);
                tool.peek(&mut [0]).unwrap();
            }
            assert_eq!(relay.carry(false), Carried::Open);
            // A request that is not read.
            tool.write_all(b"request").unwrap();
            drop(tool);
            let mut fds = relay.poll_fds(false);
            poll(&mut fds, PollTimeout::NONE).unwrap();
            let results = fds.map(|fd| fd.revents());
            relay.polled(results);
            assert_eq!(relay.carry(false), Carried::Ended, "resets: {resets}");
        }
    }

    #[test]
    fn a_relay_ends_with_either_socket() {
        let (mut relay, tool, _server) = relay();
        drop(tool);
        while relay.carry(true) == Carried::Open {}
        let (mut relay, _tool, server) = self::relay();
        drop(server);
        while relay.carry(true) == Carried::Open {}
    }
}
