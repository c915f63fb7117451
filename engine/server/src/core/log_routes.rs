//! The choice of the channel that an entry of a log request takes.

use std::collections::BTreeSet;

use iof_log::ChannelKind;
use iof_proto::log::key;

use crate::config::LogConfig;
use crate::core::channel_entry::{ChannelEntry, LogRoute};

/// The channels that an engine has.
pub(crate) struct LogRoutes {
    pub config: LogConfig,
    /// Whether the engine keeps a job record.
    pub has_record: bool,
    /// Whether messages can be relayed to a gateway. A gateway has none, so that a relayed message
    /// is not relayed again.
    pub has_gateway: bool,
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
        cfg!(feature = "mail") || self.has_gateway
    }

    /// Returns the route of an entry on any channel but stdout and stderr; `None` if the host logs
    /// it.
    pub(super) fn route(&self, entry: &ChannelEntry) -> Option<LogRoute> {
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
