//! The processors on which a thread may run, see sched_setaffinity(2).

use std::io;
use std::mem;

/// A set of processors.
#[derive(Clone, Copy)]
pub struct Processors(libc::cpu_set_t);

impl Processors {
    /// Returns the processors on which the calling thread may run.
    ///
    /// # Errors
    /// The error of sched_getaffinity(2), as on a machine with more than 1,024 processors.
    pub fn of_this_thread() -> io::Result<Processors> {
        // SAFETY: all zeroes are a valid cpu_set_t, the empty set.
        let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
        // SAFETY: the call writes at most the given size, to `set`, which outlives it.
        match unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } {
            0 => Ok(Processors(set)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Lets the calling thread run on these processors only. Processes that it starts inherit this.
    ///
    /// # Errors
    /// The error of sched_setaffinity(2).
    pub fn bind_this_thread(&self) -> io::Result<()> {
        // SAFETY: the call reads the given size of the set, which outlives it.
        match unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), &raw const self.0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns the numbers of the processors, in ascending order.
    pub fn numbers(&self) -> Vec<usize> {
        let limit = usize::try_from(libc::CPU_SETSIZE).unwrap_or(0);
        // SAFETY: the numbers are less than CPU_SETSIZE.
        (0..limit).filter(|number| unsafe { libc::CPU_ISSET(*number, &self.0) }).collect()
    }

    /// Returns those of these processors whose numbers `is_wanted` selects.
    #[must_use]
    pub fn filtered(&self, is_wanted: impl Fn(usize) -> bool) -> Processors {
        let mut kept = *self;
        for number in self.numbers().into_iter().filter(|number| !is_wanted(*number)) {
            // SAFETY: the number is less than CPU_SETSIZE.
            unsafe { libc::CPU_CLR(number, &mut kept.0) };
        }
        kept
    }
}

impl std::fmt::Debug for Processors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.numbers()).finish()
    }
}
