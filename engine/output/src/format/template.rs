//! Labels of lines that a user composes.

use std::io::Write;

use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;

use crate::format::placeholder::{MAX_PADDING, PatternValues, Placeholder};

/// The text before each line, with placeholders in braces: `{nspace}`, `{rank}` (`{rank:4}` pads it
/// with zeros to 4 digits), `{host}`, `{channel}`, `{pid}`, `{time}` or `{time:%H:%M:%S}` in the local
/// time zone, and `{elapsed}` in seconds. `{{` and `}}` are braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelTemplate {
    pieces: Vec<LabelPiece>,
    /// The time that `{elapsed}` counts from, in nanoseconds since 1970.
    began: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum LabelPiece {
    Text(String),
    Value(Placeholder, usize),
    Pid,
    /// The time of the line, in a format of strftime(3).
    Time(String),
    Elapsed,
}

/// The format of `{time}` without one.
const TIME: &str = "%H:%M:%S";

/// The reason why a text is not a [`LabelTemplate`], and a remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TemplateError(String);

/// The reason why a text has no placeholder at all.
const CONSTANT: &str = "no placeholder such as {rank}: the output format 'rank' labels as srun does";

/// Returns the error for a placeholder that does not exist, or is cut.
fn unknown(word: &str) -> TemplateError {
    TemplateError(format!(
        "unknown placeholder '{word}': expected {{nspace}}, {{rank}}, {{rank:4}}, {{host}}, {{channel}}, {{pid}}, \
         {{time:%H:%M:%S}} or {{elapsed}}, and {{{{ for a brace"
    ))
}

impl LabelTemplate {
    /// Parses a text. `{elapsed}` counts from `began`, in nanoseconds since 1970.
    ///
    /// # Errors
    /// Returns [`TemplateError`] if it is invalid.
    pub fn new(text: &str, began: u64) -> Result<LabelTemplate, TemplateError> {
        if text.contains('\n') {
            return Err(TemplateError("a newline would divide each line".into()));
        }
        let (mut pieces, mut plain, mut rest) = (Vec::new(), String::new(), text);
        while let Some(index) = rest.find(['{', '}']) {
            let (before, at) = rest.split_at(index);
            plain.push_str(before);
            if let Some(behind) = ["{{", "}}"].into_iter().find_map(|brace| at.strip_prefix(brace)) {
                plain.extend(at.chars().next());
                rest = behind;
                continue;
            }
            let inside = at.strip_prefix('{').and_then(|inside| inside.split_once('}'));
            let (word, behind) = inside.ok_or_else(|| unknown(at))?;
            pieces.push(LabelPiece::Text(std::mem::take(&mut plain)));
            pieces.push(parse(word)?);
            rest = behind;
        }
        if pieces.is_empty() {
            return Err(TemplateError(CONSTANT.into()));
        }
        plain.push_str(rest);
        pieces.push(LabelPiece::Text(plain));
        Ok(LabelTemplate { pieces, began })
    }

    /// Returns whether it shows the time of each line.
    pub fn shows_time(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, LabelPiece::Time(_) | LabelPiece::Elapsed))
    }

    /// Returns whether it can stand for several ranks: it lists them, and shows neither hosts nor pids.
    pub fn suits_several(&self) -> bool {
        let has_rank =
            self.pieces.iter().any(|piece| matches!(piece, LabelPiece::Value(Placeholder::Rank, _)));
        has_rank && !self.shows_process()
    }

    /// Returns whether it shows hosts or pids.
    pub(crate) fn shows_process(&self) -> bool {
        self.pieces
            .iter()
            .any(|piece| matches!(piece, LabelPiece::Pid | LabelPiece::Value(Placeholder::Host, _)))
    }

    /// Returns the template of one stream, of a process with this pid: texts and times.
    pub(crate) fn of_stream(&self, values: &PatternValues<'_>, pid: Option<u32>) -> LabelTemplate {
        let (mut pieces, mut plain) = (Vec::new(), String::new());
        for piece in &self.pieces {
            match piece {
                LabelPiece::Text(text) => plain.push_str(text),
                LabelPiece::Value(placeholder, width) => plain.push_str(&placeholder.expand(values, *width)),
                LabelPiece::Pid => plain += &pid.map_or_else(|| "unknown".into(), |pid| pid.to_string()),
                LabelPiece::Time(_) | LabelPiece::Elapsed => {
                    pieces.push(LabelPiece::Text(std::mem::take(&mut plain)));
                    pieces.push(piece.clone());
                }
            }
        }
        pieces.push(LabelPiece::Text(plain));
        LabelTemplate { pieces, began: self.began }
    }

    /// Returns the part of `time` that it shows: times with equal parts look the same.
    pub(crate) fn part(&self, time: u64) -> u64 {
        let nanoseconds = |piece: &LabelPiece| match piece {
            // Fractions of a second.
            LabelPiece::Time(format) if format.contains(['f', 'N']) => 1,
            LabelPiece::Elapsed => 1_000_000,
            _ => 1_000_000_000,
        };
        time / self.pieces.iter().map(nanoseconds).min().unwrap_or(1)
    }

    /// Appends the template of a stream for a line that was read at `time`.
    pub(crate) fn write(&self, time: Option<u64>, zone: &TimeZone, buffer: &mut Vec<u8>) {
        for piece in &self.pieces {
            // Writing to memory does not fail.
            let _ = match (piece, time) {
                (LabelPiece::Text(text), _) => buffer.write_all(text.as_bytes()),
                (LabelPiece::Time(format), Some(time)) => {
                    let time = Timestamp::from_nanosecond(time.into()).unwrap_or_default();
                    write!(buffer, "{}", time.to_zoned(zone.clone()).strftime(format))
                }
                (LabelPiece::Elapsed, Some(time)) => {
                    let sign = if time < self.began { "-" } else { "" };
                    let ms = (time / 1_000_000).abs_diff(self.began / 1_000_000);
                    write!(buffer, "{sign}{}.{:03}", ms / 1000, ms % 1000)
                }
                _ => buffer.write_all(b"unknown"),
            };
        }
    }
}

/// Parses the text between two braces.
fn parse(word: &str) -> Result<LabelPiece, TemplateError> {
    let unknown = || unknown(&format!("{{{word}}}"));
    match word.split_once(':') {
        Some(("rank", width)) => {
            let width = width.parse().ok().filter(|width| (1..=MAX_PADDING).contains(width));
            Ok(LabelPiece::Value(Placeholder::Rank, width.ok_or_else(unknown)?))
        }
        Some(("time", format)) => {
            let shown = strtime::format(format, &Timestamp::UNIX_EPOCH.to_zoned(TimeZone::UTC));
            // Also, %n would divide each line.
            if shown.is_ok_and(|shown| !shown.is_empty() && !shown.contains('\n')) {
                return Ok(LabelPiece::Time(format.to_owned()));
            }
            let expected = "expected one of strftime without newline, such as %H:%M:%S";
            Err(TemplateError(format!("invalid time format '{format}': {expected}")))
        }
        Some(_) => Err(unknown()),
        None => match word {
            "time" => Ok(LabelPiece::Time(TIME.to_owned())),
            "elapsed" => Ok(LabelPiece::Elapsed),
            "pid" => Ok(LabelPiece::Pid),
            name => Placeholder::by_name(name).map(|found| LabelPiece::Value(found, 0)).ok_or_else(unknown),
        },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn render(text: &str, time: Option<u64>) -> String {
        let values = PatternValues {
            nspace: "train@1",
            padded: "07",
            rank: "7",
            host: "node1.site.org",
            channel: "stderr",
        };
        let mut buffer = Vec::new();
        let template = LabelTemplate::new(text, 2_000_000_000).unwrap().of_stream(&values, Some(42));
        template.write(time, &TimeZone::UTC, &mut buffer);
        String::from_utf8(buffer).unwrap()
    }

    #[test]
    fn placeholders_are_replaced_by_the_stream_and_the_time() {
        let time = Some(3_605_123_456_789);
        for (text, shown) in [
            ("{nspace} {rank} {rank:4} {host} {channel} {pid}|", "train@1 7 0007 node1.site.org stderr 42|"),
            ("[{time}] ", "[01:00:05] "),
            ("{time:%Y-%m-%dT%H:%M:%S%.3f} {rank} {elapsed}s ", "1970-01-01T01:00:05.123 7 3603.123s "),
            ("{{{rank}}} ", "{7} "),
        ] {
            assert_eq!(render(text, time), shown);
        }
        assert_eq!(render("{elapsed} ", Some(1_999_000_000)), "-0.001 ");
        assert_eq!(render("{time} {elapsed} ", None), "unknown unknown ");
    }

    #[test]
    fn times_with_equal_parts_look_the_same() {
        let part = |text: &str, time| LabelTemplate::new(text, 0).unwrap().part(time);
        assert_eq!(part("{time}", 1_999_999_999), part("{time}", 1_000_000_000));
        assert_ne!(part("{time:%.9f}", 1_000_000_001), part("{time:%.9f}", 1_000_000_000));
        assert_ne!(part("{time}{elapsed}", 1_001_000_000), part("{time}{elapsed}", 1_000_000_000));
    }

    #[test]
    fn invalid_templates_are_refused_with_a_remedy() {
        for (text, reason) in [
            ("", "the output format 'rank'"),
            ("prog", "the output format 'rank'"),
            ("{{rank}}", "the output format 'rank'"),
            ("{rnk}", "unknown placeholder '{rnk}': expected {nspace}, {rank}, {rank:4}"),
            ("{rank", "'{rank'"),
            ("rank}", "'}'"),
            ("{}", "'{}'"),
            ("{rank:x}", "'{rank:x}'"),
            ("{rank:11}", "'{rank:11}'"),
            ("{rank:0}", "'{rank:0}'"),
            ("{host:4}", "'{host:4}'"),
            ("{time:}", "invalid time format ''"),
            ("{time:%!}", "invalid time format '%!'"),
            ("{time:%n}", "invalid time format '%n': expected one of strftime without newline"),
            ("{rank}\n", "newline"),
        ] {
            let error = LabelTemplate::new(text, 0).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
