//! The upcalls to the host and the callbacks of the embedder, as data.

use std::sync::Arc;

use iof_capture::{PushId, Signal};
use iof_proto::{Exchange, Info, JobSpec, Log, Nspace, Proc, Query, ToTool, socket};

use crate::ids::{JobId, LogStep, PeerId, QueryId, SignalRequest, SpawnId};
use crate::jobs::job::Receivers;
use crate::tools::demand::{CallId, ProcChannels};

/// The receiver of the answer to a request of the embedder or of a rank. The number in it is 0.
pub type ReplyCallback = Box<dyn FnOnce(ToTool) + Send>;

/// The callback of the host, which is called once its bytes are not needed any more or its request
/// was performed.
pub type TakenCallback = Box<dyn FnOnce() + Send>;

/// A push to the stdin of remote processes. `Host::push_stdin` receives
/// its bytes piece by piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StdinPush {
    /// The number of the push. The pieces of one push arrive in order, and after those of all
    /// earlier pushes to any of the same processes.
    pub id: u64,
    /// The tool that pushes. The text `name.rank` that the tool attached with is its job and rank.
    /// A text without a rank means rank 0, and one that is not a name of a job becomes
    /// `iof-tool-<pid>`. A tool chooses its name freely, so the name proves nothing.
    pub source: Proc,
    /// The processes that receive the bytes. A wildcard rank stands for all remote processes of its
    /// job.
    pub targets: Vec<Proc>,
    /// The tool's directives for the push (RFC0025).
    pub directives: Vec<Info>,
}

/// Bytes in the inlet of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The position of its first byte in the push.
    pub position: u64,
    /// The number of bytes.
    pub len: usize,
}

/// A request of a tool of the engine's own user to start a job, which `Host::spawn` grants or
/// refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpawnRequest {
    /// The job, with the name that it is to have.
    pub spec: JobSpec,
    /// The tool, see [`StdinPush::source`].
    pub tool: Proc,
    /// The job on whose behalf the tool asks, if it asks for one of this engine.
    pub parent: Option<Nspace>,
    /// `true` if the job continues when its parent ends: the job `parent` or, if there is none, the
    /// tool.
    pub detached: bool,
}

/// An upcall or callback that the control thread makes after it has unlocked the tables.
pub enum Upcall {
    /// The host approves or refuses a tool.
    Approve {
        /// The tool.
        peer: PeerId,
        /// Its process.
        credentials: socket::PeerCredentials,
    },
    /// Tools want sources.
    Pull {
        /// The call.
        call: CallId,
        /// The sources.
        sources: ProcChannels,
        /// The directives of the pull.
        directives: Vec<Info>,
    },
    /// No tool wants these sources any longer.
    Stop(ProcChannels),
    /// The driver copies the piece before it sends a tool credit for its bytes.
    Stdin {
        /// The push.
        push: PushId,
        /// Its tool and its targets.
        stdin: Arc<StdinPush>,
        /// The bytes.
        piece: Piece,
    },
    /// The host answers a part of a query.
    Query {
        /// The query.
        id: QueryId,
        /// The part.
        queries: Vec<Query>,
    },
    /// The answer is [`Input::SignalledElsewhere`](crate::input::Input::SignalledElsewhere).
    Signal {
        /// The remote ranks.
        procs: Vec<Proc>,
        /// The signal.
        signal: Signal,
        /// The request.
        requested: SignalRequest,
        /// The ranks of this and other nodes that receive it afterwards.
        receivers: Receivers,
    },
    /// The host logs a message.
    Log {
        /// The step of the request.
        step: LogStep,
        /// The message.
        log: Log,
    },
    /// The host grants or refuses a job.
    Spawn {
        /// The request.
        id: SpawnId,
        /// The job.
        request: Box<SpawnRequest>,
    },
    /// The driver starts a job, and reports that by [`Core::spawn_ended`](crate::Core::spawn_ended).
    Start {
        /// The request.
        id: SpawnId,
        /// The job as the host has granted it.
        spec: Box<JobSpec>,
    },
    /// A job that the host has granted is not started, because its spawner has disconnected.
    Abandoned(Nspace),
    /// The driver removes an ended job that it has started for a tool.
    Remove(JobId),
    /// A request of the embedder or of a rank is answered.
    Reply {
        /// The callback of the client.
        done: ReplyCallback,
        /// The answer.
        answer: ToTool,
    },
    /// The host passes a request of a rank on to the engine that serves it.
    Exchange {
        /// The rank.
        from: Proc,
        /// The request.
        exchange: Exchange,
        /// The callback of the rank.
        done: ReplyCallback,
    },
    /// A callback of the embedder is called.
    Taken(TakenCallback),
}

impl Upcall {
    /// Returns the callback of a delivery, if this is one.
    pub(crate) fn into_callback(self) -> Option<TakenCallback> {
        if let Upcall::Taken(callback) = self { Some(callback) } else { None }
    }
}
