//! Patterns for the names of per-rank files.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A file name with placeholders: `%n`, `%j` or `%x` for the job, `%r` for the rank with leading
/// zeros, `%R` or `%t` for the rank, `%h` for the host, `%N` for the host up to its first dot, `%c`
/// for the channel (`stdout` or `stderr`), `%%` for a percent sign. Digits before the letter of a
/// rank pad it with zeros: `%4t` is `0007`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Nspace,
    /// The rank with as many digits as the number of ranks of the job, and at least `width`.
    PaddedRank {
        width: usize,
    },
    /// The rank with at least `width` digits.
    Rank {
        width: usize,
    },
    Host,
    ShortHost,
    Channel,
}

/// The largest number of digits to which a placeholder pads a rank. srun's limit.
const MAX_PADDING: usize = 10;

/// The values of a pattern's placeholders.
#[derive(Clone, Copy, Debug)]
pub struct PatternValues<'a> {
    /// The name of the job.
    pub nspace: &'a str,
    /// The rank with leading zeros.
    pub padded: &'a str,
    /// The rank.
    pub rank: &'a str,
    /// The host of the rank.
    pub host: &'a str,
    /// The channel whose file it is: `stdout` or `stderr`.
    pub channel: &'a str,
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
            let piece = match (letter, width.filter(|width| *width <= MAX_PADDING)) {
                (Some(b'%'), _) if digits.is_empty() => {
                    text.push(b'%');
                    continue;
                }
                // Only numbers are padded, as by srun.
                (Some(b'n' | b'j' | b'x'), Some(_)) => Piece::Nspace,
                (Some(b'r'), Some(width)) => Piece::PaddedRank { width },
                (Some(b'R' | b't'), Some(width)) => Piece::Rank { width },
                (Some(b'h'), Some(_)) => Piece::Host,
                (Some(b'N'), Some(_)) => Piece::ShortHost,
                (Some(b'c'), Some(_)) => Piece::Channel,
                (letter, _) => {
                    let word: Vec<u8> = std::iter::once(b'%').chain(digits).chain(letter).collect();
                    return Err(PatternError(String::from_utf8_lossy(&word).into_owned()));
                }
            };
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
        self.0.contains(&Piece::Nspace)
    }

    /// Returns whether the name contains the host.
    pub(crate) fn names_host(&self) -> bool {
        self.0.iter().any(|piece| matches!(piece, Piece::Host | Piece::ShortHost))
    }

    /// Returns whether each channel of each rank has a name of its own, whatever the jobs.
    pub(crate) fn names_stream(&self) -> bool {
        let has_rank =
            self.0.iter().any(|piece| matches!(piece, Piece::PaddedRank { .. } | Piece::Rank { .. }));
        has_rank && self.names_job() && self.0.contains(&Piece::Channel)
    }

    /// Returns the name in which the placeholders are replaced by `values`.
    pub fn expand(&self, values: PatternValues<'_>) -> PathBuf {
        let mut name = Vec::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => name.extend_from_slice(text),
                Piece::Nspace => name.extend_from_slice(values.nspace.as_bytes()),
                Piece::PaddedRank { width } => name.extend(pad(values.padded, *width)),
                Piece::Rank { width } => name.extend(pad(values.rank, *width)),
                Piece::Host => name.extend(file_name(values.host)),
                Piece::ShortHost => name.extend(file_name(values.host.split('.').next().unwrap_or_default())),
                Piece::Channel => name.extend_from_slice(values.channel.as_bytes()),
            }
        }
        PathBuf::from(OsString::from_vec(name))
    }
}

/// Returns a rank with at least `width` digits. What belongs to the whole job has a word instead.
fn pad(rank: &str, width: usize) -> Vec<u8> {
    let is_number = rank.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { format!("{rank:0>width$}").into_bytes() } else { rank.into() }
}

/// Returns the name of a host as a part of a file name: it comes from a process table and may
/// contain anything.
fn file_name(host: &str) -> impl Iterator<Item = u8> {
    host.bytes().map(|byte| if byte == b'/' { b'_' } else { byte })
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
