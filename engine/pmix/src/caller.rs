//! The thread that calls libpmix. A call of libpmix may never return, for example because a client
//! that libpmix refused has left one of its locks locked. The wait for it is limited.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use nix::sys::signal::SigSet;

use crate::library::Library;

type Call = Box<dyn FnOnce(&Library) + Send>;

/// A thread that makes all calls of a library, one after the other. It ends once this is dropped
/// and all calls have returned.
pub(crate) struct Caller {
    calls: mpsc::Sender<Call>,
    stalled: Arc<AtomicBool>,
}

/// A call has not returned in time. It may still do so.
#[derive(Debug, thiserror::Error)]
#[error("libpmix does not answer")]
pub(crate) struct Stalled;

impl Caller {
    /// Starts the thread.
    pub(crate) fn start(library: Library) -> Result<Caller, std::io::Error> {
        let (calls, queue) = mpsc::channel::<Call>();
        let stalled = Arc::new(AtomicBool::new(false));
        let is_stalled = Arc::clone(&stalled);
        thread::Builder::new().name("iof-pmix".into()).spawn(move || {
            // Handlers of the embedder are not for this thread. It fails only for invalid masks.
            let _ = SigSet::all().thread_block();
            for call in queue {
                call(&library);
                // Relaxed: only the flag itself counts.
                is_stalled.store(false, Ordering::Relaxed);
            }
        })?;
        Ok(Caller { calls, stalled })
    }

    /// Makes a call on the thread, and waits at most `limit` for its result. While a call of before
    /// has not returned, the new call is only queued.
    ///
    /// # Errors
    /// [`Stalled`].
    pub(crate) fn call<T: Send + 'static>(
        &self,
        limit: Duration,
        call: impl FnOnce(&Library) -> T + Send + 'static,
    ) -> Result<T, Stalled> {
        let (sender, result) = mpsc::sync_channel(1);
        let sent = self.calls.send(Box::new(move |library| drop(sender.send(call(library)))));
        if sent.is_err() || self.stalled.load(Ordering::Relaxed) {
            return Err(Stalled);
        }
        result.recv_timeout(limit).map_err(|_| {
            self.stalled.store(true, Ordering::Relaxed);
            Stalled
        })
    }
}
