//! Children where the kernel refuses to share the descriptor table.

use std::fs::File;
use std::io::Read;

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
    for pipe in [spawned.outputs.into_iter().next().unwrap(), reader] {
        File::from(pipe).read_to_string(&mut text).unwrap();
    }
    text
}

/// Lets close_range(2) fail with this error, and checks that children start with a copy of the
/// table. The process remembers the refusal, so its program has one test.
pub fn check(errno: i32) {
    let rules = [(libc::SYS_close_range, Vec::new())].into();
    let refuse = SeccompAction::Errno(errno.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
    let spawner = Spawner::new();
    seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
    for _ in 0..2 {
        assert_eq!(output(&spawner), "started\npassed\n");
    }
    let error = spawner.spawn(ProcessSpec::new("/no/such", [""; 0]), None).unwrap_err();
    assert!(matches!(error, SpawnError::NotFound { .. }), "{error}");
}
