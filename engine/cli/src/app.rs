//! The programs of a job on the command line: `PROG ARGS : [-n N] [--wdir DIR] [-x NAME] PROG
//! ARGS`, as mpirun has it.

use std::env;
use std::ffi::OsString;

use clap::Parser;
use clap::error::ErrorKind;
use iof_engine::App;

use crate::args::{AppArgs, Variable};
use crate::{Failure, in_one_line, print_message};

/// What divides programs.
const DIVIDER: &str = ":";

/// What stands behind a divider.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Further {
    #[command(flatten)]
    app: AppArgs,
}

/// The apps of a command line, of which `first` was parsed with what belongs to the others still at
/// its end.
pub fn apps(first: &AppArgs) -> Result<Vec<App>, Failure> {
    let mut parts = first.program.split(|word| word == DIVIDER);
    let mut apps = vec![app(first, parts.next().unwrap_or_default())?];
    for (number, words) in (1usize..).zip(parts) {
        let empty = || Failure::usage(format!("app {number} has no program: say one after each '{DIVIDER}'"));
        if words.is_empty() {
            return Err(empty());
        }
        let Further { app: args } = Further::try_parse_from(words).map_err(|error| match error.kind() {
            ErrorKind::MissingRequiredArgument => empty(),
            ErrorKind::UnknownArgument => Failure::usage(format!(
                "app {number}: {}; what is for the whole job goes before the first program",
                in_one_line(&error)
            )),
            _ => Failure::usage(format!("app {number}: {}", in_one_line(&error))),
        })?;
        apps.push(app(&args, &args.program)?);
    }
    Ok(apps)
}

fn app(args: &AppArgs, words: &[OsString]) -> Result<App, Failure> {
    let Some((program, rest)) = words.split_first() else {
        return Err(Failure::usage(format!("app 0 has no program: say one before the first '{DIVIDER}'")));
    };
    let set = |Variable { name, value }: &Variable| Some((name.clone(), value.clone()?));
    // Those without a value the ranks have anyway, if there is anything to have.
    for Variable { name, .. } in args.env.iter().filter(|variable| variable.value.is_none()) {
        if env::var_os(name).is_none() {
            print_message(format_args!("-x {}: not set here, so the ranks do not have it", name.display()));
        }
    }
    Ok(App {
        nprocs: args.nprocs,
        program: program.clone(),
        args: rest.to_vec(),
        env: args.env.iter().filter_map(set).collect(),
        cwd: args.wdir.clone(),
    })
}
