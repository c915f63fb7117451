//! The commands that are small, most of them tools of a running engine.

pub(crate) mod attach;
pub(crate) mod gateway;
pub(crate) mod inspect;
mod job_watch;
pub(crate) mod kill;
pub(crate) mod log;
mod prometheus;
pub(crate) mod ps;
pub(crate) mod pull;
pub(crate) mod pull_args;
mod pull_several;
mod pull_streams;
pub(crate) mod push;
pub(crate) mod query;
pub(crate) mod resume;
pub(crate) mod serve;
mod stopped_engine;
