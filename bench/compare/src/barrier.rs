//! The barrier at which ranks wait before and after their work, so that a launcher is measured
//! while it forwards, and not while it starts and ends ranks.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::os::fd::AsFd;

use iof_bench::cpu;

/// The interval of the checks whether ranks can still arrive, in milliseconds.
const CHECK_INTERVAL: u16 = 50;

/// The report of a rank whose work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankReport {
    /// The time of the report, in nanoseconds of the monotonic clock.
    pub time: u64,
    /// The bytes that the rank wrote or read.
    pub bytes: u64,
    /// The checksum of the bytes that the rank read.
    pub sum: u64,
}

impl RankReport {
    const SIZE: usize = 24;

    fn to_bytes(self) -> Vec<u8> {
        [self.time, self.bytes, self.sum].iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn from_bytes(bytes: [u8; RankReport::SIZE]) -> RankReport {
        let word = |offset: usize| u64::from_ne_bytes(bytes[offset..offset + 8].try_into().unwrap());
        RankReport { time: word(0), bytes: word(8), sum: word(16) }
    }
}

/// The rank's side of the barrier.
pub struct Token(UnixStream);

impl Token {
    /// Arrives at the barrier, and blocks until the ranks are released.
    pub fn wait(barrier: &Path) -> Token {
        let mut stream = UnixStream::connect(barrier).unwrap();
        stream.read_exact(&mut [0]).unwrap();
        Token(stream)
    }

    /// Sends the report, and blocks until all ranks may exit.
    pub fn finish(mut self, bytes: u64, sum: u64) {
        let report = RankReport { time: cpu::monotonic_nanos(), bytes, sum };
        self.0.write_all(&report.to_bytes()).unwrap();
        // The other side closes the connection when the ranks may exit.
        let _ = self.0.read(&mut [0]);
    }
}

/// The launching side of the barrier.
pub struct Barrier {
    listener: UnixListener,
    path: PathBuf,
}

impl Barrier {
    /// Creates the barrier's socket in `directory`. Replaces an earlier one.
    pub fn create(directory: &Path) -> Barrier {
        let path = directory.join("barrier");
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        Barrier { listener, path }
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Blocks until `ranks` ranks have arrived. Returns `None` if `until` passes or `give_up`
    /// returns true before.
    pub fn wait_for(
        &self,
        ranks: u32,
        until: Instant,
        mut give_up: impl FnMut() -> bool,
    ) -> Option<WaitingRanks> {
        let mut streams = Vec::new();
        while streams.len() < ranks as usize {
            match self.listener.accept() {
                Ok((stream, _)) => streams.push(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if Instant::now() > until || give_up() {
                        return None;
                    }
                    let mut fds = [PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
                    poll(&mut fds, PollTimeout::from(CHECK_INTERVAL)).unwrap();
                }
                Err(error) => panic!("accept: {error}"),
            }
        }
        Some(WaitingRanks { streams })
    }
}

/// The ranks of a job that have arrived at the barrier.
pub struct WaitingRanks {
    streams: Vec<UnixStream>,
}

impl WaitingRanks {
    /// Returns the pids of the ranks.
    pub fn pids(&self) -> Vec<u32> {
        let pid = |stream| getsockopt(stream, PeerCredentials).unwrap().pid() as u32;
        self.streams.iter().map(pid).collect()
    }

    /// Releases the ranks.
    pub fn release(&mut self) {
        // A rank that has ended is noticed when its report is missing.
        self.streams.iter_mut().for_each(|stream| drop(stream.write_all(&[1])));
    }

    /// Blocks until all ranks have reported.
    ///
    /// # Errors
    /// A rank has ended, or has not reported by `until`.
    pub fn reports(&mut self, until: Instant) -> Result<Vec<RankReport>, MissingReport> {
        let report = |stream: &mut UnixStream| {
            let remaining = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            stream.set_read_timeout(Some(remaining)).unwrap();
            let mut bytes = [0; RankReport::SIZE];
            match stream.read_exact(&mut bytes) {
                Ok(()) => Ok(RankReport::from_bytes(bytes)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => Err(MissingReport::Late),
                Err(_) => Err(MissingReport::Gone),
            }
        };
        self.streams.iter_mut().map(report).collect()
    }
}

/// The reason why the report of a rank is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingReport {
    /// The deadline has passed.
    Late,
    /// The rank has ended.
    Gone,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_start_when_all_have_arrived_and_exit_when_they_are_released() {
        let directory = tempfile::tempdir().unwrap();
        let barrier = Barrier::create(directory.path());
        let rank = |sum| {
            let path = barrier.path().to_owned();
            std::thread::spawn(move || Token::wait(&path).finish(80, sum))
        };
        let ranks = [rank(1), rank(2)];
        let mut waiting = barrier.wait_for(2, Instant::now() + Duration::from_secs(60), || false).unwrap();
        assert_eq!(waiting.pids(), [std::process::id(); 2]);
        waiting.release();
        let mut sums: Vec<u64> = waiting
            .reports(Instant::now() + Duration::from_secs(60))
            .unwrap()
            .iter()
            .map(|report| report.sum)
            .collect();
        sums.sort_unstable();
        assert_eq!(sums, [1, 2]);
        drop(waiting);
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    }

    #[test]
    fn a_late_rank_is_distinguished_from_one_that_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let barrier = Barrier::create(directory.path());
        let rank = UnixStream::connect(barrier.path()).unwrap();
        let mut waiting = barrier.wait_for(1, Instant::now() + Duration::from_secs(60), || false).unwrap();
        waiting.release();
        assert_eq!(waiting.reports(Instant::now()), Err(MissingReport::Late));
        drop(rank);
        assert_eq!(waiting.reports(Instant::now() + Duration::from_secs(60)), Err(MissingReport::Gone));
    }

    #[test]
    fn waiting_ends_when_ranks_can_no_longer_arrive() {
        let directory = tempfile::tempdir().unwrap();
        let barrier = Barrier::create(directory.path());
        assert!(barrier.wait_for(1, Instant::now() + Duration::from_secs(600), || true).is_none());
    }
}
