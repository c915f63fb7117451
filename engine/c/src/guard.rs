//! The one door between C and Rust: no panic gets out, and nobody waits in a callback for what
//! comes after it.

use std::cell::Cell;
use std::ffi::c_char;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use iof_proto::{Failure, Status};

use crate::constants::{IOF_ERR_WOULD_BLOCK, IOF_ERROR};
use crate::types::iof_status_t;

/// What an operation comes to, or the status that says why not.
pub(crate) type Outcome<T> = Result<T, iof_status_t>;

/// Runs the body of an entry point that gives a status. A panic, which is a bug of ours, has been
/// told on stderr by the hook of the process; C gets [`IOF_ERROR`].
pub(crate) fn guard(body: impl FnOnce() -> Outcome<iof_status_t>) -> iof_status_t {
    note("");
    guard_or(IOF_ERROR, || body().unwrap_or_else(|status| status))
}

/// Runs the body of one that gives something else.
pub(crate) fn guard_or<T>(instead: T, body: impl FnOnce() -> T) -> T {
    // What a body leaves half done is behind a lock, whose poison the next one ignores: the tables are
    // of our own process, and each entry of them is whole.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(instead)
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

/// Whether this thread runs a callback.
pub(crate) fn is_in_callback() -> bool {
    IN_CALLBACK.get()
}

/// Refuses what waits, in a callback.
pub(crate) fn may_wait() -> Outcome<()> {
    if is_in_callback() { Err(IOF_ERR_WOULD_BLOCK) } else { Ok(()) }
}

/// What cannot be done, for C: a status, and a reason that is kept for who asks.
pub(crate) trait OrStatus<T> {
    /// Notes the reason and gives `status`.
    fn or_status(self, status: iof_status_t) -> Outcome<T>;
}

impl<T, E: Display> OrStatus<T> for Result<T, E> {
    fn or_status(self, status: iof_status_t) -> Outcome<T> {
        self.map_err(|reason| {
            note(&reason.to_string());
            status
        })
    }
}

/// The same, of what comes with its status.
pub(crate) fn or_failure<T>(result: Result<T, Failure>) -> Outcome<T> {
    let Status(status) = result.as_ref().err().map_or(Status::SUCCESS, |failure| failure.status);
    // C takes what is not below zero for success.
    result.map_err(|failure| failure.reason).or_status(status.min(-1))
}

/// Bytes of a reason, with its terminator.
const MAX_REASON: usize = 1024;

thread_local! {
    // Its place stays, so that who still has an older reason reads no freed memory; and nothing is to be dropped, so that
    // it is there in handlers of atexit(3) as well.
    static REASON: [Cell<c_char>; MAX_REASON] = const { [const { Cell::new(0) }; MAX_REASON] };
}

/// Keeps why a call has failed.
fn note(reason: &str) {
    let end = reason.floor_char_boundary(MAX_REASON.saturating_sub(1));
    let bytes = reason.bytes().take(end).map(|byte| byte.cast_signed() as c_char);
    REASON.with(|place| place.iter().zip(bytes.chain([0])).for_each(|(to, byte)| to.set(byte)));
}

/// Why the last call on this thread failed.
pub(crate) fn reason() -> *const c_char {
    REASON.with(|place| place.as_ptr().cast())
}

#[cfg(test)]
#[allow(clippy::panic, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_status() {
        assert_eq!(guard(|| panic!("as a test")), IOF_ERROR);
        assert_eq!(guard_or(7, || panic!("as a test")), 7);
    }

    #[test]
    fn a_reason_is_cut_between_characters_and_stays_where_it_is() {
        let shown = || {
            // SAFETY: it is terminated.
            unsafe { std::ffi::CStr::from_ptr(reason()) }.to_str().map(str::to_owned)
        };
        note(&"ü".repeat(MAX_REASON));
        let before = reason();
        assert_eq!(shown(), Ok("ü".repeat(511)));
        note("short");
        assert_eq!((reason(), shown()), (before, Ok("short".to_owned())));
    }

    #[test]
    fn only_a_callback_may_not_wait() {
        assert_eq!(may_wait(), Ok(()));
        calling(|| {
            calling(|| {});
            assert_eq!(may_wait(), Err(IOF_ERR_WOULD_BLOCK));
        });
        assert_eq!(may_wait(), Ok(()));
        assert_eq!(may_wait(), Ok(()));
    }
}
