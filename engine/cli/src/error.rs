//! The reasons why the command fails, and the exit code of each.

use std::borrow::Cow;
use std::process::ExitCode;

use nix::sys::signal::Signal;

use crate::message::{print_list, print_message, wait_until_written};
use crate::signals;

/// Characters of a wrong text that a message shows.
const MAX_SHOWN: usize = 100;

/// The reason why the command failed, as the text of its message.
pub enum Failure {
    /// Input that the user can correct: exit code 2.
    Usage(String),
    /// The same, with a list of choices in further lines.
    Choice(String),
    /// A failure at run time: exit code 1.
    Running(String),
    /// A signal that ended the command, such as SIGPIPE when the reader of its output is gone. The
    /// command raises it in its own process, so that the shell sees it.
    Signal(Signal),
}

/// Returns the beginning of a wrong text, for a message.
pub fn shown(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(MAX_SHOWN) {
        None => text.into(),
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()).into(),
    }
}

impl Failure {
    pub fn usage(error: impl ToString) -> Failure {
        Failure::Usage(error.to_string())
    }

    pub fn running(error: impl ToString) -> Failure {
        Failure::Running(error.to_string())
    }
}

/// Prints the failure, if any, waits until all messages are written, and returns the exit code.
pub fn finish(result: Result<ExitCode, Failure>) -> ExitCode {
    let code = match result {
        Ok(code) => Ok(code),
        Err(Failure::Usage(message)) => {
            print_message(format_args!("{message}"));
            Ok(ExitCode::from(2))
        }
        Err(Failure::Choice(message)) => {
            print_list(&message);
            Ok(ExitCode::from(2))
        }
        Err(Failure::Running(message)) => {
            print_message(format_args!("{message}"));
            Ok(ExitCode::FAILURE)
        }
        Err(Failure::Signal(signal)) => Err(signal),
    };
    wait_until_written();
    code.unwrap_or_else(signals::end_by)
}
