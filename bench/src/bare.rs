//! The bare loop, a minimal baseline: epoll_wait(2) and read(2), followed by write(2) if the bytes
//! are forwarded.

use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::unistd::read;

use crate::cpu;

/// The size of a pipe's own buffer, in bytes.
const BUFFER: usize = 1 << 20;
/// The size of one read, in bytes, the same as iof's.
pub const READ: usize = 64 * 1024;

/// The buffers that the bare loop reads into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// A buffer for each pipe, filled cyclically from front to end like a ring.
    PerPipe,
    /// One buffer of 64 KiB for all pipes, which stays in the nearest cache.
    Shared,
}

/// Drains `pipes` until `active` of them have ended, and returns the CPU time that this took. Calls
/// `ready` before the first read.
pub fn drain(pipes: &[OwnedFd], active: usize, layout: Buffers, ready: impl FnOnce()) -> Duration {
    forward(pipes, active, layout, ready, |_| {})
}

/// Drains `pipes` as [`drain`] does, and passes the bytes of each read to `take`.
pub fn forward(
    pipes: &[OwnedFd],
    active: usize,
    layout: Buffers,
    ready: impl FnOnce(),
    mut take: impl FnMut(&[u8]),
) -> Duration {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    for (index, pipe) in (0u64..).zip(pipes) {
        epoll.add(pipe, EpollEvent::new(EpollFlags::EPOLLIN, index)).unwrap();
    }
    let mut buffers =
        vec![(vec![0u8; BUFFER], 0usize); if layout == Buffers::PerPipe { pipes.len() } else { 1 }];
    let mut events = [EpollEvent::empty(); 256];
    let mut left = active;
    ready();
    let before = cpu::current_thread();
    while left > 0 {
        let count = epoll.wait(&mut events, EpollTimeout::NONE).unwrap();
        for event in &events[..count] {
            let pipe = &pipes[event.data() as usize];
            let (buffer, offset) =
                &mut buffers[if layout == Buffers::PerPipe { event.data() as usize } else { 0 }];
            let read = read(pipe, &mut buffer[*offset..*offset + READ]).unwrap();
            take(&buffer[*offset..*offset + read]);
            if read == 0 {
                epoll.delete(pipe).unwrap();
                left -= 1;
            } else if layout == Buffers::PerPipe {
                *offset += read;
                if *offset + READ > BUFFER {
                    *offset = 0;
                }
            }
        }
    }
    cpu::current_thread() - before
}
