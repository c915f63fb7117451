//! A writer and a reader in two processes, as a launcher and a tool would be, without the engine:
//!
//! ```text
//! cargo run -p iof-shm-ring --example two_processes
//! ```
//!
//! The writer starts this program once more as its reader and hands it the reader page, the ring
//! and the doorbell as descriptors 3 to 5, and slot, start and drops as arguments. (The engine
//! sends all that over a socket, and can so send the next generation as well; here the reader holds
//! the writer back, so there is only one.)
#![allow(clippy::unwrap_used, reason = "an example ends where it can't go on")]

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
        [slot, start, dropped] => read(slot as u32, start, dropped),
        _ => write(),
    }
}

fn wait(on: BorrowedFd<'_>) {
    poll(&mut [PollFd::new(on, PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
}

/// The launcher's side.
fn write() {
    let config = StreamConfig { capacity: 64 * 1024, policy: Policy::Block };
    let mut stream = Stream::create(config, "example").unwrap();
    let ((ringer, doorbell), (room, room_bell)) = (doorbell().unwrap(), bell().unwrap());
    let page = Arc::new(ReaderPage::create(ringer).unwrap());
    let given = stream.attach(&page, page.take_slot().unwrap(), Start::Oldest, true).unwrap();

    let fds = [page.as_fd().unwrap(), given.ring.as_fd().unwrap(), doorbell.as_fd(), room.as_fd()];
    let mut reader = start_reader(&fds, [given.slot.into(), given.start, given.dropped]);
    for number in 0..LINES {
        let line = format!("line {number}\n");
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            let taken = stream.push(rest, 0);
            rest = &rest[taken..];
            if !rest.is_empty() {
                // Full: told of what is there, and waits until there is room.
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
    // Out of the way of 3 to 6 first.
    let high: Vec<OwnedFd> = fds
        .iter()
        .map(|fd| {
            let high = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_DUPFD_CLOEXEC(10)).unwrap();
            // SAFETY: fcntl(2) just made it.
            unsafe { OwnedFd::from_raw_fd(high) }
        })
        .collect();
    // SAFETY: between fork and exec, dup2(2) alone is called, which may be.
    unsafe {
        command.pre_exec(move || {
            for (at, fd) in (3..).zip(&high) {
                let mut target = std::mem::ManuallyDrop::new(OwnedFd::from_raw_fd(at));
                nix::unistd::dup2(fd, &mut target)?;
            }
            Ok(())
        });
    }
    command.spawn().unwrap()
}

/// The tool's side.
fn read(slot: u32, start: u64, dropped: u64) {
    // SAFETY: the writer left us these, and nobody else here uses them.
    let [page, ring, doorbell, room] = [3, 4, 5, 6].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let page = Arc::new(ReaderPage::open(page).unwrap());
    let given =
        Attached { ring: Arc::new(Ring::open(ring).unwrap()), slot, start, dropped, non_gating: false };
    let doorbell = Bell::from(doorbell);
    // SAFETY: all of it is what the writer's `attach` gave, for us alone; it never detaches us.
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
            other => unreachable!("{other:?}: the writer waits for us, and goes on in no other generation"),
        }
    }
    println!("{lines} lines, {} bytes, {} lost", reader.delivered(), reader.lost());
}

/// Until there may be news; see [`ReaderPage::arm`].
fn sleep(page: &ReaderPage, doorbell: &Bell) {
    let mut news = false;
    page.take_ready(64, |_slot| news = true);
    if !news && page.arm(64) {
        wait(doorbell.as_fd());
        page.disarm();
        doorbell.silence();
    }
}
