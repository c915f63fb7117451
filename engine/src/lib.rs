//! I/O forwarding for launchers: ranks' output in shared-memory rings, which tools read in place.
//!
//! An embedder starts an [`Engine`] and [spawns](Engine::spawn) jobs with it. A `Printer` of
//! `iof-output` writes their output to a file or terminal; it is an ordinary reader of the rings.
//! Tools in other processes attach through `iof-tool` and read the same rings.
//!
//! An embedder needs the items below. For readers of the source, these are the private modules:
//!
//! | module | concept |
//! |---|---|
//! | `engine`, `config` | the embedder's handle and its configuration |
//! | `launch`, `adopt` | ranks that the engine starts; ranks that the embedder has started |
//! | `register`, `remove` | adding a job and its ranks to the tables; removing a job |
//! | `deliver` | output of remote ranks |
//! | `grace` | grace periods of streams that outlast their ranks |
//! | `job`, `exit`, `endings` | jobs, ranks and their exit statuses; the ends of ranks in their order |
//! | `signal` | signals to ranks |
//! | `early_end` | ending a job when a rank fails or at a time limit |
//! | `control` | the control thread (mio), which accepts and serves tools |
//! | `host` | upcalls to the embedder |
//! | `stalls` | ranks that stall the capture thread |
//! | `pending` | connections that are not yet tools |
//! | `linger` | how long a stopping engine waits for tools |
//! | `peer`, `requests` | one connected tool; its requests |
//! | `client` | the process behind a connection, to which limits apply |
//! | `incoming`, `outgoing` | messages received over a connection; messages to be sent |
//! | `in_flight` | descriptors that tools have not received yet |
//! | `unread` | output of removed jobs that tools have not read |
//! | `demand`, `pulls` | what the host is asked for; the pulls that wait for its answer |
//! | `owed` | upcalls that the host has not answered |
//! | `log` | log requests: their way through the channels, streams of logged messages, the gateway |
//! | `query` | queries: what the engine knows, and what it asks the host |
//! | `push` | stdin: admission of pushes, and their progress |
//! | `state`, `registrations`, `stream_state`, `readers` | the tables: jobs, registrations, streams, the readers of each stream |
//! | `stream_options` | the effective options from the directives of server, spawn and registration |

mod adopt;
mod client;
mod config;
mod control;
mod deliver;
mod demand;
mod early_end;
mod endings;
mod engine;
mod error;
mod exit;
mod grace;
mod host;
mod in_flight;
mod incoming;
mod job;
mod launch;
mod linger;
mod log;
mod outgoing;
mod owed;
mod peer;
mod pending;
mod pulls;
mod push;
mod query;
mod readers;
mod register;
mod registrations;
mod remove;
mod requests;
mod signal;
mod stalls;
mod state;
mod stream_options;
mod stream_state;
mod unread;

pub use adopt::{AdoptError, AdoptSpec, AdoptedRank, Process};
pub use config::{
    App, Buffering, Config, DEFAULT_CACHE_SIZE, JobSpec, MAX_CACHE_SIZE, MIN_CACHE_SIZE, Rendezvous,
};
pub use deliver::{DeliverError, MAX_DELIVERED};
pub use early_end::{DEFAULT_KILL_WAIT, EarlyEnd, EndCause, KillOnBadExit, TIMEOUT_CODE};
pub use endings::{Ending, Endings, RankExit};
pub use engine::{Engine, Grant};
pub use error::{LaunchError, MAX_RANKS, StartError};
pub use exit::Exit;
pub use host::{ApprovalReply, Host, HostReply, Remedy, Standalone, ViaGateway, same_user};
pub use iof_capture::{
    BackendKind, ProcessGroup, Pty, PtyMaster, Signal, SignalError, StartError as CaptureError, Stdin,
    WindowSize,
};
pub use iof_log::{
    MailServer, Order as LogOrder, OrderError as LogOrderError, PRIORITIES as LOG_PRIORITIES, Syslog,
};
pub use iof_shm_ring::Policy;
pub use job::{Job, JobStatus};
pub use log::LogConfig;
pub use push::StdinPush;
pub use query::QueryReply;
