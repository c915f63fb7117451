//! The ends of a job's ranks, one after the other.

use iof_core::{Core, Ending, JobState};

use crate::job::Job;

/// The ends of a job's ranks, local or on other nodes of the job, in the order in which the engine detected them, and the decision
/// to end the job early. The iterator blocks until the next one. It ends when all these ranks have
/// exited and their streams are complete, or when the engine ends. Created
/// by [`Job::endings`].
#[derive(Clone, Debug)]
pub struct Endings {
    job: Job,
    /// The number of items that were returned.
    returned: usize,
}

impl Job {
    /// Returns an iterator over the ends of the ranks, beginning with the first.
    ///
    /// ```
    /// # use iof_engine::{App, Config, Ending, Engine, JobSpec, Rendezvous};
    /// # let engine = Engine::start(Config::new(Rendezvous::None))?;
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

impl Endings {
    /// Returns the next item if it has happened. Does not block.
    pub fn try_next(&mut self) -> Option<Ending> {
        let ending = self.ending(&self.job.tables.lock());
        self.returned = self.returned.saturating_add(usize::from(ending.is_some()));
        ending
    }

    /// Returns the next item if it has happened, also if the job was removed meanwhile.
    fn ending(&self, core: &Core) -> Option<Ending> {
        match core.job(&self.job.id) {
            Some(job) => job.ending(self.returned),
            None => self.job.end.get()?.1.get(self.returned).cloned(),
        }
    }
}

impl Iterator for Endings {
    type Item = Ending;

    /// Blocks until the next item. Must not be called in an [upcall](crate::Host).
    fn next(&mut self) -> Option<Ending> {
        let ending = self.job.tables.wait_for(|core| {
            let ending = self.ending(core);
            let is_over = core.job(&self.job.id).is_none_or(JobState::is_drained) || core.is_stopping();
            (ending.is_some() || is_over).then_some(ending)
        });
        self.returned = self.returned.saturating_add(usize::from(ending.is_some()));
        ending
    }
}
