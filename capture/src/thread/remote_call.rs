//! A closure that one thread runs for another, which waits for the result. The closure may borrow
//! from the waiting thread.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crossbeam::channel::{Receiver, Sender, bounded};

use crate::thread::streams::Streams;

type Work<'a> = Box<dyn FnOnce(&mut Streams<'_>) + Send + 'a>;

/// A closure to be called with the streams. Running or dropping it releases the waiting thread.
pub(crate) struct RemoteCall {
    /// Declared before `_done`, so dropped before it.
    work: Work<'static>,
    _done: Sender<()>,
}

impl RemoteCall {
    pub(crate) fn run(self, streams: &mut Streams<'_>) {
        // The call consumes the closure, with all that it borrows, before `_done` is dropped. It
        // does not unwind.
        (self.work)(streams);
    }
}

/// Makes a call of `f`, hands it to `send`, and blocks until it has been run or dropped. Returns
/// `None` if it was dropped without being run, as a failing `send` does. A panic of `f` is resumed
/// on the calling thread.
pub(crate) fn call_remotely<R: Send, E>(
    f: impl FnOnce(&mut Streams<'_>) -> R + Send,
    send: impl FnOnce(RemoteCall) -> Result<(), E>,
) -> Option<R> {
    let mut result = None;
    let work: Work<'_> = Box::new(|streams| {
        result = Some(catch_unwind(AssertUnwindSafe(|| f(streams))));
    });
    // SAFETY: only the lifetime changes. The closure borrows from this function and its caller, and
    // `WaitOnDrop` keeps this function from returning or unwinding before the closure is gone: the
    // sender that it waits for is dropped after the closure, in `RemoteCall::run` and when a call
    // is dropped (field order). If a call were leaked, this function would wait for ever.
    let work = unsafe { std::mem::transmute::<Work<'_>, Work<'static>>(work) };
    let (done, wait) = bounded(0);
    let wait = WaitOnDrop(wait);
    let _ = send(RemoteCall { work, _done: done });
    drop(wait);
    result.map(|result| result.unwrap_or_else(|panic| resume_unwind(panic)))
}

/// A guard whose drop blocks until the call has been run or dropped.
struct WaitOnDrop(Receiver<()>);

impl Drop for WaitOnDrop {
    fn drop(&mut self) {
        // Nothing is ever sent. The receive fails when the sender is dropped.
        let _ = self.0.recv();
    }
}
