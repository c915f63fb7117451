//! Connections that are not tools yet: they have not sent a hello, or the host has not approved
//! them. Each costs a socket and a few words of memory.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use iof_capture::Capture;
use iof_proto::limits::{
    APPROVAL_LIMIT, HELLO_LIMIT, MAX_CONNECTIONS_PER_PROCESS, MAX_CONNECTIONS_PER_USER, MAX_TOOLS,
    RESERVED_TOOLS,
};
use iof_proto::{Failure, FromTool, PROTOCOL_VERSION, Status, ToTool, encode, socket};
use iof_shm_ring::{CreateError, ReaderPage};
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nix::unistd::geteuid;

use crate::client::Client;
use crate::control::check_spare_files;
use crate::engine::Grant;
use crate::host::{Call, Upcall};
use crate::incoming::Incoming;
use crate::linger::LastActivity;
use crate::peer::{DisconnectReason, Peer};
use crate::state::{PeerId, State};

/// A connection that is not a tool yet.
pub(crate) struct PendingPeer {
    incoming: Incoming,
    credentials: socket::PeerCredentials,
    /// When it connected.
    connected: Instant,
    /// The grant, if this is the embedder's own connection.
    own: Option<Grant>,
    /// When the connection is refused; `None` for the embedder's own.
    deadline: Option<Instant>,
    /// The tool's name, once it has sent a hello and the host was asked.
    name: Option<String>,
}

impl PendingPeer {
    fn new(socket: UnixStream, own: Option<Grant>) -> io::Result<PendingPeer> {
        socket.set_nonblocking(true)?;
        let credentials = socket::peer(&socket)?;
        let connected = Instant::now();
        let deadline = if own.is_none() { connected.checked_add(HELLO_LIMIT) } else { None };
        Ok(PendingPeer { incoming: Incoming::new(socket), credentials, connected, own, deadline, name: None })
    }

    /// Returns what the engine must know about this connection when it ends.
    pub(crate) fn last_activity(&self) -> LastActivity {
        LastActivity {
            has_unsent: false,
            last_taken: self.connected,
            last_asked: self.own.is_none().then_some(self.connected),
        }
    }

    /// Records that the socket became readable (edge-triggered).
    pub(crate) fn now_readable(&mut self) {
        self.incoming.now_readable();
    }

    fn client(&self) -> Client {
        self.credentials.into()
    }

    /// Returns the name from the hello, once that has arrived.
    fn hello(&mut self) -> Result<Option<String>, Ended> {
        match self.incoming.next()? {
            Some(FromTool::Hello { version: PROTOCOL_VERSION, name, .. }) => Ok(Some(name)),
            Some(FromTool::Hello { version, .. }) => {
                let reason = format!(
                    "protocol version {version} of the tool differs from version {PROTOCOL_VERSION} of the engine: update the \
                     older one"
                );
                Err(Failure::new(Status::ERR_NOT_SUPPORTED, reason).into())
            }
            Some(_) => Err(DisconnectReason::Unexpected("a request before a hello").into()),
            None => Ok(None),
        }
    }

    /// Returns the reason for the refusal if the tool or the host has missed its deadline by `now`.
    fn overdue(&self, now: Instant) -> Option<Failure> {
        self.deadline.filter(|deadline| *deadline <= now)?;
        let reason = match self.name {
            None => format!("no hello received for {} s", HELLO_LIMIT.as_secs()),
            Some(_) => {
                format!("no approval received from the launcher for {} s", APPROVAL_LIMIT.as_secs())
            }
        };
        Some(Failure::new(Status::ERR_TIMEOUT, reason))
    }
}

/// Why a connection does not become a tool.
enum Ended {
    /// It is refused with a message.
    Refused(Failure),
    /// It is closed without one.
    Closed(DisconnectReason),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Ended {
        Ended::Refused(failure)
    }
}

impl From<DisconnectReason> for Ended {
    fn from(reason: DisconnectReason) -> Ended {
        Ended::Closed(reason)
    }
}

/// Sends the reason of a refusal. It fits an empty socket buffer; if the send fails, the tool sees
/// only a closed connection.
fn refuse(socket: &UnixStream, Failure { status, reason }: Failure) {
    tracing::info!(reason, "a tool was refused");
    if let Ok(frame) = encode(&ToTool::Refused { status, reason }) {
        let _ = socket::send(socket, &frame, &[]);
    }
}

fn internal(error: &io::Error) -> Failure {
    Failure::new(Status::ERR_OUT_OF_RESOURCE, format!("engine error: {error}"))
}

impl State {
    /// Adds a connection from the rendezvous socket, or refuses it if no place is free.
    pub(crate) fn admit(&mut self, registry: &Registry, socket: UnixStream) {
        let place = socket::peer(&socket)
            .map_err(|error| internal(&error))
            .and_then(|credentials| self.make_place(registry, credentials.into(), &socket));
        if let Err(failure) = place {
            return refuse(&socket, failure);
        }
        if let Err(error) = self.add_pending(registry, socket, None) {
            tracing::info!(%error, "cannot add a connection");
        }
    }

    /// Adds a connection. `own` is the grant of an embedder's own connection.
    pub(crate) fn add_pending(
        &mut self,
        registry: &Registry,
        socket: UnixStream,
        own: Option<Grant>,
    ) -> io::Result<()> {
        let pending = PendingPeer::new(socket, own)?;
        let id = self.next_peer();
        let fd = pending.incoming.socket().as_raw_fd();
        registry.register(&mut SourceFd(&fd), Token(id), Interest::READABLE.add(Interest::WRITABLE))?;
        self.pending.insert(id, pending);
        Ok(())
    }

    /// Finds a place for a connection of `client`. If none is free, closes the oldest connection
    /// that has not sent a hello.
    fn make_place(
        &mut self,
        registry: &Registry,
        client: Client,
        socket: &UnixStream,
    ) -> Result<(), Failure> {
        let full = |reason| Failure { status: Status::ERR_OUT_OF_RESOURCE, reason };
        self.forget_departed();
        let Client { pid, uid } = client;
        let all = self.places;
        let part = |limit: usize| limit.saturating_mul(all) / MAX_TOOLS;
        let (of_process, of_user) =
            (|other: Client| other.is_process(client), |other: Client| other.uid == uid);
        let limit = part(MAX_CONNECTIONS_PER_PROCESS);
        if self.connections(of_process) >= limit && !self.evict(registry, of_process) {
            return Err(full(format!("process {pid} has {limit} connections already: close one")));
        }
        let limit = part(MAX_CONNECTIONS_PER_USER);
        if self.connections(of_user) >= limit && !self.evict(registry, of_user) {
            return Err(full(format!("user {uid} has {limit} connections already: close one")));
        }
        let is_trusted = uid == 0 || uid == geteuid().as_raw();
        let places = if is_trusted { all } else { all.saturating_sub(part(RESERVED_TOOLS)) };
        if self.connections(|_| true) >= places && !self.evict(registry, |_| true) {
            let reason = format!("{places} tools are attached already");
            return Err(full(reason));
        }
        match check_spare_files(socket.as_fd()) {
            Err(_) if self.evict(registry, |_| true) => Ok(()),
            enough => enough,
        }
    }

    /// Returns the number of connections from outside whose client matches.
    fn connections(&self, matches: impl Fn(Client) -> bool) -> usize {
        let peers = self.peers.values().filter(|peer| !peer.own).map(|peer| peer.client);
        let pending = self.pending.values().filter(|pending| pending.own.is_none()).map(PendingPeer::client);
        let departed = self.departed.iter().map(|departed| departed.client);
        peers.chain(pending).chain(departed).filter(|client| matches(*client)).count()
    }

    /// Closes the oldest connection without a hello whose client matches. Returns whether there was
    /// one.
    fn evict(&mut self, registry: &Registry, matches: impl Fn(Client) -> bool) -> bool {
        let silent = |pending: &PendingPeer| {
            pending.own.is_none() && pending.name.is_none() && matches(pending.client())
        };
        let Some(id) = self.pending.iter().find(|(_, pending)| silent(pending)).map(|(id, _)| *id) else {
            return false;
        };
        let reason = "replaced by another connection: no hello was received";
        self.end_pending(registry, id, Failure::new(Status::ERR_OUT_OF_RESOURCE, reason).into());
        true
    }

    /// Reads the hellos of pending connections, and ends connections that have missed their
    /// deadline.
    pub(crate) fn greet(&mut self, registry: &Registry, capture: &Capture) {
        let now = Instant::now();
        let ids: Vec<PeerId> = self.pending.keys().copied().collect();
        for id in ids {
            let Some(pending) = self.pending.get_mut(&id) else { continue };
            let hello = if pending.name.is_none() { pending.hello() } else { Ok(None) };
            let result = match (hello, pending.overdue(now)) {
                (Ok(Some(name)), _) => self.request_approval(capture, id, name),
                (Ok(None), Some(overdue)) => Err(overdue.into()),
                (Ok(None), None) => Ok(()),
                (Err(ended), _) => Err(ended),
            };
            if let Err(ended) = result {
                self.end_pending(registry, id, ended);
            }
        }
    }

    /// Returns the earliest deadline of a pending connection.
    pub(crate) fn next_overdue(&self) -> Option<Instant> {
        self.pending.values().filter_map(|pending| pending.deadline).min()
    }

    /// Asks the host to approve the tool `name`. The embedder's own tool needs no approval.
    fn request_approval(&mut self, capture: &Capture, id: PeerId, name: String) -> Result<(), Ended> {
        let Some(pending) = self.pending.get_mut(&id) else { return Ok(()) };
        pending.name = Some(name);
        if let Some(grant) = pending.own {
            return self.welcome(capture, id, grant);
        }
        pending.deadline = Instant::now().checked_add(APPROVAL_LIMIT);
        let (credentials, call) = (pending.credentials, Call::Approve(id));
        self.owed.note(call, Some(credentials.into()), 0)?;
        self.upcalls.push(Upcall::Approve { peer: id, credentials });
        Ok(())
    }

    /// Processes the host's answer about a tool.
    pub(crate) fn approved(
        &mut self,
        registry: &Registry,
        capture: &Capture,
        id: PeerId,
        answer: Result<Grant, Failure>,
    ) {
        let result = answer.map_err(Ended::from).and_then(|grant| self.welcome(capture, id, grant));
        if let Err(ended) = result {
            self.end_pending(registry, id, ended);
        }
    }

    /// Turns a pending connection into a tool.
    fn welcome(&mut self, capture: &Capture, id: PeerId, grant: Grant) -> Result<(), Ended> {
        // It may have been refused meanwhile.
        if !self.pending.contains_key(&id) {
            return Ok(());
        }
        let no_room =
            |error: &dyn ToString| Failure { status: Status::ERR_OUT_OF_RESOURCE, reason: error.to_string() };
        let failed = |source| CreateError::Memory { step: "doorbell", len: 0, source };
        let own = self.pending.get(&id).is_some_and(|pending| pending.own.is_some());
        let made = if own { iof_shm_ring::bell() } else { iof_shm_ring::doorbell() };
        let (ringer, bell) = made.map_err(|error| no_room(&failed(error)))?;
        let page = ReaderPage::create(ringer).map_err(|error| no_room(&error))?;
        // The files of the embedder's own readers are accounted to the job.
        if !own && let Some(file) = page.as_fd() {
            check_spare_files(file)?;
        }
        let may_block = grant == Grant::Block;
        let (room, room_bell) = match (may_block, own) {
            (false, _) => (None, None),
            (true, true) => (Some(capture.room_bell().map_err(DisconnectReason::from)?), None),
            (true, false) => {
                let (ringer, bell) = capture.peer_room_bell().map_err(DisconnectReason::from)?;
                (Some(ringer), Some(bell))
            }
        };
        let Some(PendingPeer { incoming, credentials, name, .. }) = self.pending.remove(&id) else {
            return Ok(());
        };
        let name = name.unwrap_or_default();
        let mut peer = Peer::new(incoming, credentials.into(), name, own, may_block, page);
        peer.room_bell = room_bell;
        peer.welcome(bell, room);
        self.peers.insert(id, peer);
        Ok(())
    }

    fn end_pending(&mut self, registry: &Registry, id: PeerId, ended: Ended) {
        let Some(pending) = self.pending.remove(&id) else { return };
        let socket = pending.incoming.socket();
        let _ = registry.deregister(&mut SourceFd(&socket.as_raw_fd()));
        match ended {
            Ended::Refused(failure) => refuse(socket, failure),
            Ended::Closed(DisconnectReason::Closed) => {}
            Ended::Closed(reason) => {
                tracing::info!(pid = pending.credentials.pid, %reason, "a connection was closed");
            }
        }
    }
}

/// Returns how many tools a process that may open `files` files has places for. A tool needs at
/// most four, and the jobs need some too.
pub(crate) fn places(files: u64) -> usize {
    usize::try_from(files / 8).unwrap_or(usize::MAX).clamp(8, MAX_TOOLS)
}

/// Connections that are not tools yet, in the order in which they connected.
pub(crate) type Pending = BTreeMap<PeerId, PendingPeer>;
