//! Runs the simulator:
//! `iof-sim [--seed N] [--steps M] [--seconds S] [--from N] [--streams | --engine | --embedder] [--no-shrink]`.
//!
//! With `--seed`, runs that seed alone. Otherwise runs one seed after the other, from `--from` on,
//! on all processors, until `--seconds` have passed or a check fails. Prints a failure with the
//! smallest script that still fails.
//!
//! `iof-sim --tree [--seed N] [--seconds S] [--from N]` runs trees of agents: small ones, or the
//! one of `--nodes N [--ranks N] [--radix N] [--bytes N] [--faults N] [--lines N] [--linked]`, and
//! prints what it cost. With `--linked`, carriers are replaced, and no node relays.
#![allow(clippy::expect_used, reason = "a failed check of a run ends the program")]

use std::panic::catch_unwind;
use std::process::{self, ExitCode};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use iof_sim::{Failure, Subject, Summary, Tree, run, run_tree, shrink};

/// The steps of a run if none are given.
const STEPS: usize = 2000;

/// Returns the number after `name`. Ends the program if what follows is not one.
fn option<N: FromStr>(name: &str) -> Option<N> {
    let mut args = std::env::args_os().skip_while(|arg| arg != name);
    args.next()?;
    let value = args.next().unwrap_or_default();
    let number = value.to_str().and_then(|value| value.parse().ok());
    Some(number.unwrap_or_else(|| {
        let bits = 8 * size_of::<N>();
        eprintln!("iof-sim: invalid value {value:?} for {name}: expected a whole number below 2^{bits}");
        process::exit(2)
    }))
}

/// Returns whether an argument is `name`.
fn has(name: &str) -> bool {
    std::env::args_os().any(|arg| arg == name)
}

fn main() -> ExitCode {
    if has("--tree") {
        return trees();
    }
    let steps = option("--steps").unwrap_or(STEPS);
    let failure = match option("--seed") {
        Some(seed) => run(subject_of(seed), seed, steps).err(),
        None => explore(option("--from").unwrap_or(0), steps, option("--seconds").unwrap_or(60)),
    };
    let Some(failure) = failure else { return ExitCode::SUCCESS };
    let Failure { seed, setting, message, .. } = &failure;
    println!("seed {seed} of {steps} steps of {:?} failed: {message}", setting.subject);
    if !has("--no-shrink") {
        println!("{}", shrink(failure));
    }
    ExitCode::FAILURE
}

/// Runs trees of agents, which print the check that fails.
fn trees() -> ExitCode {
    let number = |name, default| option(name).unwrap_or(default);
    let small = |name, default| option(name).unwrap_or(default);
    let is_linked = has("--linked");
    let tree = option("--nodes").map(|nodes| Tree {
        nodes,
        ranks: small("--ranks", 64),
        radix: if is_linked { u32::MAX } else { small("--radix", 32) },
        bytes: number("--bytes", 32 << 10),
        faults: number("--faults", 0),
        lines: number("--lines", 100),
        is_linked,
    });
    let (began, limit) = (Instant::now(), Duration::from_secs(number("--seconds", 60)));
    let (from, mut runs) = (option("--seed").unwrap_or_else(|| number("--from", 0)), 0);
    for seed in from.. {
        let Ok(report) = catch_unwind(|| run_tree(seed, tree)) else {
            println!("seed {seed} of --tree failed");
            return ExitCode::FAILURE;
        };
        runs += 1;
        if tree.is_some() || option::<u64>("--seed").is_some() {
            println!("seed {seed}: {report}");
            break;
        }
        if began.elapsed() >= limit {
            break;
        }
    }
    println!("{runs} trees in {:.1} s", began.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}

/// Returns what the run of a seed is about: that of `--streams`, `--engine` or `--embedder`, or one
/// after the other.
fn subject_of(seed: u64) -> Subject {
    let subjects =
        [("--streams", Subject::Streams), ("--engine", Subject::Engine), ("--embedder", Subject::Embedder)];
    let chosen = subjects.iter().find(|(name, _)| has(name));
    chosen.unwrap_or(&subjects[(seed % 3) as usize]).1
}

/// Runs seeds until the time is over. Returns the first failure.
fn explore(from: u64, steps: usize, seconds: u64) -> Option<Failure> {
    let (next, runs, failed) = (AtomicU64::new(from), AtomicU64::new(0), AtomicBool::new(false));
    let (failure, sum) = (Mutex::new(None), Mutex::new(Summary::default()));
    let (began, limit) = (Instant::now(), Duration::from_secs(seconds));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while began.elapsed() < limit && !failed.load(Relaxed) {
                    let seed = next.fetch_add(1, Relaxed);
                    match run(subject_of(seed), seed, steps) {
                        Ok((summary, _)) => *sum.lock().expect("no panic") += summary,
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
    println!("{:?}", sum.into_inner().expect("no panic"));
    failure.into_inner().expect("no panic")
}
