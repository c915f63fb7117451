//! Real peers for the channels: a mail server, one that stalls, a syslog daemon's socket.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use mailin_embedded::response::OK;
use mailin_embedded::{Handler, Response, Server, SslConfig};
use tempfile::TempDir;

/// Nothing here takes so long: whoever waits longer has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A mail that a server has taken.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    pub from: String,
    pub to: Vec<String>,
    /// Head and body, as they came.
    pub text: String,
}

impl Taken {
    /// What the head says of `name`.
    pub fn header(&self, name: &str) -> &str {
        let (head, _) = self.text.split_once("\r\n\r\n").unwrap();
        let line = head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        line.unwrap_or_else(|| panic!("no {name} in {head}"))
    }

    pub fn body(&self) -> &str {
        self.text.split_once("\r\n\r\n").unwrap().1
    }
}

#[derive(Clone)]
struct Inbox {
    taken: Sender<Taken>,
    mail: Taken,
}

impl Handler for Inbox {
    fn mail(&mut self, _: IpAddr, _: &str, from: &str) -> Response {
        self.mail = Taken { from: from.to_owned(), ..Taken::default() };
        OK
    }

    fn rcpt(&mut self, to: &str) -> Response {
        self.mail.to.push(to.to_owned());
        OK
    }

    fn data(&mut self, line: &[u8]) -> io::Result<()> {
        self.mail.text.push_str(std::str::from_utf8(line).unwrap());
        Ok(())
    }

    fn data_end(&mut self) -> Response {
        // The test may be over.
        let _ = self.taken.send(self.mail.clone());
        OK
    }
}

/// Starts a mail server on loopback, for as long as the process lives; gives its address and what it takes.
pub fn mail_server() -> (SocketAddr, Receiver<Taken>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (taken, inbox) = channel();
    let mut server = Server::new(Inbox { taken, mail: Taken::default() });
    server.with_name("localhost").with_tcp_listener(listener).with_ssl(SslConfig::None).unwrap();
    thread::spawn(move || drop(server.serve()));
    (address, inbox)
}

/// A server that takes connections, by the kernel, and says nothing.
pub fn stalling_server() -> (SocketAddr, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    (listener.local_addr().unwrap(), listener)
}

/// An address of loopback on which nobody listens.
pub fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The end of a syslog socket at which a daemon would be.
pub struct SyslogSocket {
    socket: UnixDatagram,
    path: PathBuf,
    _directory: TempDir,
}

impl SyslogSocket {
    pub fn bind() -> SyslogSocket {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        SyslogSocket { socket, path, _directory: directory }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn next(&self) -> String {
        let mut datagram = vec![0; 1 << 17];
        let length = self.socket.recv(&mut datagram).expect("a message");
        datagram.truncate(length);
        String::from_utf8(datagram).unwrap()
    }

    /// Whether nothing has come that was not taken.
    pub fn is_empty(&self) -> bool {
        self.socket.set_nonblocking(true).unwrap();
        let empty = self.socket.recv(&mut [0; 1]).is_err();
        self.socket.set_nonblocking(false).unwrap();
        empty
    }
}
