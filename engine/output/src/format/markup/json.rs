//! JSON: an object for each line, with its type.

use std::io::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use iof_proto::Rank;

use crate::format::label::{Label, LabelSource, Tag};

/// The key of the text in JSON.
const DATA: &[u8] = b",\"data\":";

/// Returns the label of a stream. An object contains all that is known of its source.
pub(super) fn label(_tag: Tag, _stamped: bool, source: &LabelSource) -> Label {
    let LabelSource { nspace, rank, channel, logged, host, pid } = source;
    let nspace = serde_json::Value::from(nspace.as_str());
    // Data logged for a whole job has no rank.
    let rank = serde_json::Value::from((*rank < Rank::WILDCARD).then_some(rank.0));
    let (host, pid) = (serde_json::Value::from(host.clone()), serde_json::Value::from(*pid));
    let logged = if *logged { ",\"logged\":true" } else { "" };
    let before = format!("\"nspace\":{nspace},\"rank\":{rank},\"channel\":\"{channel}\"{logged},\"time\":");
    let process = format!(",\"host\":{host},\"pid\":{pid}");
    Label::new(before.into(), b",\"offset\":".to_vec(), [process.as_bytes(), DATA].concat())
}

/// Appends a JSON object and a newline. Data that is not valid UTF-8 is base64-encoded.
pub(super) fn append(data: &[u8], offset: u64, label: &Label, buffer: &mut Vec<u8>) {
    buffer.extend_from_slice(b"{\"type\":\"output\",");
    buffer.extend_from_slice(&label.rendered);
    // Neither writing to memory nor serializing a string fails.
    let _ = write!(buffer, "{offset}");
    buffer.extend_from_slice(&label.suffix);
    // A token stands behind the bytes, so that an object that is cut has none.
    match std::str::from_utf8(data) {
        Ok(text) => drop(serde_json::to_writer(&mut *buffer, text)),
        Err(_) => drop(write!(buffer, "\"{}\",\"encoding\":\"base64\"", BASE64.encode(data))),
    }
    let _ = writeln!(buffer, "{}}}", label.token(offset.saturating_add(data.len() as u64)));
}

/// Appends an object without data: its type, and `fields` in place of the text.
pub(super) fn append_fields((kind, fields): (&str, &str), offset: u64, label: &Label, buffer: &mut Vec<u8>) {
    let process = label.suffix.strip_suffix(DATA).unwrap_or(&label.suffix);
    buffer.extend_from_slice(format!("{{\"type\":\"{kind}\",").as_bytes());
    buffer.extend_from_slice(&label.rendered);
    buffer.extend_from_slice(offset.to_string().as_bytes());
    buffer.extend_from_slice(process);
    buffer.extend_from_slice(format!("{fields}}}\n").as_bytes());
}
