//! Names of processes ([`Nspace`], [`Rank`], [`Proc`]) and of channels ([`Channel`], [`Channels`]).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::limits::MAX_NSPACE;
use crate::numbers::Number;

/// The number of a process in its job, starting at 0, or one of PMIx's two special values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rank(pub u32);

impl Rank {
    /// No rank (`PMIX_RANK_UNDEF`). As the source of a logged message it means the job as a whole.
    pub const UNDEF: Rank = Rank(u32::MAX);
    /// All ranks of the nspace (`PMIX_RANK_WILDCARD`).
    pub const WILDCARD: Rank = Rank(u32::MAX - 1);
}

impl From<u32> for Rank {
    fn from(number: u32) -> Rank {
        Rank(number)
    }
}

impl fmt::Display for Rank {
    /// Writes the number, `*` for the wildcard or `-` for an undefined rank.
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
/// Engines and tools write the name into file names, tags and terminals. A value of this type
/// therefore has 1 to 255 bytes (`PMIX_MAX_NSLEN`), contains no control character, `/` or `,`, and
/// is neither `.` nor `..`. Deserialization applies the same check.
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

/// The reason why a text is not a valid [`Nspace`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NspaceError {
    /// The text is empty.
    #[error("invalid nspace name '': expected at least one character")]
    Empty,
    /// The text is longer than PMIx allows.
    #[error("invalid nspace name of {length} bytes: expected at most {MAX_NSPACE}")]
    TooLong {
        /// The length of the text, in bytes.
        length: usize,
    },
    /// The text contains a character that is unsafe in a file name or on a terminal, or a comma,
    /// which separates names in the answer to `PMIX_QUERY_NAMESPACES`.
    #[error(
        "invalid nspace name with {character:?} at byte {offset}: expected no '/', ',' or control character"
    )]
    Forbidden {
        /// The first such character.
        character: char,
        /// The offset of the character in the text, in bytes.
        offset: usize,
    },
    /// The text is `.` or `..`, which is never the name of a new file.
    #[error("invalid nspace name '{name}': expected a name other than '.' and '..'")]
    Dots {
        /// The text: `.` or `..`.
        name: String,
    },
}

impl Nspace {
    /// Checks `name` and returns it as the name of a job.
    ///
    /// # Errors
    /// [`NspaceError`] if `name` is not a valid name.
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

    /// Returns the name of a tool that has chosen none.
    #[must_use]
    pub fn of_tool(pid: u32) -> Nspace {
        Nspace(format!("iof-tool-{pid}"))
    }

    /// Returns the name by which a tool refers to an engine.
    #[must_use]
    pub fn of_engine(pid: u32) -> Nspace {
        Nspace(format!("iof-engine-{pid}"))
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
    /// The job of the process.
    pub nspace: Nspace,
    /// The number of the process in the job.
    pub rank: Rank,
}

impl Proc {
    /// Returns the process `rank` of the job `nspace`.
    pub fn new(nspace: Nspace, rank: impl Into<Rank>) -> Proc {
        Proc { nspace, rank: rank.into() }
    }

    /// Returns all processes of the job `nspace`.
    ///
    /// ```
    /// use iof_proto::{Proc, Rank};
    ///
    /// let job = Proc::all("job".parse()?);
    /// assert_eq!(job.rank, Rank::WILDCARD);
    /// # Ok::<(), iof_proto::NspaceError>(())
    /// ```
    pub fn all(nspace: Nspace) -> Proc {
        Proc { nspace, rank: Rank::WILDCARD }
    }
}

impl fmt::Display for Proc {
    /// Writes `nspace.rank`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.nspace, self.rank)
    }
}

/// Defines the channels. A row has a variant of [`Channel`] and its name, and a bit of [`Channels`] and
/// its number. The constant in C, the key and the variable of a channel are derived from these.
macro_rules! channels {
    ($($(#[doc = $doc:literal])+ $channel:ident = $name:literal, $bit:ident = $number:literal;)+) => {
        /// A channel of a process. The order is that of the numbers on an edge.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Channel {
            $($(#[doc = $doc])+ $channel,)+
        }

        bitflags::bitflags! {
            /// A set of channels (`pmix_iof_channel_t`, RFC0025).
            ///
            /// ```
            /// use iof_proto::{Channel, Channels};
            /// let channels = Channels::STDDIAG | Channels::STDOUT | Channels::STDIN;
            /// let outputs: Vec<Channel> = channels.outputs().collect();
            /// assert_eq!(outputs, [Channel::Stdout, Channel::Stddiag]);
            /// ```
            #[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
            #[serde(try_from = "u16", into = "u16")]
            pub struct Channels: u16 {
                $($(#[doc = $doc])+ const $bit = $number;)+
                /// All channels that PMIx defines or reserves, including stdin. A pull of `ALL`
                /// receives the output channels. Any other pull with stdin fails, because stdin can
                /// only be pushed.
                const ALL = 0xff;
                /// All channels that a process has.
                const KNOWN = 0 $(| $number)+;
            }
        }

        impl Channel {
            /// All channels that a process has, stdin first.
            pub const KNOWN: [Channel; [$($number),+].len()] = [$(Channel::$channel),+];

            /// Returns the name, such as `stdin`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Channel::$channel => $name),+ }
            }

            /// Returns the key of the attribute by which a launcher has the channel forwarded, such as
            /// `PMIX_FWD_STDOUT`.
            pub const fn forwarding_key(self) -> &'static str {
                match self { $(Channel::$channel => concat!("pmix.fwd.", $name)),+ }
            }

            /// Returns the environment variable in which a process has the descriptor of a channel
            /// among [`FURTHER`](Self::FURTHER), such as `IOF_STDDIAG_FD`.
            pub const fn variable(self) -> &'static str {
                match self { $(Channel::$channel => concat!("IOF_", stringify!($bit), "_FD")),+ }
            }
        }

        impl From<Channel> for Channels {
            fn from(channel: Channel) -> Channels {
                match channel { $(Channel::$channel => Channels::$bit),+ }
            }
        }

        /// The sets of channels.
        pub static CHANNELS: &[Number] = &[
            crate::numbers!(@row PMIX_FWD_NO_CHANNELS = 0, Some(" No channels.")),
            $(Number {
                name: concat!("PMIX_FWD_", stringify!($bit), "_CHANNEL"),
                ..crate::numbers!(@row $bit = $number, Some(concat!($($doc),+)))
            },)+
            crate::numbers!(@row PMIX_FWD_ALL_CHANNELS = 0xff, Some(
                " All channels, including those of future versions. In iof_IOF_pull: all output channels."
            )),
        ];
    };
}

channels! {
    /// Standard input.
    Stdin = "stdin", STDIN = 0x1;
    /// Standard output.
    Stdout = "stdout", STDOUT = 0x2;
    /// Standard error.
    Stderr = "stderr", STDERR = 0x4;
    /// Diagnostics, which a process writes to the descriptor in its environment variable
    /// IOF_STDDIAG_FD.
    Stddiag = "stddiag", STDDIAG = 0x8;
}

impl Channels {
    /// All output channels.
    pub const OUTPUTS: Channels = Channels::KNOWN.difference(Channels::STDIN);
    /// The channels that go where stderr goes.
    pub const ERRORS: Channels = Channels::OUTPUTS.difference(Channels::STDOUT);
    /// Those of [`Channel::FURTHER`].
    pub const FURTHER: Channels = Channels::ERRORS.difference(Channels::STDERR);

    /// Returns the output channels of this set, in the order of [`Channel::OUTPUTS`].
    pub fn outputs(self) -> impl Iterator<Item = Channel> {
        Channel::OUTPUTS.into_iter().filter(move |channel| self.contains((*channel).into()))
    }
}

/// The error for a channel mask with bits that PMIx does not reserve for channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid channel mask {0:#06x}: expected bits within 0x00ff: {known}",
    known = Channel::KNOWN.map(|channel| format!("{channel} {}", Channels::from(channel).bits())).join(", "))]
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

impl Channel {
    /// The output channels: those whose streams each rank has.
    pub const OUTPUTS: [Channel; Channel::KNOWN.len() - 1] = {
        let [_, outputs @ ..] = Channel::KNOWN;
        outputs
    };
    /// The output channels besides stdout and stderr. A process has the number of the descriptor of
    /// each one in its [`variable`](Self::variable). Programs that redirect the output of their
    /// children do not know of these channels, so their end is not waited for once a rank has exited.
    pub const FURTHER: [Channel; Channel::OUTPUTS.len() - 2] = {
        let [_, _, further @ ..] = Channel::OUTPUTS;
        further
    };
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Returns whether a terminal would obey `character` or show nothing for it: it is a control
/// character, a separator of lines, or one that Unicode lets programs ignore
/// (`Default_Ignorable_Code_Point`). These include the characters that reverse the order of text, so
/// that a name with one of them looks like another name.
pub fn is_invisible(character: char) -> bool {
    let is_ignorable = matches!(character,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}');
    is_ignorable || character.is_control()
}

/// Returns `text` with each [invisible character](is_invisible) replaced by `?`. An untrusted text,
/// such as the name of a tool or the reply of a server, can then neither send commands to a terminal
/// nor look like another one.
///
/// ```
/// assert_eq!(iof_proto::names::sanitize("tool\x1b[2J\n"), "tool?[2J?");
/// assert_eq!(iof_proto::names::sanitize("\u{202e}boj"), "?boj");
/// ```
pub fn sanitize(text: &str) -> String {
    text.chars().map(|character| if is_invisible(character) { '?' } else { character }).collect()
}

/// Returns `text` with each [invisible character](is_invisible) escaped, for example as `\n` or
/// `\u{202e}`.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if is_invisible(character) {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserialize<T: serde::de::DeserializeOwned>(raw: &impl Serialize) -> postcard::Result<T> {
        postcard::from_bytes(&postcard::to_stdvec(raw)?)
    }

    #[test]
    fn hostile_nspaces_are_refused_by_constructor_and_deserializer() {
        let long = "x".repeat(256);
        for name in ["", ".", "..", "a/b", "/", "a\0b", "a\nb", "\u{1b}[2J", "a\u{9b}b", long.as_str()] {
            assert!(Nspace::new(name).is_err(), "{name:?}");
            assert!(reserialize::<Nspace>(&name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn characters_that_could_make_a_name_look_like_another_are_not_shown() {
        for hidden in
            ["\u{202e}", "\u{2066}", "\u{200b}", "\u{200f}", "\u{feff}", "\u{ad}", "\u{2028}", "\u{e0041}"]
        {
            let (code, name) = (u32::from(hidden.chars().next().unwrap()), format!("job{hidden}1"));
            assert_eq!((sanitize(&name), escape(&name)), ("job?1".into(), format!("job\\u{{{code:x}}}1")));
        }
        for shown in ["träger e\u{301}", "名前", "שם", "a b~"] {
            assert_eq!((sanitize(shown), escape(shown)), (shown.into(), shown.into()));
        }
    }

    #[test]
    fn usual_nspaces_survive_serialization() {
        let long = "x".repeat(255);
        for name in ["prterun-node1-1234@1", "...", "träger", long.as_str()] {
            let nspace = Nspace::new(name).unwrap();
            assert_eq!(reserialize::<Nspace>(&nspace).unwrap(), nspace);
        }
    }

    #[test]
    fn each_channel_has_an_attribute_by_which_it_is_forwarded() {
        for channel in Channel::KNOWN {
            let attribute = crate::attribute::all().find(|row| row.key == channel.forwarding_key()).unwrap();
            assert_eq!(attribute.name, format!("PMIX_FWD_{}", channel.as_str().to_uppercase()));
        }
        assert!(Channel::FURTHER.contains(&Channel::Stddiag));
        assert_eq!(Channel::Stddiag.variable(), "IOF_STDDIAG_FD");
    }

    #[test]
    fn channels_and_special_ranks_have_the_numbers_of_the_specifications() {
        let channels =
            [Channels::STDIN, Channels::STDOUT, Channels::STDERR, Channels::STDDIAG, Channels::ALL];
        assert_eq!(channels.map(|channels| channels.bits()), [0x0001_u16, 0x0002, 0x0004, 0x0008, 0x00ff]);
        assert_eq!(Channels::empty().bits(), 0);
        assert_eq!((Rank::WILDCARD, Rank::UNDEF), (Rank(u32::MAX - 1), Rank(u32::MAX)));
    }

    #[test]
    fn unknown_channel_bits_are_refused_by_the_deserializer() {
        assert_eq!(reserialize::<Channels>(&0xff_u16).unwrap(), Channels::ALL);
        assert!(reserialize::<Channels>(&0x100_u16).is_err());
        assert!(reserialize::<Channels>(&0xffff_u16).is_err());
    }

    #[test]
    fn procs_and_channels_are_displayed_as_users_write_them() {
        let mut source = Proc::new(Nspace::new("job").unwrap(), Rank(3));
        assert_eq!(source.to_string(), "job.3");
        source.rank = Rank::WILDCARD;
        assert_eq!(source.to_string(), "job.*");
        let channels = [Channel::Stdin, Channel::Stdout, Channel::Stderr, Channel::Stddiag];
        assert_eq!(channels.map(|channel| channel.to_string()), ["stdin", "stdout", "stderr", "stddiag"]);
    }
}
