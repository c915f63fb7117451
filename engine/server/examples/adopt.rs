//! A launcher that starts its ranks itself and has the engine forward their output.
//!
//! ```text
//! cargo run --release -p iof-engine --example adopt -- 4 sh -c 'echo hello from rank $RANK'
//! ```

use std::error::Error;
use std::process::{Command, ExitCode, Stdio};
use std::{env, io, process};

use iof_engine::{AdoptSpec, AdoptedRank, Config, Engine, Grant, Process};
use iof_output::{Options, Output, Printer};
use iof_proto::{Channel, Channels, Nspace, Proc, Rank};
use iof_tool::Pull;

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("adopt: {error}");
        ExitCode::FAILURE
    })
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let mut args = env::args_os().skip(1);
    let usage = "usage: adopt N PROG ARGS...";
    let nprocs: u32 = args.next().and_then(|n| n.to_str()?.parse().ok()).ok_or(usage)?;
    let program = args.next().ok_or(usage)?;
    let args: Vec<_> = args.collect();

    // The engine takes the read ends of the ranks' pipes, and the pids of children. It waits for
    // the children itself, so no other thread may wait for them.
    let mut ranks = Vec::new();
    for rank in 0..nprocs {
        let mut command = Command::new(&program);
        command.args(&args).env("RANK", rank.to_string()).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut adopted = AdoptedRank::new(Rank(rank), program.to_string_lossy(), Process::Pid(child.id()));
        adopted.files.extend(child.stdout.take().map(|stdout| (Channel::Stdout, stdout.into())));
        adopted.files.extend(child.stderr.take().map(|stderr| (Channel::Stderr, stderr.into())));
        ranks.push(adopted);
    }

    // From here on, only `adopt` differs from a job that the engine starts, see the example
    // `step_by_step`.
    let engine = Engine::start(Config::default())?;
    let nspace = Nspace::new(format!("adopt-{}", process::id()))?;
    let mut tool = engine.attach("adopt", Grant::Block)?;
    let all = Proc::all(nspace.clone());
    tool.pull(&Pull::new(vec![all], Channels::STDOUT | Channels::STDERR))?;
    let output = Output::new(io::stdout())?;
    let printer = Printer::start(tool, output, Options::default(), |_, _, _| {})?;

    let job = engine.adopt(AdoptSpec::new(nspace, ranks))?;
    let status = job.wait();
    printer.join()?;
    drop(engine);
    Ok(status.into())
}
