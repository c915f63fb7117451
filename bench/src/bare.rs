//! The least that drains pipes: epoll_wait(2) and read(2), and nothing done with the bytes, or write(2).

use std::fs::File;
use std::io::{Read as _, Write as _, stdin, stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::unistd::{pipe2, read};

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
    forward(pipes, active, into, ready, |_| {})
}

/// The same, and hands what it has read to `take`.
fn forward(
    pipes: &[OwnedFd],
    active: usize,
    into: Into,
    ready: impl FnOnce(),
    mut take: impl FnMut(&[u8]),
) -> Duration {
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
            take(&buffer[*at..*at + read]);
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

/// The environment variable that has a rank's number.
pub const RANK: &str = "IOF_BENCH_RANK";

/// The least that is a launcher: starts ranks and copies what they write to its stdout.
#[derive(clap::Args)]
pub struct Launch {
    /// Ranks
    #[arg(short)]
    n: usize,
    /// Copy our stdin to so many of the ranks
    #[arg(long, default_value_t = 0)]
    feed: usize,
    /// Drop what our stdout has no room for
    #[arg(long)]
    drop: bool,
    /// Write all to this file as well
    #[arg(long)]
    copy: Vec<PathBuf>,
    /// What the ranks run
    #[arg(last = true)]
    command: Vec<String>,
}

/// Runs it.
pub fn launch(args: &Launch) {
    iof_capture::raise_file_limit().unwrap();
    let (mut pipes, mut inputs, mut ranks) = (Vec::new(), Vec::new(), Vec::new());
    for rank in 0..args.n {
        let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
        let mut command = Command::new(&args.command[0]);
        command.args(&args.command[1..]).env(RANK, rank.to_string()).stdout(write);
        if rank < args.feed {
            let (theirs, ours) = pipe2(OFlag::O_CLOEXEC).unwrap();
            command.stdin(theirs);
            inputs.push(File::from(ours));
        } else {
            command.stdin(Stdio::null());
        }
        pipes.push(read);
        ranks.push(command.spawn().unwrap());
    }
    if !inputs.is_empty() {
        feed(inputs);
    }
    let mut outs = vec![File::from(stdout().as_fd().try_clone_to_owned().unwrap())];
    outs.extend(args.copy.iter().map(|path| File::create(path).unwrap()));
    let mut dropped = 0;
    if args.drop {
        for out in &outs {
            fcntl(out, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        }
    }
    forward(
        &pipes,
        args.n,
        Into::One,
        || {},
        |bytes| {
            for out in &mut outs {
                if args.drop {
                    dropped += bytes.len() - out.write(bytes).unwrap_or(0);
                } else {
                    out.write_all(bytes).unwrap();
                }
            }
        },
    );
    ranks.iter_mut().for_each(|rank| assert!(rank.wait().unwrap().success()));
    if dropped > 0 {
        eprintln!("bare loop: {dropped} bytes are missing");
    }
}

/// One read(2), and a write(2) for each.
fn feed(mut inputs: Vec<File>) {
    let (mut stdin, mut piece) = (File::from(stdin().as_fd().try_clone_to_owned().unwrap()), vec![0; READ]);
    loop {
        let read = stdin.read(&mut piece).unwrap();
        if read == 0 {
            break;
        }
        inputs.iter_mut().for_each(|input| input.write_all(&piece[..read]).unwrap());
    }
}
