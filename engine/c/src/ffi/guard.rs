//! The border between C and Rust: no panic crosses it, and no function blocks in a callback.

use std::cell::Cell;
use std::ffi::c_char;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use iof_proto::{Failure, Status};

use crate::ffi::types::iof_status_t;

/// The result of an operation, or the status of its error.
pub(crate) type Outcome<T> = Result<T, Status>;

/// Runs the body of an entry point that returns a status. A panic, which is a bug of the library,
/// is reported on stderr by the process's panic hook, and C receives [`Status::ERROR`].
pub(crate) fn guard(body: impl FnOnce() -> Outcome<()>) -> iof_status_t {
    guard_number(|| body().map(|()| 0))
}

/// The same as [`guard`], for a body that returns a number or a status on success.
pub(crate) fn guard_number(body: impl FnOnce() -> Outcome<iof_status_t>) -> iof_status_t {
    set_reason("");
    guard_or(Status::ERROR.0, || body().unwrap_or_else(|Status(status)| status))
}

/// Runs the body of an entry point that returns another type. Returns `instead` after a panic.
pub(crate) fn guard_or<T>(instead: T, body: impl FnOnce() -> T) -> T {
    // Unwind safety: shared state is behind locks whose poisoning is ignored. The tables contain
    // only state of this process, and each of their entries is complete.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(instead)
}

/// Runs the body of an entry point that returns a pointer. Returns NULL after an error or a panic.
pub(crate) fn guard_pointer<T>(body: impl FnOnce() -> Outcome<*mut T>) -> *mut T {
    guard_or(ptr::null_mut(), || body().unwrap_or(ptr::null_mut()))
}

/// Locks `mutex`, even after a panic of a thread that held the lock, see [`guard_or`].
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Runs a callback of the program.
pub(crate) fn calling<T>(callback: impl FnOnce() -> T) -> T {
    let before = IN_CALLBACK.replace(true);
    let result = callback();
    IN_CALLBACK.set(before);
    result
}

/// Returns whether this thread runs a callback.
pub(crate) fn is_in_callback() -> bool {
    IN_CALLBACK.get()
}

/// Fails with [`Status::ERR_WOULD_BLOCK`] in a callback. Functions that block call it first.
pub(crate) fn may_wait() -> Outcome<()> {
    if is_in_callback() { Err(Status::ERR_WOULD_BLOCK) } else { Ok(()) }
}

/// Converts an error into a status for C, and keeps its text for `iof_last_error`.
pub(crate) trait OrStatus<T> {
    /// Keeps the text of the error, and returns `status` in its place.
    fn or_status(self, status: Status) -> Outcome<T>;
}

impl<T, E: Display> OrStatus<T> for Result<T, E> {
    fn or_status(self, status: Status) -> Outcome<T> {
        self.map_err(|reason| {
            set_reason(&reason.to_string());
            status
        })
    }
}

/// Like [`OrStatus::or_status`], for an error that has a status.
pub(crate) fn or_failure<T>(result: Result<T, Failure>) -> Outcome<T> {
    let status = result.as_ref().err().map_or(Status::SUCCESS, |failure| failure.status);
    result.map_err(|failure| failure.reason).or_status(as_error(status.0))
}

/// Returns the status of an error. C treats a status of 0 or more as success.
pub(crate) fn as_error(status: iof_status_t) -> Status {
    Status(status.min(Status::ERROR.0))
}

/// The size of a reason in bytes, including its terminator.
const MAX_REASON: usize = 1024;

thread_local! {
    // The memory stays in place, so that a program that kept the pointer never reads freed memory.
    // It has no destructor, so that it exists in handlers of atexit(3) as well.
    static REASON: [Cell<c_char>; MAX_REASON] = const { [const { Cell::new(0) }; MAX_REASON] };
}

/// Keeps the reason why a call failed.
fn set_reason(reason: &str) {
    let end = reason.floor_char_boundary(MAX_REASON.saturating_sub(1));
    let bytes = reason.bytes().take(end).map(|byte| byte.cast_signed() as c_char);
    REASON.with(|place| place.iter().zip(bytes.chain([0])).for_each(|(cell, byte)| cell.set(byte)));
}

/// Returns `status`, after `iof_last_error` was given the reason: for the functions of `iof-pmix`.
#[doc(hidden)]
pub fn fail(status: Status, reason: &str) -> Status {
    set_reason(reason);
    status
}

/// Returns the reason why the last call on this thread failed.
pub(crate) fn reason() -> *const c_char {
    REASON.with(|place| place.as_ptr().cast())
}

#[cfg(test)]
#[allow(clippy::panic, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_status() {
        assert_eq!(guard(|| panic!("test")), Status::ERROR.0);
        assert_eq!(guard_or(7, || panic!("test")), 7);
    }

    #[test]
    fn a_reason_is_truncated_between_characters_and_keeps_its_address() {
        let shown = || {
            // SAFETY: the reason is terminated.
            unsafe { std::ffi::CStr::from_ptr(reason()) }.to_str().map(str::to_owned)
        };
        set_reason(&"ü".repeat(MAX_REASON));
        let before = reason();
        assert_eq!(shown(), Ok("ü".repeat(511)));
        set_reason("short");
        assert_eq!((reason(), shown()), (before, Ok("short".to_owned())));
    }

    #[test]
    fn only_callbacks_may_not_wait() {
        assert_eq!(may_wait(), Ok(()));
        calling(|| {
            calling(|| {});
            assert_eq!(may_wait(), Err(Status::ERR_WOULD_BLOCK));
        });
        assert_eq!(may_wait(), Ok(()));
        assert_eq!(may_wait(), Ok(()));
    }
}
