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
//! | `engine`, `config`, `grant`, `error` | the embedder's handle, its configuration and its errors. The imports of all modules form no circle |
//! | `launch`, `plan`, `adopt`, `nodes` | ranks that the engine starts; which these are, and how; ranks that the embedder has started; ranks on other nodes |
//! | `register`, `remove` | adding a job and its ranks; removing a job |
//! | `job`, `endings`, `exit` | handles of jobs; the ends of ranks in their order; exit statuses |
//! | `early_end` | the decision to end a job when a rank fails or at a time limit |
//! | `deliver`, `log` | output of remote ranks; messages that the embedder logs |
//! | `host` | upcalls to the embedder |
//! | `control`, `reports` | the control thread (mio), which accepts and serves tools; its queue |
//! | `tables`, `handles` | the core behind its lock; the descriptors and rendezvous entries that the driver holds for it |
//! | `binding` | the processor cores of ranks |
//! | `pmi`, `pmix`, `pmix_tools` | the sockets by which ranks start MPI; the PMIx server in libpmix; the tools of PMIx |
//! | `topology` | the file with the topology of the node |
//! | `stalls` | ranks that stall the capture thread |
//! | `files` | the limits on files and memory maps |
//! | `shared` | reader pages, rings, inlets and streams, which the core names by ids |
//! | `connection`, `connections`, `incoming`, `in_flight` | sockets; messages received; descriptors not yet received |
//! | `log_lines` | what the engine reports to the embedder's subscriber, after the tables are unlocked |
//! | `log_channels`, `gateway` | the threads that log messages; the relay to a gateway |
//! | `simulation` | a driver for the simulator (feature `simulation`) |
//! | `core` | the state, and what changes it |
//!
//! Modules of `core`, from the bottom up:
//!
//! | module | concept |
//! |---|---|
//! | `ids`, `client`, `upcall`, `channel_entry`, `effects`, `disconnect`, `notice`, `settings`, `resources` | names and messages; all that leaves the core; the process behind a connection, to which limits apply; settings; what the core needs of the operating system |
//! | `stream_options`, `completion`, `backlog_holder`, `stream_state`, `delivery`, `deliver_error`, `stream_table` | the effective options of a stream; streams and their readers; deliveries |
//! | `job_status`, `job`, `endings`, `mpi`, `signals`, `jobs`, `nodes` | jobs and ranks; other nodes of a job |
//! | `registration`, `pull`, `reading`, `outgoing`, `unread`, `peer`, `tools` | registrations; rings that tools read; messages to tools; output of removed jobs; tools |
//! | `push`, `push_table`, `stdin_calls` | stdin: pushes and their targets; pieces that are not answered |
//! | `query`, `partial_answer`, `logs`, `log_routes`, `demand`, `owed`, `awaited`, `grace`, `linger`, `pending` | requests that wait; what the host is asked for and has not answered; times; connections that are not tools yet |
//! | `checks` | checks of all tables against each other (feature `simulation`) |
//! | `input`, `calls`, `events`, `answers`, `capture_end`, `deliveries`, `withdrawal` | the entry for what happens; the calls of the embedder; what the capture thread reports, and its answers; ranks whose job failed to start |
//! | `admission`, `requests`, `registrations`, `pulls`, `readers`, `shed` | what tools do: attach, register, read |
//! | `pushes`, `push_admission`, `push_elsewhere`, `queries`, `answers_to_queries`, `logging`, `log_output` | what tools do: push, query, log |

mod adopt;
mod binding;
mod config;
mod connection;
mod connections;
mod control;
mod core;
mod deliver;
mod early_end;
mod endings;
mod engine;
mod error;
mod exit;
mod files;
mod gateway;
mod grant;
mod handles;
mod host;
mod in_flight;
mod incoming;
mod job;
mod launch;
mod log;
mod log_channels;
mod log_lines;
mod nodes;
mod plan;
mod pmi;
mod pmix;
mod pmix_tools;
mod register;
mod remove;
mod reports;
mod shared;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation;
mod stalls;
mod tables;
mod topology;

pub use crate::core::deliver_error::DeliverError;
pub use crate::core::delivery::MAX_DELIVERED;
pub use crate::core::ids::MAX_RANKS;
pub use crate::core::job::{Ending, RankExit};
pub use crate::core::job_status::JobStatus;
pub use crate::core::nodes::{Edges, Node, NodeId, NodeLost, NodeReport, NodeRequest};
pub use crate::core::upcall::StdinPush;
pub use adopt::{AdoptError, AdoptSpec, AdoptedRank, Process};
pub use config::{
    Buffering, Config, DEFAULT_CACHE_SIZE, DEFAULT_CACHE_TOTAL, LogConfig, MAX_CACHE_SIZE, MIN_CACHE_SIZE,
};
pub use early_end::{EarlyEnd, EndCause, OPEN_AFTER_KILL, SAME_REQUEST, TIMEOUT_CODE};
pub use endings::Endings;
pub use engine::Engine;
pub use error::{LaunchError, PmixError, StartError};
pub use exit::{Exit, REQUEST_LIFETIME, REQUESTS_TO_END};
pub use grant::Grant;
pub use host::{ApprovalReply, Host, HostReply, QueryReply, Remedy, Standalone, ViaGateway, same_user};
pub use iof_capture::{
    BackendKind, InputKeys, ProcessGroup, Pty, PtyMaster, Signal, SignalError, StartError as CaptureError,
    Stdin, WindowSize,
};
pub use iof_log::{
    MailServer, Order as LogOrder, OrderError as LogOrderError, PRIORITIES as LOG_PRIORITIES, Syslog,
    channel_name as log_channel_name,
};
pub use iof_proto::{App, Binding, DEFAULT_KILL_WAIT, JobSpec, KillOnBadExit, Mpi, Rendezvous};
pub use iof_shm_ring::{Interaction, Policy};
pub use job::Job;
pub use plan::own_interaction;
pub use pmi::is_launcher_variable;
pub use pmix::needs_mpi;
