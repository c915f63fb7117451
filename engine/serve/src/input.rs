//! Stdin and signals, if `--allow` permits them.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Path, Query, State};
use axum::response::Response;
use iof_proto::directive::key;
use iof_proto::{Info, Nspace, Proc, PushReport};
use iof_tool::{LostError, Push, PushError, Reply, RequestError};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::engines::{EngineClient, connect};
use crate::error::{ApiError, json_response};
use crate::limits::{ANSWER_LIMIT, BODY_LIMIT, MAX_STDIN};
use crate::query::{SignalParams, StdinParams, ranks};
use crate::state::{Allowed, HttpServer};

/// `POST /jobs/{job}/stdin`
pub async fn stdin(
    State(server): State<HttpServer>,
    Path(job): Path<Nspace>,
    Query(params): Query<StdinParams>,
    body: Body,
) -> Result<Response, ApiError> {
    server.permit(Allowed::Stdin)?;
    let slot = Arc::clone(&server.pushes).try_acquire_owned();
    let slot = slot.map_err(|_| ApiError::new(503, "other pushes wait for their ranks: try again later"))?;
    let late = |_| ApiError::new(408, "the bytes did not arrive in time");
    let bytes = timeout(BODY_LIMIT, to_bytes(body, MAX_STDIN)).await.map_err(late)?;
    let bytes = bytes.map_err(|error| ApiError::new(413, error))?;
    let (engine, _) = server.engines.find(&job, params.engine).await?;
    let mut tool = connect(&engine.path).await?;
    let directives = vec![Info::new(key::PMIX_IOF_COMPLETE, params.complete)];
    let push = Push { directives, ..Push::new(procs(&job, params.ranks.as_deref())?) };
    // Waits for ranks that do not read, until their job ends.
    let pushed = spawn_blocking(move || {
        let _slot = slot;
        tool.push(&push, &bytes, |_| {})
    });
    let late = |_| {
        let reason = "ranks do not read their stdin: the push goes on until they do, or until the job ends";
        ApiError::new(504, reason)
    };
    match timeout(ANSWER_LIMIT, pushed).await.map_err(late)?.map_err(ApiError::failed)? {
        Ok(PushReport { bytes, complete, partial }) if !partial.is_empty() => {
            Err(ApiError::partial(&json!({ "bytes": bytes, "complete": complete, "partial": partial })))
        }
        Ok(PushReport { bytes, complete, partial }) => {
            Ok(json_response(&json!({ "bytes": bytes, "complete": complete, "partial": partial })))
        }
        Err(PushError::Request(error)) => Err(error.into()),
        Err(error) => Err(ApiError::failed(error)),
    }
}

/// `POST /jobs/{job}/signal`
pub async fn signal(
    State(server): State<HttpServer>,
    Path(job): Path<Nspace>,
    Query(params): Query<SignalParams>,
) -> Result<Response, ApiError> {
    server.permit(Allowed::Signals)?;
    let name = params.signal.trim_start_matches("SIG");
    let unknown = |_| ApiError::bad(format!("unknown signal '{name}': expected a name such as TERM"));
    let signal: Signal = format!("SIG{name}").parse().map_err(unknown)?;
    let (engine, _) = server.engines.find(&job, params.engine).await?;
    let procs = procs(&job, params.ranks.as_deref())?;
    let mut client = EngineClient::connect(&engine.path).await?;
    let Reply::Signalled(count) = client.request(|tool| tool.submit_signal(&procs, signal as i32)).await?
    else {
        return Err(RequestError::from(LostError::Closed).into());
    };
    match count.map_err(RequestError::Denied)? {
        0 => Err(ApiError::new(409, format!("no selected rank of job {job} is running"))),
        count => Ok(json_response(&json!({ "processes": count }))),
    }
}

fn procs(job: &Nspace, list: Option<&str>) -> Result<Vec<Proc>, ApiError> {
    let ranks = ranks(list).map_err(ApiError::bad)?;
    Ok(ranks.into_iter().map(|rank| Proc { nspace: job.clone(), rank }).collect())
}
