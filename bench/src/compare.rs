//! Whole systems on the same work, in turn, in one run: iof, other launchers, and the least that the kernel needs.

mod gate;
mod job;
mod line;
mod output;
mod processes;
mod rank;
mod report;
mod sample;
mod scale;
mod signals;
mod systems;
mod trouble;
mod works;

use std::fmt::Display;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::exit;

pub use rank::{Rank, run as rank};

use job::Site;
use report::{Report, Row, machine, plot};
use sample::Rounds;
use scale::Scale;
use systems::{Missing, System};
use works::Work;

/// The command line.
#[derive(clap::Args)]
pub struct Args {
    /// Only works whose name contains this; several are several options
    #[arg(long, value_name = "WORK")]
    only: Vec<String>,
    /// Write report.json and plots (SVG) into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Rounds, each of which runs every system once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// One round of a small part of it: shows that it works, and measures little
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
}

/// Runs what is asked for, and reports.
pub fn run(args: &Args) {
    let rounds = if args.quick { 1 } else { args.rounds };
    let scale = if args.quick { Scale::Quick } else { Scale::Full };
    let works = wanted(&args.only, scale);
    if let Some(directory) = &args.out {
        must(fs::create_dir_all(directory), directory);
    }
    signals::leave_nothing_behind();
    let mut report = Report::new(machine::describe(), rounds);
    let systems = installed(&mut report);
    let mut printing = printed(report.print_head(), args);
    let site = Site::new(scale);
    for work in works {
        let rows = compare(work.as_ref(), &systems, &site, rounds);
        report.rows.extend(rows.iter().cloned());
        // So that what was seen is there if the rest is not waited for.
        if let Some(directory) = &args.out {
            must(report.write(directory), directory);
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

/// Whether that was printed. If not, the program ends here, unless a report is written and stdout was not just closed by
/// who read it.
fn printed(done: io::Result<()>, args: &Args) -> bool {
    let Err(error) = done else { return true };
    let closed = error.kind() == io::ErrorKind::BrokenPipe;
    if !closed {
        say(format_args!("The tables can't be printed: {error}"));
    }
    if closed || args.out.is_none() {
        exit(1);
    }
    false
}

/// A line on stderr, if that can take it.
fn say(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// What can't be written there ends the program.
fn must(done: io::Result<()>, directory: &Path) {
    if let Err(error) = done {
        say(format_args!("The report can't be written to {}: {error}", directory.display()));
        exit(2);
    }
}

/// The works in whose names one of these occurs, or all; if one occurs in none, says which works there are, and ends.
fn wanted(only: &[String], scale: Scale) -> Vec<Box<dyn Work>> {
    let mut works = works::all(scale);
    let nowhere = |part: &&str| !works.iter().any(|work| work.name().contains(part));
    let unknown: Vec<&str> = only.iter().map(String::as_str).filter(nowhere).collect();
    if !unknown.is_empty() {
        say(format_args!("No work has a name with {} in it. There are:", unknown.join(" or ")));
        works.iter().for_each(|work| say(format_args!("  {}", work.name())));
        exit(2);
    }
    works.retain(|work| only.is_empty() || only.iter().any(|part| work.name().contains(part.as_str())));
    works
}

/// The systems that are here; says why others are not, and ends if one is needed.
fn installed(report: &mut Report) -> Vec<Box<dyn System>> {
    let mut here = |system: &dyn System| match system.version() {
        Ok(version) => {
            report.systems.insert(system.name(), version);
            true
        }
        Err(Missing::LeftOut(why)) => {
            say(format_args!("{} is left out, {why}", system.name()));
            false
        }
        Err(Missing::Needed(why)) => {
            say(format_args!("{} is needed, {why}", system.name()));
            exit(2);
        }
    };
    systems::all().into_iter().filter(|system| here(system.as_ref())).collect()
}

/// One work by all systems, in turn; each round in the other order than the one before.
fn compare(work: &dyn Work, systems: &[Box<dyn System>], site: &Site, rounds: u32) -> Vec<Row> {
    let mut seen: Vec<Option<Rounds>> = systems.iter().map(|_| Some(Rounds::default())).collect();
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..systems.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            match (work.run(systems[at].as_ref(), site), &mut seen[at]) {
                (Some(ran), Some(rounds)) => rounds.add(ran),
                (_, rounds) => *rounds = None,
            }
        }
    }
    Row::of(work, systems.iter().map(|system| system.name()).zip(seen))
}
