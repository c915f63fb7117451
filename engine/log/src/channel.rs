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

impl Kind {
    /// That of the channel with this key.
    pub fn of(channel: &str) -> Kind {
        match channel {
            key::PMIX_LOG_STDOUT => Kind::Stdout,
            key::PMIX_LOG_STDERR => Kind::Stderr,
            key::PMIX_LOG_SYSLOG => Kind::Syslog,
            key::PMIX_LOG_LOCAL_SYSLOG => Kind::LocalSyslog,
            key::PMIX_LOG_GLOBAL_SYSLOG => Kind::GlobalSyslog,
            key::PMIX_LOG_EMAIL => Kind::Email,
            key::PMIX_LOG_JOB_RECORD => Kind::JobRecord,
            key::PMIX_LOG_MSG => Kind::Any,
            _ => Kind::Host,
        }
    }
}

/// The names of channels: what follows `PMIX_LOG_` (RFC0032).
const NAMES: [(&str, &str); 8] = [
    ("stdout", key::PMIX_LOG_STDOUT),
    ("stderr", key::PMIX_LOG_STDERR),
    ("syslog", key::PMIX_LOG_SYSLOG),
    ("local_syslog", key::PMIX_LOG_LOCAL_SYSLOG),
    ("global_syslog", key::PMIX_LOG_GLOBAL_SYSLOG),
    ("email", key::PMIX_LOG_EMAIL),
    ("job_record", key::PMIX_LOG_JOB_RECORD),
    ("global_datastore", key::PMIX_LOG_GLOBAL_DATASTORE),
];

/// The key of a channel, from its name in any case, with `PMIX_LOG_` before it or not, or from the key itself, which
/// has a dot in it.
pub(crate) fn key_of(name: &str) -> Option<String> {
    if name.contains('.') {
        return Some(name.to_owned());
    }
    let lower = name.to_ascii_lowercase();
    let lower = lower.strip_prefix("pmix_log_").unwrap_or(&lower);
    NAMES.iter().find(|(name, _)| *name == lower).map(|(_, key)| (*key).to_owned())
}

/// All names, for people.
pub(crate) fn names() -> String {
    NAMES.map(|(name, _)| name).join(", ")
}
