//! The encoding of a log request's entries: a message for several channels is encoded once.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{LogEntry, LogValue, key};
use crate::info::{Info, InfoValue};
use crate::limits::MAX_LOG_ENTRIES;

/// The entries of a request. They refer to the messages by index.
#[derive(Serialize, Deserialize)]
struct EncodedData<'a> {
    messages: Vec<Cow<'a, str>>,
    entries: Vec<EncodedEntry<'a>>,
}

#[derive(Serialize, Deserialize)]
struct EncodedEntry<'a> {
    channel: Cow<'a, str>,
    value: EncodedValue<'a>,
    required: bool,
}

#[derive(Serialize, Deserialize)]
enum EncodedValue<'a> {
    /// The index of the message.
    Text(u32),
    /// The message of an email, and the fields before and after it.
    Email { before: Cow<'a, [Info]>, message: Option<EmailMessage>, after: Cow<'a, [Info]> },
}

/// The message field of an email.
#[derive(Serialize, Deserialize)]
struct EmailMessage {
    /// The index of the message.
    index: u32,
    required: bool,
}

pub(super) fn serialize<S: Serializer>(entries: &[LogEntry], serializer: S) -> Result<S::Ok, S::Error> {
    let mut messages: Vec<Cow<'_, str>> = Vec::new();
    let mut index_of = |message| {
        let index = messages.iter().position(|known: &Cow<'_, str>| *known == message).unwrap_or_else(|| {
            messages.push(Cow::Borrowed(message));
            messages.len().saturating_sub(1)
        });
        // The conversion cannot fail: a request has few entries.
        u32::try_from(index).unwrap_or(u32::MAX)
    };
    let mut encoded = Vec::with_capacity(entries.len());
    for LogEntry { channel, value, required } in entries {
        let value = match value {
            LogValue::Text(text) => EncodedValue::Text(index_of(text)),
            LogValue::Email(fields) => {
                let position = fields.iter().position(|field| message_of(field).is_some());
                let (before, rest) = fields.split_at(position.unwrap_or(fields.len()));
                let (message, after) = match rest.split_first() {
                    Some((field, after)) => {
                        let index = message_of(field).map(&mut index_of);
                        (index.map(|index| EmailMessage { index, required: field.required }), after)
                    }
                    None => (None, rest),
                };
                EncodedValue::Email { before: before.into(), message, after: after.into() }
            }
        };
        encoded.push(EncodedEntry { channel: channel.into(), value, required: *required });
    }
    EncodedData { messages, entries: encoded }.serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<LogEntry>, D::Error> {
    let EncodedData { messages, entries } = EncodedData::deserialize(deserializer)?;
    // This check comes before the loop that gives each entry a copy of its message: a small request
    // must not become a large one in memory.
    if entries.len() > MAX_LOG_ENTRIES {
        return Err(de::Error::invalid_length(entries.len(), &"a number of log entries within the limit"));
    }
    let message = |index: u32| {
        let message = usize::try_from(index).ok().and_then(|index| messages.get(index));
        let message = message.ok_or_else(|| de::Error::custom("a log entry refers to a missing message"))?;
        Ok(message.clone().into_owned())
    };
    let entry = |EncodedEntry { channel, value, required }| {
        let value = match value {
            EncodedValue::Text(index) => LogValue::Text(message(index)?),
            EncodedValue::Email { before, message: email_message, after } => {
                let mut fields = before.into_owned();
                if let Some(EmailMessage { index, required }) = email_message {
                    let value = InfoValue::Text(message(index)?);
                    fields.push(Info { key: key::PMIX_LOG_EMAIL_MSG.to_owned(), value, required });
                }
                fields.append(&mut after.into_owned());
                LogValue::Email(fields)
            }
        };
        Ok(LogEntry { channel: channel.into_owned(), value, required })
    };
    entries.into_iter().map(entry).collect()
}

/// Returns the message of an email if `field` is its message field.
pub(super) fn message_of(field: &Info) -> Option<&str> {
    match &field.value {
        InfoValue::Text(text) if field.key == key::PMIX_LOG_EMAIL_MSG => Some(text),
        _ => None,
    }
}
