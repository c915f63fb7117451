//! The cost of starting a process from one with many mappings and many open files. Both belong to
//! the whole process, so this program has one test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail this way")]

use std::fs::{self, File};
use std::io::Read;
use std::ptr;
use std::time::Duration;

use iof_capture::{ProcessSpec, check_files, raise_file_limit, spawn};
use nix::time::{ClockId, clock_gettime};

/// Mappings of an engine that keeps a job of about 1,600 ranks.
const MAPS: usize = 20_000;
/// Open files of the same engine.
const FILES: u64 = 5000;
const ROUNDS: usize = 20;

/// Returns the CPU time that `f` takes on this thread, the least of several rounds.
fn cost(mut f: impl FnMut()) -> Duration {
    let now = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let round = |_| {
        let start = now();
        f();
        now() - start
    };
    (0..ROUNDS).map(round).min().unwrap()
}

fn start() {
    let process = spawn(ProcessSpec::new("/bin/true", [""; 0])).unwrap();
    // Wait until the process has exited, so that it does not run during the next round.
    File::from(process.outputs.into_iter().next().unwrap()).read_to_end(&mut Vec::new()).unwrap();
}

/// Creates mappings that the kernel cannot merge. They stay until this process ends.
fn make_maps() {
    let page = 4096;
    // SAFETY: new memory, which is never accessed.
    let base = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(ptr::null_mut(), MAPS * page, libc::PROT_READ, flags, -1, 0)
    };
    assert_ne!(base, libc::MAP_FAILED);
    for index in (0..MAPS).step_by(2) {
        // SAFETY: the page lies in the new memory, which is never accessed.
        assert_eq!(unsafe { libc::mprotect(base.byte_add(index * page), page, libc::PROT_NONE) }, 0);
    }
}

#[test]
fn starting_a_process_costs_no_more_with_many_mappings_and_open_files() {
    raise_file_limit().unwrap();
    let bare = cost(start);
    make_maps();
    let maps = cost(start);
    assert!(maps < 3 * bare, "{bare:?} with few mappings, {maps:?} with many");

    let bare = cost(|| assert!(check_files(1).is_ok()));
    let files: Option<Vec<File>> = (0..FILES).map(|_| File::open("/dev/null").ok()).collect();
    if files.is_none() || fs::metadata("/proc/self/fd").unwrap().len() == 0 {
        eprintln!(
            "skipped: the limit on files is too low, or the kernel does not count them (before Linux 6.2)"
        );
        return;
    }
    let files = cost(|| assert!(check_files(1).is_ok()));
    assert!(files < 10 * bare, "{bare:?} to check with few files, {files:?} with many");
}
