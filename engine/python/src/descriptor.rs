//! Descriptors of Python.

use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use nix::libc::EBADF;
use pyo3::prelude::*;

use crate::arguments::invalid;

/// Duplicates a descriptor of Python, whose file object remains its owner.
pub fn duplicate(argument: &str, fd: RawFd) -> PyResult<OwnedFd> {
    if fd < 0 {
        return Err(invalid(argument, format!("{fd} is not a descriptor")));
    }
    // SAFETY: the descriptor is used for this call only, while the caller holds the GIL and a reference to its
    // file object. If it is closed nevertheless, the call fails.
    let duplicated = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
    duplicated.map_err(|error| match error.raw_os_error() {
        Some(EBADF) => invalid(argument, format!("descriptor {fd}: {error}")),
        _ => error.into(),
    })
}
