//! A tool: `cargo run --release -p iof --example tool -- NSPACE` prints the job's stdout.

use std::io::{Write as _, stdout};

use iof::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nspace = Nspace::new(std::env::args().nth(1).ok_or("usage: tool NSPACE")?)?;
    let mut tool = Tool::find(&Search::nspace(nspace.clone()), "example")?;
    tool.pull(&Pull::new(vec![Proc::all(nspace)], Channels::STDOUT))?;
    while let Some(delivery) = tool.recv()? {
        if let Delivery::Bytes(bytes) = delivery {
            stdout().write_all(&bytes)?;
        }
    }
    Ok(())
}
