//! The record of whether stdout and stderr were closed when this process started, as by `>&-`.
//!
//! The runtime of Rust opens `/dev/null` in their place before `main`, so output would vanish
//! without an error. This module looks earlier, and changes nothing.

use std::fs::{File, read_link};
use std::io;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use iof_output::Output;

const NULL: &str = "/dev/null";
const STDOUT: RawFd = 1;
const STDERR: RawFd = 2;

/// Set for each descriptor that was closed. Written before `main` by the only thread.
static WAS_CLOSED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

/// Runs before the runtime of Rust is initialized.
#[used]
// SAFETY: The C library calls each pointer of this section once, as a function without a result,
// before `main`. The function ignores the arguments that some C libraries pass.
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = look;

extern "C" fn look() {
    for (descriptor, was_closed) in [STDOUT, STDERR].into_iter().zip(&WAS_CLOSED) {
        // SAFETY: the arguments are numbers, and the call changes nothing.
        let is_closed = unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1;
        // Relaxed: `main` and all other threads start after this.
        was_closed.store(is_closed, Relaxed);
    }
}

/// Returns outputs to this process's stdout and stderr. If one was closed when the process started,
/// and was not redirected since, each write to it fails with `EBADF`.
///
/// # Errors
/// Fails if a descriptor can't be duplicated.
pub(crate) fn standard_outputs() -> io::Result<(Output, Output)> {
    let out = match unwritable(STDOUT)? {
        Some(file) => Output::new(file)?,
        None => Output::new(io::stdout())?,
    };
    let err = match unwritable(STDERR)? {
        Some(file) => out.beside(file)?,
        None => out.beside(io::stderr())?,
    };
    Ok((out, err))
}

/// Returns a file in place of a descriptor that was closed: one to which each write fails.
fn unwritable(descriptor: RawFd) -> io::Result<Option<File>> {
    let was_closed = [STDOUT, STDERR].into_iter().zip(&WAS_CLOSED);
    let was_closed =
        was_closed.into_iter().any(|(number, closed)| number == descriptor && closed.load(Relaxed));
    let is_null =
        || read_link(format!("/proc/self/fd/{descriptor}")).is_ok_and(|path| path == Path::new(NULL));
    if was_closed && is_null() { File::open(NULL).map(Some) } else { Ok(None) }
}
