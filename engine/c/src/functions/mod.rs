//! The functions of the library by topic, and what they alone need.

pub(crate) mod argv;
pub(crate) mod forwarding;
pub(crate) mod helpers;
pub(crate) mod host;
pub(crate) mod job_output;
pub(crate) mod jobs;
pub(crate) mod local_answers;
pub(crate) mod own_stdin;
pub(crate) mod progress;
pub(crate) mod server;
pub(crate) mod servers;
pub(crate) mod spawn;
pub(crate) mod tool;
