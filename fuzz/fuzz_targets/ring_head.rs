//! Whatever a sealed file holds, opening, inspecting and reading it as a ring gives an error or bytes, never a fault.
#![no_main]

use std::os::fd::OwnedFd;
use std::sync::Arc;

use iof_shm_ring::{Area, Peek, Reader, Ring, Snapshot, Start, doorbell};
use libfuzzer_sys::fuzz_target;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{ftruncate, write};

/// A file of the size that the head speaks of, so that more than the size check is reached.
fn sealed(bytes: &[u8], len: i64) -> Option<OwnedFd> {
    let fd = memfd_create(c"fuzz", MFdFlags::MFD_ALLOW_SEALING).ok()?;
    write(&fd, bytes).ok()?;
    ftruncate(&fd, len).ok()?;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::from_bits_truncate(0x17))).ok()?;
    Some(fd)
}

fuzz_target!(|input: (u8, u64, Vec<u8>)| {
    let (pages, start, mut bytes) = input;
    bytes.truncate(4096 * 16);
    let head = [u64::from_le_bytes(*b"iofring1"), 1].map(u64::to_ne_bytes).concat();
    if bytes.len() >= head.len() {
        bytes[..head.len()].copy_from_slice(&head);
    }
    let Some(fd) = sealed(&bytes, 4096 * i64::from(pages)) else { return };
    let Ok(ring) = Ring::open(fd) else { return };
    if let Ok((snapshot, bytes)) = Snapshot::with_bytes(&ring) {
        assert_eq!(bytes.len() as u64, snapshot.cached());
        std::hint::black_box(snapshot.gaps().count());
    }
    let Ok((ringer, _bell)) = doorbell() else { return };
    let Ok(area) = Area::create(ringer) else { return };
    let Ok(mut reader) = Reader::new(Arc::new(ring), Arc::new(area), 0, start, Start::Oldest) else { return };
    for _ in 0..64 {
        if reader.peek() == Peek::Bytes {
            let sum: u64 = reader.bytes().iter().map(|byte| u64::from(*byte)).sum();
            std::hint::black_box(sum);
            reader.consume(usize::from(pages));
        }
    }
});
