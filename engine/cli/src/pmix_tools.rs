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
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

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

impl Listener {
    fn start(self, version: &str, job: &Nspace) -> Result<PmixTools, String> {
        let failed = |error: io::Error| error.to_string();
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        let names = [std::process::id().to_string(), self.nspace.clone(), job.to_string()];
        let files = RendezvousFiles::create(&self.nspace, address, version, &names);
        let files = files.map_err(|error| error.to_string())?;
        start_thread("iof-pmix-tools", move || self.accept(&socket)).map_err(|_| "no thread".to_owned())?;
        Ok(PmixTools { _files: files })
    }

    /// Serves each connection in a process of its own.
    fn accept(&self, socket: &TcpListener) {
        let mut servers: Vec<Child> = Vec::new();
        loop {
            let Ok((connection, peer)) = socket.accept() else {
                thread::sleep(RETRY);
                continue;
            };
            // A process that something else has waited for has ended as well.
            servers.retain_mut(|server| matches!(server.try_wait(), Ok(None)));
            if let Err(reason) = may_attach(&connection, peer, servers.len()) {
                tracing::warn!(reason, "a tool of PMIx cannot attach");
                continue;
            }
            match self.serve(connection) {
                Ok(server) => servers.push(server),
                Err(error) => tracing::warn!(%error, "cannot start a server for a tool of PMIx"),
            }
        }
    }

    fn serve(&self, connection: TcpStream) -> io::Result<Child> {
        Command::new(SELF)
            .arg0("iof")
            .arg(COMMAND)
            .args([&self.socket, &self.library])
            .arg(&self.nspace)
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
