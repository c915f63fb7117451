//! The least that drains pipes: epoll_wait(2) and read(2), and nothing done with the bytes.

use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::unistd::read;

use crate::cpu;

/// Bytes of a buffer.
const BUFFER: usize = 1 << 20;
/// Bytes that one read asks for, as iof's do.
const READ: usize = 64 * 1024;

/// Where a bare loop reads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Into {
    /// A buffer for each pipe, filled from its front to its end, again and again, as a ring is.
    Each,
    /// The same 64 KiB for all, which never leave the nearest cache.
    One,
}

/// Drains `pipes` until `active` of them have ended; the CPU time that it took. Calls `ready` before it begins.
pub fn drain(pipes: &[OwnedFd], active: usize, into: Into, ready: impl FnOnce()) -> Duration {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    for (at, pipe) in (0u64..).zip(pipes) {
        epoll.add(pipe, EpollEvent::new(EpollFlags::EPOLLIN, at)).unwrap();
    }
    let mut buffers = vec![(vec![0u8; BUFFER], 0usize); if into == Into::Each { pipes.len() } else { 1 }];
    let mut events = [EpollEvent::empty(); 256];
    let mut left = active;
    ready();
    let before = cpu::of_this_thread();
    while left > 0 {
        let count = epoll.wait(&mut events, EpollTimeout::NONE).unwrap();
        for event in &events[..count] {
            let pipe = &pipes[event.data() as usize];
            let (buffer, at) = &mut buffers[if into == Into::Each { event.data() as usize } else { 0 }];
            let read = read(pipe, &mut buffer[*at..*at + READ]).unwrap();
            if read == 0 {
                epoll.delete(pipe).unwrap();
                left -= 1;
            } else if into == Into::Each {
                *at += read;
                if *at + READ > BUFFER {
                    *at = 0;
                }
            }
        }
    }
    cpu::of_this_thread() - before
}
