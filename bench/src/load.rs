//! A load of writers: one process for each active pipe, all released at once.

use std::io::{Read, Write as _, stdin};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::unistd::pipe2;

/// The writes of one writer.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct WriteArgs {
    /// Bytes of one write
    #[arg(long)]
    pub size: usize,
    /// Number of writes
    #[arg(long)]
    pub count: u64,
    /// Pause between two writes, in microseconds
    #[arg(long, default_value_t = 0)]
    pub pause: u64,
}

impl WriteArgs {
    /// Returns the bytes of all writes.
    pub fn total(&self) -> u64 {
        self.size as u64 * self.count
    }
}

/// Runs as a writer process: blocks until stdin ends, then writes lines of `size` bytes.
pub fn write(args: &WriteArgs) {
    stdin().read_exact(&mut [0]).unwrap_err();
    to_stdout(args, |_| {});
}

/// Writes pieces of `size` bytes to stdout. `fill` may change each piece, which is one line before.
pub fn to_stdout(args: &WriteArgs, mut fill: impl FnMut(&mut [u8])) {
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

/// Pipes, some of them with a writer that waits for [`Load::release`].
#[derive(Debug)]
pub struct Load {
    /// The read ends.
    pub pipes: Vec<OwnedFd>,
    writers: Vec<Child>,
    /// The write end of the writers' stdin. Closing it releases them.
    start: OwnedFd,
    /// The write ends of the idle pipes.
    idle: Vec<OwnedFd>,
}

impl Load {
    /// Starts `active` writers, and creates `idle` pipes without a writer, evenly among the others.
    pub fn new(active: usize, idle: usize, work: WriteArgs) -> Load {
        let (wait, start) = pipe2(OFlag::O_CLOEXEC).unwrap();
        let mut load = Load { pipes: Vec::new(), writers: Vec::new(), start, idle: Vec::new() };
        let every = (active + idle).checked_div(active).unwrap_or(usize::MAX);
        for i in 0..active + idle {
            let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
            load.pipes.push(read);
            if i % every == 0 && load.writers.len() < active {
                let WriteArgs { size, count, pause } = work;
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

    /// Releases the writers. The idle pipes end when the returned value is dropped.
    pub fn release(self) -> RunningLoad {
        drop(self.start);
        RunningLoad { writers: self.writers, _idle: self.idle }
    }
}

/// A load whose writers were released.
#[derive(Debug)]
pub struct RunningLoad {
    writers: Vec<Child>,
    _idle: Vec<OwnedFd>,
}

impl RunningLoad {
    /// Blocks until every writer has exited.
    pub fn wait(&mut self) {
        for mut writer in self.writers.drain(..) {
            assert!(writer.wait().unwrap().success());
        }
    }

    /// Kills the writers.
    pub fn kill(mut self) {
        for mut writer in self.writers.drain(..) {
            writer.kill().unwrap();
            writer.wait().unwrap();
        }
    }
}
