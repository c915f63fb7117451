//! A tool on tokio's event loop: prints the length of each delivery of a job's stdout.
//!
//! ```text
//! iof run -n 4 --nspace demo -- sh -c 'seq 100000' > /dev/null &
//! cargo run --release -p iof-tool --example tokio -- demo
//! ```

use std::env;
use std::error::Error;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use iof_proto::rendezvous::Search;
use iof_proto::{Channels, Nspace, Proc};
use iof_tool::{Delivery, Pull, Tool};
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

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
    // SAFETY: the duplicate is owned by the registration, and `OwnedFd` always returns the same
    // descriptor.
    let readiness = unsafe { AsyncFd::register(tool.as_fd().try_clone_to_owned()?) }?;
    tool.pull(&Pull::new(vec![Proc::all(nspace)], Channels::STDOUT))?;
    loop {
        while let Some(delivery) = tool.try_recv()? {
            if let Delivery::Bytes(bytes) = delivery {
                println!("{}: {} bytes", bytes.origin().source, bytes.len());
            }
        }
        if tool.is_done() {
            return Ok(ExitCode::SUCCESS);
        }
        // `try_recv` has found nothing, so only the doorbell or the tool's own timeout can bring
        // more.
        let limit = tool.timeout().unwrap_or(Duration::MAX);
        if let Ok(ready) = timeout(limit, readiness.readable()).await {
            ready?.clear_ready();
        }
    }
}
