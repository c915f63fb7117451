//! Removal of ended jobs from the engine's tables.

use iof_proto::Nspace;

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
    /// # let engine = Engine::start(Config::new(Rendezvous::None))?;
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
        self.starter.remove(nspace)
    }
}
