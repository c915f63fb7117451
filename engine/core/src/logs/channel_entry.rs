//! One entry of a log request on its way to a channel.

use std::sync::{Arc, Weak};

use iof_log::{LogOptions, LogOrigin};
use iof_proto::log::key;
use iof_proto::{Info, LogEntry, LogValue};

use crate::ids::LogStep;

/// One entry of a request on its way to a channel.
pub struct ChannelEntry {
    /// The step of the request that it answers.
    pub step: LogStep,
    /// The message and its channel.
    pub entry: LogEntry,
    /// The options of the request.
    pub options: Arc<LogOptions>,
    /// The process that logs.
    pub origin: LogOrigin,
    /// The request's directives, unchanged.
    pub directives: Vec<Info>,
    /// Expires when the tool that sent the request disconnects; `None` for the embedder.
    pub requester: Option<Weak<()>>,
}

/// The thread that logs an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogRoute {
    /// The one that writes to this node's syslog.
    Syslog,
    /// The job record.
    JobRecord,
    /// Email.
    Mail,
    /// The one that relays to the gateway.
    Gateway,
}

impl ChannelEntry {
    /// Returns the text of the message.
    pub fn text(&self) -> &str {
        self.entry.text().unwrap_or_default()
    }

    /// Returns the fields of an email.
    pub fn fields(&self) -> &[Info] {
        if let LogValue::Email(fields) = &self.entry.value { fields } else { &[] }
    }

    /// Returns whether the entry names the mail server that is to send it.
    pub(crate) fn names_server(&self) -> bool {
        self.fields().iter().chain(&self.options.email).any(|info| info.key == key::PMIX_LOG_EMAIL_SERVER)
    }
}
