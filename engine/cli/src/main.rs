//! The `iof` command.
//!
//! Bad input is reported in one line on stderr, with exit code 2. A failure at run time is reported
//! in one line, with exit code 1.

mod account;
mod app;
mod args;
mod attach;
mod closed;
mod exits;
mod failures;
mod follow;
mod gaps;
mod give_up;
mod inspect;
mod keyboard;
mod kill;
mod log;
mod message;
mod name;
mod orphans;
mod output;
mod pages;
mod print;
mod ps;
mod pull;
mod push;
mod query;
mod redirect;
mod run;
mod signals;
mod stdin;
mod threads;
mod top;
mod usage;

use std::process::ExitCode;

use nix::sys::signal::Signal;

use crate::args::Command;
use crate::message::print_message;

/// The reason why the command failed, as the text of its one-line message.
enum Failure {
    /// Input that the user can correct: exit code 2.
    Usage(String),
    /// A failure at run time: exit code 1.
    Running(String),
    /// A signal that ended the command, such as SIGPIPE when the reader of its output is gone. The
    /// command raises it in its own process, so that the shell sees it.
    Signal(Signal),
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
    // Shows the engine's warnings about the machine, such as why it does not use io_uring.
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .without_time()
        .with_target(false)
        .with_ansi(false)
        .with_writer(message::stderr)
        .init();
    signals::ignore_file_size_limit();
    let iof = match usage::parse() {
        Ok(iof) => iof,
        Err(code) => return code,
    };
    let result = match iof.command {
        Command::Run(args) => run::run(&args),
        Command::Pull(args) => pull::pull(&args).map(|()| ExitCode::SUCCESS),
        Command::Push(args) => push::push(&args).map(|()| ExitCode::SUCCESS),
        Command::Query(args) => query::query(&args).map(|()| ExitCode::SUCCESS),
        Command::Top(args) => top::top(&args).map(|()| ExitCode::SUCCESS),
        Command::Ps(args) => ps::ps(&args).map(|()| ExitCode::SUCCESS),
        Command::Kill(args) => kill::kill(&args).map(|()| ExitCode::SUCCESS),
        Command::Log(args) => log::log(&args).map(|()| ExitCode::SUCCESS),
        Command::Inspect(args) => inspect::inspect(&args).map(|()| ExitCode::SUCCESS),
        Command::Completions(args) => pages::completions(&args).map(|()| ExitCode::SUCCESS),
        Command::Man(args) => pages::man(&args).map(|()| ExitCode::SUCCESS),
    };
    finish(result)
}

/// Prints the failure, if any, and returns the exit code.
fn finish(result: Result<ExitCode, Failure>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(Failure::Usage(message)) => {
            print_message(format_args!("{message}"));
            ExitCode::from(2)
        }
        Err(Failure::Running(message)) => {
            print_message(format_args!("{message}"));
            ExitCode::FAILURE
        }
        Err(Failure::Signal(signal)) => signals::end_by(signal),
    }
}
