//! The programs of a job on the command line, in mpirun's syntax: `PROG ARGS : [-n N] [--wdir DIR]
//! [-x NAME] PROG ARGS`.

use std::env;
use std::ffi::OsString;

use clap::Parser;
use clap::error::ErrorKind;
use iof_engine::{App, is_launcher_variable};

use crate::args::{AppArgs, Variable};
use crate::error::Failure;
use crate::terminal::message::print_message;
use crate::usage::in_one_line;

/// The separator between programs.
const SEPARATOR: &str = ":";

/// The variables that the engine sets in each rank.
const OWN_VARIABLES: [&str; 5] = ["IOF_RANK", "IOF_NSPACE", "IOF_NPROCS", "IOF_APPNUM", "IOF_SERVER"];

/// The words after a separator: a program with its own options.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct FurtherApp {
    #[command(flatten)]
    app: AppArgs,
}

/// Returns the apps of a command line. `first` is the first app as clap parsed it: its program
/// still ends with the words of all further apps.
pub fn apps(first: &AppArgs) -> Result<Vec<App>, Failure> {
    let mut parts = first.program.split(|word| word == SEPARATOR);
    let mut apps = vec![app(first, parts.next().unwrap_or_default())?];
    for (number, words) in (1usize..).zip(parts) {
        let no_program = || {
            Failure::usage(format!(
                "app {number} has no program: expected one after each '{SEPARATOR}'; for an argument '{SEPARATOR}', write \
                 sh -c 'PROG {SEPARATOR}'"
            ))
        };
        if words.is_empty() {
            return Err(no_program());
        }
        let FurtherApp { app: args } =
            FurtherApp::try_parse_from(words).map_err(|error| match error.kind() {
                ErrorKind::MissingRequiredArgument => no_program(),
                _ => Failure::usage(format!("app {number}: {}", in_one_line(&error))),
            })?;
        apps.push(app(&args, &args.program)?);
    }
    Ok(apps)
}

fn app(args: &AppArgs, command: &[OsString]) -> Result<App, Failure> {
    let Some((program, program_args)) = command.split_first() else {
        return Err(Failure::usage(format!(
            "app 0 has no program: expected one before the first '{SEPARATOR}'"
        )));
    };
    if program.is_empty() {
        return Err(Failure::usage(
            "no program: its name is empty, perhaps because a variable of the shell is not set",
        ));
    }
    if let Some(Variable { name, .. }) =
        args.env.iter().find(|set| set.value.is_some() && OWN_VARIABLES.iter().any(|own| set.name == *own))
    {
        return Err(Failure::Usage(format!(
            "-x {name}=VALUE has no effect, because iof sets {name} in each rank: leave it out",
            name = name.display()
        )));
    }
    // Ranks on this node inherit variables without a value, ranks on other nodes do not.
    let assignment = |Variable { name, value }: &Variable| {
        let inherited = || env::var_os(name).filter(|_| !is_launcher_variable(name));
        Some((name.clone(), value.clone().or_else(inherited)?))
    };
    for Variable { name, .. } in args.env.iter().filter(|variable| variable.value.is_none()) {
        if env::var_os(name).is_none() {
            print_message(format_args!(
                "-x {}: the variable is not set, so the ranks do not receive it",
                name.display()
            ));
        }
    }
    let mut app = App::new(program, program_args).ranks(args.nprocs);
    app.env = args.env.iter().filter_map(assignment).collect();
    app.cwd = args.wdir.clone();
    Ok(app)
}
