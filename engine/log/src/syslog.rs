//! The local syslog channel: the socket of syslog(3).

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

/// The socket of the node's syslog daemon.
pub const SYSLOG_SOCKET: &str = "/dev/log";

/// The names of the priorities 0 to 7 (syslog(3)): that of logger(1), that of PMIx, and aliases.
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

/// Returns PMIx's name of a priority.
pub(crate) fn severity(priority: u8) -> &'static str {
    PRIORITIES.get(usize::from(priority)).map_or("", |(_, word, _)| word)
}

/// The time to wait for a daemon that does not read.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The tag of messages in the syslog, the same as that of other PMIx implementations.
const IDENT: &str = "PMIx Log Report:";

/// LOG_USER, see syslog(3).
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
    /// Returns the daemon that listens on the datagram or stream socket `path`.
    pub fn at(path: impl Into<PathBuf>) -> Syslog {
        Syslog { path: path.into() }
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the socket exists.
    pub fn exists(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|metadata| metadata.file_type().is_socket())
    }

    /// Sends one message with `priority`, 0 to 7, as syslog(3) does. Blocks for two seconds at most
    /// if the daemon does not read, and then records that in `stalls`.
    ///
    /// # Errors
    /// - `ERR_NOT_AVAILABLE`: no daemon listens, it can't be reached, or it stalled recently (then
    ///   it is not contacted).
    /// - `ERR_RESOURCE_BUSY`: the daemon does not read.
    pub fn send(&self, priority: u8, text: &str, stalls: &Stalls) -> Result<(), Failure> {
        let daemon = format!("the syslog daemon at {}", self.path.display());
        stalls.check(&daemon)?;
        let code = FACILITY | priority.min(7);
        let time = Zoned::now().strftime("%b %e %H:%M:%S");
        let datagram = format!("<{code}>{time} {IDENT}[{}]: {text}", process::id());
        let sent = match self.send_datagram(&datagram) {
            Err(error) if error.raw_os_error() == Some(libc::EPROTOTYPE) => self.send_stream(datagram),
            sent => sent,
        };
        sent.map_err(|error| {
            if error.kind() == io::ErrorKind::WouldBlock {
                stalls.record(&daemon);
            }
            self.failed(&daemon, &error)
        })
    }

    fn send_datagram(&self, datagram: &str) -> io::Result<()> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(&self.path)?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        loop {
            match socket.send(datagram.as_bytes()) {
                // A signal interrupts a call with a time limit, also with SA_RESTART (signal(7)).
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                sent => return sent.map(drop),
            }
        }
    }

    /// Sends a message on a stream, where a NUL byte ends it.
    fn send_stream(&self, mut message: String) -> io::Result<()> {
        message.push('\0');
        let mut socket = connect_within(&self.path, TIMEOUT)?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        socket.write_all(message.as_bytes())
    }

    fn failed(&self, daemon: &str, error: &io::Error) -> Failure {
        let reason = match error.kind() {
            io::ErrorKind::WouldBlock => {
                return Failure {
                    status: Status::ERR_RESOURCE_BUSY,
                    reason: format!("{daemon} has not read for {} s", TIMEOUT.as_secs()),
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
        Failure::new(Status::ERR_NOT_AVAILABLE, reason)
    }
}
