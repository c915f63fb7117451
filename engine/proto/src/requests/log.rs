//! Log requests (`PMIx_Log`, RFC0010, RFC0032) and their reports.

mod wire;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::info::{Info, InfoValue};
use crate::limits::{
    Excess, MAX_DIRECTIVES, MAX_LOG_ENTRIES, MAX_LOG_FIELDS, MAX_LOG_TEXT, MAX_TEXT, check_limit,
};
use crate::status::Status;

/// The keys of a log request. A data key names a channel, and its value is the message. A directive
/// controls how the request is served. The remaining keys are the fields of an email.
pub mod key {
    pub use crate::attribute::logs::*;
}

/// A log request: data (channels with messages, in order of preference) and directives.
///
/// ```
/// use iof_proto::{Info, Log, log::key};
/// // Logs to the first channel that works.
/// let log = Log::to([key::PMIX_LOG_GLOBAL_SYSLOG, key::PMIX_LOG_LOCAL_SYSLOG], "half done");
/// let log = Log { directives: vec![Info::new(key::PMIX_LOG_ONCE, true)], ..log };
/// assert_eq!(log.data.len(), 2);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Log {
    /// One entry for each channel. A message for several channels is encoded once.
    #[serde(with = "wire")]
    pub data: Vec<LogEntry>,
    /// The directives. Their keys are in [`key`].
    pub directives: Vec<Info>,
}

impl Log {
    /// Returns a request to log `text` to the channels of the engine's order.
    pub fn new(text: impl Into<String>) -> Log {
        Log { data: vec![LogEntry::new(key::PMIX_LOG_MSG, text)], directives: Vec::new() }
    }

    /// Returns a request to log `text` to these channels. An email needs an
    /// [address](key::PMIX_LOG_EMAIL_ADDR) among the directives.
    pub fn to<K: Into<String>>(channels: impl IntoIterator<Item = K>, text: &str) -> Log {
        let data = channels.into_iter().map(|key| LogEntry::new(key, text)).collect();
        Log { data, directives: Vec::new() }
    }

    /// Checks that the request is within the limits, including those on its texts.
    ///
    /// # Errors
    /// [`Excess`] names the first limit that it exceeds.
    pub fn check(&self) -> Result<(), Excess> {
        check_limit("log entries", self.data.len(), MAX_LOG_ENTRIES)?;
        self.data.iter().try_for_each(LogEntry::check)?;
        Info::check(&self.directives)?;
        let fields = self.data.iter().flat_map(LogEntry::fields).chain(&self.directives).map(Info::size);
        let channels = self.data.iter().map(|entry| entry.channel.len());
        let size = fields.chain(channels).fold(0, usize::saturating_add);
        check_limit("bytes beside the texts to be logged", size, MAX_LOG_FIELDS)
    }
}

/// A channel with its message (one `pmix_info_t` of the data).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// The channel: a key of [`key`], or one that the host defines.
    pub channel: String,
    /// The message.
    pub value: LogValue,
    /// Set if a message that cannot be logged to this channel makes the request fail.
    pub required: bool,
}

/// A message to be logged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogValue {
    /// A text without NUL bytes.
    Text(String),
    /// The fields of an email, including the message.
    Email(Vec<Info>),
}

impl LogEntry {
    /// Returns an optional entry that logs `text` on `channel`.
    pub fn new(channel: impl Into<String>, text: impl Into<String>) -> LogEntry {
        let channel = channel.into();
        let value = if channel == key::PMIX_LOG_EMAIL {
            LogValue::Email(vec![Info::new(key::PMIX_LOG_EMAIL_MSG, InfoValue::Text(text.into()))])
        } else {
            LogValue::Text(text.into())
        };
        LogEntry { channel, value, required: false }
    }

    /// Returns the message, or `None` for an email without one.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            LogValue::Text(text) => Some(text),
            LogValue::Email(fields) => fields.iter().find_map(wire::message_of),
        }
    }

    fn check(&self) -> Result<(), Excess> {
        check_limit("bytes of a log channel's key", self.channel.len(), MAX_TEXT)?;
        match &self.value {
            LogValue::Text(text) => check_limit("bytes to be logged", text.len(), MAX_LOG_TEXT),
            LogValue::Email(fields) => {
                check_limit("fields of an email", fields.len(), MAX_DIRECTIVES)?;
                fields.iter().try_for_each(|field| {
                    check_limit("bytes of a field's key", field.key.len(), MAX_TEXT)?;
                    check_limit(
                        "bytes to be logged",
                        wire::message_of(field).map_or(0, str::len),
                        MAX_LOG_TEXT,
                    )
                })
            }
        }
    }

    /// Returns the fields of an email other than its message.
    fn fields(&self) -> impl Iterator<Item = &Info> {
        let fields: &[Info] = if let LogValue::Email(fields) = &self.value { fields } else { &[] };
        let message = fields.iter().position(|field| wire::message_of(field).is_some());
        fields.iter().enumerate().filter(move |(index, _)| Some(*index) != message).map(|(_, field)| field)
    }
}

/// The outcome of a log request (RFC0032).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[must_use = "a log request may have failed"]
pub struct LogReport {
    /// The overall result:
    /// * [`Status::SUCCESS`]: every channel accepted the message. With
    ///   [`PMIX_LOG_ONCE`](key::PMIX_LOG_ONCE), one channel is enough.
    /// * [`Status::ERR_PARTIAL_COMPLETION`]: some channels accepted the message.
    /// * [`Status::ERR_OPERATION_FAILED`]: no channel accepted the message, or a required channel
    ///   did not.
    pub status: Status,
    /// The channels that were tried, in order.
    pub outcomes: Vec<LogOutcome>,
    /// The keys of optional directives that could not be honoured.
    pub ignored: Vec<String>,
}

/// The outcome of a log request on one channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogOutcome {
    /// The key of the channel.
    pub channel: String,
    /// The failure, or `Ok`.
    pub result: Result<(), Failure>,
}
