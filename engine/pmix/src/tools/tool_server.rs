//! The PMIx server of one tool, in a process of its own.

use std::ffi::CString;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;

use iof_proto::attribute::key::{PMIX_DEBUG_JOB, PMIX_DEBUG_TARGET};
use iof_proto::{Channel, Channels, Info as Directive, Nspace, Proc, ProcInfo, Status};

use crate::error::StartError;
use crate::library::info::{Info, Value, c_string};
use crate::library::{Library, end_process};
use crate::limits::{MAX_PMIX_TOOL_RANKS, PMIX_TOOL_HANDSHAKE};
use crate::requests::answer::{from_infos, proc};
use crate::requests::request::ToolRequest;
use crate::requests::spawn::ToolSpawn;
use crate::server::claim_process;
use crate::server::directory::PrivateDirectory;
use crate::server::job;
use crate::tools::tool_upcalls;

/// The PMIx server of one tool of this user, in libpmix. The process serves nothing else: libpmix
/// keeps what a tool has not received yet, sends output to each tool that has asked for it, and its
/// memory is not safe from a tool that breaks its protocol.
///
/// The server ends with the process, and the process ends if the tool has not introduced itself
/// within [`PMIX_TOOL_HANDSHAKE`], or if libpmix does not answer within
/// [`MAX_CALL_WAIT`](crate::MAX_CALL_WAIT). Dropping the server removes its files only. Its methods
/// block until libpmix's thread has done the work, so they must not be called by the receiver of
/// requests.
pub struct ToolServer {
    library: Library,
    address: SocketAddr,
    directory: PrivateDirectory,
}

impl fmt::Debug for ToolServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolServer").field("address", &self.address).finish_non_exhaustive()
    }
}

impl ToolServer {
    /// Opens a library and starts the server. `nspace` is its name. `receive` is called on
    /// libpmix's thread, in which all signals are blocked. It must not block.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        library: &Path,
        nspace: &str,
        receive: impl Fn(ToolRequest) + Send + 'static,
    ) -> Result<ToolServer, StartError> {
        let limited = thread::Builder::new().name("iof-pmix-limit".into());
        let limited = limited.spawn(|| {
            if !tool_upcalls::await_introduction(PMIX_TOOL_HANDSHAKE) {
                end_process(1);
            }
        });
        limited.map_err(StartError::Thread)?;
        let library = Library::open(library)?;
        claim_process(&library)?;
        let directory = PrivateDirectory::create()?;
        let temporary = directory.text()?;
        let infos = vec![
            Info::text("pmix.srv.nspace", nspace),
            Info::new("pmix.srv.rank", Value::Rank(0)),
            Info::text("pmix.srvr.tmpdir", temporary),
            Info::text("pmix.sys.tmpdir", temporary),
            // Output is passed on, not written by the server itself.
            Info::new("pmix.iof.local", Value::Flag(false)),
        ];
        tool_upcalls::set_receiver(receive, format!("{nspace}.tool.{}", std::process::id()));
        library.server_init(tool_upcalls::module(), infos).map_err(StartError::Init)?;
        let variables = library.setup_fork(nspace, 0).map_err(StartError::Init)?;
        let mut addresses = variables.iter().filter_map(|(_, value)| address(value.to_str()?));
        let address = addresses.next_back().ok_or_else(|| StartError::Init("it does not listen".into()))?;
        Ok(ToolServer { library, address, directory })
    }

    /// Returns the address to which the connection of the tool is to be relayed.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Names the socket of the relay. Until then, and if another socket has connected to the
    /// server, the process ends when a tool introduces itself: libpmix's socket is open to all
    /// users of the host, and libpmix believes the user that a tool states.
    pub fn serve_only(&self, relay: SocketAddr) {
        tool_upcalls::set_relay(self.address, relay);
    }

    /// Makes libpmix's number of a pull free, before its end is [released](crate::Relay::release).
    /// Returns whether libpmix has such a pull.
    pub fn forget_pull(&self, number: u32) -> bool {
        tool_upcalls::forget_pull(number)
    }

    /// Returns libpmix's number of its own registration for the output of a job that has started; 0 if
    /// it has none.
    pub fn number_spawn(&self, spawn: &ToolSpawn) -> u32 {
        if spawn.is_numbered { tool_upcalls::number_pull() } else { 0 }
    }

    /// Makes a job known to libpmix, with its process table: `PMIx_Get` and the like find it then, and
    /// also the processes that it is to debug.
    ///
    /// # Errors
    /// libpmix's reason, or that the job has more than [`MAX_PMIX_TOOL_RANKS`] ranks.
    pub fn register(&self, nspace: &Nspace, table: &[ProcInfo], target: Option<Proc>) -> Result<(), String> {
        if table.len() > MAX_PMIX_TOOL_RANKS {
            let size = table.len();
            return Err(format!("{nspace} has {size} ranks, expected at most {MAX_PMIX_TOOL_RANKS}"));
        }
        let node = nix::unistd::gethostname().unwrap_or_default();
        let mut infos = job::table_infos(nspace.as_str(), table, &node.to_string_lossy());
        infos.extend(target.iter().flat_map(|target| {
            let job = Info::text(PMIX_DEBUG_JOB, target.nspace.as_str());
            [Info::new(PMIX_DEBUG_TARGET, Value::Proc(Box::new(proc(target)))), job]
        }));
        self.library.set_nspace(&name(nspace), Some(infos))
    }

    /// Makes libpmix forget a job.
    ///
    /// # Errors
    /// libpmix's reason.
    pub fn deregister(&self, nspace: &Nspace) -> Result<(), String> {
        self.library.set_nspace(&name(nspace), None)
    }

    /// Delivers output to the tool. libpmix keeps a copy until the tool's socket has taken it.
    ///
    /// # Errors
    /// libpmix's reason.
    pub fn deliver(
        &self,
        source: &Proc,
        channel: Channel,
        bytes: &[u8],
        infos: &[Directive],
    ) -> Result<(), String> {
        self.library.iof_deliver(&proc(source), Channels::from(channel).bits(), bytes, from_infos(infos))
    }

    /// Reports the end of a job to the tool.
    ///
    /// # Errors
    /// libpmix's reason.
    pub fn job_ended(&self, job: &Proc, exit_code: Option<i32>) -> Result<(), String> {
        /// `PMIX_EVENT_JOB_END`.
        const JOB_END: i32 = -145;
        let end = match exit_code {
            Some(0) => Status::SUCCESS,
            Some(code) if code > 128 => Status::ERR_JOB_ABORTED_BY_SIG,
            _ => Status::ERR_JOB_NON_ZERO_TERM,
        };
        let job = proc(job);
        let mut infos = vec![
            Info::new("pmix.evproc", Value::Proc(Box::new(job))),
            Info::new("pmix.job.term.status", Value::Status(end.0)),
        ];
        infos.extend(exit_code.map(|code| Info::new("pmix.exit.code", Value::Int(code))));
        self.library.notify_event(JOB_END, &job, infos)
    }

    /// Removes the files of the server and ends the process with this exit code, without the
    /// handlers of exit(3), which may wait for locks of libpmix.
    pub fn end_process(&self, exit_code: i32) -> ! {
        self.directory.remove();
        end_process(exit_code)
    }
}

fn name(nspace: &Nspace) -> CString {
    c_string(nspace.as_str())
}

/// Returns the address in a URI such as `iof-7.0;tcp4://127.0.0.1:40211`.
fn address(uri: &str) -> Option<SocketAddr> {
    let (_, address) = uri.split_once(";tcp")?;
    let (_, address) = address.split_once("://")?;
    address.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_server_is_read_from_its_uri() {
        assert_eq!(address("iof-7.0;tcp4://127.0.0.1:40211"), Some(([127, 0, 0, 1], 40211).into()));
        assert_eq!(
            address("a;b.0;tcp6://[::1]:7").or_else(|| address("b.0;tcp6://[::1]:7")).map(|at| at.port()),
            Some(7)
        );
        for other in ["", "4.2.2", "iof-7.0;tcp4://127.0.0.1", "iof-7.0;usock:/tmp/x"] {
            assert_eq!(address(other), None, "{other}");
        }
    }
}
