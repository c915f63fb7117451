//! Patterns for the names of per-rank files.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A file name with placeholders: `%n` for the job, `%r` for the rank with leading zeros, `%R` for
/// the rank, `%h` for the host, `%c` for the channel (`stdout` or `stderr`), `%%` for a percent
/// sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Nspace,
    PaddedRank,
    Rank,
    Host,
    Channel,
}

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
    "unknown placeholder '{0}' in the file name: expected %n (job), %r or %R (rank), %h (host), %c (channel) or %% (a percent sign)"
)]
pub struct PatternError(String);

impl Pattern {
    /// Parses `name` as a pattern.
    ///
    /// # Errors
    /// Returns [`PatternError`] if a `%` is followed by anything other than `n`, `r`, `R`, `h`,
    /// `c` or `%`.
    pub fn new(name: &Path) -> Result<Pattern, PatternError> {
        let mut pieces = Vec::new();
        let mut text = Vec::new();
        let mut bytes = name.as_os_str().as_bytes().iter().copied();
        while let Some(byte) = bytes.next() {
            if byte != b'%' {
                text.push(byte);
                continue;
            }
            let piece = match bytes.next() {
                Some(b'%') => {
                    text.push(b'%');
                    continue;
                }
                Some(b'n') => Piece::Nspace,
                Some(b'r') => Piece::PaddedRank,
                Some(b'R') => Piece::Rank,
                Some(b'h') => Piece::Host,
                Some(b'c') => Piece::Channel,
                other => {
                    let word: Vec<u8> = std::iter::once(b'%').chain(other).collect();
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

    /// Returns whether each channel of each rank has a name of its own, whatever the jobs.
    pub(crate) fn names_stream(&self) -> bool {
        let has_rank = self.0.iter().any(|piece| matches!(piece, Piece::PaddedRank | Piece::Rank));
        has_rank && self.0.contains(&Piece::Nspace) && self.0.contains(&Piece::Channel)
    }

    /// Returns the name in which the placeholders are replaced by `values`.
    pub fn expand(&self, values: PatternValues<'_>) -> PathBuf {
        let mut name = Vec::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => name.extend_from_slice(text),
                Piece::Nspace => name.extend_from_slice(values.nspace.as_bytes()),
                Piece::PaddedRank => name.extend_from_slice(values.padded.as_bytes()),
                Piece::Rank => name.extend_from_slice(values.rank.as_bytes()),
                Piece::Channel => name.extend_from_slice(values.channel.as_bytes()),
                // The host's name comes from a process table and may contain anything.
                Piece::Host => {
                    name.extend(values.host.bytes().map(|byte| if byte == b'/' { b'_' } else { byte }))
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
        for (text, word) in [("%x", "'%x'"), ("a%", "'%'"), ("%N", "'%N'")] {
            let error = Pattern::new(Path::new(text)).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
