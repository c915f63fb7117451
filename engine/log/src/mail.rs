//! The email channel: composing a mail and sending it by SMTP.

use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use iof_proto::attribute::{AttributeError, Given, Place};
use iof_proto::log::key;
use iof_proto::{Failure, Info, InfoValue, Status};
use lettre::Message;
use lettre::message::header::{ContentType, MIME_VERSION_1_0};
use lettre::message::{Mailbox, Mailboxes, MessageBuilder};
use nix::unistd::{User, geteuid};

use crate::mail_server::{DEFAULT_MAIL_SERVER, MailServer};
use crate::options::LogOptions;
use crate::smtp::{self, SmtpError};
use crate::stalls::Stalls;

/// The default subject.
const SUBJECT: &str = "PMIx Log Report";

/// An email that is ready to be sent.
#[derive(Debug, Clone)]
pub struct Mail {
    message: Message,
    server: MailServer,
    node: String,
}

/// The fields of an email request.
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
    Failure::new(Status::ERR_BAD_PARAM, reason.to_string())
}

impl<'a> Fields<'a> {
    /// Fills the fields that are not set yet.
    fn read(mut self, infos: &'a [Info]) -> Result<Fields<'a>, Failure> {
        for info in infos {
            let key = &info.key;
            if matches!(&info.value, InfoValue::Text(text) if text.contains('\0')) {
                return Err(bad(format!(
                    "the value of {key} contains a NUL byte, where PMIx would end it: remove it"
                )));
            }
            let given = match Given::new(info, Place::Email) {
                Ok(given) => given,
                Err(AttributeError::Unknown { .. } | AttributeError::Elsewhere { .. }) if !info.required => {
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            match given.key() {
                key::PMIX_LOG_EMAIL_ADDR => self.to = self.to.or(Some(given.text()?)),
                key::PMIX_LOG_EMAIL_SENDER_ADDR => self.from = self.from.or(Some(given.text()?)),
                key::PMIX_LOG_EMAIL_SUBJECT => self.subject = self.subject.or(Some(given.text()?)),
                key::PMIX_LOG_EMAIL_MSG => self.body = self.body.or(Some(given.text()?)),
                key::PMIX_LOG_EMAIL_SERVER => self.host = self.host.or(Some(given.text()?)),
                key::PMIX_LOG_EMAIL_SRVR_PORT => self.port = self.port.or(Some(given.number()?)),
                _ => return Err(given.unread().into()),
            }
        }
        Ok(self)
    }
}

impl Mail {
    /// Composes an email from the attributes `infos` (`PMIX_LOG_EMAIL`). The directives in
    /// `options` provide what they do not set. The email goes to `server` unless these name
    /// another. `node` is the name of this node.
    ///
    /// # Errors
    /// - `ERR_BAD_PARAM`: the recipient is missing, or an address or another value is invalid.
    /// - `ERR_NOT_SUPPORTED`: an unknown attribute is required.
    pub fn new(
        infos: &[Info],
        options: &LogOptions,
        server: &MailServer,
        node: &str,
    ) -> Result<Mail, Failure> {
        let fields = Fields::default().read(infos)?.read(&options.email)?;
        let Some(to) = fields.to else {
            return Err(bad(format!("missing email address: set {}", key::PMIX_LOG_EMAIL_ADDR)));
        };
        let address = |text: &str, error| bad(format!("invalid email address '{text}': {error}"));
        let to: Mailboxes = to.parse().map_err(|error| address(to, error))?;
        let from: Mailbox = match fields.from {
            Some(from) => from.parse().map_err(|error| address(from, error))?,
            None => {
                let from = format!("{}@{node}", user());
                from.parse().map_err(|error| address(&from, error))?
            }
        };
        // lettre sends a lone CR as it is, and some servers take that for the end of a line.
        let body = fields.body.unwrap_or_default().replace("\r\n", "\n").replace('\r', "\n");
        // The Date header cannot express times before 1970 or after 9999, and neither can
        // `PMIX_LOG_TIMESTAMP`.
        let time = options.time.map_or_else(SystemTime::now, SystemTime::from);
        let builder: MessageBuilder = Message::builder().from(from).date(time).message_id(Some(id(node)));
        let message = to
            .into_iter()
            .fold(builder, MessageBuilder::to)
            .subject(fields.subject.unwrap_or(SUBJECT))
            .header(MIME_VERSION_1_0)
            .header(ContentType::TEXT_PLAIN)
            .body(body)
            .map_err(bad)?;
        // The port of the configured server does not apply to a server that the request names.
        let (host, port) = match fields.host {
            Some(host) => (host.to_owned(), DEFAULT_MAIL_SERVER.1),
            None => (server.host.clone(), server.port),
        };
        let server = MailServer { host, port: fields.port.unwrap_or(port), ..server.clone() };
        Ok(Mail { message, server, node: node.to_owned() })
    }

    /// Sends the mail. Blocks until the server has accepted or rejected it, for the server's
    /// timeout at most. A timeout is recorded in `stalls`.
    ///
    /// # Errors
    /// `ERR_NOT_AVAILABLE`: the server can't be reached, does not answer in time, rejects the mail,
    /// or stalled recently (then it is not contacted).
    pub fn send(&self, stalls: &Stalls) -> Result<(), Failure> {
        let MailServer { host, port, timeout } = &self.server;
        let server = format!("the mail server {host} at port {port}");
        stalls.check(&server)?;
        // A deadline that the clock cannot represent counts as expired.
        let now = Instant::now();
        let deadline = now.checked_add(*timeout).unwrap_or(now);
        smtp::send(host, *port, &self.node, &self.message, deadline).map_err(|error| {
            let reason = match error {
                SmtpError::TimedOut => {
                    stalls.record(&server);
                    format!("{server} did not accept the mail within {} s", timeout.as_secs_f64())
                }
                error => format!("{server} {error}"),
            };
            Failure::new(Status::ERR_NOT_AVAILABLE, reason)
        })
    }
}

/// Returns a unique message id (RFC 5322, 3.6.4).
fn id(node: &str) -> String {
    static MAILS: AtomicU64 = AtomicU64::new(0);
    let time = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    format!("<{time:x}.{:x}.{:x}@{node}>", process::id(), MAILS.fetch_add(1, Ordering::Relaxed))
}

fn user() -> String {
    let known = User::from_uid(geteuid()).ok().flatten();
    known.map_or_else(|| geteuid().to_string(), |user| user.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use iof_proto::attribute;

    fn mail(infos: &[(&str, &str)]) -> Result<Mail, Failure> {
        let infos: Vec<Info> = infos.iter().map(|(key, text)| Info::new(*key, *text)).collect();
        Mail::new(&infos, &LogOptions::default(), &MailServer::default(), "node")
    }

    #[test]
    fn missing_fields_of_an_email_come_from_the_directives_the_server_and_the_node() {
        let body = Info::new(key::PMIX_LOG_EMAIL_MSG, "body");
        let others = [
            Info::new(key::PMIX_LOG_EMAIL_ADDR, "a@x.org, B <b@x.org>"),
            Info::new(key::PMIX_LOG_EMAIL_SERVER, "mail"),
        ];
        let options = LogOptions { email: others.into(), ..LogOptions::default() };
        let made =
            Mail::new(&[body], &options, &MailServer { port: 77, ..MailServer::default() }, "node").unwrap();
        let to: Vec<String> = made.message.envelope().to().iter().map(ToString::to_string).collect();
        assert_eq!(to, ["a@x.org", "b@x.org"]);
        assert_eq!((made.server.host.as_str(), made.server.port), ("mail", 25));
        assert_eq!(made.message.envelope().from().unwrap().to_string(), format!("{}@node", user()));
    }

    #[test]
    fn no_field_can_inject_a_header_or_a_recipient() {
        let subject = "x\r\nBcc: c@x.org\r\n\r\nbody";
        let made = mail(&[
            (key::PMIX_LOG_EMAIL_ADDR, "a@x.org"),
            (key::PMIX_LOG_EMAIL_SUBJECT, subject),
            (key::PMIX_LOG_EMAIL_MSG, ".\r\nRCPT TO:<c@x.org>"),
        ]);
        let text = String::from_utf8(made.unwrap().message.formatted()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let names: Vec<&str> = head
            .lines()
            .filter(|line| !line.starts_with(' '))
            .map(|line| line.split_once(": ").unwrap().0)
            .collect();
        let expected =
            ["From", "Date", "Message-ID", "To", "Subject", "MIME-Version", "Content-Type"].as_slice();
        assert_eq!(names, [expected, &["Content-Transfer-Encoding"]].concat(), "{head}");
        assert_eq!(body, ".\r\nRCPT TO:<c@x.org>");
        for address in ["a@x.org\r\nBcc: c@x.org", "", "nobody", "a@x.org>\r\nRCPT TO:<c@x.org>"] {
            assert_eq!(
                mail(&[(key::PMIX_LOG_EMAIL_ADDR, address)]).unwrap_err().status,
                Status::ERR_BAD_PARAM
            );
        }
    }

    #[test]
    fn every_field_rejects_a_nul_and_no_lone_carriage_return_is_sent() {
        let to = (key::PMIX_LOG_EMAIL_ADDR, "a@x.org");
        let keys = [
            key::PMIX_LOG_EMAIL_ADDR,
            key::PMIX_LOG_EMAIL_SENDER_ADDR,
            key::PMIX_LOG_EMAIL_SUBJECT,
            key::PMIX_LOG_EMAIL_MSG,
            key::PMIX_LOG_EMAIL_SERVER,
        ];
        for key in keys {
            let failure = mail(&[(key, "a@x\0.org"), to]).unwrap_err();
            assert_eq!(failure.status, Status::ERR_BAD_PARAM, "{failure}");
            assert!(failure.reason.contains("contains a NUL byte"), "{failure}");
        }
        let odd = "a\rb\r\n.\rc\u{7f}\n";
        let made = mail(&[to, (key::PMIX_LOG_EMAIL_SUBJECT, odd), (key::PMIX_LOG_EMAIL_MSG, odd)]).unwrap();
        let text = made.message.formatted();
        let lone = text.windows(2).find(|pair| (pair[0] == b'\r') != (pair[1] == b'\n'));
        assert_eq!(lone, None, "{}", text.escape_ascii());
    }

    #[test]
    fn an_email_has_exactly_the_fields_of_the_table() {
        let to = Info::new(key::PMIX_LOG_EMAIL_ADDR, "a@x.org");
        let accepts = |info: &Info| {
            let infos = [info.clone(), to.clone()];
            Mail::new(&infos, &LogOptions::default(), &MailServer::default(), "node").is_ok()
        };
        assert_eq!(attribute::mismatches(&[Place::Email], accepts), []);
    }

    #[test]
    fn fields_of_the_wrong_type_are_an_error() {
        let wrong = [
            Info::new(key::PMIX_LOG_EMAIL_SRVR_PORT, "25"),
            Info::new(key::PMIX_LOG_EMAIL_SRVR_PORT, 65_536u32),
            Info::new(key::PMIX_LOG_EMAIL_SUBJECT, true),
            Info::required("site.colour", true),
        ];
        for info in wrong {
            let to = Info::new(key::PMIX_LOG_EMAIL_ADDR, "a@x.org");
            let made = Mail::new(&[to, info.clone()], &LogOptions::default(), &MailServer::default(), "node");
            assert!(made.is_err(), "{info:?}");
        }
    }
}
