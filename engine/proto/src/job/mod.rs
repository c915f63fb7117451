//! Jobs as they are launched: their specification, and what their processes have.

pub(crate) mod job_spec;
pub(crate) mod nodes;
pub(crate) mod path;
pub(crate) mod process;
pub(crate) mod spawn;
#[allow(unsafe_code, reason = "no safe interface returns the size of a terminal")]
pub(crate) mod window_size;
