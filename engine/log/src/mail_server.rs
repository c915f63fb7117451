//! The mail server that an engine is configured with.

use std::time::Duration;

/// The default mail server, on this node: host and port.
pub const DEFAULT_MAIL_SERVER: (&str, u16) = ("localhost", 25);

/// The default timeout of one mail, from connecting to the server's final reply.
pub const MAIL_TIMEOUT: Duration = Duration::from_secs(10);

/// A mail server: a relay that accepts mail without authentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailServer {
    /// The host name or address.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// The timeout of one mail, from connecting to the final reply.
    pub timeout: Duration,
}

impl Default for MailServer {
    /// Returns port 25 of localhost, with [`MAIL_TIMEOUT`].
    fn default() -> MailServer {
        let (host, port) = DEFAULT_MAIL_SERVER;
        MailServer { host: host.to_owned(), port, timeout: MAIL_TIMEOUT }
    }
}
