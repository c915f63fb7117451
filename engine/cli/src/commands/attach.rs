//! The search for an engine and the attachment to it, for the commands that are tools and for the
//! outputs of `iof run`.

use std::path::{self, Path, PathBuf};
use std::time::{Duration, Instant};
use std::{iter, thread};

use iof_engine::{Engine, Grant};
use iof_proto::limits::JOB_WAIT;
use iof_proto::query::{JobInfo, key};
use iof_proto::rendezvous::{ConnectError, FindError, Level, Listed, Search, SearchNames, Target, list};
use iof_proto::{Nspace, Proc, ProcInfo, Rank, StreamStats, Value};
use iof_tool::{AttachError, DirectInput, Pull, RequestError, Tool};

use crate::commands::job_watch::{JobWait, JobWatch, until_next_look};
use crate::error::Failure;
use crate::options::engine::{EngineArgs, own_directory};
use crate::outputs::output::with_job;
use crate::outputs::printers::OutputTarget;

/// The interval at which a command that waits for a job looks for it.
pub const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The options that select an engine.
pub const OPTIONS: SearchNames =
    SearchNames { pid: "--pid", nspace: "--nspace", server: "--server", directory: "--rendezvous-dir" };

/// Returns the directories in which this user's engines are looked for: the chosen one, or the default one (`None`)
/// and that of the engine that started this process.
pub fn engine_directories(chosen: Option<&Path>) -> Result<Vec<Option<PathBuf>>, Failure> {
    if let Some(missing) = chosen.filter(|directory| !directory.is_dir()) {
        return Err(Failure::Usage(format!("--rendezvous-dir {}: no such directory", missing.display())));
    }
    let own = own_directory().filter(|_| chosen.is_none());
    Ok(iter::once(chosen.map(Path::to_owned)).chain(own.map(Some)).collect())
}

/// Returns the engines in these directories.
pub fn list_engines(directories: &[Option<PathBuf>]) -> Result<Vec<Listed>, Failure> {
    let listed: Result<Vec<_>, _> = directories.iter().map(|directory| list(directory.as_deref())).collect();
    Ok(listed.map_err(|error| Failure::Usage(error.message(&OPTIONS)))?.into_iter().flatten().collect())
}

/// Attaches a tool to the engine that the options select, or to the only engine. Queries show the
/// tool as `name`.
pub fn attach(args: &EngineArgs, name: &str) -> Result<Tool, Failure> {
    find(&args.search(), name)
}

/// Attaches a tool to the engine that `search` finds.
pub fn find(search: &Search, name: &str) -> Result<Tool, Failure> {
    Tool::find(search, name).map_err(|error| failed(error, search))
}

/// Attaches a tool named `name` for one of the command's own outputs. Its registration is an
/// ordinary one, except that it may block the ranks.
pub fn attach_own(
    engine: &Engine,
    name: &str,
    nspace: &Nspace,
    part: &OutputTarget<'_>,
) -> Result<Tool, Failure> {
    let mut tool = engine.attach(name, Grant::Block).map_err(Failure::running)?;
    pull_for(&mut tool, nspace, part, false)?;
    Ok(tool)
}

/// Attaches a tool as [`attach_own`] does, for a job on other nodes, whose output passes to the tool by
/// the input that this returns.
pub fn attach_direct(
    engine: &Engine,
    name: &str,
    nspace: &Nspace,
    part: &OutputTarget<'_>,
) -> Result<(Tool, DirectInput), Failure> {
    let mut tool = engine.attach(name, Grant::Block).map_err(Failure::running)?;
    let (handler, pull) = pull_for(&mut tool, nspace, part, false)?;
    let input = tool.direct_input(handler, &pull).map_err(Failure::running)?;
    Ok((tool, input))
}

/// Pulls the streams of a job that go to `part`, with reports of its ranks if they are asked for. Returns the
/// registration and what it pulls.
pub fn pull_for(
    tool: &mut Tool,
    nspace: &Nspace,
    part: &OutputTarget<'_>,
    reports_ranks: bool,
) -> Result<(u32, Pull), Failure> {
    let ranks = with_job(part.ranks.map_or(&[Rank::WILDCARD], |ranks| &ranks.0));
    let procs = ranks.into_iter().map(|rank| Proc { nspace: nspace.clone(), rank }).collect();
    let pull = Pull { reports_ranks, ..Pull::new(procs, part.channels) };
    let granted = tool.pull(&pull).map_err(Failure::running)?;
    Ok((granted.handler, pull))
}

/// Attaches `count` tools to one engine. If none has the selected job, waits for one within `wait`, or,
/// if an engine has no job yet, up to [`JOB_WAIT`].
pub fn attach_several(
    args: &EngineArgs,
    name: &str,
    count: usize,
    wait: Option<JobWait>,
) -> Result<Vec<Tool>, Failure> {
    let (search, start) = (args.search(), Instant::now());
    let directory = match &search.target {
        Target::Server(path) => path::absolute(path).ok().and_then(|path| path.parent().map(Path::to_owned)),
        _ => search.session_directory.clone(),
    };
    let watch = wait.map(|_| JobWatch::start(vec![directory])).transpose()?;
    let has_directory = || search.session_directory.as_ref().is_none_or(|directory| directory.exists());
    loop {
        // Those before it are found.
        watch.iter().for_each(|watch| drop(watch.begun()));
        let error = match Tool::find_several(&search, name, count) {
            Ok(tools) => return Ok(tools),
            Err(error) => error,
        };
        let may_begin = match (&error, wait) {
            (error, Some(wait)) if is_missing(error) => !wait.is_over() && has_directory(),
            (AttachError::Find(FindError::NoSuchNspace { nspace, .. }), None) => {
                start.elapsed() < JOB_WAIT && may_begin(&search, nspace)
            }
            _ => false,
        };
        if !may_begin {
            return Err(failed(error, &search));
        }
        match &watch {
            Some(watch) => drop(watch.changes.recv_timeout(until_next_look(wait))),
            None => thread::sleep(POLL_INTERVAL),
        }
    }
}

/// Returns whether an engine that begins later may change the result of a search.
fn is_missing(error: &AttachError) -> bool {
    match error {
        AttachError::Find(error) => matches!(
            error,
            FindError::NoSuchNspace { .. }
                | FindError::NoSuchPid { .. }
                | FindError::NoSystem(_)
                | FindError::NotFound(_)
        ),
        AttachError::Connect(ConnectError::Refused(path)) => !path.is_dir(),
        // An engine is about to end, or begins.
        AttachError::Connect(_) | AttachError::Replaced { .. } | AttachError::Lost(_) => true,
        _ => false,
    }
}

/// Returns whether an engine has no job yet, so that it may begin `nspace`, or has begun it.
fn may_begin(search: &Search, nspace: &Nspace) -> bool {
    let engines = list(search.session_directory.as_deref()).unwrap_or_default();
    let sessions = engines.iter().filter(|engine| engine.level == Level::Session && engine.is_live);
    sessions.into_iter().any(|engine| engine.jobs.is_empty() || engine.jobs.contains(nspace))
}

pub fn failed(error: AttachError, search: &Search) -> Failure {
    match error {
        AttachError::Find(error @ FindError::NoSuchNspace { .. }) => {
            let engines = list(search.session_directory.as_deref()).unwrap_or_default();
            let jobs = engines.iter().filter(|engine| engine.is_live).flat_map(|engine| &engine.jobs);
            let keep = "iof run --keep DURATION keeps the output of a job that has ended";
            Failure::Usage(format!("{error}; {}; {keep}", listed(jobs)))
        }
        AttachError::Find(error @ (FindError::Several(_) | FindError::SameName { .. })) => {
            Failure::Choice(error.message(&OPTIONS))
        }
        AttachError::Find(FindError::NotFound(directory))
            if search.session_directory.is_some() && !directory.exists() =>
        {
            Failure::Usage(format!("--rendezvous-dir {}: no such directory", directory.display()))
        }
        AttachError::Connect(ConnectError::Refused(path)) if path.is_dir() => {
            Failure::Usage(format!("{} is a directory: expected the socket of an engine", path.display()))
        }
        AttachError::Find(error) => Failure::Usage(error.message(&OPTIONS)),
        error @ AttachError::Connect(_) => Failure::usage(error),
        error => Failure::running(error),
    }
}

/// The number of jobs that a message names.
const MAX_NAMED: usize = 16;

/// Returns a text with the names of the jobs that exist.
pub fn listed<'a>(jobs: impl Iterator<Item = &'a Nspace>) -> String {
    let mut names: Vec<&str> = jobs.map(Nspace::as_str).collect();
    names.sort_unstable();
    names.dedup();
    let more = if names.len() > MAX_NAMED { " and others" } else { "" };
    names.truncate(MAX_NAMED);
    match names.as_slice() {
        [] => "there are no jobs".into(),
        [only] => format!("the only job is {only}"),
        names => format!("the jobs are {}{more}", names.join(", ")),
    }
}

/// Returns the names of an engine's jobs, also of those that have ended.
pub fn namespaces(tool: &mut Tool) -> Result<Vec<Nspace>, Failure> {
    Ok(query_jobs(tool).map_err(Failure::running)?.into_iter().map(|job| job.nspace).collect())
}

/// Returns the jobs that the engine of `tool` knows.
pub fn query_jobs(tool: &mut Tool) -> Result<Vec<JobInfo>, RequestError> {
    query_list(tool, key::PMIX_QUERY_NAMESPACE_INFO, |value| match value {
        Value::Jobs(jobs) => jobs,
        _ => Vec::new(),
    })
}

/// Returns the processes that the engine of `tool` knows.
pub fn query_procs(tool: &mut Tool) -> Result<Vec<ProcInfo>, RequestError> {
    query_list(tool, key::PMIX_QUERY_PROC_TABLE, |value| match value {
        Value::Procs(procs) => procs,
        _ => Vec::new(),
    })
}

/// Returns the streams that the engine of `tool` has.
pub fn query_streams(tool: &mut Tool) -> Result<Vec<StreamStats>, RequestError> {
    query_list(tool, key::IOF_QUERY_STATS, |value| match value {
        Value::Streams(streams) => streams,
        _ => Vec::new(),
    })
}

/// Returns the items of all answers to a query, which `items` takes out of each.
fn query_list<T>(tool: &mut Tool, key: &str, items: fn(Value) -> Vec<T>) -> Result<Vec<T>, RequestError> {
    Ok(tool.query(&[key])?.into_iter().flat_map(|found| items(found.value)).collect())
}
