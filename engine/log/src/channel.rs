//! The kinds of log channels, with their keys and names.

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

/// The channels that RFC0032 defines: the name without `PMIX_LOG_`, the key and the kind.
const CHANNELS: [(&str, &str, ChannelKind); 8] = [
    ("stdout", key::PMIX_LOG_STDOUT, ChannelKind::Stdout),
    ("stderr", key::PMIX_LOG_STDERR, ChannelKind::Stderr),
    ("syslog", key::PMIX_LOG_SYSLOG, ChannelKind::Syslog),
    ("local_syslog", key::PMIX_LOG_LOCAL_SYSLOG, ChannelKind::LocalSyslog),
    ("global_syslog", key::PMIX_LOG_GLOBAL_SYSLOG, ChannelKind::GlobalSyslog),
    ("email", key::PMIX_LOG_EMAIL, ChannelKind::Email),
    ("job_record", key::PMIX_LOG_JOB_RECORD, ChannelKind::JobRecord),
    ("global_datastore", key::PMIX_LOG_GLOBAL_DATASTORE, ChannelKind::Host),
];

impl ChannelKind {
    /// Returns the kind of the channel with this key: [`Host`](ChannelKind::Host) for an unknown
    /// one.
    pub fn from_key(channel: &str) -> ChannelKind {
        match CHANNELS.iter().find(|(_, key, _)| *key == channel) {
            Some((_, _, kind)) => *kind,
            None if channel == key::PMIX_LOG_MSG => ChannelKind::Any,
            None => ChannelKind::Host,
        }
    }

    /// Returns the kinds that an engine can serve without its host, each with its key.
    pub fn builtin() -> impl Iterator<Item = (ChannelKind, &'static str)> {
        CHANNELS
            .into_iter()
            .filter(|(_, _, kind)| *kind != ChannelKind::Host)
            .map(|(_, key, kind)| (kind, key))
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
    CHANNELS.iter().find(|(name, ..)| *name == lower).map(|(_, key, _)| (*key).to_owned())
}

/// Returns all names, for messages.
pub(crate) fn names() -> String {
    CHANNELS.map(|(name, ..)| name).join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use iof_proto::attribute::{self, Place, ValueType};

    use super::*;

    #[test]
    fn the_channels_are_those_of_the_table_and_email_alone_has_fields() {
        let table: BTreeSet<&str> = attribute::at(Place::LogChannel).map(|attribute| attribute.key).collect();
        let here = CHANNELS.iter().map(|(_, key, _)| *key).chain([key::PMIX_LOG_MSG]).collect();
        assert_eq!(table, here);
        for attribute in attribute::at(Place::LogChannel) {
            let is_email = ChannelKind::from_key(attribute.key) == ChannelKind::Email;
            let expected = if is_email { ValueType::Email } else { ValueType::Text };
            assert_eq!(attribute.types, [expected], "{}", attribute.key);
        }
    }
}
