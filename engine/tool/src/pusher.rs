//! Pushers: a pusher forwards a file to the stdin of processes.

use std::fmt;
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
use crate::push::{Push, Supplied, Supply};
use crate::tool::Tool;

/// A thread that reads a file, such as the tool's own stdin, and pushes its contents until the end
/// of the file or a call of [`Pusher::stop`]. All of it goes to the same targets, as one push.
/// (RFC0025 calls this internal collection, `PMIX_IOF_PUSH_STDIN`.)
///
/// The file may be in blocking or non-blocking mode, which is not changed. No other code should
/// read the file meanwhile. When no target can receive more, the pusher stops reading. A pusher
/// that is dropped without [`Pusher::join`] continues, as after [`Pusher::detach`].
///
/// # Example
/// ```
/// # use std::collections::BTreeMap;
/// # use iof_engine::{App, Config, Engine, Grant, JobSpec, Rendezvous, Stdin};
/// # use iof_proto::directive::key;
/// # use iof_proto::{Info, Nspace, Proc, Rank};
/// use iof_tool::{Push, Pusher};
///
/// # let engine = Engine::start(Config::new(Rendezvous::None))?;
/// # let tool = engine.attach("example", Grant::Never)?;
/// # let rank = Proc::new(Nspace::new("job1")?, Rank(0));
/// # let mut spec = JobSpec::new(rank.nspace.clone(), vec![App::new("wc", ["-c"])]);
/// # spec.stdin = BTreeMap::from([(Rank(0), Stdin::Pipe)]);
/// # let job = engine.spawn(&spec)?;
/// let push = Push { directives: vec![Info::new(key::PMIX_IOF_COMPLETE, true)], ..Push::new(vec![rank]) };
/// let pusher = Pusher::start(tool, &push, std::fs::File::open("Cargo.toml")?, |_| {})?;
/// let report = pusher.join()?;
/// assert_eq!(report.bytes, std::fs::metadata("Cargo.toml")?.len());
/// # job.wait();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pusher {
    /// A failed push returns its tool, because the engine ends the push when the tool is dropped.
    thread: JoinHandle<Result<PushReport, Failed>>,
    stop: Ringer,
    granted: PushGranted,
    read: Arc<AtomicU64>,
}

type Failed = Box<(PushError, Tool)>;

impl Pusher {
    /// Starts the thread that pushes the contents of `file`, whose descriptor it duplicates.
    /// Blocks until the engine has granted the push. `on_wait` is called as by [`Tool::push`], but
    /// on the pusher's thread.
    ///
    /// # Errors
    /// Returns the errors of [`Tool::push`], and [`PushError::Thread`] if the process has no
    /// descriptor or thread left.
    pub fn start(
        mut tool: Tool,
        push: &Push,
        file: impl AsFd,
        on_wait: impl FnMut(&SlowTargets) + Send + 'static,
    ) -> Result<Pusher, PushError> {
        let file = file.as_fd().try_clone_to_owned().map_err(PushError::Thread)?;
        let (stop, stopped) = bell().map_err(PushError::Thread)?;
        let granted = tool.begin_push(push, None)?;
        let (number, drop) = (granted.push, push.drops());
        let read = Arc::new(AtomicU64::new(0));
        let mut supply = FileSupply { file, stopped, read: Arc::clone(&read) };
        let body = move || match tool.push_all(number, drop, &mut supply, on_wait) {
            Ok(report) => Ok(report),
            Err(error) => Err(Box::new((error, tool))),
        };
        let thread =
            thread::Builder::new().name("iof-pusher".into()).spawn(body).map_err(PushError::Thread)?;
        Ok(Pusher { thread, stop, granted, read })
    }

    /// Returns what the engine granted: which targets are skipped and which directives are ignored.
    pub fn granted(&self) -> &PushGranted {
        &self.granted
    }

    /// Returns the number of bytes read from the file so far. All targets have received them,
    /// except for at most the size of the push's cache
    /// ([`PushDirectives::cache_size`](iof_proto::PushDirectives::cache_size)).
    pub fn progress(&self) -> u64 {
        self.read.load(Relaxed)
    }

    /// Returns whether [`Pusher::join`] would not block.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends the push: the pusher reads no more, and pushes only the bytes read so far. Does not
    /// block.
    pub fn stop(&self) {
        self.stop.ring();
    }

    /// Lets the pusher continue on its own, and returns what can still stop it. If the push fails,
    /// its targets see the end of their input then, and not only after [`Pusher::join`].
    pub fn detach(self) -> DetachedPusher {
        DetachedPusher { stop: self.stop }
    }

    /// Blocks until the push has ended: every target has received all bytes or can receive no more.
    /// Returns the report.
    ///
    /// # Errors
    /// Returns [`PushError`] if the push failed.
    pub fn join(self) -> Result<PushReport, PushError> {
        self.join_with(|_| {})
    }

    /// Does the same as [`Pusher::join`], and calls `on_failure` with the error of a push that
    /// failed. The targets of this push can see the end of their input only after the call.
    ///
    /// # Errors
    /// Returns [`PushError`] if the push failed.
    pub fn join_with(self, on_failure: impl FnOnce(&PushError)) -> Result<PushReport, PushError> {
        let result = self.thread.join().map_err(|_| PushError::Died)?;
        result.map_err(|failed| {
            let (error, _tool) = *failed;
            on_failure(&error);
            error
        })
    }
}

impl fmt::Debug for Pusher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Pusher");
        shown.field("granted", &self.granted).field("progress", &self.progress());
        shown.field("finished", &self.is_finished()).finish_non_exhaustive()
    }
}

/// A pusher that can't be joined, see [`Pusher::detach`]. It continues if this is dropped.
pub struct DetachedPusher {
    stop: Ringer,
}

impl DetachedPusher {
    /// Ends the push, see [`Pusher::stop`].
    pub fn stop(&self) {
        self.stop.ring();
    }
}

impl fmt::Debug for DetachedPusher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedPusher").finish_non_exhaustive()
    }
}

struct FileSupply {
    file: OwnedFd,
    stopped: Bell,
    read: Arc<AtomicU64>,
}

impl Supply for FileSupply {
    fn read(&mut self, room: &mut [u8]) -> io::Result<Supplied> {
        let wanted = PollFlags::POLLIN;
        let mut ready = [PollFd::new(self.file.as_fd(), wanted), PollFd::new(self.stopped.as_fd(), wanted)];
        match poll(&mut ready, PollTimeout::ZERO) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(Supplied::NotNow),
            Err(errno) => return Err(errno.into()),
        }
        let [file, stopped] = ready.map(|file| file.any().unwrap_or(true));
        if stopped {
            return Ok(Supplied::End);
        }
        if !file {
            return Ok(Supplied::NotNow);
        }
        match read(&self.file, room) {
            Ok(0) => Ok(Supplied::End),
            Ok(n) => {
                // Relaxed: the number is only shown, and orders nothing else.
                self.read.fetch_add(n as u64, Relaxed);
                Ok(Supplied::Bytes(n))
            }
            Err(Errno::EINTR | Errno::EAGAIN) => Ok(Supplied::NotNow),
            Err(errno) => Err(errno.into()),
        }
    }

    fn files(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.file.as_fd(), self.stopped.as_fd()]
    }
}
