//! Short runs of the simulator, and the seeds that have found defects.
#![allow(clippy::panic, reason = "a test may panic")]

use iof_sim::{Summary, run};

/// Runs a seed. Panics if a check fails.
fn pass(seed: u64, steps: usize) -> (Summary, u64) {
    run(seed, steps).unwrap_or_else(|failure| panic!("{failure}"))
}

#[test]
fn random_runs_with_faults_pass_all_checks() {
    let mut sum = Summary::default();
    (0..60).for_each(|seed| sum += pass(seed, 1000).0);
    // Otherwise the runs would check nothing.
    let Summary { delivered, lost, follows, ends } = sum;
    assert!(delivered > 100_000 && lost > 100_000 && follows > 20 && ends > 50, "{sum:?}");
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 100..105 {
        assert_eq!(pass(seed, 500), pass(seed, 500));
    }
}

/// Each seed with the number of its steps, and the defect that it has found.
const FOUND: &[(u64, usize, &str)] =
    &[(3, 2000, "a delivery told times of bytes that it did not contain, while its registration ended")];

#[test]
fn the_seeds_that_found_defects_pass() {
    for (seed, steps, defect) in FOUND {
        assert!(run(*seed, *steps).is_ok(), "{defect}");
    }
}
