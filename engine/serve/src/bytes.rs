//! The bytes of one stream.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use iof_proto::query::JobInfo;
use iof_proto::rendezvous::Listed;
use iof_proto::{Nspace, Position, Rank, StreamStats};
use iof_tool::LostError;

use crate::engines::EngineClient;
use crate::error::ApiError;
use crate::follow::{Item, Selection, StreamFollower};
use crate::query::{ByteRange, BytesParams, StreamId, channel, number, position};
use crate::state::HttpServer;

/// `GET /jobs/{job}/ranks/{rank}/{channel}`
pub async fn bytes(
    State(server): State<HttpServer>,
    Path((job, rank, name)): Path<(Nspace, u32, String)>,
    Query(params): Query<BytesParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let BytesParams { engine, offset, tail, follow } = params;
    let range = headers.get(header::RANGE).and_then(|range| ByteRange::parse(range.to_str().ok()?));
    // A range is one of the whole stream.
    let range = range.filter(|_| !follow && offset.is_none() && tail.is_none());
    let stream =
        StreamId { rank: Rank(rank), channel: channel(&name).map_err(ApiError::bad)?, logged: false };
    // These numbers mean several ranks, or the job.
    if number(stream.rank).is_none() {
        return Err(ApiError::new(404, format!("there is no rank {rank}")));
    }
    let from = position(tail, offset.map(Position::Offset)).map_err(ApiError::bad)?;
    let mut selection = Selection { ranks: vec![stream.rank], channels: stream.channel.into(), from };
    let slot = server.follower_slot()?;
    let found = server.engines.find(&job, engine).await?;
    // Without `follow`, the stream ends where it does now.
    let (mut end, mut is_part) = (None, false);
    if !follow {
        let produced = produced(&found, stream).await?;
        end = Some(produced);
        if let Some(range) = range {
            let Some((first, last)) = range.within(produced) else { return Ok(unsatisfiable(produced)) };
            (selection.from, end, is_part) = (Position::Offset(first), Some(last), true);
        } else if offset.is_some_and(|offset| offset > produced) {
            return Ok(unsatisfiable(produced));
        }
    }
    let asked = if let Position::Offset(offset) = selection.from { Some(offset) } else { None };
    let follower = StreamFollower::start(slot, &found, selection).await?;
    let mut bytes = StreamBytes { follower, stream, first: None, end, position: 0 };
    bytes.position = match asked {
        Some(asked) if end.is_some_and(|end| asked >= end) => asked,
        _ => bytes.find_first(asked).await?,
    };
    let first = bytes.position;
    let mut response = Response::builder().header(header::CONTENT_TYPE, "application/octet-stream");
    response = response.header("iof-offset", first);
    if let Some(end) = end {
        let length = end.saturating_sub(first);
        response = response.header(header::ACCEPT_RANGES, "bytes").header(header::CONTENT_LENGTH, length);
    }
    if let Some(last) = end.filter(|_| is_part).and_then(|end| end.checked_sub(1)) {
        response = response.status(206).header(header::CONTENT_RANGE, format!("bytes {first}-{last}/*"));
    }
    response.body(Body::from_stream(bytes)).map_err(ApiError::failed)
}

/// Returns the number of bytes that the stream has now.
async fn produced((listed, info): &(Listed, JobInfo), stream: StreamId) -> Result<u64, ApiError> {
    let job = &info.nspace;
    let (_, streams) = EngineClient::connect(&listed.path).await?.details(job).await?;
    let StreamId { rank, channel, .. } = stream;
    let is_it =
        |stats: &&StreamStats| (stats.source.rank, stats.channel, stats.logged) == (rank, channel, false);
    let missing = || ApiError::new(404, format!("job {job} has no {channel} of rank {rank}"));
    streams.iter().find(is_it).map(|stats| stats.produced).ok_or_else(missing)
}

fn unsatisfiable(produced: u64) -> Response {
    let range = [(header::CONTENT_RANGE, format!("bytes */{produced}"))];
    (StatusCode::RANGE_NOT_SATISFIABLE, range).into_response()
}

/// The bytes of the stream up to its end, or up to a given one. A gap or a lost engine ends them with an error, so that
/// the client sees that the response is not whole.
struct StreamBytes {
    follower: StreamFollower,
    stream: StreamId,
    /// The bytes that were read to find where the stream begins.
    first: Option<Bytes>,
    end: Option<u64>,
    position: u64,
}

/// The next piece of the stream.
enum Piece {
    Bytes(u64, Bytes),
    /// The offset behind missing bytes.
    Gap(u64),
    Cached,
    /// The end of the stream, at this offset.
    End(u64),
}

impl StreamBytes {
    fn poll_piece(&mut self, task: &mut Context<'_>) -> Poll<io::Result<Piece>> {
        loop {
            let item = ready!(self.follower.poll(task)).unwrap_or(Err(LostError::Closed));
            let piece = match item.map_err(io::Error::other)? {
                Item::Output { stream, offset, bytes, .. } if stream == self.stream => {
                    Piece::Bytes(offset, bytes.into())
                }
                Item::Gap { stream, offset, lost } if stream == self.stream => {
                    Piece::Gap(offset.saturating_add(lost))
                }
                Item::End { stream, missing, .. } if stream == self.stream && missing != Some(0) => {
                    return Poll::Ready(Err(io::Error::other("the node or the engine of the rank was lost")));
                }
                Item::Missed(_) => return Poll::Ready(Err(io::Error::other("the stream is missing"))),
                Item::End { stream, offset, .. } if stream == self.stream => Piece::End(offset),
                // The job has no such stream, or all of it was a gap.
                Item::Exit { .. } => Piece::End(*self.follower.positions.get(&self.stream).unwrap_or(&0)),
                Item::Cached => Piece::Cached,
                // Of what was logged on behalf of the rank.
                _ => continue,
            };
            return Poll::Ready(Ok(piece));
        }
    }

    /// Reads up to the first bytes, and returns their offset.
    ///
    /// # Errors
    /// The bytes from `asked` on have expired.
    async fn find_first(&mut self, asked: Option<u64>) -> Result<u64, ApiError> {
        let mut position = asked.unwrap_or(0);
        loop {
            match poll_fn(|task| self.poll_piece(task)).await.map_err(|error| ApiError::new(502, error))? {
                Piece::Bytes(offset, bytes) => {
                    self.first = Some(bytes);
                    return Ok(offset);
                }
                Piece::Gap(end) => {
                    position = end;
                    asked.map_or(Ok(()), |asked| Err(ApiError::expired(asked, end)))?;
                }
                Piece::End(end) if position > end => {
                    return Err(ApiError::new(416, format!("the stream has only {end} bytes")));
                }
                Piece::End(end) => {
                    self.end = self.end.or(Some(end));
                    return Ok(end);
                }
                Piece::Cached => return Ok(position),
            }
        }
    }
}

impl Stream for StreamBytes {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let rest = self.end.map_or(u64::MAX, |end| end.saturating_sub(self.position));
        if rest == 0 {
            return Poll::Ready(None);
        }
        let first = self.first.take().map(|bytes| Piece::Bytes(self.position, bytes));
        let mut piece = first.map_or_else(|| self.poll_piece(task), |first| Poll::Ready(Ok(first)));
        if let Poll::Ready(Ok(Piece::Cached)) = piece {
            piece = self.poll_piece(task);
        }
        Poll::Ready(match ready!(piece) {
            Ok(Piece::Bytes(_, mut bytes)) => {
                bytes.truncate(usize::try_from(rest).unwrap_or(usize::MAX));
                self.position = self.position.saturating_add(bytes.len() as u64);
                Some(Ok(bytes))
            }
            Ok(Piece::End(end)) if self.end.is_none() && end == self.position => None,
            Ok(_) => Some(Err(io::Error::other("bytes are missing here"))),
            Err(error) => Some(Err(error)),
        })
    }
}
