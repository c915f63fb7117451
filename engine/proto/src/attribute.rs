//! The table of attributes: each key with its type, the places where it is honoured and its
//! meaning.
//!
//! To add an attribute, add a row to the table of its topic. Everything else that is known of
//! attributes comes from the table:
//!
//! * the constants of their keys, such as [`directive::key`](crate::directive::key);
//! * the rules of the functions that read lists of [`Info`], see [`read`];
//! * the answer to [`ATTRIBUTE_SUPPORT`](crate::requests::query::key::PMIX_QUERY_ATTRIBUTE_SUPPORT);
//! * the page of the book that lists them;
//! * the constants of their keys in `iof.h`, with the second paragraph of a row as the comment;
//! * the tests that each place honours exactly its rows, see [`mismatches`], and that the page on
//!   conformance has a row for each attribute of PMIx.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;

use self::data_type::*;
use crate::info::{Info, InfoValue};
use crate::names::{Nspace, Proc, Rank};

/// Defines the constant of each attribute, and the table of a topic. A row has the form
/// `NAME = "key": Type or Type from 1 to 7, at Place Place;`, with a comment of two paragraphs: the
/// meaning, and the comment in `iof.h`, which begins with functions of C and the type in C.
macro_rules! attributes {
    ($(
        $(#[doc = $text:literal])+
        $name:ident = $key:literal: $type:ident $(or $other:ident)* $(from $min:literal to $max:literal)?,
            at $($place:ident)+;
    )+) => {
        $(
            $(#[doc = $text])+
            #[doc = concat!("\n\nType: [`", stringify!($type), "`](crate::attribute::ValueType::", stringify!($type), ")")]
            $(#[doc = concat!("or [`", stringify!($other), "`](crate::attribute::ValueType::", stringify!($other), ")")])*
            $(#[doc = concat!("from ", $min, " to ", $max)])?
            pub const $name: &str = $key;
        )+

        pub(crate) static TABLE: &[$crate::attribute::Attribute] = &[$($crate::attribute::Attribute {
            name: stringify!($name),
            key: $key,
            types: &[
                $crate::attribute::ValueType::$type
                $(, $crate::attribute::ValueType::$other)*
            ],
            range: attributes!(@range $($min, $max)?),
            places: &[$($crate::attribute::Place::$place),+],
            doc: concat!($($text, "\n"),+),
        }),+];
    };
    (@range) => { 0..=u64::MAX };
    (@range $min:literal, $max:literal) => { $min..=$max };
}

/// Defines an enum whose variants have texts, which [`Display`](fmt::Display) shows.
macro_rules! with_texts {
    ($(#[$meta:meta])+ $name:ident { $($(#[$doc:meta])+ $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])+ $variant,)+
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self {
                    $($name::$variant => $text,)+
                })
            }
        }
    };
}

pub mod data_type;
pub mod formats;
pub(crate) mod forwarding;
pub mod library;
pub(crate) mod logs;
pub(crate) mod pmix_spawns;
pub(crate) mod queries;
mod read;

pub use read::{AttributeError, Given, read, unknown};

/// The keys of all attributes.
pub mod key {
    pub use super::{formats::*, forwarding::*, library::*, logs::*, pmix_spawns::*, queries::*};
}

/// The tables, by topic.
pub static TOPICS: [Topic; 6] = [
    Topic { heading: "I/O forwarding (RFC0025)", attributes: forwarding::TABLE },
    Topic { heading: "Jobs that clients of libpmix spawn", attributes: pmix_spawns::TABLE },
    Topic { heading: "Queries (RFC0001, RFC0010)", attributes: queries::TABLE },
    Topic { heading: "Logs (RFC0032)", attributes: logs::TABLE },
    Topic { heading: "Output that the C library writes", attributes: formats::TABLE },
    Topic { heading: "C library", attributes: library::TABLE },
];

/// The table of one topic.
#[derive(Debug)]
pub struct Topic {
    /// The heading of the table.
    pub heading: &'static str,
    /// The rows of the table.
    pub attributes: &'static [Attribute],
}

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Attribute {
    /// The name of the constant, such as `PMIX_IOF_CACHE_SIZE`. It begins with `PMIX_` if PMIx
    /// defines the attribute, and otherwise with `IOF_`.
    pub name: &'static str,
    /// The key, such as `pmix.iof.csize`.
    pub key: &'static str,
    /// The types that a value may have, at least one.
    pub types: &'static [ValueType],
    /// The range of a value that is a number.
    pub range: RangeInclusive<u64>,
    /// The places where the attribute is honoured or, for the last ones, where it is given.
    pub places: &'static [Place],
    /// The comment of the row, see [`Attribute::text`] and [`Attribute::c_text`].
    pub doc: &'static str,
}

impl Attribute {
    /// Returns the meaning of the attribute, as one line of text.
    pub fn text(&self) -> String {
        self.paragraph(0)
    }

    /// Returns the comment of the attribute in `iof.h`, as one line of text.
    pub fn c_text(&self) -> String {
        self.paragraph(1)
    }

    fn paragraph(&self, index: usize) -> String {
        let words = self.doc.split("\n\n").nth(index).unwrap_or_default().split_whitespace();
        words.collect::<Vec<_>>().join(" ")
    }

    /// Returns whether `value` has one of the types of the attribute and is in its range.
    pub fn accepts(&self, value: &InfoValue) -> bool {
        let has_type = self.types.contains(&ValueType::of(value));
        has_type && !matches!(value, InfoValue::Number(number) if !self.range.contains(number))
    }

    /// Returns the first type of the values in C; [`PMIX_UNDEF`] if the host chooses it.
    pub fn data_type(&self) -> u16 {
        match self.types.first() {
            Some(ValueType::Bool) => PMIX_BOOL,
            Some(ValueType::Number) if *self.range.end() <= u32::MAX.into() => PMIX_UINT32,
            Some(ValueType::Number) => PMIX_UINT64,
            Some(ValueType::Text | ValueType::Names) => PMIX_STRING,
            Some(ValueType::Process) => PMIX_PROC,
            Some(ValueType::Status) => PMIX_STATUS,
            Some(ValueType::Channel) => PMIX_IOF_CHANNEL,
            Some(ValueType::Any) | None => PMIX_UNDEF,
            // Lists, and the fields of an email.
            Some(_) => PMIX_DATA_ARRAY,
        }
    }

    /// Returns the values that the attribute may have, such as "number from 0 to 7".
    pub fn values(&self) -> String {
        let types: Vec<String> = self.types.iter().map(ToString::to_string).collect();
        let range = match (self.range.start(), self.range.end()) {
            (0, &u64::MAX) => String::new(),
            (start, end) => format!(" from {start} to {end}"),
        };
        format!("{}{range}", types.join(" or "))
    }
}

with_texts! {
    /// The type of an attribute's value. An [`Info`] can have a value of one of the first
    /// four types.
    ValueType {
        /// A boolean.
        Bool = "bool",
        /// A number, see [`Attribute::range`].
        Number = "number",
        /// A text.
        Text = "text",
        /// A process.
        Process = "process",
        /// Names in a text, separated by commas.
        Names = "list of names",
        /// The fields of an email.
        Email = "fields of an email",
        /// A status.
        Status = "status",
        /// One channel of a process, as a bit mask.
        Channel = "channel",
        /// A process table: [`Value::Procs`](crate::Value::Procs).
        Processes = "list of processes",
        /// A list of jobs: [`Value::Jobs`](crate::Value::Jobs).
        Jobs = "list of jobs",
        /// A list of streams: [`Value::Streams`](crate::Value::Streams).
        Streams = "list of streams",
        /// The attributes of each function: [`Value::Attributes`](crate::Value::Attributes).
        Attributes = "list of attributes",
        /// A type that the host chooses.
        Any = "any",
    }
}

impl ValueType {
    fn of(value: &InfoValue) -> ValueType {
        match value {
            InfoValue::Bool(_) => ValueType::Bool,
            InfoValue::Number(_) => ValueType::Number,
            InfoValue::Text(_) => ValueType::Text,
            InfoValue::Proc(_) => ValueType::Process,
        }
    }
}

with_texts! {
    /// A place where attributes are honoured or given.
    Place {
        /// The start of an engine.
        Server = "server",
        /// The start or adoption of a job.
        Spawn = "spawn",
        /// A registration of a tool.
        Pull = "pull",
        /// A push of stdin.
        Push = "push",
        /// A delivery of output from another node.
        Deliver = "deliver",
        /// A key of a query.
        Query = "query",
        /// A qualifier of a query.
        Qualifier = "qualifier",
        /// A channel of a log request, which has the message as its value.
        LogChannel = "log channel",
        /// A directive of a log request.
        LogDirective = "log directive",
        /// A field of an email.
        Email = "email",
        /// `iof_tool_init` of the C library.
        ToolInit = "iof_tool_init",
        /// `iof_server_init` of the C library, which honours the attributes of [`Place::Server`] as
        /// well.
        ServerInit = "iof_server_init",
        /// `iof_server_spawn` of the C library, which honours the attributes of [`Place::Spawn`] as
        /// well.
        ServerSpawn = "iof_server_spawn",
        /// `iof_Spawn` of the C library, which honours the attributes of [`Place::Spawn`] as well.
        ToolSpawn = "iof_Spawn",
        /// `PMIx_Spawn` of libpmix, by a tool or a rank, which honours the attributes of [`Place::Spawn`]
        /// as well.
        PmixSpawn = "PMIx_Spawn",
        /// A program of `iof_server_spawn` or `iof_Spawn` of the C library.
        Program = "iof_app_t",
        /// `iof_server_adopt` of the C library, which honours the attributes of [`Place::Spawn`] as
        /// well.
        ServerAdopt = "iof_server_adopt",
        /// `iof_IOF_pull` of the C library, which honours the attributes of [`Place::Pull`] as well.
        LibraryPull = "iof_IOF_pull",
        /// A key of a query that the C library answers itself.
        LibraryQuery = "iof_Query_info",
        /// Given in C: to a callback of the launcher.
        Callback = "callback",
        /// Given in C: with output.
        Output = "output",
        /// Given in C: a field of an answer to a query.
        Answer = "answer",
        /// Given in C: with an event.
        Event = "event",
    }
}

/// Returns all attributes.
pub fn all() -> impl Iterator<Item = &'static Attribute> {
    TOPICS.iter().flat_map(|topic| topic.attributes)
}

/// Returns the attribute with this key, or `None` if it is unknown.
pub fn find(key: &str) -> Option<&'static Attribute> {
    all().find(|attribute| attribute.key == key)
}

/// Returns the attributes of a place.
pub fn at(place: Place) -> impl Iterator<Item = &'static Attribute> {
    all().filter(move |attribute| attribute.places.contains(&place))
}

/// Returns the infos on which a reader and the table disagree, for the tests of the reader.
/// `accepts` returns whether the reader accepts a list of one required info. It is called for each
/// attribute, with values of all types and numbers at the limits of the range, and should accept
/// exactly those that the table accepts at one of `places`.
pub fn mismatches(places: &[Place], mut accepts: impl FnMut(&Info) -> bool) -> Vec<Info> {
    let mut mismatches = Vec::new();
    for attribute in all() {
        let is_honoured = attribute.places.iter().any(|place| places.contains(place));
        for value in samples(&attribute.range) {
            let expected = is_honoured && attribute.accepts(&value);
            let info = Info { key: attribute.key.to_owned(), value, required: true };
            if accepts(&info) != expected {
                mismatches.push(info);
            }
        }
    }
    mismatches
}

/// Returns values of all types. The text is valid as a name and as an address.
fn samples(range: &RangeInclusive<u64>) -> Vec<InfoValue> {
    let (start, end) = (*range.start(), *range.end());
    let numbers = BTreeSet::from([start.saturating_sub(1), start, end, end.saturating_add(1)]);
    let mut samples: Vec<InfoValue> = numbers.into_iter().map(InfoValue::Number).collect();
    samples.extend([true.into(), false.into(), "name@example.org".into()]);
    samples.extend(Nspace::new("job").map(|nspace| InfoValue::Proc(Proc::new(nspace, Rank(0)))));
    samples
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directive::key::PMIX_IOF_REDIRECT;
    use crate::directive::{DirectiveLevel, Directives};
    use crate::requests::push::PushDirectives;

    #[test]
    fn names_and_keys_are_unique_and_begin_as_their_owner_requires() {
        let mut seen = BTreeSet::new();
        for attribute in all() {
            assert!(seen.insert(attribute.name) && seen.insert(attribute.key), "{}", attribute.name);
            let ours = (attribute.name.starts_with("IOF_"), attribute.key.starts_with("iof."));
            let pmix = (attribute.name.starts_with("PMIX_"), attribute.key.starts_with("pmix."));
            assert!(ours == (true, true) || pmix == (true, true), "{} {}", attribute.name, attribute.key);
        }
    }

    #[test]
    fn the_readers_of_directives_honour_exactly_what_the_table_says() {
        for level in [DirectiveLevel::Server, DirectiveLevel::Spawn, DirectiveLevel::Registration] {
            let accepts = |info: &Info| Directives::read(std::slice::from_ref(info), level).is_ok();
            let redirects = Info::required(PMIX_IOF_REDIRECT, true);
            let refused = if level == DirectiveLevel::Registration { vec![redirects] } else { Vec::new() };
            assert_eq!(mismatches(&[level.place()], accepts), refused);
        }
        let accepts = |info: &Info| PushDirectives::read(std::slice::from_ref(info)).is_ok();
        assert_eq!(mismatches(&[Place::Push], accepts), []);
    }

    #[test]
    fn every_text_is_a_sentence_and_only_numbers_have_a_range() {
        for attribute in all() {
            let text = attribute.text();
            assert!(text.ends_with('.') && !text.contains('|'), "{text}");
            let limited = attribute.range != (0..=u64::MAX);
            assert!(!limited || attribute.types.contains(&ValueType::Number), "{}", attribute.name);
        }
    }
}
