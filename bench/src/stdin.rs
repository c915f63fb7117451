//! The cost of sending a file to the stdin of ranks, beside tee(1) into the same number of pipes
//! and a bare loop.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use iof_engine::{App, Config, Engine, Grant, JobSpec, Rendezvous, Stdin};
use iof_proto::directive::key;
use iof_proto::{Info, Nspace, Proc, Rank};
use iof_tool::{Push, Pusher};
use nix::sys::stat::Mode;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, mkfifo};

use iof_bench::cpu;
use iof_bench::table::Figures;

#[derive(clap::Args)]
pub struct Args {
    /// Number of rounds; each runs every variant once
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Size of the file, in MiB
    #[arg(long, default_value_t = 1024)]
    mib: usize,
    /// Size of the inlet (`PMIX_IOF_CACHE_SIZE`), in bytes [default: the engine's]
    #[arg(long)]
    inlet: Option<u32>,
}

/// The shell command of each target.
const READER: &str = "exec cat > /dev/null";
/// The size of the bare loop's reads and writes, in bytes.
const PIECE: usize = 64 * 1024;

/// Measures the costs and prints them.
pub fn run(args: &Args) {
    let directory = std::env::temp_dir().join(format!("iof-bench-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let input = directory.join("input");
    let mut file = File::create(&input).unwrap();
    let block = vec![b'x'; 1 << 20];
    (0..args.mib).for_each(|_| file.write_all(&block).unwrap());
    println!(
        "CPU s for a GB delivered, a file of {} MiB, median of {} rounds (least to most)",
        args.mib, args.rounds
    );
    for targets in [1, 8] {
        let [mut iof_cost, mut tee_cost, mut bare_cost] = <[Figures; 3]>::default();
        let gb = (args.mib << 20) as f64 * f64::from(targets) / 1e9;
        for _ in 0..args.rounds {
            iof_cost.add(iof(&input, targets, args.inlet).as_secs_f64() / gb);
            tee_cost.add(tee(&directory, &input, targets).as_secs_f64() / gb);
            bare_cost.add(bare(&input, targets).as_secs_f64() / gb);
        }
        println!("to {targets} targets");
        println!(
            "  iof {iof_cost}, tee {tee_cost}, bare {bare_cost}: {:.2} of tee, {:.2} of bare",
            iof_cost.median() / tee_cost.median(),
            iof_cost.median() / bare_cost.median()
        );
    }
    fs::remove_dir_all(&directory).unwrap();
}

/// Returns the CPU time of this process, which runs both the engine and the tool.
fn iof(input: &Path, targets: u32, inlet: Option<u32>) -> Duration {
    let engine = Engine::start(Config::new(Rendezvous::None)).unwrap();
    let nspace = Nspace::new("bench").unwrap();
    let app = App::new("sh", ["-c", READER]).ranks(targets);
    let mut spec = JobSpec::new(nspace.clone(), vec![app]);
    spec.stdin = BTreeMap::from([(Rank::WILDCARD, Stdin::Pipe)]);
    let job = engine.spawn(&spec).unwrap();
    let tool = engine.attach("bench", Grant::Never).unwrap();
    let size = inlet.map(|bytes| Info::required(key::PMIX_IOF_CACHE_SIZE, bytes));
    let push = Push {
        directives: [Info::new(key::PMIX_IOF_COMPLETE, true)].into_iter().chain(size).collect(),
        ..Push::new(vec![Proc::all(nspace)])
    };
    let before = cpu::current_process();
    let pusher = Pusher::start(tool, &push, File::open(input).unwrap(), |_| {}).unwrap();
    let report = pusher.join().unwrap();
    let spent = cpu::current_process() - before;
    assert_eq!((report.complete, report.bytes), (targets.into(), fs::metadata(input).unwrap().len()));
    assert_eq!(job.wait().code(), 0);
    spent
}

/// Returns the CPU time of tee(1), which writes to a FIFO for each target but the first.
fn tee(directory: &Path, input: &Path, targets: u32) -> Duration {
    let fifos: Vec<PathBuf> = (1..targets).map(|n| directory.join(format!("fifo{n}"))).collect();
    fifos.iter().for_each(|fifo| mkfifo(fifo, Mode::S_IRWXU).unwrap());
    let mut readers: Vec<Child> = fifos
        .iter()
        .map(|fifo| Command::new("sh").args(["-c", "exec cat \"$0\" > /dev/null"]).arg(fifo).spawn().unwrap())
        .collect();
    let mut first = Command::new("sh").args(["-c", READER]).stdin(Stdio::piped()).spawn().unwrap();
    let mut command = Command::new("tee");
    command.args(&fifos).stdin(File::open(input).unwrap()).stdout(first.stdin.take().unwrap());
    let mut tee = command.spawn().unwrap();
    drop(command);
    let id = Id::Pid(Pid::from_raw(tee.id() as i32));
    waitid(id, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
    let spent = cpu::process(tee.id()).unwrap();
    assert!(tee.wait().unwrap().success());
    readers.push(first);
    readers.iter_mut().for_each(|reader| assert!(reader.wait().unwrap().success()));
    fifos.iter().for_each(|fifo| fs::remove_file(fifo).unwrap());
    spent
}

/// Returns the CPU time of a bare loop: one read(2), and one write(2) for each target.
fn bare(input: &Path, targets: u32) -> Duration {
    let reader = || Command::new("sh").args(["-c", READER]).stdin(Stdio::piped()).spawn().unwrap();
    let mut readers: Vec<Child> = (0..targets).map(|_| reader()).collect();
    let mut input = File::open(input).unwrap();
    let mut pipes: Vec<File> = readers
        .iter_mut()
        .map(|reader| reader.stdin.take().unwrap().as_fd().try_clone_to_owned().unwrap().into())
        .collect();
    let mut piece = vec![0; PIECE];
    let before = cpu::current_thread();
    loop {
        let n = input.read(&mut piece).unwrap();
        if n == 0 {
            break;
        }
        pipes.iter_mut().for_each(|pipe| pipe.write_all(&piece[..n]).unwrap());
    }
    let spent = cpu::current_thread() - before;
    drop(pipes);
    readers.iter_mut().for_each(|reader| assert!(reader.wait().unwrap().success()));
    spent
}
