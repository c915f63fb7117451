//! Watches a job: prints how many bytes each stream has, and how the job ended.
//!
//! ```text
//! iof run -n 4 --nspace demo -- sh -c 'seq 100000' > /dev/null &
//! cargo run --release -p iof-tool --example watch -- demo
//! ```

use std::env;
use std::error::Error;
use std::process::ExitCode;

use iof_proto::rendezvous::Search;
use iof_proto::{Channels, Nspace, Proc};
use iof_tool::{Delivery, Pull, Tool};

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("watch: {error}");
        ExitCode::FAILURE
    })
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let nspace = Nspace::new(args.next().ok_or("usage: watch NSPACE")?)?;
    let mut tool = Tool::find(&Search::nspace(nspace.clone()), "watch")?;
    let all = Proc::all(nspace);
    tool.pull(&Pull::new(vec![all], Channels::STDOUT | Channels::STDERR | Channels::STDDIAG))?;
    while let Some(delivery) = tool.recv()? {
        match delivery {
            // `recv` counts the bytes; `Complete` and `Gone` report the totals.
            Delivery::Bytes(_) => {}
            Delivery::Gap { origin, gap } => {
                println!(
                    "{} {}: {} bytes lost at offset {}",
                    origin.source, origin.channel, gap.lost, gap.offset
                );
            }
            Delivery::Complete { origin, counts } => {
                let (produced, delivered) = (counts.produced, counts.delivered);
                println!(
                    "{} {}: wrote {produced} bytes, {delivered} of them were delivered",
                    origin.source, origin.channel
                );
            }
            Delivery::Broken { origin, counts, .. } | Delivery::Gone { origin, counts } => {
                println!("{} {}: wrote {} bytes or more", origin.source, origin.channel, counts.produced);
            }
            Delivery::JobEnded { nspace, exit_code, .. } => {
                println!("{nspace} ended with {}", exit_code.map_or("?".into(), |code| code.to_string()));
            }
            _ => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}
