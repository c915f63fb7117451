//! A job: its ranks, their streams, how they ended.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use iof_capture::{PtyMaster, Signaller, SourceId, WindowSize};
use iof_proto::{Channel, Nspace, ProcState, Rank};
use nix::sys::signal::Signal;

use crate::state::Tables;

/// The channels that every rank has.
pub(crate) const CHANNELS: [Channel; 3] = [Channel::Stdout, Channel::Stderr, Channel::Stddiag];

/// What the engine knows of one rank.
pub(crate) struct RankState {
    /// In the order of [`CHANNELS`].
    pub streams: [SourceId; CHANNELS.len()],
    pub executable: String,
    pub pid: u32,
    pub signaller: Signaller,
    /// Until it exits.
    pub pty: Option<PtyMaster>,
    pub exit: Option<ExitStatus>,
}

/// What the engine knows of one job.
#[derive(Default)]
pub(crate) struct JobState {
    pub ranks: Vec<RankState>,
    /// All its ranks are there: nothing new will come.
    pub started: bool,
    /// Streams that are not complete.
    pub open_streams: usize,
    pub grace: Option<Duration>,
    pub cut_off: Vec<(Rank, Channel)>,
    pub first_failure: Option<(Rank, ExitStatus)>,
}

impl JobState {
    pub(crate) fn rank(&self, rank: Rank) -> Option<&RankState> {
        self.ranks.get(usize::try_from(rank.0).ok()?)
    }

    /// Notes how a rank ended; a rank whose status somebody else reaped counts as failed with code 1.
    pub(crate) fn exited(&mut self, rank: Rank, status: io::Result<ExitStatus>) {
        let status = status.unwrap_or_else(|error| {
            tracing::error!(%rank, %error, "a rank's exit status is lost");
            ExitStatus::from_raw(1 << 8)
        });
        if let Some(state) = usize::try_from(rank.0).ok().and_then(|i| self.ranks.get_mut(i)) {
            state.exit = Some(status);
            // Or its children's terminal would not be hung up when its stream is closed.
            state.pty = None;
        }
        if !status.success() && self.first_failure.is_none() {
            self.first_failure = Some((rank, status));
        }
    }

    pub(crate) fn has_exited(&self) -> bool {
        self.started && self.ranks.iter().all(|rank| rank.exit.is_some())
    }

    pub(crate) fn status(&self) -> JobStatus {
        JobStatus { first_failure: self.first_failure, cut_off: self.cut_off.clone() }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.has_exited() && self.open_streams == 0
    }
}

/// A rank's state in PMIx's words.
pub(crate) fn proc_state(rank: &RankState) -> ProcState {
    match rank.exit {
        None => ProcState::Running,
        Some(status) if status.success() => ProcState::Terminated,
        Some(status) if status.signal().is_some() => ProcState::Killed,
        Some(_) => ProcState::Failed,
    }
}

/// The code that a shell would show: the exit code, or 128 + n for a process that signal n killed.
pub fn exit_code(status: ExitStatus) -> i32 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => signal.saturating_add(128),
        (None, None) => 1,
    }
}

/// How a job ended.
#[derive(Clone, Debug, Default)]
pub struct JobStatus {
    /// The rank that failed first, with its status; `None` if all ended with 0.
    pub first_failure: Option<(Rank, ExitStatus)>,
    /// The streams that were not at their end when their rank's grace was over, see
    /// [`JobSpec::grace`](crate::JobSpec::grace). All others had their end of file.
    pub cut_off: Vec<(Rank, Channel)>,
}

impl JobStatus {
    /// The exit code of the rank that failed first, 0 if none did.
    pub fn code(&self) -> i32 {
        self.first_failure.map_or(0, |(_, status)| exit_code(status))
    }
}

/// A running job. Dropping it changes nothing: the engine knows the job until the engine ends.
#[derive(Clone)]
pub struct Job {
    pub(crate) tables: Arc<Tables>,
    pub(crate) nspace: Nspace,
}

impl Job {
    /// The job's name.
    pub fn nspace(&self) -> &Nspace {
        &self.nspace
    }

    /// Waits until every rank has exited and every stream of theirs is complete, be it by a grandchild that held
    /// it. From any thread.
    pub fn wait(&self) -> JobStatus {
        self.wait_until(JobState::is_over)
    }

    /// Waits until every rank has exited; there may still be output to come.
    pub fn wait_exit(&self) -> JobStatus {
        self.wait_until(JobState::has_exited)
    }

    fn wait_until(&self, reached: impl Fn(&JobState) -> bool) -> JobStatus {
        let mut state = self.tables.lock();
        loop {
            match state.jobs.get(&self.nspace) {
                Some(job) if !reached(job) && !state.stopping => {}
                job => return job.map(JobState::status).unwrap_or_default(),
            }
            state = self.tables.wait(state);
        }
    }

    /// Sends `signal` to every rank: to its whole process group if it has one of its own, also when the rank itself
    /// has ended and left children there (before Linux 6.9 these are out of reach). Gives how many there were.
    pub fn signal(&self, signal: Signal) -> usize {
        self.send(signal, |_| true)
    }

    /// Sends `signal` to the ranks that have process groups of their own. For signals that the terminal sent to the
    /// embedder: the others are in its group, so they have them already.
    pub fn signal_groups(&self, signal: Signal) -> usize {
        self.send(signal, Signaller::has_group)
    }

    fn send(&self, signal: Signal, to: impl Fn(&Signaller) -> bool) -> usize {
        let state = self.tables.lock();
        let Some(job) = state.jobs.get(&self.nspace) else { return 0 };
        let there = job.ranks.iter().filter(|rank| rank.exit.is_none() || rank.signaller.has_group());
        there.filter(|rank| to(&rank.signaller) && rank.signaller.send(signal).is_ok()).count()
    }

    /// A handle of the pty of `rank`, to type there; `None` if it has none, or has exited. While there is a handle, the
    /// rank does not hear that the engine has ended.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn pty(&self, rank: Rank) -> io::Result<Option<PtyMaster>> {
        let state = self.tables.lock();
        let job = state.jobs.get(&self.nspace);
        job.and_then(|job| job.rank(rank)?.pty.as_ref()).map(PtyMaster::try_clone).transpose()
    }

    /// Changes the size of all ranks' ptys; the processes in their foreground get SIGWINCH. Gives how many there were.
    pub fn resize(&self, size: WindowSize) -> usize {
        let state = self.tables.lock();
        let Some(job) = state.jobs.get(&self.nspace) else { return 0 };
        let ptys = job.ranks.iter().filter_map(|rank| rank.pty.as_ref());
        ptys.filter(|pty| pty.resize(size).is_ok()).count()
    }

    /// The rank that leads the process group `group`.
    pub fn rank_of_group(&self, group: u32) -> Option<Rank> {
        let state = self.tables.lock();
        let job = state.jobs.get(&self.nspace)?;
        let leads = |rank: &RankState| rank.pid == group && rank.signaller.has_group();
        (0..).map(Rank).zip(&job.ranks).find(|(_, rank)| leads(rank)).map(|(rank, _)| rank)
    }
}
