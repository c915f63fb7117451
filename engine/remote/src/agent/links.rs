//! The carriers of an agent whose edge outlives them, and [`link`], which brings the agent another
//! one.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};
use std::{collections::VecDeque, net::Shutdown};

use crossbeam::channel::{Receiver, Sender, bounded};
use iof_nodes::limits::MAX_LINKS;
use iof_nodes::{Decoder, EdgeError, HEADER, LinkAddress, ToFrontEnd};
use iof_proto::rendezvous::{BindError, ConnectError, Level, Listener, connect};
use iof_proto::socket;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::geteuid;

use super::AgentError;
use super::carrier_files::{CarrierFiles, WaitEnd};
use super::hooks::StartRefusal;
use super::uplink::{Input, Uplink};
use crate::carrier::lock;
use crate::carriers::NodeConnection;
use crate::link::{CarrierNumber, Link};
use crate::thread::{NoThread, start_thread};

/// How long a link may take to show its session.
const GREETING_LIMIT: Duration = Duration::from_secs(10);

/// The wait after a connection that could not be accepted, such as for want of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The carriers of an agent, one after the other.
pub struct Links {
    /// The edge, which outlives each of them.
    pub uplink: Arc<Uplink>,
    /// What `uplink` writes to.
    link: Arc<Link>,
    /// How long the ranks run on without a carrier.
    limit: Duration,
    session: u64,
    listener: OnceLock<Mutex<Option<Listener>>>,
    current: Mutex<Current>,
    /// The number of links that exist.
    count: Arc<AtomicUsize>,
    /// The links that have not shown their session, the oldest one first, each with what is
    /// disconnected when it has ended.
    waiting: Mutex<VecDeque<(Arc<UnixStream>, Receiver<()>)>>,
}

/// What ends with the current carrier.
#[derive(Default)]
struct Current {
    /// The connection to its process; `None` for the first carrier.
    connection: Option<Arc<UnixStream>>,
    /// Lets the threads of the carrier end when another one follows.
    end: Option<WaitEnd>,
}

/// A link that is counted.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    /// Counts a link, unless there are as many as may be.
    fn new(count: &Arc<AtomicUsize>) -> Option<Counted> {
        // Only the number counts, so no order is needed.
        let is_free = |links: usize| (links < MAX_LINKS).then(|| links.saturating_add(1));
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_free).ok()?;
        Some(Counted(Arc::clone(count)))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Links {
    /// Greets the front end and starts to receive. The edge goes on for `limit` without a carrier.
    pub fn start(
        files: NodeConnection,
        inputs: Sender<Input>,
        limit: Duration,
    ) -> Result<Arc<Links>, AgentError> {
        // Ends in a newline, as each frame that may be the last one of a write.
        let mut session = [b'\n'; 8];
        let [random @ .., _] = &mut session;
        File::open("/dev/urandom")?.read_exact(random)?;
        let (files, end) = CarrierFiles::new(files)?;
        let link = Arc::default();
        let links = Arc::new(Links {
            uplink: Uplink::with_link(&link, inputs),
            link,
            limit,
            session: u64::from_le_bytes(session),
            listener: OnceLock::new(),
            current: Mutex::new(Current { connection: None, end: Some(end) }),
            count: Arc::default(),
            waiting: Mutex::default(),
        });
        start_threads(&links, CarrierNumber::default(), files, (Vec::new(), None))?;
        let waiting = Arc::clone(&links);
        start_thread("iof-lost", move || {
            if let Some(limit) = waiting.link.wait_for_loss() {
                let time = limit.as_secs_f64();
                let reason = || format!("no connection reached the agent for {time} s");
                waiting.uplink.lose((!limit.is_zero()).then(reason));
            }
        })?;
        Ok(links)
    }

    /// Starts to listen for links, in `directory` or the node's default directory. The edge outlives
    /// its carriers from now on. Returns where it listens.
    pub fn listen(self: &Arc<Self>, directory: Option<&Path>) -> Result<LinkAddress, StartRefusal> {
        let needed = |error: BindError| StartRefusal::usage(format!("no socket for links: {error}"));
        let listener = Listener::bind(Level::Link, directory).map_err(needed)?;
        let socket = listener.socket().try_clone().map_err(StartRefusal::running)?;
        let address = LinkAddress { path: listener.path().into(), session: self.session };
        let _ = self.listener.set(Mutex::new(Some(listener)));
        let accepting = Arc::clone(self);
        start_thread("iof-listen", move || accept(&accepting, &socket)).map_err(StartRefusal::running)?;
        self.link.set_patience(self.limit);
        Ok(address)
    }

    /// Waits until the carrier has what was sent last, and removes the socket.
    pub fn finish(&self, deadline: Instant) {
        self.link.close();
        self.link.drain(deadline);
        if let Some(listener) = self.listener.get() {
            *lock(listener) = None;
        }
    }

    /// Counts a link. If there are as many as may be, the one that has waited longest to show its
    /// session is closed for it. Returns `None` if each of the others has shown it.
    fn admit(&self) -> Option<Counted> {
        loop {
            if let Some(counted) = Counted::new(&self.count) {
                return Some(counted);
            }
            let (oldest, ended) = lock(&self.waiting).pop_front()?;
            let _ = oldest.shutdown(Shutdown::Both);
            // It ends at once, unless a process takes the bytes that its thread is about to read.
            let _ = ended.recv_timeout(ACCEPT_RETRY);
        }
    }

    /// Returns whether a link still waits to show its session, which it does no longer.
    fn take_waiting(&self, connection: &Arc<UnixStream>) -> bool {
        let mut waiting = lock(&self.waiting);
        let place = waiting.iter().position(|(other, _)| Arc::ptr_eq(other, connection));
        place.and_then(|place| waiting.remove(place)).is_some()
    }

    /// Notes that a carrier has ended. Its process ends with the connection.
    fn ended(&self, carrier: CarrierNumber) {
        let mut current = lock(&self.current);
        if self.link.is_current(carrier) {
            self.link.detach(carrier);
            current.connection = None;
        }
    }

    /// Notes that the threads of a carrier could not all be started. Ends the one that was, if any,
    /// and the process of the carrier.
    fn lacks_threads(&self, carrier: CarrierNumber) {
        self.ended(carrier);
        let mut current = lock(&self.current);
        if self.link.is_latest(carrier) {
            current.end = None;
        }
    }
}

/// Starts the threads of a carrier: one writes what the agent sends, first a greeting, and one
/// receives.
fn start_threads(
    links: &Arc<Links>,
    carrier: CarrierNumber,
    CarrierFiles { down, up }: CarrierFiles,
    (greeting, counted): (Vec<u8>, Option<Arc<Counted>>),
) -> Result<(), NoThread> {
    let (writing, writer) = (Arc::clone(links), counted.clone());
    start_thread("iof-link", move || {
        if writing.link.write_to(carrier, up, &greeting).is_err() {
            writing.ended(carrier);
        }
        drop(writer);
    })?;
    let receiving = Arc::clone(links);
    start_thread("iof-down", move || {
        if let Err(reason) = receiving.uplink.receive(down, carrier) {
            receiving.uplink.lose(Some(reason));
        }
        receiving.ended(carrier);
        drop(counted);
    })
}

/// Accepts links for as long as the agent runs.
fn accept(links: &Arc<Links>, listener: &UnixListener) {
    loop {
        let mut files = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut files, PollTimeout::NONE);
        match listener.accept() {
            Ok((connection, _)) => {
                // The socket has mode 0600, which does not keep root out.
                let is_own = socket::peer(&connection).is_ok_and(|peer| peer.uid == geteuid().as_raw());
                if let Some(counted) = is_own.then(|| links.admit()).flatten() {
                    start_attaching(links, connection.into(), counted);
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => thread::sleep(ACCEPT_RETRY),
        }
    }
}

/// Starts the thread that waits for the session of a link.
fn start_attaching(links: &Arc<Links>, connection: Arc<UnixStream>, counted: Counted) {
    let (ended, end) = bounded(0);
    lock(&links.waiting).push_back((Arc::clone(&connection), end));
    let (attaching, waiting) = (Arc::clone(links), Arc::clone(&connection));
    let started = start_thread("iof-greet", move || {
        // Its carrier notices that it ends.
        let _ = attach(&attaching, &waiting, counted);
        attaching.take_waiting(&waiting);
        drop::<Sender<()>>(ended);
    });
    if started.is_err() {
        // The link ends.
        links.take_waiting(&connection);
    }
}

/// Goes over to the carrier of a link that shows its session in time.
fn attach(links: &Arc<Links>, connection: &Arc<UnixStream>, counted: Counted) -> Result<(), LinkError> {
    let deadline = Instant::now() + GREETING_LIMIT;
    let mut files = receive_files(connection)?;
    let header = read_header(&mut files.down, connection, deadline)?;
    let mut decoder = Decoder::of_front_end();
    decoder.receive(&header);
    let frame =
        decoder.decode().map_err(EdgeError::from)?.ok_or(EdgeError::Unexpected("first frame of a link"))?;
    let (files, end) = CarrierFiles::new(files)?;
    // Nothing that the old carrier delivers is received from here on.
    let (carrier, greeting) = links
        .uplink
        .between_receipts(|| {
            let mut current = lock(&links.current);
            if !links.take_waiting(connection) {
                return Err(EdgeError::Unexpected("session of a link that was closed"));
            }
            let carrier = links.link.resume(links.session, &frame)?;
            let greeting = links.link.resume_frame(links.session);
            // The process and the threads of the old carrier end.
            *current = Current { connection: Some(Arc::clone(connection)), end: Some(end) };
            Ok((carrier, greeting))
        })
        .map_err(|error: EdgeError| error)?;
    let started = start_threads(links, carrier, files, (greeting, Some(Arc::new(counted))));
    Ok(started.inspect_err(|_| links.lacks_threads(carrier))?)
}

/// Receives the stdin and the stdout of a link.
fn receive_files(connection: &UnixStream) -> io::Result<NodeConnection> {
    connection.set_read_timeout(Some(GREETING_LIMIT))?;
    let mut files = VecDeque::<OwnedFd>::new();
    socket::receive(connection, &mut [0; 1], &mut files, true, true)?;
    match <[OwnedFd; 2]>::try_from(Vec::from(files)) {
        Ok([down, up]) => Ok(NodeConnection { down: down.into(), up: up.into() }),
        Err(_) => Err(ErrorKind::InvalidData.into()),
    }
}

/// Reads the first frame, and nothing behind it, unless the connection is closed before.
fn read_header(down: &mut File, connection: &UnixStream, deadline: Instant) -> io::Result<[u8; HEADER]> {
    let (mut header, mut length) = ([0; HEADER], 0usize);
    while let Some(rest) = header.get_mut(length..).filter(|rest| !rest.is_empty()) {
        let left = deadline.saturating_duration_since(Instant::now());
        let closed = PollFd::new(connection.as_fd(), PollFlags::empty());
        let mut files = [PollFd::new(down.as_fd(), PollFlags::POLLIN), closed];
        if poll(&mut files, PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO))? == 0 {
            return Err(ErrorKind::TimedOut.into());
        }
        if files.iter().next_back().and_then(PollFd::any) == Some(true) {
            return Err(ErrorKind::ConnectionAborted.into());
        }
        match down.read(rest)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => length = length.saturating_add(count),
        }
    }
    Ok(header)
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
