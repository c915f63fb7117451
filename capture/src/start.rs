//! Why a capture did not start.

use std::fmt;
use std::io;

/// Why a capture did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The kernel gave no io_uring.
    #[error("io_uring is refused ({source}): {cause}")]
    Refused {
        /// The likely cause, and what to do.
        cause: Cause,
        /// The kernel's word, see io_uring_setup(2).
        source: io::Error,
    },
    /// The process has no file descriptor left for epoll, or the user has too many of them.
    #[error("no epoll for the capture: {source}; raise RLIMIT_NOFILE (`ulimit -n`)")]
    Epoll {
        /// The kernel's word, see epoll_create1(2).
        source: io::Error,
    },
    /// The process has no file descriptor left for the bell.
    #[error("no file descriptor for the capture's bell: {source}; raise RLIMIT_NOFILE (`ulimit -n`)")]
    Bell {
        /// The kernel's word, see eventfd(2).
        source: io::Error,
    },
    /// The process may not have another thread.
    #[error(
        "no thread for the capture: {source}; raise RLIMIT_NPROC (`ulimit -u`), the cgroup's pids.max or RLIMIT_AS \
         (`ulimit -v`)"
    )]
    Thread {
        /// The kernel's word, see clone(2).
        source: io::Error,
    },
}

/// Why the kernel likely refuses io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The administrator disabled it.
    Disabled {
        /// The value of the sysctl `kernel.io_uring_disabled`: 1 or 2.
        value: u8,
    },
    /// A seccomp filter, usually a container's.
    Seccomp,
    /// The kernel is older than Linux 5.7 or was built without it.
    OldKernel,
    /// The process has no file descriptor left.
    Files,
    /// There is no memory, or the process may not lock enough.
    Memory,
    /// None of these.
    Unknown,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Disabled { value: 1 } => f.write_str(
                "kernel.io_uring_disabled is 1; run in the group kernel.io_uring_group, or have it set to 0",
            ),
            Cause::Disabled { value } => {
                write!(f, "kernel.io_uring_disabled is {value}; have it set to 0")
            }
            Cause::Seccomp => f.write_str(
                "a seccomp filter, likely the container's, forbids it; allow io_uring_setup, io_uring_enter and \
                 io_uring_register",
            ),
            Cause::OldKernel => f.write_str("the kernel has none or one before Linux 5.7; use a newer kernel"),
            Cause::Files => f.write_str("too many open files; raise RLIMIT_NOFILE (`ulimit -n`)"),
            Cause::Memory => f.write_str("no memory for it; raise RLIMIT_MEMLOCK (`ulimit -l`)"),
            Cause::Unknown => f.write_str("cause unknown, see io_uring_setup(2)"),
        }
    }
}

impl StartError {
    /// The kernel refused with `source`.
    pub(crate) fn refused(source: io::Error) -> StartError {
        let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
        let disabled = disabled.ok().and_then(|value| value.trim().parse().ok()).unwrap_or(0);
        StartError::Refused { cause: cause(source.raw_os_error().unwrap_or(0), disabled), source }
    }

    /// The kernel's io_uring cannot do what a capture needs.
    pub(crate) fn too_old() -> StartError {
        StartError::Refused { cause: Cause::OldKernel, source: io::Error::from_raw_os_error(libc::ENOSYS) }
    }
}

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
