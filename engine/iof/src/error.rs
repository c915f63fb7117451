//! The reasons why a job fails.

use std::io;

use iof_engine::{LaunchError, StartError};
use iof_output::{FileError, PrintError};
use iof_tool::{AttachError, RequestError};

/// The reason why [`Launcher::run`](crate::Launcher::run) or [`JobPrinters`](crate::JobPrinters) failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The engine did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The job did not start.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A printer could not attach to the engine.
    #[error("cannot read the job's output: {0}")]
    Attach(#[from] AttachError),
    /// A printer could not register for the job's output.
    #[error("cannot read the job's output: {0}")]
    Pull(#[from] RequestError),
    /// The process can create no further thread or descriptor for a printer.
    #[error("cannot write the job's output: {0}")]
    Output(#[from] io::Error),
    /// The files of the job can't be written.
    #[error(transparent)]
    Files(#[from] FileError),
    /// The output could not be written. The ranks were sent SIGTERM, and all have ended.
    #[error(transparent)]
    Print(#[from] PrintError),
}
