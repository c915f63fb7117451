//! `iof query`: prints the answers of a running engine and its host as tables or JSON.

use std::collections::BTreeSet;
use std::io;

use clap::Args;
use iof_engine::log_channel_name;
use iof_proto::attribute::{self, Attribute, Place, ValueType};
use iof_proto::names::sanitize;
use iof_proto::query::key;
use iof_proto::{
    Answer, Attributes, Found, Info, InfoValue, JobInfo, Nspace, Proc, ProcInfo, Query, Rank, Status,
    StreamStats, Value,
};
use iof_tool::{RequestError, Tool};
use serde_json::json;

use crate::commands::attach::{attach, query_procs};
use crate::commands::prometheus;
use crate::error::Failure;
use crate::options::engine::EngineArgs;
use crate::options::similar::closest;
use crate::options::values::{Named, Ranks, ranks};
use crate::terminal::print::{json_lines, table, write};

/// The keys with short names, which are listed first.
const SHORT_NAMES: [(&str, &str); 3] = [
    ("namespaces", key::PMIX_QUERY_NAMESPACES),
    ("procs", key::PMIX_QUERY_PROC_TABLE),
    ("stats", key::IOF_QUERY_STATS),
];

#[derive(Args)]
#[command(
    after_help = format!("Keys: namespaces (the names of the running jobs), procs (the process table), stats (counters and readers of \
                  each stream); or an attribute: {}. PMIX_QUERY_ may precede \
                  the name of an attribute. The attribute's string, such as pmix.qry.jst, is accepted, too. The \
                  launcher that embeds the engine may support further keys.\n\n\
                  Columns of stats, in bytes: PRODUCED, read from the rank; CACHED, in the cache; DROPPED, dropped \
                  on arrival because the cache was full; LAG, not read yet by that reader. GEN is the number of the \
                  stream's ring, from 0; STATE is open or, after the last byte, complete.",
                  attribute::at(Place::Query).map(long_name).collect::<Vec<_>>().join(", "))
)]
pub struct QueryArgs {
    /// Keys to query
    #[arg(value_name = "KEY", required = true, value_parser = KEY, hide_possible_values = true)]
    keys: Vec<String>,

    /// Limit the answer to these ranks, such as 0,3-5
    #[arg(long, value_name = "LIST|all", value_parser = ranks, allow_negative_numbers = true)]
    rank: Option<Ranks>,

    /// Add a qualifier, such as pmix.alloc.queue=night
    ///
    /// A qualifier narrows the query. KEY=TEXT sets a text, KEY alone sets a flag. May be repeated.
    #[arg(long = "qualifier", value_name = "KEY=TEXT", value_parser = parse_qualifier)]
    qualifiers: Vec<Info>,

    /// Print the whole answer as JSON
    ///
    /// One object with the status and an array of results, each with its key and value.
    #[arg(long)]
    json: bool,

    /// Print metrics for Prometheus
    ///
    /// The only FORMAT is prometheus: a page in the text format of Prometheus, for stats only.
    #[arg(long, value_name = "FORMAT", value_parser = ["prometheus"], conflicts_with = "json")]
    #[arg(hide_possible_values = true)]
    output: Option<String>,

    #[command(flatten)]
    engine: EngineArgs,
}

/// Sends the query and prints the answer.
pub fn query(args: &QueryArgs) -> Result<(), Failure> {
    if args.output.is_some() && args.keys.iter().any(|key| key != key::IOF_QUERY_STATS) {
        return Err(Failure::usage(
            "--output prometheus has the counters of streams only: query stats alone",
        ));
    }
    let mut tool = attach(&args.engine, "iof query")?;
    let nspace = args.engine.nspace.iter().map(|nspace| Info::required(key::PMIX_NSPACE, nspace.as_str()));
    let ranks = args.rank.iter().flat_map(|ranks| &ranks.0).filter(|rank| **rank != Rank::WILDCARD);
    let ranks = ranks.map(|rank| Info::required(key::PMIX_RANK, rank.0));
    let qualifiers = nspace.chain(ranks).chain(args.qualifiers.iter().cloned()).collect();
    let query = Query { keys: args.keys.clone(), qualifiers };
    let (answer, denied) = match tool.queries(vec![query]) {
        Ok(answer) => (answer, None),
        Err(RequestError::Denied(failure)) => {
            (Answer { status: failure.status, found: Vec::new() }, Some(failure))
        }
        Err(RequestError::Unsendable(error)) => return Err(Failure::usage(error)),
        Err(error) => return Err(Failure::running(error)),
    };
    if !args.json && (denied.is_some() || answer.status != Status::SUCCESS) {
        check_ranks(&mut tool, args.rank.as_ref(), args.engine.nspace.as_ref())?;
    }
    let text = match args.output {
        Some(_) => prometheus::page(&answer.found),
        None if args.json => json_text(&answer),
        None => table_text(&args.keys, &answer.found),
    };
    write(io::stdout(), text.as_bytes())?;
    let Answer { status, found } = answer;
    match denied {
        Some(failure) if status == Status::ERR_BAD_PARAM => Err(Failure::usage(failure.reason)),
        Some(failure) => Err(Failure::running(failure)),
        None if status == Status::SUCCESS => Ok(()),
        None => {
            let missing = args.keys.iter().filter(|key| found.iter().all(|result| result.key != **key));
            let missing: Vec<&str> = missing.map(String::as_str).collect();
            Err(Failure::running(format!("no answer for {} ({status})", missing.join(", "))))
        }
    }
}

fn parse_qualifier(text: &str) -> Result<Info, String> {
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key, InfoValue::Text(value.to_owned())),
        None => (text, InfoValue::Bool(true)),
    };
    if !key.contains('.') {
        return Err(format!(
            "invalid qualifier '{key}': expected a key with a dot, such as pmix.alloc.queue=night"
        ));
    }
    // Required: a query about one queue must not be answered for all queues.
    Ok(Info { key: key.to_owned(), value, required: true })
}

/// A parser of keys, which accepts any key with a dot as well as the names.
const KEY: Named<String> = Named { parse: parse_key, names: || names().collect() };

fn parse_key(text: &str) -> Result<String, String> {
    if text.contains('.') {
        return Ok(text.to_owned());
    }
    let name = text.to_ascii_uppercase().replace('-', "_");
    let name = name.strip_prefix("PMIX_QUERY_").unwrap_or(&name);
    let short = SHORT_NAMES.iter().find(|(short, _)| *short == text).map(|(_, key)| *key);
    let long = || attribute::at(Place::Query).find(|row| long_name(row) == name).map(|row| row.key);
    short.or_else(long).map(str::to_owned).ok_or_else(|| match closest_key(text, name) {
        Some(meant) => format!("invalid key '{text}': did you mean '{meant}'?"),
        None => {
            let names: Vec<&str> = names().collect();
            format!(
                "invalid key '{text}': expected {}, or a key with a dot such as pmix.qry.ns",
                names.join(", ")
            )
        }
    })
}

/// Returns the named key that `text` may stand for. `name` is `text` in the form of the long names.
fn closest_key(text: &str, name: &str) -> Option<&'static str> {
    closest(text, names()).or_else(|| closest(name, attribute::at(Place::Query).map(long_name)))
}

/// Returns the names of all keys: the short name of a key that has one, or else its long name.
fn names() -> impl Iterator<Item = &'static str> {
    let has_short = |row: &Attribute| SHORT_NAMES.iter().any(|(_, key)| *key == row.key);
    let others = attribute::at(Place::Query).filter(move |row| !has_short(row));
    SHORT_NAMES.iter().map(|(short, _)| *short).chain(others.map(long_name))
}

/// Returns the name of a key without `PMIX_QUERY_`, such as `PROC_TABLE`.
fn long_name(row: &Attribute) -> &'static str {
    row.name.trim_start_matches("PMIX_QUERY_").trim_start_matches("IOF_QUERY_")
}

/// Returns `true` if the text value of `key` is a comma-separated list.
fn is_list(key: &str) -> bool {
    attribute::find(key).is_some_and(|row| row.types == [ValueType::Names])
}

/// Returns the entries of a list. Channels have the names that `iof log` accepts.
fn entries(key: &str, list: &str) -> impl Iterator<Item = String> {
    let is_channel = key == key::PMIX_QUERY_LOG_CHANNELS;
    let name = move |name: &str| if is_channel { log_channel_name(name) } else { name.to_owned() };
    list.split(',').filter(|name| !name.is_empty()).map(name)
}

fn json_text(Answer { status, found }: &Answer) -> String {
    let result = |Found { key, value, .. }: &Found| json!({"key": key, "value": as_json(key, value)});
    let results: Vec<serde_json::Value> = found.iter().map(result).collect();
    json_lines(&json!({"status": status_json(*status), "results": results}))
}

fn table_text(keys: &[String], found: &[Found]) -> String {
    let one = keys.iter().collect::<BTreeSet<_>>().len() == 1;
    let tables = found.iter().map(|Found { key, value, .. }| {
        let table = as_table(key, value);
        if one { table } else { format!("{}:\n{table}", sanitize(key)) }
    });
    tables.collect::<Vec<_>>().join("\n")
}

fn as_json(key: &str, value: &Value) -> serde_json::Value {
    match value {
        Value::Text(names) if is_list(key) => entries(key, names).collect(),
        Value::Text(text) => json!(text),
        Value::Status(status) => job_status_json(*status),
        Value::Procs(procs) => procs.iter().map(proc_json).collect(),
        Value::Jobs(jobs) => jobs.iter().map(job_json).collect(),
        Value::Attributes(all) => all
            .iter()
            .map(|attributes| json!({"function": attributes.function, "attributes": attributes.keys}))
            .collect(),
        Value::Infos(infos) => {
            infos.iter().map(|info| json!({"key": info.key, "value": info_json(&info.value)})).collect()
        }
        Value::Streams(streams) => streams.iter().map(stream_json).collect(),
    }
}

fn status_json(status: Status) -> serde_json::Value {
    json!({"code": status.0, "name": status.name()})
}

/// Returns the status of a job as JSON, with the word for it in `state`.
fn job_status_json(status: Status) -> serde_json::Value {
    json!({"code": status.0, "name": status.name(), "state": state(status)})
}

/// Returns a rank as JSON: `null` for the undefined rank, `"*"` for all ranks.
fn rank_json(rank: Rank) -> serde_json::Value {
    match rank {
        Rank::UNDEF => json!(null),
        Rank::WILDCARD => json!("*"),
        Rank(number) => json!(number),
    }
}

fn job_json(job: &JobInfo) -> serde_json::Value {
    json!({
        "nspace": job.nspace.as_str(), "procs": job.procs, "status": job_status_json(job.status),
        "exit_code": job.exit_code, "command": job.command,
    })
}

fn info_json(value: &InfoValue) -> serde_json::Value {
    match value {
        InfoValue::Bool(flag) => json!(flag),
        InfoValue::Number(number) => json!(number),
        InfoValue::Text(text) => json!(text),
        InfoValue::Proc(proc) => json!({"nspace": proc.nspace.as_str(), "rank": rank_json(proc.rank)}),
    }
}

fn proc_json(info: &ProcInfo) -> serde_json::Value {
    json!({
        "nspace": info.proc.nspace.as_str(), "rank": rank_json(info.proc.rank), "pid": info.pid, "host": info.host,
        "executable": info.executable, "state": info.state.to_string(), "exit_code": info.exit_code,
    })
}

pub fn stream_json(stream: &StreamStats) -> serde_json::Value {
    let readers = stream.readers.iter().map(
        |reader| json!({"tool": reader.tool, "pid": reader.pid, "handler": reader.handler, "lag": reader.lag}),
    );
    json!({
        "nspace": stream.source.nspace.as_str(), "rank": rank_json(stream.source.rank),
        "channel": stream.channel.to_string(), "logged": stream.logged, "produced": stream.produced, "cached": stream.cached,
        "dropped": stream.dropped, "generation": stream.generation, "complete": stream.complete,
        "missing": stream.missing, "readers": readers.collect::<Vec<_>>(),
    })
}

fn as_table(key: &str, value: &Value) -> String {
    match value {
        Value::Text(names) if is_list(key) => {
            entries(key, names).map(|name| format!("{}\n", sanitize(&name))).collect()
        }
        Value::Text(text) => format!("{}\n", sanitize(text)),
        Value::Status(status) => format!("{}\n", status_text(*status)),
        Value::Procs(procs) => {
            let head = ["NSPACE", "RANK", "PID", "HOST", "STATE", "EXIT", "EXECUTABLE"];
            table(&head, procs.iter().map(proc_row))
        }
        Value::Jobs(jobs) => {
            table(&["NSPACE", "PROCS", "STATUS", "EXIT", "COMMAND"], jobs.iter().map(job_row))
        }
        Value::Attributes(all) => {
            let row = |attributes: &Attributes| vec![attributes.function.clone(), attributes.keys.join(",")];
            table(&["FUNCTION", "ATTRIBUTES"], all.iter().map(row))
        }
        Value::Infos(infos) => {
            let row = |info: &Info| vec![info.key.clone(), info_text(&info.value)];
            table(&["KEY", "VALUE"], infos.iter().map(row))
        }
        Value::Streams(streams) => {
            let head = [
                "NSPACE",
                "RANK",
                "CHANNEL",
                "PRODUCED",
                "CACHED",
                "DROPPED",
                "GEN",
                "STATE",
                "READERS (LAG)",
            ];
            table(&head, streams.iter().map(stream_row))
        }
    }
}

/// Checks that the selected jobs have the selected ranks. Before the first job, every rank passes.
pub fn check_ranks(tool: &mut Tool, ranks: Option<&Ranks>, job: Option<&Nspace>) -> Result<(), Failure> {
    if ranks.is_none_or(|ranks| ranks.0 == [Rank::WILDCARD]) {
        return Ok(());
    }
    let procs = query_procs(tool).map_err(Failure::running)?;
    have_ranks(procs.iter().map(|info| &info.proc), ranks, job)
}

/// Checks that the processes that belong to the selected jobs have the selected ranks.
pub fn have_ranks<'a>(
    procs: impl Iterator<Item = &'a Proc>,
    ranks: Option<&Ranks>,
    job: Option<&Nspace>,
) -> Result<(), Failure> {
    let Some(Ranks(wanted)) = ranks.filter(|ranks| ranks.0 != [Rank::WILDCARD]) else {
        return Ok(());
    };
    let is_selected = |proc: &&Proc| job.is_none_or(|job| *job == proc.nspace);
    let ranks: BTreeSet<Rank> = procs.filter(is_selected).map(|proc| proc.rank).collect();
    match (wanted.iter().find(|rank| !ranks.contains(rank)), ranks.last()) {
        (Some(missing), Some(last)) => {
            let job = job.map(|job| format!(" of {job}")).unwrap_or_default();
            Err(Failure::Usage(format!("rank {missing} does not exist: the last rank{job} is {last}")))
        }
        _ => Ok(()),
    }
}

/// Returns the word for the status of a job: PMIx has only the names of the events that led to it.
fn state(status: Status) -> Option<&'static str> {
    Some(match status {
        Status::EVENT_JOB_START => "running",
        Status::EVENT_JOB_END => "terminated",
        Status::ERR_JOB_ABORTED_BY_SIG => "killed",
        Status::ERR_JOB_NON_ZERO_TERM => "failed",
        _ => return None,
    })
}

/// Formats a status of a job, such as `running (PMIX_EVENT_JOB_START, -191)`.
fn status_text(status: Status) -> String {
    match (state(status), status.name()) {
        (Some(state), Some(name)) => format!("{state} ({name}, {})", status.0),
        _ => status.to_string(),
    }
}

fn job_row(job: &JobInfo) -> Vec<String> {
    vec![
        job.nspace.to_string(),
        job.procs.to_string(),
        status_text(job.status),
        code(job.exit_code),
        job.command.clone(),
    ]
}

/// Formats an exit code, or "-" if there is none.
fn code(code: Option<i32>) -> String {
    code.map_or_else(|| "-".into(), |code| code.to_string())
}

fn info_text(value: &InfoValue) -> String {
    match value {
        InfoValue::Bool(flag) => flag.to_string(),
        InfoValue::Number(number) => number.to_string(),
        InfoValue::Text(text) => text.clone(),
        InfoValue::Proc(proc) => proc.to_string(),
    }
}

fn proc_row(info: &ProcInfo) -> Vec<String> {
    vec![
        info.proc.nspace.to_string(),
        info.proc.rank.to_string(),
        info.pid.to_string(),
        info.host.clone(),
        info.state.to_string(),
        code(info.exit_code),
        info.executable.clone(),
    ]
}

fn stream_row(stream: &StreamStats) -> Vec<String> {
    let readers: Vec<String> = stream
        .readers
        .iter()
        .map(|reader| format!("{}:{} ({})", reader.tool, reader.pid, reader.lag))
        .collect();
    vec![
        stream.source.nspace.to_string(),
        stream.source.rank.to_string(),
        if stream.logged { format!("{} (log)", stream.channel) } else { stream.channel.to_string() },
        stream.produced.to_string(),
        stream.cached.to_string(),
        stream.dropped.to_string(),
        stream.generation.to_string(),
        match (stream.complete, stream.missing) {
            (_, Some(missing)) => format!("broken ({missing} missing)"),
            (true, None) => "complete".into(),
            (false, None) => "open".into(),
        },
        readers.join(", "),
    ]
}
