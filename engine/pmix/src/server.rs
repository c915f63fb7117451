//! The PMIx server of this process.

use std::ffi::{CString, OsString, c_int};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use iof_proto::Status;

use self::directory::PrivateDirectory;
use self::job::{Locality, RegisteredJob};
use self::upcalls::{Event, EventReceiver};
use crate::error::{RegisterError, StartError};
use crate::library::caller::Caller;
use crate::library::info::{self, Info, Value};
use crate::library::{Library, ModexDone, major};
use crate::limits::{MAX_CALL_WAIT, MAX_CALL_WAIT_PER_RANK, MAX_END_WAIT};
use crate::requests::request::{RankRequest, answer_rank};

pub(crate) mod collectives;
pub(crate) mod directory;
pub(crate) mod job;
pub(crate) mod topology;
pub(crate) mod upcalls;

/// The greatest number of ranks of a job. Greater numbers of local ranks have no form in PMIx.
pub const MAX_LOCAL_RANKS: u32 = 65_534;

/// Variables of a rank.
pub type Variables = Vec<(OsString, OsString)>;

/// The receivers of events and requests.
type Receivers = (Box<dyn Fn(Event) + Send>, Box<dyn Fn(RankRequest) + Send>);

/// Set if this process has a server.
static STARTED: AtomicBool = AtomicBool::new(false);

/// The PMIx server of this process, in libpmix. Dropping it ends it; ranks that are connected then
/// lose their server. Its methods block until libpmix's thread has done the work, at most for
/// [`MAX_CALL_WAIT`] and [`MAX_END_WAIT`], so they must not be called by the receiver of events.
pub struct PmixServer {
    caller: Caller,
    /// Requests what a rank has put.
    modex: Box<dyn Fn((String, u32, ModexDone)) + Send + Sync>,
    version: String,
    path: PathBuf,
    directory: PrivateDirectory,
}

impl fmt::Debug for PmixServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PmixServer").field("path", &self.path).finish_non_exhaustive()
    }
}

impl PmixServer {
    /// Opens a library and starts the server, for jobs on several nodes if this one has the name `host` there.
    /// `receive` and `request` are called on libpmix's
    /// thread, in which all signals are blocked, while the rank waits. They must not block.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        path: &Path,
        host: Option<String>,
        receive: impl Fn(Event) + Send + 'static,
        request: impl Fn(RankRequest) + Send + 'static,
    ) -> Result<PmixServer, StartError> {
        let library = Library::open(path)?;
        claim_process(&library)?;
        let receivers = (Box::new(receive) as Box<_>, Box::new(request) as Box<_>);
        let started = PmixServer::start_library(library, path, host, receivers);
        // A library that does not answer may still start.
        if started.as_ref().is_err_and(|error| !matches!(error, StartError::Stalled)) {
            STARTED.store(false, Ordering::Relaxed);
        }
        started
    }

    fn start_library(
        library: Library,
        path: &Path,
        host: Option<String>,
        (receive, request): Receivers,
    ) -> Result<PmixServer, StartError> {
        let directory = PrivateDirectory::create()?;
        let temporary = directory.text()?.to_owned();
        let version = library.version();
        let caller = Caller::start(library).map_err(StartError::Thread)?;
        let extend = move |nspace: &str, ranks| {
            if let Err(error) = library.extend_nspace(&info::c_string(nspace), ranks) {
                tracing::debug!(nspace, error, "the ranks do not know their pids");
            }
        };
        let post = Arc::new(caller.poster(answer_rank));
        let receiver = EventReceiver { receive, request, post, extend: Box::new(extend) };
        let init = move |library: &Library| {
            let mut infos = vec![
                Info::text("pmix.srv.nspace", &upcalls::server_name()),
                Info::new("pmix.srv.rank", Value::Rank(0)),
                Info::text("pmix.srvr.tmpdir", &temporary),
                Info::text("pmix.sys.tmpdir", &temporary),
                // libpmix finds out the topology of the node once, and shares it with the ranks.
                Info::new("pmix.srvr.share", Value::Flag(true)),
            ];
            // By it, libpmix tells which ranks are on its node.
            infos.extend(host.iter().map(|host| Info::text("pmix.hname", host)));
            upcalls::set_receiver(Some(receiver));
            library.server_init(collectives::module(host.is_some()), infos)
        };
        let started = caller.call(MAX_CALL_WAIT, init).map_err(|_| StartError::Stalled);
        if let Err(error) = started.and_then(|started| started.map_err(StartError::Init)) {
            upcalls::set_receiver(None);
            return Err(error);
        }
        let modex = caller.poster(move |(nspace, rank, done): (String, u32, ModexDone)| {
            library.modex(&nspace, rank, done);
        });
        Ok(PmixServer { caller, modex: Box::new(modex), version, path: path.into(), directory })
    }

    /// Returns the version that the library reports, such as `OpenPMIx 5.0.3 (PMIx Standard: ...)`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the path or name by which the library was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a job and its ranks known. Returns the variables with which each rank of this node finds this server.
    /// `PMIX_SERVER_TMPDIR` is not among them, which is a setting of the user for tools that the rank may
    /// start. No call of libpmix follows until the ranks have [started](Self::started), because a rank
    /// that has connected lets it wait until then.
    ///
    /// # Errors
    /// [`RegisterError`]. The job is not known then.
    pub fn register(&self, job: &RegisteredJob) -> Result<Vec<Variables>, RegisterError> {
        let registered = self.register_job(job);
        if registered.is_err() {
            self.deregister(&job.nspace);
        }
        registered.map_err(RegisterError)
    }

    fn register_job(&self, job: &RegisteredJob) -> Result<Vec<Variables>, String> {
        let size = job.size();
        let ranks: Vec<u32> = job.own_ranks().collect();
        if ranks.len() > MAX_LOCAL_RANKS as usize {
            return Err(format!("it has {} ranks here, expected at most {MAX_LOCAL_RANKS}", ranks.len()));
        }
        let name = c_string(&job.nspace)?;
        // libpmix maps files of the job in it.
        let directory = self.directory.create_inner(&job.nspace).map_err(|error| error.to_string())?;
        let job = job.clone();
        upcalls::add_job(&job.nspace, size, ranks.clone(), self.takes_pids());
        let register = move |library: &Library| {
            let places =
                job.cpusets().into_iter().map(|cpuset| place(library, cpuset)).collect::<Vec<Locality>>();
            let count = c_int::try_from(ranks.len()).unwrap_or(c_int::MAX);
            library.register_nspace(&name, count, job.infos(&directory, &places))?;
            let nspace = &job.nspace;
            let register = |rank| {
                library.register_client(nspace, rank)?;
                let mut variables = library.setup_fork(nspace, rank)?;
                variables.retain(|(name, _)| name != "PMIX_SERVER_TMPDIR" && name != "PMIX_SYSTEM_TMPDIR");
                Ok(variables)
            };
            ranks.into_iter().map(register).collect()
        };
        let limit = MAX_CALL_WAIT.saturating_add(MAX_CALL_WAIT_PER_RANK.saturating_mul(size));
        self.caller.call(limit, register).map_err(|stalled| stalled.to_string())?
    }

    /// Forgets a job. Does nothing if it is not known.
    pub fn deregister(&self, nspace: &str) {
        upcalls::remove_job(nspace);
        let Ok(name) = c_string(nspace) else { return };
        let forget = move |library: &Library| library.deregister_nspace(&name);
        if let Err(error) = self.caller.clean_up(MAX_CALL_WAIT, forget) {
            tracing::warn!(nspace, %error, "the PMIx server still has a job that has ended");
        }
        self.directory.remove_inner(nspace);
    }

    /// Passes `done` what a rank of this node has put for ranks of other nodes, once it has. `done` is called on
    /// libpmix's thread, and must not block. Does not block.
    pub fn modex(
        &self,
        nspace: &str,
        rank: u32,
        done: impl FnOnce(Result<Vec<u8>, Status>) + Send + 'static,
    ) {
        (self.modex)((nspace.into(), rank, Box::new(done)));
    }

    /// Tells the ranks of a job their pids. All ranks of this node have started. Does not block.
    pub fn started(&self, job: &RegisteredJob, pids: &[u32]) {
        if self.takes_pids() {
            upcalls::set_started(&job.nspace, job.pids(pids));
        }
    }

    /// Returns whether libpmix takes data of ranks after their job was registered. Version 4 then shares
    /// other locks with the ranks than before, for which they wait for ever.
    fn takes_pids(&self) -> bool {
        major(&self.version).is_some_and(|major| major > 4)
    }
}

/// Takes the place of the only server of this process.
pub(crate) fn claim_process(library: &Library) -> Result<(), StartError> {
    // Relaxed: only the flag itself counts.
    if library.is_initialized() || STARTED.swap(true, Ordering::Relaxed) {
        return Err(StartError::InUse);
    }
    Ok(())
}

impl Drop for PmixServer {
    fn drop(&mut self) {
        let end = |library: &Library| {
            if let Err(error) = library.server_finalize() {
                tracing::debug!(%error, "cannot end the PMIx server");
            }
            upcalls::set_receiver(None);
            STARTED.store(false, Ordering::Relaxed);
        };
        if let Err(error) = self.caller.end(MAX_END_WAIT, end) {
            tracing::debug!(%error, "the PMIx server does not end");
        }
    }
}

/// Returns the processors of a rank with their place in the topology, if libpmix knows it.
fn place(library: &Library, cpuset: CString) -> Locality {
    let locality = library.locality(&cpuset);
    let locality = locality.inspect_err(|error| tracing::debug!(?cpuset, %error, "no locality")).ok();
    Locality { cpuset, locality }
}

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|error| error.to_string())
}
