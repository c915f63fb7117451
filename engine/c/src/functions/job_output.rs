//! The output of a job that the library writes without a registration of the program, because of
//! attributes of the job or of the engine.

use iof_output::NewFiles;
use iof_proto::{Channels, Nspace, Proc, Rank, Status};
use iof_tool::Pull;

use crate::ffi::guard::{OrStatus, Outcome};
use crate::infos::format::{Format, Print};
use crate::library::ServerState;
use crate::session::command::{Command, Sink};

/// The output of a job that is being started. Dropping it removes what was prepared, unless
/// [`JobOutput::keep`] was called.
pub(crate) struct JobOutput<'a> {
    server: &'a ServerState,
    nspace: &'a Nspace,
    /// The number of the library's registration for the job, if there is one.
    handler: Option<usize>,
    new_files: NewFiles,
    started: bool,
}

impl<'a> JobOutput<'a> {
    /// Sets the format of a job of `nprocs` ranks. If the library writes its output, opens its
    /// files and registers for it, which blocks until the engine has answered.
    pub(crate) fn prepare(
        server: &'a ServerState,
        nspace: &'a Nspace,
        nprocs: u32,
        format: Format,
    ) -> Outcome<JobOutput<'a>> {
        let own = format.over(&server.format).of_own_output();
        server.formats.set(nspace, format.look());
        let mut output =
            JobOutput { server, nspace, handler: None, new_files: NewFiles::default(), started: false };
        if let Some(format) = own {
            output.handler = Some(output.register(format, nprocs)?);
        }
        Ok(output)
    }

    fn register(&mut self, format: Format, nprocs: u32) -> Outcome<usize> {
        let session = self.server.session()?;
        let files = format.files(Some(nprocs))?;
        let ranks = (0..nprocs).map(Rank);
        let locked = files.map(|files| files.lock(self.nspace, ranks, Channels::ALL, &mut self.new_files));
        let mut files = locked.transpose().or_status(Status::ERR_IOF_FAILURE)?;
        if let Some(files) = &mut files
            && let Some(fifo) = files.open_fifos(&mut self.new_files).or_status(Status::ERR_IOF_FAILURE)?
        {
            let reason = format!("no process reads the FIFO {}: start its reader first", fifo.display());
            return Err(reason).or_status(Status::ERR_IOF_FAILURE);
        }
        // It ends with the job.
        let pull = Pull::new(vec![Proc::all(self.nspace.clone())], Channels::ALL);
        let sink = Sink::Print(Box::new(Print { format, files, ..Print::default() }));
        session.blocking(|done| Command::Pull(pull, sink, done))
    }

    /// Keeps what was prepared, because the job has started.
    pub(crate) fn keep(mut self) {
        self.started = true;
        std::mem::take(&mut self.new_files).keep();
    }
}

impl Drop for JobOutput<'_> {
    fn drop(&mut self) {
        if self.started {
            return;
        }
        self.server.formats.forget(self.nspace);
        if let (Some(handler), Some(session)) = (self.handler, self.server.session_so_far()) {
            // It fails only if the session has ended, and the registration with it.
            let _ = session.submit(Command::Deregister(handler, Box::new(drop)));
        }
    }
}
