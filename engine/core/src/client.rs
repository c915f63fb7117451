//! The process at the other end of a connection, as identified by the kernel.

use iof_proto::socket;

/// A process to which limits per process apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Client {
    /// 0 if the process is in a pid namespace that is not visible to the engine.
    pub pid: u32,
    /// The user that it belongs to.
    pub uid: u32,
}

impl Client {
    /// Returns whether both connections are known to belong to one process. Returns `false` for
    /// processes in pid namespaces that are not visible to the engine: only their user is known,
    /// and they are counted per user.
    pub fn is_process(self, other: Client) -> bool {
        self == other && self.pid != 0
    }
}

impl From<socket::PeerCredentials> for Client {
    fn from(peer: socket::PeerCredentials) -> Client {
        Client { pid: peer.pid, uid: peer.uid }
    }
}
