//! The program's own stdin, stdout and stderr, and the protection of their numbers.
//!
//! If one of them is closed, the next descriptor that is opened gets its number. The library's own
//! descriptors never have these numbers: otherwise output of ranks, or what the program prints,
//! would go to the engine as requests of the program.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use iof_proto::Status;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};

use crate::ffi::guard::{OrStatus, Outcome};

/// Takes the numbers of stdin, stdout and stderr that are free, for the rest of the process. Reads
/// and writes there fail as if they were closed, and programs that the process executes find them
/// closed. Must be called before the library opens a descriptor that it keeps.
pub(crate) fn reserve_numbers() {
    let mut options = File::options();
    options.read(true).custom_flags((OFlag::O_PATH | OFlag::O_CLOEXEC).bits());
    // Without a descriptor left, the library cannot open one with such a number either.
    while let Ok(file) = options.open("/") {
        if file.as_raw_fd() > libc::STDERR_FILENO {
            return;
        }
        let _reserved = file.into_raw_fd();
    }
}

/// Returns a duplicate of the program's stdin.
pub(crate) fn stdin() -> Outcome<OwnedFd> {
    let (stdin, closed) =
        (io::stdin(), "stdin is closed or closes on exec: open it or clear FD_CLOEXEC, or push bytes");
    let stdin = program_file(&stdin).ok_or(closed).or_status(Status::ERR_BAD_PARAM)?;
    stdin.try_clone_to_owned().or_status(Status::ERR_OUT_OF_RESOURCE)
}

/// Returns the descriptor of one of the program's standard files, unless it is closed. One that
/// closes on exec counts as closed: it is a placeholder, or the program has closed its own file and
/// a file for another purpose has the number now.
pub(crate) fn program_file(file: &impl AsFd) -> Option<BorrowedFd<'_>> {
    let flags = fcntl(file, FcntlArg::F_GETFD).ok()?;
    (!FdFlag::from_bits_retain(flags).contains(FdFlag::FD_CLOEXEC)).then(|| file.as_fd())
}
