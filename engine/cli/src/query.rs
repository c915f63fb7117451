//! `iof query`: what a running engine knows, as a table or as JSON.

use std::io;

use iof_proto::message::query;
use iof_proto::{Found, ProcInfo, StreamStats, Value};
use serde_json::json;

use crate::Failure;
use crate::args::{QueryArgs, What};
use crate::attach::{Name, attach};
use crate::print::{table, write};

/// Asks and prints.
pub fn query(args: &QueryArgs) -> Result<(), Failure> {
    let key = match args.what {
        What::Namespaces => query::PMIX_QUERY_NAMESPACES,
        What::Procs => query::PMIX_QUERY_PROC_TABLE,
        What::Stats => query::IOF_STATS,
    };
    let mut tool = attach(&args.engine, &Name::Query)?;
    let found = tool.query(&[key]).map_err(Failure::running)?;
    let mut text = String::new();
    for Found { value, .. } in found {
        if args.json {
            text.push_str(&format!("{:#}\n", as_json(&value)));
        } else {
            text.push_str(&as_table(&value));
        }
    }
    write(io::stdout(), text.as_bytes())
}

fn as_json(value: &Value) -> serde_json::Value {
    match value {
        Value::Text(names) => names.split(',').filter(|name| !name.is_empty()).collect(),
        Value::Procs(procs) => procs.iter().map(proc_json).collect(),
        Value::Streams(streams) => streams.iter().map(stream_json).collect(),
    }
}

fn proc_json(info: &ProcInfo) -> serde_json::Value {
    json!({
        "nspace": info.proc.nspace.as_str(), "rank": info.proc.rank.0, "pid": info.pid, "host": info.host,
        "executable": info.executable, "state": info.state.to_string(), "exit_code": info.exit_code,
    })
}

fn stream_json(stream: &StreamStats) -> serde_json::Value {
    let readers = stream.readers.iter().map(
        |reader| json!({"tool": reader.tool, "pid": reader.pid, "handler": reader.handler, "lag": reader.lag}),
    );
    json!({
        "nspace": stream.source.nspace.as_str(), "rank": stream.source.rank.0,
        "channel": stream.channel.to_string(), "produced": stream.produced, "cached": stream.cached,
        "dropped": stream.dropped, "generation": stream.generation, "complete": stream.complete,
        "readers": readers.collect::<Vec<_>>(),
    })
}

fn as_table(value: &Value) -> String {
    match value {
        Value::Text(names) => {
            names.split(',').filter(|name| !name.is_empty()).map(|n| format!("{n}\n")).collect()
        }
        Value::Procs(procs) => {
            let head = ["NSPACE", "RANK", "PID", "HOST", "STATE", "EXIT", "EXECUTABLE"];
            table(&head, procs.iter().map(proc_row))
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

fn proc_row(info: &ProcInfo) -> Vec<String> {
    vec![
        info.proc.nspace.to_string(),
        info.proc.rank.to_string(),
        info.pid.to_string(),
        info.host.clone(),
        info.state.to_string(),
        info.exit_code.map_or_else(|| "-".into(), |code| code.to_string()),
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
        stream.channel.to_string(),
        stream.produced.to_string(),
        stream.cached.to_string(),
        stream.dropped.to_string(),
        stream.generation.to_string(),
        if stream.complete { "complete" } else { "open" }.into(),
        readers.join(", "),
    ]
}
