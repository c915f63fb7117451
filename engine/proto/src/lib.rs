//! The interface between an iof engine and its tools: names, status codes, the control protocol,
//! the passing of file descriptors, and rendezvous. The crate has no threads, no event loop and no
//! global state.
//!
//! | module         | contents                                                                         |
//! |----------------|----------------------------------------------------------------------------------|
//! | [`names`]      | processes: [`Nspace`], [`Rank`], [`Proc`]; their channels: [`Channel`], [`Channels`] |
//! | [`attribute`]  | the table of all attributes; an attribute with its value is an [`Info`]          |
//! | [`directive`]  | directives of I/O forwarding: [`Directives`] as typed values                     |
//! | [`JobSpec`]    | the specification of a job                                                       |
//! | [`status`]     | results: [`Status`], with PMIx's numbers                                         |
//! | [`numbers`](mod@numbers) | the tables of PMIx's numbers, with their names and texts              |
//! | [`limits`]     | the limits on messages, connections and requests                                 |
//! | [`message`]    | the control protocol: [`FromTool`], [`ToTool`]                                   |
//! | [`push`]       | stdin: [`PushDirectives`], [`PushReport`]                                        |
//! | [`query`]      | queries of a tool: [`Query`], [`Answer`]                                         |
//! | [`log`]        | log requests of a tool: [`Log`], [`LogReport`]                                   |
//! | [`wire`]       | messages as bytes: [`encode`], [`Decoder`]                                       |
//! | [`socket`]     | bytes and file descriptors over a socket, and the peer's credentials             |
//! | [`rendezvous`] | how a tool finds an engine                                                       |
//!
//! Output bytes do not pass through this crate. Tools read them in place from rings in shared
//! memory, whose file descriptors come with [`ToTool::Ring`].
//!
//! Each side treats its peer as hostile: input is bounded before it is buffered and validated
//! before it is used. No input from a peer makes this crate panic.
#![deny(unsafe_code)]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("iof needs a target with 64-bit pointers: offsets and sizes are 64-bit everywhere");

pub mod attribute;
pub mod directive;
mod elsewhere;
mod failure;
mod info;
mod job;
pub mod limits;
pub mod message;
pub mod names;
pub mod numbers;
mod quota;
pub mod ranges;
pub mod rendezvous;
mod requests;
#[allow(unsafe_code, reason = "no safe interface receives file descriptors without a leak")]
pub mod socket;
pub mod status;
pub mod wire;
pub mod xml;

pub use directive::Directives;
pub use elsewhere::{NodeStream, StreamPull};
pub use failure::{Failure, shown};
pub use info::{Info, InfoValue};
pub use iof_shm_ring::{InputState, Interaction, Policy};
pub use job::job_spec::{
    App, Binding, DEFAULT_KILL_WAIT, JOB_VERSION, JobSpec, KillOnBadExit, Mpi, TorchMaster,
};
pub use job::nodes::{MpiNodes, Node, Relative};
pub use job::process::{ProcessGroup, Pty, Stdin, WindowSize};
pub use job::spawn::Spawn;
pub use message::{EffectiveOptions, FromTool, Granted, Message, Missed, PROTOCOL_VERSION, ToTool};
pub use names::{Channel, Channels, Nspace, NspaceError, Proc, Rank};
pub use quota::{Quota, QuotaLimit, QuotaScope};
pub use rendezvous::Rendezvous;
pub use requests::exchange::{
    DataRange, Exchange, FencePurpose, FoundValue, JobRanks, MpiEvent, PMIX_GROUP_CONTEXT_ID, Persistence,
};
pub use requests::log::{Log, LogEntry, LogOutcome, LogReport, LogValue};
pub use requests::position::Position;
pub use requests::push::{
    PartialCause, PartialDelivery, PushDirectives, PushGranted, PushReport, Skipped, SlowTarget, SlowTargets,
    StdinUnavailable, UntakenStdin,
};
pub use requests::query::{
    Answer, Attributes, Found, JobInfo, ProcInfo, ProcState, Query, ReaderStats, StreamStats, UsedResources,
    Value,
};
pub use requests::{log, push, query};
pub use status::Status;
pub use wire::{DecodeError, Decoder, EncodeError, encode};
