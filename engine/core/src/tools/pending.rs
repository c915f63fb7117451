//! Connections that are not tools yet: they have not sent a hello, or the host has not approved
//! them. Each costs a socket and a few words of memory.

use std::collections::BTreeMap;
use std::time::Instant;

use iof_proto::limits::{APPROVAL_LIMIT, HELLO_LIMIT, MAX_CONNECTIONS};
use iof_proto::{Failure, Status, socket};

use crate::clients::client::{Client, ClientId, ClientProcess};
use crate::clients::quotas::Charge;
use crate::disconnect::DisconnectReason;
use crate::ids::PeerId;
use crate::limits::Limits;
use crate::resources::PageSlots;
use crate::tools::grant::Grant;
use crate::tools::linger::LastActivity;
use crate::tools::peer::Peer;

/// A connection that is not a tool yet.
pub struct PendingPeer {
    credentials: socket::PeerCredentials,
    /// When it connected.
    connected: Instant,
    /// The grant, if this is the embedder's own connection.
    own: Option<Grant>,
    /// The charge of its place; `None` for the embedder's own.
    pub(crate) place: Option<Charge>,
    /// When the connection is refused; `None` for the embedder's own.
    deadline: Option<Instant>,
    /// The tool's name, once it has sent a hello and the host was asked.
    name: Option<String>,
}

impl PendingPeer {
    pub(crate) fn new(
        credentials: socket::PeerCredentials,
        own: Option<Grant>,
        place: Option<Charge>,
        connected: Instant,
    ) -> PendingPeer {
        let deadline = if own.is_none() { connected.checked_add(HELLO_LIMIT) } else { None };
        PendingPeer { credentials, connected, own, place, deadline, name: None }
    }

    /// Returns what the engine must know about this connection when it ends.
    pub(crate) fn last_activity(&self) -> LastActivity {
        LastActivity {
            has_unsent: false,
            last_taken: self.connected,
            last_asked: self.own.is_none().then_some(self.connected),
        }
    }

    pub(crate) fn process(&self) -> ClientProcess {
        self.credentials.into()
    }

    /// Returns whether this is the embedder's own connection.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Returns whether the tool has not sent a hello.
    pub(crate) fn is_silent(&self) -> bool {
        self.name.is_none()
    }

    /// Returns when the connection is refused; `None` for the embedder's own.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Notes the tool's hello. Returns the grant of the embedder's own tool. The host has
    /// [`APPROVAL_LIMIT`] to approve another one.
    pub(crate) fn greeted(&mut self, name: String, now: Instant) -> Option<Grant> {
        self.name = Some(name);
        if self.own.is_none() {
            self.deadline = now.checked_add(APPROVAL_LIMIT);
        }
        self.own
    }

    /// Returns the credentials of its process.
    pub(crate) fn credentials(&self) -> socket::PeerCredentials {
        self.credentials
    }

    /// Turns the connection into a tool.
    pub(crate) fn into_tool(
        self,
        id: PeerId,
        grant: Grant,
        slots: PageSlots,
        limits: Limits,
        now: Instant,
    ) -> Peer {
        let (process, own) = (self.process(), self.is_own());
        let name = self.name.unwrap_or_default().into();
        let client = Client { id: ClientId::Tool(id), process, name, own, rank: None };
        Peer::new(client, self.place, grant, slots, limits, now)
    }

    /// Returns the reason for the refusal if the tool or the host has missed its deadline by `now`.
    pub(crate) fn overdue(&self, now: Instant) -> Option<Failure> {
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
pub enum Ended {
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

/// Returns how many tools a process that may open `files` files has places for. A tool needs at
/// most four, and the jobs need some too.
pub fn places(files: u64) -> usize {
    usize::try_from(files / 8).unwrap_or(usize::MAX).clamp(8, MAX_CONNECTIONS)
}

/// Connections that are not tools yet, in the order in which they connected.
pub(crate) type Pending = BTreeMap<PeerId, PendingPeer>;
