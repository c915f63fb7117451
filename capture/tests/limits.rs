//! The limit on open files. It belongs to the whole process, so this program has one test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail this way")]

use std::io::Read;
use std::os::fd::OwnedFd;

use iof_capture::{ProcessSpec, SpawnError, TooFewFiles, check_files, raise_file_limit, spawn};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

#[test]
fn the_file_limit_is_raised_for_this_process_and_restored_for_children() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 64, hard).unwrap();

    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 - 1;
    assert_eq!(check_files(64 - open), Ok(0));
    let error = check_files(65 - open).unwrap_err();
    assert_eq!(error, TooFewFiles { needed: 65 - open, open, limit: 64 });
    assert!(error.to_string().contains("RLIMIT_NOFILE is 64: raise it to 65"), "{error}");

    let open_files: Vec<OwnedFd> =
        (0..100).map_while(|_| std::fs::File::open("/dev/null").ok().map(OwnedFd::from)).collect();
    let error = spawn(ProcessSpec::new("/bin/true", [""; 0])).unwrap_err();
    assert!(matches!(error, SpawnError::TooManyFiles { limit: 64, .. }), "{error}");
    assert!(error.to_string().contains("RLIMIT_NOFILE is 64"), "{error}");

    assert!(check_files(0).is_ok());
    let full = check_files(1).unwrap_err();
    assert_eq!((full.open, full.limit), (64, 64), "the check itself can open no file");

    assert_eq!(raise_file_limit().unwrap(), hard);
    assert_eq!(raise_file_limit().unwrap(), hard);
    assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (hard, hard));
    drop(open_files);

    let child = spawn(ProcessSpec::new("/bin/sh", ["-c", "ulimit -Sn; ulimit -Hn"])).unwrap();
    let mut text = String::new();
    std::fs::File::from(child.outputs.into_iter().next().unwrap()).read_to_string(&mut text).unwrap();
    assert_eq!(text, format!("64\n{hard}\n"));
}
