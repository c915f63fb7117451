//! The configuration of an engine.

use std::path::PathBuf;

use iof_capture::BackendKind;
use iof_core::{Buffering, LogConfig, StreamOptions};
#[cfg(doc)]
use iof_core::{DEFAULT_CACHE_SIZE, MIN_CACHE_SIZE};
use iof_proto::directive::DirectiveLevel;
use iof_proto::{Directives, Failure, Info, Rendezvous};
use iof_shm_ring::Policy;

/// Default of [`Config::cache_total`], in bytes: 1,024 caches of the default size.
pub const DEFAULT_CACHE_TOTAL: u64 = 1 << 30;

/// Default of [`Config::max_cache_size`], in bytes.
pub const MAX_CACHE_SIZE: u32 = 16 << 20;

/// The configuration of an engine. [`Config::apply_directives`] changes it by PMIx directives.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Size of the cache of each stream (one output channel of one rank), in bytes
    /// (`PMIX_IOF_CACHE_SIZE`). A size below [`MIN_CACHE_SIZE`] is raised to it.
    ///
    /// With `None`, the size is [`DEFAULT_CACHE_SIZE`], and the caches of a job with 16 or more
    /// ranks begin smaller: 8 MiB divided by the number of ranks, rounded up to a power of two, but
    /// at least 64 KiB. A cache grows to its full size when a reader attaches that may not hold the
    /// source back, and after the rank has waited for the readers for about 0.2 s without a break.
    /// Only [`Policy::Block`] has small caches.
    pub cache_size: Option<u32>,
    /// The sum of the caches of all ranks, in bytes, up to which small caches grow. A cache that
    /// may not grow stays small: its rank waits earlier, and readers that may not hold it back lose
    /// bytes earlier.
    pub cache_total: u64,
    /// The reaction to a full cache: drop the newest bytes (`PMIX_IOF_DROP_NEWEST`), drop the
    /// oldest bytes (`PMIX_IOF_DROP_OLDEST`), or make ranks wait until the readers with
    /// [`Grant::Block`](crate::Grant::Block) have read.
    pub policy: Policy,
    /// The grouping of bytes for readers, unless their job or registration specifies another.
    pub buffering: Buffering,
    /// The largest cache that a registration of a tool may request, in bytes. [`MIN_CACHE_SIZE`] is
    /// always allowed.
    pub max_cache_size: u32,
    /// The backend that reads the ranks' pipes. `None` selects io_uring if the kernel permits it,
    /// else epoll.
    pub backend: Option<BackendKind>,
    /// The rendezvous point at which tools find this engine.
    pub rendezvous: Rendezvous,
    /// The command `iof` of this version, if a process of it is to end the ranks when this process
    /// is killed: a path, or a name to look up in `PATH`. This guardian is a child of this process
    /// from the first job to the end of the engine. When the process ends without dropping the
    /// engine, it ends the ranks that the engine has started and their process groups by SIGTERM,
    /// and two seconds later by SIGKILL. A child that this process has forked, and that has not executed
    /// a program, delays this until it ends. If the guardian does not start, the ranks run without
    /// it, and a warning is logged.
    pub guardian: Option<PathBuf>,
    /// The channels to which messages are logged.
    pub log: LogConfig,
}

impl Config {
    /// Returns the defaults at this rendezvous point: a cache of 1 MiB for each stream, sources that
    /// wait for the embedder's own readers with [`Grant::Block`](crate::Grant::Block), and the best
    /// backend that the kernel permits. No tool can hold back a source: for tools a full cache drops
    /// the newest bytes.
    ///
    /// ```
    /// use iof_engine::{Config, Engine, Policy, Rendezvous};
    /// let mut config = Config::new(Rendezvous::None);
    /// config.policy = Policy::DropOldest;
    /// let engine = Engine::start(config)?;
    /// # Ok::<(), iof_engine::StartError>(())
    /// ```
    pub fn new(rendezvous: Rendezvous) -> Config {
        Config {
            cache_size: None,
            cache_total: DEFAULT_CACHE_TOTAL,
            policy: Policy::Block,
            buffering: Buffering::default(),
            max_cache_size: MAX_CACHE_SIZE,
            backend: None,
            rendezvous,
            guardian: None,
            log: LogConfig::default(),
        }
    }

    /// Sets the engine's defaults from directives: those of RFC0025, such as `PMIX_IOF_CACHE_SIZE`,
    /// and `PMIX_SERVER_GATEWAY`. Returns the keys of the optional directives that can't be
    /// honoured.
    ///
    /// # Errors
    /// A required directive can't be honoured. The configuration is then unchanged.
    ///
    /// ```
    /// use iof_engine::Config;
    /// use iof_proto::Info;
    /// use iof_proto::directive::key;
    /// let mut config = Config::default();
    /// config.apply_directives(&[Info::required(key::PMIX_IOF_CACHE_SIZE, 65536u32)])?;
    /// assert_eq!(config.cache_size, Some(65536));
    /// # Ok::<(), iof_proto::Failure>(())
    /// ```
    pub fn apply_directives(&mut self, infos: &[Info]) -> Result<Vec<String>, Failure> {
        let (directives, ignored) = Directives::read(infos, DirectiveLevel::Server)?;
        self.log.gateway = directives.gateway.unwrap_or(self.log.gateway);
        self.cache_size = directives.cache_size.or(self.cache_size);
        self.policy = directives.drop.unwrap_or(self.policy);
        self.buffering = self.buffering.under(&directives);
        Ok(ignored)
    }

    /// Returns the options of streams, as far as no directive changes them.
    pub(crate) fn options(&self) -> StreamOptions {
        StreamOptions::new(self.cache_size, self.policy, self.buffering)
    }
}

impl Default for Config {
    /// Returns the [defaults](Config::new) for an engine in the user's rendezvous directory.
    fn default() -> Self {
        Config::new(Rendezvous::Session(None))
    }
}

#[cfg(test)]
mod tests {
    use iof_proto::attribute::{Place, mismatches};

    use super::*;

    #[test]
    fn an_engine_honours_exactly_the_attributes_of_the_table() {
        let accepts = |info: &Info| Config::default().apply_directives(std::slice::from_ref(info)).is_ok();
        assert_eq!(mismatches(&[Place::Server], accepts), []);
    }
}
