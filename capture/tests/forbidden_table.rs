//! Children where the kernel forbids what leaves a shared descriptor table.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail this way")]

mod refused_table;

#[test]
fn where_a_shared_table_is_forbidden_children_start_with_a_copy() {
    refused_table::check(libc::EPERM);
}
