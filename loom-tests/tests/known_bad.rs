//! The shipping code broken at one point after the other: a model must notice, so that no model is trusted that
//! checks nothing.
#![cfg(loom)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use iof_loom_tests::{check, models};
use iof_shm_ring::{Point, break_at};

/// Whether some model fails while the code is broken at `point`.
fn is_noticed(point: Point) -> bool {
    models::ALL.iter().any(|(_, model)| {
        break_at(Some(point));
        let failed = catch_unwind(AssertUnwindSafe(|| check(*model))).is_err();
        break_at(None);
        failed
    })
}

macro_rules! noticed {
    ($($name:ident: $point:ident,)*) => {
        $(#[test] fn $name() { assert!(is_noticed(Point::$point), "no model needs {:?}", Point::$point); })*
    };
}

noticed! {
    a_claim_that_is_not_fenced_is_noticed: ClaimFence,
    holds_that_are_not_looked_at_after_the_claim_are_noticed: ClaimCheck,
    a_hold_that_is_not_fenced_is_noticed: HoldFence,
    a_claim_that_is_not_looked_at_after_the_hold_is_noticed: HoldCheck,
    a_hold_that_is_not_released_when_consumed_is_noticed: HoldConsumed,
    a_hold_that_is_not_acquired_is_noticed: HoldSeen,
    a_tail_that_is_not_released_is_noticed: Tail,
    news_that_are_not_fenced_from_the_ready_bits_are_noticed: NewsFence,
    ready_bits_that_are_not_fenced_from_the_look_at_armed_are_noticed: BitsFence,
    arming_that_is_not_fenced_is_noticed: ArmFence,
    a_wish_for_room_that_is_not_fenced_is_noticed: WantedFence,
    holds_that_are_not_looked_at_after_the_wish_are_noticed: WantedCheck,
}
