//! The watchdog, which finds the pipe that blocks the capture thread.
//!
//! A pipe has one lock for both ends. write(2) and read(2) hold it while the kernel copies from and
//! to the memory of the calling process. While that memory faults slowly (a mapped file on a hung
//! file system, userfaultfd(2)), every use of the pipe except poll(2) waits, uninterruptibly and
//! regardless of its flags. No call detects this beforehand.
//!
//! So while there are pipes, the watchdog checks twice a second whether the capture thread is in an
//! uninterruptible wait. If the thread stays there, a probe, which is another thread, asks each
//! pipe for its number of bytes. That call takes the lock, so the pipe at which the probe is stuck
//! as well is reported. Other pipes may be locked too, and the capture thread may wait for one of
//! them. Therefore the next probe asks all pipes except those at which a probe is stuck.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::unistd::gettid;

use crate::backend::Token;
use crate::ioctl;
use crate::messages::event::{Event, PipeId};

/// The interval between checks of the capture thread.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The interval between checks once the capture thread seems to be stuck, and of a probe.
const RECHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The most probes of one capture that may be stuck at a time, each of them a thread at a different
/// pipe. When the limit is reached, no further pipe is reported until the kernel releases one of
/// the probes.
pub const MAX_STUCK_PROBES: usize = 64;
/// The size of a probe's stack, in bytes. A probe only makes one system call after the other.
const PROBE_STACK: usize = 64 << 10;

/// The state that the capture thread shares with its watchdog.
#[derive(Default)]
pub(crate) struct WatchState {
    /// The number of turns of the capture thread, its only writer. Relaxed: the watchdog compares
    /// the value only to an earlier one, and no other memory is read depending on it.
    turns: AtomicU64,
    /// The capture thread's id, 0 before the thread runs. Relaxed: the next check sees a value that
    /// this one misses.
    thread: AtomicI32,
    pipes: Mutex<Pipes>,
    /// Notified when a pipe is added while the watchdog is idle, and at the end.
    changed: Condvar,
}

#[derive(Default)]
struct Pipes {
    /// The pipes, by their token's word.
    by_token: HashMap<u64, WatchedPipe>,
    /// Set if the watchdog sleeps until there are pipes.
    idle: bool,
    over: bool,
}

/// A pipe that is watched, and its id.
type WatchedPipe = (PipeId, Weak<OwnedFd>);

impl WatchState {
    fn pipes(&self) -> MutexGuard<'_, Pipes> {
        self.pipes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the calling thread is the capture thread.
    pub(crate) fn begin(&self) {
        self.thread.store(gettid().as_raw(), Relaxed);
    }

    /// Records a turn of the capture thread.
    pub(crate) fn turn(&self) {
        self.turns.store(self.turns.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Watches a pipe while it is open.
    pub(crate) fn add(&self, token: Token, id: PipeId, pipe: &Arc<OwnedFd>) {
        let mut pipes = self.pipes();
        if pipes.idle {
            self.changed.notify_all();
        }
        pipes.by_token.insert(token.into(), (id, Arc::downgrade(pipe)));
    }

    /// Stops watching a pipe.
    pub(crate) fn remove(&self, token: Token) {
        self.pipes().by_token.remove(&token.into());
    }

    /// Blocks until there are pipes, and then for `interval`. Returns `None` if the watchdog is to
    /// end.
    fn wait(&self, interval: Duration) -> Option<()> {
        let is_idle = |pipes: &mut Pipes| {
            pipes.idle = pipes.by_token.is_empty() && !pipes.over;
            pipes.idle
        };
        let pipes = self.changed.wait_while(self.pipes(), is_idle).unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(pipes, interval, |pipes| !pipes.over);
        let (pipes, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (!pipes.over).then_some(())
    }

    /// Checks the capture thread until the end. Calls `report` for each pipe that blocks.
    fn watch(&self, report: impl Fn(Event)) {
        // The turn in which the capture thread seemed to be stuck at the last check.
        let mut suspected = None;
        let mut probe: Option<Probe> = None;
        // Probes whose pipes were reported.
        let mut stuck_probes: Vec<Probe> = Vec::new();
        while let Some(()) =
            self.wait(if probe.is_some() || suspected.is_some() { RECHECK_INTERVAL } else { CHECK_INTERVAL })
        {
            stuck_probes.retain(|probe| !probe.is_over());
            if let Some(mut running) = probe.take() {
                if running.is_over() {
                    // The probe found no further locked pipe. Continue with the long interval.
                    suspected = None;
                    continue;
                }
                let Some(pipe) = running.stuck_at() else {
                    probe = Some(running);
                    continue;
                };
                running.abandon();
                stuck_probes.push(running);
                report(Event::Stalled { pipe });
                if stuck_probes.len() == MAX_STUCK_PROBES {
                    tracing::error!(
                        "{MAX_STUCK_PROBES} pipes block at the same time, which is the limit (MAX_STUCK_PROBES): further \
                         pipes that block are not reported"
                    );
                }
            }
            let stuck = is_uninterruptible(self.thread.load(Relaxed)).then(|| self.turns.load(Relaxed));
            let before = std::mem::replace(&mut suspected, stuck);
            if stuck.is_some() && stuck == before && stuck_probes.len() < MAX_STUCK_PROBES {
                probe = Probe::start(self.unreported(&stuck_probes))
                    .inspect_err(|error| tracing::error!(%error, "the capture thread is stuck, and no thread can be started to find the pipe"))
                    .ok();
            }
        }
    }

    /// Returns the pipes at which no probe is stuck.
    fn unreported(&self, stuck_probes: &[Probe]) -> Vec<WatchedPipe> {
        let pipes = self.pipes();
        let unreported =
            pipes.by_token.values().filter(|(_, pipe)| !stuck_probes.iter().any(|probe| probe.is_at(pipe)));
        unreported.cloned().collect()
    }
}

/// The progress of a probe.
#[derive(Default)]
struct Progress {
    /// The thread's id, 0 before the thread runs. Relaxed, as all accesses to these fields: the
    /// next check sees a value that this one misses.
    thread: AtomicI32,
    /// The index of the pipe that the probe asks; `usize::MAX` once it is done with all.
    index: AtomicUsize,
    /// Set if the probe is to ask no further pipe.
    abandoned: AtomicBool,
}

/// A thread that asks one pipe after the other. It cannot be ended while it is stuck, so nothing
/// waits for it. A stuck probe keeps one pipe open and nothing else, and ends when the kernel
/// releases it.
struct Probe {
    progress: Arc<Progress>,
    pipes: Vec<WatchedPipe>,
    /// The index at the last check.
    last_index: Option<usize>,
}

impl Probe {
    fn start(pipes: Vec<WatchedPipe>) -> io::Result<Probe> {
        let progress = Arc::<Progress>::default();
        let thread_parts = (Arc::clone(&progress), pipes.clone());
        thread::Builder::new().name("iof-probe".into()).stack_size(PROBE_STACK).spawn(move || {
            let (progress, pipes) = thread_parts;
            progress.thread.store(gettid().as_raw(), Relaxed);
            for (index, (_, pipe)) in pipes.into_iter().enumerate() {
                progress.index.store(index, Relaxed);
                if let Some(pipe) = pipe.upgrade() {
                    // Only the time that the call takes matters, not its result.
                    let _ = ioctl::unread(pipe.as_fd());
                }
                if progress.abandoned.load(Relaxed) {
                    break;
                }
            }
            progress.index.store(usize::MAX, Relaxed);
        })?;
        Ok(Probe { progress, pipes, last_index: None })
    }

    fn is_over(&self) -> bool {
        self.progress.index.load(Relaxed) == usize::MAX
    }

    /// Returns the pipe at which the probe has been stuck since the last call.
    fn stuck_at(&mut self) -> Option<PipeId> {
        let index = self.progress.index.load(Relaxed);
        // A probe that only waits for a processor is not in an uninterruptible wait.
        let is_stuck = self.last_index.replace(index) == Some(index)
            && is_uninterruptible(self.progress.thread.load(Relaxed));
        let is_stuck = is_stuck && self.progress.index.load(Relaxed) == index;
        self.pipes.get(index).filter(|_| is_stuck).map(|(id, _)| *id)
    }

    /// Lets the probe end after the pipe at which it is stuck.
    fn abandon(&mut self) {
        self.progress.abandoned.store(true, Relaxed);
        // `is_at` asks only about the pipe at which the probe is stuck.
        let pipe = self.last_index.and_then(|index| self.pipes.get(index).cloned());
        self.pipes = pipe.into_iter().collect();
    }

    /// Returns whether the probe was abandoned at `pipe`.
    fn is_at(&self, pipe: &Weak<OwnedFd>) -> bool {
        self.pipes.iter().any(|(_, own)| own.ptr_eq(pipe))
    }
}

/// Returns whether a thread of this process is in an uninterruptible wait, see proc_pid_stat(5).
fn is_uninterruptible(thread: libc::pid_t) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    // The thread's name, in parentheses, may contain any character.
    stat.is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('D')))
}

/// The watchdog's thread. Dropping it ends the thread.
pub(crate) struct Watchdog {
    watched: Arc<WatchState>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts the thread, on which `report` runs.
    pub(crate) fn start(
        watched: Arc<WatchState>,
        report: impl Fn(Event) + Send + 'static,
    ) -> io::Result<Watchdog> {
        let shared = Arc::clone(&watched);
        let thread = thread::Builder::new().name("iof-watchdog".into()).spawn(move || {
            crate::process::signal::leave_signals_to_others();
            shared.watch(report);
        })?;
        Ok(Watchdog { watched, thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.watched.pipes().over = true;
        self.watched.changed.notify_all();
        if let Some(thread) = self.thread.take()
            // When dropped in `report`, the thread ends later, without being joined.
            && thread.thread().id() != thread::current().id()
        {
            // The thread panics only if `report` does. The panic hook has reported that.
            let _ = thread.join();
        }
    }
}
