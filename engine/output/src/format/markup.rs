//! The markup around each piece of output. A format is a variant, a row and a module below this one.

use crate::format::label::{Label, LabelSource, Tag};

mod json;
mod xml;

/// The markup around each piece of output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Markup {
    /// Plain text, with tags before it if any are requested.
    #[default]
    Text,
    /// An XML element for each piece.
    Xml,
    /// A JSON object for each piece.
    Json,
}

/// A format that marks up each piece of output.
pub(crate) struct MarkupFormat {
    /// Its word in `--output`.
    pub(crate) word: &'static str,
    /// `true` if each piece shows all that is known of its source and its time, so that tags have no
    /// effect, and missing bytes are pieces, too. Its values have the types of JSON.
    pub(crate) is_complete: bool,
    /// Returns the label of a stream. The second argument specifies whether time stamps are shown.
    pub(crate) label: fn(Tag, bool, &LabelSource) -> Label,
    /// Appends a piece, whose first byte has this offset in its stream.
    pub(crate) append: fn(&[u8], u64, &Label, &mut Vec<u8>),
    /// Appends a piece with this type and these fields in place of a text, if the format is complete.
    pub(crate) append_fields: fn((&str, &str), u64, &Label, &mut Vec<u8>),
}

const XML: MarkupFormat = MarkupFormat {
    word: "xml",
    is_complete: false,
    label: xml::label,
    append: xml::append,
    append_fields: |_, _, _, _| {},
};

const JSON: MarkupFormat = MarkupFormat {
    word: "json",
    is_complete: true,
    label: json::label,
    append: json::append,
    append_fields: json::append_fields,
};

impl Markup {
    /// All formats but plain text.
    pub(crate) const MARKED: [Markup; 2] = [Markup::Xml, Markup::Json];

    /// Returns the format with this word in `--output`.
    pub(crate) fn named(word: &str) -> Option<Markup> {
        Markup::MARKED.into_iter().find(|markup| markup.word() == Some(word))
    }

    /// Returns the words of all formats.
    pub(crate) fn words() -> impl Iterator<Item = &'static str> {
        Markup::MARKED.into_iter().filter_map(Markup::word)
    }

    /// Returns its word in `--output`; `None` for plain text.
    pub fn word(self) -> Option<&'static str> {
        self.format().map(|format| format.word)
    }

    /// Returns the format; `None` for plain text.
    pub(crate) fn format(self) -> Option<&'static MarkupFormat> {
        match self {
            Markup::Text => None,
            Markup::Xml => Some(&XML),
            Markup::Json => Some(&JSON),
        }
    }

    /// Returns whether each piece shows all that is known of its source and its time.
    pub(crate) fn is_complete(self) -> bool {
        self.format().is_some_and(|format| format.is_complete)
    }
}
