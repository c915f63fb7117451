//! Connections that become tools.

use std::time::Instant;

use iof_proto::limits::{MAX_CONNECTIONS_PER_PROCESS, MAX_CONNECTIONS_PER_USER, MAX_TOOLS, RESERVED_TOOLS};
use iof_proto::{Failure, FromTool, PROTOCOL_VERSION, Status, ToTool, socket};

use crate::Core;
use crate::client::Client;
use crate::disconnect::DisconnectReason;
use crate::effects::HandleOp;
use crate::ids::{Call, PageId, PeerId};
use crate::resources::PageSlots;
use crate::tools::grant::Grant;
use crate::tools::linger::Linger;
use crate::tools::outgoing::Attachment;
use crate::tools::peer::Peer;
use crate::tools::pending::{Ended, PendingPeer};
use crate::upcall::Upcall;

impl Core {
    /// Adds a connection. `own` is the grant of an embedder's own connection. Returns its number.
    pub fn connected(
        &mut self,
        credentials: socket::PeerCredentials,
        own: Option<Grant>,
        now: Instant,
    ) -> PeerId {
        let id = self.tools.next_id();
        self.pending.insert(id, PendingPeer::new(credentials, own, now));
        id
    }

    /// Finds a place for a connection of `client`. If none is free, the oldest connection that has
    /// not sent a hello is to be closed.
    ///
    /// # Errors
    /// No such connection exists.
    pub fn make_place(&mut self, client: Client) -> Result<(), Failure> {
        let full = |reason| Failure { status: Status::ERR_OUT_OF_RESOURCE, reason };
        let Client { pid, uid } = client;
        let all = self.settings.places;
        let part = |limit: usize| limit.saturating_mul(all) / MAX_TOOLS;
        let (of_process, of_user) =
            (|other: Client| other.is_process(client), |other: Client| other.uid == uid);
        let limit = part(MAX_CONNECTIONS_PER_PROCESS);
        if self.connections(of_process) >= limit && !self.evict(of_process) {
            return Err(full(format!("process {pid} has {limit} connections already: close one")));
        }
        let limit = part(MAX_CONNECTIONS_PER_USER);
        if self.connections(of_user) >= limit && !self.evict(of_user) {
            return Err(full(format!("user {uid} has {limit} connections already: close one")));
        }
        let is_trusted = uid == 0 || uid == self.settings.uid;
        let places = if is_trusted { all } else { all.saturating_sub(part(RESERVED_TOOLS)) };
        if self.connections(|_| true) >= places && !self.evict(|_| true) {
            let reason = format!("{places} tools are attached already");
            return Err(full(reason));
        }
        Ok(())
    }

    /// Returns the number of connections from outside whose client matches.
    fn connections(&self, matches: impl Fn(Client) -> bool) -> usize {
        let peers = self.tools.values().filter(|peer| !peer.is_own()).map(Peer::client);
        let pending = self.pending.values().filter(|pending| !pending.is_own()).map(PendingPeer::client);
        let departed = self.departed.values().copied();
        peers.chain(pending).chain(departed).filter(|client| matches(*client)).count()
    }

    /// Closes the oldest connection without a hello whose client matches. Returns whether it has
    /// found one.
    pub fn evict(&mut self, matches: impl Fn(Client) -> bool) -> bool {
        let silent =
            |pending: &PendingPeer| !pending.is_own() && pending.is_silent() && matches(pending.client());
        let Some(id) = self.pending.iter().find(|(_, pending)| silent(pending)).map(|(id, _)| *id) else {
            return false;
        };
        self.pending.remove(&id);
        let reason = "replaced by another connection: no hello was received";
        self.effects.refused.push((id, Failure::new(Status::ERR_OUT_OF_RESOURCE, reason)));
        true
    }

    /// Returns the numbers of all connections that are not tools yet, in the order in which they
    /// connected.
    pub fn pending_ids(&self) -> Vec<PeerId> {
        self.pending.keys().copied().collect()
    }

    /// Returns whether the pending connection `id` belongs to the embedder; `None` if it has been
    /// refused meanwhile.
    pub fn is_own_pending(&self, id: PeerId) -> Option<bool> {
        self.pending.get(&id).map(PendingPeer::is_own)
    }

    /// Notes that a connection that is not a tool yet is closed.
    pub fn pending_ended(&mut self, id: PeerId) {
        self.pending.remove(&id);
    }

    /// Notes that the host has approved or refused the tool `id`.
    pub fn approval_answered(&mut self, id: PeerId) {
        self.owed.answered(Call::Approve(id));
    }

    /// Returns whether the first message of connection `id` is expected.
    pub fn expects_hello(&self, id: PeerId) -> bool {
        self.pending.get(&id).is_some_and(PendingPeer::is_silent)
    }

    /// Processes the first message of a connection, and asks the host to approve the tool. Returns
    /// the grant of the embedder's own tool, which needs no approval.
    pub fn greeted(&mut self, id: PeerId, message: FromTool, now: Instant) -> Result<Option<Grant>, Ended> {
        let name = match message {
            FromTool::Hello { version: PROTOCOL_VERSION, name, .. } => name,
            FromTool::Hello { version, .. } => {
                let reason = format!(
                    "protocol version {version} of the tool differs from version {PROTOCOL_VERSION} of the engine: update the \
                     older one"
                );
                return Err(Failure::new(Status::ERR_NOT_SUPPORTED, reason).into());
            }
            _ => return Err(DisconnectReason::Unexpected("a request before a hello").into()),
        };
        let Some(pending) = self.pending.get_mut(&id) else { return Ok(None) };
        if let Some(grant) = pending.greeted(name, now) {
            return Ok(Some(grant));
        }
        let (credentials, call) = (pending.credentials(), Call::Approve(id));
        self.owed.note(call, Some(credentials.into()), 0)?;
        self.effects.upcalls.push(Upcall::Approve { peer: id, credentials });
        Ok(None)
    }

    /// Checks that a connection has not missed its deadline by `now`.
    pub fn check_deadline(&self, id: PeerId, now: Instant) -> Result<(), Ended> {
        match self.pending.get(&id).and_then(|pending| pending.overdue(now)) {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }

    /// Returns the earliest deadline of a pending connection.
    pub(crate) fn next_overdue(&self) -> Option<Instant> {
        self.pending.values().filter_map(PendingPeer::deadline).min()
    }

    /// Turns a pending connection into a tool, and sends it what the driver has made for it: its
    /// reader page, its doorbell and, if it may hold back sources, the bell by which it signals
    /// room.
    pub fn welcome(&mut self, id: PeerId, may_block: bool, now: Instant) {
        let Some(pending) = self.pending.remove(&id) else { return };
        let slots = PageSlots::new(PageId::Tool(id), self.settings.slots);
        let mut peer = pending.into_tool(may_block, slots, self.settings.limits, now);
        let message = ToTool::Welcome { version: PROTOCOL_VERSION, engine_pid: self.settings.pid, may_block };
        peer.send_with(&message, Attachment::Welcome { may_block });
        self.tools.insert(id, peer);
    }

    /// Returns the numbers of all tools, in the order in which they connected.
    pub fn tool_ids(&self) -> Vec<PeerId> {
        self.tools.ids()
    }

    /// Returns a tool, for the messages to it. What is worth a line of the log becomes an effect.
    pub fn tool_mut(&mut self, id: PeerId) -> Option<&mut Peer> {
        let peer = self.tools.get_mut(&id)?;
        self.effects.notices.append(&mut peer.take_notices());
        Some(peer)
    }

    /// Returns whether `id` is a tool that does not belong to the embedder.
    pub fn is_counted(&self, id: PeerId) -> bool {
        self.tools.get(&id).is_some_and(|peer| !peer.is_own())
    }

    /// Notes that descriptors are in flight on the connection of `client`, which has ended. It
    /// counts until [`Core::departed_received`].
    pub fn departs(&mut self, id: PeerId, client: Client) {
        self.departed.insert(id, client);
    }

    /// Notes that no descriptor is in flight any more on a connection that has ended.
    pub fn departed_received(&mut self, id: PeerId) {
        self.departed.remove(&id);
    }

    /// Returns until when an engine that ends waits for its tools after `now`; `None` if it need
    /// not wait.
    pub fn lingers_until(&self, linger: &Linger, now: Instant) -> Option<Instant> {
        let tools = self.tools.values().map(Peer::last_activity);
        linger.until(tools.chain(self.pending.values().map(PendingPeer::last_activity)), now)
    }

    /// Removes a tool and everything that it has requested.
    pub fn disconnected(&mut self, id: PeerId) -> Option<Peer> {
        self.detach(id, None);
        let mut peer = self.tools.remove(id)?;
        self.effects.notices.append(&mut peer.take_notices());
        self.effects.handles.push(HandleOp::DropPage(id));
        peer.tickets().for_each(|ticket| self.release(ticket));
        self.leave_pushes(id, peer.pushes());
        self.forget_pauses();
        self.queries.forget(id);
        self.logs.forget(id);
        Some(peer)
    }
}
