//! Every model holds.
#![cfg(loom)]

use iof_loom_tests::{check, for_each_model, models};

macro_rules! tests {
    ($($name:ident)*) => {
        $(#[test] fn $name() { check(models::$name); })*
    };
}

for_each_model!(tests);
