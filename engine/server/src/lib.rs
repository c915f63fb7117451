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
//! | `engine`, `config`, `error` | the embedder's handle, its configuration and its errors. The imports of all modules form no circle |
//! | `launch`, `plan`, `adopt`, `nodes` | ranks that the engine starts; which these are, and how; ranks that the embedder has started; ranks on other nodes |
//! | `starter` | what the engine's handle shares with the threads that start jobs for tools |
//! | `register`, `remove` | adding a job and its ranks; removing a job |
//! | `job`, `endings` | handles of jobs; the ends of ranks in their order |
//! | `deliver`, `log` | output of remote ranks; messages that the embedder logs |
//! | `host`, `upcalls` | what the embedder implements; the upcalls to it |
//! | `control`, `reports` | the control thread (mio), which accepts and serves tools; its queue |
//! | `tables`, `handles` | the core behind its lock; the descriptors and rendezvous entries that the driver holds for it |
//! | `binding` | the processor cores of ranks |
//! | `pmi`, `pmix`, `pmix_tools` | the sockets by which ranks start MPI; the PMIx server in libpmix; the tools of PMIx |
//! | `topology` | the file with the topology of the node |
//! | `stalls` | ranks that stall the capture thread |
//! | `files` | the limits on files and memory maps |
//! | `connection`, `connections`, `incoming`, `in_flight` | sockets; messages received; descriptors not yet received |
//! | `log_lines` | what the engine reports to the embedder's subscriber, after the tables are unlocked |
//! | `log_channels`, `gateway` | the threads that log messages; the relay to a gateway |
//!
//! The state, and all that changes it, is in the crate `iof-core`, which does no I/O.

mod adopt;
mod binding;
mod config;
mod connection;
mod connections;
mod control;
mod deliver;
mod endings;
mod engine;
mod error;
mod files;
mod gateway;
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
mod pmi_spawn;
mod pmix;
mod pmix_names;
mod pmix_tools;
mod register;
mod remove;
mod reports;
mod stalls;
mod starter;
mod tables;
mod topology;
mod upcalls;

pub use adopt::{AdoptError, AdoptSpec, AdoptedRank, Process};
pub use config::{Config, DEFAULT_CACHE_TOTAL, MAX_CACHE_SIZE};
pub use endings::Endings;
pub use engine::Engine;
pub use error::{LaunchError, PmixError, StartError};
pub use host::{
    ApprovalReply, Host, HostReply, QueryReply, Remedy, SpawnReply, Standalone, ViaGateway, same_user,
};
pub use iof_capture::{
    BackendKind, InputKeys, ProcessGroup, Pty, PtyMaster, Signal, SignalError, StartError as CaptureError,
    Stdin, WindowSize,
};
pub use iof_core::{
    Buffering, DEFAULT_CACHE_SIZE, DeliverError, EarlyEnd, Edges, EndCause, Ending, Exit, Grant, JobStatus,
    LastStep, LogConfig, MAX_DELIVERED, MAX_RANKS, MIN_CACHE_SIZE, Node, NodeId, NodeLost, NodeReport,
    NodeRequest, OPEN_AFTER_KILL, REQUEST_LIFETIME, REQUESTS_TO_END, RankExit, SAME_REQUEST, SpawnRequest,
    StdinAnswer, StdinPush, TIMEOUT_CODE,
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
