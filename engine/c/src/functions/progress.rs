//! Functions for programs with their own event loop, and the reason of the last error.

use std::ffi::{c_char, c_int};

use iof_proto::Status;
use iof_tool::poll_timeout;

use crate::ffi::guard::{guard_or, is_in_callback, reason};
use crate::library::session_so_far;

/// Processes what is pending and calls callbacks, without waiting, if the program has chosen
/// IOF_EXTERNAL_PROGRESS. Otherwise, and in a callback, it has no effect. Call it when
/// iof_progress_fd is readable, and when the time of iof_progress_timeout has passed. Functions
/// that block do the same while they wait.
#[unsafe(no_mangle)]
pub extern "C" fn iof_Progress() {
    guard_or((), || {
        if let Some(session) = session_so_far()
            && !is_in_callback()
        {
            session.progress();
        }
    });
}

/// Returns a descriptor for the program's own event loop (poll, epoll). When it is readable,
/// iof_Progress is to be called. The library owns it and closes it when it is finalized. Returns
/// IOF_ERR_NOT_AVAILABLE without IOF_EXTERNAL_PROGRESS or without a connection. A server has the
/// descriptor after its first call of iof_IOF_pull or another function for tools.
#[unsafe(no_mangle)]
pub extern "C" fn iof_progress_fd() -> c_int {
    guard_or(Status::ERROR.0, || {
        let session = session_so_far();
        session.and_then(|session| session.descriptor()).unwrap_or(Status::ERR_NOT_AVAILABLE.0)
    })
}

/// Returns the longest time for which the event loop may wait for iof_progress_fd, in milliseconds,
/// or -1 for no limit. Call it before each wait.
#[unsafe(no_mangle)]
pub extern "C" fn iof_progress_timeout() -> c_int {
    guard_or(0, || {
        let timeout = session_so_far().and_then(|session| session.timeout());
        poll_timeout(timeout)
    })
}

/// Returns the reason why the last function that this thread called and that returns an
/// iof_status_t failed, and what to do about it. The text is empty if the function succeeded, or if
/// the status alone is known. It is valid until the thread ends or calls such a function again.
#[unsafe(no_mangle)]
pub extern "C" fn iof_last_error() -> *const c_char {
    guard_or(c"".as_ptr(), reason)
}
