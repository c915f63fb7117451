//! Tests a launcher's forwarding of output and stdin: small programs whose output is known run under it, and what comes
//! out is compared. `cargo run --release -p iof-conformance -- --launcher iof`.
//!
//! The kit knows launchers by templates of their command lines alone.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]

mod case;
mod cases;
mod job;
mod launcher;
mod rank;
mod report;
mod text;
mod tool;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use case::{Size, Verdict};
use launcher::launchers;
use report::Column;

#[derive(Parser)]
#[command(name = "iof-conformance", about = "Test a launcher's forwarding of output and stdin", version)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Test these launchers. By default all that can be started
    #[arg(long, value_name = "NAME")]
    launcher: Vec<String>,
    /// Read the templates of further launchers from a TOML file
    #[arg(long, value_name = "FILE")]
    launchers: Option<PathBuf>,
    /// Run the cases whose names begin with this
    #[arg(long, value_name = "NAME")]
    case: Vec<String>,
    /// Begin with jobs of this many ranks
    #[arg(long, requires = "count")]
    ranks: Option<u32>,
    /// Begin with jobs in which each rank writes this many lines, or bytes where the case counts those
    #[arg(long, requires = "ranks")]
    count: Option<u64>,
    /// List the cases with their promises, and run none
    #[arg(long)]
    list: bool,
    /// Write the results as JSON, an object a line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results as a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Role {
    /// Run as a rank of a tested launcher
    #[command(hide = true)]
    Rank { variable: String, actions: Vec<String> },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.role {
        Some(Role::Rank { variable, actions }) => rank::run(variable, actions).map(|()| true),
        None => test(&args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            eprintln!("iof-conformance: {why}");
            ExitCode::from(2)
        }
    }
}

/// Runs the cases. Returns whether no launcher failed one.
fn test(args: &Args) -> Result<bool, String> {
    let is_chosen =
        |name: &str| args.case.is_empty() || args.case.iter().any(|case| name.starts_with(case.as_str()));
    let cases: Vec<_> = cases::all().into_iter().filter(|case| is_chosen(case.name)).collect();
    if cases.is_empty() {
        return Err(format!("no case begins with {}: --list shows all", args.case.join(" or ")));
    }
    if args.list {
        cases.iter().for_each(|case| println!("{:34} {}", case.name, case.promise));
        return Ok(true);
    }
    let table = args.launchers.as_ref().map(std::fs::read_to_string).transpose();
    let table = table.map_err(|error| format!("--launchers: {error}"))?;
    let known = launchers(table.as_deref())?;
    let names: Vec<String> =
        if args.launcher.is_empty() { known.keys().cloned().collect() } else { args.launcher.clone() };
    let size = args.ranks.zip(args.count).map(|(ranks, count)| Size { ranks, count });
    let mut columns = Vec::new();
    for name in names {
        let launcher = known
            .get(&name)
            .ok_or_else(|| format!("no launcher {name}: --launchers gives a table with more"))?;
        let Some(version) = launcher.version() else {
            if args.launcher.is_empty() {
                continue;
            }
            return Err(format!("{name} can't be started"));
        };
        let judge = |case: &&case::Case| {
            let verdict = case.judge(launcher, size);
            if let Verdict::Fail { why, .. } = &verdict {
                eprintln!("{name}: {}: {why}", case.name);
            }
            verdict
        };
        columns.push(Column { launcher: name.clone(), version, verdicts: cases.iter().map(judge).collect() });
    }
    print!("{}", report::text(&cases, &columns));
    for (file, content) in [(&args.json, report::json as fn(&_, &_) -> _), (&args.svg, report::svg)] {
        if let Some(file) = file {
            std::fs::write(file, content(&cases, &columns))
                .map_err(|error| format!("{}: {error}", file.display()))?;
        }
    }
    Ok(!columns.iter().any(Column::has_failed))
}
