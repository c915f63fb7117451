//! A pusher: what can be read from a file goes into the stdin of some processes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use iof_proto::{PushGranted, PushReport, SlowTargets};
use iof_shm_ring::{Bell, Ringer, bell};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::read;

use crate::error::PushError;
use crate::push::{Push, Read, Supply, drops};
use crate::tool::Tool;

/// Reads a file, such as the tool's own stdin, and pushes it, on a thread of its own, until its end
/// or until it is told to stop (RFC0025's internal collection, `PMIX_IOF_PUSH_STDIN`). All of it
/// goes to the same targets, as one push.
///
/// The file may be in blocking or non-blocking mode, and stays as it is; nobody else should read it
/// meanwhile. When all targets are gone, no more of it is read. Dropping a pusher without having
/// joined it leaves it at work.
///
/// # Example
/// ```
/// # use std::collections::BTreeMap;
/// # use iof_engine::{App, Config, Engine, Grant, JobSpec, Rendezvous, Stdin};
/// # use iof_proto::directive::{Info, key};
/// # use iof_proto::{Nspace, Proc, Rank};
/// use iof_tool::{Push, Pusher};
///
/// # let engine = Engine::start(Config { rendezvous: Rendezvous::None, ..Config::default() })?;
/// # let tool = engine.attach("example", Grant::Never)?;
/// # let stdin = BTreeMap::from([(Rank(0), Stdin::Pipe)]);
/// # let rank = Proc { nspace: Nspace::new("job1")?, rank: Rank(0) };
/// # let spec = JobSpec { stdin, ..JobSpec::new(rank.nspace.clone(), vec![App::new("wc", ["-c"])]) };
/// # let job = engine.spawn(&spec)?;
/// let push = Push { directives: vec![Info::new(key::PMIX_IOF_COMPLETE, true)], ..Push::new(vec![rank]) };
/// let pusher = Pusher::start(tool, &push, std::fs::File::open("Cargo.toml")?, |_| {})?;
/// let report = pusher.join()?;
/// assert_eq!(report.bytes, std::fs::metadata("Cargo.toml")?.len());
/// # job.wait();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pusher {
    thread: JoinHandle<Result<PushReport, PushError>>,
    stop: Ringer,
    granted: PushGranted,
    read: Arc<AtomicU64>,
}

impl Pusher {
    /// Begins to push what comes from `file`. `on_wait` is called on the pusher's thread, as
    /// [`Tool::push`] has it.
    ///
    /// # Errors
    /// As [`Tool::push`]; or the process has no descriptors or threads left.
    pub fn start(
        mut tool: Tool,
        push: &Push,
        file: impl AsFd,
        on_wait: impl FnMut(&SlowTargets) + Send + 'static,
    ) -> Result<Pusher, PushError> {
        let file = file.as_fd().try_clone_to_owned().map_err(PushError::Thread)?;
        let (stop, stopped) = bell().map_err(PushError::Thread)?;
        let granted = tool.begin_push(push, None)?;
        let (number, drop) = (granted.push, drops(push));
        let read = Arc::new(AtomicU64::new(0));
        let mut supply = File { file, stopped, read: Arc::clone(&read) };
        let body = move || tool.push_all(number, drop, &mut supply, on_wait);
        let thread =
            thread::Builder::new().name("iof-pusher".into()).spawn(body).map_err(PushError::Thread)?;
        Ok(Pusher { thread, stop, granted, read })
    }

    /// What the engine granted: which targets are skipped, which directives ignored.
    pub fn granted(&self) -> &PushGranted {
        &self.granted
    }

    /// Bytes that were read so far, at most a cache more than have arrived.
    pub fn progress(&self) -> u64 {
        self.read.load(Relaxed)
    }

    /// Whether [`Pusher::join`] would not wait.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Reads no more: what was read so far is all (a push with `PMIX_IOF_COMPLETE` in RFC0025's
    /// words).
    pub fn stop(&self) {
        self.stop.ring();
    }

    /// Waits until all that was read has arrived, or its targets are gone.
    ///
    /// # Errors
    /// [`PushError`].
    pub fn join(self) -> Result<PushReport, PushError> {
        self.thread.join().unwrap_or(Err(PushError::Died))
    }
}

struct File {
    file: OwnedFd,
    stopped: Bell,
    read: Arc<AtomicU64>,
}

impl Supply for File {
    fn read(&mut self, room: &mut [u8]) -> io::Result<Read> {
        let wanted = PollFlags::POLLIN;
        let mut ready = [PollFd::new(self.file.as_fd(), wanted), PollFd::new(self.stopped.as_fd(), wanted)];
        match poll(&mut ready, PollTimeout::ZERO) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(Read::NotNow),
            Err(errno) => return Err(errno.into()),
        }
        let [file, stopped] = ready.map(|file| file.any().unwrap_or(true));
        if stopped {
            return Ok(Read::End);
        }
        if !file {
            return Ok(Read::NotNow);
        }
        match read(&self.file, room) {
            Ok(0) => Ok(Read::End),
            Ok(n) => {
                // Ordered with nothing: a number to be shown.
                self.read.fetch_add(n as u64, Relaxed);
                Ok(Read::Bytes(n))
            }
            Err(Errno::EINTR | Errno::EAGAIN) => Ok(Read::NotNow),
            Err(errno) => Err(errno.into()),
        }
    }

    fn files(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.file.as_fd(), self.stopped.as_fd()]
    }
}
