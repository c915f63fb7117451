//! The choice of the backend, and the log message about a fallback.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail this way")]

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex};

use iof_capture::{BackendKind, Capture, Cause, End, Event, SourceId, StartError};
use iof_shm_ring::Policy;
use iof_testing::capture::{add, next, stream};
use iof_testing::pipes::pipe;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Makes the kernel refuse io_uring with `errno`, for the rest of this thread's life and in all
/// threads that it starts.
fn refuse_io_uring(errno: i32) {
    let rules = BTreeMap::from([(libc::SYS_io_uring_setup, Vec::new())]);
    let refuse = SeccompAction::Errno(errno.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
    seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

/// Runs `f` on a thread that may not use io_uring. Returns its result and the log.
fn without_io_uring<R: Send + 'static>(errno: i32, f: impl FnOnce() -> R + Send + 'static) -> (R, String) {
    let log = Log::default();
    let result = std::thread::spawn({
        let log = log.clone();
        move || {
            refuse_io_uring(errno);
            let subscriber = tracing_subscriber::fmt().with_writer(move || log.clone()).finish();
            tracing::subscriber::with_default(subscriber, f)
        }
    });
    let result = result.join().unwrap();
    let text = log.0.lock().unwrap().clone();
    (result, String::from_utf8(text).unwrap())
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn io_uring_is_used_where_it_is_available() {
    let capture = Capture::start(|_| {}).unwrap();
    assert_eq!(capture.backend(), BackendKind::IoUring);
    assert!(capture.fallback().is_none());
}

#[test]
fn a_requested_backend_is_used() {
    for backend in [BackendKind::IoUring, BackendKind::Epoll] {
        let capture = Capture::start_on(backend, |_| {}).unwrap();
        assert_eq!(capture.backend(), backend);
        assert!(capture.fallback().is_none(), "a requested backend is not a fallback");
    }
}

#[test]
fn where_io_uring_is_refused_epoll_is_used_and_the_reason_is_logged_once() {
    let ((), log) = without_io_uring(libc::EPERM, || {
        let (sender, events) = std::sync::mpsc::channel();
        let capture = Capture::start(move |event| drop(sender.send(event))).unwrap();
        assert_eq!(capture.backend(), BackendKind::Epoll);
        let Some(StartError::Refused { cause: Cause::Seccomp, .. }) = capture.fallback() else {
            panic!("{:?}", capture.fallback());
        };
        for id in 0..3 {
            let (read, mut write) = pipe();
            capture.send([add(SourceId(id), read, stream(4096, Policy::DropNewest))]).unwrap();
            write.write_all(b"through").unwrap();
        }
        for _ in 0..3 {
            assert!(matches!(next(&events), Event::Complete { produced: 7, end: End::EndOfFile, .. }));
        }
    });
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains("INFO") && log.contains("seccomp") && log.contains("epoll"), "{log}");
}

#[test]
fn a_kernel_without_io_uring_is_reported_as_the_cause() {
    let (cause, log) = without_io_uring(libc::ENOSYS, || {
        let capture = Capture::start(|_| {}).unwrap();
        match capture.fallback() {
            Some(StartError::Refused { cause, .. }) => *cause,
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(cause, Cause::OldKernel);
    assert!(log.contains("use another kernel"), "{log}");
}

#[test]
fn a_request_for_io_uring_where_it_is_refused_is_an_error_with_a_remedy() {
    let (error, log) =
        without_io_uring(libc::EPERM, || Capture::start_on(BackendKind::IoUring, |_| {}).err().unwrap());
    assert!(matches!(error, StartError::Refused { cause: Cause::Seccomp, .. }), "{error:?}");
    assert!(error.to_string().contains("allow io_uring_setup"), "{error}");
    assert_eq!(log, "", "the caller has the error, so nothing is logged");
}

#[test]
fn a_request_for_epoll_is_not_a_fallback_where_io_uring_is_refused() {
    let (backend, log) = without_io_uring(libc::EPERM, || {
        let capture = Capture::start_on(BackendKind::Epoll, |_| {}).unwrap();
        (capture.backend(), capture.fallback().is_none())
    });
    assert_eq!(backend, (BackendKind::Epoll, true));
    assert_eq!(log, "");
}
