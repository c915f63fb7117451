//! Sealed memory files: their creation, and the checks before one from another process is mapped.
//!
//! A file that shrinks turns its readers' loads into SIGBUS. Therefore the engine seals the size of
//! every file, and no file is mapped before its seals are checked. See memfd_create(2) and
//! fcntl(2), "File Sealing".

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::fstat;
use nix::unistd::{SysconfVar, ftruncate, sysconf};

use crate::error::{CreateError, OpenError};

/// The parties that may still write a file after it was sealed.
#[derive(Clone, Copy)]
pub(crate) enum Writers {
    /// Only maps that exist already: rings.
    ExistingMaps,
    /// Every process that receives the file: reader pages and inlets.
    AllHolders,
}

impl Writers {
    fn seals(self) -> SealFlag {
        let size = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        match self {
            Writers::ExistingMaps => size | SealFlag::F_SEAL_FUTURE_WRITE,
            Writers::AllHolders => size,
        }
    }
}

/// Returns the size of a memory page in bytes.
pub(crate) fn page_size() -> u64 {
    // Every kernel that could fail to answer has pages of 4096 bytes.
    sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|n| u64::try_from(n).ok()).unwrap_or(4096)
}

/// Creates a memory file of `len` bytes. Its pages get their memory when they are first touched or
/// populated.
pub(crate) fn create(name: &CStr, len: u64) -> Result<OwnedFd, CreateError> {
    let failed = |step| move |errno: nix::Error| CreateError::Memory { step, len, source: errno.into() };
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    // Kernels before Linux 6.3 reject NOEXEC_SEAL.
    let noexec = MFdFlags::from_bits_retain(nix::libc::MFD_NOEXEC_SEAL);
    let fd = memfd_create(name, flags | noexec)
        .or_else(|_| memfd_create(name, flags))
        .map_err(failed("memfd_create"))?;
    let signed = i64::try_from(len).map_err(|_| CreateError::Capacity { asked: len })?;
    ftruncate(&fd, signed).map_err(failed("ftruncate"))?;
    Ok(fd)
}

/// Allocates the memory of `len` bytes from `offset` on, so that touching them later cannot fail.
pub(crate) fn populate(fd: impl AsFd, offset: u64, len: u64) -> io::Result<()> {
    change_memory(fd, FallocateFlags::empty(), offset, len)
}

/// Frees the memory of the first `len` bytes. The next access to them gets fresh memory, with
/// zeros.
pub(crate) fn depopulate(fd: impl AsFd, len: u64) -> io::Result<()> {
    change_memory(fd, FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, len)
}

/// Calls fallocate(2), again if a signal has interrupted it.
fn change_memory(fd: impl AsFd, flags: FallocateFlags, offset: u64, len: u64) -> io::Result<()> {
    let signed = |n: u64| i64::try_from(n).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    let (offset, len) = (signed(offset)?, signed(len)?);
    loop {
        match fallocate(&fd, flags, offset, len) {
            Err(Errno::EINTR) => {}
            done => return Ok(done?),
        }
    }
}

/// Seals the size, and write access as `writers` specifies. All writable maps of a ring must exist
/// before this call.
pub(crate) fn seal(fd: impl AsFd, writers: Writers, len: u64) -> Result<(), CreateError> {
    fcntl(fd, FcntlArg::F_ADD_SEALS(writers.seals())).map(drop).map_err(|errno| CreateError::Memory {
        step: "F_ADD_SEALS",
        len,
        source: errno.into(),
    })
}

/// Returns the size of a file from another process, after checking that its seals fix the size.
pub(crate) fn check(fd: BorrowedFd<'_>, writers: Writers) -> Result<u64, OpenError> {
    let bits = fcntl(fd, FcntlArg::F_GET_SEALS).map_err(|errno| OpenError::Seals { source: errno.into() })?;
    let missing = writers.seals() - SealFlag::from_bits_retain(bits);
    if !missing.is_empty() {
        return Err(OpenError::Unsealed { missing: missing.bits() });
    }
    let stat = fstat(fd).map_err(|errno| OpenError::Seals { source: errno.into() })?;
    u64::try_from(stat.st_size).map_err(|_| OpenError::Size { found: 0, needed: 0 })
}
