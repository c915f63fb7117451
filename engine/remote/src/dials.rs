//! The front end's listener for connections of its agents (`--carrier tcp`).
//!
//! A connection goes to the driver once its agent has proved to have the token of its node. Until then
//! it has one of [`MAX_DIALS`] places for at most [`PROOF_LIMIT`].

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Seek, Write, pipe};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use iof_nodes::Invitation;
use iof_nodes::limits::MAX_DIALS;
use iof_nodes::proof::{Challenge, NodeToken, Proven};
use iof_tool::poll_timeout;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{Backlog, listen};

use crate::carrier::{ACCEPT_RETRY, lock};
use crate::tcp::{prepare, random};
use crate::thread::start_thread;

/// The time that a connection has for its proof.
const PROOF_LIMIT: Duration = Duration::from_secs(2);
/// The number of connections that are accepted before those that wait have their turn.
const ACCEPTS_PER_TURN: usize = 16;

/// The front end's listener, and the agents that it expects.
pub struct Dials {
    pub address: SocketAddr,
    listener: Mutex<Option<TcpListener>>,
    expected: Mutex<BTreeMap<u32, Expected>>,
}

/// The token of an agent's next connection.
struct Expected {
    token: NodeToken,
    is_first: bool,
}

/// Ends the listener when it is dropped.
pub struct DialsEnd {
    _writer: PipeWriter,
}

/// A connection without a proof.
struct Dial {
    stream: TcpStream,
    peer: IpAddr,
    deadline: Instant,
    challenge: Challenge,
}

impl Dials {
    pub fn new(listener: TcpListener) -> io::Result<Dials> {
        listener.set_nonblocking(true)?;
        // All agents of one starter may connect at the same time.
        listen(&listener, Backlog::MAXCONN)?;
        let address = listener.local_addr()?;
        Ok(Dials { address, listener: Mutex::new(Some(listener)), expected: Mutex::default() })
    }

    /// Expects the first connection of the agent of the node with this number.
    pub fn expect(&self, node: usize, token: NodeToken) {
        let node = u32::try_from(node).unwrap_or(u32::MAX);
        lock(&self.expected).insert(node, Expected { token, is_first: true });
    }

    /// Notes that the agent of the node with this number uses a connection: it has another token for further
    /// ones.
    pub fn note_use(&self, node: usize) {
        let node = u32::try_from(node).unwrap_or(u32::MAX);
        if let Some(expected) = lock(&self.expected).get_mut(&node).filter(|expected| expected.is_first) {
            *expected = Expected { token: expected.token.next(), is_first: false };
        }
    }

    /// Returns the text for the agents of these nodes as a file, from which they read it as their stdin.
    pub fn invitation<'a>(
        &self,
        nodes: impl Iterator<Item = (u32, &'a NodeToken, &'a str)>,
    ) -> io::Result<OwnedFd> {
        let mut file = File::from(memfd_create(c"iof-invitation", MFdFlags::MFD_CLOEXEC)?);
        file.write_all(Invitation::text(self.address, nodes).as_bytes())?;
        file.rewind()?;
        Ok(file.into())
    }

    /// Starts to listen, until what is returned is dropped. `take` gets the connections with a proof.
    ///
    /// # Errors
    /// The process can have no further file or thread, or it has listened before.
    pub fn start(
        self: &Arc<Self>,
        take: impl Fn(TcpStream, Proven) + Send + 'static,
    ) -> io::Result<DialsEnd> {
        let listener = lock(&self.listener).take();
        let listener = listener.ok_or_else(|| io::Error::other("these carriers have served a job"))?;
        let ((reader, _writer), dials) = (pipe()?, Arc::clone(self));
        start_thread("iof-dials", move || dials.run(&listener, &reader, &take)).map_err(|error| error.0)?;
        Ok(DialsEnd { _writer })
    }

    fn run(&self, listener: &TcpListener, end: &PipeReader, take: &impl Fn(TcpStream, Proven)) {
        let mut dials = Vec::<Dial>::new();
        loop {
            let mut files = vec![PollFd::new(end.as_fd(), PollFlags::empty())];
            files.push(PollFd::new(listener.as_fd(), PollFlags::POLLIN));
            files.extend(dials.iter().map(|dial| PollFd::new(dial.stream.as_fd(), PollFlags::POLLIN)));
            let next = dials.first().map(|dial| dial.deadline.saturating_duration_since(Instant::now()));
            let timeout = PollTimeout::try_from(poll_timeout(next)).unwrap_or(PollTimeout::NONE);
            let _ = poll(&mut files, timeout);
            let is_ready: Vec<bool> = files.iter().map(|file| file.any() == Some(true)).collect();
            let [is_over, is_accepting, ready @ ..] = is_ready.as_slice() else { return };
            if *is_over {
                return;
            }
            let (now, mut ready) = (Instant::now(), ready.iter());
            dials = dials
                .into_iter()
                .filter_map(|dial| {
                    let is_ready = ready.next() == Some(&true);
                    self.step(dial, is_ready, take).filter(|dial| now < dial.deadline)
                })
                .collect();
            if *is_accepting {
                for _ in 0..ACCEPTS_PER_TURN {
                    let Some(dial) = accept(listener) else { break };
                    dials.push(dial);
                    make_room(&mut dials);
                }
            }
        }
    }

    /// Receives what has arrived of a proof. Returns the connection while that is not whole.
    fn step(&self, mut dial: Dial, is_ready: bool, take: &impl Fn(TcpStream, Proven)) -> Option<Dial> {
        if !is_ready {
            return Some(dial);
        }
        let length = match dial.stream.read(dial.challenge.room()) {
            Ok(length) => length,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Some(dial);
            }
            Err(_) => return None,
        };
        if length == 0 {
            return None;
        }
        let expected = lock(&self.expected);
        let token = |node| expected.get(&node).map(|expected| expected.token.clone());
        let proven = match dial.challenge.received(length, token) {
            Ok(None) => return Some(dial),
            Ok(Some(proven)) => proven,
            Err(error) => {
                tracing::debug!("a connection from {} is refused: {error}", dial.peer);
                return None;
            }
        };
        drop(expected);
        take(dial.stream, proven);
        None
    }
}

/// Accepts a connection, if there is one, and challenges it.
fn accept(listener: &TcpListener) -> Option<Dial> {
    let (stream, peer) = match listener.accept() {
        Ok((stream, peer)) => (stream, peer.ip()),
        Err(error) => {
            // Such as one that was closed, or for want of descriptors.
            if !matches!(
                error.kind(),
                ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
            ) {
                thread::sleep(ACCEPT_RETRY);
            }
            return None;
        }
    };
    let challenge = Challenge::new(random().ok()?);
    stream.set_nonblocking(true).ok()?;
    prepare(&stream).ok()?;
    // A new connection has room for it.
    (&stream).write_all(&challenge.bytes()).ok()?;
    Some(Dial { stream, peer, deadline: Instant::now() + PROOF_LIMIT, challenge })
}

/// Ends a connection if there are too many: the oldest one of the address that has the most.
fn make_room(dials: &mut Vec<Dial>) {
    if dials.len() <= MAX_DIALS {
        return;
    }
    let count = |peer: IpAddr| dials.iter().filter(|dial| dial.peer == peer).count();
    let most = dials.iter().map(|dial| count(dial.peer)).max();
    if let Some(index) = dials.iter().position(|dial| Some(count(dial.peer)) == most) {
        dials.remove(index);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn too_many_connections_end_the_oldest_one_of_the_address_that_has_the_most() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let deadline = Instant::now() + PROOF_LIMIT;
        let dial = |host: u8, number: u8| {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let challenge = Challenge::new([number; 16]);
            Dial { stream, peer: Ipv4Addr::new(10, 0, 0, host).into(), deadline, challenge }
        };
        let mut dials = vec![dial(1, 0)];
        for number in 1..=100 {
            dials.push(dial(2, number));
            make_room(&mut dials);
        }
        let left: Vec<_> = dials.iter().map(|dial| (dial.peer, dial.challenge.bytes()[8])).collect();
        let expected =
            (100 - MAX_DIALS as u8 + 2..=100).map(|number| (Ipv4Addr::new(10, 0, 0, 2).into(), number));
        let first = (IpAddr::from(Ipv4Addr::new(10, 0, 0, 1)), 0);
        assert_eq!(left, std::iter::once(first).chain(expected).collect::<Vec<_>>());
    }
}
