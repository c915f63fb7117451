//! Ending a job early, as an embedder sets it and sees it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::time::Duration;

use iof_engine::{EndCause, Ending, Engine, Grant, KillOnBadExit, RankExit, Signal, Stdin, TIMEOUT_CODE};
use iof_proto::directive::key;
use iof_proto::{Channels, Info, Proc, Rank};
use iof_testing::engine::{Output, engine, nspace, shell, spec, wait};
use iof_testing::wait_for;
use iof_tool::Push;

/// Lets a rank read the end of its stdin.
fn close_stdin(engine: &Engine, rank: Rank) {
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let directives = vec![Info::new(key::PMIX_IOF_COMPLETE, true)];
    let push = Push { directives, ..Push::new(vec![Proc::new(nspace(), rank)]) };
    tool.push(&push, &[], |_| {}).unwrap();
}

#[test]
fn endings_are_yielded_in_their_order_with_their_causes() {
    let engine = engine();
    let script = "[ $IOF_RANK = 1 ] && exit 0; [ $IOF_RANK = 2 ] && { read line; exit 3; }; exec sleep 1000";
    let mut job = spec([shell(script).ranks(4)]);
    job.kill_on_bad_exit = KillOnBadExit::Always;
    job.stdin = [(Rank(2), Stdin::Pipe)].into();
    let job = engine.spawn(&job).unwrap();
    let mut endings = job.endings();
    let Some(Ending::Rank(first)) = endings.next() else { panic!("no rank") };
    assert_eq!((first.rank, first.exit.code(), first.requested), (Rank(1), 0, false));
    assert!(first.pid > 1 && first.executable == "sh");
    close_stdin(&engine, Rank(2));
    let Some(Ending::Rank(failed)) = endings.next() else { panic!("no rank") };
    assert_eq!(
        (failed.rank, failed.exit.to_string().as_str(), failed.requested),
        (Rank(2), "exit code 3", false)
    );
    let Some(Ending::Early(end)) = endings.next() else { panic!("no early end") };
    assert_eq!((end.cause, &end.left[..]), (EndCause::BadExit(Rank(2)), &[Rank(0), Rank(3)][..]));
    let mut rest: Vec<Rank> = endings
        .map(|ending| match ending {
            Ending::Rank(RankExit { rank, exit, requested: true, .. }) if exit.signal() == Some(15) => rank,
            other => panic!("{other:?}"),
        })
        .collect();
    rest.sort_unstable();
    assert_eq!(rest, [Rank(0), Rank(3)]);
    let status = wait(&job);
    assert_eq!((status.code(), status.early_end), (3, Some(end)));
    // An iterator that is created later yields the same.
    assert_eq!(job.endings().count(), 5);
}

#[test]
fn a_job_is_not_ended_early_by_default() {
    let engine = engine();
    let output = Output::start(&engine, Channels::STDOUT);
    let mut job = spec([shell("kill -KILL $$"), shell("read line; echo still here")]);
    job.stdin = [(Rank(1), Stdin::Pipe)].into();
    let job = engine.spawn(&job).unwrap();
    assert!(matches!(job.endings().next(), Some(Ending::Rank(rank)) if rank.rank == Rank(0)));
    close_stdin(&engine, Rank(1));
    let status = wait(&job);
    assert_eq!((status.code(), status.early_end), (137, None));
    assert_eq!(output.all(), "still here\n");
}

#[test]
fn a_failure_after_a_signal_from_the_embedder_does_not_end_the_job() {
    let engine = engine();
    let output = Output::start(&engine, Channels::STDOUT);
    let survivor = "trap 'echo got it' USR1; echo ready; while :; do sleep 0.05; done";
    let mut job = spec([shell("echo ready; exec sleep 1000"), shell(survivor)]);
    job.kill_on_bad_exit = KillOnBadExit::Always;
    let job = engine.spawn(&job).unwrap();
    wait_for("both ranks", || (output.so_far().matches("ready").count() == 2).then_some(()));
    job.signal(Signal::USR1);
    let Some(Ending::Rank(rank)) = job.endings().next() else { panic!("no rank") };
    assert!(rank.rank == Rank(0) && rank.requested, "{rank:?}");
    wait_for("the other rank", || output.so_far().contains("got it").then_some(()));
    assert_eq!(job.try_wait_exit().map(|status| status.code()), None);
    job.signal(Signal::KILL);
    let status = wait(&job);
    assert_eq!((status.code(), status.early_end), (138, None));
}

#[test]
fn a_time_limit_ends_the_ranks_that_are_left() {
    for millis in [100, 400, 1600, 6400, 25_600] {
        let engine = engine();
        let output = Output::start(&engine, Channels::STDOUT);
        let app = shell("trap '' TERM; echo ready; while :; do sleep 0.05; done").ranks(2);
        let mut job = spec([app]);
        job.timeout = Some(Duration::from_millis(millis));
        job.kill_wait = Duration::from_millis(100);
        let job = engine.spawn(&job).unwrap();
        let status = wait(&job);
        let end = status.early_end.as_ref().unwrap();
        assert_eq!((end.cause, &end.left[..]), (EndCause::Timeout, &[Rank(0), Rank(1)][..]));
        assert_eq!(status.code(), TIMEOUT_CODE);
        // On a busy machine a rank may need more time until it ignores the first signal.
        if output.all() == "ready\nready\n" {
            return assert_eq!(status.first_failure.unwrap().1.code(), 137);
        }
    }
    panic!("the ranks do not become ready");
}
