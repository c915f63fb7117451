//! Options that users of mpirun, srun and mpiexec type, each with its meaning for `iof run`.
//!
//! [`translate`](translate::translate) replaces the spellings before clap reads the arguments.

mod convert;
mod reasons;
mod resources;
mod table;
pub mod translate;

use std::ffi::{OsStr, OsString};

pub use self::table::GROUPS;

/// Spellings that belong together.
pub struct Group {
    /// The heading in the documentation.
    #[cfg_attr(not(test), allow(dead_code, reason = "only for the book"))]
    pub title: &'static str,
    /// `iof pull` takes these spellings, too.
    pub in_pull: bool,
    pub spellings: &'static [Spelling],
}

/// One option of other launchers, in all of its spellings.
pub struct Spelling {
    /// The spellings. One of several letters has two dashes here; one dash is accepted, too.
    pub names: &'static [&'static str],
    pub values: Values,
    pub meaning: Meaning,
}

/// The values that follow an option.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Values {
    None,
    One,
    NameAndValue,
    /// A list of ranks if the next argument is one, otherwise this default.
    OptionalRanks(&'static str),
}

/// The meaning of a spelling for `iof run`.
#[cfg_attr(not(test), allow(dead_code, reason = "some texts are only for the book"))]
pub enum Meaning {
    /// The same as these arguments. Each `{}` stands for the next value.
    Same(&'static [&'static str]),
    /// The same as these arguments, for this program and for all further ones.
    Everywhere(&'static [&'static str]),
    /// Depends on the value: a text for the documentation, and the function that returns the
    /// arguments or the reason why the value is refused.
    Depends(&'static str, fn(&OsStr) -> Result<Vec<OsString>, String>),
    /// `iof run` does this anyway, for this reason. A value behind `=` is ignored.
    Always(&'static str),
    /// Refused, with the reason and with what to write.
    Refused(&'static str),
}

type Names = &'static [&'static str];

const fn row(names: Names, values: Values, meaning: Meaning) -> Spelling {
    Spelling { names, values, meaning }
}

const fn always(names: Names, reason: &'static str) -> Spelling {
    row(names, Values::None, Meaning::Always(reason))
}

const fn refused(names: Names, reason: &'static str) -> Spelling {
    row(names, Values::None, Meaning::Refused(reason))
}

/// Returns all spellings that `iof COMMAND` takes. Only `run` and `pull` take any.
pub fn of_command(command: &str) -> impl Iterator<Item = &'static Spelling> {
    let is_run = command == "run";
    let is_pull = command == "pull";
    let groups = GROUPS.iter().filter(move |group| is_run || (is_pull && group.in_pull));
    groups.flat_map(|group| group.spellings)
}
