//! The form of a message on stdout, on stderr and in the syslog.

use iof_proto::names::escape;
use iof_proto::xml::reference;
use iof_proto::{Channel, Failure, Proc, Status};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use crate::options::LogOptions;
use crate::syslog::severity;

/// The origin of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOrigin {
    /// The process that the message claims to be from.
    pub source: Option<Proc>,
    /// The process that requested the logging, in readable form.
    pub requester: String,
}

/// Formats a time as ctime(3) does, without the newline.
fn ctime(time: Timestamp) -> String {
    Zoned::new(time, TimeZone::system()).strftime("%a %b %e %H:%M:%S %Y").to_string()
}

/// The largest size of a message with tags and escapes, in bytes.
pub const MAX_OUTPUT: usize = 256 << 10;

/// Formats a message for an output stream of `source`, in the forms that PMIx uses.
///
/// [`LogOptions::tag`] puts `[job,rank]<stdout>: ` before each line, and [`LogOptions::time`] puts
/// `[time]` before that. [`LogOptions::xml`] makes the message one XML element. The result ends
/// with a newline.
///
/// # Errors
/// `ERR_BAD_PARAM`: the result would exceed [`MAX_OUTPUT`].
pub fn output(text: &str, source: &Proc, channel: Channel, options: &LogOptions) -> Result<Vec<u8>, Failure> {
    let time = options.time.map(ctime);
    // PMIx shows the part of a job's name after the last '@', if there is one.
    let job = source.nspace.as_str().rsplit_once('@').map(|(_, job)| job);
    if options.xml {
        let job = match job {
            _ if !options.tag => String::new(),
            Some(job) => format!(" jobid=\"{}\"", escaped(job)),
            None => format!(" nspace=\"{}\"", escaped(source.nspace.as_str())),
        };
        let time = time.map(|time| format!(" timestamp=\"{time}\"")).unwrap_or_default();
        // Escaping makes a message at most seven times as long, for which MAX_OUTPUT has room.
        let text = escaped(text);
        let element = format!("<{channel}{job} rank=\"{}\"{time}>{text}</{channel}>\n", source.rank);
        return Ok(element.into_bytes());
    }
    let time = time.map(|time| format!("[{time}]")).unwrap_or_default();
    let before = match (options.tag, time.is_empty()) {
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
            "with tags the message's {lines} lines are {length} bytes, more than the limit of {MAX_OUTPUT}: \
             drop the tags or shorten the message"
        );
        return Err(Failure::new(Status::ERR_BAD_PARAM, reason));
    }
    Ok(text.split('\n').map(|line| format!("{before}{line}\n")).collect::<String>().into_bytes())
}

/// Escapes XML as PMIx does: each byte outside printable ASCII becomes a numeric [`reference`].
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'&' => escaped.push_str("&amp;"),
            b'<' => escaped.push_str("&lt;"),
            b'>' => escaped.push_str("&gt;"),
            b'"' => escaped.push_str("&quot;"),
            b' '..=b'~' => escaped.push(char::from(byte)),
            other => escaped.push_str(&format!("&#{:03};", reference(other))),
        }
    }
    escaped
}

/// Formats a message for the syslog, in the form that PMIx's library uses. The requester follows
/// the process that the message claims to be from.
///
/// The result is one line: invisible characters, which could start another line or move a terminal's
/// cursor, are escaped, for example as `\n`.
pub fn syslog_line(text: &str, origin: &LogOrigin, node: &str, options: &LogOptions) -> String {
    let time = options.time.map_or_else(|| "N/A".to_owned(), ctime);
    let severity = severity(options.priority).to_uppercase();
    let source = match &origin.source {
        Some(source) => format!("{source} by {}", origin.requester),
        None => origin.requester.clone(),
    };
    let text = text.strip_suffix('\n').unwrap_or(text);
    escape(&format!("{time} iof@{node}:{severity} PROC {source} REPORTS: {text}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use iof_proto::limits::MAX_LOG_TEXT;
    use iof_proto::log::key;
    use iof_proto::{Info, Nspace, Rank};

    use super::*;

    fn options(keys: &[&str]) -> LogOptions {
        let infos: Vec<Info> = keys.iter().map(|key| Info::required(*key, true)).collect();
        LogOptions::parse(&infos, &BTreeSet::new()).unwrap().0
    }

    fn shown(text: &str, nspace: &str, keys: &[&str]) -> String {
        let source = Proc::new(Nspace::new(nspace).unwrap(), Rank(2));
        String::from_utf8(output(text, &source, Channel::Stdout, &options(keys)).unwrap()).unwrap()
    }

    #[test]
    fn a_plain_message_ends_with_one_newline() {
        assert_eq!(shown("a", "job", &[]), "a\n");
        assert_eq!(shown("a\nb\n", "job", &[]), "a\nb\n");
        assert_eq!(shown("", "job", &[]), "\n");
    }

    #[test]
    fn every_line_of_a_message_has_the_tag_that_pmix_uses() {
        assert_eq!(
            shown("a\nb", "job", &[key::PMIX_LOG_TAG_OUTPUT]),
            "[job,2]<stdout>: a\n[job,2]<stdout>: b\n"
        );
        assert_eq!(shown("a", "prterun-n1-7@1", &[key::PMIX_LOG_TAG_OUTPUT]), "[1,2]<stdout>: a\n");
    }

    #[test]
    fn times_have_the_form_of_ctime() {
        let shown = |keys: &[&str]| shown("a", "job", keys);
        let timed = shown(&[key::PMIX_LOG_TIMESTAMP_OUTPUT]);
        let time = timed.strip_prefix('[').and_then(|rest| rest.strip_suffix("]<stdout>: a\n")).unwrap();
        jiff::civil::DateTime::strptime("%a %b %e %H:%M:%S %Y", time).unwrap();
        let both = shown(&[key::PMIX_LOG_TIMESTAMP_OUTPUT, key::PMIX_LOG_TAG_OUTPUT]);
        assert!(both.ends_with("][job,2]<stdout>: a\n"), "{both}");
        assert!(shown(&[key::PMIX_LOG_GENERATE_TIMESTAMP]).starts_with('['));
    }

    #[test]
    fn tags_on_many_lines_do_not_make_a_message_exceed_its_limit() {
        let source = Proc::new(Nspace::new("job").unwrap(), Rank(2));
        let lines = "\n".repeat(MAX_LOG_TEXT);
        let shown = |options: &LogOptions| output(&lines, &source, Channel::Stdout, options);
        let failure = shown(&options(&[key::PMIX_LOG_TAG_OUTPUT])).unwrap_err();
        assert!(
            failure.reason.starts_with("with tags the message's 32768 lines are 589823 bytes"),
            "{failure}"
        );
        assert_eq!(shown(&options(&[])).unwrap().len(), MAX_LOG_TEXT);
        let xml = shown(&options(&[key::PMIX_LOG_XML_OUTPUT, key::PMIX_LOG_TAG_OUTPUT])).unwrap();
        assert!(xml.len() > 6 * MAX_LOG_TEXT && xml.len() <= MAX_OUTPUT);
    }

    #[test]
    fn xml_output_is_one_element_that_no_text_can_end() {
        let xml = key::PMIX_LOG_XML_OUTPUT;
        assert_eq!(
            shown("a</stdout>&\n", "job", &[xml]),
            "<stdout rank=\"2\">a&lt;/stdout&gt;&amp;&#010;</stdout>\n"
        );
        assert_eq!(shown("x\u{1}\u{1b}", "job", &[xml]), "<stdout rank=\"2\">x&#9217;&#9243;</stdout>\n");
        let tagged = shown("ü", "a\"b", &[xml, key::PMIX_LOG_TAG_OUTPUT]);
        assert_eq!(tagged, "<stdout nspace=\"a&quot;b\" rank=\"2\">&#195;&#188;</stdout>\n");
        assert!(
            shown("a", "x@4", &[xml, key::PMIX_LOG_TAG_OUTPUT])
                .starts_with("<stdout jobid=\"4\" rank=\"2\">")
        );
        assert!(shown("a", "x", &[xml, key::PMIX_LOG_TIMESTAMP_OUTPUT]).contains("rank=\"2\" timestamp=\""));
    }

    #[test]
    fn a_syslog_line_names_severity_and_source() {
        let source = Some(Proc::new(Nspace::new("job").unwrap(), Rank::UNDEF));
        let origin = LogOrigin { source, requester: "tool 7".into() };
        assert_eq!(
            syslog_line("hi", &origin, "n1", &options(&[])),
            "N/A iof@n1:INFO PROC job.- by tool 7 REPORTS: hi"
        );
        let odd = syslog_line("a\nb\x1b[2J\tü\u{9b}\n", &origin, "n1", &options(&[]));
        assert!(odd.ends_with(r"REPORTS: a\nb\u{1b}[2J\tü\u{9b}"), "{odd}");
        let origin = LogOrigin { source: None, ..origin };
        let line = syslog_line("hi", &origin, "n1", &options(&[key::PMIX_LOG_GENERATE_TIMESTAMP]));
        assert!(line.ends_with(" iof@n1:INFO PROC tool 7 REPORTS: hi") && !line.starts_with("N/A"), "{line}");
    }
}
