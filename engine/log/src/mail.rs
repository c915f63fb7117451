//! Email, by SMTP.

use std::error::Error;
use std::io;
use std::time::Duration;

use iof_proto::log::key;
use iof_proto::{Failure, Info, InfoValue, Status};
use lettre::message::header::ContentType;
use lettre::message::{Mailbox, Mailboxes, MessageBuilder};
use lettre::transport::smtp::extension::ClientId;
use lettre::{Message, SmtpTransport, Transport};
use nix::unistd::{User, geteuid};

/// The mail server of who names none: the node's own.
pub const DEFAULT_MAIL_SERVER: (&str, u16) = ("localhost", 25);

/// How long a mail server may take for each of its answers.
pub const MAIL_PATIENCE: Duration = Duration::from_secs(10);

/// What an email is about that does not say so.
const SUBJECT: &str = "PMIx Log Report";

/// A mail server: a relay that takes mail without a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailServer {
    /// Its name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// How long it may take for each of its answers.
    pub patience: Duration,
}

impl Default for MailServer {
    fn default() -> MailServer {
        let (host, port) = DEFAULT_MAIL_SERVER;
        MailServer { host: host.to_owned(), port, patience: MAIL_PATIENCE }
    }
}

/// One email.
#[derive(Debug, Clone)]
pub struct Mail {
    message: Message,
    server: MailServer,
    node: String,
}

/// What an email is made of.
#[derive(Default)]
struct Fields<'a> {
    to: Option<&'a str>,
    from: Option<&'a str>,
    subject: Option<&'a str>,
    body: Option<&'a str>,
    host: Option<&'a str>,
    port: Option<u16>,
}

fn bad(reason: impl ToString) -> Failure {
    Failure { status: Status::ERR_BAD_PARAM, reason: reason.to_string() }
}

impl<'a> Fields<'a> {
    /// Takes what was not said before.
    fn read(mut self, infos: &'a [Info]) -> Result<Fields<'a>, Failure> {
        for info in infos {
            match (info.key.as_str(), &info.value) {
                (key::PMIX_LOG_EMAIL_ADDR, InfoValue::Text(to)) => self.to = self.to.or(Some(to)),
                (key::PMIX_LOG_EMAIL_SENDER_ADDR, InfoValue::Text(from)) => {
                    self.from = self.from.or(Some(from));
                }
                (key::PMIX_LOG_EMAIL_SUBJECT, InfoValue::Text(about)) => {
                    self.subject = self.subject.or(Some(about));
                }
                (key::PMIX_LOG_EMAIL_MSG, InfoValue::Text(body)) => self.body = self.body.or(Some(body)),
                (key::PMIX_LOG_EMAIL_SERVER, InfoValue::Text(host)) => self.host = self.host.or(Some(host)),
                (key::PMIX_LOG_EMAIL_SRVR_PORT, InfoValue::Number(port)) => {
                    let valid = u16::try_from(*port).ok().filter(|port| *port > 0);
                    let port = valid.ok_or_else(|| bad(format!("{port} is no port: say 1 to 65535")))?;
                    self.port = self.port.or(Some(port));
                }
                (key, _) if key.starts_with("pmix.log.em") || key.starts_with("pmix.log.es") => {
                    return Err(bad(format!("the value of {key} has the wrong type")));
                }
                (key, _) if info.required => {
                    let reason = format!("nobody here knows {key:?} of an email: do not require it");
                    return Err(Failure { status: Status::ERR_NOT_SUPPORTED, reason });
                }
                _ => {}
            }
        }
        Ok(self)
    }
}

impl Mail {
    /// The email that `infos` make (`PMIX_LOG_EMAIL`), with `others` for what they do not say; it goes to `server` unless
    /// they say another.
    ///
    /// # Errors
    /// It has no address or no message, or an address is none.
    pub fn new(infos: &[Info], others: &[Info], server: &MailServer, node: &str) -> Result<Mail, Failure> {
        let fields = Fields::default().read(infos)?.read(others)?;
        let Some(to) = fields.to else {
            return Err(bad(format!("an email needs an address: give {}", key::PMIX_LOG_EMAIL_ADDR)));
        };
        let address = |text: &str, error| bad(format!("'{text}' is no email address: {error}"));
        let to: Mailboxes = to.parse().map_err(|error| address(to, error))?;
        let from: Mailbox = match fields.from {
            Some(from) => from.parse().map_err(|error| address(from, error))?,
            None => {
                let from = format!("{}@{node}", user());
                from.parse().map_err(|error| address(&from, error))?
            }
        };
        let builder: MessageBuilder = Message::builder().from(from);
        let message = to
            .into_iter()
            .fold(builder, MessageBuilder::to)
            .subject(fields.subject.unwrap_or(SUBJECT))
            .header(ContentType::TEXT_PLAIN)
            .body(fields.body.unwrap_or_default().to_owned())
            .map_err(bad)?;
        // A server of the request's own has its own usual port.
        let (host, port) = match fields.host {
            Some(host) => (host.to_owned(), DEFAULT_MAIL_SERVER.1),
            None => (server.host.clone(), server.port),
        };
        let server = MailServer { host, port: fields.port.unwrap_or(port), ..server.clone() };
        Ok(Mail { message, server, node: node.to_owned() })
    }

    /// Hands it to its server. Takes as long as that does: up to its patience for each answer.
    ///
    /// # Errors
    /// The server can't be reached, stalls, or does not take it.
    pub fn send(&self) -> Result<(), Failure> {
        let MailServer { host, port, patience } = &self.server;
        let transport = SmtpTransport::builder_dangerous(host)
            .port(*port)
            .timeout(Some(*patience))
            .hello_name(ClientId::Domain(self.node.clone()))
            .build();
        let refused = |error: lettre::transport::smtp::Error| {
            let why = if error.is_timeout() || is_timeout(&error) {
                format!("has not answered for {} s", patience.as_secs_f64())
            } else {
                format!("does not take the mail: {error}")
            };
            let reason = format!("the mail server {host} at port {port} {why}");
            Failure { status: Status::ERR_NOT_AVAILABLE, reason }
        };
        transport.send(&self.message).map(drop).map_err(refused)
    }
}

/// Whether a socket's time-out is behind an error: the kernel calls that EAGAIN, socket(7).
fn is_timeout(error: &(dyn Error + 'static)) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    let late = matches!(kind, Some(io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut));
    late || error.source().is_some_and(is_timeout)
}

fn user() -> String {
    let known = User::from_uid(geteuid()).ok().flatten();
    known.map_or_else(|| geteuid().to_string(), |user| user.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mail(infos: &[(&str, &str)]) -> Result<Mail, Failure> {
        let infos: Vec<Info> = infos.iter().map(|(key, text)| Info::new(*key, *text)).collect();
        Mail::new(&infos, &[], &MailServer::default(), "node")
    }

    #[test]
    fn what_an_email_does_not_say_is_said_by_the_directives_the_server_and_the_node() {
        let body = Info::new(key::PMIX_LOG_EMAIL_MSG, "body");
        let others = [
            Info::new(key::PMIX_LOG_EMAIL_ADDR, "a@x.org, B <b@x.org>"),
            Info::new(key::PMIX_LOG_EMAIL_SERVER, "mail"),
        ];
        let made =
            Mail::new(&[body], &others, &MailServer { port: 77, ..MailServer::default() }, "node").unwrap();
        let to: Vec<String> = made.message.envelope().to().iter().map(ToString::to_string).collect();
        assert_eq!(to, ["a@x.org", "b@x.org"]);
        assert_eq!((made.server.host.as_str(), made.server.port), ("mail", 25));
        assert_eq!(made.message.envelope().from().unwrap().to_string(), format!("{}@node", user()));
    }

    #[test]
    fn no_field_can_smuggle_in_another_header_or_recipient() {
        let subject = "x\r\nBcc: c@x.org\r\n\r\nbody";
        let made = mail(&[
            (key::PMIX_LOG_EMAIL_ADDR, "a@x.org"),
            (key::PMIX_LOG_EMAIL_SUBJECT, subject),
            (key::PMIX_LOG_EMAIL_MSG, ".\r\nRCPT TO:<c@x.org>"),
        ]);
        if let Ok(made) = made {
            let text = String::from_utf8(made.message.formatted()).unwrap();
            let (head, _) = text.split_once("\r\n\r\n").unwrap();
            assert!(!head.lines().any(|line| line.starts_with("Bcc")), "{head}");
            assert_eq!(made.message.envelope().to().len(), 1);
        }
        for address in ["a@x.org\r\nBcc: c@x.org", "", "nobody", "a@x.org>\r\nRCPT TO:<c@x.org>"] {
            assert_eq!(
                mail(&[(key::PMIX_LOG_EMAIL_ADDR, address)]).unwrap_err().status,
                Status::ERR_BAD_PARAM
            );
        }
    }

    #[test]
    fn fields_of_a_wrong_type_are_an_error() {
        let wrong = [
            Info::new(key::PMIX_LOG_EMAIL_SRVR_PORT, "25"),
            Info::new(key::PMIX_LOG_EMAIL_SRVR_PORT, 65_536u32),
            Info::new(key::PMIX_LOG_EMAIL_SUBJECT, true),
            Info::required("site.colour", true),
        ];
        for info in wrong {
            let to = Info::new(key::PMIX_LOG_EMAIL_ADDR, "a@x.org");
            assert!(Mail::new(&[to, info.clone()], &[], &MailServer::default(), "node").is_err(), "{info:?}");
        }
    }
}
