//! For programs with an event loop of their own; and why the last call failed.

use std::ffi::{c_char, c_int};

use crate::constants::{IOF_ERR_NOT_AVAILABLE, IOF_ERROR};
use crate::guard::{guard_or, is_in_callback, reason};
use crate::library::session_so_far;

/// Does what there is to do, and calls callbacks, without a wait, if the program has said
/// IOF_EXTERNAL_PROGRESS; else nothing. Functions that wait do the same meanwhile. To be called
/// when iof_progress_fd is readable, or the time of iof_progress_timeout is over. In a callback it
/// does nothing.
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

/// A descriptor for the program's own event loop (poll, epoll): it is readable when iof_Progress is
/// to be called. It stays the library's. Below zero: there is none, without IOF_EXTERNAL_PROGRESS.
/// A server has it once it has called iof_IOF_pull or another function of a tool.
#[unsafe(no_mangle)]
pub extern "C" fn iof_progress_fd() -> c_int {
    guard_or(IOF_ERROR, || {
        let session = session_so_far();
        session.and_then(|session| session.descriptor()).unwrap_or(IOF_ERR_NOT_AVAILABLE)
    })
}

/// For how many milliseconds at most the event loop may wait for iof_progress_fd, to be asked
/// before each wait; -1: without end.
#[unsafe(no_mangle)]
pub extern "C" fn iof_progress_timeout() -> c_int {
    guard_or(0, || {
        let timeout = session_so_far().and_then(|session| session.timeout());
        // Rounded up, or the loop would spin for the last part of a millisecond.
        timeout.map_or(-1, |timeout| timeout.as_micros().div_ceil(1000).try_into().unwrap_or(c_int::MAX))
    })
}

/// Why the last call on this thread failed that gave an error, in words, and what to do about it;
/// empty if nobody knows more than the status. It stays where it is until the thread ends, and says
/// something else after the thread's next call.
#[unsafe(no_mangle)]
pub extern "C" fn iof_last_error() -> *const c_char {
    guard_or(c"".as_ptr(), reason)
}
