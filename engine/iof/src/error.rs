//! The reasons why a job fails.

use std::io;

use iof_engine::{JobStatus, LaunchError, StartError};
use iof_output::{FileError, PrintError};
use iof_tool::{AttachError, RequestError};

impl RunError {
    /// Returns the status of a job unless some of its streams are not whole.
    pub(crate) fn check(status: JobStatus, streams: u64) -> Result<JobStatus, RunError> {
        if streams == 0 { Ok(status) } else { Err(RunError::Incomplete { streams, status: status.into() }) }
    }
}

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
    /// Output is missing, for example because memory was missing for whole streams or a node was lost.
    #[error("the job's output is incomplete: {streams} of its streams were not read to their ends")]
    Incomplete {
        /// The number of streams, at least.
        streams: u64,
        /// The exit status of the ranks.
        status: Box<JobStatus>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_whose_output_is_incomplete_is_an_error_that_has_its_status() {
        assert!(RunError::check(JobStatus::default(), 0).is_ok_and(|status| status.code() == 0));
        let error = RunError::check(JobStatus::default(), 2).unwrap_err();
        assert!(
            matches!(&error, RunError::Incomplete { streams: 2, status } if status.code() == 0),
            "{error}"
        );
    }
}
