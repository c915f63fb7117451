//! The selection of lines by regular expressions.

use std::ops::Range;

use memchr::{memchr, memrchr};
use regex::bytes::{Regex, RegexBuilder};

/// The reason why a text is not a regular expression, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid regular expression '{pattern}': {reason}")]
pub struct PatternSyntaxError {
    pattern: String,
    reason: String,
}

/// A regular expression that is found in lines, without their newlines.
#[derive(Clone, Debug)]
pub struct LinePattern {
    regex: Regex,
    /// Set if each place at which it is found in a line is found in many lines at once, too.
    spans: bool,
}

/// The beginnings of groups with which `^` and `$` still are the beginning and the end of a line.
const PLAIN_GROUPS: [&str; 5] = ["(?:", "(?i)", "(?i:", "(?<", "(?P<"];

impl LinePattern {
    /// Parses a regular expression in the syntax of the crate `regex`.
    ///
    /// # Errors
    /// It is invalid, or too large.
    pub fn new(pattern: &str) -> Result<LinePattern, PatternSyntaxError> {
        let regex = RegexBuilder::new(pattern).multi_line(true).build().map_err(|error| {
            // The parser draws where the error is, and names it in its last line.
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default();
            let reason = last.strip_prefix("error: ").unwrap_or(last).to_owned();
            PatternSyntaxError { pattern: pattern.to_owned(), reason }
        })?;
        let mut groups = pattern.match_indices("(?").filter_map(|(index, _)| pattern.get(index..));
        let is_plain = |group: &str| PLAIN_GROUPS.iter().any(|plain| group.starts_with(plain));
        let spans = groups.all(is_plain) && !["\\A", "\\z"].iter().any(|anchor| pattern.contains(anchor));
        Ok(LinePattern { regex, spans })
    }

    /// Calls `each` with the ranges of `bytes`, which are lines, that consist of lines with the pattern.
    fn find(&self, bytes: &[u8], mut each: impl FnMut(Range<usize>)) {
        let (mut found, mut from, mut spans) = (0..0, 0, self.spans);
        while from < bytes.len() {
            let matched = if spans { self.regex.find_at(bytes, from) } else { None };
            if spans && matched.is_none() {
                break;
            }
            let before = bytes.get(from..matched.map_or(from, |matched| matched.start())).unwrap_or_default();
            let start =
                memrchr(b'\n', before).map_or(from, |index| from.saturating_add(index).saturating_add(1));
            let rest = bytes.get(start..).unwrap_or_default();
            let len = memchr(b'\n', rest).unwrap_or(rest.len());
            from = start.saturating_add(len).saturating_add(1);
            // A match that begins in a line may end in a later one. In each line between, it could be found
            // once more: these lines are searched one by one.
            spans &= matched.is_some_and(|matched| matched.end() < from);
            if !rest.is_empty() && (spans || self.regex.is_match(rest.get(..len).unwrap_or_default())) {
                let line = start..from.min(bytes.len());
                if start == found.end {
                    found.end = line.end;
                } else {
                    each(std::mem::replace(&mut found, line));
                }
            }
        }
        each(found);
    }
}

/// The lines that an output shows.
#[derive(Clone, Debug, Default)]
pub struct LineFilter {
    /// If given, only lines in which this is found are shown.
    pub matched: Option<LinePattern>,
    /// Lines in which this is found are not shown.
    pub excluded: Option<LinePattern>,
}

impl LineFilter {
    /// Calls `show` with the ranges of `bytes`, which are lines, that are shown. The last line may be
    /// incomplete.
    pub(crate) fn select(&self, bytes: &[u8], mut show: impl FnMut(Range<usize>)) {
        let mut show = |range: Range<usize>| {
            if !range.is_empty() {
                show(range)
            }
        };
        let mut without_excluded = |found: Range<usize>| {
            let Some(excluded) = &self.excluded else { return show(found) };
            let mut begin = found.start;
            excluded.find(bytes.get(found.clone()).unwrap_or_default(), |hidden| {
                show(begin..found.start.saturating_add(hidden.start));
                begin = found.start.saturating_add(hidden.end);
            });
            show(begin..found.end);
        };
        match &self.matched {
            Some(matched) => matched.find(bytes, without_excluded),
            None => without_excluded(0..bytes.len()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn select(matched: &str, excluded: &str, text: &str) -> String {
        let pattern = |text: &str| (!text.is_empty()).then(|| LinePattern::new(text).unwrap());
        let filter = LineFilter { matched: pattern(matched), excluded: pattern(excluded) };
        let mut shown = String::new();
        filter.select(text.as_bytes(), |range| shown.push_str(&text[range]));
        shown
    }

    #[test]
    fn whole_lines_are_selected_and_no_match_extends_over_several() {
        let text = "one\ntwo\n\nthree two\nfour";
        for (matched, excluded, shown) in [
            ("two", "", "two\nthree two\n"),
            ("^two", "", "two\n"),
            ("two$", "", "two\nthree two\n"),
            ("", "two", "one\n\nfour"),
            ("o", "e", "two\nfour"),
            ("^$", "", "\n"),
            ("(?s)one.two", "", ""),
            (r"one\s+two", "", ""),
            ("o[^x]*r", "", "four"),
            (r"\Athree", "", "three two\n"),
            (r"two\z", "", "two\nthree two\n"),
            ("(?-m)^four$", "", "four"),
            ("(?i)FOUR", "", "four"),
            (r"\bt\w+\b.*\btwo", "", "three two\n"),
            ("x*", "", text),
            ("", "x*", ""),
            ("$", "r$", "one\ntwo\n\nthree two\n"),
        ] {
            assert_eq!(select(matched, excluded, text), shown, "{matched} {excluded}");
        }
        assert_eq!(select("", "é", "né\nn\n"), "n\n");
    }

    #[test]
    fn a_selection_from_many_lines_is_that_of_each_line() {
        let text = "ab\nba\n\nb\na b\nabc\n b\n";
        for pattern in ["a", "^b", "b$", "a.*b", r"a\nb", r"\s", "[^a]", r"\Bb", "^$|c", "b|a.", r"\W*b"] {
            let alone = LinePattern { spans: false, ..LinePattern::new(pattern).unwrap() };
            let mut expected = String::new();
            alone.find(text.as_bytes(), |range| expected.push_str(&text[range]));
            assert_eq!(select(pattern, "", text), expected, "{pattern}");
        }
    }

    #[test]
    fn lines_are_not_searched_once_for_each_line_before() {
        // A match from each of these lines would extend over all lines behind it.
        let text = "begin nothing\n".repeat(300_000) + "end\n";
        assert_eq!(select("begin[^x]*end", "", &text), "");
        assert_eq!(select("[^x]*end", "", &text), "end\n");
    }

    #[test]
    fn an_invalid_expression_is_refused_in_one_line() {
        for (pattern, reason) in [
            ("a(", "unclosed group"),
            ("[", "unclosed character class"),
            ("*", "repetition"),
            (r"\y", "escape"),
        ] {
            let error = LinePattern::new(pattern).unwrap_err().to_string();
            assert!(error.contains(reason) && error.lines().count() == 1, "{error}");
        }
        let error = LinePattern::new(&"a{1000}".repeat(1000)).unwrap_err().to_string();
        assert!(error.contains("size limit") && error.lines().count() == 1);
    }
}
