//! The PMIx server of this process.

use std::ffi::{CString, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::directory::PrivateDirectory;
use crate::error::{RegisterError, StartError};
use crate::info::{Info, Value};
use crate::job::JobInfo;
use crate::library::Library;
use crate::upcalls;

/// A report of libpmix about a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The job.
    pub nspace: String,
    /// The rank.
    pub rank: u32,
    /// What has happened.
    pub kind: EventKind,
}

/// What a rank has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The rank has called `PMIx_Init`, as MPI libraries do in `MPI_Init`.
    Connected,
    /// The rank has called `PMIx_Finalize`.
    Finalized,
    /// The rank has called `PMIx_Abort`, and wants this exit code for the job.
    Aborted {
        /// The exit code.
        code: i32,
    },
}

/// Whether this process has a server.
static STARTED: AtomicBool = AtomicBool::new(false);

/// The PMIx server of this process, in libpmix. Dropping it ends it; ranks that are connected then
/// lose their server. Its methods block until libpmix's thread has done the work, so they must not
/// be called by the receiver of events.
pub struct PmixServer {
    library: Library,
    path: PathBuf,
    directory: PrivateDirectory,
}

impl fmt::Debug for PmixServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PmixServer").field("path", &self.path).finish_non_exhaustive()
    }
}

impl PmixServer {
    /// Opens a library and starts the server. `receive` is called on libpmix's thread, in which all
    /// signals are blocked, while the rank waits. It must not block.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(path: &Path, receive: impl Fn(Event) + Send + 'static) -> Result<PmixServer, StartError> {
        let library = Library::open(path)?;
        // Relaxed: only the flag itself counts.
        if STARTED.swap(true, Ordering::Relaxed) {
            return Err(StartError::InUse);
        }
        let started = PmixServer::start_library(library, path, receive);
        if started.is_err() {
            STARTED.store(false, Ordering::Relaxed);
        }
        started
    }

    fn start_library(
        library: Library,
        path: &Path,
        receive: impl Fn(Event) + Send + 'static,
    ) -> Result<PmixServer, StartError> {
        if library.is_initialized() {
            return Err(StartError::InUse);
        }
        let directory = PrivateDirectory::create()?;
        let temporary = directory.path().to_string_lossy().into_owned();
        let infos = [
            Info::text("pmix.srv.nspace", &format!("iof-{}", std::process::id())),
            Info::new("pmix.srv.rank", Value::Rank(0)),
            Info::text("pmix.srvr.tmpdir", &temporary),
            Info::text("pmix.sys.tmpdir", &temporary),
        ];
        upcalls::set_receiver(Some(Box::new(receive)));
        if let Err(error) = library.server_init(&infos) {
            upcalls::set_receiver(None);
            return Err(StartError::Init(error));
        }
        Ok(PmixServer { library, path: path.into(), directory })
    }

    /// Returns the version that the library reports, such as `OpenPMIx 5.0.3 (PMIx Standard: ...)`.
    pub fn version(&self) -> String {
        self.library.version()
    }

    /// Returns the path or name by which the library was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a job and its ranks known.
    ///
    /// # Errors
    /// [`RegisterError`]. The job is not known then.
    pub fn register(&self, job: &JobInfo) -> Result<(), RegisterError> {
        let name = c_string(&job.nspace)?;
        let registered = self.register_job(job, &name);
        if registered.is_err() {
            self.deregister(&job.nspace);
        }
        registered.map_err(RegisterError)
    }

    fn register_job(&self, job: &JobInfo, name: &CString) -> Result<(), String> {
        // libpmix maps files of the job in it.
        let directory = self.directory.create_inner(&job.nspace).map_err(|error| error.to_string())?;
        let infos = job.infos(&directory);
        let size = i32::try_from(job.size()).map_err(|error| error.to_string())?;
        self.library.register_nspace(name, size, &infos)?;
        (0..job.size()).try_for_each(|rank| self.library.register_client(&job.nspace, rank))
    }

    /// Forgets a job. Does nothing if it is not known.
    pub fn deregister(&self, nspace: &str) {
        if let Ok(name) = c_string(nspace) {
            self.library.deregister_nspace(&name);
            self.directory.remove_inner(nspace);
        }
    }

    /// Returns the variables with which a rank of a job finds this server. `PMIX_SERVER_TMPDIR` is
    /// not among them, which is a setting of the user for tools that the rank may start.
    ///
    /// # Errors
    /// [`RegisterError`]: the job is not known.
    pub fn variables(&self, nspace: &str, rank: u32) -> Result<Vec<(OsString, OsString)>, RegisterError> {
        let mut variables = self.library.setup_fork(nspace, rank).map_err(RegisterError)?;
        variables.retain(|(name, _)| name != "PMIX_SERVER_TMPDIR" && name != "PMIX_SYSTEM_TMPDIR");
        Ok(variables)
    }
}

impl Drop for PmixServer {
    fn drop(&mut self) {
        if let Err(error) = self.library.server_finalize() {
            tracing::debug!(%error, "cannot end the PMIx server");
        }
        upcalls::set_receiver(None);
        STARTED.store(false, Ordering::Relaxed);
    }
}

fn c_string(text: &str) -> Result<CString, RegisterError> {
    CString::new(text).map_err(|error| RegisterError(error.to_string()))
}
