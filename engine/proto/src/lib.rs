//! What an iof engine and its tools share, and nothing else: no threads, no event loop, no state
//! beyond what a caller holds in its hands.
//!
//! | module         | concept                                                                          |
//! |----------------|----------------------------------------------------------------------------------|
//! | [`names`]      | who writes: [`Nspace`], [`Rank`], [`Proc`]; on what: [`Channel`], [`Channels`]   |
//! | [`directive`]  | how it is to be forwarded: [`Info`] as PMIx passes it, [`Directives`] as we read them    |
//! | [`status`]     | how it went: [`Status`], with PMIx's numbers                                     |
//! | [`limits`]     | every bound on what a peer may send                                              |
//! | [`message`]    | the control protocol: [`FromTool`], [`ToTool`]                                   |
//! | [`query`]      | what a tool may ask: [`Query`], [`Answer`]                                       |
//! | [`log`]        | what a tool may have logged: [`Log`], [`LogReport`]                              |
//! | [`wire`]       | how a message becomes bytes and back: [`encode`], [`Decoder`]                    |
//! | [`socket`]     | how bytes and file descriptors cross, and who is at the other end                |
//! | [`rendezvous`] | how a tool finds an engine                                                       |
//!
//! Output bytes never pass through here. They are read in place from shared-memory rings, whose
//! file descriptors come with [`ToTool::Ring`].
//!
//! Both sides take their peer for hostile: whatever arrives is bounded before it is buffered and
//! checked before it is believed. Nothing in this crate panics on what a peer sends.
#![deny(unsafe_code)]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("iof needs a target with 64-bit pointers: offsets and sizes are 64-bit everywhere");

pub mod directive;
pub mod limits;
pub mod log;
pub mod message;
pub mod names;
pub mod push;
pub mod query;
pub mod rendezvous;
#[allow(unsafe_code, reason = "receiving file descriptors has no safe and leak-free interface")]
pub mod socket;
pub mod status;
pub mod wire;

pub use directive::{Directives, Info, InfoValue};
pub use log::{Log, LogEntry, LogOutcome, LogReport, LogValue};
pub use message::{EffectiveOptions, Failure, FromTool, Granted, Message, Missed, PROTOCOL_VERSION, ToTool};
pub use names::{Channel, Channels, Nspace, NspaceError, Proc, Rank};
pub use push::{
    PartialCause, PartialDelivery, PushDirectives, PushGranted, PushReport, Skipped, SlowTarget, SlowTargets,
    StdinUnavailable,
};
pub use query::{
    Answer, Attributes, Found, JobInfo, ProcInfo, ProcState, Query, ReaderStats, StreamStats, Value,
};
pub use status::Status;
pub use wire::{DecodeError, Decoder, EncodeError, encode};
