//! A PMIx server for the ranks of one node, by which Open MPI 5 starts. The server itself is
//! libpmix (OpenPMIx, version 4 to 6), which is opened by dlopen(3) when a job needs it. A build
//! needs no PMIx.
//!
//! A launcher starts a [`PmixServer`], at most one in a process, and
//! [registers](PmixServer::register) each job. Each rank gets [variables](PmixServer::variables)
//! with which it finds the server. Then libpmix exchanges the addresses of the ranks. [`Event`]s
//! tell the launcher when a rank begins, ends or aborts. [`Need`] tells whether a program needs
//! this.
//!
//! | module | concept |
//! |---|---|
//! | `elf`, `program` | the libraries that a program needs; whether PMIx is one of them |
//! | `job`, `info` | what libpmix is told about a job; keys with values, in the form of C |
//! | `types` | the structures of libpmix |
//! | `library`, `upcalls` | libpmix, and its calls of this crate: all unsafe code |
//! | `caller` | the thread that calls libpmix |
//! | `directory` | the directory for the files of jobs |
//! | `server`, `error` | the server; why it does not start |

mod caller;
mod directory;
mod elf;
mod error;
mod info;
mod job;
mod library;
mod program;
mod server;
mod types;
mod upcalls;

pub use error::{RegisterError, StartError};
pub use job::{AppInfo, JobInfo};
pub use program::Need;
pub use server::{
    Event, EventKind, MAX_CALL_WAIT, MAX_CALL_WAIT_PER_RANK, MAX_END_WAIT, MAX_LOCAL_RANKS, PmixServer,
};
