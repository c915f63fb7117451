//! An embedder that ignores SIGCHLD. The signal's disposition belongs to the whole process, so this
//! file has a single test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use iof_engine::{Exit, JobSpec};
use iof_proto::query::key;
use iof_proto::{ProcState, Value};
use iof_testing::engine::{engine, run, shell, spec, wait};
use nix::sys::signal::{SigHandler, Signal, signal};

#[test]
fn with_sigchld_ignored_output_is_complete_and_exits_are_unknown() {
    // SAFETY: ignoring a signal runs no handler.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) }.unwrap();
    let engine = engine();
    let app = shell("echo out; exit 0").ranks(20);
    let (status, lines) = run(&engine, &spec([app]));
    assert_eq!(lines, vec!["out"; 20]);
    assert!(matches!(status.first_failure, Some((_, Exit::Unknown))), "{status:?}");
    assert_eq!(status.code(), 1);

    let mut tool = engine.attach("test", iof_engine::Grant::Never).unwrap();
    let found = tool.query(&[key::PMIX_QUERY_PROC_TABLE]).unwrap();
    let Value::Procs(procs) = &found[0].value else { panic!("{found:?}") };
    assert!(
        procs.iter().all(|proc| proc.state == ProcState::Failed && proc.exit_code.is_none()),
        "{procs:?}"
    );

    // Signals still reach running ranks.
    let nspace = iof_proto::Nspace::new("second").unwrap();
    let job = engine.spawn(&JobSpec::new(nspace, vec![shell("exec sleep 1000")])).unwrap();
    assert_eq!(job.signal(iof_engine::Signal::TERM), 1);
    assert!(matches!(wait(&job).first_failure, Some((_, Exit::Unknown))));
}
