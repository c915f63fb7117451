//! What the tests of output share.

use std::collections::BTreeSet;

use super::process::Done;
use super::site::Site;

/// The lines, in no order.
pub fn lines(text: &str) -> BTreeSet<&str> {
    text.lines().collect()
}

/// Runs a job `launcher@1` that must end well.
pub fn run(site: &Site, options: &[&str], script: &str) -> Done {
    let done = site.run_sh(&[&["--nspace", "launcher@1"], options].concat(), script).finish();
    assert_eq!(done.code, 0, "{done:?}");
    done
}
