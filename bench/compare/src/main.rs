//! Compares iof with other launchers and minimal baselines: all run the same workloads, in turn, in
//! one run. `cargo run --release -p iof-compare`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a benchmark may panic")]

mod bare_launcher;
mod barrier;
mod error;
mod job;
mod line;
mod output;
mod processes;
mod rank;
mod report;
mod sample;
mod scale;
mod signals;
mod subjects;
mod workloads;

use std::fmt::Display;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::exit;

use clap::{Parser, Subcommand};

use job::Sandbox;
use report::{Report, Row, machine, plot};
use sample::Rounds;
use scale::Scale;
use subjects::{Subject, Unavailable};
use workloads::Workload;

#[derive(Parser)]
#[command(name = "iof-compare", about = "Compare iof with other launchers and minimal baselines")]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    comparison: ComparisonArgs,
}

/// The roles of the processes that a comparison starts.
#[derive(Subcommand)]
enum Role {
    /// Run as a rank of a compared launcher
    #[command(hide = true)]
    Rank(rank::RankArgs),
    /// Run as the bare launcher
    #[command(hide = true)]
    Bare(bare_launcher::LaunchArgs),
}

fn main() {
    let args = Args::parse();
    match args.role {
        Some(Role::Rank(args)) => rank::run(&args),
        Some(Role::Bare(args)) => bare_launcher::launch(&args),
        None => run(&args.comparison),
    }
}

#[derive(clap::Args)]
struct ComparisonArgs {
    /// Run only the workloads whose name contains this; may be repeated
    #[arg(long, value_name = "WORKLOAD")]
    only: Vec<String>,
    /// Write report.json and plots (SVG) into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Number of rounds; each runs every subject once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Run one round of a small part, to check that everything works
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
}

/// Runs the selected workloads and reports the results.
fn run(args: &ComparisonArgs) {
    let rounds = if args.quick { 1 } else { args.rounds };
    let scale = if args.quick { Scale::Quick } else { Scale::Full };
    let workloads = select(&args.only, scale);
    if let Some(directory) = &args.out {
        exit_on_error(fs::create_dir_all(directory), directory);
    }
    signals::run_supervised();
    let mut report = Report::new(machine::describe(), rounds);
    let subjects = available(&mut report);
    let mut printing = printed(report.print_head(), args);
    let sandbox = Sandbox::new(scale);
    for workload in workloads {
        let rows = compare(workload.as_ref(), &subjects, &sandbox, rounds);
        report.rows.extend(rows.iter().cloned());
        // Written after each workload, so that an interrupted run leaves its results.
        if let Some(directory) = &args.out {
            exit_on_error(report.write(directory), directory);
        }
        printing = printing && printed(report.print(&rows), args);
    }
    if let Some(directory) = &args.out {
        plot::all(&report.rows, directory);
    }
    if !printing {
        exit(1);
    }
}

/// Returns whether printing succeeded. Exits on a failure, unless a report is written and stdout is
/// not a closed pipe.
fn printed(done: io::Result<()>, args: &ComparisonArgs) -> bool {
    let Err(error) = done else { return true };
    let closed = error.kind() == io::ErrorKind::BrokenPipe;
    if !closed {
        print_message(format_args!("cannot print the tables: {error}"));
    }
    if closed || args.out.is_none() {
        exit(1);
    }
    false
}

/// Prints a line to stderr. Ignores failures.
fn print_message(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Exits if the report could not be written to `directory`.
fn exit_on_error(done: io::Result<()>, directory: &Path) {
    if let Err(error) = done {
        print_message(format_args!("cannot write the report to {}: {error}", directory.display()));
        exit(2);
    }
}

/// Returns the workloads whose names contain one of `only`, or all if that is empty. Prints the
/// names of all workloads and exits if a part occurs in none.
fn select(only: &[String], scale: Scale) -> Vec<Box<dyn Workload>> {
    let mut workloads = workloads::all(scale);
    let is_unknown = |part: &&str| !workloads.iter().any(|workload| workload.name().contains(part));
    let unknown: Vec<&str> = only.iter().map(String::as_str).filter(is_unknown).collect();
    if !unknown.is_empty() {
        print_message(format_args!(
            "unknown workload '{}': expected a part of one of these names:",
            unknown.join("', '")
        ));
        workloads.iter().for_each(|workload| print_message(format_args!("  {}", workload.name())));
        exit(2);
    }
    workloads.retain(|workload| {
        only.is_empty() || only.iter().any(|part| workload.name().contains(part.as_str()))
    });
    workloads
}

/// Returns the subjects that are available. Prints why others are not, and exits if one of these is
/// required.
fn available(report: &mut Report) -> Vec<Box<dyn Subject>> {
    let mut is_available = |subject: &dyn Subject| match subject.version() {
        Ok(version) => {
            report.subjects.insert(subject.name(), version);
            true
        }
        Err(Unavailable::Optional(why)) => {
            print_message(format_args!("{} is skipped: {why}", subject.name()));
            false
        }
        Err(Unavailable::Required(why)) => {
            print_message(format_args!("{} is required: {why}", subject.name()));
            exit(2);
        }
    };
    subjects::all().into_iter().filter(|subject| is_available(subject.as_ref())).collect()
}

/// Runs one workload with all subjects in turn. Every second round runs in reverse order.
fn compare(
    workload: &dyn Workload,
    subjects: &[Box<dyn Subject>],
    sandbox: &Sandbox,
    rounds: u32,
) -> Vec<Row> {
    let mut seen: Vec<Option<Rounds>> = subjects.iter().map(|_| Some(Rounds::default())).collect();
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..subjects.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            match (workload.run(subjects[index].as_ref(), sandbox), &mut seen[index]) {
                (Some(outcome), Some(rounds)) => rounds.add(outcome),
                (_, rounds) => *rounds = None,
            }
        }
    }
    Row::of(workload, subjects.iter().map(|subject| subject.name()).zip(seen))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Args;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
