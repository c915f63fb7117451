//! Values that belong to the process that created them.

use std::mem;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// Locks a mutex, also one whose owner has panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pid of this process. `getpid` is a system call, which would be a quarter of the cost of a line.
static PID: AtomicU32 = AtomicU32::new(0);

/// Notes the pid of this process. Python calls it in a child after fork, too.
#[pyfunction]
pub fn note_process() {
    PID.store(process::id(), Relaxed);
}

/// A connection or an engine, with a lock. After fork(2), the child has a copy of it, which it must neither use
/// nor drop: both would change the shared memory and the socket of the parent. It must not wait for the lock
/// either, which another thread of the parent may have held.
pub struct Owned<T> {
    pid: u32,
    value: Mutex<Option<T>>,
}

impl<T> Owned<T> {
    /// Creates a value of this process.
    pub fn new(value: T) -> Owned<T> {
        Owned { pid: PID.load(Relaxed), value: Mutex::new(Some(value)) }
    }

    /// Locks the value, which is `None` once it is closed.
    ///
    /// # Errors
    /// This process is a child that was forked.
    pub fn lock(&self) -> PyResult<MutexGuard<'_, Option<T>>> {
        if self.is_inherited() {
            return Err(PyRuntimeError::new_err(
                "this object belongs to the parent process: a child after fork must open its own",
            ));
        }
        Ok(lock(&self.value))
    }

    /// Locks the value of an object that one thread may use at a time.
    ///
    /// # Errors
    /// The same as [`Owned::lock`], and that another thread uses it.
    pub fn lock_alone(&self) -> PyResult<MutexGuard<'_, Option<T>>> {
        match self.value.try_lock() {
            _ if self.is_inherited() => self.lock(),
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(PyRuntimeError::new_err("another thread uses this object")),
        }
    }

    /// Takes the value out, unless it is closed or was inherited.
    pub fn take(&self) -> Option<T> {
        self.lock().ok()?.take()
    }

    /// Returns whether this process is a child that was forked.
    pub fn is_inherited(&self) -> bool {
        self.pid != PID.load(Relaxed)
    }
}

/// Returns the value of what is called `name`.
///
/// # Errors
/// It is closed.
pub fn opened<'a, T>(value: &'a mut Option<T>, name: &str) -> PyResult<&'a mut T> {
    value.as_mut().ok_or_else(|| PyValueError::new_err(format!("the {name} is closed")))
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.is_inherited() {
            mem::forget(mem::take(&mut self.value));
        }
    }
}
