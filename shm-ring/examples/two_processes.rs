//! A writer and a reader in two processes, as a launcher and a tool would be, without the engine:
//!
//! ```text
//! cargo run -p iof-shm-ring --example two_processes
//! ```
//!
//! The writer starts this program again as its reader, with one end of a socket pair as stdin.
#![allow(clippy::unwrap_used, clippy::panic, reason = "an example ends where it cannot continue")]

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;

use iof_shm_ring::handoff::{self, Gating};
use iof_shm_ring::{Peek, Policy, Start, Stream, StreamConfig};

fn main() {
    if std::env::args().nth(1).is_some() { read() } else { write() }
}

fn write() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let program = std::env::current_exe().unwrap();
    let mut process = Command::new(program).arg("read").stdin(OwnedFd::from(theirs)).spawn().unwrap();
    let config = StreamConfig { capacity: 64 * 1024, policy: Policy::Block };
    let mut stream = Stream::create(config, "example").unwrap();
    let mut reader = handoff::send(&ours, &mut stream, Start::Oldest, Gating::Block).unwrap();
    for number in 0..100_000 {
        reader.push_all(&mut stream, format!("line {number}\n").as_bytes(), 0).unwrap();
    }
    reader.finish(&mut stream).unwrap();
    assert!(process.wait().unwrap().success());
}

fn read() {
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    // SAFETY: `write` sends the reader and serves it until this process has ended. Nothing else in
    // this process uses the socket.
    let mut received = unsafe { handoff::receive(&socket) }.unwrap();
    let mut lines = 0;
    loop {
        let reader = received.reader();
        match reader.peek() {
            Peek::Bytes => {
                lines += reader.bytes().iter().filter(|byte| **byte == b'\n').count();
                reader.consume(usize::MAX);
            }
            Peek::Gap(gap) => println!("{} bytes are missing from byte {} on", gap.lost, gap.offset),
            Peek::Empty => received.wait().unwrap(),
            Peek::Sealed => received.follow().unwrap(),
            Peek::Ended => break println!("{lines} lines, {} bytes", reader.delivered()),
            Peek::Broken { .. } | Peek::Gone => panic!("the writer has ended early"),
        }
    }
}
