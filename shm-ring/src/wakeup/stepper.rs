//! Reading without a wake-up: the thread that would wake a reader in its own process does the
//! reader's work instead.

use std::fmt;
use std::sync::{Arc, OnceLock};

/// The work of a sleeping reader. Must not block. Returns whether nothing is left to do, so that
/// the reader may continue to sleep.
type Step = Box<dyn Fn() -> bool + Send + Sync>;

/// The place where a reader in the engine's process puts its step. The engine has a clone, which it
/// adds to the reader page by [`ReaderPage::with_stepper`](crate::ReaderPage::with_stepper).
///
/// The step runs on the thread that writes the streams, after the ready bits of the page are set.
/// It may find the reader awake or about to sleep, so both must use a lock.
#[derive(Clone, Default)]
pub struct Stepper(Arc<OnceLock<Step>>);

impl Stepper {
    /// Sets the step. Has no effect if a step is set already.
    pub fn set(&self, step: impl Fn() -> bool + Send + Sync + 'static) {
        // A reader has one step for its whole life.
        let _ = self.0.set(Box::new(step));
    }

    /// Performs the step. Returns whether the reader may continue to sleep.
    pub fn step(&self) -> bool {
        self.0.get().is_some_and(|step| step())
    }
}

impl fmt::Debug for Stepper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stepper").field("set", &self.0.get().is_some()).finish()
    }
}
