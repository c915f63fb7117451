//! The `iof` command.
//!
//! Bad input gets one line on stderr and exit code 2; what fails while running gets one line and exit code 1.

mod args;
mod attach;
mod inspect;
mod print;
mod pull;
mod query;
mod run;
mod signals;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::args::{Command, Iof};

/// Why the command failed, in the words for its one line.
enum Failure {
    /// The user can mend it by saying something else: exit code 2.
    Usage(String),
    /// Something failed on the way: exit code 1.
    Running(String),
    /// The reader of our output has gone: end as any well-behaved command does.
    BrokenPipe,
}

impl Failure {
    fn usage(error: impl ToString) -> Failure {
        Failure::Usage(error.to_string())
    }

    fn running(error: impl ToString) -> Failure {
        Failure::Running(error.to_string())
    }
}

fn main() -> ExitCode {
    let iof = match Iof::try_parse() {
        Ok(iof) => iof,
        Err(error) => return explain(&error),
    };
    let done = match iof.command {
        Command::Run(args) => run::run(&args),
        Command::Pull(args) => pull::pull(&args).map(|()| ExitCode::SUCCESS),
        Command::Query(args) => query::query(&args).map(|()| ExitCode::SUCCESS),
        Command::Inspect(args) => inspect::inspect(&args).map(|()| ExitCode::SUCCESS),
    };
    match done {
        Ok(code) => code,
        Err(Failure::Usage(message)) => {
            eprintln!("iof: {message}");
            ExitCode::from(2)
        }
        Err(Failure::Running(message)) => {
            eprintln!("iof: {message}");
            ExitCode::FAILURE
        }
        Err(Failure::BrokenPipe) => signals::die_of_broken_pipe(),
    }
}

/// Prints help as clap has it, and what is wrong in one line.
fn explain(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return match error.print() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => signals::die_of_broken_pipe(),
        };
    }
    let text = error.to_string();
    let wrong: Vec<&str> = text
        .lines()
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let wrong = wrong.join(" ");
    let wrong = wrong.strip_prefix("error: ").unwrap_or(&wrong);
    let wrong = if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        "a command is missing: run, pull, query or inspect"
    } else {
        wrong
    };
    eprintln!("iof: {wrong} (try 'iof --help')");
    ExitCode::from(2)
}
