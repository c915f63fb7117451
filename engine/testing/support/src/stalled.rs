//! Memory whose first use blocks until the test resolves it, built on userfaultfd(2). Tests use it
//! in place of a mapped file on a hung file system.
//!
//! Only root may stall the page faults of system calls, unless `vm.unprivileged_userfaultfd` is 1.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Size of a [`StalledPage`] in bytes.
pub const PAGE: usize = 4096;

/// `struct uffdio_api` of linux/userfaultfd.h.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`, whose first two words are `struct uffdio_range`.
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_copy`.
#[repr(C)]
struct Copy {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copied: i64,
}

const UFFD_API: u32 = 0xaa;
const REGISTER_MODE_MISSING: u64 = 1;

/// Calls ioctl_userfaultfd(2) with request number `number` and `argument`.
///
/// # Safety
/// `T` must be the structure of that request, and its addresses must be valid for the operation.
unsafe fn userfault_ioctl<T>(faults: &OwnedFd, number: u32, argument: &mut T) -> io::Result<()> {
    // SAFETY: as promised by the caller.
    let result = unsafe { libc::ioctl(faults.as_raw_fd(), libc::_IOWR::<T>(UFFD_API, number), argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A page whose every use blocks until [`StalledPage::resolve`], including uses by system calls of
/// this process.
#[derive(Debug)]
pub struct StalledPage {
    start: *mut u8,
    faults: OwnedFd,
}

// SAFETY: only system calls use the page, by its address. No reference to it is ever created.
unsafe impl Send for StalledPage {}
// SAFETY: as for `Send`.
unsafe impl Sync for StalledPage {}

impl StalledPage {
    /// Maps a page.
    ///
    /// # Errors
    /// `EPERM` for users who may not stall system calls.
    pub fn new() -> io::Result<StalledPage> {
        // SAFETY: the call takes plain numbers and returns a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        let fd = libc::c_int::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the kernel has just created the descriptor, and nothing else owns it.
        let faults = unsafe { OwnedFd::from_raw_fd(fd) };
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, which overlaps no other.
        let start = unsafe { libc::mmap(ptr::null_mut(), PAGE, access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let page = StalledPage { start: start.cast(), faults };
        let mut api = Api { api: u64::from(UFFD_API), features: 0, ioctls: 0 };
        let mut range =
            Register { start: start.addr() as u64, len: PAGE as u64, mode: REGISTER_MODE_MISSING, ioctls: 0 };
        // SAFETY: both structures are those of their requests. The range is the page, which holds
        // no Rust object.
        unsafe {
            userfault_ioctl(&page.faults, 0x3f, &mut api)?;
            userfault_ioctl(&page.faults, 0x00, &mut range)?;
        }
        Ok(page)
    }

    /// Reads up to `len` bytes, at most [`PAGE`], from `file` into the page. Blocks until the page
    /// is resolved.
    ///
    /// # Errors
    /// Those of read(2).
    pub fn read_from(&self, file: impl AsFd, len: usize) -> io::Result<usize> {
        // SAFETY: the page is mapped while `self` lives, and has room for as many bytes.
        count(unsafe { libc::read(file.as_fd().as_raw_fd(), self.start.cast(), len.min(PAGE)) })
    }

    /// Writes the first `len` bytes of the page, at most [`PAGE`], to `file`. Blocks until the page
    /// is resolved.
    ///
    /// # Errors
    /// Those of write(2).
    pub fn write_to(&self, file: impl AsFd, len: usize) -> io::Result<usize> {
        // SAFETY: the page is mapped while `self` lives, and has as many bytes.
        count(unsafe { libc::write(file.as_fd().as_raw_fd(), self.start.cast(), len.min(PAGE)) })
    }

    /// Blocks until a use of the page is stalled.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn wait_for_use(&self) -> io::Result<()> {
        poll(&mut [PollFd::new(self.faults.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
        Ok(())
    }

    /// Fills the page with `content`, at most [`PAGE`] bytes, followed by zeros. All stalled uses
    /// continue.
    ///
    /// # Errors
    /// `EEXIST` if the page was resolved before.
    pub fn resolve(&self, content: &[u8]) -> io::Result<()> {
        #[repr(align(4096))]
        struct Page([u8; PAGE]);
        let mut page = Page([0; PAGE]);
        page.0.iter_mut().zip(content).for_each(|(byte, content)| *byte = *content);
        let mut copy = Copy {
            dst: self.start.addr() as u64,
            src: (&raw const page).addr() as u64,
            len: mem::size_of::<Page>() as u64,
            mode: 0,
            copied: 0,
        };
        // SAFETY: the structure is that of the request. The call reads one page and fills another,
        // to which no reference exists.
        unsafe { userfault_ioctl(&self.faults, 0x03, &mut copy) }
    }
}

fn count(returned: isize) -> io::Result<usize> {
    usize::try_from(returned).map_err(|_| io::Error::last_os_error())
}

impl Drop for StalledPage {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the page, and every call that uses it borrows `self`.
        unsafe { libc::munmap(self.start.cast(), PAGE) };
    }
}
