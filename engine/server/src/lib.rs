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
//! | `engine::launch`, `job::plan`, `engine::adopt`, `engine::nodes` | ranks that the engine starts; which these are, and how; ranks that the embedder has started; ranks on other nodes |
//! | `control::starter` | what the engine's handle shares with the threads that start jobs for tools |
//! | `engine::register`, `engine::remove` | adding a job and its ranks; removing a job |
//! | `job`, `job::endings` | handles of jobs; the ends of ranks in their order |
//! | `engine::deliver`, `engine::log` | output of remote ranks; messages that the embedder logs |
//! | `host`, `control::upcalls` | what the embedder implements; the upcalls to it |
//! | `control`, `tables::reports` | the control thread (mio), which accepts and serves tools; its queue |
//! | `tables`, `tables::handles` | the core behind its lock; the descriptors and rendezvous entries that the driver holds for it |
//! | `job::binding` | the processor cores of ranks |
//! | `mpi::pmi`, `mpi::pmix`, `mpi::pmix_tools` | the sockets by which ranks start MPI; the PMIx server in libpmix; the tools of PMIx |
//! | `mpi::topology` | the file with the topology of the node |
//! | `control::stalls` | ranks that stall the capture thread |
//! | `tables::files` | the limits on files and memory maps |
//! | `control::connection`, `control::connections`, `control::incoming`, `control::in_flight` | sockets; messages received; descriptors not yet received |
//! | `tables::log_lines` | what the engine reports to the embedder's subscriber, after the tables are unlocked |
//! | `logs::log_channels`, `logs::gateway` | the threads that log messages; the relay to a gateway |
//!
//! The state, and all that changes it, is in the crate `iof-core`, which does no I/O.

mod config;
mod control;
mod engine;
mod error;
mod host;
mod job;
mod logs;
mod mpi;
mod tables;

pub use config::{Config, DEFAULT_CACHE_TOTAL, MAX_CACHE_SIZE};
pub use engine::Engine;
pub use engine::adopt::{AdoptError, AdoptSpec, AdoptedRank, Process};
pub use error::{LaunchError, PmixError, StartError};
pub use host::{
    ApprovalReply, Host, HostReply, QueryReply, Remedy, SpawnReply, Standalone, ViaGateway, same_user,
};
pub use iof_capture::{
    BackendKind, InputKeys, ProcessGroup, Pty, PtyMaster, Signal, SignalError, StartError as CaptureError,
    Stdin, UsedResources, WindowSize,
};
pub use iof_core::{
    Buffering, DEFAULT_CACHE_SIZE, DeliverError, DeliveredBytes, DeliveredEnd, EarlyEnd, Edges, EndCause,
    Ending, Exit, Grant, JobStatus, LastStep, LogConfig, MAX_DELIVERED, MAX_PULLED_STREAMS, MAX_RANKS,
    MIN_CACHE_SIZE, NodeId, NodeLost, NodeReport, NodeRequest, OPEN_AFTER_KILL, REQUEST_LIFETIME,
    REQUESTS_TO_END, RankExit, ReplyCallback, SAME_REQUEST, SpawnRequest, StdinAnswer, StdinPush,
    TIMEOUT_CODE,
};
pub use iof_log::{
    MailServer, Order as LogOrder, OrderError as LogOrderError, PRIORITIES as LOG_PRIORITIES, Syslog,
    channel_name as log_channel_name,
};
pub use iof_proto::{
    App, Binding, DEFAULT_KILL_WAIT, JobSpec, KillOnBadExit, Mpi, MpiNodes, Node, Rendezvous, TorchMaster,
};
pub use iof_shm_ring::{Interaction, Policy};
pub use job::Job;
pub use job::endings::Endings;
pub use job::plan::own_interaction;
pub use mpi::pmi::is_launcher_variable;
pub use mpi::pmix::mpi_nodes;
