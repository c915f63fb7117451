//! The socket at which tools of PMIx connect, and the processes that serve them.

use std::ffi::c_uint;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;
use nix::sys::socket::{Backlog, Shutdown, listen, setsockopt, shutdown, sockopt};
use nix::unistd::geteuid;

use crate::error::StartError;
use crate::limits::MAX_PMIX_TOOLS;
use crate::tools::rendezvous::RendezvousFiles;
use crate::tools::sock_diag::SockDiag;

/// The name and the hidden command of `iof` by which it serves a tool.
const COMMAND: [&str; 2] = ["iof", "pmix"];
/// The pause after a connection could not be accepted, such as for lack of descriptors.
const RETRY: Duration = Duration::from_millis(200);
/// The largest number of warnings about tools that cannot attach: every user of the host can
/// connect.
const WARNINGS: usize = 10;
/// The shortest pause after connections were refused.
const REFUSAL_PAUSE: Duration = Duration::from_millis(10);
/// The pause after connections were refused, in units of the time that this took.
const PAUSE_FACTOR: u32 = 4;
/// The most connections that are accepted, and so open, before such a pause: the queue of connections
/// of other users, in which a tool may wait, holds thousands. Fewer than the files that the engine
/// leaves to connections.
const MAX_CONNECTION_BATCH: usize = 24;

/// The program that serves tools, with its arguments.
#[derive(Clone, Debug)]
pub struct ToolService {
    /// The command `iof`, of the version of this crate: the process is started as `iof pmix`.
    pub program: PathBuf,
    /// The socket of the engine.
    pub engine: PathBuf,
    /// The PMIx library.
    pub library: PathBuf,
    /// The directory in which tools look for the server of the system, if the engine is that of all
    /// users of the node.
    pub system: Option<PathBuf>,
    /// The version of the library, as [`PmixServer::version`](crate::PmixServer::version) returns
    /// it.
    pub version: String,
}

/// The socket of this process at which tools of PMIx connect, on the loopback interface, and the
/// rendezvous files that lead to it. Each tool is served by a process of its own. Connections of
/// other users than this one and root are refused.
///
/// Dropping it removes the files and ends the thread that accepts connections. Tools that are
/// attached stay so until the engine has ended.
#[derive(Debug)]
pub struct ToolListener {
    socket: Arc<TcpListener>,
    files: RendezvousFiles,
}

impl ToolListener {
    /// Starts to listen. Tools find the socket under the pid of this process, and under `iof-PID`.
    ///
    /// # Errors
    /// [`StartError::Listen`], [`StartError::Directory`], [`StartError::Thread`].
    pub fn start(service: ToolService) -> Result<ToolListener, StartError> {
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(StartError::Listen)?;
        socket.set_nonblocking(true).map_err(StartError::Listen)?;
        // The kernel makes those wait for seconds that find the queue full, which is short by default.
        listen(&socket, Backlog::MAXCONN).map_err(|error| StartError::Listen(error.into()))?;
        let address = socket.local_addr().map_err(StartError::Listen)?;
        let pid = std::process::id();
        let nspace = format!("iof-{pid}");
        let mut files = RendezvousFiles::create(&nspace, address, &service.version)?;
        [&pid.to_string(), &nspace].into_iter().try_for_each(|name| files.add(name))?;
        if let Some(Err(error)) = service.system.as_deref().map(|directory| files.add_system(directory)) {
            tracing::warn!(%error, "tools of PMIx cannot find the engine as the server of the system");
        }
        let socket = Arc::new(socket);
        let diag = SockDiag::open().map_err(StartError::Listen)?;
        let acceptor = Acceptor { service, nspace, directory: files.directory().to_owned(), diag };
        let listener = Arc::clone(&socket);
        let thread = thread::Builder::new().name("iof-pmix-tools".into());
        let thread = thread.spawn(move || {
            // Handlers of the embedder are not for this thread. It fails only for invalid masks.
            let _ = SigSet::all().thread_block();
            acceptor.accept(&listener);
        });
        thread.map_err(StartError::Thread)?;
        Ok(ToolListener { socket, files })
    }

    /// Lets tools find the socket under the name of a job, which has not been added yet.
    ///
    /// # Errors
    /// [`StartError::Directory`].
    pub fn add_job(&self, nspace: &str) -> Result<(), StartError> {
        self.files.add(nspace)
    }

    /// Removes the name of a job.
    pub fn remove_job(&self, nspace: &str) {
        self.files.remove(nspace);
    }
}

impl Drop for ToolListener {
    fn drop(&mut self) {
        // Ends the wait for connections. It fails only for descriptors that are not sockets.
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
    }
}

/// The thread that accepts connections.
struct Acceptor {
    service: ToolService,
    /// The name of the server in PMIx.
    nspace: String,
    /// The directory for the files of the processes.
    directory: PathBuf,
    diag: SockDiag,
}

/// The connections that were refused.
#[derive(Default)]
struct Refusals(usize);

impl Refusals {
    /// Logs one.
    fn log(&mut self, reason: &str) {
        if self.0 < WARNINGS {
            tracing::warn!(reason, "a tool of PMIx cannot attach");
        } else {
            tracing::debug!(reason, "a tool of PMIx cannot attach");
        }
        self.0 = self.0.saturating_add(1);
    }

    /// Logs the failures of servers.
    fn log_failures(&mut self, failures: impl IntoIterator<Item = ExitStatus>) {
        failures.into_iter().for_each(|status| self.log(&format!("its server has failed: {status}")));
    }
}

impl Acceptor {
    /// Serves each connection in a process of its own, until the socket is shut down. Waits then
    /// until these processes have ended.
    fn accept(&self, socket: &TcpListener) {
        let mut servers: Vec<Child> = Vec::new();
        let mut refusals = Refusals::default();
        while let Some(batch) = accept_batch(socket) {
            let since = Instant::now();
            refusals.log_failures(remove_ended(&mut servers));
            let refused_before = refusals.0;
            for (connection, peer) in batch {
                match self.admit(connection, peer, servers.len()) {
                    Ok(server) => servers.push(server),
                    Err(reason) => refusals.log(&reason),
                }
            }
            if refusals.0 > refused_before {
                // Connections must not use much of the processor.
                thread::sleep(since.elapsed().saturating_mul(PAUSE_FACTOR).max(REFUSAL_PAUSE));
            }
        }
        // They end soon after the engine.
        let ends = servers.iter_mut().filter_map(|server| server.wait().ok());
        refusals.log_failures(ends.filter(|status| !status.success()));
    }

    /// Serves a tool, unless it may not attach.
    fn admit(&self, connection: TcpStream, peer: SocketAddr, attached: usize) -> Result<Child, String> {
        if let Err(reason) = may_attach(&self.diag, &connection, peer, attached) {
            reset(&connection);
            return Err(reason.into());
        }
        self.serve(connection).map_err(|error| format!("cannot start its server: {error}"))
    }

    /// Starts the server of a tool.
    fn serve(&self, connection: TcpStream) -> io::Result<Child> {
        let [name, command] = COMMAND;
        let mut server = Command::new(&self.service.program);
        server
            .arg0(name)
            .arg(command)
            .args([&self.service.engine, &self.service.library])
            .arg(&self.nspace)
            // A server that is killed leaves its files to this process.
            .env("TMPDIR", &self.directory)
            .stdin(OwnedFd::from(connection))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Signals of the terminal are for the ranks.
            .process_group(0);
        // SAFETY: the function only calls close_range(2), which is async-signal-safe.
        unsafe { server.pre_exec(inherit_standard_descriptors_only) };
        server.spawn()
    }
}

/// Removes the servers that have ended. Returns the exit statuses of those that have failed.
fn remove_ended(servers: &mut Vec<Child>) -> Vec<ExitStatus> {
    let mut failures = Vec::new();
    servers.retain_mut(|server| {
        let ended = server.try_wait();
        failures.extend(ended.as_ref().ok().copied().flatten().filter(|status| !status.success()));
        // A process that something else has waited for has ended as well.
        matches!(ended, Ok(None))
    });
    failures
}

/// Lets execve(2) close all descriptors but the standard ones. A tool may stay attached for long,
/// and its server would hold the embedder's pipes open.
fn inherit_standard_descriptors_only() -> io::Result<()> {
    const FIRST: c_uint = 3;
    // SAFETY: the arguments are numbers. The call only sets flags of descriptors, and fails where
    // the kernel does not have it (before Linux 5.11).
    unsafe { libc::syscall(libc::SYS_close_range, FIRST, c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    Ok(())
}

/// Waits for connections. Returns those that are there, at most [`MAX_CONNECTION_BATCH`]; `None` once the socket
/// is shut down.
fn accept_batch(socket: &TcpListener) -> Option<Vec<(TcpStream, SocketAddr)>> {
    let mut batch = Vec::new();
    while batch.len() < MAX_CONNECTION_BATCH {
        match socket.accept() {
            Ok(accepted) => batch.push(accepted),
            // It does not listen any more.
            Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => return None,
            Err(_) if !batch.is_empty() => break,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // All signals are blocked, so that nothing interrupts it.
                let _ = poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE);
            }
            Err(_) => thread::sleep(RETRY),
        }
    }
    Some(batch)
}

/// Lets a connection be reset when it is closed. One that ends in order stays in the kernel's table
/// for a minute.
fn reset(connection: &TcpStream) {
    // It fails for no socket.
    let _ = setsockopt(connection, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 });
}

/// Checks whether a tool may attach: this user's own ones and those of root, up to a limit. The
/// user is the one that the kernel knows.
fn may_attach(
    diag: &SockDiag,
    connection: &TcpStream,
    peer: SocketAddr,
    attached: usize,
) -> Result<(), &'static str> {
    if attached >= MAX_PMIX_TOOLS {
        return Err("too many are attached (MAX_PMIX_TOOLS)");
    }
    let (Ok(SocketAddr::V4(local)), SocketAddr::V4(peer)) = (connection.local_addr(), peer) else {
        return Err("it does not use IPv4");
    };
    match diag.user(peer, local) {
        Ok(Some(user)) if user == geteuid().as_raw() || user == 0 => Ok(()),
        Ok(Some(_)) => Err("it belongs to another user"),
        Ok(None) => Err(
            "it has disconnected, its user does not exist in this container, or the kernel lacks tcp_diag",
        ),
        Err(_) => Err("the kernel does not tell its user (sock_diag)"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs;
    use std::io::Read;

    use nix::unistd::mkdtemp;

    use super::*;

    /// A listener whose tools are served by a script.
    struct Served {
        directory: PathBuf,
        listener: ToolListener,
    }

    impl Served {
        fn by(script: &str) -> Served {
            let directory = mkdtemp(&std::env::temp_dir().join("iof-listener-XXXXXX")).unwrap();
            let program = directory.join("iof");
            // Written by another process: one that another test starts could hold it open for
            // writing for a moment, and it could not be executed.
            let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod 700 \"$0\"";
            let mut shell = Command::new("sh");
            assert!(shell.args(["-c", write]).arg(&program).arg(script).status().unwrap().success());
            let (engine, library) = ("engine".into(), "library".into());
            let service =
                ToolService { program, engine, library, system: None, version: "OpenPMIx 4.2.2 (x)".into() };
            Served { directory, listener: ToolListener::start(service).unwrap() }
        }

        /// Connects, and returns what is received up to the end.
        fn connect(&self) -> String {
            let mut text = String::new();
            let mut socket = TcpStream::connect(self.listener.socket.local_addr().unwrap()).unwrap();
            socket.read_to_string(&mut text).unwrap();
            text
        }

        /// Returns the names under which tools find the listener.
        fn names(&self) -> Vec<String> {
            let files = fs::read_dir(self.listener.files.directory()).unwrap();
            let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> =
                files.map(|file| file.rsplit_once(".tool.").unwrap().1.to_owned()).collect();
            names.sort_unstable();
            names.dedup();
            names
        }
    }

    impl Drop for Served {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.directory).unwrap();
        }
    }

    #[test]
    fn each_connection_is_the_stdin_of_a_process_that_inherits_nothing_else() {
        // Inheritable.
        let _pipe = nix::unistd::pipe().unwrap();
        let served = Served::by("(echo \"$*\"; ls -l /proc/$$/fd) >&0");
        let text = served.connect();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some(&*format!("pmix engine library iof-{}", std::process::id())));
        assert!(text.contains("socket:[") && !text.contains("pipe:["), "{text}");
    }

    #[test]
    fn servers_that_have_failed_are_told_from_those_that_have_ended() {
        let start = |program| Command::new(program).stdin(Stdio::piped()).spawn().unwrap();
        let mut servers = vec![start("true"), start("false"), start("cat")];
        let mut failures = Vec::new();
        while servers.len() > 1 {
            failures.extend(remove_ended(&mut servers));
            thread::yield_now();
        }
        assert_eq!(failures.iter().map(ExitStatus::code).collect::<Vec<_>>(), [Some(1)]);
        drop(servers[0].stdin.take());
        servers[0].wait().unwrap();
    }

    #[test]
    fn tools_find_the_socket_under_the_pid_and_under_jobs_while_it_listens() {
        let served = Served::by("exit");
        let pid = std::process::id();
        let own = [pid.to_string(), format!("iof-{pid}")];
        served.listener.add_job("demo").unwrap();
        served.listener.add_job("a/b").unwrap();
        assert_eq!(served.names(), [own[0].as_str(), "demo", &own[1]]);
        served.listener.remove_job("demo");
        assert_eq!(served.names(), own);
        let (directory, address) =
            (served.listener.files.directory().to_owned(), served.listener.socket.local_addr().unwrap());
        drop(served);
        assert!(!directory.exists());
        assert!(TcpStream::connect(address).is_err());
    }
}
