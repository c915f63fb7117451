//! The core is pure: its state, and all that changes it, does no I/O, and takes only data from the
//! crate of the capture thread.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the source files below `directory`, those of tests excluded.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let files = |path: PathBuf| if path.is_dir() { sources(&path) } else { vec![path] };
    let of_tests = |path: &PathBuf| path.ends_with("tests.rs") || path.ends_with("tests");
    entries.filter(|path| !of_tests(path)).flat_map(files).collect()
}

/// Returns the code of a source file, without comments and tests.
fn code(path: &Path) -> String {
    let source = fs::read_to_string(path).unwrap();
    let code = source.lines().take_while(|line| *line != "#[cfg(test)]");
    code.filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Things that the core must not contain: threads, sockets, files, locks, clocks, rings, lines of the log,
/// and tables whose order differs between runs.
const IMPURE: &[&str] = &[
    "std::fs",
    "std::io::",
    "std::net",
    "std::os::fd",
    "std::os::unix::net",
    "std::process::Command",
    "std::thread",
    "std::sync::mpsc",
    "Mutex",
    "RwLock",
    "Condvar",
    "Atomic",
    "crossbeam",
    "libc",
    "Instant::now",
    ".elapsed()",
    "SystemTime::now",
    "HashMap",
    "HashSet",
    "Arc<Ring>",
    "println!",
    "dbg!",
];

/// Data that the core takes from the crate of the capture thread: ids, requests and events.
const FROM_CAPTURE: &[&str] = &[
    "Command",
    "CommandMemory",
    "Counted",
    "End",
    "Event",
    "Gating",
    "Joined",
    "ProcessId",
    "PushEnd",
    "PushId",
    "RequestId",
    "Signal",
    "SlowTargets",
    "SourceBytes",
    "SourceId",
    "Stopped",
    "StreamAnswer",
    "StreamRequest",
    "StreamStep",
    "TargetId",
    "WindowSize",
    "self as capture",
];

#[test]
fn the_core_has_no_thread_socket_lock_clock_ring_log_or_random_order() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    // The memory that the core names by ids is beside it, behind a lock of its own.
    let memory = core.join("memory.rs");
    let files = sources(&core);
    assert!(files.len() > 60 && files.contains(&memory), "{files:?}");
    for path in files.iter().filter(|path| **path != memory) {
        for line in code(path).lines() {
            // Asks only whether this thread unwinds.
            let line = line.replace("std::thread::panicking()", "");
            let found = IMPURE.iter().find(|word| line.contains(**word));
            assert!(found.is_none(), "{}: {line}", path.display());
        }
    }
}

#[test]
fn the_core_takes_only_data_from_the_crate_of_the_capture_thread() {
    for path in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        for named in code(&path).split("iof_capture::").skip(1) {
            let list = named.strip_prefix('{').and_then(|list| list.split('}').next());
            let one = || named.split(|c: char| !c.is_alphanumeric()).next().unwrap();
            for name in list.unwrap_or_else(one).split(',').map(str::trim).filter(|name| !name.is_empty()) {
                assert!(FROM_CAPTURE.contains(&name), "{}: {name}", path.display());
            }
        }
    }
}
