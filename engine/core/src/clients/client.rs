//! Clients: whoever asks the core for something.

use std::sync::{Arc, Weak};

use iof_proto::names::sanitize;
use iof_proto::{Proc, Rank, ToTool, socket};

use crate::Core;
use crate::ids::{JobId, PeerId};
use crate::upcall::{ReplyCallback, Upcall};

/// The longest part of a client's name that is shown, in characters.
const MAX_NAME_CHARS: usize = 64;

/// A process to which limits per process apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientProcess {
    /// 0 if the process is in a pid namespace that is not visible to the engine.
    pub pid: u32,
    /// The user that it belongs to.
    pub uid: u32,
}

impl ClientProcess {
    /// Returns whether both connections are known to belong to one process. Returns `false` for
    /// processes in pid namespaces that are not visible to the engine: only their user is known,
    /// and they are counted per user.
    pub fn is_process(self, other: ClientProcess) -> bool {
        self == other && self.pid != 0
    }
}

impl From<socket::PeerCredentials> for ClientProcess {
    fn from(peer: socket::PeerCredentials) -> ClientProcess {
        ClientProcess { pid: peer.pid, uid: peer.uid }
    }
}

/// The kind of a client, with its number among those of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientId {
    /// The embedder itself.
    Embedder,
    /// A tool, also one of PMIx.
    Tool(PeerId),
    /// A rank of the job with this number, which asks by PMI-1 or PMIx.
    Rank(u64, Rank),
    /// A rank that asks by a protocol which does not name it. No limit of one client applies.
    Ranks,
}

/// Whoever asks the core: the embedder, a tool, or a rank.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its kind.
    pub id: ClientId,
    /// Its process.
    pub process: ClientProcess,
    /// The name that a tool has chosen, or that of a rank.
    pub name: Arc<str>,
    /// `true` for the embedder and its own tools, to which fewer limits apply.
    pub own: bool,
    /// The process of a job that it is, if it is a rank.
    pub rank: Option<Proc>,
}

impl Client {
    /// Returns the client as its holdings are counted.
    pub fn payer(&self) -> Payer {
        Payer { id: self.id, process: (!self.own).then_some(self.process) }
    }

    /// Returns the job and the rank that it is, if it is one.
    pub(crate) fn job_and_rank(&self) -> Option<(JobId, Rank)> {
        match (self.id, &self.rank) {
            (ClientId::Rank(run, rank), Some(Proc { nspace, .. })) => {
                Some((JobId { nspace: nspace.clone(), run }, rank))
            }
            _ => None,
        }
    }

    /// Describes the client for people and files.
    pub(crate) fn description(&self) -> String {
        // The tool chooses its name freely, and the name ends up in files and terminals.
        let name: String = sanitize(&self.name).chars().take(MAX_NAME_CHARS).collect();
        format!("{name} (pid {})", self.process.pid)
    }
}

/// The sender of a message.
pub enum MessageOrigin {
    /// A tool.
    Tool(PeerId),
    /// A rank of this node, by PMI-1 or PMIx.
    Rank {
        /// Its job and its number; `None` if the protocol does not tell them.
        rank: Option<(JobId, Rank)>,
        /// Receives the answer. Dropped if the rank does not exist.
        reply: ReplyCallback,
    },
}

/// A client as its holdings are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payer {
    /// The client.
    pub id: ClientId,
    /// Its process; `None` if limits per process and user do not apply.
    pub process: Option<ClientProcess>,
}

/// A client that waits for the answer to one request.
pub(crate) struct Requester {
    pub client: Client,
    pub reply_to: ReplyTo,
    /// Expires when the tool disconnects; `None` for other clients.
    pub connection: Option<Weak<()>>,
}

/// The receiver of an answer. A callback is dropped if its request is not served.
pub(crate) enum ReplyTo {
    /// The tool that has sent the request, and its number for it.
    Tool(PeerId, u32),
    /// The embedder or a rank.
    Callback(ReplyCallback),
}

impl Requester {
    /// Returns a rank, whose process is `process`, or the ranks as one if it is not known. `reply` is
    /// called with the answer.
    pub(crate) fn rank(
        rank: Option<(JobId, Rank)>,
        process: ClientProcess,
        reply: ReplyCallback,
    ) -> Requester {
        let id = rank.as_ref().map_or(ClientId::Ranks, |(job, rank)| ClientId::Rank(job.run, *rank));
        let rank = rank.map(|(job, rank)| Proc::new(job.nspace, rank));
        let name = rank.as_ref().map_or_else(|| "a rank".into(), |proc| proc.to_string().into());
        let client = Client { id, process, name, own: false, rank };
        Requester { client, reply_to: ReplyTo::Callback(reply), connection: None }
    }

    /// Returns the embedder, whose process is `process`. `done` is called with the answer.
    pub(crate) fn embedder(process: ClientProcess, done: ReplyCallback) -> Requester {
        let client = Client { id: ClientId::Embedder, process, name: "engine".into(), own: true, rank: None };
        Requester { client, reply_to: ReplyTo::Callback(done), connection: None }
    }

    /// Returns whether this is the embedder.
    pub(crate) fn is_embedder(&self) -> bool {
        self.client.id == ClientId::Embedder
    }

    /// Returns the tool, if it is one.
    pub(crate) fn tool(&self) -> Option<PeerId> {
        if let ReplyTo::Tool(peer, _) = self.reply_to { Some(peer) } else { None }
    }
}

impl Core {
    /// Answers a request. `answer` makes the message for the number of the request.
    pub(crate) fn reply(&mut self, requester: Requester, answer: impl FnOnce(u32) -> ToTool) {
        match requester.reply_to {
            ReplyTo::Tool(peer, request) => {
                if let Some(peer) = self.tools.get_mut(&peer) {
                    peer.answer(&answer(request));
                }
            }
            ReplyTo::Callback(done) => self.effects.upcalls.push(Upcall::Reply { done, answer: answer(0) }),
        }
    }
}
