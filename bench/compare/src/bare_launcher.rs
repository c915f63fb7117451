//! The bare launcher: a baseline that starts ranks and copies their output to stdout in the bare
//! loop.

use std::fs::File;
use std::io::{Read as _, Write as _, stdin, stdout};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use iof_bench::bare::{Buffers, READ, forward};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::pipe2;

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
