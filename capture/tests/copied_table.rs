//! Children where the kernel refuses to share the descriptor table. The process remembers the
//! refusal, so this program has one test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail this way")]

use std::fs::File;
use std::io::Read;
use std::thread;

use iof_capture::{PassedFile, ProcessSpec, SpawnError, Spawner};
use nix::fcntl::OFlag;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Returns what a process writes to its stdout and to a pipe that it was passed.
fn output(spawner: &Spawner) -> String {
    let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
    let passed = PassedFile { file: writer, variable: "PASSED_FD".into() };
    let script = "echo started; echo passed >/proc/self/fd/$PASSED_FD";
    let spawned = spawner.spawn(ProcessSpec::new("sh", ["-c", script]), Some(passed)).unwrap();
    let mut text = String::new();
    for pipe in [spawned.stdout, reader] {
        File::from(pipe).read_to_string(&mut text).unwrap();
    }
    text
}

#[test]
fn where_a_shared_table_is_refused_children_start_with_a_copy() {
    for errno in [libc::ENOSYS, libc::EPERM] {
        // On a thread of its own, because a filter stays as long as its thread.
        let refused = thread::spawn(move || {
            let rules = [(libc::SYS_close_range, Vec::new())].into();
            let refuse = SeccompAction::Errno(errno.unsigned_abs());
            let arch = std::env::consts::ARCH.try_into().unwrap();
            let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
            let spawner = Spawner::new();
            seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
            assert_eq!(output(&spawner), "started\npassed\n");
            let error = spawner.spawn(ProcessSpec::new("/no/such", [""; 0]), None).unwrap_err();
            assert!(matches!(error, SpawnError::NotFound { .. }), "{error}");
        });
        refused.join().unwrap();
    }
    assert_eq!(output(&Spawner::new()), "started\npassed\n");
}
