//! A tool: `cargo run --release -p ioforward --example tool -- NSPACE` prints the job's stdout.

use std::{error::Error, process::ExitCode};

use iof::prelude::*;

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("tool: {error}");
        ExitCode::FAILURE
    })
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let nspace = Nspace::new(std::env::args().nth(1).ok_or("usage: tool NSPACE")?)?;
    let mut tool = Tool::find(&Search::nspace(nspace.clone()), "example")?;
    tool.pull(&Pull::new(vec![Proc::all(nspace)], Channels::STDOUT))?;
    let lost = tool.copy_to(&mut std::io::stdout())?;
    if lost == 0 { Ok(ExitCode::SUCCESS) } else { Err(format!("{lost} bytes were lost").into()) }
}
