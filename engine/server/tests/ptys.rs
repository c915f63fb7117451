//! Ranks with a pseudo-terminal, as an embedder uses them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use iof_engine::{App, JobSpec, LaunchError, Pty, Stdin, WindowSize};
use iof_proto::{Channels, Rank};
use iof_testing::engine::{Output, changed, engine, run, shell, spec, wait};
use iof_testing::wait_for;

const SIZE: WindowSize = WindowSize { rows: 30, columns: 100 };

fn with_pty(rank: Rank, app: App) -> JobSpec {
    let pty = Pty { size: SIZE, echo: false, data: false };
    changed(spec([app]), |job| job.ptys = [(rank, pty)].into())
}

#[test]
fn a_rank_reads_keys_from_the_embedder_and_is_signalled_about_a_new_size() {
    let engine = engine();
    let output = Output::start(&engine, Channels::STDOUT);
    let app = shell(
        "stty size; read word; echo \"<$word>\"; trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done",
    );
    let mut job = with_pty(Rank(0), app);
    job.stdin = [(Rank(0), Stdin::Inherit)].into();
    let job = engine.spawn(&job).unwrap();
    job.pty(Rank(0)).unwrap().expect("a pty").type_keys(b"word\n").unwrap();
    assert!(job.pty(Rank(1)).unwrap().is_none());
    wait_for("the rank", || output.so_far().contains("ready").then_some(()));
    assert_eq!(job.resize_ptys(WindowSize { rows: 50, ..SIZE }), 1);
    assert_eq!(wait(&job).code(), 0);
    assert_eq!(output.all(), "30 100\n<word>\nready\n50 100\n");
    assert!(job.pty(Rank(0)).unwrap().is_none(), "the rank has exited");
}

#[test]
fn the_wildcard_gives_a_pty_to_all_ranks_that_are_not_named() {
    let app = shell("echo $IOF_RANK $(stty size)").ranks(3);
    let other = WindowSize { rows: 1, columns: 2 };
    let ptys = [(Rank::WILDCARD, SIZE), (Rank(1), other)]
        .map(|(rank, size)| (rank, Pty { size, echo: false, data: false }));
    let (status, lines) = run(&engine(), &changed(spec([app]), |job| job.ptys = ptys.into()));
    assert_eq!(status.code(), 0);
    assert_eq!(lines, ["0 30 100", "1 1 2", "2 30 100"]);
}

#[test]
fn a_pty_for_an_unknown_rank_is_refused() {
    let app = shell("").ranks(2);
    let error = engine().spawn(&with_pty(Rank(2), app)).expect_err("the job must not start");
    assert!(matches!(error, LaunchError::UnknownPtyRank { rank: Rank(2), ranks: 2 }), "{error}");
}

#[test]
fn dropping_the_engine_hangs_up_even_if_the_job_handle_remains() {
    let directory = tempfile::tempdir().unwrap();
    let note = directory.path().join("note");
    let engine = engine();
    let output = Output::start(&engine, Channels::STDOUT);
    let script =
        format!("trap 'echo hup > {}; exit' HUP; echo ready; while :; do sleep 0.1; done", note.display());
    let job = engine.spawn(&with_pty(Rank(0), shell(&script))).unwrap();
    wait_for("the rank", || output.so_far().contains("ready").then_some(()));
    drop(engine);
    wait_for("the note", || std::fs::read_to_string(&note).ok().filter(|note| note == "hup\n"));
    drop(job);
}
