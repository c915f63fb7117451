//! A job: its ranks, their streams, how they ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use std::{io, mem};

use iof_capture::{Event, ProcessId, PtyMaster, Signaller, SourceId, WindowSize};
use iof_proto::rendezvous::Entry;
use iof_proto::{Channel, Nspace, Rank};
use nix::sys::signal::Signal;

use crate::exit::Exit;
use crate::state::Tables;

/// The channels that every rank has.
pub(crate) const CHANNELS: [Channel; 3] = [Channel::Stdout, Channel::Stderr, Channel::Stddiag];

/// What the engine knows of one rank.
pub(crate) struct RankState {
    /// In the order of [`CHANNELS`].
    pub streams: [SourceId; CHANNELS.len()],
    pub executable: String,
    /// 0 if the embedder did not tell.
    pub pid: u32,
    /// Unless only the embedder can reach it.
    pub signaller: Option<Signaller>,
    /// Until it exits.
    pub pty: Option<PtyMaster>,
    pub exit: Option<Exit>,
    /// The embedder has reported its end.
    pub reported: bool,
}

impl RankState {
    /// Its number at the capture: a rank has streams of its own, so the first one's number names no other process.
    pub(crate) fn process(&self) -> ProcessId {
        ProcessId(self.streams[0].0)
    }
}

/// What the engine knows of one job.
#[derive(Default)]
pub(crate) struct JobState {
    pub ranks: BTreeMap<Rank, RankState>,
    /// All its ranks are there: nothing new will come.
    pub started: bool,
    /// Streams that are not complete.
    pub open_streams: usize,
    pub grace: Option<Duration>,
    /// By which tools find it, until it is forgotten or the engine ends.
    pub entry: Option<Entry>,
    pub cut_off: Vec<(Rank, Channel)>,
    pub first_failure: Option<(Rank, Exit)>,
}

impl JobState {
    /// Notes how a rank ended.
    pub(crate) fn exited(&mut self, rank: Rank, exit: Exit) {
        if let Some(state) = self.ranks.get_mut(&rank) {
            state.exit = Some(exit);
            // Or its children's terminal would not be hung up when its stream is closed.
            state.pty = None;
        }
        if !exit.success() && self.first_failure.is_none() {
            self.first_failure = Some((rank, exit));
        }
    }

    pub(crate) fn has_exited(&self) -> bool {
        self.started && self.ranks.values().all(|rank| rank.exit.is_some())
    }

    pub(crate) fn status(&self) -> JobStatus {
        JobStatus { first_failure: self.first_failure, cut_off: self.cut_off.clone() }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.has_exited() && self.open_streams == 0
    }
}

/// How a job ended.
#[derive(Clone, Debug, Default)]
pub struct JobStatus {
    /// The rank that failed first, and how; `None` if all ended with 0. A rank of which nobody knows how it ended has
    /// failed.
    pub first_failure: Option<(Rank, Exit)>,
    /// The streams that were not at their end when their rank's grace was over, see
    /// [`JobSpec::grace`](crate::JobSpec::grace). All others had their end of file.
    pub cut_off: Vec<(Rank, Channel)>,
}

impl JobStatus {
    /// The exit code of the rank that failed first, 0 if none did.
    pub fn code(&self) -> i32 {
        self.first_failure.map_or(0, |(_, exit)| exit.code())
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

    /// How it ended, if every rank has exited by now.
    pub fn try_wait_exit(&self) -> Option<JobStatus> {
        let state = self.tables.lock();
        state.jobs.get(&self.nspace).filter(|job| job.has_exited()).map(JobState::status)
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

    /// Says how a rank ended that was adopted with [`Process::Reported`](crate::Process::Reported). Once for each; gives
    /// `false` if this is not one of those, or was said already.
    pub fn report_exit(&self, rank: Rank, exit: Exit) -> bool {
        let mut state = self.tables.lock();
        let Some(entered) = state.jobs.get_mut(&self.nspace).and_then(|job| job.ranks.get_mut(&rank)) else {
            return false;
        };
        if entered.signaller.is_some() || mem::replace(&mut entered.reported, true) {
            return false;
        }
        let process = entered.process();
        drop(state);
        let status = match exit {
            Exit::Status(status) => Ok(status),
            Exit::Unknown => Err(io::Error::other("the embedder does not know")),
        };
        self.tables.reports.send(Event::Exited { process, status });
        true
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
        let reachable = |rank: &&RankState| {
            let Some(signaller) = &rank.signaller else { return false };
            (rank.exit.is_none() || signaller.has_group()) && to(signaller) && signaller.send(signal).is_ok()
        };
        job.ranks.values().filter(reachable).count()
    }

    /// A handle of the pty of `rank`, to type there; `None` if it has none, or has exited. While there is a handle, the
    /// rank does not hear that the engine has ended.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn pty(&self, rank: Rank) -> io::Result<Option<PtyMaster>> {
        let state = self.tables.lock();
        let job = state.jobs.get(&self.nspace);
        job.and_then(|job| job.ranks.get(&rank)?.pty.as_ref()).map(PtyMaster::try_clone).transpose()
    }

    /// Changes the size of all ranks' ptys; the processes in their foreground get SIGWINCH. Gives how many there were.
    pub fn resize(&self, size: WindowSize) -> usize {
        let state = self.tables.lock();
        let Some(job) = state.jobs.get(&self.nspace) else { return 0 };
        let ptys = job.ranks.values().filter_map(|rank| rank.pty.as_ref());
        ptys.filter(|pty| pty.resize(size).is_ok()).count()
    }

    /// The rank that leads the process group `group`.
    pub fn rank_of_group(&self, group: u32) -> Option<Rank> {
        let state = self.tables.lock();
        let job = state.jobs.get(&self.nspace)?;
        let leads =
            |rank: &RankState| rank.pid == group && rank.signaller.as_ref().is_some_and(Signaller::has_group);
        job.ranks.iter().find(|(_, rank)| leads(rank)).map(|(rank, _)| *rank)
    }
}
