//! The choice of the channel that an entry of a log request takes.

use std::collections::BTreeSet;
use std::path::PathBuf;

use iof_log::{ChannelKind, MailServer, Order, Syslog};
use iof_proto::log::key;

use crate::logs::channel_entry::{ChannelEntry, LogRoute};

/// The channels to which an engine logs messages (`PMIx_Log`), and their settings.
#[derive(Clone, Debug, Default)]
pub struct LogConfig {
    /// The channels for messages that do not name a channel, in order of preference
    /// (`plog_base_order`).
    pub order: Order,
    /// `true` if a message goes only to the first channel that accepts it, unless the message
    /// specifies otherwise (`plog_base_log_once`).
    pub once: bool,
    /// The syslog of this node.
    pub syslog: Syslog,
    /// The mail server for requests that do not name one. With `None`, the gateway sends email if
    /// there is one, otherwise the node's own mail server.
    pub mail: Option<MailServer>,
    /// The path of the job record, a file for logged messages. It is created with mode 0600 for the
    /// first message, and remains when the engine ends. With `None`, the path is that of the
    /// engine's socket with `.record` appended; a file that exists there is renamed to
    /// `.record.old`. An engine without a socket and without this path keeps no record.
    pub job_record: Option<PathBuf>,
    /// `true` if this engine is a gateway (`PMIX_SERVER_GATEWAY`). The syslog of a gateway is the
    /// global one. Other engines connect to it as tools do, see `ViaGateway`.
    pub gateway: bool,
}

/// The channels that an engine has.
pub struct LogRoutes {
    /// The settings.
    pub config: LogConfig,
    /// Set if the engine keeps a job record.
    pub has_record: bool,
    /// Set if messages can be relayed to a gateway. A gateway has none, so that a relayed message
    /// is not relayed again.
    pub has_gateway: bool,
    /// `true` if this engine can send email.
    pub has_mail: bool,
    /// The keys of the host's channels.
    pub host: BTreeSet<String>,
}

impl LogRoutes {
    /// Returns the keys of the available channels on a node that `has_syslog`.
    pub(crate) fn keys(&self, has_syslog: bool) -> Vec<String> {
        let has = |(kind, key): &(ChannelKind, &str)| match kind {
            ChannelKind::Stdout | ChannelKind::Stderr => true,
            ChannelKind::Email => self.sends_mail(),
            ChannelKind::Syslog => has_syslog || self.has(key::PMIX_LOG_GLOBAL_SYSLOG, has_syslog),
            _ => self.has(key, has_syslog),
        };
        let own = ChannelKind::builtin().filter(has).map(|(_, key)| key.to_owned());
        let theirs =
            self.host.iter().filter(|channel| ChannelKind::from_key(channel) == ChannelKind::Host).cloned();
        own.chain(theirs).collect()
    }

    /// Returns whether a channel is available to every request. A gateway reports only per request
    /// which channels it has.
    pub(crate) fn has(&self, channel: &str, has_syslog: bool) -> bool {
        match ChannelKind::from_key(channel) {
            ChannelKind::LocalSyslog => has_syslog,
            ChannelKind::GlobalSyslog => {
                self.config.gateway || self.has_gateway || self.host.contains(channel)
            }
            ChannelKind::JobRecord => self.has_record,
            ChannelKind::Host => self.has_gateway || self.host.contains(channel),
            ChannelKind::Stdout
            | ChannelKind::Stderr
            | ChannelKind::Syslog
            | ChannelKind::Email
            | ChannelKind::Any => false,
        }
    }

    /// Returns whether email can be sent, by this engine or its gateway.
    pub(crate) fn sends_mail(&self) -> bool {
        self.has_mail || self.has_gateway
    }

    /// Returns the route of an entry on any channel but stdout and stderr; `None` if the host logs
    /// it.
    pub(crate) fn route(&self, entry: &ChannelEntry) -> Option<LogRoute> {
        match (ChannelKind::from_key(&entry.entry.channel), self.has_gateway) {
            (ChannelKind::LocalSyslog, _) => Some(LogRoute::Syslog),
            (ChannelKind::GlobalSyslog, _) if self.config.gateway => Some(LogRoute::Syslog),
            (ChannelKind::GlobalSyslog, true) => Some(LogRoute::Gateway),
            (ChannelKind::Email, true) if self.config.mail.is_none() && !entry.names_server() => {
                Some(LogRoute::Gateway)
            }
            (ChannelKind::Email, _) => Some(LogRoute::Mail),
            (ChannelKind::JobRecord, _) => Some(LogRoute::JobRecord),
            (ChannelKind::Host, true) if !self.host.contains(&entry.entry.channel) => Some(LogRoute::Gateway),
            _ => None,
        }
    }
}
