//! Tools of PMIx that attach to jobs by PMIx's own protocol.

use std::io;
use std::path::{Path, PathBuf, absolute};
use std::sync::{Mutex, MutexGuard, PoisonError};

use iof_capture::find_program;
use iof_core::JobId;
use iof_pmix_server::{PmixServer, StartError, ToolListener, ToolService};
use iof_proto::{App, JobSpec};

use crate::mpi::pmix::PmixHost;

/// The jobs to which tools of PMIx can attach.
#[derive(Default)]
pub(crate) struct PmixTools(Mutex<Option<ToolSocket>>);

/// The socket of an engine for tools of PMIx, since the first job that asked for it.
struct ToolSocket {
    listener: ToolListener,
    /// The jobs whose names lead to it.
    jobs: Vec<JobId>,
}

impl PmixTools {
    /// Lets tools of PMIx attach to a job that has started, if it asks for them. `pmix` serves its
    /// ranks, and `socket` is that of the engine.
    pub(crate) fn serve(&self, spec: &JobSpec, job: &JobId, pmix: &PmixHost, socket: Option<&Path>) {
        let Some(program) = &spec.pmix_tools else { return };
        let (Some(server), Some(socket)) = (pmix.server_of(job), socket) else {
            let reason = "they need a job that has PMIx, and an engine with a socket";
            tracing::warn!(job = %job.nspace, reason, "tools of PMIx cannot attach");
            return;
        };
        if let Err(error) = self.serve_by(program, job, &server, socket) {
            tracing::warn!(job = %job.nspace, %error, "tools of PMIx cannot attach");
        }
    }

    /// Lets tools attach to a job. The engine may know its name alone. `program` was found
    /// before.
    pub(crate) fn serve_by(
        &self,
        program: &Path,
        job: &JobId,
        server: &PmixServer,
        socket: &Path,
    ) -> Result<(), StartError> {
        let service = ToolService {
            program: server_program(program).unwrap_or_else(|_| program.to_owned()),
            engine: socket.into(),
            library: server.path().into(),
            system: system_directory(socket),
            version: server.version().into(),
        };
        self.add(job, service)
    }

    /// Lets tools attach to a job. `service` is that of the first job.
    fn add(&self, job: &JobId, service: ToolService) -> Result<(), StartError> {
        let mut socket = self.lock();
        let socket = match &mut *socket {
            Some(socket) => socket,
            none => none.insert(ToolSocket { listener: ToolListener::start(service)?, jobs: Vec::new() }),
        };
        if !socket.has(job) {
            socket.listener.add_job(job.nspace.as_str())?;
        }
        socket.jobs.push(job.clone());
        Ok(())
    }

    /// Forgets a job, if it knows it.
    pub(crate) fn remove(&self, job: &JobId) {
        if let Some(socket) = &mut *self.lock() {
            let before = socket.jobs.len();
            socket.jobs.retain(|other| other != job);
            // The next job of this name may be there already.
            if socket.jobs.len() < before && !socket.has(job) {
                socket.listener.remove_job(job.nspace.as_str());
            }
        }
    }

    /// Lets no more tools attach.
    pub(crate) fn end(&self) {
        let socket = self.lock().take();
        drop(socket);
    }

    fn lock(&self) -> MutexGuard<'_, Option<ToolSocket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ToolSocket {
    /// Returns whether tools find the socket under the name of a job.
    fn has(&self, job: &JobId) -> bool {
        self.jobs.iter().any(|other| other.nspace == job.nspace)
    }
}

/// Returns the directory of a socket if that is the one of the node's system-level engine.
fn system_directory(socket: &Path) -> Option<PathBuf> {
    let is_system = socket.file_name()?.as_encoded_bytes().starts_with(b"iof.sys.");
    is_system.then(|| socket.parent().map(Path::to_owned)).flatten()
}

/// Returns the path of the program that serves tools: a path, or a name to look up in `PATH`.
pub(crate) fn server_program(program: &Path) -> io::Result<PathBuf> {
    find_program(&App::new(program, [""; 0])).and_then(absolute)
}
