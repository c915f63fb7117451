//! The rings that an engine hands over to a tool in its own process.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iof_shm_ring::{Ring, Stepper};

/// The queue by which an engine hands its rings over to a tool in its own process, so that both use
/// the same maps. A tool in another process receives the descriptors of the rings instead, and maps
/// them.
///
/// Each ring in the queue belongs to one message on the socket that announces a ring; both are in
/// the same order.
#[derive(Clone, Debug, Default)]
pub struct LocalRings {
    queue: Arc<Mutex<VecDeque<Arc<Ring>>>>,
    stepper: Stepper,
}

impl LocalRings {
    /// Queues `ring`, and calls `send`, which sends the first byte of the message that announces
    /// it. If that fails, the ring leaves the queue again. Called by one thread, the engine's
    /// control thread.
    ///
    /// # Errors
    /// The error of `send`. The queue is unchanged then.
    pub fn hand_over<T, E>(&self, ring: &Arc<Ring>, send: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.lock().push_back(Arc::clone(ring));
        // The tool takes a ring only for a message that it has received, so this one is still the
        // last.
        send().inspect_err(|_| drop(self.lock().pop_back()))
    }

    /// Returns the place of the tool's step.
    pub fn stepper(&self) -> &Stepper {
        &self.stepper
    }

    /// Returns the ring of the next message that announces one.
    pub(crate) fn take(&self) -> Option<Arc<Ring>> {
        self.lock().pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Ring>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
