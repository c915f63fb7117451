//! Writers and readers that are killed at any moment, thousands of times. The counters of the
//! surviving processes always add up.
//!
//! The processes run this program again (`link`). To repeat a run, set IOF_KILL_SEED to the number
//! that it printed.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    missing_docs,
    reason = "a test may panic, and these modules are its own"
)]

mod accounting;
mod link;
mod readers;
mod writers;

use std::hash::{BuildHasher, RandomState};

use iof_shm_ring::Policy;

const CAPACITY: u64 = 32 * 1024;
const POLICIES: [Policy; 3] = [Policy::DropNewest, Policy::DropOldest, Policy::Block];

/// Returns the number that determines this run, as far as one process can.
fn seed() -> u64 {
    let seed = std::env::var("IOF_KILL_SEED")
        .map_or_else(|_| RandomState::new().hash_one(()), |seed| seed.parse().unwrap());
    println!("IOF_KILL_SEED={seed}");
    seed
}

#[test]
#[ignore = "the program of the tests' processes, not a test"]
fn process_of_the_tests() {
    match std::env::var(link::ROLE).unwrap().as_str() {
        "reader" => readers::process(),
        "writer" => writers::process(),
        role => panic!("no such role: {role}"),
    }
}

#[test]
fn killed_readers_cost_the_others_nothing() {
    let mut dice = accounting::Dice(seed());
    for _ in 0..2 {
        for policy in POLICIES {
            readers::killed(policy, 300, &mut dice);
        }
    }
}

#[test]
fn the_ring_of_a_killed_writer_is_read_to_the_end_and_adds_up() {
    let mut dice = accounting::Dice(seed());
    for kill in 0..1200 {
        writers::killed(POLICIES[kill % POLICIES.len()], &mut dice);
    }
}
