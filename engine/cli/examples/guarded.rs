//! A launcher for the integration tests, which starts two ranks in a thread that ends.
//!
//! ```text
//! guarded IOF PROGRAM ARGS...
//! ```
//!
//! `IOF` is the command that is the guardian of its engine.

use std::error::Error;
use std::{env, thread};

use iof::engine::{Config, Engine, JobSpec, Rendezvous};
use iof::prelude::*;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args_os().skip(1);
    let (Some(iof), Some(program)) = (args.next(), args.next()) else {
        return Err("usage: guarded IOF PROGRAM ARGS...".into());
    };
    let mut config = Config::new(Rendezvous::None);
    config.guardian = Some(iof.into());
    let engine = Engine::start(config)?;
    let spec = JobSpec::new("demo".parse()?, vec![App::new(program, args).ranks(2)]);
    let job = thread::scope(|scope| scope.spawn(|| engine.spawn(&spec)).join());
    let job = job.map_err(|_| "the thread has panicked")??;
    println!("the thread has ended");
    job.wait();
    Ok(())
}
