//! How the entries of a log request cross the wire: a message that goes to several channels is sent
//! once.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{LogEntry, LogValue, key};
use crate::directive::{Info, InfoValue};
use crate::limits::MAX_LOG_ENTRIES;

#[derive(Serialize, Deserialize)]
struct Sent<'a> {
    messages: Vec<Cow<'a, str>>,
    entries: Vec<SentEntry<'a>>,
}

#[derive(Serialize, Deserialize)]
struct SentEntry<'a> {
    channel: Cow<'a, str>,
    value: SentValue<'a>,
    required: bool,
}

/// A message is its place among the messages.
#[derive(Serialize, Deserialize)]
enum SentValue<'a> {
    Text(u32),
    Email { before: Cow<'a, [Info]>, message: Option<SentMessage>, behind: Cow<'a, [Info]> },
}

/// The message among the fields of an email.
#[derive(Serialize, Deserialize)]
struct SentMessage {
    place: u32,
    required: bool,
}

pub(super) fn serialize<S: Serializer>(entries: &[LogEntry], serializer: S) -> Result<S::Ok, S::Error> {
    let mut messages: Vec<Cow<'_, str>> = Vec::new();
    let mut place = |message| {
        let at = messages.iter().position(|of: &Cow<'_, str>| *of == message).unwrap_or_else(|| {
            messages.push(Cow::Borrowed(message));
            messages.len().saturating_sub(1)
        });
        // A request has few entries.
        u32::try_from(at).unwrap_or(u32::MAX)
    };
    let mut sent = Vec::with_capacity(entries.len());
    for LogEntry { channel, value, required } in entries {
        let value = match value {
            LogValue::Text(text) => SentValue::Text(place(text)),
            LogValue::Email(fields) => {
                let at = fields.iter().position(|field| message_of(field).is_some());
                let (before, rest) = fields.split_at(at.unwrap_or(fields.len()));
                let (message, behind) = match rest.split_first() {
                    Some((field, behind)) => {
                        let place = message_of(field).map(&mut place);
                        (place.map(|place| SentMessage { place, required: field.required }), behind)
                    }
                    None => (None, rest),
                };
                SentValue::Email { before: before.into(), message, behind: behind.into() }
            }
        };
        sent.push(SentEntry { channel: channel.into(), value, required: *required });
    }
    Sent { messages, entries: sent }.serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<LogEntry>, D::Error> {
    let Sent { messages, entries } = Sent::deserialize(deserializer)?;
    // Before each has a copy of its message.
    if entries.len() > MAX_LOG_ENTRIES {
        return Err(de::Error::invalid_length(
            entries.len(),
            &"no more entries than the limit of a log request",
        ));
    }
    let message = |place: u32| {
        let message = usize::try_from(place).ok().and_then(|place| messages.get(place));
        let message =
            message.ok_or_else(|| de::Error::custom("there is no such message in a log request"))?;
        Ok(message.clone().into_owned())
    };
    let entry = |SentEntry { channel, value, required }| {
        let value = match value {
            SentValue::Text(place) => LogValue::Text(message(place)?),
            SentValue::Email { before, message: of_it, behind } => {
                let mut fields = before.into_owned();
                if let Some(SentMessage { place, required }) = of_it {
                    let value = InfoValue::Text(message(place)?);
                    fields.push(Info { key: key::PMIX_LOG_EMAIL_MSG.to_owned(), value, required });
                }
                fields.append(&mut behind.into_owned());
                LogValue::Email(fields)
            }
        };
        Ok(LogEntry { channel: channel.into_owned(), value, required })
    };
    entries.into_iter().map(entry).collect()
}

/// The message of an email, if that is what a field of it has.
pub(super) fn message_of(field: &Info) -> Option<&str> {
    match &field.value {
        InfoValue::Text(text) if field.key == key::PMIX_LOG_EMAIL_MSG => Some(text),
        _ => None,
    }
}
