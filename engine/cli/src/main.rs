//! The `iof` command.
//!
//! Bad input gets one line on stderr and exit code 2; what fails while running gets one line and
//! exit code 1.

mod account;
mod app;
mod args;
mod attach;
mod follow;
mod inspect;
mod keyboard;
mod log;
mod message;
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

/// Why the command failed, in the words for its one line.
enum Failure {
    /// The user can mend it by saying something else: exit code 2.
    Usage(String),
    /// Something failed on the way: exit code 1.
    Running(String),
    /// A signal ended us: to be done to ourselves, so that the shell sees it. SIGPIPE if our reader
    /// has gone.
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
    // What the engine has to say of the machine, such as that it does without io_uring, and why.
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .without_time()
        .with_target(false)
        .with_ansi(false)
        .with_writer(message::stderr)
        .init();
    signals::outlive_full_files();
    let iof = match Iof::try_parse() {
        Ok(iof) => iof,
        Err(error) => return explain(&error),
    };
    let done = match iof.command {
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
    end(done)
}

/// Says what failed; the exit code.
fn end(done: Result<ExitCode, Failure>) -> ExitCode {
    match done {
        Ok(code) => code,
        Err(Failure::Usage(message)) => {
            print_message(format_args!("{message}"));
            ExitCode::from(2)
        }
        Err(Failure::Running(message)) => {
            print_message(format_args!("{message}"));
            ExitCode::FAILURE
        }
        Err(Failure::Signal(signal)) => signals::die_of(signal),
    }
}

/// Prints help as clap has it, and what is wrong in one line.
fn explain(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let printed = error.print().and_then(|()| io::stdout().flush());
        return end(printed.map_err(print::failed).map(|()| ExitCode::SUCCESS));
    }
    let wrong = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let iof = Iof::command();
            let names: Vec<&str> = iof.get_subcommands().map(clap::Command::get_name).collect();
            format!("a command is missing: {}", names.join(", "))
        }
        _ => in_one_line(error),
    };
    print_message(format_args!("{wrong} (try 'iof --help')"));
    ExitCode::from(2)
}

/// What clap says is wrong, without its advice.
fn in_one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let wrong: Vec<&str> = text
        .lines()
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("tip:"))
        .collect();
    let wrong = wrong.join(" ");
    wrong.strip_prefix("error: ").map(str::to_owned).unwrap_or(wrong)
}
