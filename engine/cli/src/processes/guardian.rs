//! `iof guardian`: ends the ranks of an `iof run` or an agent that was killed.

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nix::sys::prctl::set_name;
use nix::sys::signal::SigSet;

use crate::error::Failure;

/// This command's own file, even if it was replaced meanwhile.
pub const SELF: &str = "/proc/self/exe";

/// Returns the program of guardians: this command, also where /proc is missing.
pub fn program() -> Option<PathBuf> {
    if Path::new(SELF).exists() { Some(SELF.into()) } else { env::args_os().next().map(PathBuf::from) }
}

/// Waits for the end of the process that has started this one, and ends its ranks.
pub fn guard() -> Result<ExitCode, Failure> {
    // SIGKILL alone ends it. The name keeps `pkill -KILL iof` from doing so. The calls do not fail
    // with these arguments.
    let _ = SigSet::all().thread_block();
    let _ = set_name(c"guardian");
    // SAFETY: `main` calls this first, before any file is opened.
    unsafe { iof_capture::guard() }.map_err(Failure::running)?;
    Ok(ExitCode::SUCCESS)
}
