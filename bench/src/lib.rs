//! The parts that the benchmarks of iof share: the bare loop as their baseline, writers, CPU
//! clocks, and the figures of several rounds.
//!
//! Absolute times vary between machines and runs, so each benchmark runs beside its baseline in the
//! same run. Quote ratios.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a benchmark may panic")]

pub mod bare;
pub mod cpu;
pub mod load;
pub mod table;
