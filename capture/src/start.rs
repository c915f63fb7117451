//! The reasons why a capture does not start.

use std::fmt;
use std::io;

/// The reason why a capture did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The kernel refused io_uring.
    #[error("io_uring is refused ({source}): {cause}")]
    Refused {
        /// The likely cause, whose text contains the remedy.
        cause: Cause,
        /// The error of io_uring_setup(2).
        source: io::Error,
    },
    /// The process has no file descriptor left for epoll, or the user has too many of them.
    #[error("no epoll for the capture ({source}): raise RLIMIT_NOFILE (`ulimit -n`)")]
    Epoll {
        /// The error of epoll_create1(2).
        source: io::Error,
    },
    /// The process has no file descriptor left for the bell.
    #[error("no file descriptor for the capture's bell ({source}): raise RLIMIT_NOFILE (`ulimit -n`)")]
    Bell {
        /// The error of eventfd(2).
        source: io::Error,
    },
    /// The process cannot start another thread.
    #[error(
        "no thread for the capture ({source}): raise RLIMIT_NPROC (`ulimit -u`), the cgroup's pids.max or RLIMIT_AS \
         (`ulimit -v`)"
    )]
    Thread {
        /// The error of clone(2).
        source: io::Error,
    },
}

/// The likely cause why the kernel refuses io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The administrator disabled it.
    Disabled {
        /// The value of the sysctl `kernel.io_uring_disabled`: 1 or 2.
        value: u8,
    },
    /// A seccomp filter forbids it, usually that of a container.
    Seccomp,
    /// The kernel is older than Linux 5.7 or was built without io_uring.
    OldKernel,
    /// The process has no file descriptor left.
    Files,
    /// There is no memory, or the process may not lock enough memory.
    Memory,
    /// The cause is unknown.
    Unknown,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Disabled { value: 1 } => f.write_str(
                "kernel.io_uring_disabled is 1: run in the group kernel.io_uring_group, or have it set to 0",
            ),
            Cause::Disabled { value } => {
                write!(f, "kernel.io_uring_disabled is {value}: have it set to 0")
            }
            Cause::Seccomp => f.write_str(
                "a seccomp filter, likely that of a container, forbids it: allow io_uring_setup and \
                 io_uring_enter",
            ),
            Cause::OldKernel => f.write_str(
                "the kernel is older than Linux 5.7 or was built without io_uring: use another kernel",
            ),
            Cause::Files => f.write_str("too many open files: raise RLIMIT_NOFILE (`ulimit -n`)"),
            Cause::Memory => f.write_str("not enough memory: raise RLIMIT_MEMLOCK (`ulimit -l`)"),
            Cause::Unknown => f.write_str("unknown cause, see io_uring_setup(2)"),
        }
    }
}

impl StartError {
    /// Returns the error for a refusal by the kernel with `source`.
    pub(crate) fn refused(source: io::Error) -> StartError {
        let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
        let disabled = disabled.ok().and_then(|value| value.trim().parse().ok()).unwrap_or(0);
        StartError::Refused { cause: cause(source.raw_os_error().unwrap_or(0), disabled), source }
    }

    /// Returns the error for an io_uring without a feature that the capture needs.
    pub(crate) fn too_old() -> StartError {
        StartError::Refused { cause: Cause::OldKernel, source: io::Error::from_raw_os_error(libc::ENOSYS) }
    }
}

/// Returns the likely cause of a refusal. `disabled` is the sysctl `kernel.io_uring_disabled`.
fn cause(errno: i32, disabled: u8) -> Cause {
    match errno {
        libc::EPERM if disabled != 0 => Cause::Disabled { value: disabled },
        libc::EPERM | libc::EACCES => Cause::Seccomp,
        libc::ENOSYS | libc::EINVAL => Cause::OldKernel,
        libc::EMFILE | libc::ENFILE => Cause::Files,
        libc::ENOMEM => Cause::Memory,
        _ => Cause::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_its_likely_cause() {
        assert_eq!(cause(libc::EPERM, 2), Cause::Disabled { value: 2 });
        assert_eq!(cause(libc::EPERM, 0), Cause::Seccomp);
        assert_eq!(cause(libc::ENOSYS, 0), Cause::OldKernel);
        let text = StartError::refused(io::Error::from_raw_os_error(libc::EMFILE)).to_string();
        assert!(text.contains("RLIMIT_NOFILE"), "{text}");
    }
}
