//! A launcher.
//!
//! ```text
//! cargo run --release -p ioforward --example launcher -- 4 sh -c 'echo hello from rank $IOF_RANK'
//! ```

use std::{env, error::Error, process::ExitCode};

use iof::prelude::*;

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("launcher: {error}");
        ExitCode::FAILURE
    })
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let mut args = env::args_os().skip(1);
    let usage = "usage: launcher N PROG ARGS...";
    let ranks = args.next().and_then(|ranks| ranks.to_str()?.parse().ok()).ok_or(usage)?;
    let program = args.next().ok_or(usage)?;
    let nspace = Nspace::new(format!("launcher-{}", std::process::id()))?;
    let status = Launcher::new(nspace).app(App::new(program, args).ranks(ranks)).run()?;
    Ok(status.into())
}
