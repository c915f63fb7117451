//! The grammar of `--output`: what users of prterun write, and what only we have.
//!
//! `WORD[=VALUE][:QUALIFIER]...`, several with commas between them. Words may be shortened as long
//! as one stays the only one that is meant, and their case does not matter. A word or qualifier
//! that stands for yes or no takes `=true` or `=false`. Names of files are bytes, whatever they
//! mean.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::pattern::{Pattern, PatternError};
use crate::stamp::Stamp;

/// What each piece of output is surrounded by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Markup {
    /// Tags, if any, before the text.
    #[default]
    Text,
    /// An XML element for each piece.
    Xml,
    /// A JSON object for each piece.
    Json,
}

/// Where per-rank files go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `dir=DIR`: `DIR/<nspace>/rank.<rank>/stdout` and `stderr`.
    Tree(PathBuf),
    /// `file=NAME`: `NAME.<nspace>.<rank>.out` and `.err`.
    Name(PathBuf),
    /// `file=NAME:pattern`: NAME with its `%` words expanded, `.out` and `.err`.
    Pattern(Pattern),
}

/// What a `--output` list asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// `tag`: which job and rank.
    pub tag: bool,
    /// `tag-detailed`: on which host and as which process, too.
    pub detailed: bool,
    /// `tag-fullname`: with the whole name of the job.
    pub fullname: bool,
    /// `rank`: the rank alone.
    pub rank: bool,
    /// `timestamp`: when the output was read from its source.
    pub stamp: Option<Stamp>,
    /// `xml`, `json`.
    pub markup: Markup,
    /// `merge-stderr-to-stdout`
    pub merge: bool,
    /// `dir=`, `file=`
    pub files: Option<Place>,
    /// `:copy`: what goes to files is shown as well.
    pub copy: bool,
    /// `:raw`: parts of lines are passed on as they come.
    pub raw: bool,
}

/// Why a list is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChoiceError {
    /// No such word.
    #[error(
        "'{0}' is no kind of output: say tag, tag-detailed, tag-fullname, rank, timestamp, xml, json, \
             merge-stderr-to-stdout, dir=DIR or file=NAME"
    )]
    Unknown(String),
    /// The beginning of several words.
    #[error("'{word}' may mean {meant}: write more of it")]
    Ambiguous {
        /// What was written.
        word: String,
        /// What it may mean.
        meant: String,
    },
    /// No such qualifier.
    #[error("':{0}' is no qualifier: say :copy, :nocopy, :raw or :pattern")]
    Qualifier(String),
    /// The word does not take this value.
    #[error("'{word}={value}' makes no sense: {word} takes {wanted}")]
    Value {
        /// The word.
        word: &'static str,
        /// What was written.
        value: String,
        /// What it takes.
        wanted: &'static str,
    },
    /// Two words that exclude each other.
    #[error("{0} and {1} exclude each other: leave one out")]
    Both(&'static str, &'static str),
    /// A qualifier of files without files.
    #[error("'{0}' is for output to files: say dir=DIR or file=NAME before it")]
    NoFiles(&'static str),
    /// The pattern of a file name.
    #[error(transparent)]
    Pattern(#[from] PatternError),
}

const BOOL: &str = "true or false, or nothing";
const WORDS: [&str; 11] = [
    "tag",
    "tag-detailed",
    "tag-fullname",
    "rank",
    "timestamp",
    "xml",
    "json",
    "merge-stderr-to-stdout",
    "dir",
    "directory",
    "file",
];
const QUALIFIERS: [&str; 4] = ["copy", "nocopy", "raw", "pattern"];

/// What qualifiers said so far.
#[derive(Default)]
struct Qualified {
    copy: bool,
    nocopy: bool,
    pattern: bool,
}

impl FromStr for Choice {
    type Err = ChoiceError;

    fn from_str(list: &str) -> Result<Choice, ChoiceError> {
        Choice::of([list])
    }
}

impl Choice {
    /// What `lists` ask for together, as if they were one.
    ///
    /// # Errors
    /// [`ChoiceError`]: a word that means nothing, or some that exclude each other.
    pub fn of<L: AsRef<OsStr>>(lists: impl IntoIterator<Item = L>) -> Result<Choice, ChoiceError> {
        let mut choice = Choice::default();
        let mut said = Qualified::default();
        for list in lists {
            for item in list.as_ref().as_bytes().split(|byte| *byte == b',') {
                let mut parts = item.split(|byte| *byte == b':');
                let word = parts.next().unwrap_or_default().trim_ascii();
                let mut qualified = false;
                for qualifier in parts {
                    qualified = true;
                    choice.qualify(qualifier.trim_ascii(), &mut said)?;
                }
                if !(word.is_empty() && qualified) {
                    choice.take(word)?;
                }
            }
        }
        choice.finish(&said)
    }

    fn take(&mut self, item: &[u8]) -> Result<(), ChoiceError> {
        let (word, value) = split(item);
        let word = meant(&word, &WORDS)?.ok_or_else(|| ChoiceError::Unknown(word.into_owned()))?;
        match word {
            "tag" => self.tag = truth(word, value)?,
            "tag-detailed" => self.detailed = truth(word, value)?,
            "tag-fullname" => self.fullname = truth(word, value)?,
            "rank" => self.rank = truth(word, value)?,
            "merge-stderr-to-stdout" => self.merge = truth(word, value)?,
            "timestamp" => self.stamp = stamp(word, value)?,
            "xml" => self.mark_up(Markup::Xml, truth(word, value)?)?,
            "json" => self.mark_up(Markup::Json, truth(word, value)?)?,
            "file" => self.put(Place::Name(path(word, value, "a name: file=NAME")?))?,
            _ => self.put(Place::Tree(path("dir", value, "a directory: dir=DIR")?))?,
        }
        Ok(())
    }

    fn mark_up(&mut self, markup: Markup, wanted: bool) -> Result<(), ChoiceError> {
        if wanted && self.markup != Markup::Text && self.markup != markup {
            return Err(ChoiceError::Both("xml", "json"));
        }
        if wanted {
            self.markup = markup;
        } else if self.markup == markup {
            self.markup = Markup::Text;
        }
        Ok(())
    }

    fn put(&mut self, place: Place) -> Result<(), ChoiceError> {
        if self.files.replace(place).is_some() {
            return Err(ChoiceError::Both("one dir= or file=", "another"));
        }
        Ok(())
    }

    fn qualify(&mut self, item: &[u8], said: &mut Qualified) -> Result<(), ChoiceError> {
        let (word, value) = split(item);
        let word = meant(&word, &QUALIFIERS)?.ok_or_else(|| ChoiceError::Qualifier(word.into_owned()))?;
        let wanted = truth(word, value)?;
        match word {
            "pattern" => said.pattern = wanted,
            "raw" => self.raw = wanted,
            // The one is the other's opposite.
            _ if wanted == (word == "copy") => said.copy = true,
            _ => said.nocopy = true,
        }
        Ok(())
    }

    fn finish(mut self, said: &Qualified) -> Result<Choice, ChoiceError> {
        if said.copy && said.nocopy {
            return Err(ChoiceError::Both(":copy", ":nocopy"));
        }
        self.copy = said.copy;
        self.files = match self.files {
            Some(Place::Name(name)) if said.pattern => Some(Place::Pattern(Pattern::new(&name)?)),
            Some(_) if said.pattern => return Err(ChoiceError::Both("dir=", ":pattern")),
            None if said.pattern => return Err(ChoiceError::NoFiles(":pattern")),
            None if said.copy => return Err(ChoiceError::NoFiles(":copy")),
            None if said.nocopy => return Err(ChoiceError::NoFiles(":nocopy")),
            files => files,
        };
        Ok(self)
    }

    /// Whether output is to be shown, or only written to files.
    pub fn shows(&self) -> bool {
        self.files.is_none() || self.copy
    }
}

/// A word and what stands behind its `=`.
fn split(item: &[u8]) -> (Cow<'_, str>, Option<&[u8]>) {
    let mut parts = item.splitn(2, |byte| *byte == b'=');
    let word = String::from_utf8_lossy(parts.next().unwrap_or_default());
    (word, parts.next())
}

/// The one of `words` that begins with `word`, whatever its case; the shortest if that is `word`
/// itself.
fn meant(word: &str, words: &[&'static str]) -> Result<Option<&'static str>, ChoiceError> {
    let lower = word.to_ascii_lowercase();
    if lower.is_empty() {
        return Ok(None);
    }
    let mut found = words.iter().copied().filter(|known| known.starts_with(&lower));
    let (Some(first), rest) = (found.next(), found.collect::<Vec<_>>()) else { return Ok(None) };
    // "dir" begins "directory", which is the same.
    if first == lower || rest.is_empty() || (first == "dir" && rest == ["directory"]) {
        return Ok(Some(first));
    }
    let meant = std::iter::once(first).chain(rest).collect::<Vec<_>>().join(" or ");
    Err(ChoiceError::Ambiguous { word: word.to_owned(), meant })
}

fn truth(word: &'static str, value: Option<&[u8]>) -> Result<bool, ChoiceError> {
    let Some(value) = value else { return Ok(true) };
    match value.to_ascii_lowercase().as_slice() {
        b"true" | b"t" | b"yes" | b"y" | b"1" => Ok(true),
        b"false" | b"f" | b"no" | b"n" | b"0" => Ok(false),
        _ => {
            let value = String::from_utf8_lossy(value).into_owned();
            Err(ChoiceError::Value { word, value, wanted: BOOL })
        }
    }
}

fn stamp(word: &'static str, value: Option<&[u8]>) -> Result<Option<Stamp>, ChoiceError> {
    let named = value.and_then(|value| Stamp::named(std::str::from_utf8(value).ok()?));
    if let Some(stamp) = named {
        return Ok(Some(stamp));
    }
    match truth(word, value) {
        Ok(wanted) => Ok(wanted.then_some(Stamp::Calendar)),
        Err(ChoiceError::Value { word, value, .. }) => {
            Err(ChoiceError::Value { word, value, wanted: "ns, us, ms or rfc3339, or nothing" })
        }
        Err(error) => Err(error),
    }
}

fn path(word: &'static str, value: Option<&[u8]>, wanted: &'static str) -> Result<PathBuf, ChoiceError> {
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
    fn words_are_known_by_their_beginnings_in_any_case() {
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
    }

    #[test]
    fn files_have_qualifiers() {
        assert_eq!(choice("d=/tmp/out").files, Some(Place::Tree("/tmp/out".into())));
        assert!(!choice("dir=o:nocopy").shows() && choice("dir=o:copy:raw").shows() && choice("tag").shows());
        assert!(choice("tag:raw").raw && choice(":raw").raw);
        assert!(matches!(choice("file=a.%r:PATTERN,tag").files, Some(Place::Pattern(_))));
        assert_eq!(choice("file=%x").files, Some(Place::Name("%x".into())), "no pattern");
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_to_say_instead() {
        for (list, said) in [
            ("", "'' is no kind"),
            ("loud", "'loud' is no kind"),
            ("tag,", "'' is no kind"),
            ("t", "tag or tag-detailed or tag-fullname or timestamp"),
            ("tag-", "tag-detailed or tag-fullname"),
            ("tag=maybe", "true or false"),
            ("timestamp=s", "ns, us, ms or rfc3339"),
            ("xml,json", "xml and json"),
            ("dir", "dir=DIR"),
            ("file=", "file=NAME"),
            ("dir=a,file=b", "exclude"),
            ("tag:loud", "':loud'"),
            (":", "':'"),
            ("tag:copy", ":copy' is for output to files"),
            ("tag:pattern", ":pattern' is for"),
            ("dir=a:pattern", "dir= and :pattern"),
            ("dir=a:copy:nocopy", ":copy and :nocopy"),
            ("file=%q:pattern", "%q"),
        ] {
            let error = list.parse::<Choice>().unwrap_err().to_string();
            assert!(error.contains(said), "{list}: {error}");
        }
    }

    #[test]
    fn several_lists_are_one() {
        let all = Choice::of(["tag,rank", "timestamp", "file=f", ":copy,tag=no"]).unwrap();
        assert_eq!(all, choice("tag,rank,timestamp,file=f,:copy,tag=no"));
        assert!(!all.tag && all.rank && all.copy && all.stamp.is_some());
        assert_eq!(Choice::of(["dir=a", "dir=b"]), Err(ChoiceError::Both("one dir= or file=", "another")));
        assert_eq!(Choice::of(["xml", "json"]), Err(ChoiceError::Both("xml", "json")));
    }

    #[test]
    fn qualifiers_may_be_denied() {
        assert_eq!(choice("file=f:nocopy=false"), choice("file=f:copy"));
        assert_eq!(choice("file=f:copy=no:raw=0:pattern=f"), choice("file=f:nocopy"));
        assert!("file=f:copy=maybe".parse::<Choice>().is_err());
    }

    #[test]
    fn names_of_files_are_bytes() {
        let list = OsStr::from_bytes(b"tag,dir=a\xff\xfeb");
        let Some(Place::Tree(dir)) = Choice::of([list]).unwrap().files else { panic!("no directory") };
        assert_eq!(dir.as_os_str().as_bytes(), b"a\xff\xfeb");
        assert!(Choice::of([OsStr::from_bytes(b"tag\xff")]).is_err());
    }
}
