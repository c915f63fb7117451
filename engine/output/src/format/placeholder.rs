//! The placeholders of file names and labels.

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

/// A part of a file name or label that its stream determines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placeholder {
    Nspace,
    /// The rank with as many digits as the number of ranks of the job.
    PaddedRank,
    Rank,
    Host,
    /// The host up to its first dot.
    ShortHost,
    Channel,
}

/// Each placeholder with its letters in file names, and its name in labels.
const PLACEHOLDERS: [(Placeholder, &str, &str); 6] = [
    (Placeholder::Nspace, "njx", "nspace"),
    (Placeholder::PaddedRank, "r", ""),
    (Placeholder::Rank, "Rt", "rank"),
    (Placeholder::Host, "h", "host"),
    (Placeholder::ShortHost, "N", ""),
    (Placeholder::Channel, "c", "channel"),
];

/// The largest number of digits to which a placeholder pads a rank. srun's limit.
pub(crate) const MAX_PADDING: usize = 10;

impl Placeholder {
    pub(crate) fn by_letter(letter: u8) -> Option<Placeholder> {
        PLACEHOLDERS
            .iter()
            .find(|(_, letters, _)| letters.as_bytes().contains(&letter))
            .map(|(found, ..)| *found)
    }

    pub(crate) fn by_name(name: &str) -> Option<Placeholder> {
        let mut named = PLACEHOLDERS.iter().filter(|(.., known)| !known.is_empty());
        named.find(|(.., known)| *known == name).map(|(found, ..)| *found)
    }

    pub(crate) fn is_rank(self) -> bool {
        matches!(self, Placeholder::PaddedRank | Placeholder::Rank)
    }

    /// Returns the text in place of it. Ranks have at least `width` digits. What belongs to the whole
    /// job has a word instead.
    pub(crate) fn expand(self, values: &PatternValues<'_>, width: usize) -> String {
        let value = match self {
            Placeholder::Nspace => values.nspace,
            Placeholder::PaddedRank => values.padded,
            Placeholder::Rank => values.rank,
            Placeholder::Host => values.host,
            Placeholder::ShortHost => values.host.split('.').next().unwrap_or_default(),
            Placeholder::Channel => values.channel,
        };
        let is_number = self.is_rank() && value.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { format!("{value:0>width$}") } else { value.to_owned() }
    }
}
