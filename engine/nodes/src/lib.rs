//! The edges between the nodes of a job: the frames on them, and the state of their two ends.
//!
//! An *edge* is a pair of byte streams between the *front end* of a job and an *agent*, which runs
//! the job's ranks on one node. Output, exits and totals go up, ranks to start, stdin and signals
//! go down. What carries the bytes (ssh, srun, a pipe) may stop at any time and may end at any
//! byte, but delivers what it delivers in order.
//!
//! * **An edge never drops output.** All output of a node goes through two [`Bundle`]s, and what tools of the
//!   front end pull through a third one. Each has a window of at most [`MAX_WINDOW`] bytes, which follows
//!   the rate and the round trip. The agent sends only what fits. The front end gives credit when the
//!   bytes are where they belong. So the memory of
//!   both ends is bounded, and an output that is slow stops ranks and loses nothing.
//! * **Offsets are checked.** Each record has its position in its stream. What was lost at the node
//!   is a gap with its own position. An agent that repeats or skips bytes is cut off.
//! * **A broken end has figures.** When an edge ends before its streams have, [`FrontEnd::broken`]
//!   returns how many bytes of each stream arrived, and how many the node had read from the rank
//!   according to its totals, which it sends once a second. More may have been produced since then.
//!
//! This crate does no I/O, and has no clock. It panics on nothing that it receives.
//!
//! | module | concept |
//! |---|---|
//! | `frame` | frames |
//! | `decoder` | their parser |
//! | `control` | control messages: start, exits, signals, stdin, totals |
//! | `agent_end` | the agent's end: what may be sent now |
//! | `front_end` | the front end's end: what arrived, and credit |
//! | `link` | the bytes of an edge, and its carriers, which may be replaced |
//! | `proof` | the proof of both ends of a connection that anybody could have made |
//! | `invitation` | where agents connect, and with which token |
//! | `pieces` | values of ranks that are longer than a control message |
//! | `silence` | the time since an agent was heard |
//! | `window` | the size of a window, and the credit for it |
//! | `limits` | limits |

mod agent_end;
mod control;
mod decoder;
mod frame;
mod front_end;
mod invitation;
pub mod limits;
mod link;
mod pieces;
pub mod proof;
mod silence;
mod window;

pub use agent_end::{AgentEnd, AgentEvent};
pub use control::{
    ControlError, LinkAddress, NodeConfig, NodeFiles, NodeStart, RankTotal, ToAgent, ToFrontEnd, cut_text,
};
pub use decoder::{FrameDecoder, first_header};
pub use frame::{Bundle, Frame, FrameError, HEADER, StreamKey};
pub use front_end::{BrokenEnd, BrokenPull, BrokenStream, FrontEnd, FrontEvent};
pub use invitation::{Invitation, InvitationError};
use limits::MAX_PIECE;
#[cfg(doc)]
use limits::MAX_WINDOW;
pub use link::LinkEnd;
pub use pieces::ExchangeAnswer;
pub use silence::{Silence, SilenceStep};
pub use window::window;

/// The reason why the peer of an edge is cut off.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EdgeError {
    /// The bytes are not frames.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A control message can't be read.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The first frame is not a hello.
    #[error("the first frame is not a hello")]
    NoHello,
    /// The peer has another version.
    #[error(
        "the other end has version {theirs} of the frames, and this one version {ours}: install the same iof"
    )]
    Version {
        /// The version of the peer.
        theirs: u32,
        /// The version of this end.
        ours: u32,
    },
    /// The peer sent a frame or a message that its end does not send, or not now.
    #[error("unexpected {0}")]
    Unexpected(&'static str),
    /// A rank does not belong to the node.
    #[error("rank {0} does not run on this node")]
    Rank(iof_proto::Rank),
    /// The peer gave more credit than there is, or sent more than its window.
    #[error("{bytes} bytes exceed the window, of which {left} are left")]
    Window {
        /// The bytes sent or credited, with headers.
        bytes: u64,
        /// The bytes that were allowed.
        left: u64,
    },
    /// An agent does not read the answers that it asks for.
    #[error("more than {0} answers wait for it (MAX_ANSWERS_OF_NODE)")]
    Answers(usize),
    /// An agent has answered a piece of stdin that was not sent to it, or for the second time.
    #[error("no piece of stdin with number {0} waits for an answer of this node")]
    Call(u64),
    /// An agent sends a stream that was not pulled, or another one than that of its pull.
    #[error("no stream of rank {rank} was pulled as number {pull}")]
    Pull {
        /// The number of the pull.
        pull: u32,
        /// The rank.
        rank: iof_proto::Rank,
    },
    /// The peer has sent an empty piece, one that is too long, or too many.
    #[error(
        "{bytes} bytes of values, expected pieces of at most {MAX_PIECE}, and {limit} in all (MAX_EXCHANGE)"
    )]
    Pieces {
        /// The bytes since the last message that takes them.
        bytes: usize,
        /// The largest number of bytes.
        limit: usize,
    },
    /// The peer has acknowledged bytes that were not sent.
    #[error("{received} bytes are acknowledged, but {sent} were sent")]
    Acknowledged {
        /// The bytes that the peer has according to its frame.
        received: u64,
        /// The bytes that were sent.
        sent: u64,
    },
    /// A link names another session.
    #[error("the link is for another session")]
    Session,
    /// A record, gap or end does not follow what arrived before.
    #[error("rank {rank} {channel}: byte {offset} follows byte {expected}")]
    Offset {
        /// The rank of the stream.
        rank: iof_proto::Rank,
        /// Its channel.
        channel: iof_proto::Channel,
        /// The offset of the frame.
        offset: u64,
        /// The offset that was due.
        expected: u64,
    },
}
