//! The channels, by their keys and by their names.

use iof_proto::log::key;

/// What a channel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The stdout of the source.
    Stdout,
    /// The stderr of the source.
    Stderr,
    /// The syslog of this node.
    LocalSyslog,
    /// The syslog of the gateway's node.
    GlobalSyslog,
    /// The global syslog if there is one, else the local one.
    Syslog,
    /// A mail server.
    Email,
    /// The record of the job.
    JobRecord,
    /// Whatever the engine's order says.
    Any,
    /// Whatever only the host knows, the global data store among it.
    Host,
}

/// Those that RFC0032 names: what follows `PMIX_LOG_` in the name of each, and its key.
const CHANNELS: [(&str, &str, Kind); 8] = [
    ("stdout", key::PMIX_LOG_STDOUT, Kind::Stdout),
    ("stderr", key::PMIX_LOG_STDERR, Kind::Stderr),
    ("syslog", key::PMIX_LOG_SYSLOG, Kind::Syslog),
    ("local_syslog", key::PMIX_LOG_LOCAL_SYSLOG, Kind::LocalSyslog),
    ("global_syslog", key::PMIX_LOG_GLOBAL_SYSLOG, Kind::GlobalSyslog),
    ("email", key::PMIX_LOG_EMAIL, Kind::Email),
    ("job_record", key::PMIX_LOG_JOB_RECORD, Kind::JobRecord),
    ("global_datastore", key::PMIX_LOG_GLOBAL_DATASTORE, Kind::Host),
];

impl Kind {
    /// That of the channel with this key.
    pub fn of(channel: &str) -> Kind {
        match CHANNELS.iter().find(|(_, key, _)| *key == channel) {
            Some((_, _, kind)) => *kind,
            None if channel == key::PMIX_LOG_MSG => Kind::Any,
            None => Kind::Host,
        }
    }

    /// The channels that an engine can serve without its host, each with its key.
    pub fn own() -> impl Iterator<Item = (Kind, &'static str)> {
        CHANNELS.into_iter().filter(|(_, _, kind)| *kind != Kind::Host).map(|(_, key, kind)| (kind, key))
    }

    /// Whether it shows tags and XML: the outputs do, and what the host does with them is for the host to say.
    pub(crate) fn has_style(self) -> bool {
        matches!(self, Kind::Stdout | Kind::Stderr | Kind::Host)
    }
}

/// The key of a channel, from its name in any case, with `PMIX_LOG_` before it or not, or from the key itself, which
/// has a dot in it.
pub(crate) fn key_of(name: &str) -> Option<String> {
    if name.contains('.') {
        return Some(name.to_owned());
    }
    let lower = name.to_ascii_lowercase();
    let lower = lower.strip_prefix("pmix_log_").unwrap_or(&lower);
    CHANNELS.iter().find(|(name, ..)| *name == lower).map(|(_, key, _)| (*key).to_owned())
}

/// All names, for people.
pub(crate) fn names() -> String {
    CHANNELS.map(|(name, ..)| name).join(", ")
}
