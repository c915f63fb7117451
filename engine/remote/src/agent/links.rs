//! The carriers of an agent, one after the other, and [`link`], which brings the agent another one.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::channel::Sender;
use iof_nodes::limits::MAX_LINKS;
use iof_nodes::{EdgeError, FrameDecoder, HEADER, Invitation, LinkAddress, ToFrontEnd};
use iof_proto::rendezvous::{BindError, ConnectError, Level, Listener, connect};
use iof_proto::socket;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::geteuid;

use super::AgentError;
use super::carrier_files::{CarrierFiles, CarrierInput};
use super::dial::{ATTEMPT_LIMIT, attempt, pause};
use super::hooks::StartRefusal;
use super::uplink::{AgentCarrier, AgentInput, CarrierNumber, Uplink};
use crate::carrier::{ACCEPT_RETRY, lock};
use crate::carriers::NodeConnection;
use crate::tcp::random;
use crate::thread::{NoThread, start_thread};

/// The time that a link may take to show its session.
const GREETING_LIMIT: Duration = Duration::from_secs(10);

/// The wait before another attempt to connect, at least. Up to as much comes on top at random.
const REDIAL_RETRY: Duration = Duration::from_millis(500);

/// The carriers of an agent, one after the other.
pub struct Links {
    /// The edge, which may outlive each of them.
    pub uplink: Arc<Uplink>,
    /// The time for which the ranks run on without a carrier.
    limit: Duration,
    /// The address to which the agent connects itself, with its token, in place of links that reach it.
    invitation: Option<Invitation>,
    listener: OnceLock<Mutex<Option<Listener>>>,
}

/// A link that has not shown its session.
struct Waiting {
    connection: UnixStream,
    /// Its stdin and stdout, once they have arrived.
    files: Option<NodeConnection>,
    /// The part of the first frame that it has sent.
    header: Vec<u8>,
    deadline: Instant,
}

impl Links {
    /// Greets the front end and starts to receive. With a limit other than 0, other carriers can follow
    /// once the agent listens.
    pub fn start(
        files: NodeConnection,
        inputs: Sender<AgentInput>,
        limit: Duration,
        invitation: Option<Invitation>,
    ) -> Result<Arc<Links>, AgentError> {
        let (CarrierFiles { down, up }, end) = CarrierFiles::new(files, limit.is_zero())?;
        let carrier = AgentCarrier { output: Some(Arc::new(up)), connection: None, end: Some(end) };
        let uplink = Uplink::new(carrier, inputs);
        start_receiving(&uplink, CarrierNumber::default(), down)?;
        Ok(Arc::new(Links { uplink, limit, invitation, listener: OnceLock::new() }))
    }

    /// Starts to listen for links, in `directory` or the node's default directory, or to replace connections
    /// that the agent makes itself. The edge outlives its carriers from now on. Returns where it listens;
    /// `None` if it ends with its carrier.
    pub fn listen(self: &Arc<Self>, directory: Option<&Path>) -> Result<Option<LinkAddress>, StartRefusal> {
        if self.limit.is_zero() {
            return Ok(None);
        }
        // Ends in a newline, as each frame that may be the last one of a write.
        let [a, b, c, d, e, f, g] = random().map_err(StartRefusal::running)?;
        let session = u64::from_le_bytes([a, b, c, d, e, f, g, b'\n']);
        let path = match self.invitation.clone() {
            Some(invitation) => {
                let uplink = Arc::clone(&self.uplink);
                start_thread("iof-dial", move || redial(&uplink, session, &invitation))
                    .map_err(StartRefusal::running)?;
                OsString::new()
            }
            None => self.listen_for_links(directory, session)?,
        };
        self.uplink.outlive_carriers(self.limit);
        let waiting = Arc::clone(&self.uplink);
        start_thread("iof-lost", move || waiting.wait_for_loss()).map_err(StartRefusal::running)?;
        Ok(Some(LinkAddress { path, session }))
    }

    /// Starts to listen for links. Returns the path at which it listens.
    fn listen_for_links(&self, directory: Option<&Path>, session: u64) -> Result<OsString, StartRefusal> {
        let needed = |error: BindError| StartRefusal::usage(format!("no socket for links: {error}"));
        let listener = Listener::bind(Level::Link, directory).map_err(needed)?;
        let socket = listener.socket().try_clone().map_err(StartRefusal::running)?;
        let path = listener.path().into();
        let _ = self.listener.set(Mutex::new(Some(listener)));
        let accepting = Arc::clone(&self.uplink);
        start_thread("iof-listen", move || accept(&accepting, session, &socket))
            .map_err(StartRefusal::running)?;
        Ok(path)
    }

    /// Waits until the carrier has what was sent last, and removes the socket.
    pub fn finish(&self, deadline: Instant) {
        self.uplink.drain(deadline);
        if let Some(listener) = self.listener.get() {
            *lock(listener) = None;
        }
    }
}

/// Starts the thread that receives from a carrier.
fn start_receiving(uplink: &Arc<Uplink>, carrier: CarrierNumber, down: CarrierInput) -> Result<(), NoThread> {
    let uplink = Arc::clone(uplink);
    start_thread("iof-down", move || uplink.receive(down, carrier))
}

/// Accepts links for as long as the agent runs, and goes over to each that shows its session in time.
fn accept(uplink: &Arc<Uplink>, session: u64, listener: &UnixListener) {
    let mut waiting = VecDeque::<Waiting>::new();
    loop {
        let mut files = vec![PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        files.extend(waiting.iter().flat_map(Waiting::poll_fds));
        let next = waiting.front().map(|link| link.deadline.saturating_duration_since(Instant::now()));
        let timeout = next.and_then(|time| PollTimeout::try_from(time).ok()).unwrap_or(PollTimeout::NONE);
        let _ = poll(&mut files, timeout);
        let is_ready: Vec<bool> = files.iter().map(|file| file.any() == Some(true)).collect();
        let (is_accepting, links) = is_ready.split_first().unwrap_or((&false, &[]));
        let now = Instant::now();
        let mut links = links.chunks(2);
        for _ in 0..waiting.len() {
            let Some(mut link) = waiting.pop_front() else { continue };
            // Its carrier notices if it ends.
            match link.receive(links.next().unwrap_or_default()) {
                Ok(false) if now < link.deadline => waiting.push_back(link),
                Ok(true) => {
                    let Waiting { connection, files, header, .. } = link;
                    let files = files.map(|files| (Some(connection), files));
                    let _ = files.map(|files| attach(uplink, session, files, &header));
                }
                Ok(false) | Err(_) => {}
            }
        }
        if *is_accepting {
            waiting.extend(accept_one(listener));
        }
        // The one that has waited longest gives way.
        if waiting.len() > MAX_LINKS {
            waiting.pop_front();
        }
    }
}

/// Accepts a link of this user, if there is one.
fn accept_one(listener: &UnixListener) -> Option<Waiting> {
    match listener.accept() {
        Ok((connection, _)) => {
            let deadline = Instant::now() + GREETING_LIMIT;
            // The socket has mode 0600, which does not keep root out.
            let is_own = socket::peer(&connection).is_ok_and(|peer| peer.uid == geteuid().as_raw());
            is_own.then(|| Waiting { connection, files: None, header: Vec::new(), deadline })
        }
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => None,
        Err(_) => {
            thread::sleep(ACCEPT_RETRY);
            None
        }
    }
}

impl Waiting {
    /// Returns what to wait for: the files, then the first frame or the end of the connection.
    fn poll_fds(&self) -> [PollFd<'_>; 2] {
        let connection = |events| PollFd::new(self.connection.as_fd(), events);
        match &self.files {
            None => [connection(PollFlags::POLLIN), connection(PollFlags::empty())],
            Some(files) => {
                [connection(PollFlags::empty()), PollFd::new(files.down.as_fd(), PollFlags::POLLIN)]
            }
        }
    }

    /// Receives what has arrived on these files, of the first frame only. Returns whether that is whole.
    fn receive(&mut self, is_ready: &[bool]) -> io::Result<bool> {
        match (&mut self.files, is_ready) {
            (None, [true, _]) => self.files = Some(receive_files(&self.connection)?),
            (Some(_), [true, _]) => return Err(ErrorKind::ConnectionAborted.into()),
            (Some(files), [_, true]) => {
                let mut rest = [0; HEADER];
                let room = rest.get_mut(self.header.len()..).unwrap_or_default();
                match files.down.read(room)? {
                    0 => return Err(ErrorKind::UnexpectedEof.into()),
                    count => self.header.extend_from_slice(room.get(..count).unwrap_or_default()),
                }
            }
            _ => {}
        }
        Ok(self.header.len() == HEADER)
    }
}

/// Goes over to another carrier, over which this header has arrived: that of a link, with the connection to its
/// process, or one of the agent.
fn attach(
    uplink: &Arc<Uplink>,
    session: u64,
    (connection, files): (Option<UnixStream>, NodeConnection),
    header: &[u8],
) -> Result<(), LinkError> {
    let mut decoder = FrameDecoder::of_front_end();
    decoder.receive(header);
    let frame =
        decoder.decode().map_err(EdgeError::from)?.ok_or(EdgeError::Unexpected("first frame of a link"))?;
    let (CarrierFiles { down, up }, end) = CarrierFiles::new(files, false)?;
    let carrier = AgentCarrier { output: Some(Arc::new(up)), connection, end: Some(end) };
    let number = uplink.resume(session, &frame, carrier)?;
    let writing = Arc::clone(uplink);
    start_receiving(uplink, number, down)
        .and_then(|()| start_thread("iof-kept", move || writing.write_kept(number)))
        .inspect_err(|_| uplink.lacks_threads(number))?;
    Ok(())
}

/// Connects again each time when the edge has no carrier, until it ends.
fn redial(uplink: &Arc<Uplink>, session: u64, invitation: &Invitation) {
    while uplink.wait_for_carrier_end() {
        if replace(uplink, session, invitation).is_err() {
            pause(REDIAL_RETRY);
        }
    }
}

/// Brings the edge another carrier.
fn replace(uplink: &Arc<Uplink>, session: u64, invitation: &Invitation) -> io::Result<()> {
    let mut stream = attempt(invitation)?;
    let mut header = [0; HEADER];
    stream.set_read_timeout(Some(ATTEMPT_LIMIT))?;
    stream.read_exact(&mut header)?;
    stream.set_read_timeout(None)?;
    attach(uplink, session, (None, NodeConnection::of_socket(stream)?), &header).map_err(io::Error::other)
}

/// Receives the stdin and the stdout of a link.
fn receive_files(connection: &UnixStream) -> io::Result<NodeConnection> {
    let mut files = VecDeque::<OwnedFd>::new();
    socket::receive(connection, &mut [0; 1], &mut files, true, false)?;
    match <[OwnedFd; 2]>::try_from(Vec::from(files)) {
        Ok([down, up]) => Ok(NodeConnection { down: down.into(), up: up.into() }),
        Err(_) => Err(ErrorKind::InvalidData.into()),
    }
}

/// The reason why an agent has no other connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The agent can't be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The connection can't be read or written, or was not passed on.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer has broken a rule.
    #[error(transparent)]
    Edge(#[from] EdgeError),
    /// The process can't start a thread.
    #[error(transparent)]
    Thread(#[from] NoThread),
}

/// Brings the agent that listens at `path` another connection. Blocks until the agent has yet another
/// one, or ends.
///
/// # Errors
/// The agent can't be reached. If it has ended, the front end was told so.
pub fn link(path: &Path, down: impl AsFd, up: impl AsFd) -> Result<(), LinkError> {
    let connection = match connect(path) {
        Ok(connection) => connection,
        Err(error) => {
            if matches!(&error, ConnectError::Refused(_)) || is_missing(&error) {
                // The front end need not try again.
                let failed = ToFrontEnd::Failed { reason: "its agent has ended".into(), is_usage: false };
                let mut up = File::from(up.as_fd().try_clone_to_owned()?);
                let _ = up.write_all(&failed.frame().unwrap_or_default());
            }
            return Err(error.into());
        }
    };
    socket::send(&connection, b"l", &[down.as_fd(), up.as_fd()])?;
    let _ = connection.shutdown(Shutdown::Write);
    // Nothing is sent: the agent closes the connection when it has another carrier, or ends.
    let _ = (&connection).read(&mut [0; 1]);
    Ok(())
}

/// Returns whether a socket does not exist.
fn is_missing(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Io { source, .. } if source.kind() == ErrorKind::NotFound)
}
