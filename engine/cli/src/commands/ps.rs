//! `iof ps`: lists the engines of this node and their jobs.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use crossbeam::channel::{Receiver, bounded};
use iof_proto::rendezvous::{Level, Listed};
use iof_proto::{Nspace, ProcInfo, ProcState, Status};
use iof_tool::{AttachError, RequestError, Tool};
use nix::unistd::{Uid, User};
use serde_json::{Value, json};

use crate::commands::attach::{engine_directories, list_engines, query_jobs, query_procs};
use crate::error::Failure;
use crate::processes::threads::start_thread;
use crate::terminal::print::{json_lines, table, write};

/// The time that one engine may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// The number of engines that are asked at the same time.
const ASKED_AT_ONCE: usize = 64;

const HEAD: [&str; 9] = ["PID", "USER", "AGE", "JOB", "STATE", "RANKS", "RUNNING", "ENDED", "SOCKET"];

#[derive(Args)]
#[command(
    after_help = "One line for each job, or for an engine without jobs. AGE is the time since the engine's start. STATE \
                  is running, ended (all ranks have exited), idle (no job), stale (the engine was killed), no answer \
                  (not within 2 seconds: it may be stopped) or refused (it belongs to another user, does not \
                  accept this one, or has another version of the protocol)."
)]
pub struct PsArgs {
    /// Look for engines in this directory
    #[arg(long, value_name = "DIR")]
    rendezvous_dir: Option<PathBuf>,

    /// Print JSON
    ///
    /// An array with an object for each line of the table. Unknown values are null.
    #[arg(long)]
    json: bool,
}

/// The jobs of an engine: whether each has ended, and its ranks.
type Jobs = BTreeMap<Nspace, (bool, Vec<ProcInfo>)>;

/// The reason why an engine's jobs are unknown, as a state.
type NoJobs = &'static str;

/// The answer of an engine: its pid, if it is known, and its jobs.
type Answer = (Option<u32>, Result<Jobs, NoJobs>);

/// Prints the engines and their jobs. An engine that does not answer delays this by at most
/// [`ANSWER_LIMIT`].
pub fn ps(args: &PsArgs) -> Result<(), Failure> {
    let engines = list_engines(&engine_directories(args.rendezvous_dir.as_deref())?)?;
    let now = SystemTime::now();
    let mut rows = Vec::new();
    for engines in engines.chunks(ASKED_AT_ONCE) {
        let answers: Vec<_> = engines.iter().map(ask).collect::<Result<_, _>>()?;
        let deadline = Instant::now() + ANSWER_LIMIT;
        for (engine, answer) in engines.iter().zip(answers) {
            let answer = answer.recv_deadline(deadline).unwrap_or((engine.pid, Err("no answer")));
            rows.extend(engine_rows(engine, answer, now));
        }
    }
    let text = match args.json {
        true => json_lines(&Value::Array(rows)),
        false => table(&HEAD, rows.iter().map(cells)),
    };
    write(io::stdout(), text.as_bytes())
}

/// Asks an engine for its pid and its jobs, in a thread that ends with the process at the latest.
fn ask(engine: &Listed) -> Result<Receiver<Answer>, Failure> {
    let (sender, receiver) = bounded(1);
    let Listed { path, pid, is_live, .. } = engine.clone();
    let body = move || {
        let answer = if is_live { query(&path) } else { Err("stale") };
        let answer = match answer {
            Ok((pid, jobs)) => (Some(pid), Ok(jobs)),
            Err(state) => (pid, Err(state)),
        };
        // The receiver is gone after the time limit.
        let _ = sender.send(answer);
    };
    start_thread("iof-ps", body)?;
    Ok(receiver)
}

fn query(path: &std::path::Path) -> Result<(u32, Jobs), NoJobs> {
    let mut tool = Tool::connect(path, "iof ps").map_err(|error| match error {
        AttachError::Refused { .. } | AttachError::Foreign { .. } => "refused",
        AttachError::Connect(_) => "stale",
        _ => "no answer",
    })?;
    let state = |error| match error {
        RequestError::Denied(_) => "refused",
        _ => "stale",
    };
    let infos = query_jobs(&mut tool).map_err(state)?;
    let mut jobs: Jobs = infos
        .into_iter()
        .map(|job| (job.nspace, (job.status != Status::EVENT_JOB_START, Vec::new())))
        .collect();
    for proc in query_procs(&mut tool).map_err(state)? {
        jobs.entry(proc.proc.nspace.clone()).or_default().1.push(proc);
    }
    Ok((tool.engine_pid(), jobs))
}

/// Returns an object for each job of an engine, or one for an engine without jobs.
fn engine_rows(engine: &Listed, (pid, jobs): Answer, now: SystemTime) -> Vec<Value> {
    let user = User::from_uid(Uid::from_raw(engine.uid)).ok().flatten();
    let user = user.map_or_else(|| engine.uid.to_string(), |user| user.name);
    let age = engine.since.and_then(|since| now.duration_since(since).ok());
    let level = match engine.level {
        Level::Session => "session",
        Level::Agent | Level::Link => "agent",
        Level::System => "system",
    };
    let row = |job: Option<&Nspace>, state: &str, counts: [Option<usize>; 3]| {
        let [ranks, running, ended] = counts;
        json!({
            "pid": pid, "level": level, "user": user, "age_seconds": age.map(|age| age.as_secs()),
            "job": job.map(Nspace::as_str), "state": state, "ranks": ranks, "running": running,
            "ended": ended, "socket": engine.path.display().to_string(),
        })
    };
    match jobs {
        Ok(jobs) if jobs.is_empty() => vec![row(None, "idle", [None; 3])],
        Ok(jobs) => jobs.iter().map(|(nspace, procs)| job_row(nspace, procs, row)).collect(),
        Err(state) if engine.jobs.is_empty() => vec![row(None, state, [None; 3])],
        Err(state) => engine.jobs.iter().map(|job| row(Some(job), state, [None; 3])).collect(),
    }
}

fn job_row(
    nspace: &Nspace,
    (has_ended, procs): &(bool, Vec<ProcInfo>),
    row: impl Fn(Option<&Nspace>, &str, [Option<usize>; 3]) -> Value,
) -> Value {
    let count = |wanted: &[ProcState]| procs.iter().filter(|proc| wanted.contains(&proc.state)).count();
    let running = count(&[ProcState::Running, ProcState::Launching, ProcState::Unknown]);
    let ended = procs.len().saturating_sub(running);
    let state = match running {
        // The name of an engine that waits for jobs.
        0 if procs.is_empty() && *has_ended => "idle",
        0 if !procs.is_empty() => "ended",
        _ => "running",
    };
    row(Some(nspace), state, [procs.len(), running, ended].map(Some))
}

/// Returns the cells of a line of the table.
fn cells(row: &Value) -> Vec<String> {
    let number = |key: &str| row.get(key).and_then(Value::as_u64);
    let text = |key: &str| row.get(key).and_then(Value::as_str).unwrap_or("-").to_owned();
    let count = |key: &str| number(key).map_or_else(|| "-".into(), |count| count.to_string());
    let pid = match (number("pid"), text("level").as_str()) {
        (Some(pid), "session") => pid.to_string(),
        (Some(pid), level) => format!("{pid} ({level})"),
        (None, _) => "system".into(),
    };
    let age = number("age_seconds").map_or_else(|| "-".into(), |age| short(Duration::from_secs(age)));
    let counts = ["ranks", "running", "ended"].map(count);
    let head = [pid, text("user"), age, text("job"), text("state")];
    head.into_iter().chain(counts).chain([text("socket")]).collect()
}

/// Formats a time in its two largest units.
fn short(age: Duration) -> String {
    let seconds = age.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{:02}s", seconds % 60),
        3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_its_two_largest_units() {
        let ages = [0, 59, 60, 3599, 3600, 86_399, 90_000].map(|seconds| short(Duration::from_secs(seconds)));
        assert_eq!(ages, ["0s", "59s", "1m00s", "59m59s", "1h00m", "23h59m", "1d01h"]);
    }
}
