//! Control messages: all that is not output. Their encoding is
//! [postcard](https://postcard.jamesmunns.com/wire-format).

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Duration;

use iof_proto::{
    Channel, Channels, Exchange, Failure, JobSpec, Log, MpiEvent, Nspace, Policy, Rank, Relative, Rendezvous,
    Status, StreamPull, UntakenStdin, UsedResources, WindowSize,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::frame::Frame;
use crate::limits::{MAX_ANSWER, MAX_CONTROL, MAX_RANKS_OF_NODE, MAX_STDIN, MAX_TEXT, MAX_TOTALS};
use crate::pieces::ExchangeAnswer;

/// The reason why a control message is not valid, or can't be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The payload is not a message.
    #[error("invalid control message of {length} bytes")]
    Body {
        /// Its length, in bytes.
        length: usize,
    },
    /// The message is too long.
    #[error("a control message of {length} bytes exceeds the limit of {limit}")]
    TooLong {
        /// Its length, in bytes.
        length: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// A part of the message exceeds a limit.
    #[error("{length} {what} in a control message exceed the limit of {limit}")]
    Limit {
        /// The items that are counted.
        what: &'static str,
        /// The number in the message.
        length: usize,
        /// The limit.
        limit: usize,
    },
}

/// The files to which an agent writes the output of its ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFiles {
    /// The directory at which relative paths begin.
    pub directory: OsString,
    /// The lists of `iof run --output`.
    pub output: Vec<OsString>,
    /// The number of ranks of the job.
    pub nprocs: u32,
    /// Set if fragments are tagged in place of lines.
    pub fragments: bool,
    /// The text at the end of each line.
    pub suffix: String,
    /// The channels that are not written.
    pub hidden: Channels,
    /// Set if existing contents are kept.
    pub append: bool,
    /// The size of a full file, in bytes, and the number of full files that are kept.
    pub rotation: Option<(u64, u32)>,
    /// Set if large writes leave nothing in the page cache.
    pub drops_cache: bool,
    /// The time for which files may accept nothing before the job ends.
    pub give_up: Option<Duration>,
}

/// The settings of the engine of a node, and of what it does with the ranks' output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeConfig {
    /// Variables for all ranks, which override those of the agent. Those of an app override them.
    pub env: Vec<(OsString, OsString)>,
    /// The size of each cache, in bytes; `None` for the engine's default.
    pub cache_size: Option<u32>,
    /// The sum up to which the caches of the node grow, in bytes.
    pub cache_total: u64,
    /// The reaction of the node to a full cache. The front end drops nothing.
    pub policy: Policy,
    /// The longest part of a line that waits at the node for the end of the line, in bytes.
    pub max_line: usize,
    /// The time that such a part waits while its stream is quiet: not at all with 0, and `None` if that
    /// depends on the part.
    pub max_line_time: Option<Duration>,
    /// The name of the backend, if the user has chosen one.
    pub backend: Option<String>,
    /// The place at which tools find the engine, which is an agent in place of one of a session. A
    /// relative path is one of the front end's directory.
    pub rendezvous: Rendezvous,
    /// The files of the node, if it writes any.
    pub files: Option<NodeFiles>,
}

/// The ranks that an agent starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStart {
    /// The job. Its [`JobSpec::local`] ranks are those of the node, at most [`MAX_RANKS_OF_NODE`].
    /// The front end decides when the job ends.
    pub spec: JobSpec,
    /// The node's settings.
    pub config: NodeConfig,
}

/// A message of the front end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToAgent {
    /// Prepares the start of ranks. The agent answers with `Ready` or `Failed`.
    Start(Box<NodeStart>),
    /// Starts the ranks.
    Go,
    /// Sends a signal to all ranks, which are then expected to end if the signal ends a process.
    Signal {
        /// The number of the signal.
        signal: i32,
    },
    /// Sends a signal of a tool to some ranks.
    SignalRanks {
        /// The number of the signal.
        signal: i32,
        /// The ranks.
        ranks: Vec<Rank>,
    },
    /// The size of the front end's terminal, for all pseudo-terminals of the node.
    Resize(WindowSize),
    /// Bytes for the stdin of ranks, which pass the edge once. The agent answers with `StdinTaken`.
    Stdin {
        /// The number of the request.
        call: u64,
        /// The ranks; `None` for all of the node.
        ranks: Option<Vec<Rank>>,
        /// The bytes, at most [`MAX_STDIN`]; none closes stdin.
        bytes: Vec<u8>,
    },
    /// The answer to a message of a tool on the node: `None` if it was logged.
    Logged {
        /// The number of the request.
        call: u64,
        /// Why it was not logged.
        failure: Option<Failure>,
    },
    /// A piece of the values of the next message.
    Piece(Vec<u8>),
    /// The answer to an exchange of ranks of the node.
    Exchanged {
        /// The number of the request.
        call: u64,
        /// The answer.
        answer: ExchangeAnswer,
    },
    /// Requests what a rank of the node has put for ranks of other nodes. The agent answers with `Modex`.
    Modex {
        /// The number of the request.
        call: u64,
        /// The rank.
        rank: Rank,
    },
    /// Makes a job known to the ranks of the node, which may connect to its ranks.
    Relative(Relative),
    /// Makes them forget such a job.
    RelativeEnded(Nspace),
    /// Begins to send streams of ranks of the node, each to its end, or that of its pull.
    Pull(Vec<StreamPull>),
    /// Ends pulls. Records that were sent before may still arrive.
    EndPulls(Vec<u32>),
    /// Completes all streams that are still open with the bytes written so far.
    CutOff,
    /// The front end has all output and exits. The agent ends.
    Close,
    /// The front end ends the edge, and no other carrier follows. The agent ends its ranks. Without
    /// [`LinkEnd`](crate::LinkEnd), the end of the carrier means the same.
    HangUp,
}

/// The number of bytes that the node has read from one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankTotal {
    /// The rank.
    pub rank: Rank,
    /// The channel.
    pub channel: Channel,
    /// The bytes, lost ones included.
    pub produced: u64,
}

/// The address at which an agent listens for carriers that replace the one that started it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkAddress {
    /// The path of its socket, of at most [`MAX_TEXT`] bytes.
    pub path: OsString,
    /// The number with which such a carrier begins ([`Frame::Resume`]).
    pub session: u64,
}

/// A message of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToFrontEnd {
    /// The ranks can be started.
    Ready,
    /// The ranks can't be started, or were not. The job ends.
    Failed {
        /// The reason.
        reason: String,
        /// The user can correct the input.
        is_usage: bool,
    },
    /// The ranks run.
    Started {
        /// The pid of each rank, in the order of the ranks.
        pids: Vec<u32>,
    },
    /// A rank has exited.
    Exited {
        /// The rank.
        rank: Rank,
        /// The status as wait(2) returns it; `None` if it is unknown.
        status: Option<i32>,
        /// The rank ended because of a signal of the front end.
        requested: bool,
        /// Resources that it has used; `None` if it is unknown.
        used: Option<UsedResources>,
    },
    /// A rank has begun, ended or aborted MPI. Precedes its exit.
    Mpi {
        /// The rank.
        rank: Rank,
        /// The event.
        event: MpiEvent,
    },
    /// A piece of the values of the next message.
    Piece(Vec<u8>),
    /// A request of a rank, or of all ranks of the node that take part in a fence. The front end answers with
    /// `Exchanged`.
    Exchange {
        /// The number of the request.
        call: u64,
        /// The rank, or one of them.
        rank: Rank,
        /// The request.
        exchange: Exchange,
    },
    /// The answer to a request for what a rank has put, which precedes the message.
    Modex {
        /// The number of the request.
        call: u64,
        /// The values.
        values: Result<Vec<u8>, Status>,
    },
    /// The answer to a request with stdin.
    StdinTaken {
        /// The number of the request.
        call: u64,
        /// The ranks that did not take all of the bytes, or the reason why none took any.
        /// `PMIX_ERR_IOF_COMPLETE` states that all have ended or closed their stdin.
        answer: Result<Vec<UntakenStdin>, Failure>,
    },
    /// The node can't send the rest of the stream of this pull.
    PullFailed {
        /// The number of the pull.
        pull: u32,
    },
    /// The number of bytes that the node has read from each rank, once a second.
    Produced(Vec<RankTotal>),
    /// A message of a tool on the node, for a channel of the front end. The front end answers with
    /// `Logged`.
    Log {
        /// The number of the request.
        call: u64,
        /// The message.
        log: Log,
    },
    /// Files of the node are complete, or can't be written, which ends the job.
    FilesWritten {
        /// The number of bytes of output that were written.
        written: u64,
        /// The bytes that were lost, for each channel that lost any.
        lost: Vec<(Channel, u64)>,
        /// The number of bytes that were written without staying in the page cache.
        dropped: u64,
        /// The number of files that refused that.
        refusals: u64,
        /// Why files can't be written.
        failure: Option<String>,
    },
    /// A message of the agent for the user, of one line, such as about output that files of the node lack.
    Told(String),
    /// The cost of forwarding for the agent.
    Cost {
        /// The user CPU time of its process, in microseconds.
        user: u64,
        /// The system CPU time of its process, in microseconds.
        system: u64,
        /// Its backend, and why it was chosen if that was not asked for.
        backend: String,
    },
    /// All ranks have exited and all streams have ended.
    Over {
        /// The streams that were completed before their end of file.
        cut_off: Vec<(Rank, Channel)>,
    },
    /// The address at which the agent listens for carriers that replace the one that started it,
    /// and whose ends it outlives from now on. Precedes `Ready`.
    Link(LinkAddress),
}

/// Returns `text` without what exceeds [`MAX_TEXT`].
pub fn cut_text(text: &str) -> String {
    let mut end = MAX_TEXT.min(text.len());
    while !text.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    text.get(..end).unwrap_or_default().to_owned()
}

fn limit(what: &'static str, length: usize, limit: usize) -> Result<(), ControlError> {
    if length > limit { Err(ControlError::Limit { what, length, limit }) } else { Ok(()) }
}

/// A message whose parts have limits.
pub(crate) trait ControlMessage: Serialize + DeserializeOwned {
    /// The longest encoding, in bytes.
    const LIMIT: usize;

    fn check(&self) -> Result<(), ControlError>;
}

impl ControlMessage for ToAgent {
    const LIMIT: usize = MAX_CONTROL;

    fn check(&self) -> Result<(), ControlError> {
        match self {
            ToAgent::Stdin { bytes, .. } => limit("bytes of stdin", bytes.len(), MAX_STDIN),
            ToAgent::Start(start) => {
                let ranks = start.spec.local.as_ref().map_or(usize::MAX, BTreeSet::len);
                limit("ranks of a node", ranks, MAX_RANKS_OF_NODE as usize)
            }
            // Only their encodings are limited.
            _ => Ok(()),
        }
    }
}

impl ControlMessage for ToFrontEnd {
    const LIMIT: usize = MAX_ANSWER;

    fn check(&self) -> Result<(), ControlError> {
        match self {
            ToFrontEnd::Failed { reason: text, .. }
            | ToFrontEnd::FilesWritten { failure: Some(text), .. }
            | ToFrontEnd::Cost { backend: text, .. }
            | ToFrontEnd::StdinTaken { answer: Err(Failure { reason: text, .. }), .. } => {
                limit("bytes of text", text.len(), MAX_TEXT)
            }
            ToFrontEnd::Link(address) => limit("bytes of a path", address.path.len(), MAX_TEXT),
            ToFrontEnd::Produced(totals) => limit("totals", totals.len(), MAX_TOTALS),
            _ => Ok(()),
        }
    }
}

/// Returns the frame of a message.
fn encode<M: ControlMessage>(message: &M) -> Result<Vec<u8>, ControlError> {
    message.check()?;
    let body = postcard::to_stdvec(message).map_err(|_| ControlError::Body { length: 0 })?;
    if body.len() > M::LIMIT {
        return Err(ControlError::TooLong { length: body.len(), limit: M::LIMIT });
    }
    let mut frame = Vec::new();
    Frame::Control(&body).append_to(&mut frame);
    Ok(frame)
}

pub(crate) fn decode<M: ControlMessage>(payload: &[u8]) -> Result<M, ControlError> {
    match postcard::take_from_bytes::<M>(payload) {
        Ok((message, [])) => message.check().map(|()| message),
        _ => Err(ControlError::Body { length: payload.len() }),
    }
}

impl ToAgent {
    /// Returns the whole frame of this message.
    ///
    /// # Errors
    /// The message exceeds a limit.
    pub fn frame(&self) -> Result<Vec<u8>, ControlError> {
        encode(self)
    }
}

impl ToFrontEnd {
    /// Returns the whole frame of this message.
    ///
    /// # Errors
    /// The message exceeds a limit.
    pub fn frame(&self) -> Result<Vec<u8>, ControlError> {
        encode(self)
    }

    /// Returns the message in the payload of a control frame, whatever came before it.
    ///
    /// # Errors
    /// The payload is not a message, or the message exceeds a limit.
    pub fn decode(payload: &[u8]) -> Result<ToFrontEnd, ControlError> {
        decode(payload)
    }
}
