//! The kinds of log channels, with their keys and names.

use iof_proto::attribute::{self, Place};
use iof_proto::log::key;

/// The kind of a log channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelKind {
    /// The stdout of the source.
    Stdout,
    /// The stderr of the source.
    Stderr,
    /// The syslog of this node.
    LocalSyslog,
    /// The syslog of the gateway's node.
    GlobalSyslog,
    /// The global syslog if it is available, else the local one.
    Syslog,
    /// A mail server.
    Email,
    /// The job record.
    JobRecord,
    /// The channels of the engine's [`Order`](crate::Order).
    Any,
    /// A channel that only the host can serve, such as the global data store.
    Host,
}

impl ChannelKind {
    /// Returns the kind of the channel with this key: [`Host`](ChannelKind::Host) for an unknown
    /// one.
    pub fn from_key(channel: &str) -> ChannelKind {
        match channel {
            key::PMIX_LOG_STDOUT => ChannelKind::Stdout,
            key::PMIX_LOG_STDERR => ChannelKind::Stderr,
            key::PMIX_LOG_SYSLOG => ChannelKind::Syslog,
            key::PMIX_LOG_LOCAL_SYSLOG => ChannelKind::LocalSyslog,
            key::PMIX_LOG_GLOBAL_SYSLOG => ChannelKind::GlobalSyslog,
            key::PMIX_LOG_EMAIL => ChannelKind::Email,
            key::PMIX_LOG_JOB_RECORD => ChannelKind::JobRecord,
            key::PMIX_LOG_MSG => ChannelKind::Any,
            _ => ChannelKind::Host,
        }
    }

    /// Returns the kinds that an engine can serve without its host, each with its key.
    pub fn builtin() -> impl Iterator<Item = (ChannelKind, &'static str)> {
        channels()
            .map(|(_, key)| (ChannelKind::from_key(key), key))
            .filter(|(kind, _)| *kind != ChannelKind::Host)
    }

    /// Returns whether the channel may honour tags and XML. The output channels do. A channel of
    /// the host decides that itself.
    pub(crate) fn has_style(self) -> bool {
        matches!(self, ChannelKind::Stdout | ChannelKind::Stderr | ChannelKind::Host)
    }
}

/// Returns the key of a channel. `name` is a name in any case, with or without the prefix
/// `PMIX_LOG_`, or a key, which contains a dot. Returns `None` for an unknown name.
pub(crate) fn key_of(name: &str) -> Option<String> {
    if name.contains('.') {
        return Some(name.to_owned());
    }
    let lower = name.to_ascii_lowercase();
    let lower = lower.strip_prefix("pmix_log_").unwrap_or(&lower);
    channels().find(|(name, _)| *name == lower).map(|(_, key)| key.to_owned())
}

/// Returns the name of the channel with this key, which an [`Order`](crate::Order) accepts: the key
/// itself for a channel of the host.
pub fn channel_name(key: &str) -> String {
    channels().find(|(_, known)| *known == key).map_or_else(|| key.to_owned(), |(name, _)| name)
}

/// Returns all names, for messages.
pub(crate) fn names() -> String {
    channels().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
}

/// Returns the channels that RFC0032 defines, apart from the choice of the engine: the names
/// without `PMIX_LOG_`, in lower case, and the keys.
fn channels() -> impl Iterator<Item = (String, &'static str)> {
    let chosen = attribute::at(Place::LogChannel).filter(|row| row.key != key::PMIX_LOG_MSG);
    chosen.map(|row| (row.name.trim_start_matches("PMIX_LOG_").to_ascii_lowercase(), row.key))
}

#[cfg(test)]
mod tests {
    use iof_proto::attribute::ValueType;

    use super::*;

    #[test]
    fn only_the_data_store_needs_a_host_and_email_alone_has_fields() {
        for row in attribute::at(Place::LogChannel) {
            let kind = ChannelKind::from_key(row.key);
            assert_eq!(kind == ChannelKind::Host, row.key == key::PMIX_LOG_GLOBAL_DATASTORE, "{}", row.key);
            let expected = if kind == ChannelKind::Email { ValueType::Email } else { ValueType::Text };
            assert_eq!(row.types, [expected], "{}", row.key);
        }
    }
}
