//! The simulated engine's connections.

use iof_core::{DisconnectReason, Ended, Grant, Input, MessageOrigin};
use iof_proto::{Failure, FromTool, ToTool, encode};
use iof_shm_ring::{ReaderPage, bell};

use super::{ConnectionId, Packet, PeerCredentials, SimulatedEngine, Socket, lacking, limit_checks};

impl SimulatedEngine {
    /// Adds a connection whose socket holds `room` bytes to the tool. `own` is the grant of an
    /// embedder's own connection.
    ///
    /// # Errors
    /// No place is free.
    pub fn connect(
        &mut self,
        credentials: PeerCredentials,
        own: Option<Grant>,
        room: usize,
    ) -> Result<ConnectionId, Failure> {
        let place = if own.is_none() { self.core.make_place(credentials.into()) } else { Ok(()) };
        for (id, failure) in self.core.take_refused() {
            self.end_pending(id, failure.into());
        }
        place?;
        let id = self.core.connected(credentials, own, self.now);
        self.sockets.insert(id, Socket::new(room));
        self.own.extend(own.is_some().then_some(id));
        self.grants.extend(own.map(|grant| (id, grant)));
        Ok(id)
    }

    /// Sends bytes to the engine.
    pub fn send(&mut self, id: ConnectionId, bytes: &[u8]) {
        self.digest.add(bytes);
        if let Some(socket) = self.sockets.get_mut(&id) {
            socket.send(bytes);
        }
    }

    /// Closes the tool's end of a connection.
    pub fn close(&mut self, id: ConnectionId) {
        if let Some(socket) = self.sockets.get_mut(&id) {
            socket.close();
        }
    }

    /// Shuts the tool's receiving side of a connection: all sends to it fail from now on, and what
    /// the tool sends still arrives.
    pub fn shut_receiving(&mut self, id: ConnectionId) {
        if let Some(socket) = self.sockets.get_mut(&id) {
            socket.shut_receiving();
        }
    }

    /// Receives the next message to a tool.
    pub fn receive(&mut self, id: ConnectionId) -> Option<Packet> {
        self.sockets.get_mut(&id)?.receive()
    }

    /// Returns whether the engine has closed a connection, and the tool has received everything.
    pub fn is_closed(&self, id: ConnectionId) -> bool {
        self.sockets.get(&id).is_none_or(Socket::is_over)
    }

    /// Returns whether the engine has closed a connection.
    pub fn is_ended(&self, id: ConnectionId) -> bool {
        self.sockets.get(&id).is_none_or(Socket::is_ended)
    }

    /// Forgets a socket whose two ends are closed.
    pub fn forget(&mut self, id: ConnectionId) {
        self.sockets.remove(&id);
    }

    /// Serves at most `messages` messages of a connection, and sends what its socket has room for.
    /// Returns whether anything happened.
    pub fn serve(&mut self, id: ConnectionId, messages: usize) -> bool {
        if self.core.is_own_pending(id).is_some() {
            return match self.greet(id) {
                Ok(greeted) => greeted,
                Err(ended) => {
                    self.end_pending(id, ended);
                    true
                }
            };
        }
        match self.serve_tool(id, messages) {
            Ok(busy) => busy,
            Err(_) => {
                self.core.disconnected(id);
                self.note_left(id);
                self.core.departed_received(id);
                self.sockets.get_mut(&id).map(Socket::end);
                true
            }
        }
    }

    fn greet(&mut self, id: ConnectionId) -> Result<bool, Ended> {
        let socket = self.sockets.get_mut(&id).filter(|_| self.core.expects_hello(id));
        let message = socket.map(Socket::next).transpose()?.flatten();
        let Some(message) = message else { return Ok(false) };
        if let Some(grant) = self.core.greeted(id, message, self.now)? {
            self.welcome(id, grant)?;
        }
        Ok(true)
    }

    fn serve_tool(&mut self, id: ConnectionId, messages: usize) -> Result<bool, DisconnectReason> {
        let mut busy = false;
        for _ in 0..messages {
            // Before the tool is sent the report of a push that has ended.
            self.pushes.look(&self.core);
            let Some(socket) = self.sockets.get_mut(&id) else { return Ok(busy) };
            let Some(peer) = self.core.tool_mut(id) else { return Ok(busy) };
            busy |= socket.flush((id, peer), &self.memory, self.now, &mut self.digest);
            let message: Option<FromTool> = peer.next_message(self.now, || socket.next())?;
            if peer.take_stopped() {
                self.core.remove_kept_streams();
            }
            let Some(message) = message else { return Ok(busy) };
            busy = true;
            limit_checks::check_serves(&self.core, id, &message);
            let handled =
                self.core.handle(Input::Message { from: MessageOrigin::Tool(id), message }, self.now);
            self.note_commands();
            self.take_upcalls();
            self.note_claims(None);
            // The next message may end what this one has begun.
            self.reached.add(limit_checks::check_limits(&self.core));
            handled?;
        }
        Ok(true)
    }

    pub(super) fn welcome(&mut self, id: ConnectionId, grant: Grant) -> Result<(), Ended> {
        if self.core.is_own_pending(id).is_none() {
            return Ok(());
        }
        self.shortages.check_files()?;
        let (ringer, tool_bell) = bell().map_err(lacking)?;
        let room = if grant != Grant::Never { Some(self.room.try_clone().map_err(lacking)?) } else { None };
        self.memory.add_tool(id, ReaderPage::on_heap(ringer), tool_bell, room);
        self.core.welcome(id, grant, self.now);
        Ok(())
    }

    pub(super) fn end_pending(&mut self, id: ConnectionId, ended: Ended) {
        self.core.pending_ended(id);
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        if let Ended::Refused(Failure { status, reason }) = ended
            && let Ok(frame) = encode(&ToTool::Refused { status, reason })
        {
            socket.refuse(frame);
        }
        socket.end();
    }
}
