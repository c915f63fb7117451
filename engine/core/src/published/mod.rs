//! Values that ranks publish, and the lookups that wait for some.

pub(crate) mod requests;
pub(crate) mod table;
