//! Helpers of the tests of output.

use std::collections::BTreeSet;

use super::process::Done;
use super::site::Site;

/// Returns the lines as a set.
pub fn lines(text: &str) -> BTreeSet<&str> {
    text.lines().collect()
}

/// Runs a job `launcher@1`, which must end with exit code 0.
pub fn run(site: &Site, options: &[&str], script: &str) -> Done {
    let done = site.run_sh(&[&["--nspace", "launcher@1"], options].concat(), script).finish();
    assert_eq!(done.code, 0, "{done:?}");
    done
}
