//! A launcher of a job on several nodes, and the agent that it starts on each.
//!
//! ```text
//! cargo run --release -p ioforward --example nodes -- 'ssh %h' a,b sh -c 'echo hello from rank $IOF_RANK'
//! ```
//!
//! Each host has two ranks. On each, this program is at the same path.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::{env, error::Error, io, process};

use iof::nodes::{Carriers, Launch, Node, NodeConnection, RemoteJob, Template, agent, shell_word};
use iof::prelude::*;

fn main() -> ExitCode {
    let is_agent = env::args_os().nth(1).is_some_and(|word| word == "agent");
    let result = if is_agent { run_agent() } else { launch() };
    result.unwrap_or_else(|error| {
        eprintln!("nodes: {error}");
        ExitCode::FAILURE
    })
}

fn launch() -> Result<ExitCode, Box<dyn Error>> {
    let mut args = env::args_os().skip(1);
    let usage = "usage: nodes TEMPLATE HOST,HOST,... PROG ARGS...";
    let mut word = || args.next().and_then(|word| word.into_string().ok());
    let (template, hosts, program) = (word().ok_or(usage)?, word().ok_or(usage)?, word().ok_or(usage)?);

    let ranks = |first| [Rank(first), Rank(first + 1)].into();
    let nodes = hosts.split(',').zip((0u32..).step_by(2));
    let nodes: Vec<Node> =
        nodes.map(|(host, first)| Node { host: host.into(), ranks: ranks(first) }).collect();
    let nspace = Nspace::new(format!("nodes-{}", process::id()))?;
    let app = App::new(program, args).ranks(2 * u32::try_from(nodes.len())?);
    let spec = JobSpec::new(nspace.clone(), vec![app]);

    let engine = Arc::new(Engine::start(Config::default())?);
    // As on one node, the reader attaches before the first byte, and the ranks wait for it.
    let mut tool = engine.attach("nodes", Grant::Block)?;
    tool.pull(&Pull::new(vec![Proc::all(nspace)], Channels::STDOUT | Channels::STDERR))?;
    let printer = Printer::start(tool, Output::new(io::stdout())?, Options::default(), |_, _, _| {})?;

    let mut command = OsString::from("exec ");
    command.push(shell_word(env::current_exe()?.as_os_str()));
    command.push(" agent");
    let carriers = Carriers::command(Template::new(&template)?, command);
    let launch = Launch::new(&spec, &carriers);
    let RemoteJob { job, .. } = launch.start(&engine, &nodes, &mut |_| false, |_, _| {})?;
    let printed = printer.join();
    if printed.is_err() {
        job.signal(Signal::TERM);
    }
    let status = job.wait();
    printed?;
    Ok(status.into())
}

/// Its stdin and stdout are the connection to the launcher.
fn run_agent() -> Result<ExitCode, Box<dyn Error>> {
    let (down, up) = (io::stdin(), io::stdout());
    let (down, up) = (down.as_fd().try_clone_to_owned()?, up.as_fd().try_clone_to_owned()?);
    agent(NodeConnection::new(down, up))?;
    Ok(ExitCode::SUCCESS)
}
