//! Jobs that the engine starts for a tool.

use iof_proto::{FromTool, JobSpec, Nspace, Spawn};

use super::Tool;
use crate::error::RequestError;
use crate::own_proc::own_proc;
use crate::session::request::Request;

impl Tool {
    /// Has the engine start a job (`PMIx_Spawn`), whose name is taken from `spec`. Returns the name.
    /// Blocks until all ranks are started, or none is.
    ///
    /// The engine keeps the output of the ranks from its first byte until this tool pulls it, as far
    /// as the directives of the job specify it (RFC0025). What is cached counts towards the
    /// engine's limit on caches. After this tool has pulled output of the job with its
    /// [oldest byte](iof_proto::Position::Oldest), the job ends when this tool disconnects; [`Spawn::detached`] rules that out, and
    /// [`Spawn::is_bound`] has it end also before that. A tool that a rank of a job runs
    /// ([`own_proc`]) has that job as the parent of the new one instead.
    ///
    /// # Errors
    /// Returns [`RequestError`] if the engine or its host refuses the request, a program can't be
    /// started, or the engine is gone. Then no rank runs. The reason names the rank and the error
    /// of the system.
    ///
    /// # Example
    /// ```
    /// # use iof_engine::{Config, Engine, Grant, Host, Rendezvous, SpawnReply, SpawnRequest};
    /// use iof_proto::{App, Channels, JobSpec, Nspace, Proc};
    /// use iof_tool::{Pull, Tool};
    ///
    /// # struct Granting;
    /// # impl Host for Granting {
    /// #     fn spawn(&self, request: SpawnRequest, reply: SpawnReply) {
    /// #         reply.grant(request.spec);
    /// #     }
    /// # }
    /// # let engine = Engine::start_with(Config::new(Rendezvous::None), std::sync::Arc::new(Granting))?;
    /// # let mut tool = engine.attach("example", Grant::Never)?;
    /// let spec = JobSpec::new(Nspace::new("hello")?, vec![App::new("echo", ["hello"]).ranks(2)]);
    /// let nspace = tool.spawn(&spec)?;
    /// tool.pull(&Pull::new(vec![Proc::all(nspace)], Channels::STDOUT))?;
    /// let mut output = Vec::new();
    /// tool.copy_to(&mut output)?;
    /// assert_eq!(output, b"hello\nhello\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn spawn(&mut self, spec: &JobSpec) -> Result<Nspace, RequestError> {
        let mut spawn = Spawn::new(spec.clone());
        spawn.spec.parent = own_proc();
        self.spawn_with(&spawn)
    }

    /// Has the engine start a job as [`Tool::spawn`] does, with the parent and the further options
    /// of `spawn`.
    ///
    /// # Errors
    /// The errors of [`Tool::spawn`].
    pub fn spawn_with(&mut self, spawn: &Spawn) -> Result<Nspace, RequestError> {
        let request = self.submit_spawn(spawn)?;
        self.wait(request)
    }

    /// Sends the request of [`Tool::spawn_with`] without waiting for the answer, see
    /// [`Reply`](crate::Reply).
    ///
    /// # Errors
    /// The same as [`Tool::submit_pull`].
    pub fn submit_spawn(&mut self, spawn: &Spawn) -> Result<u32, RequestError> {
        let spawn = Box::new(spawn.clone());
        self.submit(Request::Spawn, |request| FromTool::Spawn { request, spawn })
    }
}
