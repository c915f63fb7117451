//! Connections that become tools.

use std::time::Instant;

use iof_proto::{Failure, FromTool, PROTOCOL_VERSION, Quota, QuotaScope, Status, ToTool, socket};

use crate::Core;
use crate::clients::client::{ClientId, ClientProcess, Payer};
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
        let process = ClientProcess::from(credentials);
        let payer = Payer { id: ClientId::Tool(id), process: Some(process) };
        let place = own.is_none().then(|| self.quotas.charge(payer, self.place_amounts(process)));
        let place = place.and_then(|place| {
            debug_assert!(place.is_ok(), "no place was made for a connection");
            place.ok()
        });
        self.pending.insert(id, PendingPeer::new(credentials, own, place, now));
        id
    }

    /// Returns the quotas that a connection of `process` is charged for.
    fn place_amounts(&self, process: ClientProcess) -> [(Quota, u64); 2] {
        let is_other = ![0, self.settings.uid].contains(&process.uid);
        [(Quota::Connections, 1), (Quota::OtherConnections, u64::from(is_other))]
    }

    /// Finds a place for a connection of `process`. If none is free, the oldest connection that has
    /// not sent a hello is to be closed.
    ///
    /// # Errors
    /// No such connection exists.
    pub fn make_place(&mut self, process: ClientProcess) -> Result<(), Failure> {
        let payer = Payer { id: ClientId::Embedder, process: Some(process) };
        let trusted = [0, self.settings.uid];
        for (quota, amount) in self.place_amounts(process) {
            while let Some((scope, failure)) = self.quotas.excess(payer, quota, amount) {
                let evicted = self.evict(|other| match scope {
                    QuotaScope::Process => other.is_process(process),
                    QuotaScope::User => other.uid == process.uid,
                    QuotaScope::Tool | QuotaScope::Job | QuotaScope::Engine => {
                        quota == Quota::Connections || !trusted.contains(&other.uid)
                    }
                });
                if !evicted {
                    return Err(failure);
                }
            }
        }
        Ok(())
    }

    /// Closes the oldest connection without a hello whose client matches. Returns whether it has
    /// found one.
    pub fn evict(&mut self, matches: impl Fn(ClientProcess) -> bool) -> bool {
        let silent =
            |pending: &PendingPeer| !pending.is_own() && pending.is_silent() && matches(pending.process());
        let Some(id) = self.pending.iter().find(|(_, pending)| silent(pending)).map(|(id, _)| *id) else {
            return false;
        };
        self.pending_ended(id);
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
        let ended = self.pending.remove(&id);
        self.quotas.give_back(ended.and_then(|pending| pending.place));
    }

    /// Notes that the host has approved or refused the tool `id`.
    pub fn approval_answered(&mut self, id: PeerId) {
        self.owes_no_more(Call::Approve(id));
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
        self.owe(call, Payer { id: ClientId::Tool(id), process: Some(credentials.into()) }, 0)?;
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
    pub fn welcome(&mut self, id: PeerId, grant: Grant, now: Instant) {
        let Some(pending) = self.pending.remove(&id) else { return };
        let slots = PageSlots::new(PageId::Tool(id), self.settings.slots);
        let mut peer = pending.into_tool(id, grant, slots, self.settings.limits, now);
        let may_block = grant != Grant::Never;
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

    /// Notes that no descriptor is in flight on a connection that has ended. It counts until then.
    pub fn departed_received(&mut self, id: PeerId) {
        self.quotas.give_back(self.departed.remove(&id));
    }

    /// Returns until when an engine that ends waits for its tools after `now`; `None` if it need
    /// not wait.
    pub fn lingers_until(&self, linger: &Linger, now: Instant) -> Option<Instant> {
        let tools = self.tools.values().map(Peer::last_activity);
        linger.until(tools.chain(self.pending.values().map(PendingPeer::last_activity)), now)
    }

    /// Removes a tool and everything that it has requested. Its connection counts until
    /// [`Core::departed_received`].
    pub fn disconnected(&mut self, id: PeerId) -> Option<Peer> {
        self.detach(id, None);
        let mut peer = self.tools.remove(id)?;
        self.registrations_changed();
        self.effects.notices.append(&mut peer.take_notices());
        self.effects.handles.push(HandleOp::DropPage(id));
        peer.tickets().for_each(|ticket| self.release(ticket));
        self.spawner_left(id);
        self.leave_pushes(id, peer.pushes());
        self.forget_pauses();
        self.quotas.give_back(peer.take_charges());
        self.departed.extend(peer.place.take().map(|place| (id, place)));
        self.quotas.give_back(self.queries.forget(id));
        self.quotas.give_back(self.logs.forget(id));
        Some(peer)
    }
}
