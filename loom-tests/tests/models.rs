//! Every model holds.
#![cfg(loom)]

use iof_loom_tests::{check, models};

macro_rules! models {
    ($($name:ident)*) => {
        $(#[test] fn $name() { check(models::$name); })*
    };
}

models! {
    gated overwriting lapped unnoted released dropped copied killed killed_beside_another
    ended woken woken_for_a_group woken_for_a_gap room
    gaps moved_on reconfigured early late overtaken
}
