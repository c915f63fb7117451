//! Pipes whose other end a test holds.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::pipe2;

use crate::Pending;

/// Creates a pipe, which processes that start meanwhile do not inherit. Returns its read end first.
pub fn pipe() -> (OwnedFd, File) {
    let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
    (read, write.into())
}

/// Returns whether neither bytes nor the end can be read.
pub fn is_quiet(file: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::ZERO).unwrap() == 0
}

/// Reads to the end.
pub fn collect(mut input: impl Read + Send + 'static) -> Pending<Vec<u8>> {
    Pending::start(move || {
        let mut bytes = Vec::new();
        input.read_to_end(&mut bytes).unwrap();
        bytes
    })
}
