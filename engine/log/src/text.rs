//! How a message looks on stdout and stderr, and in the syslog.

use iof_proto::{Channel, Failure, Proc, Status};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use crate::how::How;
use crate::syslog::severity;

/// Whose message it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The process that it is said to be from.
    pub source: Option<Proc>,
    /// Who asked to have it logged, in words.
    pub by: String,
}

/// A time as ctime(3) has it, without its newline.
fn ctime(time: Timestamp) -> String {
    Zoned::new(time, TimeZone::system()).strftime("%a %b %e %H:%M:%S %Y").to_string()
}

/// Bytes that a message may become with tags and escapes.
pub const MAX_OUTPUT: usize = 256 << 10;

/// `text` as it appears on a stream of `source`, in the forms that PMIx's output has: with
/// [`How::tag`] `[job,rank]<stdout>: ` before each line, with [`How::time`] `[time]` before that, or all as one XML
/// element. Ends with a newline.
///
/// # Errors
/// It would be longer than [`MAX_OUTPUT`].
pub fn output(text: &str, source: &Proc, channel: Channel, how: &How) -> Result<Vec<u8>, Failure> {
    let time = how.time.map(ctime);
    // PMIx names a job by what follows the last @, if there is one.
    let job = source.nspace.as_str().rsplit_once('@').map(|(_, job)| job);
    if how.xml {
        let job = match job {
            _ if !how.tag => String::new(),
            Some(job) => format!(" jobid=\"{}\"", escaped(job)),
            None => format!(" nspace=\"{}\"", escaped(source.nspace.as_str())),
        };
        let time = time.map(|time| format!(" timestamp=\"{time}\"")).unwrap_or_default();
        // It has room for six times the longest message, which is the most that this becomes.
        let text = escaped(text);
        let element = format!("<{channel}{job} rank=\"{}\"{time}>{text}</{channel}>\n", source.rank);
        return Ok(element.into_bytes());
    }
    let time = time.map(|time| format!("[{time}]")).unwrap_or_default();
    let before = match (how.tag, time.is_empty()) {
        (true, _) => {
            let job = job.unwrap_or(source.nspace.as_str());
            format!("{time}[{job},{}]<{channel}>: ", source.rank)
        }
        (false, false) => format!("{time}<{channel}>: "),
        (false, true) => String::new(),
    };
    let text = text.strip_suffix('\n').unwrap_or(text);
    let lines = text.split('\n').count();
    let length = before.len().saturating_mul(lines).saturating_add(text.len());
    if length > MAX_OUTPUT {
        let reason = format!(
            "with tags its {lines} lines are {length} bytes, and the limit is {MAX_OUTPUT}: leave out the tags, or say less"
        );
        return Err(Failure { status: Status::ERR_BAD_PARAM, reason });
    }
    Ok(text.split('\n').map(|line| format!("{before}{line}\n")).collect::<String>().into_bytes())
}

/// As PMIx escapes XML: what is not printable ASCII by its bytes' numbers.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'&' => escaped.push_str("&amp;"),
            b'<' => escaped.push_str("&lt;"),
            b'>' => escaped.push_str("&gt;"),
            b'"' => escaped.push_str("&quot;"),
            b' '..=b'~' => escaped.push(char::from(byte)),
            other => escaped.push_str(&format!("&#{other:03};")),
        }
    }
    escaped
}

/// `text` as it appears in the syslog, in the form that PMIx's library gives it; the process that a message is said to be
/// from is followed by who says so. All is one line: of control characters, which could make another one, or move the
/// cursor of who reads it, stand escapes, such as `\n`.
pub fn syslog_line(text: &str, origin: &Origin, node: &str, how: &How) -> String {
    let time = how.time.map_or_else(|| "N/A".to_owned(), ctime);
    let severity = severity(how.priority).to_uppercase();
    let source = match &origin.source {
        Some(source) => format!("{source} by {}", origin.by),
        None => origin.by.clone(),
    };
    let text = text.strip_suffix('\n').unwrap_or(text);
    let line = format!("{time} iof@{node}:{severity} PROC {source} REPORTS: {text}");
    let mut shown = String::with_capacity(line.len());
    for c in line.chars() {
        if c.is_control() { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use iof_proto::limits::MAX_LOG_TEXT;
    use iof_proto::log::key;
    use iof_proto::{Info, Nspace, Rank};

    use super::*;

    fn how(keys: &[&str]) -> How {
        let infos: Vec<Info> = keys.iter().map(|key| Info::required(*key, true)).collect();
        How::read(&infos, &BTreeSet::new()).unwrap().0
    }

    fn shown(text: &str, nspace: &str, keys: &[&str]) -> String {
        let source = Proc { nspace: Nspace::new(nspace).unwrap(), rank: Rank(2) };
        String::from_utf8(output(text, &source, Channel::Stdout, &how(keys)).unwrap()).unwrap()
    }

    #[test]
    fn plain_messages_end_with_one_newline() {
        assert_eq!(shown("a", "job", &[]), "a\n");
        assert_eq!(shown("a\nb\n", "job", &[]), "a\nb\n");
        assert_eq!(shown("", "job", &[]), "\n");
    }

    #[test]
    fn every_line_of_a_message_is_tagged_as_pmix_tags_lines() {
        assert_eq!(
            shown("a\nb", "job", &[key::PMIX_LOG_TAG_OUTPUT]),
            "[job,2]<stdout>: a\n[job,2]<stdout>: b\n"
        );
        assert_eq!(shown("a", "prterun-n1-7@1", &[key::PMIX_LOG_TAG_OUTPUT]), "[1,2]<stdout>: a\n");
    }

    #[test]
    fn times_are_those_of_ctime() {
        let shown = |keys: &[&str]| shown("a", "job", keys);
        let timed = shown(&[key::PMIX_LOG_TIMESTAMP_OUTPUT]);
        let time = timed.strip_prefix('[').and_then(|rest| rest.strip_suffix("]<stdout>: a\n")).unwrap();
        jiff::civil::DateTime::strptime("%a %b %e %H:%M:%S %Y", time).unwrap();
        let both = shown(&[key::PMIX_LOG_TIMESTAMP_OUTPUT, key::PMIX_LOG_TAG_OUTPUT]);
        assert!(both.ends_with("][job,2]<stdout>: a\n"), "{both}");
        assert!(shown(&[key::PMIX_LOG_GENERATE_TIMESTAMP]).starts_with('['));
    }

    #[test]
    fn a_message_of_many_lines_does_not_grow_beyond_its_limit() {
        let source = Proc { nspace: Nspace::new("job").unwrap(), rank: Rank(2) };
        let lines = "\n".repeat(MAX_LOG_TEXT);
        let shown = |how: &How| output(&lines, &source, Channel::Stdout, how);
        let failure = shown(&how(&[key::PMIX_LOG_TAG_OUTPUT])).unwrap_err();
        assert!(failure.reason.starts_with("with tags its 32768 lines are 589823 bytes"), "{failure}");
        assert_eq!(shown(&how(&[])).unwrap().len(), MAX_LOG_TEXT);
        let xml = shown(&how(&[key::PMIX_LOG_XML_OUTPUT, key::PMIX_LOG_TAG_OUTPUT])).unwrap();
        assert!(xml.len() > 6 * MAX_LOG_TEXT && xml.len() <= MAX_OUTPUT);
    }

    #[test]
    fn xml_is_one_element_in_which_nothing_can_end_it() {
        let xml = key::PMIX_LOG_XML_OUTPUT;
        assert_eq!(
            shown("a</stdout>&\n", "job", &[xml]),
            "<stdout rank=\"2\">a&lt;/stdout&gt;&amp;&#010;</stdout>\n"
        );
        let tagged = shown("ü", "a\"b", &[xml, key::PMIX_LOG_TAG_OUTPUT]);
        assert_eq!(tagged, "<stdout nspace=\"a&quot;b\" rank=\"2\">&#195;&#188;</stdout>\n");
        assert!(
            shown("a", "x@4", &[xml, key::PMIX_LOG_TAG_OUTPUT])
                .starts_with("<stdout jobid=\"4\" rank=\"2\">")
        );
        assert!(shown("a", "x", &[xml, key::PMIX_LOG_TIMESTAMP_OUTPUT]).contains("rank=\"2\" timestamp=\""));
    }

    #[test]
    fn the_syslog_names_severity_and_source() {
        let source = Some(Proc { nspace: Nspace::new("job").unwrap(), rank: Rank::UNDEF });
        let origin = Origin { source, by: "tool 7".into() };
        assert_eq!(
            syslog_line("hi", &origin, "n1", &how(&[])),
            "N/A iof@n1:INFO PROC job.- by tool 7 REPORTS: hi"
        );
        let odd = syslog_line("a\nb\x1b[2J\tü\u{9b}\n", &origin, "n1", &how(&[]));
        assert!(odd.ends_with(r"REPORTS: a\nb\u{1b}[2J\tü\u{9b}"), "{odd}");
        let origin = Origin { source: None, ..origin };
        let line = syslog_line("hi", &origin, "n1", &how(&[key::PMIX_LOG_GENERATE_TIMESTAMP]));
        assert!(line.ends_with(" iof@n1:INFO PROC tool 7 REPORTS: hi") && !line.starts_with("N/A"), "{line}");
    }
}
