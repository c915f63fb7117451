//! Pushed bytes arrive at exactly their targets, complete and in order, followed by the end, and
//! the report matches.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod refusals;

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::thread;

use iof_engine::{App, BackendKind, Engine, JobSpec, Stdin};
use iof_proto::directive::{DirectiveLevel, key};
use iof_proto::{
    Channels, Directives, Info, Nspace, PartialCause, Proc, Rank, SlowTarget, SlowTargets, Status,
};
use iof_testing::engine::stdins::*;
use iof_testing::engine::{Output, changed, engine_on, nspace, run, shell, spec, wait};
use iof_testing::noise::pattern;
use iof_tool::{LostError, Push, PushError, RequestError};

const BACKENDS: [BackendKind; 2] = [BackendKind::IoUring, BackendKind::Epoll];

#[test]
fn a_push_reaches_one_some_or_all_ranks_and_no_others() {
    let engine = engine_with_cache(65_536);
    let mut ranks = Stdins::adopt(&engine, 4);
    let mut tool = tool(&engine);
    let mut push = |push: &Push, bytes: &[u8]| tool.push(push, bytes, |_| {}).unwrap();
    assert_eq!(push(&push_to(procs(&[0])), b"one "), complete_report(4, 1));
    assert_eq!(push(&push_to(procs(&[3, 1, 3])), b"some "), complete_report(5, 2));
    assert_eq!(push(&final_push(all_ranks()), b"all"), complete_report(3, 4));
    let got = [0, 1, 2, 3].map(|rank| String::from_utf8(ranks.rest(rank)).unwrap());
    assert_eq!(got, ["one all", "some all", "all", "some all"]);
}

#[test]
fn pushes_that_leave_stdin_open_arrive_in_order_and_the_end_once() {
    let engine = engine_with_cache(65_536);
    let mut ranks = Stdins::adopt(&engine, 2);
    let mut tool = tool(&engine);
    for bytes in ["a", "", "b"] {
        assert_eq!(
            tool.push(&push_to(all_ranks()), bytes.as_bytes(), |_| {}).unwrap(),
            complete_report(bytes.len(), 2)
        );
    }
    assert_eq!(ranks.read(0, 2), b"ab");
    assert!(ranks.is_quiet(0), "the end was not pushed yet");
    // A push without bytes can still push the end.
    assert_eq!(tool.push(&final_push(all_ranks()), b"", |_| {}).unwrap(), complete_report(0, 2));
    assert_eq!((ranks.rest(0), ranks.rest(1)), (vec![], b"ab".to_vec()));
    let after = refusal(tool.push(&push_to(procs(&[0])), b"late", |_| {}));
    assert_eq!(after.status, Status::ERR_IOF_COMPLETE);
    assert_eq!(after.reason, "nothing was pushed: rank 0: stdin is closed");
}

#[test]
fn far_more_bytes_than_cache_and_pipes_hold_arrive_complete_at_each_rank() {
    for backend in BACKENDS {
        let engine = engine_on(Some(backend));
        let mut ranks = Stdins::adopt(&engine, 3);
        let bytes = pattern(20_000_003);
        let push = Push {
            // A size that is not aligned with the bytes.
            directives: vec![
                Info::required(key::PMIX_IOF_CACHE_SIZE, 12_288u32),
                Info::required(key::PMIX_IOF_COMPLETE, true),
            ],
            ..Push::new(procs(&[0, 2]))
        };
        let pushing = pushing(&engine, &push, bytes.clone());
        let (first, third) = (ranks.take(0), ranks.take(2));
        let reader = |file: std::fs::File| {
            thread::spawn(move || {
                let mut got = Vec::new();
                std::io::Read::read_to_end(&mut &file, &mut got).unwrap();
                got
            })
        };
        let readers = [reader(first), reader(third)];
        assert_eq!(pushing.report(), complete_report(bytes.len(), 2));
        for reader in readers {
            assert!(reader.join().unwrap() == bytes, "{backend:?}");
        }
        assert!(ranks.is_quiet(1));
    }
}

/// Returns a job of `app` whose ranks' stdin can be pushed to.
fn open_job(app: App) -> JobSpec {
    changed(spec([app]), |job| job.stdin = BTreeMap::from([(Rank::WILDCARD, Stdin::Pipe)]))
}

#[test]
fn spawned_ranks_read_their_stdin_to_the_end_as_no_other_holds_it_open() {
    for backend in BACKENDS {
        let engine = engine_on(Some(backend));
        let output = Output::start(&engine, Channels::STDOUT);
        let count = shell("echo $IOF_RANK $(wc -c)").ranks(8);
        let job = engine.spawn(&open_job(count)).unwrap();
        // Possibly before the ranks have begun to read.
        assert_eq!(
            push(&engine, &final_push(procs(&[0, 1, 2, 3])), &pattern(300_000)),
            complete_report(300_000, 4)
        );
        assert_eq!(push(&engine, &final_push(procs(&[4, 5, 6, 7])), b"seven"), complete_report(5, 4));
        assert_eq!(wait(&job).code(), 0);
        let mut lines: Vec<String> = output.all().lines().map(str::to_owned).collect();
        lines.sort_unstable();
        let expected = |rank| format!("{rank} {}", if rank < 4 { 300_000 } else { 5 });
        assert_eq!(lines, (0..8).map(expected).collect::<Vec<_>>());
    }
}

#[test]
fn spawning_with_forwarded_stdin_opens_the_stdin_of_rank_0_only() {
    let engine = engine_with_cache(65_536);
    let forwarded = [key::PMIX_FWD_STDIN, key::PMIX_FWD_STDOUT].map(|key| Info::required(key, true));
    let (directives, _) = Directives::read(&forwarded, DirectiveLevel::Spawn).unwrap();
    let output = Output::start(&engine, Channels::STDOUT);
    let echo = shell("sed s/^/$IOF_RANK:/").ranks(2);
    let job = engine.spawn(&changed(spec([echo]), |job| job.directives = directives)).unwrap();
    let failure = refusal(tool(&engine).push(&push_to(all_ranks()), b"both\n", |_| {}));
    assert_eq!(failure.status, Status::ERR_NOT_SUPPORTED);
    assert_eq!(failure.reason, "nothing was pushed: rank 1: stdin was not left open");
    assert_eq!(push(&engine, &final_push(procs(&[0])), b"words\n"), complete_report(6, 1));
    assert_eq!(wait(&job).code(), 0);
    assert_eq!(output.all(), "0:words\n");
}

#[test]
fn without_forwarded_stdin_no_rank_can_be_pushed_to() {
    let engine = engine_with_cache(65_536);
    let (status, lines) = run(&engine, &spec([shell("wc -c").ranks(2)]));
    assert_eq!((status.code(), lines), (0, vec!["0".to_owned(); 2]));
}

/// Returns the runs of equal bytes with their lengths.
fn runs(bytes: &[u8]) -> Vec<(u8, usize)> {
    bytes.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
}

#[test]
fn pushes_of_several_tools_do_not_interleave_and_arrive_in_the_same_order() {
    for backend in BACKENDS {
        let engine = engine_on(Some(backend));
        let mut ranks = Stdins::adopt(&engine, 2);
        const EACH: usize = 10;
        let readers = [0, 1].map(|rank| {
            let file = ranks.take(rank);
            thread::spawn(move || {
                let mut got = vec![0; 4 * EACH * MORE_THAN_A_PIPE];
                std::io::Read::read_exact(&mut &file, &mut got).unwrap();
                got
            })
        });
        let pushers: Vec<_> = [[0, 1], [1, 0], [0, 1], [1, 0]]
            .into_iter()
            .zip(0u8..)
            .map(|(targets, number)| {
                let mut tool = tool(&engine);
                thread::spawn(move || {
                    for turn in 0..EACH as u8 {
                        // Consecutive pushes never have the same byte.
                        let bytes = vec![number * EACH as u8 + turn; MORE_THAN_A_PIPE];
                        let report = tool.push(&push_to(procs(&targets)), &bytes, |_| {}).unwrap();
                        assert_eq!(report, complete_report(bytes.len(), 2));
                    }
                })
            })
            .collect();
        pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
        let [first, second] = readers.map(|reader| runs(&reader.join().unwrap()));
        assert!(first.iter().all(|(_, length)| *length == MORE_THAN_A_PIPE), "{first:?}");
        assert_eq!(first.len(), 4 * EACH);
        assert_eq!(first, second);
    }
}

#[test]
fn a_rank_that_closes_its_stdin_gets_no_more_and_others_get_everything() {
    for backend in BACKENDS {
        let engine = engine_on(Some(backend));
        let mut ranks = Stdins::adopt(&engine, 2);
        let bytes = pattern(3_000_000);
        let pushing = pushing(&engine, &final_push(all_ranks()), bytes.clone());
        let other = ranks.take(1);
        let other = thread::spawn(move || {
            let mut got = Vec::new();
            std::io::Read::read_to_end(&mut &other, &mut got).unwrap();
            got
        });
        assert_eq!(ranks.read(0, 1000), bytes[..1000]);
        ranks.close(0);
        let report = pushing.report();
        assert!(other.join().unwrap() == bytes);
        assert_eq!((report.bytes, report.complete, report.partial.len()), (3_000_000, 1, 1), "{report:?}");
        let delivered = report.partial[0].delivered;
        assert_eq!(report.partial, [partial_delivery(0, delivered, PartialCause::Closed)]);
        assert!((1000..bytes.len() as u64).contains(&delivered), "{delivered}");
    }
}

#[test]
fn a_push_ends_when_all_its_targets_have_exited() {
    for backend in BACKENDS {
        let engine = engine_on(Some(backend));
        let job = engine.spawn(&open_job(shell("head -c 10 >/dev/null").ranks(2))).unwrap();
        let report = push(&engine, &final_push(all_ranks()), &pattern(9_000_000));
        assert_eq!(
            (report.bytes < 9_000_000, report.complete, report.partial.len()),
            (true, 0, 2),
            "{report:?}"
        );
        assert!(
            report.partial.iter().all(|it| it.cause == PartialCause::Closed && it.delivered >= 10),
            "{report:?}"
        );
        assert_eq!(wait(&job).code(), 0);
        let failure = refusal(tool(&engine).push(&push_to(procs(&[1])), b"late", |_| {}));
        assert_eq!(failure.status, Status::ERR_IOF_COMPLETE);
    }
}

#[test]
fn a_push_waits_for_a_rank_that_does_not_read_and_names_it() {
    let engine = engine_with_cache(65_536);
    let mut ranks = Stdins::adopt(&engine, 3);
    let bytes = pattern(400_000);
    for rank in [0, 2] {
        let file = ranks.take(rank);
        thread::spawn(move || std::io::copy(&mut &file, &mut std::io::sink()));
    }
    let (sender, waited) = channel();
    let pushing = thread::spawn({
        let (mut tool, bytes) = (tool(&engine), bytes.clone());
        move || {
            tool.push(&final_push(all_ranks()), &bytes, |slow: &SlowTargets| {
                sender.send(slow.clone()).unwrap()
            })
        }
    });
    let slow = waited.recv_timeout(iof_testing::TIMEOUT).unwrap();
    assert_eq!(slow.targets, [SlowTarget { target: procs(&[1]).remove(0), stalled: true }]);
    assert!(slow.position > 0 && slow.position < 400_000, "{slow:?}");
    assert!(!pushing.is_finished());
    assert!(ranks.rest(1) == bytes);
    assert_eq!(pushing.join().unwrap().unwrap(), complete_report(400_000, 3));
    // The slow target was reported only once.
    assert!(waited.try_recv().is_err());
}

#[test]
fn a_push_that_waits_for_another_push_reports_it_whatever_its_directives() {
    for directives in [&[][..], &[key::PMIX_IOF_DROP_NEWEST]] {
        let engine = engine_with_cache(65_536);
        let ranks = Stdins::adopt(&engine, 1);
        let first = pushing(&engine, &push_to(all_ranks()), vec![1; 300_000]);
        ranks.wait_for_bytes(0);
        let (sender, waited) = channel();
        let second = thread::spawn({
            let (mut tool, push) = (tool(&engine), push_with(all_ranks(), directives));
            move || tool.push(&push, b"second", |slow: &SlowTargets| sender.send(slow.clone()).unwrap())
        });
        let slow = waited.recv_timeout(iof_testing::TIMEOUT).unwrap();
        let rank = procs(&[0]).remove(0);
        assert_eq!(
            slow,
            SlowTargets { position: 0, targets: vec![SlowTarget { target: rank, stalled: false }] }
        );
        assert!(!second.is_finished() && !first.has_ended());
        assert_eq!(ranks.read(0, 300_000), vec![1; 300_000]);
        assert_eq!(first.report(), complete_report(300_000, 1));
        assert_eq!(second.join().unwrap().unwrap(), complete_report(6, 1));
        assert_eq!(ranks.read(0, 6), b"second");
        assert!(ranks.is_quiet(0));
    }
}

#[test]
fn a_dropping_push_cuts_off_a_rank_that_does_not_read_and_ends_its_stdin() {
    for backend in BACKENDS {
        let engine = engine_on(Some(backend));
        let mut ranks = Stdins::adopt(&engine, 2);
        let bytes = pattern(5_000_000);
        // This push does not end stdin, but a rank that is cut off gets the end nevertheless.
        let pushing = pushing(&engine, &push_with(all_ranks(), &[key::PMIX_IOF_DROP_NEWEST]), bytes.clone());
        assert!(ranks.read(0, bytes.len()) == bytes);
        let report = pushing.report();
        let delivered = report.partial.first().expect("one was cut off").delivered;
        assert_eq!((report.bytes, report.complete), (5_000_000, 1));
        assert_eq!(report.partial, [partial_delivery(1, delivered, PartialCause::CutOff)]);
        assert!(ranks.rest(1) == bytes[..delivered as usize]);
        assert!(ranks.is_quiet(0), "the other is still open");
        assert_eq!(push(&engine, &final_push(procs(&[0])), b""), complete_report(0, 1));
    }
}

#[test]
fn a_slow_reader_is_not_cut_off() {
    let engine = engine_with_cache(16_384);
    let ranks = Stdins::adopt(&engine, 1);
    let bytes = pattern(400_000);
    let pushing = pushing(&engine, &push_with(all_ranks(), &[key::PMIX_IOF_DROP_NEWEST]), bytes.clone());
    let mut got = Vec::new();
    // So slow that the push checks several times. Each time the reader has made progress.
    while got.len() < bytes.len() && !pushing.has_ended() {
        let n = (bytes.len() - got.len()).min(30_000);
        got.extend(ranks.read(0, n));
        thread::sleep(iof_tool::STALL_TIMEOUT / 4);
    }
    assert_eq!(pushing.report(), complete_report(bytes.len(), 1));
    got.extend(ranks.read(0, bytes.len() - got.len()));
    assert!(got == bytes);
}

#[test]
fn one_push_can_reach_ranks_of_several_jobs() {
    let engine = engine_with_cache(65_536);
    let mut first = Stdins::adopt(&engine, 2);
    let mut second = Stdins::adopt_job(&engine, Nspace::new("second").unwrap(), 1, false);
    let other = Proc::all(Nspace::new("second").unwrap());
    let targets = vec![procs(&[1]).remove(0), other];
    assert_eq!(push(&engine, &final_push(targets.clone()), b"both"), complete_report(4, 2));
    assert_eq!((first.rest(1), second.rest(0)), (b"both".into(), b"both".into()));
    let failure = refusal(tool(&engine).push(&push_to(targets), b"", |_| {}));
    assert_eq!(failure.reason, "nothing was pushed: ranks 1 of job,0 of second: stdin is closed");
}

#[test]
fn bytes_filled_by_a_tool_that_disconnects_arrive_and_then_its_push_ends() {
    for (directives, open) in [(&[key::PMIX_IOF_COMPLETE][..], false), (&[], true)] {
        let engine = engine_with_cache(1 << 20);
        let mut ranks = Stdins::adopt(&engine, 1);
        let mut tool = tool(&engine);
        let push = tool.begin_push(&push_with(all_ranks(), directives), None).unwrap().push;
        let bytes = pattern(600_000);
        tool.push_room(push)[..bytes.len()].copy_from_slice(&bytes);
        tool.fill(push, bytes.len(), false).unwrap();
        drop(tool);
        assert!(ranks.read(0, bytes.len()) == bytes);
        if open {
            // The next push has its turn.
            assert_eq!(
                iof_testing::engine::stdins::push(&engine, &final_push(all_ranks()), b"next"),
                complete_report(4, 1)
            );
            assert_eq!(ranks.rest(0), b"next");
        } else {
            assert_eq!(ranks.rest(0), b"");
        }
    }
}

/// Returns a tool that has filled its inlet completely.
fn stuck(engine: &Engine, targets: Vec<Proc>) -> (iof_tool::Tool, u32) {
    let mut tool = tool(engine);
    let push = tool.begin_push(&push_to(targets), None).unwrap().push;
    let room = tool.push_room(push).len();
    tool.fill(push, room, false).unwrap();
    (tool, push)
}

#[test]
fn when_the_engine_ends_pushes_fail_and_the_ranks_see_the_end() {
    for backend in BACKENDS {
        let engine = engine_on(Some(backend));
        let mut ranks = Stdins::adopt(&engine, 2);
        let pushing = pushing(&engine, &push_to(all_ranks()), pattern(9_000_000));
        ranks.wait_for_bytes(0);
        ranks.wait_for_bytes(1);
        let (mut tool, push) = stuck(&engine, procs(&[1]));
        drop(engine);
        let result = pushing.result();
        assert!(
            matches!(result, Err(PushError::Request(RequestError::Lost(LostError::Closed)))),
            "{result:?}"
        );
        assert!(pattern(9_000_000).starts_with(&ranks.rest(0)));
        // A tool with its own event loop and one that only sends requests get the same error.
        while tool.dispatch(Some(std::time::Duration::ZERO)).unwrap() {}
        assert!(matches!(tool.take_report(push), Err(LostError::Closed)));
        assert!(matches!(tool.fill(push, 1, true), Err(LostError::Closed)));
        assert!(matches!(tool.slow_targets(push, None), Err(RequestError::Lost(LostError::Closed))));
        assert!(matches!(
            tool.begin_push(&push_to(all_ranks()), None),
            Err(RequestError::Lost(LostError::Closed))
        ));
    }
}

#[test]
fn a_removed_job_takes_no_more_bytes_and_the_push_reports_it() {
    let engine = engine_with_cache(16_384);
    let mut ranks = Stdins::adopt(&engine, 1);
    let pushing = pushing(&engine, &push_to(all_ranks()), pattern(400_000));
    ranks.wait_for_bytes(0);
    assert!(ranks.job.report_exit(Rank(0), iof_engine::Exit::Unknown));
    wait(&ranks.job);
    assert!(engine.remove(&nspace()));
    let report = pushing.report();
    assert_eq!(report.partial, [partial_delivery(0, report.partial[0].delivered, PartialCause::Stopped)]);
    assert_eq!(ranks.rest(0), pattern(report.partial[0].delivered as usize));
}
