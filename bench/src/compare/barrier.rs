//! Where ranks wait before they work and after: so that a launcher is measured while it forwards, and not while it starts
//! and ends them.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::os::fd::AsFd;

use crate::cpu;

/// How often is looked whether ranks can still come.
const LOOK: u16 = 50;

/// What a rank reports when its work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// When, by the monotonic clock.
    pub at: u64,
    /// Bytes that it wrote or read.
    pub bytes: u64,
    /// A sum of what it read.
    pub sum: u64,
}

impl Done {
    const SIZE: usize = 24;

    fn to_bytes(self) -> Vec<u8> {
        [self.at, self.bytes, self.sum].iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn from_bytes(bytes: [u8; Done::SIZE]) -> Done {
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        Done { at: word(0), bytes: word(8), sum: word(16) }
    }
}

/// The rank's side.
pub struct Ticket(UnixStream);

impl Ticket {
    /// Waits until all ranks are there.
    pub fn wait(gate: &Path) -> Ticket {
        let mut stream = UnixStream::connect(gate).unwrap();
        stream.read_exact(&mut [0]).unwrap();
        Ticket(stream)
    }

    /// Reports, and waits until all may leave.
    pub fn leave(mut self, bytes: u64, sum: u64) {
        let done = Done { at: cpu::monotonic(), bytes, sum };
        self.0.write_all(&done.to_bytes()).unwrap();
        // Whether the other side said something or went away is the same.
        let _ = self.0.read(&mut [0]);
    }
}

/// The other side.
pub struct Gate {
    listener: UnixListener,
    path: PathBuf,
}

impl Gate {
    /// A gate in this directory, which has one.
    pub fn open(directory: &Path) -> Gate {
        let path = directory.join("gate");
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        Gate { listener, path }
    }

    /// Where ranks find it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until `ranks` are there; none if they are not by `until`, or when `hopeless`.
    pub fn gather(&self, ranks: u32, until: Instant, mut hopeless: impl FnMut() -> bool) -> Option<Waiting> {
        let mut streams = Vec::new();
        while streams.len() < ranks as usize {
            match self.listener.accept() {
                Ok((stream, _)) => streams.push(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if Instant::now() > until || hopeless() {
                        return None;
                    }
                    let mut fds = [PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
                    poll(&mut fds, PollTimeout::from(LOOK)).unwrap();
                }
                Err(error) => panic!("accept: {error}"),
            }
        }
        Some(Waiting { streams })
    }
}

/// The ranks of a job.
pub struct Waiting {
    streams: Vec<UnixStream>,
}

impl Waiting {
    /// Their processes.
    pub fn pids(&self) -> Vec<u32> {
        let pid = |stream| getsockopt(stream, PeerCredentials).unwrap().pid() as u32;
        self.streams.iter().map(pid).collect()
    }

    /// Lets them work.
    pub fn release(&mut self) {
        // A rank that is gone is missed when it does not report.
        self.streams.iter_mut().for_each(|stream| drop(stream.write_all(&[1])));
    }

    /// What all report when they are done, or why one does not.
    pub fn done(&mut self, until: Instant) -> Result<Vec<Done>, Missing> {
        let report = |stream: &mut UnixStream| {
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            stream.set_read_timeout(Some(left)).unwrap();
            let mut bytes = [0; Done::SIZE];
            match stream.read_exact(&mut bytes) {
                Ok(()) => Ok(Done::from_bytes(bytes)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => Err(Missing::Late),
                Err(_) => Err(Missing::Gone),
            }
        };
        self.streams.iter_mut().map(report).collect()
    }
}

/// Why a rank does not report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// It was not done in time.
    Late,
    /// It has ended before.
    Gone,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_work_when_all_are_there_and_leave_when_they_may() {
        let directory = tempfile::tempdir().unwrap();
        let gate = Gate::open(directory.path());
        let rank = |sum| {
            let path = gate.path().to_owned();
            std::thread::spawn(move || Ticket::wait(&path).leave(80, sum))
        };
        let ranks = [rank(1), rank(2)];
        let mut waiting = gate.gather(2, Instant::now() + Duration::from_secs(60), || false).unwrap();
        assert_eq!(waiting.pids(), [std::process::id(); 2]);
        waiting.release();
        let mut sums: Vec<u64> = waiting
            .done(Instant::now() + Duration::from_secs(60))
            .unwrap()
            .iter()
            .map(|done| done.sum)
            .collect();
        sums.sort_unstable();
        assert_eq!(sums, [1, 2]);
        drop(waiting);
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    }

    #[test]
    fn a_rank_that_is_late_is_told_from_one_that_has_gone() {
        let directory = tempfile::tempdir().unwrap();
        let gate = Gate::open(directory.path());
        let rank = UnixStream::connect(gate.path()).unwrap();
        let mut waiting = gate.gather(1, Instant::now() + Duration::from_secs(60), || false).unwrap();
        waiting.release();
        assert_eq!(waiting.done(Instant::now()), Err(Missing::Late));
        drop(rank);
        assert_eq!(waiting.done(Instant::now() + Duration::from_secs(60)), Err(Missing::Gone));
    }

    #[test]
    fn nobody_waits_for_ranks_that_cannot_come() {
        let directory = tempfile::tempdir().unwrap();
        let gate = Gate::open(directory.path());
        assert!(gate.gather(1, Instant::now() + Duration::from_secs(600), || true).is_none());
    }
}
