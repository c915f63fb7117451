//! A minimal launcher, which does what `iof run` does by default, without its signal handling. The
//! crate `iof` has the same in one type, `iof::Launcher`.
//!
//! ```text
//! cargo run --release -p iof-engine --example step_by_step -- 4 sh -c 'echo hello from rank $IOF_RANK'
//! ```

use std::error::Error;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;
use std::{env, io, process, thread};

use iof_engine::{App, Config, Engine, Grant, JobSpec, Signal, Stdin};
use iof_output::{Options, Output, Printer};
use iof_proto::{Channels, Nspace, Proc, Rank};
use iof_tool::Pull;

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("launcher: {error}");
        ExitCode::FAILURE
    })
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let mut args = env::args_os().skip(1);
    let usage = "usage: launcher N PROG ARGS...";
    let nprocs = args.next().and_then(|n| n.to_str()?.parse().ok()).ok_or(usage)?;
    let program = args.next().ok_or(usage)?;
    let args: Vec<OsString> = args.collect();

    // Tools find the engine in the user's rendezvous directory. Under `Policy::Block`, ranks wait
    // for readers with the grant to block, so that these lose nothing.
    let engine = Engine::start(Config::default())?;
    let nspace = Nspace::new(format!("launcher-{}", process::id()))?;

    // The launcher's own outputs are ordinary readers. They must be attached before the ranks
    // start.
    let printer = |channels, output: BorrowedFd| -> Result<Printer, Box<dyn Error>> {
        let mut tool = engine.attach("launcher", Grant::Block)?;
        let all = Proc::all(nspace.clone());
        tool.pull(&Pull::new(vec![all], channels))?;
        Ok(Printer::start(tool, Output::new(output)?, Options::default(), |_, _, _| {})?)
    };
    let out = printer(Channels::STDOUT, io::stdout().as_fd())?;
    let err = printer(Channels::STDERR | Channels::STDDIAG, io::stderr().as_fd())?;

    let app = App::new(program, args).ranks(nprocs);
    let mut spec = JobSpec::new(nspace.clone(), vec![app]);
    spec.stdin = [(Rank(0), Stdin::Inherit)].into();
    let job = engine.spawn(&spec)?;
    // `join` returns after the last byte, or when the output can't be written any more. In the
    // second case the job is ended, because nothing reads that output. Each printer is joined on a
    // thread of its own, because one can fail while the other still writes.
    let finish = |printer: Printer| {
        if printer.join().is_err() {
            job.signal(Signal::TERM);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| finish(err));
        finish(out);
    });
    let status = job.wait_exit();
    // Dropping the engine gives tools time to receive their last messages.
    drop(engine);
    Ok(status.into())
}
