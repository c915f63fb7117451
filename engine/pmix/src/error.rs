//! The reasons why a server does not start or does not take a job.

use std::path::PathBuf;

/// The reason why the server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The library cannot be opened, or lacks a function.
    #[error("cannot open the PMIx library {}: {reason}", path.display())]
    Open {
        /// The library.
        path: PathBuf,
        /// The reason, in the words of dlerror(3).
        reason: String,
    },
    /// The library has a version with other structures.
    #[error("the PMIx library {} is \"{version}\": expected version 4, 5 or 6", path.display())]
    Version {
        /// The library.
        path: PathBuf,
        /// The version that it reports.
        version: String,
    },
    /// This process has a PMIx server, or is a PMIx tool or client.
    #[error("this process uses PMIx already, and can have one PMIx server only")]
    InUse,
    /// This process is linked with another libpmix, whose functions would call those of this one.
    #[error("this process is linked with another libpmix than {}", path.display())]
    OtherLibrary {
        /// The library.
        path: PathBuf,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread for PMIx: {0}")]
    Thread(#[source] std::io::Error),
    /// The directory for the files of the server, or a file in it, cannot be created.
    #[error("cannot create {}: {source}", path.display())]
    Directory {
        /// The directory or file.
        path: PathBuf,
        /// The error of mkdtemp(3), open(2) or write(2).
        source: std::io::Error,
    },
    /// The socket for tools cannot be created.
    #[error("cannot listen on the loopback interface: {0}")]
    Listen(#[source] std::io::Error),
    /// libpmix has not answered within [`MAX_CALL_WAIT`](crate::MAX_CALL_WAIT).
    #[error("cannot start the PMIx server: libpmix does not answer")]
    Stalled,
    /// libpmix has returned an error.
    #[error("cannot start the PMIx server: {0}")]
    Init(String),
}

/// The reason why the server cannot serve a job. The text is libpmix's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the PMIx server cannot serve the job: {0}")]
pub struct RegisterError(pub String);
