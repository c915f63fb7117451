//! What directives come to: server, then spawn, then registration, the later overriding the earlier
//! (RFC0025).

use iof_proto::directive::key;
use iof_proto::{Directives, EffectiveOptions, Failure, Info, Status};
use iof_shm_ring::{Policy, StreamConfig};

use crate::config::{Buffering, Config, MIN_CACHE_SIZE, policy};

/// What one of the three levels wants of a stream, with the levels before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamOptions {
    pub cache_size: u32,
    pub policy: Policy,
    pub buffering: Buffering,
}

impl StreamOptions {
    /// The engine's own.
    pub(crate) fn of(config: &Config) -> StreamOptions {
        StreamOptions { cache_size: config.cache_size, policy: config.policy, buffering: config.buffering }
    }

    /// What becomes of it at the next level.
    pub(crate) fn under(self, directives: &Directives) -> StreamOptions {
        StreamOptions {
            cache_size: directives.cache_size.unwrap_or(self.cache_size),
            policy: policy(directives.drop).unwrap_or(self.policy),
            buffering: self.buffering.under(directives),
        }
    }

    /// What a stream is made as while nobody reads it.
    pub(crate) fn config(self) -> StreamConfig {
        stream(self.cache_size, self.policy)
    }

    /// What a stream that was made so has to be for readers who want `theirs`: nobody gets less
    /// than they want, so nobody takes anything from the others.
    pub(crate) fn shared(self, theirs: impl Iterator<Item = StreamOptions> + Clone) -> StreamConfig {
        let capacity = theirs.clone().map(|options| options.cache_size).max().unwrap_or(self.cache_size);
        let policy = match self.policy {
            // Somebody may have to lose nothing.
            Policy::Block => Policy::Block,
            // Who wants the newest is let pass; who wants the oldest holds them.
            _ if theirs.clone().any(|options| options.policy != Policy::DropOldest) => Policy::DropNewest,
            _ if theirs.clone().next().is_some() => Policy::DropOldest,
            policy => policy,
        };
        stream(capacity, policy)
    }

    /// How a reader with this wish reads.
    pub(crate) fn effective(self) -> EffectiveOptions {
        let Buffering { size, time } = self.buffering;
        let as_they_come = time.is_some_and(|time| time.is_zero()) || (size == 0 && time.is_none());
        let buffering_size = match size {
            _ if as_they_come => 0,
            // As many as come in time.
            0 => u64::MAX,
            size => size.into(),
        };
        let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        EffectiveOptions { buffering_size, buffering_time: time.map(micros) }
    }
}

/// Takes an asked size of a cache away that is beyond `limit`: its key is `ignored` then.
///
/// # Errors
/// It is required.
pub(crate) fn cache_within(
    asked: &mut Option<u32>,
    limit: u32,
    infos: &[Info],
    ignored: &mut Vec<String>,
) -> Result<(), Failure> {
    let Some(asked) = asked.take_if(|asked| *asked > limit) else { return Ok(()) };
    let key = key::PMIX_IOF_CACHE_SIZE;
    if infos.iter().any(|info| info.key == key && info.required) {
        let reason = format!("a cache of {asked} bytes is too large: ask for {limit} at most");
        return Err(Failure { status: Status::ERR_OUT_OF_RESOURCE, reason });
    }
    ignored.push(key.to_owned());
    Ok(())
}

fn stream(cache_size: u32, policy: Policy) -> StreamConfig {
    StreamConfig { capacity: cache_size.max(MIN_CACHE_SIZE).into(), policy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn options(cache_size: u32, policy: Policy) -> StreamOptions {
        StreamOptions { cache_size, policy, buffering: Buffering::default() }
    }

    fn shared(base: StreamOptions, theirs: &[StreamOptions]) -> (u64, Policy) {
        let StreamConfig { capacity, policy } = base.shared(theirs.iter().copied());
        (capacity, policy)
    }

    #[test]
    fn a_later_level_counts_where_it_says_something() {
        let server = StreamOptions::of(&Config::default());
        let spawn = server.under(&Directives { cache_size: Some(10), ..Directives::default() });
        assert_eq!(spawn, StreamOptions { cache_size: 10, ..server });
        let oldest = Some(iof_proto::directive::DropPolicy::Oldest);
        let pull = spawn.under(&Directives { drop: oldest, ..Directives::default() });
        assert_eq!(pull, StreamOptions { policy: Policy::DropOldest, ..spawn });
    }

    #[test]
    fn a_stream_is_what_the_most_demanding_reader_wants() {
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
    fn no_stream_is_too_small_for_a_packet() {
        let least = u64::from(MIN_CACHE_SIZE);
        assert_eq!(options(1, Policy::Block).config().capacity, least);
        assert_eq!(shared(options(100_000, Policy::Block), &[options(1, Policy::Block)]).0, least);
    }

    #[test]
    fn bytes_are_held_back_for_a_size_a_time_or_both() {
        let terms = |size, time| {
            StreamOptions { buffering: Buffering { size, time }, ..options(1, Policy::Block) }.effective()
        };
        let second = Some(Duration::from_secs(1));
        let of = |options: EffectiveOptions| (options.buffering_size, options.buffering_time);
        assert_eq!(of(terms(0, None)), (0, None));
        assert_eq!(of(terms(80, None)), (80, None));
        assert_eq!(of(terms(80, second)), (80, Some(1_000_000)));
        assert_eq!(of(terms(0, second)), (u64::MAX, Some(1_000_000)));
        assert_eq!(of(terms(80, Some(Duration::ZERO))).0, 0);
    }
}
