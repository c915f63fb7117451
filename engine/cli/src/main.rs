//! The `iof` command.
//!
//! Bad input is reported in one line on stderr, with exit code 2. A failure at run time is reported
//! in one line, with exit code 1.

mod args;
mod commands;
mod error;
mod events;
mod nodes;
mod options;
mod outputs;
mod pages;
mod pmix_tools;
mod processes;
mod reports;
mod run;
mod terminal;
mod top;
mod usage;

use std::env;
use std::process::ExitCode;

use crate::args::Command;
use crate::terminal::message::finish;

fn main() -> ExitCode {
    // Not a command of the user. It starts with each job, so it should not cost a parser.
    if env::args_os().nth(1).is_some_and(|command| command == "guardian") {
        return finish(processes::guardian::guard());
    }
    terminal::warnings::print_warnings();
    processes::signals::ignore_file_size_limit();
    let iof = match usage::parse() {
        Ok(iof) => iof,
        Err(code) => return code,
    };
    let result = match iof.command {
        Command::Run(args) => run::run(&args),
        Command::Pull(args) => commands::pull::pull(&args).map(|()| ExitCode::SUCCESS),
        Command::Push(args) => commands::push::push(&args).map(|()| ExitCode::SUCCESS),
        Command::Query(args) => commands::query::query(&args).map(|()| ExitCode::SUCCESS),
        Command::Top(args) => top::top(&args).map(|()| ExitCode::SUCCESS),
        Command::Ps(args) => commands::ps::ps(&args).map(|()| ExitCode::SUCCESS),
        Command::Kill(args) => commands::kill::kill(&args).map(|()| ExitCode::SUCCESS),
        Command::Log(args) => commands::log::log(&args).map(|()| ExitCode::SUCCESS),
        Command::Gateway(args) => commands::gateway::gateway(&args).map(|()| ExitCode::SUCCESS),
        Command::Inspect(args) => commands::inspect::inspect(&args).map(|()| ExitCode::SUCCESS),
        Command::Serve(args) => Err(commands::serve::serve(&args)),
        Command::Completions(args) => pages::completions(&args).map(|()| ExitCode::SUCCESS),
        Command::Man(args) => pages::man(&args).map(|()| ExitCode::SUCCESS),
        Command::Agent(args) => nodes::agents::agent(&args),
        Command::Link(args) => nodes::agents::link(&args),
        Command::Pmix(args) => pmix_tools::server::serve(&args),
    };
    finish(result)
}
