//! A tool on tokio's event loop: prints the length of each delivery of a job's stdout.
//!
//! ```text
//! iof run -n 4 --nspace demo -- sh -c 'seq 100000' > /dev/null &
//! cargo run --release -p iof-tool --features tokio --example tokio -- demo
//! ```

use std::env;
use std::error::Error;
use std::future::poll_fn;
use std::pin::Pin;
use std::process::ExitCode;

use futures_core::Stream;
use iof_proto::rendezvous::Search;
use iof_proto::{Channels, Nspace, Proc};
use iof_tool::{AsyncTool, OwnedDelivery, Pull, Tool};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    run().await.unwrap_or_else(|error| {
        eprintln!("tokio: {error}");
        ExitCode::FAILURE
    })
}

async fn run() -> Result<ExitCode, Box<dyn Error>> {
    let nspace = Nspace::new(env::args().nth(1).ok_or("usage: tokio NSPACE")?)?;
    let mut tool = Tool::find(&Search::nspace(nspace.clone()), "tokio")?;
    tool.pull(&Pull::new(vec![Proc::all(nspace)], Channels::STDOUT))?;
    let mut deliveries = AsyncTool::new(tool)?;
    let mut is_whole = true;
    while let Some(delivery) = poll_fn(|task| Pin::new(&mut deliveries).poll_next(task)).await {
        match delivery? {
            OwnedDelivery::Bytes { origin, bytes, .. } => {
                println!("{}: {} bytes", origin.source, bytes.len())
            }
            // Output is missing.
            OwnedDelivery::Gap { .. }
            | OwnedDelivery::Broken { .. }
            | OwnedDelivery::Gone { .. }
            | OwnedDelivery::Missed { .. } => is_whole = false,
            _ => {}
        }
    }
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
