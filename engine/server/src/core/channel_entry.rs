//! One entry of a log request on its way to a channel.

use std::sync::{Arc, Weak};

use iof_log::{LogOptions, LogOrigin};
use iof_proto::log::key;
use iof_proto::{Info, LogEntry, LogValue};

use crate::core::ids::LogStep;

/// One entry of a request on its way to a channel.
pub(crate) struct ChannelEntry {
    pub step: LogStep,
    pub entry: LogEntry,
    pub options: Arc<LogOptions>,
    pub origin: LogOrigin,
    /// The request's directives, unchanged.
    pub directives: Vec<Info>,
    /// Expires when the tool that sent the request disconnects; `None` for the embedder.
    #[cfg_attr(not(feature = "mail"), expect(dead_code, reason = "only mail depends on it"))]
    pub requester: Option<Weak<()>>,
}

/// The thread that logs an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogRoute {
    /// The one that writes to this node's syslog.
    Syslog,
    JobRecord,
    Mail,
    /// The one that relays to the gateway.
    Gateway,
}

impl ChannelEntry {
    pub(crate) fn text(&self) -> &str {
        self.entry.text().unwrap_or_default()
    }

    /// Returns the fields of an email.
    pub(crate) fn fields(&self) -> &[Info] {
        if let LogValue::Email(fields) = &self.entry.value { fields } else { &[] }
    }

    /// Returns whether the entry names the mail server that is to send it.
    pub(super) fn names_server(&self) -> bool {
        self.fields().iter().chain(&self.options.email).any(|info| info.key == key::PMIX_LOG_EMAIL_SERVER)
    }
}
