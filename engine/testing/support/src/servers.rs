//! Real peers for the channels: mail servers, working and faulty, and a syslog daemon's socket.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use mailin::response::OK;
use mailin::{Action, Handler, Response, SessionBuilder};
use tempfile::TempDir;

use crate::TIMEOUT;

/// A mail that a server has accepted.
#[derive(Clone, Debug, Default)]
pub struct AcceptedMail {
    pub from: String,
    pub to: Vec<String>,
    /// The header and the body, as received.
    pub text: String,
}

impl AcceptedMail {
    /// Returns the value of the header field `name`.
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
    accepted: Sender<AcceptedMail>,
    mail: AcceptedMail,
}

impl Handler for Inbox {
    fn mail(&mut self, _: IpAddr, _: &str, from: &str) -> Response {
        self.mail = AcceptedMail { from: from.to_owned(), ..AcceptedMail::default() };
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
        // The test may have ended.
        let _ = self.accepted.send(self.mail.clone());
        OK
    }
}

/// Starts a mail server on loopback that runs until the process ends. Returns its address and the
/// mails that it accepts.
pub fn mail_server() -> (SocketAddr, Receiver<AcceptedMail>) {
    let (accepted, inbox) = channel();
    let handler = Inbox { accepted, mail: AcceptedMail::default() };
    (server(move |stream| drop(session(stream, handler.clone()))), inbox)
}

/// Serves one SMTP connection.
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

/// Starts a server on loopback that runs until the process ends.
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

/// Starts a server that sends an endless reply, one byte every ten milliseconds.
pub fn dripping_server() -> SocketAddr {
    server(|mut stream| {
        while stream.write_all(b"2").is_ok() {
            thread::sleep(Duration::from_millis(10));
        }
    })
}

/// Starts a server that sends an endless line as fast as it can.
pub fn flooding_server() -> SocketAddr {
    server(|mut stream| while stream.write_all(&[b'2'; 1 << 16]).is_ok() {})
}

/// Starts a server that sends `greeting` and nothing more.
pub fn greeting_server(greeting: &'static str) -> SocketAddr {
    server(move |mut stream| {
        let _ = stream.write_all(greeting.as_bytes());
        // Keeps the connection open until the client closes it.
        let _ = io::copy(&mut stream, &mut io::sink());
    })
}

/// Creates a listener whose connections only the kernel accepts: it never sends anything.
pub fn stalling_server() -> (SocketAddr, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    (listener.local_addr().unwrap(), listener)
}

/// Returns a loopback address on which no process listens.
pub fn unused_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The daemon's end of a syslog socket.
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
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        SyslogSocket { socket, path, _directory: directory }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Blocks until the next message arrives.
    pub fn next(&self) -> String {
        let mut datagram = vec![0; 1 << 17];
        let length = loop {
            match self.socket.recv(&mut datagram) {
                // SIGCHLD interrupts a call with a time limit.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                received => break received.expect("a message"),
            }
        };
        datagram.truncate(length);
        String::from_utf8(datagram).unwrap()
    }

    /// Fills the socket's queue.
    pub fn fill(&self) {
        let socket = UnixDatagram::unbound().unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.send_to(b"x", &self.path).is_ok() {}
    }

    /// Returns whether no message is queued.
    pub fn is_empty(&self) -> bool {
        self.socket.set_nonblocking(true).unwrap();
        let empty = self.socket.recv(&mut [0; 1]).is_err();
        self.socket.set_nonblocking(false).unwrap();
        empty
    }
}
