//! The `iof` command.
//!
//! Bad input is reported in one line on stderr, with exit code 2. A failure at run time is reported
//! in one line, with exit code 1.

mod account;
mod app;
mod args;
mod attach;
mod closed;
mod error;
mod exits;
mod failures;
mod fifos;
mod full_screen;
mod gaps;
mod gateway;
mod give_up;
mod guardian;
mod inspect;
mod job_event;
mod keyboard;
mod kill;
mod log;
mod message;
mod mpir;
mod name;
mod nodes;
mod orphans;
mod output;
mod pages;
mod pmix_tools;
mod print;
mod printers;
mod ps;
mod pull;
mod push;
mod query;
mod redirect;
mod run;
mod signal_watch;
mod signals;
mod singletons;
mod stdin;
mod suspects;
mod threads;
mod top;
mod usage;
mod warnings;

use std::env;
use std::process::ExitCode;

use crate::args::Command;
use crate::message::finish;

fn main() -> ExitCode {
    // Not a command of the user. It starts with each job, so it should not cost a parser.
    if env::args_os().nth(1).is_some_and(|command| command == "guardian") {
        return finish(guardian::guard());
    }
    warnings::print_warnings();
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
        Command::Gateway(args) => gateway::gateway(&args).map(|()| ExitCode::SUCCESS),
        Command::Inspect(args) => inspect::inspect(&args).map(|()| ExitCode::SUCCESS),
        Command::Completions(args) => pages::completions(&args).map(|()| ExitCode::SUCCESS),
        Command::Man(args) => pages::man(&args).map(|()| ExitCode::SUCCESS),
        Command::Agent(args) => nodes::agents::agent(&args),
        Command::Link(args) => nodes::agents::link(&args),
        Command::Pmix(args) => pmix_tools::server::serve(&args),
    };
    finish(result)
}
