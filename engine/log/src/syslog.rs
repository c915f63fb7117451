//! The local syslog: the socket of syslog(3).

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{io, process};

use iof_proto::socket::connect_within;
use iof_proto::{Failure, Status};
use jiff::Zoned;
use nix::libc;

use crate::stalls::Stalls;

/// Where a node's syslog daemon listens.
pub const SYSLOG_SOCKET: &str = "/dev/log";

/// The words for the priorities, 0 to 7 (syslog(3)): logger(1)'s, PMIx's, and others that people use.
pub const PRIORITIES: [(&str, &str, &[&str]); 8] = [
    ("emerg", "emergency", &["panic"]),
    ("alert", "alert", &[]),
    ("crit", "critical", &[]),
    ("err", "error", &[]),
    ("warning", "warning", &["warn"]),
    ("notice", "notice", &[]),
    ("info", "info", &["information", "informational"]),
    ("debug", "debug", &[]),
];

/// PMIx's word for a priority.
pub(crate) fn severity(priority: u8) -> &'static str {
    PRIORITIES.get(usize::from(priority)).map_or("", |(_, word, _)| word)
}

/// How long a daemon that does not read is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// What messages are known by in the syslog, as those of other implementations of PMIx are.
const IDENT: &str = "PMIx Log Report:";

/// LOG_USER, syslog(3).
const FACILITY: u8 = 1 << 3;

/// A syslog daemon on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Syslog {
    path: PathBuf,
}

impl Default for Syslog {
    fn default() -> Syslog {
        Syslog::at(SYSLOG_SOCKET)
    }
}

impl Syslog {
    /// That which listens on the socket `path`, for datagrams, or else as a stream.
    pub fn at(path: impl Into<PathBuf>) -> Syslog {
        Syslog { path: path.into() }
    }

    /// Its socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there seems to be one.
    pub fn is_there(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|at| at.file_type().is_socket())
    }

    /// Sends one message with `priority`, 0 to 7, as syslog(3) does. Waits for a daemon that does not read, for two
    /// seconds at most; nothing is sent to one that has stalled so a short time ago.
    ///
    /// # Errors
    /// Nobody is there, or it does not read.
    pub fn send(&self, priority: u8, text: &str, stalls: &Stalls) -> Result<(), Failure> {
        let daemon = format!("the syslog daemon at {}", self.path.display());
        stalls.may_have(&daemon)?;
        let code = FACILITY | priority.min(7);
        let time = Zoned::now().strftime("%b %e %H:%M:%S");
        let datagram = format!("<{code}>{time} {IDENT}[{}]: {text}", process::id());
        let sent = match self.send_datagram(&datagram) {
            Err(error) if error.raw_os_error() == Some(libc::EPROTOTYPE) => self.send_stream(datagram),
            sent => sent,
        };
        sent.map_err(|error| {
            if error.kind() == io::ErrorKind::WouldBlock {
                stalls.note(&daemon);
            }
            self.failed(&daemon, &error)
        })
    }

    fn send_datagram(&self, datagram: &str) -> io::Result<()> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(&self.path)?;
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.send(datagram.as_bytes()).map(drop)
    }

    /// On a stream a NUL ends each message.
    fn send_stream(&self, mut message: String) -> io::Result<()> {
        message.push('\0');
        let mut socket = connect_within(&self.path, PATIENCE)?;
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.write_all(message.as_bytes())
    }

    fn failed(&self, daemon: &str, error: &io::Error) -> Failure {
        let reason = match error.kind() {
            io::ErrorKind::WouldBlock => {
                return Failure {
                    status: Status::ERR_RESOURCE_BUSY,
                    reason: format!("{daemon} has not read for {} s", PATIENCE.as_secs()),
                };
            }
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                format!(
                    "no syslog daemon listens on {}: start one, or choose another channel",
                    self.path.display()
                )
            }
            _ => format!("{daemon}: {error}"),
        };
        Failure { status: Status::ERR_NOT_AVAILABLE, reason }
    }
}
