//! One client's reading of the streams that it selected, exactly from where it asked.

use std::collections::BTreeMap;
use std::task::{Context, Poll, ready};

use iof_proto::query::JobInfo;
use iof_proto::rendezvous::Listed;
use iof_proto::{Channels, Missed, Position, Proc, Rank};
use iof_tool::{AsyncTool, Counts, Delivery, Gap, LostError, Origin, Pull, Reply, RequestError};
use tokio::sync::OwnedSemaphorePermit;

use crate::engines::EngineClient;
use crate::error::ApiError;
use crate::limits::MAX_EVENT;
use crate::query::StreamId;

/// The streams that a client selects of a job.
pub struct Selection {
    pub ranks: Vec<Rank>,
    pub channels: Channels,
    pub from: Position,
}

/// The next item of a client's streams.
pub enum Item {
    /// Bytes, with the pairs of offset and time at which they were read.
    Output { stream: StreamId, offset: u64, times: Vec<(u64, u64)>, bytes: Vec<u8> },
    /// Bytes that are missing.
    Gap { stream: StreamId, offset: u64, lost: u64 },
    /// The end of a stream. At least this number of bytes follow that were lost with a node. `None` if the engine ended
    /// before the stream, so that it is unknown.
    End { stream: StreamId, offset: u64, missing: Option<u64> },
    /// Whole streams that are missing.
    Missed(Missed),
    /// All that was cached at the beginning was delivered.
    Cached,
    /// The end of the job.
    Exit { code: Option<i32> },
}

/// The streams of one client, read from where it asked.
pub struct StreamFollower {
    tool: AsyncTool,
    /// The run of the job.
    pub run: u128,
    /// The offset of the next byte of each stream.
    pub positions: BTreeMap<StreamId, u64>,
    _slot: OwnedSemaphorePermit,
}

impl StreamFollower {
    /// Registers for the selected streams of a job of an engine.
    pub async fn start(
        slot: OwnedSemaphorePermit,
        (listed, info): &(Listed, JobInfo),
        selection: Selection,
    ) -> Result<StreamFollower, ApiError> {
        let Selection { ranks, channels, from } = selection;
        let job = &info.nspace;
        let mut client = EngineClient::connect(&listed.path).await?;
        let procs = ranks.into_iter().map(|rank| Proc { nspace: job.clone(), rank }).collect();
        let pull = Pull { reports_cached: true, ..Pull::new(procs, channels).from(from) };
        if let Reply::Pulled(pulled) = client.request(|tool| tool.submit_pull(&pull)).await? {
            pulled.map_err(RequestError::Denied)?;
        }
        // Another job may have taken the name meanwhile.
        let jobs = EngineClient::jobs_at(&listed.path).await?;
        if !jobs.iter().any(|now| now.nspace == *job && now.run == info.run) {
            return Err(ApiError::new(409, format!("another run of job {job} has begun: try again")));
        }
        let positions = BTreeMap::new();
        Ok(StreamFollower { tool: client.0, run: info.run, positions, _slot: slot })
    }

    /// Polls for the next item. Bytes and gaps before the stream's position are skipped: the client has them.
    pub fn poll(&mut self, task: &mut Context<'_>) -> Poll<Option<Result<Item, LostError>>> {
        let StreamFollower { tool, positions, .. } = self;
        loop {
            match ready!(tool.poll_lend(task, |delivery| take(delivery, positions))) {
                Some(Ok(None)) => {}
                found => return Poll::Ready(found.and_then(Result::transpose)),
            }
        }
    }
}

/// Returns the number of bytes that are consumed, and the item, if the client does not have it.
fn take(delivery: Delivery<'_>, positions: &mut BTreeMap<StreamId, u64>) -> (usize, Option<Item>) {
    let stream_id =
        |of: Origin<'_>| StreamId { rank: of.source.rank, channel: of.channel, logged: of.logged };
    let end = |origin: Origin<'_>, counts: Counts, missing| {
        Some(Item::End { stream: stream_id(origin), offset: counts.produced, missing })
    };
    let item = match delivery {
        Delivery::Bytes(bytes) => {
            let (stream, offset) = (stream_id(bytes.origin()), bytes.offset());
            let position = positions.entry(stream).or_default();
            let skipped = usize::try_from(position.saturating_sub(offset)).unwrap_or(usize::MAX);
            let slice = bytes.as_slice();
            let Some((_, new)) = slice.split_at_checked(skipped).filter(|(_, new)| !new.is_empty()) else {
                return (slice.len(), None);
            };
            // Whole lines, if there is one.
            let part = new.get(..MAX_EVENT).unwrap_or(new);
            let newline = part.iter().rposition(|byte| *byte == b'\n').filter(|_| part.len() < new.len());
            let new = newline.and_then(|newline| part.get(..=newline)).unwrap_or(part);
            let first = offset.saturating_add(skipped as u64);
            *position = first.saturating_add(new.len() as u64);
            let mut times = Vec::new();
            bytes.times(&mut times);
            let before = times.partition_point(|(offset, _)| *offset <= first).saturating_sub(1);
            times.drain(..before);
            times.truncate(times.partition_point(|(offset, _)| *offset < *position));
            if let Some((offset, _)) = times.first_mut() {
                *offset = first;
            }
            let consumed = skipped.saturating_add(new.len());
            return (consumed, Some(Item::Output { stream, offset: first, times, bytes: new.to_vec() }));
        }
        Delivery::Gap { origin, gap } => skip(positions, stream_id(origin), gap),
        Delivery::Complete { origin, counts } => end(origin, counts, Some(0)),
        Delivery::Broken { origin, counts, missing } => end(origin, counts, Some(missing.max(1))),
        Delivery::Gone { origin, counts } => end(origin, counts, None),
        Delivery::JobEnded { exit_code, .. } => Some(Item::Exit { code: exit_code }),
        Delivery::Missed {
            missed: Missed { rank, channel, bytes: lost, offset: Some(offset), .. }, ..
        } => skip(positions, StreamId { rank, channel, logged: false }, Gap { offset, lost }),
        Delivery::Missed { missed, .. } => Some(Item::Missed(missed)),
        Delivery::Cached { .. } => Some(Item::Cached),
        _ => None,
    };
    (0, item)
}

/// Moves the position of a stream behind a gap. Returns the part that the client does not have.
fn skip(positions: &mut BTreeMap<StreamId, u64>, stream: StreamId, gap: Gap) -> Option<Item> {
    let position = positions.entry(stream).or_default();
    let end = gap.offset.saturating_add(gap.lost);
    let offset = gap.offset.max(*position);
    *position = end.max(*position);
    (end > offset).then(|| Item::Gap { stream, offset, lost: end.saturating_sub(offset) })
}
