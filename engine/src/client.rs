//! The process at the other end of a connection, as the kernel names it.

use iof_proto::socket;

/// A process that limits are counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Client {
    /// 0 if it lives in a pid namespace that we cannot see.
    pub pid: u32,
    pub uid: u32,
}

impl Client {
    /// Returns whether both are connections of one process, as far as that can be known: processes
    /// of pid namespaces that we cannot see are told apart by their user only, and are counted
    /// for that.
    pub(crate) fn is_process(self, other: Client) -> bool {
        self == other && self.pid != 0
    }
}

impl From<socket::PeerCredentials> for Client {
    fn from(peer: socket::PeerCredentials) -> Client {
        Client { pid: peer.pid, uid: peer.uid }
    }
}
