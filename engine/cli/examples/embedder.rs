//! A launcher for the integration tests, to whose job `demo` of two ranks tools of PMIx can attach.
//!
//! ```text
//! embedder IOF PROGRAM ARGS...
//! ```
//!
//! `IOF` is the command that serves the tools. The launcher runs on without an engine until the end
//! of its stdin.

use std::error::Error;
use std::process::ExitCode;
use std::{env, io};

use iof::engine::Mpi;
use iof::prelude::*;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut args = env::args_os().skip(1);
    let (Some(iof), Some(program)) = (args.next(), args.next()) else {
        return Err("usage: embedder IOF PROGRAM ARGS...".into());
    };
    let launcher = Launcher::new("demo".parse()?).app(App::new(program, args).ranks(2)).mpi(Mpi::Pmix);
    let status = launcher.job(|job| job.pmix_tools = Some(iof.into())).run()?;
    // The engine has ended.
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(ExitCode::from(u8::try_from(status.code()).unwrap_or(1)))
}
