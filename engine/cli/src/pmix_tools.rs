//! Tools of PMIx that attach to `iof run` by PMIx's own protocol.
//!
//! The command listens on the loopback interface, and PMIx's rendezvous files lead to its socket.
//! It passes each connection to a process of its own, `iof pmix`, which hosts libpmix for this
//! one tool, and is itself a tool of the engine. So a tool costs other tools, the ranks and the
//! launcher nothing, whatever it sends and however little it reads.

mod deliveries;
pub mod pace;
mod requests;
pub mod server;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use iof_engine::Engine;
use iof_pmix_server::limits::MAX_PMIX_TOOLS;
use iof_pmix_server::{RendezvousFiles, user_of_peer};
use iof_proto::Nspace;
use nix::unistd::geteuid;

use crate::threads::start_thread;

/// The hidden command that serves a tool.
const COMMAND: &str = "pmix";
/// This command's own file, even if it was replaced meanwhile.
const SELF: &str = "/proc/self/exe";
/// The pause after a connection could not be accepted, such as for lack of descriptors.
const RETRY: Duration = Duration::from_millis(200);
/// The largest number of warnings about tools that cannot attach: every user of the host can
/// connect.
const WARNINGS: usize = 10;
/// The shortest pause after a connection was refused.
const REFUSAL_PAUSE: Duration = Duration::from_millis(10);
/// The pause after a connection was refused, in units of the time that this took.
const PAUSE_FACTOR: u32 = 4;

/// The files by which tools of PMIx find this command. They are removed when this is dropped.
pub struct PmixTools {
    _files: RendezvousFiles,
}

impl PmixTools {
    /// Lets tools of PMIx attach, if the engine hosts PMIx and has a socket for tools.
    pub fn start(engine: &Engine, nspace: &Nspace) -> Option<PmixTools> {
        let (library, version) = (engine.pmix_library_path()?, engine.pmix_library()?);
        let socket = engine.socket()?.to_owned();
        let listener = Listener { socket, library, nspace: format!("iof-{}", std::process::id()) };
        let started = listener.start(&version, nspace);
        started.inspect_err(|error| tracing::warn!(%error, "tools of PMIx cannot attach")).ok()
    }
}

/// What a process needs to serve a tool.
struct Listener {
    socket: PathBuf,
    library: PathBuf,
    /// The name of the server in PMIx.
    nspace: String,
}

/// The connections that were refused.
#[derive(Default)]
struct Refusals(usize);

impl Refusals {
    /// Takes note of one, which was accepted at `since`. Pauses, so that connections cannot use
    /// much of the processor.
    fn add(&mut self, reason: &str, since: Instant) {
        if self.0 < WARNINGS {
            tracing::warn!(reason, "a tool of PMIx cannot attach");
        } else {
            tracing::debug!(reason, "a tool of PMIx cannot attach");
        }
        self.0 = self.0.saturating_add(1);
        thread::sleep(since.elapsed().saturating_mul(PAUSE_FACTOR).max(REFUSAL_PAUSE));
    }
}

impl Listener {
    fn start(self, version: &str, job: &Nspace) -> Result<PmixTools, String> {
        let failed = |error: io::Error| error.to_string();
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        let names = [std::process::id().to_string(), self.nspace.clone(), job.to_string()];
        let files = RendezvousFiles::create(&self.nspace, address, version, &names);
        let files = files.map_err(|error| error.to_string())?;
        let directory = files.directory().to_owned();
        let accept = move || self.accept(&socket, &directory);
        start_thread("iof-pmix-tools", accept).map_err(|_| "no thread".to_owned())?;
        Ok(PmixTools { _files: files })
    }

    /// Serves each connection in a process of its own.
    fn accept(&self, socket: &TcpListener, directory: &Path) {
        let mut servers: Vec<Child> = Vec::new();
        let mut refusals = Refusals::default();
        loop {
            let Ok((connection, peer)) = socket.accept() else {
                thread::sleep(RETRY);
                continue;
            };
            let since = Instant::now();
            // A process that something else has waited for has ended as well.
            servers.retain_mut(|server| matches!(server.try_wait(), Ok(None)));
            if let Err(reason) = may_attach(&connection, peer, servers.len()) {
                // Closed before the pause.
                drop(connection);
                refusals.add(reason, since);
                continue;
            }
            match self.serve(connection, directory) {
                Ok(server) => servers.push(server),
                Err(error) => refusals.add(&format!("cannot start its server: {error}"), since),
            }
        }
    }

    /// Starts the server of a tool, whose files are in `directory`.
    fn serve(&self, connection: TcpStream, directory: &Path) -> io::Result<Child> {
        Command::new(SELF)
            .arg0("iof")
            .arg(COMMAND)
            .args([&self.socket, &self.library])
            .arg(&self.nspace)
            // A server that is killed leaves its files to this command.
            .env("TMPDIR", directory)
            .stdin(OwnedFd::from(connection))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Signals of the terminal are for the ranks.
            .process_group(0)
            .spawn()
    }
}

/// Checks whether a tool may attach: this user's own ones and those of root, up to a limit. The
/// user is the one that the kernel knows.
fn may_attach(connection: &TcpStream, peer: SocketAddr, attached: usize) -> Result<(), &'static str> {
    if attached >= MAX_PMIX_TOOLS {
        return Err("too many are attached (MAX_PMIX_TOOLS)");
    }
    let (Ok(SocketAddr::V4(local)), SocketAddr::V4(peer)) = (connection.local_addr(), peer) else {
        return Err("it does not use IPv4");
    };
    match user_of_peer(local, peer) {
        Ok(Some(user)) if user == geteuid().as_raw() || user == 0 => Ok(()),
        Ok(Some(_)) => Err("it belongs to another user"),
        Ok(None) => Err("it has disconnected"),
        Err(_) => Err("/proc/net/tcp cannot be read, so its user is unknown"),
    }
}
