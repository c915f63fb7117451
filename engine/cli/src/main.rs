//! The `iof` command.
//!
//! Bad input is reported in one line on stderr, with exit code 2. A failure at run time is reported
//! in one line, with exit code 1.

mod account;
mod app;
mod args;
mod attach;
mod closed;
mod follow;
mod gaps;
mod inspect;
mod keyboard;
mod log;
mod message;
mod name;
mod output;
mod pages;
mod print;
mod pull;
mod push;
mod query;
mod run;
mod signals;
mod stdin;
mod top;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use nix::sys::signal::Signal;

use crate::args::{Command, Iof};
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
    let iof = match Iof::try_parse() {
        Ok(iof) => iof,
        Err(error) => return explain(&error),
    };
    let result = match iof.command {
        Command::Run(args) => run::run(&args),
        Command::Pull(args) => pull::pull(&args).map(|()| ExitCode::SUCCESS),
        Command::Push(args) => push::push(&args).map(|()| ExitCode::SUCCESS),
        Command::Query(args) => query::query(&args).map(|()| ExitCode::SUCCESS),
        Command::Top(args) => top::top(&args).map(|()| ExitCode::SUCCESS),
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

/// Prints clap's help or version text as it is, and an error in one line.
fn explain(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let printed = print::check(io::stdout())
            .and_then(|()| error.print().and_then(|()| io::stdout().flush()).map_err(print::failed));
        return finish(printed.map(|()| ExitCode::SUCCESS));
    }
    let message = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let iof = Iof::command();
            let names: Vec<&str> = iof.get_subcommands().map(clap::Command::get_name).collect();
            format!("missing command: expected one of {}", names.join(", "))
        }
        _ => in_one_line(error),
    };
    print_message(format_args!("{message} (try 'iof --help')"));
    ExitCode::from(2)
}

/// Returns clap's error message in one line, without usage and tips.
fn in_one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines: Vec<&str> = text
        .lines()
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("tip:"))
        .collect();
    let message = lines.join(" ");
    message.strip_prefix("error: ").map(str::to_owned).unwrap_or(message)
}
