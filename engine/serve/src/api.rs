//! The lists of jobs and ranks, the page, and the description of the API.

use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use iof_proto::query::JobInfo;
use iof_proto::rendezvous::Listed;
use iof_proto::{Nspace, ProcInfo, Status, StreamStats};
use serde_json::{Value, json};

use crate::engines::EngineClient;
use crate::error::{ApiError, json_response};
use crate::query::{JobParams, number};
use crate::state::HttpServer;

/// `GET /jobs`
pub async fn jobs(State(server): State<HttpServer>) -> Result<Response, ApiError> {
    let mut jobs: Vec<Value> = Vec::new();
    for (engine, answer) in server.engines.jobs(None, None).await? {
        match answer {
            Ok(infos) => jobs.extend(infos.iter().map(|info| job_object(&engine, info))),
            Err(state) => jobs.push(json!({ "job": null, "engine": engine.pid, "state": state })),
        }
    }
    Ok(json_response(&json!({ "jobs": jobs, "allowed": server.allow })))
}

/// `GET /jobs/{job}`
pub async fn job(
    State(server): State<HttpServer>,
    Path(job): Path<Nspace>,
    Query(params): Query<JobParams>,
) -> Result<Response, ApiError> {
    let (engine, info) = server.engines.find(&job, params.engine).await?;
    let (procs, streams) = EngineClient::connect(&engine.path).await?.details(&job).await?;
    let mut object = job_object(&engine, &info);
    object["ranks"] = procs.iter().map(rank_object).collect();
    object["streams"] = streams.iter().map(stream_object).collect();
    Ok(json_response(&object))
}

fn job_object(engine: &Listed, info: &JobInfo) -> Value {
    let JobInfo { nspace, procs, status, exit_code, command, run } = info;
    // The end of a job that failed has other ones.
    let state = if *status == Status::EVENT_JOB_START { "running" } else { "ended" };
    json!({
        "job": nspace.as_str(), "engine": engine.pid, "run": format!("{run:x}"), "state": state,
        "exit_code": exit_code, "procs": procs, "command": command,
    })
}

fn rank_object(info: &ProcInfo) -> Value {
    let ProcInfo { proc, pid, host, executable, state, exit_code, .. } = info;
    json!({
        "rank": proc.rank.0, "state": state.to_string(), "exit_code": exit_code, "host": host, "pid": pid,
        "program": executable,
    })
}

fn stream_object(stats: &StreamStats) -> Value {
    let StreamStats { source, channel, logged, produced, cached, dropped, complete, missing, .. } = stats;
    json!({
        "rank": number(source.rank), "channel": channel.as_str(),
        "logged": logged, "produced": produced, "cached": cached, "dropped": dropped, "complete": complete,
        "missing": missing,
    })
}

/// Returns a file that is a part of the program.
pub async fn file(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde::de::DeserializeOwned;

    use super::*;
    use crate::query::{BytesParams, EventsParams, SignalParams, StdinParams};

    /// Returns the names of the parameters that a type has: its errors list them.
    fn parameters<T: DeserializeOwned>() -> BTreeSet<String> {
        let uri = "/?@=1".parse().unwrap();
        let error = match Query::<T>::try_from_uri(&uri) {
            Ok(_) => panic!("an unknown parameter is accepted"),
            Err(error) => error.body_text(),
        };
        let (_, expected) = error.split_once("expected").unwrap();
        expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn the_description_has_each_path_method_and_parameter_that_the_router_has_and_no_other() {
        let description: Value = serde_json::from_str(include_str!("../openapi.json")).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let mut described = BTreeSet::new();
        for (path, methods) in description["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                described.insert((path.clone(), method.clone()));
                let listed = operation["parameters"].as_array().cloned().unwrap_or_default();
                let named = |place: &str| -> BTreeSet<String> {
                    listed.iter().filter(|one| one["in"] == place).map(|one| text(&one["name"])).collect()
                };
                let known = match path.as_str() {
                    "/jobs/{job}" => parameters::<JobParams>(),
                    "/jobs/{job}/events" => parameters::<EventsParams>(),
                    "/jobs/{job}/ranks/{rank}/{channel}" => parameters::<BytesParams>(),
                    "/jobs/{job}/stdin" => parameters::<StdinParams>(),
                    "/jobs/{job}/signal" => parameters::<SignalParams>(),
                    _ => BTreeSet::new(),
                };
                assert_eq!(named("query"), known, "{path}");
                let in_path = path.split(['{', '}']).skip(1).step_by(2).map(str::to_owned).collect();
                assert_eq!(named("path"), in_path, "{path}");
            }
        }
        let routes =
            include_str!("server.rs").lines().filter_map(|line| line.trim().strip_prefix(".route(\""));
        let routed: BTreeSet<(String, String)> = routes
            .map(|route| {
                let (path, rest) = route.split_once("\", ").unwrap();
                (path.to_owned(), rest.split('(').next().unwrap().to_owned())
            })
            .collect();
        assert_eq!(described, routed);
    }

    #[test]
    fn the_page_is_smaller_than_60_kilobytes() {
        let files = [
            include_str!("../page/index.html"),
            include_str!("../page/page.css"),
            include_str!("../page/page.js"),
            include_str!("../page/store.js"),
        ];
        assert!(files.iter().map(|file| file.len()).sum::<usize>() < 60_000);
    }
}
