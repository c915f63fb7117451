//! How a job leaves the tables.

use iof_proto::Nspace;

use crate::engine::Engine;

impl Engine {
    /// Forgets a job that is over, here and elsewhere: its rings, its processes, its name, which is
    /// free again. For launchers that run one job after the other; else an engine keeps what
    /// its jobs wrote last for tools that come late, and four descriptors for each rank. Tools
    /// that read the job keep what they have, to its end; a tool that does not read loses what
    /// exceeds [`MAX_FORGOTTEN_PER_TOOL`](iof_proto::limits::MAX_FORGOTTEN_PER_TOOL), and is told
    /// how much that was. The embedder's own readers that sources wait for lose nothing, so
    /// what they have not read stays in memory: [flush](crate::Job::flush) the job before, if
    /// they may be slow. `false` if there is no such job, or it is not over.
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
        let Some(job) = state.jobs.remove(nspace) else { return false };
        if !job.has_ended() {
            state.jobs.insert(nspace.clone(), job);
            return false;
        }
        let sources = job.streams();
        for rank in job.ranks.values().filter(|rank| rank.unopen.is_none()) {
            // A capture that has ended has closed it.
            let _ = self.capture.shut(rank.target());
        }
        // The backlog holder's slots are given back before the streams go.
        state.release_backlog(&self.capture, &sources);
        for source in sources {
            state.forget_stream(source);
            state.deliveries.remove(&source);
            // A capture that has ended has no streams any more.
            let _ = self.capture.remove(source);
        }
        state.shed();
        drop(state);
        self.tables.notify();
        true
    }
}
