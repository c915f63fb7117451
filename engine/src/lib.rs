//! I/O forwarding for launchers: ranks' output in shared-memory rings, tools that read it in place.
//!
//! Embed an [`Engine`]; let it [`spawn`](Engine::spawn) jobs; write their output somewhere with a
//! `Printer` of `iof-output`, which is an ordinary reader of the rings; tools attach from outside
//! with `iof-tool` and read the same rings.
//!
//! | module | concept |
//! |---|---|
//! | `engine`, `config` | the handle that an embedder holds |
//! | `launch`, `adopt` | ranks that the engine starts; that somebody else has started |
//! | `register` | how they come into the tables |
//! | `deliver` | output of ranks that run elsewhere |
//! | `remove` | how a job leaves them |
//! | `grace` | how long streams may outlast their ranks |
//! | `job`, `exit` | ranks and how they ended |
//! | `control` | the control thread (mio): accepts and serves tools |
//! | `host` | the embedder's part: what the engine asks of it |
//! | `stalls` | ranks that keep the capture thread from all others |
//! | `pending` | connections that are not tools yet |
//! | `linger` | how long an engine that ends waits for tools |
//! | `peer`, `requests` | one connected tool; what it may ask |
//! | `client` | the process behind a connection, for which limits count |
//! | `incoming` | what comes from a connection |
//! | `in_flight` | descriptors that tools have not received |
//! | `demand`, `pulls` | what the host is asked for, and who waits for its answer |
//! | `owed` | what the host has not answered |
//! | `log` | log requests: the way through their channels, streams of what is logged, the gateway |
//! | `query` | what the engine knows, and what it asks its host |
//! | `push` | stdin: who may get it, and what becomes of it |
//! | `state`, `registrations`, `readers` | the tables: jobs and streams, registrations, the readers of each stream |
//! | `stream_options` | what the directives of server, spawn and registration come to |

mod adopt;
mod backlog;
mod client;
mod config;
mod control;
mod deliver;
mod demand;
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
mod stalls;
mod state;
mod stream_options;

pub use adopt::{AdoptError, AdoptSpec, AdoptedRank, Process};
pub use config::{
    App, Buffering, Config, DEFAULT_CACHE_SIZE, JobSpec, MAX_CACHE_SIZE, MIN_CACHE_SIZE, Rendezvous,
};
pub use deliver::{DeliverError, MAX_DELIVERED};
pub use engine::{Engine, Grant};
pub use error::{LaunchError, MAX_RANKS, StartError};
pub use exit::Exit;
pub use host::{ApprovalReply, Host, Remedy, Reply, Standalone, ViaGateway, same_user};
pub use iof_capture::{
    BackendKind, ProcessGroup, Pty, PtyMaster, StartError as CaptureError, Stdin, WindowSize,
};
pub use iof_log::{
    MailServer, Order as LogOrder, OrderError as LogOrderError, PRIORITIES as LOG_PRIORITIES, Syslog,
};
pub use iof_shm_ring::Policy;
pub use job::{Job, JobStatus};
pub use log::LogConfig;
pub use push::StdinPush;
pub use query::QueryReply;
