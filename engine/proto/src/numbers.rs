//! Tables of PMIx's numbers: their constants, names and texts.

use std::ffi::CStr;

/// A row of a table of numbers.
#[derive(Debug)]
pub struct Number {
    /// The name of the constant in Rust, such as `PMIX_BOOL`. In C, it begins with `IOF_`.
    pub name: &'static str,
    /// The value.
    pub value: i64,
    /// The comment in `iof.h`; empty for numbers that nothing in this workspace uses. `None` if
    /// `iof.h` does not declare the number.
    pub doc: Option<&'static str>,
    /// The text for programs that print the number. By default it is the name.
    pub text: &'static CStr,
}

/// Defines the constants of a type, and the table of its numbers. Those that are only `declared`
/// have a constant in C; those that are only `named` have none.
#[macro_export]
macro_rules! numbers {
    (
        $(#[$meta:meta])+ $table:ident: $type:ty;
        $($(#[doc = $doc:literal])+ $name:ident = $value:literal $(=> $text:literal)?;)+
        $(declared: $($declared:ident = $declared_value:literal),+;)?
        $(named: $($named:ident = $named_value:literal),+;)?
    ) => {
        $($(#[doc = $doc])+ pub const $name: $type = $value;)+

        $(#[$meta])+
        pub static $table: &[$crate::numbers::Number] = &[
            $($crate::numbers!(@row $name = $value, Some(concat!($($doc),+)) $(, $text)?),)+
            $($($crate::numbers!(@row $declared = $declared_value, Some("")),)+)?
            $($($crate::numbers!(@row $named = $named_value, None),)+)?
        ];
    };
    (@row $name:ident = $value:literal, $doc:expr) => {
        $crate::numbers!(@row $name = $value, $doc, stringify!($name))
    };
    (@row $name:ident = $value:literal, $doc:expr, $text:expr) => {
        $crate::numbers::Number {
            name: stringify!($name),
            value: $value,
            doc: $doc,
            text: $crate::numbers::terminated(concat!($text, "\0")),
        }
    };
}

/// Returns the text of a number, or `unknown` if the table lacks the number.
pub fn text(table: &[Number], value: impl Into<i64>, unknown: &'static CStr) -> &'static CStr {
    let value = value.into();
    table.iter().find(|row| row.value == value).map_or(unknown, |row| row.text)
}

/// Returns a text that ends with its only NUL.
#[must_use]
pub const fn terminated(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => c"",
    }
}
