//! The ends of a job's ranks, one after the other.

use iof_core::Ending;

use crate::job::Job;

/// The ends of a job's ranks, local or on other nodes of the job, in the order in which the engine detected them, and the decision
/// to end the job early. The iterator blocks until the next one. It ends when all these ranks have
/// exited and their streams are complete, when the job is removed, or when the engine ends. Created
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
        let ending = self.job.tables.lock().job(&self.job.id)?.ending(self.returned)?;
        self.returned = self.returned.saturating_add(1);
        Some(ending)
    }
}

impl Iterator for Endings {
    type Item = Ending;

    /// Blocks until the next item. Must not be called in an [upcall](crate::Host).
    fn next(&mut self) -> Option<Ending> {
        let Endings { job, returned } = self;
        job.tables.wait_for(|core| {
            let Some(job) = core.job(&job.id) else { return Some(None) };
            if let Some(ending) = job.ending(*returned) {
                *returned = returned.saturating_add(1);
                return Some(Some(ending));
            }
            (job.is_drained() || core.is_stopping()).then_some(None)
        })
    }
}
