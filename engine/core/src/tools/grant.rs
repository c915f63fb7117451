//! The permission to hold sources back.

/// The permission of a reader to hold sources back: to make a rank wait in write(2) while the
/// rank's cache is full of bytes that the reader has not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// The reader may hold sources back. Under [`Policy::Block`](iof_shm_ring::Policy::Block),
    /// sources wait for it and it loses nothing. Under the other policies, sources do not wait.
    Block,
    /// The reader may hold back the ranks of jobs that its process has had the engine start
    /// (`Host::spawn`) as with [`Grant::Block`], if it registers after their start, and no other
    /// sources.
    Spawned,
    /// The reader may not hold sources back. If it is slow, it loses bytes, which are reported to
    /// it as gaps. Tools in other processes have this grant unless the `Host`
    /// decides otherwise.
    Never,
}
