//! Finds the pipe that the capture thread is stuck at.
//!
//! A pipe has one lock for both ends. write(2) and read(2) hold it while the kernel copies from and
//! to the memory of the process that calls them. Where that memory faults slowly (a mapped file on
//! a hung file system, userfaultfd(2)), every use of the pipe but poll(2) waits for as long,
//! uninterruptibly, whatever flags it has. No call tells beforehand.
//!
//! So while there are pipes, the watchdog looks twice a second whether the capture thread is in an
//! uninterruptible wait. If it stays there, a probe, which is another thread, asks each pipe for
//! its number of bytes. That takes the lock: the pipe at which the probe is stuck, too, is
//! reported. Other pipes may be locked as well, the one that stops the capture thread among them.
//! So the next probe asks all pipes but those at which a probe is stuck.

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
use crate::event::{Event, PipeId};
use crate::ioctl;

/// How often the capture thread is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// The same once it seems to be stuck, and how often a probe is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Probes of one capture that may be stuck at a time, each a thread at a pipe of its own. Beyond it
/// no further pipe is reported until the kernel lets go of one of them.
pub const MAX_STUCK_PROBES: usize = 64;
/// A probe's stack, in bytes: it makes one system call after the other.
const PROBE_STACK: usize = 64 << 10;

/// What the capture thread shows its watchdog.
#[derive(Default)]
pub(crate) struct Watched {
    /// Written by the capture thread alone. Relaxed: it is compared to itself, and nothing is read
    /// because of it.
    turns: AtomicU64,
    /// The capture thread's id, 0 before it has one. Relaxed: a late look is made up for by the
    /// next.
    thread: AtomicI32,
    pipes: Mutex<Pipes>,
    /// There are pipes, or it is over.
    changed: Condvar,
}

#[derive(Default)]
struct Pipes {
    /// By the token's word.
    by_token: HashMap<u64, WatchedPipe>,
    over: bool,
}

/// A pipe that is watched, and its name.
type WatchedPipe = (PipeId, Weak<OwnedFd>);

impl Watched {
    fn pipes(&self) -> MutexGuard<'_, Pipes> {
        self.pipes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the calling thread is the capture thread.
    pub(crate) fn begin(&self) {
        self.thread.store(gettid().as_raw(), Relaxed);
    }

    /// Notes that the capture thread goes on.
    pub(crate) fn turn(&self) {
        self.turns.store(self.turns.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Watches a pipe for as long as it is open.
    pub(crate) fn add(&self, token: Token, id: PipeId, pipe: &Arc<OwnedFd>) {
        let mut pipes = self.pipes();
        if pipes.by_token.is_empty() {
            self.changed.notify_all();
        }
        pipes.by_token.insert(token.into(), (id, Arc::downgrade(pipe)));
    }

    /// Watches a pipe no more.
    pub(crate) fn remove(&self, token: Token) {
        self.pipes().by_token.remove(&token.into());
    }

    /// Waits until it is time for another look; `None` if there will be none.
    fn wait(&self, patience: Duration) -> Option<()> {
        let pipes = self.changed.wait_while(self.pipes(), |pipes| pipes.by_token.is_empty() && !pipes.over);
        let pipes = pipes.unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(pipes, patience, |pipes| !pipes.over);
        let (pipes, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (!pipes.over).then_some(())
    }

    /// Looks until it is over; calls `report` for each pipe that is found.
    fn watch(&self, report: impl Fn(Event)) {
        // The turn in which it seemed to be stuck at the last look.
        let mut seen = None;
        let mut probe: Option<Probe> = None;
        // Probes whose pipes were reported.
        let mut stuck_probes: Vec<Probe> = Vec::new();
        while let Some(()) = self.wait(if probe.is_some() || seen.is_some() { LOOK_AGAIN } else { LOOK }) {
            stuck_probes.retain(|probe| !probe.is_over());
            if let Some(mut running) = probe.take() {
                if running.is_over() {
                    // All pipes that are locked were reported. That is enough for a while.
                    seen = None;
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
                        "{MAX_STUCK_PROBES} pipes block at a time, which is the limit (MAX_STUCK_PROBES): those that block \
                         besides are not reported"
                    );
                }
            }
            let stuck = is_uninterruptible(self.thread.load(Relaxed)).then(|| self.turns.load(Relaxed));
            let before = std::mem::replace(&mut seen, stuck);
            if stuck.is_some() && stuck == before && stuck_probes.len() < MAX_STUCK_PROBES {
                probe = Probe::start(self.unreported(&stuck_probes))
                    .inspect_err(|error| tracing::error!(%error, "the capture thread is stuck, and there is no thread to see why"))
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

/// How far a probe is.
#[derive(Default)]
struct Progress {
    /// Its thread's id, 0 before it has one. Relaxed, as all here: what is seen late is seen at the
    /// next look.
    thread: AtomicI32,
    /// Pipes that it has left behind; `usize::MAX` once it has left all.
    at: AtomicUsize,
    /// It is to ask no further pipe.
    abandoned: AtomicBool,
}

/// A thread that asks one pipe after the other. It can't be ended while it is stuck, so nothing
/// waits for it: it keeps one pipe open and nothing else, and ends when the kernel lets it go.
struct Probe {
    progress: Arc<Progress>,
    pipes: Vec<WatchedPipe>,
    /// Where it was at the last look.
    seen: Option<usize>,
}

impl Probe {
    fn start(pipes: Vec<WatchedPipe>) -> io::Result<Probe> {
        let progress = Arc::<Progress>::default();
        let theirs = (Arc::clone(&progress), pipes.clone());
        thread::Builder::new().name("iof-probe".into()).stack_size(PROBE_STACK).spawn(move || {
            let (progress, pipes) = theirs;
            progress.thread.store(gettid().as_raw(), Relaxed);
            for (at, (_, pipe)) in pipes.into_iter().enumerate() {
                progress.at.store(at, Relaxed);
                if let Some(pipe) = pipe.upgrade() {
                    // What it answers does not matter, only when.
                    let _ = ioctl::unread(pipe.as_fd());
                }
                if progress.abandoned.load(Relaxed) {
                    break;
                }
            }
            progress.at.store(usize::MAX, Relaxed);
        })?;
        Ok(Probe { progress, pipes, seen: None })
    }

    fn is_over(&self) -> bool {
        self.progress.at.load(Relaxed) == usize::MAX
    }

    /// Returns the pipe at which it has been stuck since the last call.
    fn stuck_at(&mut self) -> Option<PipeId> {
        let at = self.progress.at.load(Relaxed);
        // Not if it has only had no processor.
        let stays =
            self.seen.replace(at) == Some(at) && is_uninterruptible(self.progress.thread.load(Relaxed));
        let stays = stays && self.progress.at.load(Relaxed) == at;
        self.pipes.get(at).filter(|_| stays).map(|(id, _)| *id)
    }

    /// Has it end at the pipe where it is stuck.
    fn abandon(&mut self) {
        self.progress.abandoned.store(true, Relaxed);
        // The pipe where it was seen is all that is still asked about.
        let pipe = self.seen.and_then(|at| self.pipes.get(at).cloned());
        self.pipes = pipe.into_iter().collect();
    }

    /// Whether it was abandoned at `pipe`.
    fn is_at(&self, pipe: &Weak<OwnedFd>) -> bool {
        self.pipes.iter().any(|(_, own)| own.ptr_eq(pipe))
    }
}

/// Whether a thread of this process waits for something that no signal ends, see proc_pid_stat(5).
fn is_uninterruptible(thread: libc::pid_t) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    // Its name, in parentheses, may have any character.
    stat.is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('D')))
}

/// The thread that watches; dropping it ends it.
pub(crate) struct Watchdog {
    watched: Arc<Watched>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts it. `report` runs on its thread.
    pub(crate) fn start(
        watched: Arc<Watched>,
        report: impl Fn(Event) + Send + 'static,
    ) -> io::Result<Watchdog> {
        let theirs = Arc::clone(&watched);
        let thread = thread::Builder::new().name("iof-watchdog".into()).spawn(move || {
            super::capture::leave_signals_to_others();
            theirs.watch(report);
        })?;
        Ok(Watchdog { watched, thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.watched.pipes().over = true;
        self.watched.changed.notify_all();
        if let Some(thread) = self.thread.take()
            // Dropped in its report: the thread ends afterwards.
            && thread.thread().id() != thread::current().id()
        {
            // It panicked only if `report` did, which was reported where panics are.
            let _ = thread.join();
        }
    }
}
