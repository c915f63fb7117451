//! What a PMIx tool requests of its server.

use iof_proto::{Channels, Info, Log, Proc, Query, Status};

use crate::tool_upcalls::{AnswerReply, StatusReply};

/// A request of a PMIx tool.
#[derive(Debug)]
#[non_exhaustive]
pub enum ToolRequest {
    /// The output `channels` of `procs` (`PMIx_IOF_pull`), which is granted: libpmix 4 uses memory
    /// that it has freed if the answer comes later.
    Pull {
        /// libpmix's number of the pull, which is in use until [`ToolServer::forget_pull`].
        ///
        /// [`ToolServer::forget_pull`]: crate::ToolServer::forget_pull
        number: u32,
        /// The processes.
        procs: Vec<Proc>,
        /// The channels.
        channels: Channels,
        /// The directives.
        directives: Vec<Info>,
    },
    /// Bytes for the stdin of `targets` (`PMIx_IOF_push`).
    Push {
        /// The processes.
        targets: Vec<Proc>,
        /// The directives.
        directives: Vec<Info>,
        /// The bytes. None: the stdin is to be closed.
        bytes: Vec<u8>,
        /// Reports that the targets have the bytes: the tool may then push the next ones.
        reply: StatusReply,
    },
    /// The end of processes (`PMIx_Abort`). A tool learns of no refusal: its libpmix always reports
    /// success.
    Abort {
        /// The processes.
        procs: Vec<Proc>,
        /// Reports that they were killed.
        reply: StatusReply,
    },
    /// Queries (`PMIx_Query_info`).
    Query {
        /// The queries.
        queries: Vec<Query>,
        /// Answers them.
        reply: AnswerReply,
    },
    /// A message to be logged (`PMIx_Log`), or the reason why it cannot be: libpmix holds locks
    /// during its upcall that the answer needs, so that the receiver gives it.
    Log {
        /// The message.
        log: Result<Log, Status>,
        /// Reports whether it was logged.
        reply: StatusReply,
    },
}

impl ToolRequest {
    /// Refuses the request, if it waits for an answer.
    pub fn refuse(self, status: Status) {
        match self {
            ToolRequest::Pull { .. } => {}
            ToolRequest::Push { reply, .. }
            | ToolRequest::Abort { reply, .. }
            | ToolRequest::Log { reply, .. } => reply.send(status),
            ToolRequest::Query { reply, .. } => reply.refuse(status),
        }
    }
}
