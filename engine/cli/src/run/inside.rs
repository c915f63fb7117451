//! `iof run --in JOB`: starts a job in a running engine, and writes its output as `iof pull` does.

use std::env;
use std::process::ExitCode;

use iof_output::PrintReport;
use iof_proto::query::key;
use iof_proto::{Channels, Found, Info, Nspace, Proc, Query, Spawn, Value};
use iof_tool::{Delivery, Pull, RequestError, Tool};

use super::plan::spec;
use crate::args::RunArgs;
use crate::commands::attach::{attach_several, pull_for};
use crate::error::{Failure, no_directory};
use crate::outputs::output::WrittenOutputs;
use crate::outputs::printers::add_report;
use crate::run::app::apps;
use crate::run::host::{ALONE, FAILURES};
use crate::terminal::message::print_message;

/// Starts a job in the engine that has the job `engine`. Returns the exit code of the new job. It ends
/// with this command, which is its spawner.
///
/// # Errors
/// The job is not started, or its output is incomplete.
pub fn run_inside(args: &RunArgs, engine: &Nspace) -> Result<ExitCode, Failure> {
    let mut apps = apps(&args.app)?;
    let here = env::current_dir().map_err(no_directory)?;
    for app in &mut apps {
        app.cwd = Some(here.join(app.cwd.take().unwrap_or_default()));
    }
    let mut spawn = Spawn::new(spec(args, apps)?);
    spawn.rename = args.nspace.is_none();
    spawn.spec.pmix_tools = None;
    // The ranks wait until their output is pulled, if those of the engine wait at all.
    spawn.spec.directives.forward = Some(Channels::OUTPUTS);
    let outputs = args.output.prepare(Some(spawn.spec.nprocs()), WrittenOutputs::All)?;
    let mut spawner = None;
    let attached = outputs.attach(|parts| {
        let tools = attach_several(&args.engine_of(engine), "iof run", parts.len().saturating_add(1))?;
        let mut tools = tools.into_iter();
        let Some(mut first) = tools.next() else { return Ok(Vec::new()) };
        let nspace = first.spawn_with(&spawn).map_err(not_started)?;
        spawn.spec.nspace = nspace.clone();
        let pulled = parts.iter().zip(tools).map(|(part, mut tool)| {
            pull_for(&mut tool, &nspace, part)?;
            Ok(Some(tool))
        });
        let pulled = pulled.collect::<Result<_, Failure>>()?;
        // One channel is enough for the end of the job, and for the job to end with this command. The
        // engine may forget a job that has ended from this pull on.
        first.pull(&Pull::new(vec![Proc::all(nspace)], Channels::STDDIAG)).map_err(Failure::running)?;
        spawner = Some(first);
        Ok(pulled)
    })?;
    let mut sum = PrintReport::default();
    attached.write()?.into_iter().try_for_each(|report| add_report(&mut sum, report?))?;
    let mut spawner = spawner.ok_or_else(|| Failure::running("the engine accepts no tools"))?;
    let code = exit_code(&mut spawner)?;
    print_lines(&mut spawner, &spawn.spec.nspace, code, args.ending.quiet);
    let code = ExitCode::from(code);
    // Lines on the gaps name the bytes.
    if sum.lost.is_empty() { Ok(code) } else { Err(Failure::running("the output is incomplete")) }
}

fn not_started(error: RequestError) -> Failure {
    match error {
        RequestError::Denied(failure) => Failure::Usage(failure.reason),
        RequestError::Lost(lost) => Failure::running(lost),
        error => Failure::usage(error),
    }
}

/// Blocks until the job of `spawner` has ended. Returns its exit code.
fn exit_code(spawner: &mut Tool) -> Result<u8, Failure> {
    while let Some(delivery) = spawner.recv().map_err(Failure::running)? {
        if let Delivery::JobEnded { exit_code, .. } = delivery {
            return Ok(exit_code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX));
        }
    }
    Err(Failure::running("lost the engine before the end of the job"))
}

/// Prints the lines about a job that has ended, which the command has that runs the engine: those about
/// failed ranks unless `is_quiet`, and the one about ranks that were alone. Other programs have none.
fn print_lines(spawner: &mut Tool, nspace: &Nspace, code: u8, is_quiet: bool) {
    let keys = [FAILURES, ALONE].into_iter().skip(usize::from(is_quiet));
    let qualifiers = vec![Info::new(key::PMIX_NSPACE, nspace.as_str())];
    let query = Query { qualifiers, ..Query::new(keys) };
    let found = spawner.queries(vec![query]).map(|answer| answer.found).unwrap_or_default();
    if found.is_empty() && code != 0 && !is_quiet {
        print_message(format_args!("job {nspace}: ended with exit code {code}"));
    }
    for Found { value, .. } in &found {
        if let Value::Text(text) = value {
            text.lines().for_each(|line| print_message(format_args!("{line}")));
        }
    }
}
