//! Exits of children whose host ignores SIGCHLD, so that the kernel reaps them. The disposition of
//! a signal belongs to the whole process, so this program has one test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail this way")]

use std::io::Read;
use std::os::unix::fs::PermissionsExt;

use iof_capture::{BackendKind, Event, ProcessGroup, ProcessId, ProcessSpec, SpawnError, spawn};
use iof_testing::capture::{next, rig_on, watch};
use nix::sys::signal::{SigHandler, Signal, signal};

fn shell(script: &str) -> ProcessSpec {
    ProcessSpec::new("/bin/sh", ["-c", script])
}

#[test]
fn with_sigchld_ignored_exits_are_reported_without_status_and_spawn_errors_work() {
    // SAFETY: an ignored signal runs no handler.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) }.unwrap();
    for backend in [BackendKind::IoUring, BackendKind::Epoll] {
        let rig = rig_on(backend);
        // Many children that may exit before they have a pidfd, and one that exits later.
        for id in 0..50 {
            rig.capture
                .send([watch(ProcessId(id), spawn(ProcessSpec::new("/bin/true", [""; 0])).unwrap().child)])
                .unwrap();
        }
        let spec = ProcessSpec { group: ProcessGroup::Own, ..shell("echo ready; exec sleep 1000") };
        let sleeper = spawn(spec).unwrap();
        let (signaller, mut ready) = (sleeper.child.signaller(), [0; 6]);
        rig.capture.send([watch(ProcessId(50), sleeper.child)]).unwrap();
        std::fs::File::from(sleeper.outputs.into_iter().next().unwrap()).read_exact(&mut ready).unwrap();
        signaller.send(iof_capture::Signal::KILL).unwrap();
        let mut ended: Vec<u64> = (0..=50)
            .map(|_| match next(&rig.events) {
                Event::Exited { process, status: Err(_), .. } => process.0,
                other => panic!("{other:?}"),
            })
            .collect();
        ended.sort_unstable();
        assert!(ended.into_iter().eq(0..=50));
        assert!(signaller.send(iof_capture::Signal::KILL).is_err(), "the process has exited");
    }

    // Children do not inherit the disposition, so they can wait for children of their own.
    let mut status = String::new();
    let child = spawn(ProcessSpec::new("/bin/cat", ["/proc/self/status"])).unwrap();
    std::fs::File::from(child.outputs.into_iter().next().unwrap()).read_to_string(&mut status).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    assert_eq!(u64::from_str_radix(ignored.trim(), 16).unwrap() & (1 << (Signal::SIGCHLD as u64 - 1)), 0);

    // An error that occurs only in the child is still reported with its reason.
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let error = spawn(ProcessSpec::new(&script, [""; 0])).unwrap_err();
    assert!(matches!(error, SpawnError::NotFound { .. }), "{error}");
}
