//! The grammar of `--output`: that of prterun, with additional words.
//!
//! A list consists of `WORD[=VALUE][:QUALIFIER]...` items separated by commas. Words are not
//! case-sensitive, and may be abbreviated if the abbreviation is unambiguous. A boolean word or
//! qualifier takes `=true` or `=false`. File names are arbitrary bytes.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::format::markup::Markup;
use crate::format::pattern::{Pattern, PatternError};
use crate::format::stamp::Stamp;

/// The location of per-rank files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilePlace {
    /// `dir=DIR`: `DIR/<nspace>/rank.<rank>/stdout` and `stderr`.
    Tree(PathBuf),
    /// `file=NAME`: `NAME.<nspace>.<rank>.out` and `.err`.
    Name(PathBuf),
    /// `file=NAME:pattern`: NAME with its placeholders expanded. Without a placeholder, `.out` and
    /// `.err` are appended.
    Pattern(Pattern),
    /// The pattern with its placeholders expanded and nothing appended. All streams whose names are
    /// the same go to one file.
    Exact(Pattern),
}

/// The format and destination that a user requests: the parsed contents of `--output` lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// `tag`: shows the job and rank.
    pub tag: bool,
    /// `tag-detailed`: also shows the host and pid.
    pub detailed: bool,
    /// `tag-fullname`: shows the whole name of the job.
    pub fullname: bool,
    /// `rank`: shows the rank only.
    pub rank: bool,
    /// `timestamp`: shows when the output was read from its source.
    pub stamp: Option<Stamp>,
    /// The word of a format: the markup.
    pub markup: Markup,
    /// `json=batch`: writes one object for the lines of one read.
    pub batch: bool,
    /// `merge-stderr-to-stdout`: writes stderr and stddiag to stdout.
    pub merge: bool,
    /// `dir=` or `file=`: writes to per-rank files.
    pub files: Option<FilePlace>,
    /// `:copy`: writes the output to the files and to the command's own stdout and stderr.
    pub copy: bool,
    /// `:node`: writes files on the node of their rank, if the job has several nodes.
    pub node: bool,
    /// `:raw`: writes parts of lines immediately.
    pub raw: bool,
}

/// The reason why an `--output` list is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChoiceError {
    /// An unknown word.
    #[error(
        "unknown output word '{0}': expected tag, tag-detailed, tag-fullname, rank, timestamp, {formats}, \
             merge-stderr-to-stdout, dir=DIR or file=NAME",
        formats = format_words()
    )]
    Unknown(String),
    /// An abbreviation of several words.
    #[error("ambiguous output word '{word}': could be {candidates}; write more of it")]
    Ambiguous {
        /// The word as written.
        word: String,
        /// The words that it may abbreviate, joined by "or".
        candidates: String,
    },
    /// An unknown qualifier.
    #[error("unknown qualifier ':{0}': expected :copy, :nocopy, :node, :raw or :pattern")]
    Qualifier(String),
    /// A value that the word does not take.
    #[error("invalid value '{value}' for {word}: expected {wanted}")]
    Value {
        /// The word.
        word: &'static str,
        /// The value as written.
        value: String,
        /// The values that the word takes.
        wanted: &'static str,
    },
    /// Two items that exclude each other.
    #[error("{0} cannot be combined with {1}: leave one out")]
    Both(&'static str, &'static str),
    /// A tag, all of whose contents a format contains.
    #[error("{0} has no effect with {1}, which contains job, rank, channel, host and pid: leave one out")]
    InFormat(&'static str, &'static str),
    /// A qualifier of files without files.
    #[error("'{0}' requires output to files: put dir=DIR or file=NAME before it")]
    NoFiles(&'static str),
    /// An invalid pattern of a file name.
    #[error(transparent)]
    Pattern(#[from] PatternError),
}

const BOOL: &str = "true or false, or no value";
/// The words of an `--output` list besides the formats.
const WORDS: [&str; 9] = [
    "tag",
    "tag-detailed",
    "tag-fullname",
    "rank",
    "timestamp",
    "merge-stderr-to-stdout",
    "dir",
    "directory",
    "file",
];
/// Returns the words of an `--output` list as a user completes them: those that take a value end in
/// `=`.
pub fn output_words() -> impl Iterator<Item = String> {
    let words = WORDS.into_iter().filter(|word| *word != "directory").chain(Markup::words());
    words.flat_map(|word| match word {
        "dir" | "file" => vec![format!("{word}=")],
        "json" => vec![word.to_owned(), format!("{word}=batch")],
        "timestamp" => {
            let stamps = Stamp::NAMED.iter().map(|(stamp, _)| format!("{word}={stamp}"));
            std::iter::once(word.to_owned()).chain(stamps).collect()
        }
        word => vec![word.to_owned()],
    })
}

/// Returns the words of the formats, separated by commas.
pub fn format_words() -> String {
    Markup::words().collect::<Vec<_>>().join(", ")
}

const QUALIFIERS: [&str; 5] = ["copy", "nocopy", "node", "raw", "pattern"];
/// The qualifiers behind each word for files, and those behind any other word.
pub const OUTPUT_QUALIFIERS: [(&str, &[&str]); 3] =
    [("file=", &QUALIFIERS), ("dir=", &["copy", "nocopy", "node", "raw"]), ("", &["raw"])];

/// The qualifiers read so far.
#[derive(Default)]
struct Qualifiers {
    copy: bool,
    nocopy: bool,
    pattern: bool,
}

impl FromStr for Choice {
    type Err = ChoiceError;

    fn from_str(list: &str) -> Result<Choice, ChoiceError> {
        Choice::from_lists([list])
    }
}

impl Choice {
    /// Parses `lists` as if they were one list.
    ///
    /// # Errors
    /// Returns [`ChoiceError`] if a word is unknown or words exclude each other.
    pub fn from_lists<L: AsRef<OsStr>>(lists: impl IntoIterator<Item = L>) -> Result<Choice, ChoiceError> {
        let mut choice = Choice::default();
        let mut qualifiers = Qualifiers::default();
        for list in lists {
            for item in list.as_ref().as_bytes().split(|byte| *byte == b',') {
                let mut parts = item.split(|byte| *byte == b':');
                let word = parts.next().unwrap_or_default().trim_ascii();
                let mut is_qualified = false;
                for qualifier in parts {
                    is_qualified = true;
                    choice.qualify(qualifier.trim_ascii(), &mut qualifiers)?;
                }
                if !(word.is_empty() && is_qualified) {
                    choice.apply_word(word)?;
                }
            }
        }
        choice.finish(&qualifiers)
    }

    fn apply_word(&mut self, item: &[u8]) -> Result<(), ChoiceError> {
        let (word, value) = split(item);
        let words: Vec<&'static str> = WORDS.into_iter().chain(Markup::words()).collect();
        let word = resolve(&word, &words)?.ok_or_else(|| ChoiceError::Unknown(word.into_owned()))?;
        if let Some(markup) = Markup::named(word) {
            let has_batches = markup == Markup::Json;
            self.batch = has_batches && value.is_some_and(|value| value.eq_ignore_ascii_case(b"batch"));
            let values = if has_batches { "batch, true or false, or no value" } else { BOOL };
            let wanted = self.batch || parse_bool(word, value, values)?;
            return self.mark_up(markup, wanted);
        }
        let flag = || parse_bool(word, value, BOOL);
        match word {
            "tag" => self.tag = flag()?,
            "tag-detailed" => self.detailed = flag()?,
            "tag-fullname" => self.fullname = flag()?,
            "rank" => self.rank = flag()?,
            "merge-stderr-to-stdout" => self.merge = flag()?,
            "timestamp" => self.stamp = parse_stamp(word, value)?,
            "file" => self.set_place(FilePlace::Name(parse_path(word, value, "a name, as in file=NAME")?))?,
            _ => self.set_place(FilePlace::Tree(parse_path("dir", value, "a directory, as in dir=DIR")?))?,
        }
        Ok(())
    }

    fn mark_up(&mut self, markup: Markup, wanted: bool) -> Result<(), ChoiceError> {
        if let (true, Some(first), Some(second)) =
            (wanted && self.markup != markup, self.markup.word(), markup.word())
        {
            return Err(ChoiceError::Both(first, second));
        }
        if wanted {
            self.markup = markup;
        } else if self.markup == markup {
            self.markup = Markup::Text;
        }
        Ok(())
    }

    fn set_place(&mut self, place: FilePlace) -> Result<(), ChoiceError> {
        if self.files.replace(place).is_some() {
            return Err(ChoiceError::Both("one dir= or file=", "another"));
        }
        Ok(())
    }

    fn qualify(&mut self, item: &[u8], qualifiers: &mut Qualifiers) -> Result<(), ChoiceError> {
        let (word, value) = split(item);
        let word = resolve(&word, &QUALIFIERS)?.ok_or_else(|| ChoiceError::Qualifier(word.into_owned()))?;
        let wanted = parse_bool(word, value, BOOL)?;
        match word {
            "pattern" => qualifiers.pattern = wanted,
            "node" => self.node = wanted,
            "raw" => self.raw = wanted,
            // :copy and :nocopy are opposites.
            _ if wanted == (word == "copy") => qualifiers.copy = true,
            _ => qualifiers.nocopy = true,
        }
        Ok(())
    }

    fn finish(mut self, qualifiers: &Qualifiers) -> Result<Choice, ChoiceError> {
        if qualifiers.copy && qualifiers.nocopy {
            return Err(ChoiceError::Both(":copy", ":nocopy"));
        }
        let complete = self.markup.word().filter(|_| self.markup.is_complete());
        if let (Some(tag), Some(format)) = (self.tags().next(), complete) {
            return Err(ChoiceError::InFormat(tag, format));
        }
        self.copy = qualifiers.copy;
        self.files = match self.files {
            Some(FilePlace::Name(name)) if qualifiers.pattern => {
                Some(FilePlace::Pattern(Pattern::new(&name)?))
            }
            Some(_) if qualifiers.pattern => return Err(ChoiceError::Both("dir=", ":pattern")),
            None if qualifiers.pattern => return Err(ChoiceError::NoFiles(":pattern")),
            None if qualifiers.copy => return Err(ChoiceError::NoFiles(":copy")),
            None if qualifiers.nocopy => return Err(ChoiceError::NoFiles(":nocopy")),
            None if self.node => return Err(ChoiceError::NoFiles(":node")),
            files => files,
        };
        Ok(self)
    }

    /// Returns the words for tags that are requested.
    pub fn tags(&self) -> impl Iterator<Item = &'static str> {
        let tags = [
            (self.tag, "tag"),
            (self.detailed, "tag-detailed"),
            (self.fullname, "tag-fullname"),
            (self.rank, "rank"),
        ];
        tags.into_iter().filter(|(wanted, _)| *wanted).map(|(_, word)| word)
    }

    /// Returns the place of the files if its path contains placeholders that are not expanded:
    /// those of `dir=DIR`, and of `file=NAME` without `:pattern`.
    pub fn unused_placeholder(&self) -> Option<&FilePlace> {
        let has_placeholder = |path: &Path| Pattern::new(path).is_ok_and(|pattern| pattern.has_placeholder());
        self.files.as_ref().filter(|place| match place {
            FilePlace::Tree(path) | FilePlace::Name(path) => has_placeholder(path),
            FilePlace::Pattern(_) | FilePlace::Exact(_) => false,
        })
    }

    /// Returns whether output goes to the command's own stdout and stderr, and not only to files.
    pub fn shows(&self) -> bool {
        self.files.is_none() || self.copy
    }
}

/// Splits an item into its word and the value after `=`.
fn split(item: &[u8]) -> (Cow<'_, str>, Option<&[u8]>) {
    let mut parts = item.splitn(2, |byte| *byte == b'=');
    let word = String::from_utf8_lossy(parts.next().unwrap_or_default());
    (word, parts.next())
}

/// Returns the one of `words` that `word` abbreviates, in any case. A whole word has precedence
/// over longer words that begin with it.
fn resolve(word: &str, words: &[&'static str]) -> Result<Option<&'static str>, ChoiceError> {
    let lower = word.to_ascii_lowercase();
    if lower.is_empty() {
        return Ok(None);
    }
    let mut found = words.iter().copied().filter(|known| known.starts_with(&lower));
    let (Some(first), rest) = (found.next(), found.collect::<Vec<_>>()) else { return Ok(None) };
    // "dir" abbreviates "directory", which has the same meaning.
    if first == lower || rest.is_empty() || (first == "dir" && rest == ["directory"]) {
        return Ok(Some(first));
    }
    let candidates = std::iter::once(first).chain(rest).collect::<Vec<_>>().join(" or ");
    Err(ChoiceError::Ambiguous { word: word.to_owned(), candidates })
}

/// Parses true or false. An error tells the values that are `wanted`.
fn parse_bool(word: &'static str, value: Option<&[u8]>, wanted: &'static str) -> Result<bool, ChoiceError> {
    let Some(value) = value else { return Ok(true) };
    match value.to_ascii_lowercase().as_slice() {
        b"true" | b"t" | b"yes" | b"y" | b"1" => Ok(true),
        b"false" | b"f" | b"no" | b"n" | b"0" => Ok(false),
        _ => {
            let value = String::from_utf8_lossy(value).into_owned();
            Err(ChoiceError::Value { word, value, wanted })
        }
    }
}

fn parse_stamp(word: &'static str, value: Option<&[u8]>) -> Result<Option<Stamp>, ChoiceError> {
    let named = value.and_then(|value| Stamp::named(std::str::from_utf8(value).ok()?));
    if let Some(stamp) = named {
        return Ok(Some(stamp));
    }
    let wanted = parse_bool(word, value, "ns, us, ms, rfc3339 or local, or no value")?;
    Ok(wanted.then_some(Stamp::Calendar))
}

fn parse_path(
    word: &'static str,
    value: Option<&[u8]>,
    wanted: &'static str,
) -> Result<PathBuf, ChoiceError> {
    match value.filter(|value| !value.is_empty()) {
        Some(value) => Ok(PathBuf::from(OsStr::from_bytes(value))),
        None => Err(ChoiceError::Value { word, value: String::new(), wanted }),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn choice(list: &str) -> Choice {
        list.parse().unwrap_or_else(|error| panic!("{list}: {error}"))
    }

    #[test]
    fn words_may_be_abbreviated_and_are_not_case_sensitive() {
        let all = choice("tag,TAG-DET,tag-f,r,Timestamp,x,merge");
        let wanted = Choice {
            tag: true,
            detailed: true,
            fullname: true,
            rank: true,
            stamp: Some(Stamp::Calendar),
            markup: Markup::Xml,
            merge: true,
            ..Choice::default()
        };
        assert_eq!(all, wanted);
        assert_eq!(choice("tag=false,timestamp=rfc3339,j").stamp, Some(Stamp::Rfc3339));
        assert_eq!(choice("xml,xml=no,json").markup, Markup::Json);
        let batch = choice("JSON=Batch");
        assert!(batch.markup == Markup::Json && batch.batch && !choice("json=batch,json").batch);
    }

    #[test]
    fn files_have_qualifiers() {
        assert_eq!(choice("d=/tmp/out").files, Some(FilePlace::Tree("/tmp/out".into())));
        assert!(!choice("dir=o:nocopy").shows() && choice("dir=o:copy:raw").shows() && choice("tag").shows());
        assert!(choice("dir=o:node").node && !choice("dir=o").node && !choice("dir=o:node=no").node);
        assert!(choice("tag:raw").raw && choice(":raw").raw);
        assert!(matches!(choice("file=a.%r:PATTERN,tag").files, Some(FilePlace::Pattern(_))));
        assert_eq!(choice("file=%x").files, Some(FilePlace::Name("%x".into())), "not a pattern");
        for (list, unused) in [
            ("file=a.%r", true),
            ("file=a.%r:pattern", false),
            ("file=100%", false),
            ("file=%%", false),
            ("dir=a.%r", true),
            ("dir=100%", false),
            ("tag", false),
        ] {
            assert_eq!(choice(list).unused_placeholder().is_some(), unused, "{list}");
        }
    }

    #[test]
    fn invalid_lists_are_refused_with_a_remedy() {
        for (list, wanted) in [
            ("", "unknown output word ''"),
            ("loud", "unknown output word 'loud'"),
            ("tag,", "unknown output word ''"),
            ("t", "tag or tag-detailed or tag-fullname or timestamp"),
            ("tag-", "tag-detailed or tag-fullname"),
            ("tag=maybe", "true or false"),
            ("json=lines", "batch, true or false"),
            ("xml=batch", "true or false"),
            ("timestamp=s", "ns, us, ms, rfc3339 or local"),
            ("xml,json", "xml cannot be combined with json"),
            ("json,tag", "tag has no effect with json"),
            ("rank,json", "rank has no effect with json"),
            ("dir", "dir=DIR"),
            ("file=", "file=NAME"),
            ("dir=a,file=b", "cannot be combined"),
            ("tag:loud", "':loud'"),
            (":", "':'"),
            ("tag:copy", "':copy' requires output to files"),
            ("tag:pattern", "':pattern' requires"),
            ("tag:node", "':node' requires"),
            ("dir=a:pattern", "dir= cannot be combined with :pattern"),
            ("dir=a:copy:nocopy", ":copy cannot be combined with :nocopy"),
            ("file=%q:pattern", "%q"),
        ] {
            let error = list.parse::<Choice>().unwrap_err().to_string();
            assert!(error.contains(wanted), "{list}: {error}");
        }
    }

    #[test]
    fn several_lists_count_as_one() {
        let all = Choice::from_lists(["tag,rank", "timestamp", "file=f", ":copy,tag=no"]).unwrap();
        assert_eq!(all, choice("tag,rank,timestamp,file=f,:copy,tag=no"));
        assert!(!all.tag && all.rank && all.copy && all.stamp.is_some());
        assert_eq!(
            Choice::from_lists(["dir=a", "dir=b"]),
            Err(ChoiceError::Both("one dir= or file=", "another"))
        );
        assert_eq!(Choice::from_lists(["xml", "json"]), Err(ChoiceError::Both("xml", "json")));
    }

    #[test]
    fn each_word_for_completion_is_a_word_and_each_word_is_completed() {
        for word in output_words() {
            choice(&if word.ends_with('=') { format!("{word}name") } else { word });
        }
        let is_completed = |word: &&str| output_words().any(|known| known.trim_end_matches('=') == *word);
        let missing: Vec<_> = WORDS.iter().filter(|word| !is_completed(word)).collect();
        assert_eq!(missing, [&"directory"], "it means the same as dir");
    }

    #[test]
    fn each_qualifier_for_completion_is_accepted_behind_its_word() {
        for (word, qualifiers) in OUTPUT_QUALIFIERS {
            let word = if word.is_empty() { "tag".to_owned() } else { format!("{word}name") };
            let accepted = |qualifier: &&str| format!("{word}:{qualifier}").parse::<Choice>().is_ok();
            let all: Vec<&str> = QUALIFIERS.into_iter().filter(accepted).collect();
            assert_eq!(all, qualifiers, "{word}");
        }
    }

    #[test]
    fn qualifiers_may_be_negated() {
        assert_eq!(choice("file=f:nocopy=false"), choice("file=f:copy"));
        assert_eq!(choice("file=f:copy=no:raw=0:pattern=f"), choice("file=f:nocopy"));
        assert!("file=f:copy=maybe".parse::<Choice>().is_err());
    }

    #[test]
    fn file_names_are_arbitrary_bytes() {
        let list = OsStr::from_bytes(b"tag,dir=a\xff\xfeb");
        let Some(FilePlace::Tree(dir)) = Choice::from_lists([list]).unwrap().files else {
            panic!("no directory")
        };
        assert_eq!(dir.as_os_str().as_bytes(), b"a\xff\xfeb");
        assert!(Choice::from_lists([OsStr::from_bytes(b"tag\xff")]).is_err());
    }
}
