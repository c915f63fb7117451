//! The options of a stream as the directives of three levels set them: server, spawn, registration.
//! A later level overrides an earlier one (RFC0025).

use std::time::Duration;

use iof_proto::directive::key;
use iof_proto::{Directives, EffectiveOptions, Failure, Info, Status};
use iof_shm_ring::{Policy, StreamConfig};

/// Default size of the cache of each stream (one output channel of one rank), in bytes.
pub const DEFAULT_CACHE_SIZE: u32 = 1 << 20;

/// `PIPE_BUF` of Linux, see pipe(7).
const PIPE_BUF: u32 = 4096;

/// Smallest size of a cache, in bytes. A smaller request is raised to it.
///
/// The reason is that a read takes at most a quarter of a cache. A read of a pipe in packet mode
/// (O_DIRECT, see pipe(2)) must have room for `PIPE_BUF` bytes, or the kernel discards the rest of
/// the packet.
pub const MIN_CACHE_SIZE: u32 = 4 * PIPE_BUF;

/// Least size of the ring in which a stream begins, in bytes. The kernel fills at most 64 KiB at a
/// time.
const LEAST_SMALL: u64 = 64 * 1024;
/// The sum of the rings in which the streams of a job begin, one for each rank, before each size is
/// rounded up to a power of two. It is in the order of the processors' caches.
const SMALL_CACHES: u64 = 8 << 20;

/// The grouping of bytes before a reader receives them. By default a reader receives bytes as they
/// arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffering {
    /// The number of bytes of a full group, which the reader receives immediately
    /// (`PMIX_IOF_BUFFERING_SIZE`). A cache has at least twice this size. With 0, only
    /// `time` limits a group; if `time` is `None` as well, bytes are not grouped.
    pub size: u32,
    /// The time after which the reader receives a group that is not full
    /// (`PMIX_IOF_BUFFERING_TIME`). With `None`, the reader receives such a group only at the end
    /// of the stream or of the registration.
    pub time: Option<Duration>,
}

impl Buffering {
    /// Returns the grouping after `directives` have overridden parts of it.
    pub fn under(self, directives: &Directives) -> Buffering {
        Buffering {
            size: directives.buffering_size.unwrap_or(self.size),
            time: directives.buffering_time.or(self.time),
        }
    }
}

/// The options of a stream at one of the three levels, including the levels before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// The size of the cache, in bytes.
    pub cache_size: u32,
    /// Set if a cache has this size from its first byte on, because the size was requested.
    pub full_from_birth: bool,
    /// The reaction to a full cache.
    pub policy: Policy,
    /// The grouping of bytes.
    pub buffering: Buffering,
}

impl StreamOptions {
    /// Returns the engine's own options (the server level). Without a size, a cache has
    /// [`DEFAULT_CACHE_SIZE`] and may begin smaller.
    pub fn new(cache_size: Option<u32>, policy: Policy, buffering: Buffering) -> StreamOptions {
        let full_from_birth = cache_size.is_some();
        let cache_size = cache_size.unwrap_or(DEFAULT_CACHE_SIZE);
        StreamOptions { cache_size, full_from_birth, policy, buffering }.with_room_for_groups()
    }

    /// Enlarges the cache so that a full group fits into half of the ring, which is the largest one
    /// that a reader receives.
    fn with_room_for_groups(self) -> StreamOptions {
        StreamOptions { cache_size: self.cache_size.max(self.buffering.size.saturating_mul(2)), ..self }
    }

    /// Returns the options of the next level, which `directives` override.
    pub fn under(self, directives: &Directives) -> StreamOptions {
        StreamOptions {
            cache_size: directives.cache_size.unwrap_or(self.cache_size),
            full_from_birth: self.full_from_birth || directives.cache_size.is_some(),
            policy: directives.drop.unwrap_or(self.policy),
            buffering: self.buffering.under(directives),
        }
        .with_room_for_groups()
    }

    /// Returns the size of the first ring of each stream of a job with `ranks` ranks. Most ranks
    /// write to one of their streams, so the rings in use have less than twice `SMALL_CACHES`
    /// bytes, unless there are too many.
    pub fn first_size(self, ranks: u64) -> u64 {
        let full = self.config().capacity;
        let part = SMALL_CACHES.checked_div(ranks).unwrap_or(SMALL_CACHES).next_power_of_two();
        // A reader receives groups of at most half a ring.
        let group = u64::from(self.buffering.size).saturating_mul(2);
        if self.full_from_birth { full } else { part.max(LEAST_SMALL).max(group).min(full) }
    }

    /// Returns the configuration of a stream that no registration reads.
    pub fn config(self) -> StreamConfig {
        stream_config(self.cache_size, self.policy)
    }

    /// Returns the configuration of a stream with these options that is read with `theirs`. It
    /// gives each reader at least what the reader asks for, so no reader takes anything from
    /// another.
    pub(crate) fn shared(self, theirs: impl Iterator<Item = StreamOptions> + Clone) -> StreamConfig {
        let capacity = theirs.clone().map(|options| options.cache_size).max().unwrap_or(self.cache_size);
        let policy = match self.policy {
            // Some reader may need every byte.
            Policy::Block => Policy::Block,
            // A reader of the newest bytes is non-gating. A reader of the oldest bytes gates the
            // writer.
            _ if theirs.clone().any(|options| options.policy != Policy::DropOldest) => Policy::DropNewest,
            _ if theirs.clone().next().is_some() => Policy::DropOldest,
            policy => policy,
        };
        stream_config(capacity, policy)
    }

    /// Returns the effective buffering options of a reader with these options.
    pub(crate) fn effective(self) -> EffectiveOptions {
        let Buffering { size, time } = self.buffering;
        let unbuffered = time.is_some_and(|time| time.is_zero()) || (size == 0 && time.is_none());
        let buffering_size = match size {
            _ if unbuffered => 0,
            // As many bytes as arrive within the time.
            0 => u64::MAX,
            size => size.into(),
        };
        let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        EffectiveOptions { buffering_size, buffering_time: time.map(micros) }
    }
}

/// Drops a requested cache size above `limit` bytes and adds its key to `ignored`.
///
/// # Errors
/// Fails if the cache size is marked as required.
pub(crate) fn limit_cache_size(
    requested: &mut Option<u32>,
    limit: u32,
    infos: &[Info],
    ignored: &mut Vec<String>,
) -> Result<(), Failure> {
    let Some(requested) = requested.take_if(|requested| *requested > limit) else { return Ok(()) };
    let key = key::PMIX_IOF_CACHE_SIZE;
    if infos.iter().any(|info| info.key == key && info.required) {
        let reason = format!("cache size {requested} is too large: the limit is {limit} bytes");
        return Err(Failure::new(Status::ERR_OUT_OF_RESOURCE, reason));
    }
    ignored.push(key.to_owned());
    Ok(())
}

/// Drops a requested buffering size that needs a cache above `limit` bytes and adds its key to
/// `ignored`.
///
/// # Errors
/// Fails if the buffering size is marked as required.
pub(crate) fn limit_buffering_size(
    requested: &mut Option<u32>,
    limit: u32,
    infos: &[Info],
    ignored: &mut Vec<String>,
) -> Result<(), Failure> {
    let limit = limit.checked_div(2).unwrap_or_default();
    let Some(requested) = requested.take_if(|requested| *requested > limit) else { return Ok(()) };
    let key = key::PMIX_IOF_BUFFERING_SIZE;
    if infos.iter().any(|info| info.key == key && info.required) {
        let reason = format!("buffering size {requested} is too large: the limit is {limit} bytes");
        return Err(Failure::new(Status::ERR_OUT_OF_RESOURCE, reason));
    }
    ignored.push(key.to_owned());
    Ok(())
}

fn stream_config(cache_size: u32, policy: Policy) -> StreamConfig {
    StreamConfig { capacity: cache_size.max(MIN_CACHE_SIZE).into(), policy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn options(cache_size: u32, policy: Policy) -> StreamOptions {
        StreamOptions { cache_size, full_from_birth: true, policy, buffering: Buffering::default() }
    }

    fn shared(base: StreamOptions, theirs: &[StreamOptions]) -> (u64, Policy) {
        let StreamConfig { capacity, policy } = base.shared(theirs.iter().copied());
        (capacity, policy)
    }

    fn server() -> StreamOptions {
        StreamOptions::new(None, Policy::Block, Buffering::default())
    }

    #[test]
    fn a_later_level_overrides_only_what_it_sets() {
        let server = server();
        let spawn = server.under(&Directives { cache_size: Some(10), ..Directives::default() });
        assert_eq!(spawn, StreamOptions { cache_size: 10, full_from_birth: true, ..server });
        let oldest = Some(Policy::DropOldest);
        let pull = spawn.under(&Directives { drop: oldest, ..Directives::default() });
        assert_eq!(pull, StreamOptions { policy: Policy::DropOldest, ..spawn });
    }

    #[test]
    fn a_stream_satisfies_its_most_demanding_reader() {
        use Policy::{Block, DropNewest, DropOldest};
        let base = options(100_000, DropNewest);
        assert_eq!(shared(base, &[]), (100_000, DropNewest));
        assert_eq!(shared(base, &[options(70_000, DropOldest)]), (70_000, DropOldest));
        assert_eq!(shared(base, &[options(70_000, DropOldest), base]), (100_000, DropNewest));
        assert_eq!(
            shared(options(100_000, DropOldest), &[options(200_000, DropNewest)]),
            (200_000, DropNewest)
        );
        assert_eq!(shared(options(100_000, Block), &[options(200_000, DropOldest)]), (200_000, Block));
    }

    #[test]
    fn caches_begin_smaller_the_more_ranks_a_job_has_unless_their_size_was_requested() {
        let first = |ranks| server().first_size(ranks);
        let kib = [0, 1, 8, 9, 16, 64, 65, 128, 129, 100_000].map(|ranks| first(ranks) >> 10);
        assert_eq!(kib, [1024, 1024, 1024, 1024, 512, 128, 128, 64, 64, 64]);
        assert_eq!(options(1 << 20, Policy::Block).first_size(1000), 1 << 20);
        let small = StreamOptions { full_from_birth: false, ..options(20_000, Policy::Block) };
        assert_eq!(small.first_size(1000), 20_000);
        let buffering = Buffering { size: 100_000, ..Buffering::default() };
        let grouped = StreamOptions { cache_size: 1 << 20, buffering, ..small };
        assert_eq!(grouped.first_size(1000), 200_000, "a group fits into half of the ring");
        let large = StreamOptions::new(None, Policy::Block, Buffering { size: 1 << 20, time: None });
        assert_eq!(large.first_size(1000), 2 << 20, "the cache grows for a group");
    }

    #[test]
    fn every_cache_holds_at_least_one_packet() {
        let least = u64::from(MIN_CACHE_SIZE);
        assert_eq!(options(1, Policy::Block).config().capacity, least);
        assert_eq!(shared(options(100_000, Policy::Block), &[options(1, Policy::Block)]).0, least);
    }

    #[test]
    fn output_is_buffered_by_size_by_time_or_by_both() {
        let effective = |size, time| {
            StreamOptions { buffering: Buffering { size, time }, ..options(1, Policy::Block) }.effective()
        };
        let second = Some(Duration::from_secs(1));
        let values = |effective: EffectiveOptions| (effective.buffering_size, effective.buffering_time);
        assert_eq!(values(effective(0, None)), (0, None));
        assert_eq!(values(effective(80, None)), (80, None));
        assert_eq!(values(effective(80, second)), (80, Some(1_000_000)));
        assert_eq!(values(effective(0, second)), (u64::MAX, Some(1_000_000)));
        assert_eq!(values(effective(80, Some(Duration::ZERO))).0, 0);
    }
}
