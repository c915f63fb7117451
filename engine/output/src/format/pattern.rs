//! Patterns for the names of per-rank files.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::format::placeholder::{MAX_PADDING, PatternValues, Placeholder};

/// A file name with placeholders: `%n`, `%j` or `%x` for the job, `%r` for the rank with leading
/// zeros, `%R` or `%t` for the rank, `%h` for the host, `%N` for the host up to its first dot, `%c`
/// for the channel (`stdout` or `stderr`), `%%` for a percent sign. Digits before the letter of a
/// rank pad it with zeros: `%4t` is `0007`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    /// A placeholder, with the least number of digits of a rank.
    Value(Placeholder, usize),
}

/// The error for a file name with an unknown placeholder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown placeholder '{0}' in the file name: expected %n, %j or %x (job), %r, %R or %t (rank, %4t pads it to 4 \
         digits), %h or %N (host), %c (channel) or %% (a percent sign)"
)]
pub struct PatternError(String);

impl Pattern {
    /// Parses `name` as a pattern.
    ///
    /// # Errors
    /// Returns [`PatternError`] if a `%` is not followed by one of the letters above, or if it pads
    /// a rank to more than 10 digits.
    pub fn new(name: &Path) -> Result<Pattern, PatternError> {
        let mut pieces = Vec::new();
        let mut text = Vec::new();
        let mut bytes = name.as_os_str().as_bytes().iter().copied();
        while let Some(byte) = bytes.next() {
            if byte != b'%' {
                text.push(byte);
                continue;
            }
            let mut digits = Vec::new();
            let letter = loop {
                match bytes.next() {
                    Some(digit @ b'0'..=b'9') => digits.push(digit),
                    other => break other,
                }
            };
            let width = match digits.as_slice() {
                [] => Some(0),
                digits => std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()),
            };
            if letter == Some(b'%') && digits.is_empty() {
                text.push(b'%');
                continue;
            }
            let placeholder = letter.and_then(Placeholder::by_letter);
            // Only numbers are padded, as by srun.
            let width = width.filter(|width| *width <= MAX_PADDING);
            let Some((placeholder, width)) = placeholder.zip(width) else {
                let word: Vec<u8> = std::iter::once(b'%').chain(digits).chain(letter).collect();
                return Err(PatternError(String::from_utf8_lossy(&word).into_owned()));
            };
            let piece = Piece::Value(placeholder, width);
            pieces.push(Piece::Text(std::mem::take(&mut text)));
            pieces.push(piece);
        }
        pieces.push(Piece::Text(text));
        Ok(Pattern(pieces))
    }

    /// Returns whether the name contains a placeholder other than `%%`.
    pub fn has_placeholder(&self) -> bool {
        self.0.iter().any(|piece| !matches!(piece, Piece::Text(_)))
    }

    /// Returns whether the name begins at the root.
    pub(crate) fn is_absolute(&self) -> bool {
        matches!(self.0.first(), Some(Piece::Text(text)) if text.starts_with(b"/"))
    }

    /// Returns whether the name contains the job.
    pub(crate) fn names_job(&self) -> bool {
        self.names(|placeholder| placeholder == Placeholder::Nspace)
    }

    /// Returns whether the name contains the host.
    pub(crate) fn names_host(&self) -> bool {
        self.names(|placeholder| matches!(placeholder, Placeholder::Host | Placeholder::ShortHost))
    }

    /// Returns whether each channel of each rank has a name of its own, whatever the jobs.
    pub(crate) fn names_stream(&self) -> bool {
        self.names(Placeholder::is_rank)
            && self.names_job()
            && self.names(|placeholder| placeholder == Placeholder::Channel)
    }

    fn names(&self, is_wanted: impl Fn(Placeholder) -> bool) -> bool {
        self.0.iter().any(|piece| matches!(piece, Piece::Value(placeholder, _) if is_wanted(*placeholder)))
    }

    /// Returns the name in which the placeholders are replaced by `values`.
    pub fn expand(&self, values: PatternValues<'_>) -> PathBuf {
        let mut name = Vec::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => name.extend_from_slice(text),
                Piece::Value(placeholder, width) => {
                    let text = placeholder.expand(&values, *width);
                    let is_host = matches!(placeholder, Placeholder::Host | Placeholder::ShortHost);
                    // The name of a host comes from a process table and may contain anything.
                    let text = if is_host { text.replace('/', "_") } else { text };
                    name.extend_from_slice(text.as_bytes());
                }
            }
        }
        PathBuf::from(OsString::from_vec(name))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_expanded_and_unknown_ones_refused() {
        let values =
            PatternValues { nspace: "job@1", padded: "07", rank: "7", host: "no/de", channel: "stderr" };
        let expand = |text: &str| Pattern::new(Path::new(text)).unwrap().expand(values);
        assert_eq!(expand("out/%n-%r-%R-%h-%c-%%"), Path::new("out/job@1-07-7-no_de-stderr-%"));
        assert_eq!(expand("plain"), Path::new("plain"));
        for (text, word) in
            [("%q", "'%q'"), ("a%", "'%'"), ("%4%", "'%4%'"), ("%11t", "'%11t'"), ("%4", "'%4'")]
        {
            let error = Pattern::new(Path::new(text)).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn placeholders_of_srun_are_expanded_and_numbers_padded() {
        let values = PatternValues {
            nspace: "job",
            padded: "07",
            rank: "7",
            host: "node1.site.org",
            channel: "stdout",
        };
        let expand = |text: &str| Pattern::new(Path::new(text)).unwrap().expand(values);
        assert_eq!(expand("%j-%x-%t-%N"), Path::new("job-job-7-node1"));
        assert_eq!(expand("%4t %04R %3r %1r %10t"), Path::new("0007 0007 007 07 0000000007"));
        assert_eq!(expand("%5j %5N"), Path::new("job node1"), "a text is not padded");
        let of_job = PatternValues { padded: "job", rank: "job", ..values };
        assert_eq!(Pattern::new(Path::new("%5t")).unwrap().expand(of_job), Path::new("job"));
    }
}
