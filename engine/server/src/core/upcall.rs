//! The upcalls to the host and the callbacks of the embedder, as data.

use std::sync::Arc;

use iof_capture::{PushId, Signal};
use iof_proto::{Info, Log, LogReport, Proc, Query, socket};

use crate::core::demand::{CallId, Sources};
use crate::core::ids::{LogStep, PeerId, QueryId, SignalRequest};
use crate::core::job::Receivers;

/// The callback that an embedder passes with a message.
pub(crate) type LogCallback = Box<dyn FnOnce(LogReport) + Send>;

/// The callback of the host, which is called once its bytes are not needed any more or its request
/// was performed.
pub(crate) type TakenCallback = Box<dyn FnOnce() + Send>;

/// A push to the stdin of remote processes. [`Host::push_stdin`](crate::Host::push_stdin) receives
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
pub(crate) struct Piece {
    pub position: u64,
    pub len: usize,
}

/// An upcall or callback that the control thread makes after it has unlocked the tables.
pub(crate) enum Upcall {
    Approve {
        peer: PeerId,
        credentials: socket::PeerCredentials,
    },
    Pull {
        call: CallId,
        sources: Sources,
        directives: Vec<Info>,
    },
    Stop(Sources),
    /// The driver copies the piece before it sends a tool credit for its bytes.
    Stdin {
        push: PushId,
        stdin: Arc<StdinPush>,
        piece: Piece,
    },
    Query {
        id: QueryId,
        queries: Vec<Query>,
    },
    /// The answer is [`Input::SignalledElsewhere`](super::input::Input::SignalledElsewhere).
    Signal {
        procs: Vec<Proc>,
        signal: Signal,
        /// The request, and the other ranks to signal afterwards.
        requested: SignalRequest,
        receivers: Receivers,
    },
    Log {
        step: LogStep,
        log: Log,
    },
    Logged {
        done: LogCallback,
        report: LogReport,
    },
    Taken(TakenCallback),
}

impl Upcall {
    /// Returns the callback of a delivery, if this is one.
    pub(crate) fn into_callback(self) -> Option<TakenCallback> {
        if let Upcall::Taken(callback) = self { Some(callback) } else { None }
    }
}
