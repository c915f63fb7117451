//! Output files that other programs truncate.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use common::site::Site;
use common::wait_for;

/// Runs a job that writes the output of `first` to a file, which is then truncated, and that of
/// `second`. Returns the path of the file in the site.
fn truncated(options: &[&str], first: &str, second: &str) -> (Site, PathBuf) {
    let site = Site::new();
    let path = site.path().join("log");
    let mut gate = site.gate("gate");
    let script = format!("{first}; : < {}; {second}", gate.path());
    let run = site.run_sh(&[&["-o", path.to_str().unwrap()], options].concat(), &script);
    let length = site.wait_for_stream(0, "stdout", |stream| stream.number("produced") >= 10);
    wait_for("the lines", || (fs::metadata(&path).ok()?.size() >= length.number("produced")).then_some(()));
    File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    gate.open();
    assert_eq!(run.finish().code, 0);
    (site, path)
}

#[test]
fn a_file_that_another_program_truncates_goes_on_at_its_beginning() {
    for options in [&[][..], &["--open-mode", "append"]] {
        let (_site, path) = truncated(options, "echo a line that is removed", "echo two");
        assert_eq!(fs::read(path).unwrap(), b"two\n");
    }
}

#[test]
fn a_file_that_another_program_truncates_is_not_full_before_it_has_its_size() {
    let (_site, path) = truncated(&["--file-size", "4K"], "printf '%4000d\n' 1", "seq -w 50; seq -w 50");
    assert!(!path.with_extension("1").exists());
    let mut text = String::new();
    File::open(path).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text.lines().count(), 100);
}
