//! The ends of a job's ranks, one after the other.

use iof_proto::Rank;

use crate::early_end::EarlyEnd;
use crate::exit::Exit;
use crate::job::{Job, JobState};

/// The end of one local rank.
#[derive(Clone, Debug)]
pub struct RankExit {
    /// The rank.
    pub rank: Rank,
    /// Its exit status.
    pub exit: Exit,
    /// The pid that it had; 0 if the embedder adopted the rank and did not specify it.
    pub pid: u32,
    /// The program, as the embedder specified it.
    pub executable: String,
    /// Whether the rank failed because of a signal that the engine had sent to it: on its own, for
    /// the embedder ([`Job::signal`]), or for a tool. That signal killed it, or it exited with
    /// another code than 0 after SIGHUP, SIGINT, SIGQUIT or SIGTERM. A rank in the embedder's
    /// process group is also counted if it was killed by a signal that the terminal sends to this
    /// group.
    pub requested: bool,
}

/// An item of [`Endings`].
#[derive(Clone, Debug)]
pub enum Ending {
    /// A local rank has exited.
    Rank(RankExit),
    /// The engine has begun to end the job early.
    Early(EarlyEnd),
}

/// The ends of a job's local ranks in the order in which the engine detected them, and the decision
/// to end the job early. The iterator blocks until the next one. It ends when all local ranks have
/// exited and their streams are complete, when the job is removed, or when the engine ends. Created
/// by [`Job::endings`].
#[derive(Clone, Debug)]
pub struct Endings {
    job: Job,
    /// The number of items that were returned.
    returned: usize,
}

/// An entry of the list from which [`Endings`] are made.
#[derive(Clone, Copy)]
pub(crate) enum EndingEntry {
    Rank(Rank),
    Early,
}

impl Job {
    /// Returns an iterator over the ends of the local ranks, beginning with the first.
    ///
    /// ```
    /// # use iof_engine::{App, Config, Ending, Engine, JobSpec, Rendezvous};
    /// # let engine = Engine::start(Config { rendezvous: Rendezvous::None, ..Config::default() })?;
    /// let app = App::new("sh", ["-c", "exit 3"]);
    /// let job = engine.spawn(&JobSpec::new("job1".parse()?, vec![app]))?;
    /// for ending in job.endings() {
    ///     if let Ending::Rank(rank) = ending {
    ///         assert_eq!(rank.exit.to_string(), "exit code 3");
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn endings(&self) -> Endings {
        Endings { job: self.clone(), returned: 0 }
    }
}

impl Iterator for Endings {
    type Item = Ending;

    /// Blocks until the next item. Must not be called in an [upcall](crate::Host).
    fn next(&mut self) -> Option<Ending> {
        let tables = &self.job.tables;
        let mut state = tables.lock();
        loop {
            let job = self.job.state(&state)?;
            if let Some(entry) = job.endings.get(self.returned) {
                self.returned = self.returned.saturating_add(1);
                return job.ending(*entry);
            }
            if job.is_drained() || state.stopping {
                return None;
            }
            state = tables.wait(state);
        }
    }
}

impl JobState {
    /// Notes that a local rank has exited.
    pub(crate) fn exited(&mut self, rank: Rank, exit: Exit) {
        if !exit.success() && self.first_failure.is_none() {
            self.first_failure = Some((rank, exit));
        }
        let Some(state) = self.ranks.get_mut(&rank) else { return };
        state.exit = Some(exit);
        // With the master still open, closing the stream would not hang up the terminal of the
        // rank's children.
        state.pty = None;
        state.exit_requested = state.sent.explains(exit, state.shares_group());
        self.early_end_policy.exited(rank, exit, state.exit_requested);
        self.endings.push(EndingEntry::Rank(rank));
    }

    /// Notes that the engine ends the job early.
    pub(crate) fn note_early_end(&mut self, end: EarlyEnd) {
        self.early_end = Some(end);
        self.endings.push(EndingEntry::Early);
    }

    fn ending(&self, entry: EndingEntry) -> Option<Ending> {
        match entry {
            EndingEntry::Early => self.early_end.clone().map(Ending::Early),
            EndingEntry::Rank(rank) => {
                let state = self.ranks.get(&rank)?;
                Some(Ending::Rank(RankExit {
                    rank,
                    exit: state.exit?,
                    pid: state.pid,
                    executable: state.executable.clone(),
                    requested: state.exit_requested,
                }))
            }
        }
    }
}
