//! Runs the simulator: one seed, or one seed after the other until time has passed or a check fails.
//! Prints a failure with the smallest script that still fails. `iof-sim --help` lists the options.
#![allow(clippy::expect_used, reason = "a failed check of a run ends the program")]

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Parser};
use iof_sim::{Counts, Failure, NodeSet, Subject, Summary, run, run_agents, shrink};

/// Executes random scripts of the engine with faults, each from one seed, and checks every step.
#[derive(Parser)]
struct Options {
    /// Run this seed alone, whatever --from and --seconds say.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The first of the seeds that run one after the other, on all processors.
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u64,
    /// The number of seconds for which to run further seeds.
    #[arg(long, value_name = "S", default_value_t = 60)]
    seconds: u64,
    /// The steps of each run.
    #[arg(long, value_name = "M", default_value_t = 2000, conflicts_with = "agents")]
    steps: usize,
    /// Print a failure without searching for a smaller script.
    #[arg(long, conflicts_with = "agents")]
    no_shrink: bool,
    #[command(flatten)]
    subject: SubjectOption,
    /// Run a front end with agents: on small random sets of nodes, or on that of --nodes.
    #[arg(long, conflicts_with_all = ["streams", "engine", "embedder", "host", "clients"])]
    agents: bool,
    #[command(flatten)]
    shape: Shape,
}

/// The subject of the runs. Without one of these, seeds take turns.
#[derive(Args)]
#[group(multiple = false)]
struct SubjectOption {
    /// Run streams, with a stand-in for the engine's core.
    #[arg(long)]
    streams: bool,
    /// Run the engine's core with its tools.
    #[arg(long)]
    engine: bool,
    /// Run the engine's core with its tools and an embedder.
    #[arg(long)]
    embedder: bool,
    /// Run the engine's core with its tools, an embedder and a host that answers queries.
    #[arg(long)]
    host: bool,
    /// Run the engine's core with its tools, an embedder, jobs that clients spawn, and ranks that exchange
    /// values.
    #[arg(long)]
    clients: bool,
}

/// The subjects of the runs of successive seeds. Half of them are of streams, because these take a
/// quarter of the time of the others.
const SUBJECTS: [Subject; 8] = [
    Subject::Streams,
    Subject::Engine,
    Subject::Streams,
    Subject::Embedder,
    Subject::Streams,
    Subject::Host,
    Subject::Streams,
    Subject::Clients,
];

/// The nodes that are run once, and their cost printed.
#[derive(Args)]
struct Shape {
    /// The number of nodes.
    #[arg(long, value_name = "N", requires = "agents")]
    nodes: Option<u32>,
    /// The ranks of each node.
    #[arg(long, value_name = "N", default_value_t = 64, requires = "nodes")]
    ranks: u32,
    /// The bytes that each rank writes.
    #[arg(long, value_name = "N", default_value_t = 32 << 10, requires = "nodes")]
    bytes: u64,
    /// The number of faults.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "nodes")]
    faults: u64,
    /// The lines of each rank.
    #[arg(long, value_name = "N", default_value_t = 100, requires = "nodes")]
    lines: u64,
    /// Replace carriers that are cut.
    #[arg(long, requires = "nodes")]
    linked: bool,
}

/// Parses the command line. Returns the exit code if there is nothing to do: after an error, which is
/// printed in one line, or help.
fn parse() -> Result<Options, ExitCode> {
    Options::try_parse().map_err(|error| {
        if !error.use_stderr() {
            print!("{error}");
            return ExitCode::SUCCESS;
        }
        let text = error.to_string();
        // The usage and a hint follow the error.
        let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
        eprintln!("{}", lines.collect::<Vec<_>>().join(" "));
        ExitCode::from(2)
    })
}

fn main() -> ExitCode {
    let options = match parse() {
        Ok(options) => options,
        Err(code) => return code,
    };
    if options.agents {
        return agents(&options);
    }
    let failure = match options.seed {
        Some(seed) => run(options.subject.of(seed), seed, options.steps).err(),
        None => explore(&options),
    };
    let Some(failure) = failure else { return ExitCode::SUCCESS };
    let Failure { seed, setting, message, .. } = &failure;
    println!("seed {seed} of {} steps of {:?} failed: {message}", options.steps, setting.subject);
    if !options.no_shrink {
        println!("{}", shrink(failure));
    }
    ExitCode::FAILURE
}

/// Runs a front end with agents. The check that fails is printed.
fn agents(options: &Options) -> ExitCode {
    let set = options.shape.set();
    let (began, limit) = (Instant::now(), Duration::from_secs(options.seconds));
    let (mut runs, mut steps) = (0u64, 0);
    for seed in options.seed.unwrap_or(options.from).. {
        let Ok(report) = catch_unwind(|| run_agents(seed, set)) else {
            println!("seed {seed} of --agents failed");
            return ExitCode::FAILURE;
        };
        runs += 1;
        steps += report.steps;
        if set.is_some() || options.seed.is_some() {
            println!("seed {seed}: {report}");
            break;
        }
        if began.elapsed() >= limit {
            break;
        }
    }
    println!("{runs} runs of agents, {steps} steps in {:.1} s", began.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}

impl Shape {
    /// Returns the nodes of these options, if they give some.
    fn set(&self) -> Option<NodeSet> {
        let Shape { nodes, ranks, bytes, faults, lines, linked: is_linked } = *self;
        nodes.map(|nodes| NodeSet { nodes, ranks, bytes, faults, lines, is_linked })
    }
}

impl SubjectOption {
    /// Returns what the run of a seed is about.
    fn of(&self, seed: u64) -> Subject {
        match self {
            SubjectOption { streams: true, .. } => Subject::Streams,
            SubjectOption { engine: true, .. } => Subject::Engine,
            SubjectOption { embedder: true, .. } => Subject::Embedder,
            SubjectOption { host: true, .. } => Subject::Host,
            SubjectOption { clients: true, .. } => Subject::Clients,
            _ => SUBJECTS[(seed % SUBJECTS.len() as u64) as usize],
        }
    }
}

/// Runs seeds until the time is over. Returns the first failure.
fn explore(options: &Options) -> Option<Failure> {
    let (next, runs, failed) = (AtomicU64::new(options.from), AtomicU64::new(0), AtomicBool::new(false));
    let (failure, sum) = (Mutex::new(None), Mutex::new((Summary::default(), Counts::default())));
    let (began, limit) = (Instant::now(), Duration::from_secs(options.seconds));
    let (steps, threads) = (options.steps, thread::available_parallelism().map_or(1, usize::from));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while began.elapsed() < limit && !failed.load(Relaxed) {
                    let seed = next.fetch_add(1, Relaxed);
                    match run(options.subject.of(seed), seed, steps) {
                        Ok((summary, counts, _)) => {
                            let mut sum = sum.lock().expect("no panic");
                            sum.0 += summary;
                            sum.1 += counts;
                        }
                        Err(found) => {
                            failed.store(true, Relaxed);
                            failure.lock().expect("no panic").get_or_insert(found);
                        }
                    }
                    runs.fetch_add(1, Relaxed);
                }
            });
        }
    });
    let (runs, elapsed) = (runs.into_inner(), began.elapsed().as_secs_f64());
    let rate = 60.0 * (runs * steps as u64) as f64 / elapsed;
    println!("{runs} runs of {steps} steps in {elapsed:.1} s: {rate:.0} steps a minute");
    let (summary, counts) = sum.into_inner().expect("no panic");
    println!("{summary:?}\n{counts}");
    failure.into_inner().expect("no panic")
}
