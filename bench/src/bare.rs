//! The bare loop, a minimal baseline: epoll_wait(2) and read(2), followed by write(2) if the bytes
//! are forwarded.

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

/// The size of a pipe's own buffer, in bytes.
const BUFFER: usize = 1 << 20;
/// The size of one read, in bytes, the same as iof's.
const READ: usize = 64 * 1024;

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

/// Drains `pipes` like [`drain`], and passes the bytes of each read to `take`.
fn forward(
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

/// The environment variable with a rank's number.
pub const RANK_VARIABLE: &str = "IOF_BENCH_RANK";

/// The arguments of the minimal launcher, which starts ranks and copies their output to its stdout.
#[derive(clap::Args)]
pub struct LaunchArgs {
    /// Number of ranks
    #[arg(short)]
    n: usize,
    /// Number of ranks that get a copy of stdin
    #[arg(long, default_value_t = 0)]
    feed: usize,
    /// Drop bytes for which stdout has no room
    #[arg(long)]
    drop: bool,
    /// Also write all output to this file
    #[arg(long)]
    copy: Vec<PathBuf>,
    /// Command of the ranks
    #[arg(last = true)]
    command: Vec<String>,
}

/// Runs the minimal launcher.
pub fn launch(args: &LaunchArgs) {
    iof_capture::raise_file_limit().unwrap();
    let (mut pipes, mut inputs, mut ranks) = (Vec::new(), Vec::new(), Vec::new());
    for rank in 0..args.n {
        let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
        let mut command = Command::new(&args.command[0]);
        command.args(&args.command[1..]).env(RANK_VARIABLE, rank.to_string()).stdout(write);
        if rank < args.feed {
            let (rank_end, launcher_end) = pipe2(OFlag::O_CLOEXEC).unwrap();
            command.stdin(rank_end);
            inputs.push(File::from(launcher_end));
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
        Buffers::Shared,
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

/// Copies stdin to all of `inputs`: one read(2), and one write(2) for each.
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
