//! The control thread's connections: how they begin, become tools and end.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use iof_core::{DisconnectReason, Ended, Grant, PeerId};
use iof_proto::{Failure, Status, ToTool, encode, socket};
use iof_shm_ring::{CreateError, ReaderPage};
use mio::unix::SourceFd;
use mio::{Interest, Token};

use crate::control::Control;
use crate::control::connection::Connection;
use crate::tables::LockedTables;
use crate::tables::files::check_spare_files;
use crate::tables::log_lines::LogLines;

impl Control {
    /// Adds a connection from the rendezvous socket, or refuses it if no place is free.
    pub(crate) fn admit(&mut self, core: &mut LockedTables<'_>, socket: UnixStream) {
        self.forget_departed(core);
        let place = socket::peer(&socket)
            .map_err(|error| Failure::new(Status::ERR_OUT_OF_RESOURCE, format!("engine error: {error}")))
            .and_then(|credentials| core.make_place(credentials.into()))
            .and_then(|()| match check_spare_files(socket.as_fd(), &self.caches) {
                Err(_) if core.evict(|_| true) => Ok(()),
                enough => enough,
            });
        match place {
            Ok(()) => self.connect(core, Connection::remote(socket), None),
            Err(failure) => refuse(&socket, failure, core.log()),
        }
        for (id, failure) in core.take_refused() {
            self.end_pending(core, id, failure.into());
        }
    }

    /// Adds a connection. `own` is the grant of an embedder's own connection.
    pub(crate) fn connect(
        &mut self,
        core: &mut LockedTables<'_>,
        connection: Connection,
        own: Option<Grant>,
    ) {
        let connected = connection.open().and_then(|credentials| {
            let id = core.connected(credentials, own, Instant::now());
            let fd = connection.socket().as_raw_fd();
            let interest = Interest::READABLE.add(Interest::WRITABLE);
            let registered = self.poll.registry().register(&mut SourceFd(&fd), Token(id), interest);
            registered.inspect_err(|_| core.pending_ended(id))?;
            self.connections.insert(id, connection);
            Ok(())
        });
        if let Err(error) = connected {
            core.log().push(move || tracing::info!(%error, "cannot add a connection"));
        }
    }

    /// Reads the hellos of pending connections, and ends connections that have missed their
    /// deadline.
    pub(crate) fn greet(&mut self, core: &mut LockedTables<'_>) {
        let now = Instant::now();
        for id in core.pending_ids() {
            if let Err(ended) = self.greet_one(core, id, now) {
                self.end_pending(core, id, ended);
            }
        }
    }

    fn greet_one(&mut self, core: &mut LockedTables<'_>, id: PeerId, now: Instant) -> Result<(), Ended> {
        let connection = self.connections.get_mut(&id).filter(|_| core.expects_hello(id));
        let message = connection.map(Connection::next).transpose()?.flatten();
        let Some(message) = message else { return core.check_deadline(id, now) };
        match core.greeted(id, message, now)? {
            Some(grant) => self.welcome(core, id, grant),
            None => Ok(()),
        }
    }

    /// Processes the host's answer about a tool.
    pub(crate) fn approved(
        &mut self,
        core: &mut LockedTables<'_>,
        id: PeerId,
        answer: Result<Grant, Failure>,
    ) {
        let result = answer.map_err(Ended::from).and_then(|grant| self.welcome(core, id, grant));
        if let Err(ended) = result {
            self.end_pending(core, id, ended);
        }
    }

    /// Turns a pending connection into a tool: creates its reader page and its bells.
    fn welcome(&mut self, core: &mut LockedTables<'_>, id: PeerId, grant: Grant) -> Result<(), Ended> {
        // It may have been refused meanwhile.
        let Some(own) = core.is_own_pending(id) else { return Ok(()) };
        let no_room =
            |error: &dyn ToString| Failure { status: Status::ERR_OUT_OF_RESOURCE, reason: error.to_string() };
        let failed = |source| CreateError::Memory { step: "doorbell", len: 0, source };
        let made = if own { iof_shm_ring::bell() } else { iof_shm_ring::doorbell() };
        let (ringer, bell) = made.map_err(|error| no_room(&failed(error)))?;
        let page = ReaderPage::create(ringer).map_err(|error| no_room(&error))?;
        let page = match self.connections.get(&id).and_then(Connection::stepper) {
            Some(stepper) => page.with_stepper(stepper.clone()),
            None => page,
        };
        // The files of the embedder's own readers are accounted to the job.
        if !own && let Some(file) = page.as_fd() {
            check_spare_files(file, &self.caches)?;
        }
        let (room, room_bell) = match (grant, own) {
            (Grant::Never, _) => (None, None),
            (_, true) => (Some(self.capture.room_bell().map_err(DisconnectReason::from)?), None),
            (_, false) => {
                let (ringer, bell) = self.capture.peer_room_bell().map_err(DisconnectReason::from)?;
                (Some(ringer), Some(bell))
            }
        };
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.room_bell = room_bell;
        }
        self.tables.memory.add_tool(id, page, bell, room);
        core.welcome(id, grant, Instant::now());
        Ok(())
    }

    /// Ends a connection that has not become a tool.
    fn end_pending(&mut self, core: &mut LockedTables<'_>, id: PeerId, ended: Ended) {
        core.pending_ended(id);
        let Some(connection) = self.connections.remove(&id) else { return };
        self.deregister(&connection);
        match ended {
            Ended::Refused(failure) => refuse(connection.socket(), failure, core.log()),
            Ended::Closed(DisconnectReason::Closed) => {}
            Ended::Closed(reason) => {
                core.log().push(move || tracing::info!(%reason, "a connection was closed"));
            }
        }
    }

    /// Removes a tool and everything that it has requested.
    pub(crate) fn disconnect(&mut self, core: &mut LockedTables<'_>, id: PeerId, reason: DisconnectReason) {
        let peer = core.disconnected(id);
        let Some((connection, peer)) = self.connections.remove(&id).zip(peer) else { return };
        self.deregister(&connection);
        if !matches!(reason, DisconnectReason::Closed) {
            let (tool, pid) = (peer.name().to_owned(), peer.client().process.pid);
            // Not a warning: any tool could make the engine repeat it.
            core.log().push(move || tracing::info!(tool, pid, %reason, "a tool was disconnected"));
        }
        match connection.depart() {
            Some(departed) => drop(self.departed.insert(id, departed)),
            None => core.departed_received(id),
        }
    }

    fn deregister(&self, connection: &Connection) {
        let _ = self.poll.registry().deregister(&mut SourceFd(&connection.socket().as_raw_fd()));
    }

    /// Forgets ended connections on which no descriptor is in flight any more.
    fn forget_departed(&mut self, core: &mut LockedTables<'_>) {
        self.departed.retain(|id, connection| {
            let keeps = connection.update() > 0;
            if !keeps {
                core.departed_received(*id);
            }
            keeps
        });
    }

    /// Returns how many descriptors in flight count against the shared pool, and forgets ended
    /// connections on which no descriptor is in flight any more.
    pub(crate) fn fds_in_flight(&mut self, core: &mut LockedTables<'_>) -> usize {
        self.forget_departed(core);
        let departed = self.departed.values().map(|connection| connection.fds());
        let tools = self.connections.iter().filter(|(id, _)| core.is_counted(**id));
        let tools = tools.map(|(_, connection)| connection.fds_in_flight());
        departed.chain(tools).map(|fds| self.budget.pool_share(fds)).fold(0, usize::saturating_add)
    }
}

/// Sends the reason of a refusal. It fits an empty socket buffer; if the send fails, the tool sees
/// only a closed connection.
fn refuse(socket: &UnixStream, Failure { status, reason }: Failure, log: &mut LogLines) {
    if let Ok(frame) = encode(&ToTool::Refused { status, reason: reason.clone() }) {
        let _: io::Result<usize> = socket::send(socket, &frame, &[]);
    }
    log.push(move || tracing::info!(reason, "a tool was refused"));
}
