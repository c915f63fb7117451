//! Checks that every model passes.
#![cfg(loom)]

use iof_loom_tests::{check_named, for_each_model, models};

macro_rules! tests {
    ($($name:ident)*) => {
        $(#[test] fn $name() { check_named(stringify!($name), models::$name); })*
    };
}

for_each_model!(tests);
