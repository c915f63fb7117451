//! The border to C: its structures, values, texts and callbacks, and the guard of entry points.

pub(crate) mod callbacks;
pub(crate) mod constants;
pub(crate) mod guard;
pub(crate) mod make;
pub(crate) mod memory;
pub(crate) mod owned;
pub(crate) mod pretty;
pub(crate) mod read;
pub(crate) mod strings;
pub(crate) mod types;
pub(crate) mod value;
