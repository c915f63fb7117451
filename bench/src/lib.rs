//! What forwarding costs, measured with criterion: `cargo bench -p iof-bench`.
//!
//! The machine it runs on is never quiet enough for absolute times, so each bench runs beside what it is compared to,
//! in the same run; quote ratios.
