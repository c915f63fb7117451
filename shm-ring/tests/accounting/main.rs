//! Every byte is accounted for: random operations on a stream, compared with a plain vector of the
//! produced bytes.
//!
//! Under Miri, which does not support shared maps, the same histories run on the heap (`.ci/miri`).
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod tiny;
mod world;

use iof_shm_ring::{Policy, Start};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm};

use crate::world::{CAPACITY, Op, World};

const STEPS: usize = if cfg!(miri) { 20 } else { 200 };

/// Returns the number of histories: under Miri few, and more on request (`.ci/miri`).
fn cases() -> u32 {
    let scale = || std::env::var("IOF_MIRI_SCALE").map_or(1, |scale| scale.parse().unwrap());
    if cfg!(miri) { 3 * scale() } else { 2000 }
}

fn op() -> impl Strategy<Value = Op> {
    let reader = 0usize..4;
    prop_oneof![
        4 => (1usize..3000).prop_map(Op::Push),
        4 => (1usize..300).prop_map(Op::Push),
        1 => (any::<bool>(), prop_oneof![Just(Start::Oldest), Just(Start::Now)], prop_oneof![Just(0), 0usize..20_000])
            .prop_map(|(may_block, start, late)| Op::Attach { may_block, start, late }),
        1 => (prop_oneof![Just(Start::Oldest), Just(Start::Now)], prop_oneof![Just(0), 0usize..20_000])
            .prop_map(|(start, late)| Op::AttachNonGating { start, late }),
        1 => reader.clone().prop_map(|reader| Op::SetNonGating { reader }),
        4 => (reader.clone(), 0usize..5000).prop_map(|(reader, consume)| Op::Read { reader, consume }),
        2 => reader.clone().prop_map(|reader| Op::Borrow { reader }),
        2 => (reader.clone(), 0usize..5000).prop_map(|(reader, len)| Op::Copy { reader, len }),
        1 => (reader.clone(), prop::option::of(1u64..6000)).prop_map(|(reader, bytes)| Op::Group { reader, bytes }),
        1 => (reader.clone(), 1usize..60).prop_map(|(reader, times)| Op::Trickle { reader, times }),
        3 => (1u64..4, policy()).prop_map(|(pages, policy)| Op::Reconfigure { pages, policy }),
        1 => reader.prop_map(|reader| Op::Detach { reader }),
    ]
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![Just(Policy::DropNewest), Just(Policy::DropOldest), Just(Policy::Block)]
}

proptest! {
    #![proptest_config(Config {
        cases: cases(),
        failure_persistence: None,
        // Without optimization, the default generator takes most of the time.
        rng_algorithm: RngAlgorithm::XorShift,
        ..Config::default()
    })]

    #[test]
    fn delivered_plus_lost_equals_produced(policy in policy(), ops in prop::collection::vec(op(), 1..STEPS)) {
        let mut world = World::new(CAPACITY, policy);
        for op in ops {
            world.apply(op);
        }
        world.finish();
    }
}
