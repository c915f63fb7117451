//! A writer and a reader in two processes, as a launcher and a tool would be, without the engine:
//!
//! ```text
//! cargo run -p iof-shm-ring --example two_processes
//! ```
//!
//! The writer starts this program again as its reader. It passes the reader page, the ring, the
//! doorbell and the room bell as descriptors 3 to 6, and the slot, the start and the drop count as
//! arguments. (The engine sends all these over a socket, and can therefore also send the next
//! generation. Here the reader may hold the writer back, so there is only one generation.)
#![allow(clippy::unwrap_used, reason = "an example ends where it cannot continue")]

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use iof_shm_ring::{
    Attached, Bell, Peek, Policy, Reader, ReaderPage, Ring, Ringer, Start, Stream, StreamConfig, bell,
    doorbell, notify,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const LINES: u32 = 100_000;

fn main() {
    let args: Vec<u64> = std::env::args().skip(1).map(|arg| arg.parse().unwrap()).collect();
    match args[..] {
        [id, start, dropped] => read(id as u32, start, dropped),
        _ => write(),
    }
}

fn wait(fd: BorrowedFd<'_>) {
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
}

/// The launcher's side.
fn write() {
    let config = StreamConfig { capacity: 64 * 1024, policy: Policy::Block };
    let mut stream = Stream::create(config, "example").unwrap();
    let ((ringer, doorbell), (room, room_bell)) = (doorbell().unwrap(), bell().unwrap());
    let page = Arc::new(ReaderPage::create(ringer).unwrap());
    let given = stream.attach(&page, page.take_slot().unwrap(), Start::Oldest, true).unwrap();

    let fds = [page.as_fd().unwrap(), given.ring.as_fd().unwrap(), doorbell.as_fd(), room.as_fd()];
    let mut reader = start_reader(&fds, [u32::from(given.id).into(), given.start, given.dropped]);
    for number in 0..LINES {
        let line = format!("line {number}\n");
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            let taken = stream.push(rest, 0);
            rest = &rest[taken..];
            if !rest.is_empty() {
                // The ring is full: notifies the reader of what is there, and waits for room.
                notify([&stream]);
                wait(room_bell.as_fd());
                room_bell.silence();
            }
        }
    }
    stream.complete();
    notify([&stream]);
    assert!(reader.wait().unwrap().success());
}

fn start_reader(fds: &[BorrowedFd<'_>], words: [u64; 3]) -> std::process::Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(words.map(|word| word.to_string()));
    // First moves the descriptors out of the range 3 to 6.
    let high: Vec<OwnedFd> = fds
        .iter()
        .map(|fd| {
            let high = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_DUPFD_CLOEXEC(10)).unwrap();
            // SAFETY: fcntl(2) just created this descriptor.
            unsafe { OwnedFd::from_raw_fd(high) }
        })
        .collect();
    // SAFETY: between fork and exec only dup2(2) is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            for (number, fd) in (3..).zip(&high) {
                let mut target = std::mem::ManuallyDrop::new(OwnedFd::from_raw_fd(number));
                nix::unistd::dup2(fd, &mut target)?;
            }
            Ok(())
        });
    }
    command.spawn().unwrap()
}

/// The tool's side.
fn read(id: u32, start: u64, dropped: u64) {
    // SAFETY: the writer passed these descriptors, and nothing else in this process uses them.
    let [page, ring, doorbell, room] = [3, 4, 5, 6].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let page = Arc::new(ReaderPage::open(page).unwrap());
    let ring = Arc::new(Ring::open(ring).unwrap());
    let given = Attached { ring, id: id.into(), start, dropped, non_gating: false };
    let doorbell = Bell::from(doorbell);
    // SAFETY: these values are what the writer's `attach` returned, for this reader alone, and the
    // writer never detaches it.
    let mut reader = unsafe { Reader::new(given, Arc::clone(&page), Start::Oldest) }.unwrap();
    reader.set_room_bell(Ringer::from(room));
    let mut lines = 0;
    loop {
        match reader.peek() {
            Peek::Bytes => {
                lines += reader.bytes().iter().filter(|byte| **byte == b'\n').count();
                reader.consume(usize::MAX);
            }
            Peek::Empty => sleep(&page, &doorbell),
            Peek::Ended => break,
            other => unreachable!("{other:?}: the writer waits for this reader and stays in its generation"),
        }
    }
    println!("{lines} lines, {} bytes, {} lost", reader.delivered(), reader.lost());
}

/// Sleeps until a ready bit is set; see [`ReaderPage::arm`].
fn sleep(page: &ReaderPage, doorbell: &Bell) {
    let mut ready = false;
    page.take_ready(64, |_id| ready = true);
    if !ready && page.arm(64) {
        wait(doorbell.as_fd());
        page.disarm();
        doorbell.silence();
    }
}
