//! As much of SMTP (RFC 5321) as it takes to hand one mail to a relay. The commands, and the reading of replies, are
//! lettre's. The connection is ours: all that is done on it has one deadline, and a server may say so much and no more.
//! (lettre's own has a time-out for each read, which a server that drips bytes never meets, and no bound on a line that
//! does not end.)

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use iof_proto::names::shown;
use lettre::Message;
use lettre::transport::smtp::commands::{Data, Ehlo, Mail, Quit, Rcpt};
use lettre::transport::smtp::extension::{ClientId, Extension, MailBodyParameter, MailParameter, ServerInfo};
use lettre::transport::smtp::response::Response;

/// Bytes that a server may send as one reply, and so all that is kept of what it says.
const MAX_REPLY: usize = 16 << 10;
/// Bytes read from a server at a time.
const CHUNK: usize = 1 << 10;

/// Why a server has not taken a mail, in words that follow its name.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SmtpError {
    /// The deadline came first.
    #[error("was not done in time")]
    Late,
    /// The connection failed, or was not made.
    #[error("does not take the mail: {0}")]
    Socket(io::Error),
    /// It closed the connection.
    #[error("closed the connection before it took the mail")]
    Closed,
    /// It says too much at once.
    #[error("sends more than {MAX_REPLY} bytes as one reply: it is no mail server")]
    Flood,
    /// What it says is no SMTP.
    #[error("does not speak SMTP: {0}")]
    Nonsense(lettre::transport::smtp::Error),
    /// It says no.
    #[error("does not take the mail: {0}")]
    Refused(String),
    /// An address needs an extension that it does not have.
    #[error("takes no addresses that are not in ASCII (SMTPUTF8)")]
    NoUtf8,
}

/// Hands `message` to the server, until `deadline`. The resolver, which looks up `host` if that is a name, has limits of
/// its own (resolv.conf(5)).
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
    let server = ServerInfo::from_response(&hello).map_err(SmtpError::Nonsense)?;

    let envelope = message.envelope();
    let text = message.formatted();
    let mut parameters = Vec::new();
    if envelope.to().iter().chain(envelope.from()).any(|address| !AsRef::<str>::as_ref(address).is_ascii()) {
        if !server.supports_feature(Extension::SmtpUtfEight) {
            return Err(SmtpError::NoUtf8);
        }
        parameters.push(MailParameter::SmtpUtfEight);
    }
    // Bodies and subjects are encoded, so it is a display name at most.
    if !text.is_ascii() && server.supports_feature(Extension::EightBitMime) {
        parameters.push(MailParameter::Body(MailBodyParameter::EightBitMime));
    }
    session.command(Mail::new(envelope.from().cloned(), parameters))?;
    for to in envelope.to() {
        session.command(Rcpt::new(to.clone(), Vec::new()))?;
    }
    session.command(Data)?;
    session.write(&transparent(&text))?;
    session.reply()?;
    // It has the mail: nothing depends on how it takes its leave.
    let _ = session.write(Quit.to_string().as_bytes());
    Ok(())
}

struct Session {
    stream: TcpStream,
    deadline: Instant,
    /// What was received and is of a reply that is not whole yet.
    received: Vec<u8>,
}

impl Session {
    fn connect(host: &str, port: u16, deadline: Instant) -> Result<Session, SmtpError> {
        let mut error = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
        let addresses = (host, port).to_socket_addrs().map_err(SmtpError::Socket)?;
        let mut addresses: VecDeque<SocketAddr> = addresses.collect();
        while let Some(address) = addresses.pop_front() {
            // One that does not answer leaves the others their share of the time.
            let shares = u32::try_from(addresses.len()).unwrap_or(u32::MAX).saturating_add(1);
            let share = left(deadline)?.checked_div(shares).unwrap_or_default().max(Duration::from_millis(1));
            match TcpStream::connect_timeout(&address, share) {
                Ok(stream) => return Ok(Session { stream, deadline, received: Vec::new() }),
                Err(failed) => error = failed,
            }
        }
        Err(failed(error))
    }

    /// Says something, and gives the reply if that is no refusal.
    fn command(&mut self, command: impl Display) -> Result<Response, SmtpError> {
        self.write(command.to_string().as_bytes())?;
        self.reply()
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<(), SmtpError> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(Some(left(self.deadline)?)).map_err(SmtpError::Socket)?;
            match self.stream.write(bytes) {
                Ok(0) => return Err(SmtpError::Closed),
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
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
                return Err(SmtpError::Flood);
            }
            self.read()?;
        };
        let reply: Vec<u8> = self.received.drain(..end).collect();
        let reply: Response = String::from_utf8_lossy(&reply).parse().map_err(SmtpError::Nonsense)?;
        if reply.is_positive() { Ok(reply) } else { Err(SmtpError::Refused(words(&reply))) }
    }

    fn read(&mut self) -> Result<(), SmtpError> {
        let mut chunk = [0; CHUNK];
        self.stream.set_read_timeout(Some(left(self.deadline)?)).map_err(SmtpError::Socket)?;
        match self.stream.read(&mut chunk) {
            Ok(0) => return Err(SmtpError::Closed),
            Ok(count) => self.received.extend_from_slice(chunk.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
        Ok(())
    }
}

/// The time left, which is never zero: a socket would take that for no limit.
fn left(deadline: Instant) -> Result<Duration, SmtpError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(SmtpError::Late) } else { Ok(left) }
}

fn failed(error: io::Error) -> SmtpError {
    match error.kind() {
        // The kernel calls a socket's time-out EAGAIN, socket(7).
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => SmtpError::Late,
        _ => SmtpError::Socket(error),
    }
}

/// Where the first reply in `bytes` ends: behind the first line without a hyphen after its code (RFC 5321, 4.2.1).
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

/// What a server says, for a terminal: in one line, and not too much of it.
fn words(reply: &Response) -> String {
    let said = reply.message().collect::<Vec<_>>().join(" ");
    let said: String = said.chars().take(200).collect();
    format!("{} {}", reply.code(), shown(&said))
}

/// A mail as it is sent after DATA: no line of it can be taken for its end (RFC 5321, 4.5.2).
fn transparent(mail: &[u8]) -> Vec<u8> {
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
    fn a_reply_ends_behind_its_last_line() {
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
    fn no_line_of_a_mail_ends_it() {
        let sent = |mail: &str| String::from_utf8(transparent(mail.as_bytes())).unwrap();
        assert_eq!(sent("a\r\n.\r\n.b\r\n"), "a\r\n..\r\n..b\r\n.\r\n");
        assert_eq!(sent("a"), "a\r\n.\r\n");
        assert_eq!(sent(""), "\r\n.\r\n");
    }
}
