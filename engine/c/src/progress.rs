//! Functions for programs with their own event loop, and the reason of the last error.

use std::ffi::{c_char, c_int};

use crate::constants::{IOF_ERR_NOT_AVAILABLE, IOF_ERROR};
use crate::guard::{guard_or, is_in_callback, reason};
use crate::library::session_so_far;

/// Processes what is pending and calls callbacks, without waiting, if the program has chosen
/// IOF_EXTERNAL_PROGRESS. Otherwise, and in a callback, it has no effect. Call it when
/// iof_progress_fd is readable or iof_progress_timeout has passed. Functions that block do the same
/// while they wait.
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

/// Returns a descriptor for the program's own event loop (poll, epoll). It is readable when
/// iof_Progress is to be called. The library owns it. Returns IOF_ERR_NOT_AVAILABLE without
/// IOF_EXTERNAL_PROGRESS. A server has the descriptor after its first call of iof_IOF_pull or
/// another function of a tool.
#[unsafe(no_mangle)]
pub extern "C" fn iof_progress_fd() -> c_int {
    guard_or(IOF_ERROR, || {
        let session = session_so_far();
        session.and_then(|session| session.descriptor()).unwrap_or(IOF_ERR_NOT_AVAILABLE)
    })
}

/// Returns the longest time for which the event loop may wait for iof_progress_fd, in milliseconds,
/// or -1 for no limit. Call it before each wait.
#[unsafe(no_mangle)]
pub extern "C" fn iof_progress_timeout() -> c_int {
    guard_or(0, || {
        let timeout = session_so_far().and_then(|session| session.timeout());
        // Rounded up: otherwise the loop would spin for the last part of a millisecond.
        timeout.map_or(-1, |timeout| timeout.as_micros().div_ceil(1000).try_into().unwrap_or(c_int::MAX))
    })
}

/// Returns the reason why the last call on this thread failed, and what to do about it. The text is
/// empty if the status alone is known. It is valid until the thread ends, and the thread's next
/// call overwrites it.
#[unsafe(no_mangle)]
pub extern "C" fn iof_last_error() -> *const c_char {
    guard_or(c"".as_ptr(), reason)
}
