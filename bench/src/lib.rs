//! Benchmarks of iof's forwarding with criterion: `cargo bench -p iof-bench`.
//!
//! Absolute times vary between machines and runs, so each benchmark runs beside its baseline in the
//! same run. Quote ratios.
