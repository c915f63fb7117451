//! Names of processes ([`Nspace`], [`Rank`], [`Proc`]) and of channels ([`Channel`], [`Channels`]).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::limits::MAX_NSPACE;

/// The number of a process within its nspace, or one of PMIx's two special values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rank(pub u32);

impl Rank {
    /// No rank (`PMIX_RANK_UNDEF`).
    pub const UNDEF: Rank = Rank(u32::MAX);
    /// Every rank of the nspace (`PMIX_RANK_WILDCARD`).
    pub const WILDCARD: Rank = Rank(u32::MAX - 1);
}

impl fmt::Display for Rank {
    /// Formats the number, `*` for the wildcard, `-` for no rank.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Rank::WILDCARD => f.write_str("*"),
            Rank::UNDEF => f.write_str("-"),
            Rank(number) => number.fmt(f),
        }
    }
}

/// The name of a job.
///
/// Engines and tools write it into file names, tags and terminals. A value of this type is
/// therefore always 1 to 255 bytes long (`PMIX_MAX_NSLEN`), contains no control character and no
/// `/`, and is neither `.` nor `..`. A name that arrives over the wire passes the same check.
///
/// ```
/// use iof_proto::Nspace;
/// assert_eq!(Nspace::new("job-17")?.as_str(), "job-17");
/// assert!(Nspace::new("../../etc").is_err());
/// # Ok::<(), iof_proto::NspaceError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Nspace(String);

/// The reason why a text can't be the name of an nspace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NspaceError {
    /// It is the empty string.
    #[error("the name of an nspace is empty: give it at least one character")]
    Empty,
    /// It is longer than PMIx allows.
    #[error("the name of an nspace has {length} bytes: shorten it to {MAX_NSPACE} at most")]
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// It contains a character that would be unsafe in a file name or on a terminal, or the comma,
    /// which separates names in the answer to `PMIX_QUERY_NAMESPACES`.
    #[error(
        "the name of an nspace holds {character:?} at byte {offset}: leave out '/', ',' and control characters"
    )]
    Forbidden {
        /// The first such character.
        character: char,
        /// Where it is, in bytes from the start.
        offset: usize,
    },
    /// It names a directory.
    #[error("the name of an nspace is {name:?}, which every directory has already: choose another")]
    Dots {
        /// `.` or `..`.
        name: String,
    },
}

impl Nspace {
    /// Returns the name, if `text` is a valid one.
    ///
    /// # Errors
    /// [`NspaceError`] names the rule that the text breaks, and where.
    pub fn new(name: impl Into<String>) -> Result<Nspace, NspaceError> {
        let name = name.into();
        if name.is_empty() {
            return Err(NspaceError::Empty);
        }
        if name.len() > MAX_NSPACE {
            return Err(NspaceError::TooLong { length: name.len() });
        }
        if let Some((offset, character)) =
            name.char_indices().find(|(_, c)| matches!(c, '/' | ',') || c.is_control())
        {
            return Err(NspaceError::Forbidden { character, offset });
        }
        if name == "." || name == ".." {
            return Err(NspaceError::Dots { name });
        }
        Ok(Nspace(name))
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Nspace {
    type Error = NspaceError;

    fn try_from(name: String) -> Result<Nspace, NspaceError> {
        Nspace::new(name)
    }
}

impl FromStr for Nspace {
    type Err = NspaceError;

    fn from_str(name: &str) -> Result<Nspace, NspaceError> {
        Nspace::new(name)
    }
}

impl fmt::Display for Nspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A process, or with [`Rank::WILDCARD`] all processes of a job (`pmix_proc_t`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Proc {
    /// Its job.
    pub nspace: Nspace,
    /// Its number in the job.
    pub rank: Rank,
}

impl fmt::Display for Proc {
    /// `nspace.rank`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.nspace, self.rank)
    }
}

bitflags::bitflags! {
    /// A set of channels (`pmix_iof_channel_t`, RFC0025).
    ///
    /// ```
    /// use iof_proto::{Channel, Channels};
    /// let outputs: Vec<Channel> = Channels::ALL.outputs().collect();
    /// assert_eq!(outputs, [Channel::Stdout, Channel::Stderr, Channel::Stddiag]);
    /// ```
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(try_from = "u16", into = "u16")]
    pub struct Channels: u16 {
        /// What the process reads.
        const STDIN = 0x01;
        /// Its ordinary output.
        const STDOUT = 0x02;
        /// Its errors.
        const STDERR = 0x04;
        /// Its diagnostics, where the launcher gives it a descriptor for them.
        const STDDIAG = 0x08;
        /// Every channel that PMIx has or reserves.
        const ALL = 0xff;
    }
}

impl Channels {
    /// Returns the output channels of this set in the order stdout, stderr, stddiag.
    pub fn outputs(self) -> impl Iterator<Item = Channel> {
        [Channel::Stdout, Channel::Stderr, Channel::Stddiag]
            .into_iter()
            .filter(move |channel| self.contains((*channel).into()))
    }
}

/// A channel mask with bits that stand for no channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the channel mask {0:#06x} has bits outside 0x00ff: use the sum of stdin 1, stdout 2, stderr 4, stddiag 8"
)]
pub struct UnknownChannels(pub u16);

impl TryFrom<u16> for Channels {
    type Error = UnknownChannels;

    fn try_from(bits: u16) -> Result<Channels, UnknownChannels> {
        Channels::from_bits(bits).ok_or(UnknownChannels(bits))
    }
}

impl From<Channels> for u16 {
    fn from(channels: Channels) -> u16 {
        channels.bits()
    }
}

/// One channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Channel {
    /// What the process reads.
    Stdin,
    /// Its ordinary output.
    Stdout,
    /// Its errors.
    Stderr,
    /// Its diagnostics.
    Stddiag,
}

impl Channel {
    /// `stdin`, `stdout`, `stderr` or `stddiag`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Channel::Stdin => "stdin",
            Channel::Stdout => "stdout",
            Channel::Stderr => "stderr",
            Channel::Stddiag => "stddiag",
        }
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A word that does not name a channel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a channel: write stdin, stdout, stderr or stddiag")]
pub struct UnknownChannel(pub String);

impl FromStr for Channel {
    type Err = UnknownChannel;

    fn from_str(word: &str) -> Result<Channel, UnknownChannel> {
        [Channel::Stdin, Channel::Stdout, Channel::Stderr, Channel::Stddiag]
            .into_iter()
            .find(|channel| channel.as_str() == word)
            .ok_or_else(|| UnknownChannel(word.to_owned()))
    }
}

impl From<Channel> for Channels {
    fn from(channel: Channel) -> Channels {
        match channel {
            Channel::Stdin => Channels::STDIN,
            Channel::Stdout => Channels::STDOUT,
            Channel::Stderr => Channels::STDERR,
            Channel::Stddiag => Channels::STDDIAG,
        }
    }
}

/// Returns a text from outside (a tool's name, a program's, a server's reply) without the
/// characters that a terminal would take for commands.
///
/// ```
/// assert_eq!(iof_proto::names::sanitize("tool\x1b[2J\n"), "tool?[2J?");
/// ```
pub fn sanitize(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over_the_wire<T: serde::de::DeserializeOwned>(raw: &impl Serialize) -> postcard::Result<T> {
        postcard::from_bytes(&postcard::to_stdvec(raw)?)
    }

    #[test]
    fn hostile_nspaces_are_refused_by_hand_and_over_the_wire() {
        let long = "x".repeat(256);
        for name in ["", ".", "..", "a/b", "/", "a\0b", "a\nb", "\u{1b}[2J", "a\u{9b}b", long.as_str()] {
            assert!(Nspace::new(name).is_err(), "{name:?}");
            assert!(over_the_wire::<Nspace>(&name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn usual_nspaces_survive_the_wire() {
        let long = "x".repeat(255);
        for name in ["prterun-node1-1234@1", "...", "träger", long.as_str()] {
            let nspace = Nspace::new(name).unwrap();
            assert_eq!(over_the_wire::<Nspace>(&nspace).unwrap(), nspace);
        }
    }

    #[test]
    fn unknown_channel_bits_are_refused_over_the_wire() {
        assert_eq!(over_the_wire::<Channels>(&0xff_u16).unwrap(), Channels::ALL);
        assert!(over_the_wire::<Channels>(&0x100_u16).is_err());
        assert!(over_the_wire::<Channels>(&0xffff_u16).is_err());
    }

    #[test]
    fn procs_and_channels_print_as_users_know_them() {
        let mut source = Proc { nspace: Nspace::new("job").unwrap(), rank: Rank(3) };
        assert_eq!(source.to_string(), "job.3");
        source.rank = Rank::WILDCARD;
        assert_eq!(source.to_string(), "job.*");
        for channel in (Channels::ALL).outputs().chain([Channel::Stdin]) {
            assert_eq!(channel.to_string().parse::<Channel>().unwrap(), channel);
        }
        assert!("STDOUT".parse::<Channel>().is_err());
    }
}
