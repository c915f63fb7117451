//! Low descriptor numbers, reserved for the files that a child gets.
//!
//! A new process usually starts with a copy of its parent's descriptor table, and execve(2) closes
//! most of the copies again. An engine has several descriptors for each rank, so with each rank
//! that it starts, the next one takes longer. A child can also share the table (`CLONE_FILES`), and
//! leave it by close_range(2) with `CLOSE_RANGE_UNSHARE` (Linux 5.9), which copies only the
//! descriptors below a number. The child's files must be below this number, and the child itself
//! must not move them there as long as it shares the table. So this process lends its child
//! reserved numbers, its *seats*.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};

use iof_proto::Channel;
use libc::c_uint;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::utsname::uname;
use nix::unistd::dup3;

/// The variable with which users choose how children start: with `copied`, each starts with a copy
/// of the descriptor table, as debuggers and emulators may require.
pub(crate) const TABLE_VARIABLE: &str = "IOF_SPAWN_TABLE";
/// The lowest number of a seat. Lower numbers are left to programs that use numbers of one digit.
const LOWEST: RawFd = 10;
/// The number of seats: stdin, the output channels and a passed file.
pub(crate) const SEATS: usize = Channel::OUTPUTS.len() + 2;

/// Set once the kernel, or a seccomp filter, has refused a shared table. Relaxed: it only saves
/// later attempts.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// The seats of this process. While a seat is free, its descriptor is that of `null`.
struct Seats {
    null: File,
    ends: [Option<OwnedFd>; SEATS],
}

/// The seats once they are reserved.
struct Reserved {
    seats: Mutex<Seats>,
    /// The number of the last seat.
    last: RawFd,
    /// Set once a seat is closed. Another file may get its number. Relaxed: that follows only from
    /// an error of dup3(2) that is not expected.
    lost: AtomicBool,
}

/// The seats, unless numbers were short when they were reserved.
fn reserved() -> Option<&'static Reserved> {
    static RESERVED: OnceLock<Option<Reserved>> = OnceLock::new();
    let reserve = || {
        let null = File::open("/dev/null").ok()?;
        let mut ends = [const { None }; SEATS];
        let mut last = LOWEST;
        for end in &mut ends {
            last = fcntl(&null, FcntlArg::F_DUPFD_CLOEXEC(last)).ok()?;
            // SAFETY: fcntl has just created the descriptor, and nothing else owns it.
            *end = Some(unsafe { OwnedFd::from_raw_fd(last) });
        }
        let seats = Mutex::new(Seats { null, ends });
        Some(Reserved { seats, last, lost: AtomicBool::new(false) })
    };
    RESERVED.get_or_init(reserve).as_ref()
}

/// Reserves the seats, unless they are reserved already.
pub(crate) fn reserve() {
    reserved();
}

/// Returns the number of the last seat, which no inherited descriptor has: the number that a passed
/// file gets in a child. `None` if numbers were short when the seats were reserved, or a seat is
/// lost.
pub(crate) fn last_number() -> Option<RawFd> {
    reserved().filter(|reserved| !reserved.lost.load(Ordering::Relaxed)).map(|reserved| reserved.last)
}

/// Notes that the kernel refuses children that share this process's descriptor table.
pub(crate) fn refused() {
    if !REFUSED.swap(true, Ordering::Relaxed) {
        tracing::debug!("children start with a copy of the descriptor table: close_range(2) is refused");
    }
}

/// Returns the number above all descriptors that children inherit. `None` if it is unknown, or the
/// user wants children to start with a copy of the table.
pub(crate) fn above_inheritable() -> Option<RawFd> {
    if REFUSED.load(Ordering::Relaxed) || std::env::var_os(TABLE_VARIABLE).is_some_and(|how| how == "copied")
    {
        return None;
    }
    let mut above = libc::STDERR_FILENO + 1;
    // Not /proc/self/fd, which is empty once the main thread has ended.
    for entry in fs::read_dir("/proc/thread-self/fd").ok()? {
        let number: RawFd = entry.ok()?.file_name().to_str()?.parse().ok()?;
        // SAFETY: F_GETFD takes numbers only, and fails for a descriptor that was closed meanwhile.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        if flags >= 0 && !FdFlag::from_bits_retain(flags).contains(FdFlag::FD_CLOEXEC) {
            above = above.max(number.saturating_add(1));
        }
    }
    Some(above)
}

/// Returns the unit in which close_range(2) with `CLOSE_RANGE_UNSHARE` copies descriptors
/// correctly.
///
/// Kernels before 6.11 may copy a bitmap with one bit for each 64 numbers as a whole
/// (CVE-2024-45025): the new table has numbers that count as used although nothing is open there,
/// so that the child runs out of descriptors early. A unit of that bitmap is 64 times 64 numbers.
pub(crate) fn copy_unit() -> c_uint {
    static UNIT: OnceLock<c_uint> = OnceLock::new();
    *UNIT.get_or_init(|| {
        let release = uname().ok().and_then(|names| kernel_version(names.release().to_str()?));
        copy_unit_of(release)
    })
}

fn copy_unit_of(kernel: Option<(u32, u32)>) -> c_uint {
    if kernel.is_some_and(|version| version >= (6, 11)) { 64 } else { 64 * 64 }
}

/// Returns the two first numbers of the release of a kernel, such as `6.1.0-18-amd64`.
fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let (major, rest) = release.split_once('.')?;
    let minor = rest.split(|character: char| !character.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The seats while a child has them. Dropping it frees them, which closes the files.
pub(crate) struct Seated {
    seats: MutexGuard<'static, Seats>,
    /// The numbers of the seats.
    pub numbers: [RawFd; SEATS],
}

impl Seated {
    /// Seats copies of `files`. Returns `None` if another thread starts a child at the moment, or
    /// the seats are not usable.
    pub(crate) fn new(files: [Option<&OwnedFd>; SEATS]) -> Option<Seated> {
        if REFUSED.load(Ordering::Relaxed) {
            return None;
        }
        let seats = match reserved()?.seats.try_lock() {
            Ok(seats) => seats,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let mut numbers = [0; SEATS];
        for (number, seat) in numbers.iter_mut().zip(&seats.ends) {
            *number = seat.as_ref()?.as_raw_fd();
        }
        let mut seated = Seated { seats, numbers };
        for (seat, file) in seated.seats.ends.iter_mut().zip(files) {
            if let (Some(seat), Some(file)) = (seat, file) {
                dup3(file, seat, OFlag::O_CLOEXEC).ok()?;
            }
        }
        Some(seated)
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        let Seats { null, ends } = &mut *self.seats;
        for seat in ends {
            // A seat that cannot be freed is closed, and later children start with a copy of the
            // table. Otherwise the pipes of this child would not end.
            let lost = seat.take_if(|seat| dup3(&*null, seat, OFlag::O_CLOEXEC).is_err());
            if let Some((_, reserved)) = lost.zip(reserved()) {
                reserved.lost.store(true, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_before_6_11_and_unknown_ones_copy_in_large_units() {
        for (release, unit) in
            [("6.11.0", 64), ("7.0-rc1", 64), ("6.10.9-amd64", 4096), ("5.15.0-91", 4096), ("strange", 4096)]
        {
            assert_eq!(copy_unit_of(kernel_version(release)), unit, "{release}");
        }
    }
}
