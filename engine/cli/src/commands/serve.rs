//! `iof serve`: executes the program `iof-serve`, which is built and installed on its own.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::error::Failure;

const PROGRAM: &str = "iof-serve";

#[derive(Args)]
#[command(
    after_help = "It executes the program iof-serve, from the folder of iof or from PATH. `iof-serve --help` lists the \
                  options, such as --port, --socket, --allow and --new-token."
)]
pub struct ServeArgs {
    /// Jobs to serve, by name or pattern, and options of iof-serve [default: all jobs of this user]
    #[arg(value_name = "JOB", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Executes the program, which takes the place of this process.
pub fn serve(args: &ServeArgs) -> Failure {
    let beside = env::current_exe().ok().map(|own| own.with_file_name(PROGRAM)).filter(|path| path.exists());
    let error = Command::new(beside.unwrap_or_else(|| PathBuf::from(PROGRAM))).args(&args.arguments).exec();
    match error.kind() {
        io::ErrorKind::NotFound => Failure::usage(
            "iof-serve is not installed beside iof or in PATH: cargo install --locked --path engine/serve, in iof's sources",
        ),
        _ => Failure::Usage(format!("can't execute {PROGRAM}: {error}")),
    }
}
