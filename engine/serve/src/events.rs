//! The events of a job's streams, as server-sent events.

use std::fmt::Write as _;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::str;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use futures_core::Stream;
use iof_proto::query::JobInfo;
use iof_proto::rendezvous::Listed;
use iof_proto::{Missed, Nspace, Position, StreamStats};
use serde_json::json;
use tokio::time::{Sleep, sleep};

use crate::engines::EngineClient;
use crate::error::ApiError;
use crate::follow::{Item, Selection, StreamFollower};
use crate::limits::{KEEP_ALIVE, MAX_ID_STREAMS};
use crate::query::{EventsParams, Positions, StreamId, channels, number, position, ranks};
use crate::state::HttpServer;

/// `GET /jobs/{job}/events`
pub async fn events(
    State(server): State<HttpServer>,
    Path(job): Path<Nspace>,
    Query(params): Query<EventsParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let EventsParams { engine, ranks: list, channels: names, tail, since } = params;
    let from = position(tail, since.map(Position::Time)).map_err(ApiError::bad)?;
    let last = headers.get("last-event-id").map(|id| Positions::parse(id.to_str().unwrap_or_default()));
    let last = last.transpose().map_err(ApiError::bad)?;
    if last.as_ref().is_some_and(|last| last.is_over) {
        // A browser does not connect again then.
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let selection = Selection {
        ranks: ranks(list.as_deref()).map_err(ApiError::bad)?,
        channels: channels(names.as_deref()).map_err(ApiError::bad)?,
        from: if last.is_some() { Position::Oldest } else { from },
    };
    let slot = server.follower_slot()?;
    let found = server.engines.find(&job, engine).await?;
    let mut follower = StreamFollower::start(slot, &found, selection).await?;
    if let Some(last) = last {
        if last.run != follower.run {
            return Err(ApiError::new(410, "the run of Last-Event-ID is over: drop it"));
        }
        check(&last, &found).await?;
        follower.positions = last.offsets;
    }
    let events = Events { follower, idle: None, is_over: false };
    Ok(([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response())
}

/// Refuses positions behind the ends of streams: what they skip has never existed.
async fn check(last: &Positions, (listed, info): &(Listed, JobInfo)) -> Result<(), ApiError> {
    let (_, streams) = EngineClient::connect(&listed.path).await?.details(&info.nspace).await?;
    for StreamStats { source, channel, logged, produced, .. } in streams.iter().filter(|stats| stats.complete)
    {
        let stream = StreamId { rank: source.rank, channel: *channel, logged: *logged };
        if let Some(offset) = last.offsets.get(&stream).filter(|offset| *offset > produced) {
            let (rank, end) = (source.rank, format!("has ended at byte {produced}"));
            return Err(ApiError::new(
                416,
                format!("the {channel} of rank {rank} {end}, and Last-Event-ID is at {offset}"),
            ));
        }
    }
    Ok(())
}

/// The text of the events. Ends behind the end of the job, and with an error if the engine is lost.
struct Events {
    follower: StreamFollower,
    /// The end of the time without an event.
    idle: Option<Pin<Box<Sleep>>>,
    is_over: bool,
}

impl Stream for Events {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Events { follower, idle, is_over } = &mut *self;
        if *is_over {
            return Poll::Ready(None);
        }
        match follower.poll(task) {
            Poll::Ready(Some(Ok(item))) => {
                *idle = None;
                *is_over = matches!(item, Item::Exit { .. });
                Poll::Ready(Some(Ok(text(&item, follower).into())))
            }
            Poll::Ready(Some(Err(lost))) => Poll::Ready(Some(Err(io::Error::other(lost)))),
            // The engine has ended before the job.
            Poll::Ready(None) => Poll::Ready(Some(Err(io::ErrorKind::ConnectionReset.into()))),
            Poll::Pending => {
                let timer = idle.get_or_insert_with(|| Box::pin(sleep(KEEP_ALIVE)));
                if timer.as_mut().poll(task).is_pending() {
                    return Poll::Pending;
                }
                *idle = None;
                // The next poll finds the same streams idle, and begins another time.
                task.waker().wake_by_ref();
                Poll::Ready(Some(Ok(Bytes::from_static(b":\n\n"))))
            }
        }
    }
}

/// Returns the text of one event. Writing to a string cannot fail.
fn text(item: &Item, follower: &StreamFollower) -> String {
    let mut text = String::new();
    id(&mut text, follower, matches!(item, Item::Exit { .. }));
    let head = |name, StreamId { rank, channel, logged }: &StreamId, offset: &u64| {
        let rank = json!(number(*rank));
        format!(
            "event: {name}\ndata: {{\"rank\":{rank},\"channel\":\"{channel}\",\"logged\":{logged},\"offset\":{offset}"
        )
    };
    let _ = match item {
        Item::Output { stream, offset, times, bytes } => {
            write!(text, "{}{}}}", head("output", stream, offset), output(times, bytes))
        }
        Item::Gap { stream, offset, lost } => {
            write!(text, "{},\"lost\":{lost}}}", head("gap", stream, offset))
        }
        Item::End { stream, offset, missing } => {
            write!(text, "{},\"missing\":{}}}", head("end", stream, offset), json!(missing))
        }
        Item::Missed(Missed { rank, streams, bytes, .. }) => {
            let object = json!({ "rank": number(*rank), "streams": streams, "lost": bytes });
            write!(text, "event: gap\ndata: {object}")
        }
        Item::Cached => write!(text, "event: cached\ndata: {{}}"),
        Item::Exit { code } => write!(text, "event: exit\ndata: {}", json!({ "exit_code": code })),
    };
    text.push_str("\n\n");
    text
}

/// Returns the times and the bytes of an event. Most events are of this kind.
fn output(times: &[(u64, u64)], bytes: &[u8]) -> String {
    let mut text = times.first().map_or_else(String::new, |(_, time)| format!(",\"time\":{time}"));
    if times.len() > 1 {
        let _ = write!(text, ",\"times\":{}", json!(times));
    }
    let _ = match str::from_utf8(bytes).map(serde_json::to_string) {
        Ok(Ok(string)) => write!(text, ",\"data\":{string}"),
        _ => write!(text, ",\"data\":\"{}\",\"encoding\":\"base64\"", BASE64_STANDARD.encode(bytes)),
    };
    text
}

/// Writes the id of an event: the positions of all streams behind it, unless these are too many.
fn id(text: &mut String, StreamFollower { run, positions, .. }: &StreamFollower, is_over: bool) {
    if is_over || positions.len() <= MAX_ID_STREAMS {
        // A copy of at most this number of positions.
        let offsets = if is_over { Default::default() } else { positions.clone() };
        let _ = writeln!(text, "id: {}", Positions { run: *run, offsets, is_over });
    }
}
