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
        /// The processes.
        procs: Vec<Proc>,
        /// The channels.
        channels: Channels,
        /// The directives.
        directives: Vec<Info>,
    },
    /// The end of an earlier [`ToolRequest::Pull`] (`PMIx_IOF_deregister`), which has ended.
    Stop {
        /// The processes of that request. None if libpmix does not tell.
        procs: Vec<Proc>,
        /// The channels of that request.
        channels: Channels,
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
    /// Queries (`PMIx_Query_info`).
    Query {
        /// The queries.
        queries: Vec<Query>,
        /// Answers them.
        reply: AnswerReply,
    },
    /// A message to be logged (`PMIx_Log`).
    Log {
        /// The message.
        log: Log,
        /// Reports whether it was logged.
        reply: StatusReply,
    },
}

impl ToolRequest {
    /// Refuses the request, if it waits for an answer.
    pub fn refuse(self, status: Status) {
        match self {
            ToolRequest::Pull { .. } | ToolRequest::Stop { .. } => {}
            ToolRequest::Push { reply, .. } | ToolRequest::Log { reply, .. } => reply.send(status),
            ToolRequest::Query { reply, .. } => reply.refuse(status),
        }
    }
}
