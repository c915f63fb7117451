//! The capture thread: its queue, its turns, the tables that it owns, and its watchdog.

pub(crate) mod capture_thread;
pub(crate) mod coalescing;
pub(crate) mod driver;
pub(crate) mod fills;
pub(crate) mod inbox;
pub(crate) mod mass_start;
pub(crate) mod remote_call;
pub(crate) mod room_bells;
pub(crate) mod sources;
pub(crate) mod streams;
pub(crate) mod targets;
pub(crate) mod wake;
pub(crate) mod watchdog;
