//! Children where the kernel does not know what leaves a shared descriptor table.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail this way")]

mod refused_table;

#[test]
fn where_a_shared_table_is_unknown_children_start_with_a_copy() {
    refused_table::check(libc::ENOSYS);
}
