//! The part of SMTP (RFC 5321) that hands one mail to a relay.
//!
//! lettre formats the commands and parses the replies. The connection is implemented here, so that
//! one deadline covers all of it and the size of a reply is bounded. lettre's connection has a
//! timeout for each read, which a server that sends single bytes never reaches, and no bound on an
//! endless line.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use iof_proto::names::sanitize;
use lettre::Message;
use lettre::transport::smtp::commands::{Data, Ehlo, Mail, Quit, Rcpt};
use lettre::transport::smtp::extension::{ClientId, Extension, MailBodyParameter, MailParameter, ServerInfo};
use lettre::transport::smtp::response::Response;

/// The largest reply of a server, in bytes.
const MAX_REPLY: usize = 16 << 10;
/// The size of one read from a server, in bytes.
const CHUNK: usize = 1 << 10;
/// The longest part of a rejection that is shown, in characters.
const MAX_SHOWN: usize = 200;

/// The reason why a server did not accept a mail. The message continues a sentence that starts with
/// the server's name.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SmtpError {
    /// The deadline has passed.
    #[error("did not accept the mail in time")]
    TimedOut,
    /// The connection could not be established, or failed.
    #[error("could not be reached: {0}")]
    Io(io::Error),
    /// The server closed the connection.
    #[error("closed the connection before it accepted the mail")]
    Closed,
    /// A reply exceeds [`MAX_REPLY`].
    #[error("sent a reply of more than {MAX_REPLY} bytes: check that it is a mail server")]
    ReplyTooLong,
    /// A reply is not valid SMTP.
    #[error("does not speak SMTP: {0}")]
    Protocol(lettre::transport::smtp::Error),
    /// The server rejected a command.
    #[error("rejected the mail: {0}")]
    Rejected(String),
    /// An address needs an extension that the server lacks.
    #[error("does not accept non-ASCII addresses (SMTPUTF8)")]
    NoSmtpUtf8,
}

/// Sends `message`. Blocks until the server has accepted it, until `deadline` at most. The name
/// lookup of `host` is not covered by the deadline: resolv.conf(5) limits it.
pub(crate) fn send(
    host: &str,
    port: u16,
    node: &str,
    message: &Message,
    deadline: Instant,
) -> Result<(), SmtpError> {
    let mut session = Session::connect(host, port, deadline)?;
    session.reply()?;
    let hello = session.command(Ehlo::new(ClientId::Domain(node.to_owned())))?;
    let server = ServerInfo::from_response(&hello).map_err(SmtpError::Protocol)?;

    let envelope = message.envelope();
    let text = message.formatted();
    let mut parameters = Vec::new();
    if envelope.to().iter().chain(envelope.from()).any(|address| !AsRef::<str>::as_ref(address).is_ascii()) {
        if !server.supports_feature(Extension::SmtpUtfEight) {
            return Err(SmtpError::NoSmtpUtf8);
        }
        parameters.push(MailParameter::SmtpUtfEight);
    }
    // Bodies and subjects are encoded, so only display names can be non-ASCII.
    if !text.is_ascii() && server.supports_feature(Extension::EightBitMime) {
        parameters.push(MailParameter::Body(MailBodyParameter::EightBitMime));
    }
    session.command(Mail::new(envelope.from().cloned(), parameters))?;
    for to in envelope.to() {
        session.command(Rcpt::new(to.clone(), Vec::new()))?;
    }
    session.command(Data)?;
    session.write(&dot_stuffed(&text))?;
    session.reply()?;
    // The server has accepted the mail, so a failure from here on does not matter.
    let _ = session.write(Quit.to_string().as_bytes());
    Ok(())
}

struct Session {
    stream: TcpStream,
    deadline: Instant,
    /// The received part of an incomplete reply.
    received: Vec<u8>,
}

impl Session {
    fn connect(host: &str, port: u16, deadline: Instant) -> Result<Session, SmtpError> {
        let mut error = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
        let addresses = (host, port).to_socket_addrs().map_err(SmtpError::Io)?;
        let mut addresses: VecDeque<SocketAddr> = addresses.collect();
        while let Some(address) = addresses.pop_front() {
            // Each address gets an equal share of the time, so that one that does not answer
            // leaves time for the others.
            let shares = u32::try_from(addresses.len()).unwrap_or(u32::MAX).saturating_add(1);
            let share =
                remaining(deadline)?.checked_div(shares).unwrap_or_default().max(Duration::from_millis(1));
            match TcpStream::connect_timeout(&address, share) {
                Ok(stream) => return Ok(Session { stream, deadline, received: Vec::new() }),
                Err(last) => error = last,
            }
        }
        Err(smtp_error(error))
    }

    /// Sends a command and returns the reply. A rejection is an error.
    fn command(&mut self, command: impl Display) -> Result<Response, SmtpError> {
        self.write(command.to_string().as_bytes())?;
        self.reply()
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<(), SmtpError> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(Some(remaining(self.deadline)?)).map_err(SmtpError::Io)?;
            match self.stream.write(bytes) {
                Ok(0) => return Err(SmtpError::Closed),
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(smtp_error(error)),
            }
        }
        Ok(())
    }

    fn reply(&mut self) -> Result<Response, SmtpError> {
        let end = loop {
            if let Some(end) = end_of_reply(&self.received) {
                break end;
            }
            if self.received.len() >= MAX_REPLY {
                return Err(SmtpError::ReplyTooLong);
            }
            self.read()?;
        };
        let reply: Vec<u8> = self.received.drain(..end).collect();
        let reply: Response = String::from_utf8_lossy(&reply).parse().map_err(SmtpError::Protocol)?;
        if reply.is_positive() { Ok(reply) } else { Err(SmtpError::Rejected(summary(&reply))) }
    }

    fn read(&mut self) -> Result<(), SmtpError> {
        let mut chunk = [0; CHUNK];
        self.stream.set_read_timeout(Some(remaining(self.deadline)?)).map_err(SmtpError::Io)?;
        match self.stream.read(&mut chunk) {
            Ok(0) => return Err(SmtpError::Closed),
            Ok(count) => self.received.extend_from_slice(chunk.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(smtp_error(error)),
        }
        Ok(())
    }
}

/// Returns the time until `deadline`. It is never zero, which a socket would take for "no timeout".
fn remaining(deadline: Instant) -> Result<Duration, SmtpError> {
    let remaining = deadline.saturating_duration_since(Instant::now());
    if remaining.is_zero() { Err(SmtpError::TimedOut) } else { Ok(remaining) }
}

fn smtp_error(error: io::Error) -> SmtpError {
    match error.kind() {
        // The kernel reports a socket timeout as EAGAIN, see socket(7).
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => SmtpError::TimedOut,
        _ => SmtpError::Io(error),
    }
}

/// Returns the offset after the first complete reply in `bytes`. Its last line is the first one
/// without a hyphen after the code (RFC 5321, 4.2.1).
fn end_of_reply(bytes: &[u8]) -> Option<usize> {
    let mut end = 0usize;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        end = end.saturating_add(line.len());
        match line {
            [b'0'..=b'9', b'0'..=b'9', b'0'..=b'9', b'-', .., b'\n'] => {}
            [.., b'\n'] => return Some(end),
            _ => return None,
        }
    }
    None
}

/// Returns a reply as one short line that is safe to print on a terminal.
fn summary(reply: &Response) -> String {
    let text = reply.message().collect::<Vec<_>>().join(" ");
    let text: String = text.chars().take(MAX_SHOWN).collect();
    format!("{} {}", reply.code(), sanitize(&text))
}

/// Returns a mail as it is sent after DATA. Lines that start with a dot get a second one, so that
/// no line can be taken for the end of the mail (RFC 5321, 4.5.2).
fn dot_stuffed(mail: &[u8]) -> Vec<u8> {
    let mut sent = Vec::with_capacity(mail.len());
    for line in mail.split_inclusive(|byte| *byte == b'\n') {
        if line.starts_with(b".") {
            sent.push(b'.');
        }
        sent.extend_from_slice(line);
    }
    if !sent.ends_with(b"\r\n") {
        sent.extend_from_slice(b"\r\n");
    }
    sent.extend_from_slice(b".\r\n");
    sent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_ends_after_its_last_line() {
        for (bytes, end) in [
            ("", None),
            ("25", None),
            ("250 ok", None),
            ("250 ok\r\n", Some(8)),
            ("250\r\n", Some(5)),
            ("250-a\r\n250 b\r\n", Some(14)),
            ("250-a\r\n250-b\r\n", None),
            ("250 ok\r\n220 next\r\n", Some(8)),
            ("\n", Some(1)),
            ("SSH-2.0-x\r\n", Some(11)),
        ] {
            assert_eq!(end_of_reply(bytes.as_bytes()), end, "{bytes:?}");
        }
    }

    #[test]
    fn no_line_of_a_mail_can_end_the_mail() {
        let sent = |mail: &str| String::from_utf8(dot_stuffed(mail.as_bytes())).unwrap();
        assert_eq!(sent("a\r\n.\r\n.b\r\n"), "a\r\n..\r\n..b\r\n.\r\n");
        assert_eq!(sent("a"), "a\r\n.\r\n");
        assert_eq!(sent(""), "\r\n.\r\n");
    }
}
