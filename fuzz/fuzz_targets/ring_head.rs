//! A sealed file with any head. Opening it as a ring must return an error, or a ring that can be
//! read.
#![no_main]

use std::os::fd::OwnedFd;
use std::sync::Arc;

use arbitrary::Arbitrary;
use iof_shm_ring::{Attached, Peek, Reader, ReaderPage, Ring, Start, doorbell};
use libfuzzer_sys::fuzz_target;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{ftruncate, write};

/// A valid head except for one word and the file's length, and the bytes behind it.
#[derive(Arbitrary, Debug)]
struct Input {
    pages: u8,
    generation: u64,
    base: u64,
    overwrite: u64,
    wrong: Option<(u8, u64)>,
    longer: Option<i16>,
    rest: Vec<u8>,
    start: u64,
}

fn sealed(bytes: &[u8], len: i64) -> Option<OwnedFd> {
    let fd = memfd_create(c"fuzz", MFdFlags::MFD_ALLOW_SEALING).ok()?;
    write(&fd, bytes).ok()?;
    ftruncate(&fd, len).ok()?;
    let seals = SealFlag::F_SEAL_SEAL
        | SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_FUTURE_WRITE;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).ok()?;
    Some(fd)
}

fuzz_target!(|input: Input| {
    let capacity = (u64::from(input.pages) + 1) * 4096;
    let entries = (capacity / 2048).max(32);
    let len = (3200 + entries * 24).next_multiple_of(4096) + capacity;
    let magic = u64::from_le_bytes(*b"iofring1");
    let mut head = [magic, 4, capacity, entries, input.generation, input.base, input.overwrite];
    if let Some((word, value)) = input.wrong {
        head[usize::from(word) % 7] = value;
    }
    let mut bytes: Vec<u8> = head.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend(input.rest.iter().take(len as usize - bytes.len()));
    let Some(fd) = sealed(&bytes, len as i64 + i64::from(input.longer.unwrap_or(0))) else { return };
    let ring = match Ring::open(fd) {
        Ok(ring) => ring,
        Err(error) => {
            assert!(input.wrong.is_some() || input.longer.is_some(), "a valid file was rejected: {error}");
            return;
        }
    };
    assert_eq!(ring.capacity(), capacity);
    let Ok((ringer, _bell)) = doorbell() else { return };
    let Ok(page) = ReaderPage::create(ringer) else { return };
    let given =
        Attached { ring: Arc::new(ring), id: 0.into(), start: input.start, dropped: 0, non_gating: false };
    // SAFETY: no byte is read here after it may have changed.
    let reader = unsafe { Reader::new(given, Arc::new(page), Start::Oldest) };
    let Ok(mut reader) = reader else {
        return;
    };
    for _ in 0..64 {
        if reader.peek() == Peek::Bytes {
            // A byte of each page: all of them can be read.
            let sum: u64 = reader.bytes().iter().step_by(4096).map(|byte| u64::from(*byte)).sum();
            std::hint::black_box((sum, reader.bytes().last().copied()));
            reader.consume(usize::from(input.pages) + 1);
        }
    }
});
