//! Log requests (`PMIx_Log`, RFC0010, RFC0032): what a tool wants to have logged where, and what became of it.

mod wire;

use serde::{Deserialize, Serialize};

use crate::directive::{Info, InfoValue};
use crate::limits::{
    Excess, MAX_DIRECTIVES, MAX_LOG_ENTRIES, MAX_LOG_FIELDS, MAX_LOG_TEXT, MAX_TEXT, within,
};
use crate::message::Failure;
use crate::status::Status;

/// The keys: of data, which name a channel and have the message as value; of directives; and of what an email has.
pub mod key {
    /// Data: to the stdout of the source, by the rings (text).
    pub const PMIX_LOG_STDOUT: &str = "pmix.log.stdout";
    /// Data: to the stderr of the source, by the rings (text).
    pub const PMIX_LOG_STDERR: &str = "pmix.log.stderr";
    /// Data: to the global syslog if there is one, else to the local one (text).
    pub const PMIX_LOG_SYSLOG: &str = "pmix.log.syslog";
    /// Data: to the syslog of the engine's node (text).
    pub const PMIX_LOG_LOCAL_SYSLOG: &str = "pmix.log.lsys";
    /// Data: to the syslog of the gateway's node (text).
    pub const PMIX_LOG_GLOBAL_SYSLOG: &str = "pmix.log.gsys";
    /// Data: by email (email).
    pub const PMIX_LOG_EMAIL: &str = "pmix.log.email";
    /// Data: to the record of the job (text).
    pub const PMIX_LOG_JOB_RECORD: &str = "pmix.log.jrec";
    /// Data: to the global data store (text). The host's.
    pub const PMIX_LOG_GLOBAL_DATASTORE: &str = "pmix.log.gstore";
    /// Data: to each channel of the engine's order (text).
    pub const PMIX_LOG_MSG: &str = "pmix.log.msg";

    /// Directive: the priority at the syslog, 0 (emergency) to 7 (debug), 6 (info) unless it is said (number).
    pub const PMIX_LOG_SYSLOG_PRI: &str = "pmix.log.syspri";
    /// Directive: when it happened, in seconds since 1970 (number).
    pub const PMIX_LOG_TIMESTAMP: &str = "pmix.log.tstmp";
    /// Directive: say when the request came (bool).
    pub const PMIX_LOG_GENERATE_TIMESTAMP: &str = "pmix.log.gtstmp";
    /// Directive: say on stdout and stderr whose message it is, and on which channel (bool).
    pub const PMIX_LOG_TAG_OUTPUT: &str = "pmix.log.tag";
    /// Directive: say when it was (bool).
    pub const PMIX_LOG_TIMESTAMP_OUTPUT: &str = "pmix.log.tsout";
    /// Directive: XML on stdout and stderr (bool).
    pub const PMIX_LOG_XML_OUTPUT: &str = "pmix.log.xml";
    /// Directive: to the first channel only that takes it (bool).
    pub const PMIX_LOG_ONCE: &str = "pmix.log.once";
    /// Directive: whose message it is (process): one of a job that the engine knows, or a whole one.
    pub const PMIX_LOG_SOURCE: &str = "pmix.log.source";
    /// Directive: a gateway is asked on behalf of another engine, and asks nobody else; who asked that one (text). Ours.
    pub const IOF_LOG_RELAYED: &str = "iof.log.relayed";

    /// Email, or directive: to whom, addresses divided by commas (text).
    pub const PMIX_LOG_EMAIL_ADDR: &str = "pmix.log.emaddr";
    /// Email, or directive: from whom (text).
    pub const PMIX_LOG_EMAIL_SENDER_ADDR: &str = "pmix.log.emfaddr";
    /// Email, or directive: about what (text).
    pub const PMIX_LOG_EMAIL_SUBJECT: &str = "pmix.log.emsub";
    /// Email: the message (text).
    pub const PMIX_LOG_EMAIL_MSG: &str = "pmix.log.emmsg";
    /// Email, or directive: the name or address of the mail server (text).
    pub const PMIX_LOG_EMAIL_SERVER: &str = "pmix.log.esrvr";
    /// Email, or directive: its port (number).
    pub const PMIX_LOG_EMAIL_SRVR_PORT: &str = "pmix.log.esrvrprt";
}

/// A log request: data, which say where and what, in the order of preference, and directives, which say how.
///
/// ```
/// use iof_proto::{Info, Log, log::key};
/// // To the first that works.
/// let log = Log::to([key::PMIX_LOG_GLOBAL_SYSLOG, key::PMIX_LOG_LOCAL_SYSLOG], "half done");
/// let log = Log { directives: vec![Info::new(key::PMIX_LOG_ONCE, true)], ..log };
/// assert_eq!(log.data.len(), 2);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Log {
    /// One entry for each channel. A message that several have is sent once.
    #[serde(with = "wire")]
    pub data: Vec<LogEntry>,
    /// [`key`] has the keys.
    pub directives: Vec<Info>,
}

impl Log {
    /// `text` to each channel of the engine's order.
    pub fn new(text: impl Into<String>) -> Log {
        Log { data: vec![LogEntry::new(key::PMIX_LOG_MSG, text)], directives: Vec::new() }
    }

    /// `text` to these channels; an email needs an [address](key::PMIX_LOG_EMAIL_ADDR) among the directives.
    pub fn to<K: Into<String>>(channels: impl IntoIterator<Item = K>, text: &str) -> Log {
        let data = channels.into_iter().map(|key| LogEntry::new(key, text)).collect();
        Log { data, directives: Vec::new() }
    }

    /// Whether it keeps to the limits, those of its texts among them.
    ///
    /// # Errors
    /// [`Excess`] names the first that it breaks.
    pub fn check(&self) -> Result<(), Excess> {
        within("log entries", self.data.len(), MAX_LOG_ENTRIES)?;
        self.data.iter().try_for_each(LogEntry::check)?;
        Info::check(&self.directives)?;
        let fields = self.data.iter().flat_map(LogEntry::fields).chain(&self.directives).map(Info::size);
        let channels = self.data.iter().map(|entry| entry.channel.len());
        let size = fields.chain(channels).fold(0, usize::saturating_add);
        within("bytes beside the messages", size, MAX_LOG_FIELDS)
    }
}

/// What is to be logged on one channel (one `pmix_info_t` of the data).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// The channel: one of [`key`]'s, or one that only the host knows.
    pub channel: String,
    /// The message.
    pub value: LogValue,
    /// It must be logged here: if it is not, the request has failed.
    pub required: bool,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogValue {
    /// A text, without NUL.
    Text(String),
    /// An email: the message with what else an email has.
    Email(Vec<Info>),
}

impl LogEntry {
    /// `text` on `channel`, which need not take it.
    pub fn new(channel: impl Into<String>, text: impl Into<String>) -> LogEntry {
        let channel = channel.into();
        let value = if channel == key::PMIX_LOG_EMAIL {
            LogValue::Email(vec![Info::new(key::PMIX_LOG_EMAIL_MSG, InfoValue::Text(text.into()))])
        } else {
            LogValue::Text(text.into())
        };
        LogEntry { channel, value, required: false }
    }

    /// Its message; `None` for an email without one.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            LogValue::Text(text) => Some(text),
            LogValue::Email(fields) => fields.iter().find_map(wire::message_of),
        }
    }

    fn check(&self) -> Result<(), Excess> {
        within("bytes of a log channel's key", self.channel.len(), MAX_TEXT)?;
        match &self.value {
            LogValue::Text(text) => within("bytes to be logged", text.len(), MAX_LOG_TEXT),
            LogValue::Email(fields) => {
                within("fields of an email", fields.len(), MAX_DIRECTIVES)?;
                fields.iter().try_for_each(|field| {
                    within("bytes of a field's key", field.key.len(), MAX_TEXT)?;
                    within("bytes to be logged", wire::message_of(field).map_or(0, str::len), MAX_LOG_TEXT)
                })
            }
        }
    }

    /// What an email has beside its message.
    fn fields(&self) -> impl Iterator<Item = &Info> {
        let fields: &[Info] = if let LogValue::Email(fields) = &self.value { fields } else { &[] };
        let message = fields.iter().position(|field| wire::message_of(field).is_some());
        fields.iter().enumerate().filter(move |(at, _)| Some(*at) != message).map(|(_, field)| field)
    }
}

/// What became of a log request (RFC0032).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[must_use = "a log request may have failed"]
pub struct LogReport {
    /// [`Status::SUCCESS`]: all channels have it, or with [`PMIX_LOG_ONCE`](key::PMIX_LOG_ONCE) the first that took it.
    /// [`Status::ERR_PARTIAL_COMPLETION`]: some have it. [`Status::ERR_OPERATION_FAILED`]: none has it, or a required one
    /// has not.
    pub status: Status,
    /// The channels that were tried, in their order.
    pub outcomes: Vec<LogOutcome>,
    /// The keys of optional directives that could not be honoured.
    pub ignored: Vec<String>,
}

/// What became of it on one channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogOutcome {
    /// Which: the key.
    pub channel: String,
    /// Nothing, if it worked.
    pub result: Result<(), Failure>,
}
