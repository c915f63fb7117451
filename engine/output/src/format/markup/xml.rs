//! XML, as PMIx's library writes it.

use std::io::Write;

use iof_proto::xml::{CONTROL_PICTURES, reference};

use crate::format::label::{Label, LabelSource, Tag, local};

/// Returns the label of a stream: an element for each line, with the tag and, if `stamped`, the time as
/// attributes.
pub(super) fn label(tag: Tag, stamped: bool, source: &LabelSource) -> Label {
    let LabelSource { nspace, rank, channel, .. } = source;
    let full = attribute("nspace", nspace.as_str());
    let job = match tag {
        Tag::Nothing | Tag::Rank => String::new(),
        Tag::Job if local(nspace) != nspace.as_str() => attribute("jobid", local(nspace)),
        Tag::Job | Tag::Full | Tag::Detailed { .. } => full,
    };
    let mut before = format!("<{channel}{job} rank=\"{rank}\"");
    if matches!(tag, Tag::Detailed { .. }) {
        before.push_str(&attribute("host", source.host.as_deref().unwrap_or("unknown")));
        let pid = source.pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
        before.push_str(&attribute("pid", &pid));
    }
    let after = if stamped { "\">" } else { ">" };
    before.push_str(if stamped { " timestamp=\"" } else { "" });
    Label::new(before.into(), after.into(), format!("</{channel}>\n").into())
}

/// Appends the element of a line.
pub(super) fn append(line: &[u8], _offset: u64, label: &Label, buffer: &mut Vec<u8>) {
    buffer.extend_from_slice(&label.rendered);
    escape(line, buffer);
    buffer.extend_from_slice(&label.suffix);
}

fn attribute(name: &str, value: &str) -> String {
    let mut text = format!(" {name}=\"");
    for letter in value.chars() {
        match letter {
            '&' => text.push_str("&amp;"),
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            '"' => text.push_str("&quot;"),
            // A parser would replace the character itself by a blank.
            '\t' | '\n' | '\r' => text.push_str(&format!("&#{:03};", u32::from(letter))),
            '\0'..='\x1f' => text.extend(char::from_u32(CONTROL_PICTURES.saturating_add(letter.into()))),
            '\u{fffe}' | '\u{ffff}' => text.push(char::REPLACEMENT_CHARACTER),
            _ => text.push(letter),
        }
    }
    text.push('"');
    text
}

/// Appends `text` escaped as in PMIx's XML: each byte that is not printable ASCII becomes a numeric
/// reference, see [`reference`].
fn escape(text: &[u8], buffer: &mut Vec<u8>) {
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'&' | b'<' | b'>');
    let mut rest = text;
    while let [first, ..] = rest {
        let plain = rest.iter().position(|byte| !is_plain(*byte)).unwrap_or(rest.len());
        let (unescaped, later) = rest.split_at(plain);
        buffer.extend_from_slice(unescaped);
        rest = later;
        if plain > 0 {
            continue;
        }
        match *first {
            b'&' => buffer.extend_from_slice(b"&amp;"),
            b'<' => buffer.extend_from_slice(b"&lt;"),
            b'>' => buffer.extend_from_slice(b"&gt;"),
            // Writing to memory does not fail.
            byte => drop(write!(buffer, "&#{:03};", reference(byte))),
        }
        rest = rest.get(1..).unwrap_or_default();
    }
}
