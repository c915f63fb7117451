//! Files registered with the kernel, which saves it a look-up for each request, see
//! io_uring_register(2).
//!
//! Registered files are used from Linux 6.13 on. Earlier kernels release removed files in the order
//! of their removal, and each only after all earlier requests have completed. A closed pipe would
//! stay open as long as any other pipe is idle (liburing issue 1192), and its writer would wait for
//! a reader that no longer exists.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use io_uring::IoUring;
use io_uring::types::{Fd, Fixed};
use nix::sys::utsname::uname;

use crate::backend::Token;

/// Size of the kernel's table. Files beyond it are looked up for each request.
const TABLE_SIZE: u32 = 16 * 1024;
/// The descriptor that marks a slot of the kernel's table as empty.
const NO_FILE: RawFd = -1;

/// The way in which a request refers to its file.
#[derive(Clone, Copy)]
pub(super) enum FileRef {
    /// A slot of the kernel's table.
    Registered(Fixed),
    /// A file descriptor, which the kernel looks up.
    Descriptor(Fd),
}

/// The registered files and their slots in the kernel's table.
pub(super) struct Files {
    /// The slot of each registered file, indexed by the token's word.
    slots: Vec<Option<u32>>,
    /// Slots that were used and are empty again.
    free: Vec<u32>,
    /// The first slot that was never used.
    fresh: u32,
    /// The number of slots: 0 where the kernel does not release removed files at once.
    capacity: u32,
}

impl Files {
    /// Creates an empty table for `ring`. Its capacity is 0 if this kernel does not release removed
    /// files at once.
    pub(super) fn new(ring: &IoUring) -> Files {
        let kernel = uname().ok();
        let release = kernel.as_ref().and_then(|kernel| kernel.release().to_str()).unwrap_or_default();
        Files::for_release(ring, release)
    }

    /// Creates an empty table for `ring` on a kernel of this release, such as "6.12.9-amd64".
    fn for_release(ring: &IoUring, release: &str) -> Files {
        // The kernel refuses more than RLIMIT_NOFILE.
        let sizes = if releases_at_once(release) { &[TABLE_SIZE, TABLE_SIZE / 16][..] } else { &[] };
        let capacity =
            sizes.iter().copied().find(|size| ring.submitter().register_files_sparse(*size).is_ok());
        Files { slots: Vec::new(), free: Vec::new(), fresh: 0, capacity: capacity.unwrap_or(0) }
    }

    /// Registers `file` for `token`. If the table is full or the kernel refuses, requests for
    /// `token` use the file descriptor.
    pub(super) fn register(&mut self, ring: &IoUring, token: Token, file: BorrowedFd<'_>) {
        let Some(slot) = self.free.pop().or_else(|| self.take_fresh()) else { return };
        if let Err(error) = update(ring, slot, file.as_raw_fd()) {
            tracing::debug!(?token, %error, "cannot register a file with io_uring: each request looks it up");
            return self.free.push(slot);
        }
        let word = token.index();
        if self.slots.len() <= word {
            self.slots.resize(word.saturating_add(1), None);
        }
        if let Some(entry) = self.slots.get_mut(word) {
            *entry = Some(slot);
        }
    }

    fn take_fresh(&mut self) -> Option<u32> {
        let slot = self.fresh;
        (slot < self.capacity).then(|| {
            self.fresh = slot.saturating_add(1);
            slot
        })
    }

    /// Removes the file of `token` from the kernel's table.
    pub(super) fn unregister(&mut self, ring: &IoUring, token: Token) {
        let Some(slot) = self.slots.get_mut(token.index()).and_then(Option::take) else { return };
        match update(ring, slot, NO_FILE) {
            Ok(()) => self.free.push(slot),
            // The kernel releases the file together with the io_uring.
            Err(error) => tracing::warn!(?token, %error, "cannot remove a file from io_uring"),
        }
    }

    /// Returns the way in which a request for `token` refers to `file`.
    pub(super) fn file_ref(&self, token: Token, file: BorrowedFd<'_>) -> FileRef {
        match self.slots.get(token.index()) {
            Some(Some(slot)) => FileRef::Registered(Fixed(*slot)),
            _ => FileRef::Descriptor(Fd(file.as_raw_fd())),
        }
    }
}

/// Returns whether a kernel of this release closes a removed file at once. An unknown release does
/// not count.
fn releases_at_once(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 13)
}

fn update(ring: &IoUring, slot: u32, fd: RawFd) -> io::Result<()> {
    ring.submitter().register_files_update(slot, &[fd]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_registered_from_linux_6_13_on_and_not_on_an_unknown_release() {
        let registers = |release| Files::for_release(&IoUring::new(8).unwrap(), release).capacity > 0;
        assert!(["6.13.0", "6.13-rc1", "6.18.44-fc-v657", "7.0.0"].into_iter().all(registers));
        let old = ["6.12.99", "6.1.0-13-amd64", "5.19.0", "5.7", "2.6.78", "6", "", "unknown"];
        assert!(!old.into_iter().any(registers));
    }
}
