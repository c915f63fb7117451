//! The reasons why the command fails.

use std::io;

use iof_engine::{CaptureError, StartError};
pub use iof_proto::shown;
use nix::sys::signal::Signal;

/// The reason why the command failed, as the text of its message.
pub enum Failure {
    /// Input that the user can correct: exit code 2.
    Usage(String),
    /// The same, with a list of choices in further lines.
    Choice(String),
    /// A failure at run time: exit code 1.
    Running(String),
    /// A time limit of the user: exit code 124.
    Timeout(String),
    /// A signal that ended the command, such as SIGPIPE when the reader of its output is gone. The
    /// command raises it in its own process, so that the shell sees it.
    Signal(Signal),
}

/// Returns the failure to find the present directory, which was removed for example.
pub fn no_directory(error: io::Error) -> Failure {
    Failure::Usage(format!("the present directory cannot be found ({error}): change to another one"))
}

impl Failure {
    pub fn usage(error: impl ToString) -> Failure {
        Failure::Usage(error.to_string())
    }

    pub fn running(error: impl ToString) -> Failure {
        Failure::Running(error.to_string())
    }
}

/// Returns the failure for an engine that did not start.
pub fn engine_failed(error: StartError) -> Failure {
    match error {
        StartError::Rendezvous(error) => {
            Failure::Usage(format!("{error}; or run without a socket for tools: --rendezvous-dir none"))
        }
        error @ StartError::Files(_) => Failure::usage(error),
        StartError::Capture(error @ CaptureError::Refused { .. }) => {
            Failure::Usage(format!("{error}; or use --backend epoll"))
        }
        error => Failure::running(error),
    }
}
