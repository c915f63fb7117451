//! The load: one process for each pipe that has something to write, all released at once.

use std::io::{Read, Write as _, stdin};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::unistd::pipe2;

/// What each writer does.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Write {
    /// Bytes a write
    #[arg(long)]
    pub size: usize,
    /// Writes
    #[arg(long)]
    pub count: u64,
    /// Microseconds between two writes
    #[arg(long, default_value_t = 0)]
    pub pause: u64,
}

impl Write {
    /// Bytes in all.
    pub fn total(&self) -> u64 {
        self.size as u64 * self.count
    }
}

/// The writer's process: waits until its stdin ends, then writes lines of `size` bytes.
pub fn write(args: &Write) {
    stdin().read_exact(&mut [0]).unwrap_err();
    to_stdout(args, |_| {});
}

/// Writes pieces of `size` bytes to stdout, each a line unless `fill` makes something else of it.
pub fn to_stdout(args: &Write, mut fill: impl FnMut(&mut [u8])) {
    let mut piece = vec![b'x'; args.size];
    piece[args.size - 1] = b'\n';
    let mut out = std::fs::File::from(std::io::stdout().as_fd().try_clone_to_owned().unwrap());
    for _ in 0..args.count {
        fill(&mut piece);
        out.write_all(&piece).unwrap();
        if args.pause > 0 {
            std::thread::sleep(Duration::from_micros(args.pause));
        }
    }
}

/// Pipes, some with a writer that waits for [`Load::release`].
pub struct Load {
    /// The read ends.
    pub pipes: Vec<OwnedFd>,
    writers: Vec<Child>,
    gate: OwnedFd,
    /// Write ends of the pipes on which nothing is written.
    idle: Vec<OwnedFd>,
}

impl Load {
    /// `active` writers of `work` each, and `idle` pipes without one, evenly among them.
    pub fn new(active: usize, idle: usize, work: Write) -> Load {
        let (wait, gate) = pipe2(OFlag::O_CLOEXEC).unwrap();
        let mut load = Load { pipes: Vec::new(), writers: Vec::new(), gate, idle: Vec::new() };
        let every = (active + idle).checked_div(active).unwrap_or(usize::MAX);
        for i in 0..active + idle {
            let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
            load.pipes.push(read);
            if i % every == 0 && load.writers.len() < active {
                let Write { size, count, pause } = work;
                let args = [
                    "write".to_owned(),
                    format!("--size={size}"),
                    format!("--count={count}"),
                    format!("--pause={pause}"),
                ];
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args(args).stdin(wait.try_clone().unwrap()).stdout(Stdio::from(write));
                load.writers.push(command.spawn().unwrap());
            } else {
                load.idle.push(write);
            }
        }
        load
    }

    /// Lets the writers go; the idle pipes end when what this gives is dropped.
    pub fn release(self) -> Released {
        drop(self.gate);
        Released { writers: self.writers, _idle: self.idle }
    }
}

/// A load at work.
pub struct Released {
    writers: Vec<Child>,
    _idle: Vec<OwnedFd>,
}

impl Released {
    /// Waits until every writer has written all.
    pub fn wait(&mut self) {
        for mut writer in self.writers.drain(..) {
            assert!(writer.wait().unwrap().success());
        }
    }
}
