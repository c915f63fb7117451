//! What it costs to start a process from one that has much: many maps, many files. Both belong to
//! the whole process: one test, alone in its process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail this way")]

use std::fs::{self, File};
use std::io::Read;
use std::ptr;
use std::time::Duration;

use iof_capture::{ProcessSpec, check_files, raise_file_limit, spawn};
use nix::time::{ClockId, clock_gettime};

/// Maps of a job of some 1,600 ranks that is kept.
const MAPS: usize = 20_000;
/// Files of the same.
const FILES: u64 = 5000;
const ROUNDS: usize = 20;

/// The CPU time that `what` takes this thread, the least of several rounds.
fn cost(mut what: impl FnMut()) -> Duration {
    let now = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let round = |_| {
        let began = now();
        what();
        now() - began
    };
    (0..ROUNDS).map(round).min().unwrap()
}

fn start() {
    let process = spawn(ProcessSpec::new("/bin/true", [""; 0])).unwrap();
    // It has ended, too, so that no two are compared.
    File::from(process.stdout).read_to_end(&mut Vec::new()).unwrap();
}

/// Makes maps that the kernel can't join, until the process ends.
fn make_maps() {
    let page = 4096;
    // SAFETY: fresh memory, which nobody uses.
    let base = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(ptr::null_mut(), MAPS * page, libc::PROT_READ, flags, -1, 0)
    };
    assert_ne!(base, libc::MAP_FAILED);
    for at in (0..MAPS).step_by(2) {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::mprotect(base.byte_add(at * page), page, libc::PROT_NONE) }, 0);
    }
}

#[test]
fn starting_a_process_costs_no_more_in_one_with_many_maps_and_files() {
    raise_file_limit().unwrap();
    let bare = cost(start);
    make_maps();
    let maps = cost(start);
    assert!(maps < 3 * bare, "{bare:?} with few maps, {maps:?} with many");

    let bare = cost(|| check_files(1).unwrap());
    let files: Option<Vec<File>> = (0..FILES).map(|_| File::open("/dev/null").ok()).collect();
    if files.is_none() || fs::metadata("/proc/self/fd").unwrap().len() == 0 {
        eprintln!(
            "skipped: the limit on files is too low, or the kernel does not count them (before Linux 6.2)"
        );
        return;
    }
    let files = cost(|| check_files(1).unwrap());
    assert!(files < 10 * bare, "{bare:?} to check with few files, {files:?} with many");
}
