//! Work that one thread does for another, which waits for it: the work may borrow from the one that
//! waits.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crossbeam::channel::{Receiver, Sender, bounded};

use crate::streams::Streams;

type Work<'a> = Box<dyn FnOnce(&mut Streams<'_>) + Send + 'a>;

/// Work on the streams. Run or dropped, it lets the one that waits go.
pub(crate) struct RemoteCall {
    /// Declared before `_done`, so dropped before it.
    work: Work<'static>,
    _done: Sender<()>,
}

impl RemoteCall {
    pub(crate) fn run(self, streams: &mut Streams<'_>) {
        // The call consumes the work, with all that it borrows, before `_done` is dropped. It does not
        // unwind.
        (self.work)(streams);
    }
}

/// Makes a job of `f`, hands it to `send`, and waits until it is gone; `None` if it was dropped
/// undone, as a `send` that fails does. A panic of `f` goes on here.
pub(crate) fn call_remotely<R: Send, E>(
    f: impl FnOnce(&mut Streams<'_>) -> R + Send,
    send: impl FnOnce(RemoteCall) -> Result<(), E>,
) -> Option<R> {
    let mut answer = None;
    let work: Work<'_> = Box::new(|streams| {
        answer = Some(catch_unwind(AssertUnwindSafe(|| f(streams))));
    });
    // SAFETY: only the lifetime changes. The work borrows from this function and its caller, and `WaitOnDrop`
    // keeps this function from returning or unwinding before the work is gone: its sender is
    // dropped after the work, in `RemoteCall::run` and when a job is dropped (field order). A job that is
    // leaked would leave us waiting for ever.
    let work = unsafe { std::mem::transmute::<Work<'_>, Work<'static>>(work) };
    let (done, wait) = bounded(0);
    let wait = WaitOnDrop(wait);
    let _ = send(RemoteCall { work, _done: done });
    drop(wait);
    answer.map(|result| result.unwrap_or_else(|panic| resume_unwind(panic)))
}

/// Dropping it waits until the job is gone.
struct WaitOnDrop(Receiver<()>);

impl Drop for WaitOnDrop {
    fn drop(&mut self) {
        // Nothing is ever sent: this ends when the sender is dropped.
        let _ = self.0.recv();
    }
}
