//! Real peers for the channels: a mail server, one that stalls, a syslog daemon's socket.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use mailin::response::OK;
use mailin::{Action, Handler, Response, SessionBuilder};
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
    let (taken, inbox) = channel();
    let inbox_of = Inbox { taken, mail: Taken::default() };
    (server(move |stream| drop(session(stream, inbox_of.clone()))), inbox)
}

/// Serves one connection by SMTP.
fn session(mut stream: TcpStream, inbox: Inbox) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut session = SessionBuilder::new("localhost").build(stream.peer_addr()?.ip(), inbox);
    session.greeting().write_to(&mut stream)?;
    let mut lines = BufReader::new(stream.try_clone()?);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        let response = session.process(&line);
        line.clear();
        match response.action {
            Action::NoReply => {}
            Action::Reply => response.write_to(&mut stream)?,
            Action::Close | Action::UpgradeTls => return response.write_to(&mut stream),
        }
    }
    Ok(())
}

/// A server on loopback, for as long as the process lives.
fn server(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream.unwrap()));
        }
    });
    address
}

/// A server that begins a reply, and says one byte more of it every ten milliseconds.
pub fn dripping_server() -> SocketAddr {
    server(|mut stream| {
        while stream.write_all(b"2").is_ok() {
            thread::sleep(Duration::from_millis(10));
        }
    })
}

/// A server whose greeting has no end, and no end of a line either.
pub fn flooding_server() -> SocketAddr {
    server(|mut stream| while stream.write_all(&[b'2'; 1 << 16]).is_ok() {})
}

/// A server that greets with `greeting`, and says nothing more.
pub fn greeting_server(greeting: &'static str) -> SocketAddr {
    server(move |mut stream| {
        let _ = stream.write_all(greeting.as_bytes());
        // Until the client goes.
        let _ = io::copy(&mut stream, &mut io::sink());
    })
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

    /// Has so much sent that there is no room for more.
    pub fn fill(&self) {
        let socket = UnixDatagram::unbound().unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.send_to(b"x", &self.path).is_ok() {}
    }

    /// Whether nothing has come that was not taken.
    pub fn is_empty(&self) -> bool {
        self.socket.set_nonblocking(true).unwrap();
        let empty = self.socket.recv(&mut [0; 1]).is_err();
        self.socket.set_nonblocking(false).unwrap();
        empty
    }
}
