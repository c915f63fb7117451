//! Log requests (`PMIx_Log`, RFC0010, RFC0032) and their reports.

mod wire;

use serde::{Deserialize, Serialize};

use crate::directive::{Info, InfoValue};
use crate::failure::Failure;
use crate::limits::{
    Excess, MAX_DIRECTIVES, MAX_LOG_ENTRIES, MAX_LOG_FIELDS, MAX_LOG_TEXT, MAX_TEXT, check_limit,
};
use crate::status::Status;

/// The keys of a log request. A data key names a channel, and its value is the message. A directive
/// controls how the request is served. The remaining keys are the fields of an email.
pub mod key {
    /// Data: a message for the stdout of its source, which tools read as a stream of its own
    /// (text).
    pub const PMIX_LOG_STDOUT: &str = "pmix.log.stdout";
    /// Data: a message for the stderr of its source, which tools read as a stream of its own
    /// (text).
    pub const PMIX_LOG_STDERR: &str = "pmix.log.stderr";
    /// Data: a message for the global syslog if there is one, otherwise for the local one (text).
    pub const PMIX_LOG_SYSLOG: &str = "pmix.log.syslog";
    /// Data: a message for the syslog of the engine's node (text).
    pub const PMIX_LOG_LOCAL_SYSLOG: &str = "pmix.log.lsys";
    /// Data: a message for the syslog of the gateway's node (text).
    pub const PMIX_LOG_GLOBAL_SYSLOG: &str = "pmix.log.gsys";
    /// Data: an email (list of the fields of an email).
    pub const PMIX_LOG_EMAIL: &str = "pmix.log.email";
    /// Data: a message for the engine's job record, which is a file (text).
    pub const PMIX_LOG_JOB_RECORD: &str = "pmix.log.jrec";
    /// Data: a message for the global data store, which the host serves (text).
    pub const PMIX_LOG_GLOBAL_DATASTORE: &str = "pmix.log.gstore";
    /// Data: a message for the channels of the engine's order (text).
    pub const PMIX_LOG_MSG: &str = "pmix.log.msg";

    /// Directive: the priority in the syslog, 0 (emergency) to 7 (debug), 6 (info) by default
    /// (number).
    pub const PMIX_LOG_SYSLOG_PRI: &str = "pmix.log.syspri";
    /// Directive: the time of the event, in seconds since 1970 (number).
    pub const PMIX_LOG_TIMESTAMP: &str = "pmix.log.tstmp";
    /// Directive: add the time at which the request arrived (bool).
    pub const PMIX_LOG_GENERATE_TIMESTAMP: &str = "pmix.log.gtstmp";
    /// Directive: tag the message with its process and channel on stdout and stderr (bool).
    pub const PMIX_LOG_TAG_OUTPUT: &str = "pmix.log.tag";
    /// Directive: add the time to the message (bool).
    pub const PMIX_LOG_TIMESTAMP_OUTPUT: &str = "pmix.log.tsout";
    /// Directive: write XML on stdout and stderr (bool).
    pub const PMIX_LOG_XML_OUTPUT: &str = "pmix.log.xml";
    /// Directive: stop at the first channel that accepts the message (bool).
    pub const PMIX_LOG_ONCE: &str = "pmix.log.once";
    /// Directive: the process or job from which the message comes. The engine must know the job
    /// (process).
    pub const PMIX_LOG_SOURCE: &str = "pmix.log.source";
    /// Directive: marks a request that another engine relays to the gateway, and names its original
    /// tool (text). A gateway does not relay it again.
    pub const IOF_LOG_RELAYED: &str = "iof.log.relayed";

    /// Email, or directive: the recipients, as addresses separated by commas (text).
    pub const PMIX_LOG_EMAIL_ADDR: &str = "pmix.log.emaddr";
    /// Email, or directive: the sender's address (text).
    pub const PMIX_LOG_EMAIL_SENDER_ADDR: &str = "pmix.log.emfaddr";
    /// Email, or directive: the subject (text).
    pub const PMIX_LOG_EMAIL_SUBJECT: &str = "pmix.log.emsub";
    /// Email: the message (text).
    pub const PMIX_LOG_EMAIL_MSG: &str = "pmix.log.emmsg";
    /// Email, or directive: the name or address of the mail server (text).
    pub const PMIX_LOG_EMAIL_SERVER: &str = "pmix.log.esrvr";
    /// Email, or directive: the port of the mail server (number).
    pub const PMIX_LOG_EMAIL_SRVR_PORT: &str = "pmix.log.esrvrprt";
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
    /// Whether the request fails if the message cannot be logged to this channel.
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
