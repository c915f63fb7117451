//! Removal of ended jobs from the engine's tables.

use iof_proto::Nspace;

use crate::core::commands::Command;
use crate::core::job::JobState;
use crate::engine::Engine;

impl Engine {
    /// Removes a job whose local and remote parts have ended. The engine forgets its streams and
    /// processes, and the name can be used for another job.
    ///
    /// A launcher that runs many jobs one after the other should remove each of them. Otherwise the
    /// engine keeps the last output of every job for tools that attach late, and four descriptors
    /// for each rank.
    ///
    /// Tools that read the job keep their rings and can read them to the end. A tool that does not
    /// read loses streams beyond
    /// [`MAX_FORGOTTEN_PER_TOOL`](iof_proto::limits::MAX_FORGOTTEN_PER_TOOL), and receives the
    /// number of bytes lost. The embedder's own readers with [`Grant::Block`](crate::Grant::Block)
    /// lose nothing, so the bytes that they have not read stay in memory. If these readers may be
    /// slow, [flush](crate::Job::flush) the job first.
    ///
    /// Returns `false` if the job does not exist or has not ended.
    ///
    /// ```
    /// # use iof_engine::{App, Config, Engine, JobSpec, Rendezvous};
    /// # use iof_proto::Nspace;
    /// # let engine = Engine::start(Config { rendezvous: Rendezvous::None, ..Config::default() })?;
    /// let nspace = Nspace::new("job1")?;
    /// for _ in 0..3 {
    ///     let job = engine.spawn(&JobSpec::new(nspace.clone(), vec![App::new("true", [""; 0])]))?;
    ///     job.wait();
    ///     assert!(engine.remove(&nspace));
    /// }
    /// assert!(!engine.remove(&nspace));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove(&self, nspace: &Nspace) -> bool {
        let mut state = self.tables.lock();
        if !state.jobs.get(nspace).is_some_and(JobState::has_ended) {
            return false;
        }
        // Registrations whose readers are just being attached receive the end after their rings.
        state.announce_end(nspace);
        let Some(job) = state.jobs.remove(nspace) else { return false };
        // Handles of the job return it from now on. It is set once: the job has left the table.
        let _ = job.final_status.set(job.status());
        let sources = job.streams();
        for rank in job.ranks.values().filter(|rank| rank.stdin_unavailable.is_none()) {
            state.commands.push(Command::Shut(rank.target()));
        }
        state.release_backlog(&sources);
        for source in sources {
            state.forget_stream(source);
            state.commands.push(Command::Remove(source));
        }
        state.shed_unread();
        drop(state);
        self.tables.notify();
        true
    }
}
