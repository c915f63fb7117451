//! A rank for the integration tests, which has its engine start a job, and prints its name or the
//! reason why it is not started.
//!
//! ```text
//! spawn NAME RANKS SECONDS attached|detached PROGRAM ARGS...
//! ```
//!
//! It ends after `SECONDS`.

use std::error::Error;
use std::path::Path;
use std::time::Duration;
use std::{env, thread};

use iof::engine::{App, JobSpec};
use iof::tool::{Tool, own_proc};
use iof_proto::Spawn;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let mut next = || args.next().ok_or("usage: spawn NAME RANKS SECONDS attached|detached PROGRAM ARGS...");
    let (name, ranks, seconds, end, program) = (next()?, next()?, next()?, next()?, next()?);
    let mut tool = Tool::connect(Path::new(&env::var_os("IOF_SERVER").ok_or("no engine")?), "spawner")?;
    let app = App::new(program, args).ranks(ranks.parse()?);
    let mut spawn = Spawn::new(JobSpec::new(name.parse()?, vec![app]));
    (spawn.spec.parent, spawn.detached) = (own_proc(), end == "detached");
    match tool.spawn_with(&spawn) {
        Ok(name) => println!("started {name}"),
        Err(error) => println!("refused: {error}"),
    }
    thread::sleep(Duration::from_secs_f64(seconds.parse()?));
    Ok(())
}
