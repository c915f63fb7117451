//! Memory whose first use waits until it is told to go on, by userfaultfd(2): tests use it in place
//! of a mapped file on a hung file system.
//!
//! Faults of system calls can be stalled by root, and by others where `vm.unprivileged_userfaultfd`
//! is 1.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Bytes in a [`StalledPage`].
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

/// ioctl_userfaultfd(2): request number `number`, whose argument is `argument`.
///
/// # Safety
/// `T` must be the structure of that request, and addresses in it must be good for what it does.
unsafe fn ask<T>(faults: &OwnedFd, number: u32, argument: &mut T) -> io::Result<()> {
    // SAFETY: as the caller promises.
    let done = unsafe { libc::ioctl(faults.as_raw_fd(), libc::_IOWR::<T>(UFFD_API, number), argument) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A page that stalls whoever uses it, this process's system calls included, until
/// [`StalledPage::resolve`].
#[derive(Debug)]
pub struct StalledPage {
    start: *mut u8,
    faults: OwnedFd,
}

// SAFETY: the page is used by system calls only, by its address; no reference to it is ever made.
unsafe impl Send for StalledPage {}
// SAFETY: as above.
unsafe impl Sync for StalledPage {}

impl StalledPage {
    /// Maps one.
    ///
    /// # Errors
    /// `EPERM` for users who may not stall system calls.
    pub fn new() -> io::Result<StalledPage> {
        // SAFETY: plain numbers in, a new descriptor or -1 out.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        let fd = libc::c_int::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the kernel has just made it, and it is known nowhere else.
        let faults = unsafe { OwnedFd::from_raw_fd(fd) };
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new map, which overlaps no other.
        let start = unsafe { libc::mmap(ptr::null_mut(), PAGE, access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let page = StalledPage { start: start.cast(), faults };
        let mut api = Api { api: u64::from(UFFD_API), features: 0, ioctls: 0 };
        let mut range =
            Register { start: start.addr() as u64, len: PAGE as u64, mode: REGISTER_MODE_MISSING, ioctls: 0 };
        // SAFETY: both structures are what the calls expect, and the range is the page's, which no Rust
        // object is in.
        unsafe {
            ask(&page.faults, 0x3f, &mut api)?;
            ask(&page.faults, 0x00, &mut range)?;
        }
        Ok(page)
    }

    /// Reads up to `len` bytes, at most [`PAGE`], from `file` into the page.
    ///
    /// # Errors
    /// As read(2).
    pub fn read_from(&self, file: impl AsFd, len: usize) -> io::Result<usize> {
        // SAFETY: the page is mapped while `self` lives and has room for that.
        count(unsafe { libc::read(file.as_fd().as_raw_fd(), self.start.cast(), len.min(PAGE)) })
    }

    /// Writes the first `len` bytes of the page, at most [`PAGE`], to `file`.
    ///
    /// # Errors
    /// As write(2).
    pub fn write_to(&self, file: impl AsFd, len: usize) -> io::Result<usize> {
        // SAFETY: the page is mapped while `self` lives and has as many bytes.
        count(unsafe { libc::write(file.as_fd().as_raw_fd(), self.start.cast(), len.min(PAGE)) })
    }

    /// Waits until a use of the page has stalled.
    ///
    /// # Errors
    /// As poll(2).
    pub fn wait_for_use(&self) -> io::Result<()> {
        poll(&mut [PollFd::new(self.faults.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
        Ok(())
    }

    /// Gives the page `content`, at most [`PAGE`] bytes, and then zeros: whatever was stalled goes
    /// on.
    ///
    /// # Errors
    /// `EEXIST` if it was resolved before.
    pub fn resolve(&self, content: &[u8]) -> io::Result<()> {
        #[repr(align(4096))]
        struct Page([u8; PAGE]);
        let mut page = Page([0; PAGE]);
        page.0.iter_mut().zip(content).for_each(|(to, from)| *to = *from);
        let mut copy = Copy {
            dst: self.start.addr() as u64,
            src: (&raw const page).addr() as u64,
            len: mem::size_of::<Page>() as u64,
            mode: 0,
            copied: 0,
        };
        // SAFETY: the structure is what the call expects; it reads one page and fills another, of which
        // there is no reference.
        unsafe { ask(&self.faults, 0x03, &mut copy) }
    }
}

fn count(done: isize) -> io::Result<usize> {
    usize::try_from(done).map_err(|_| io::Error::last_os_error())
}

impl Drop for StalledPage {
    fn drop(&mut self) {
        // SAFETY: it was mapped in `new`, and a call that uses it borrows `self`.
        unsafe { libc::munmap(self.start.cast(), PAGE) };
    }
}
