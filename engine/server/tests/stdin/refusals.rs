//! Pushes, and the stdins of jobs, that the engine refuses.

use iof_engine::{LaunchError, Stdin};
use iof_proto::directive::key;
use iof_proto::limits::MAX_PUSHES_PER_TOOL;
use iof_proto::{Info, InfoValue, Nspace, Proc, Rank, Skipped, Status, StdinUnavailable};
use iof_tool::Push;

use iof_testing::engine::stdins::*;
use iof_testing::engine::{shell, spec};
use iof_testing::wait_for;

#[test]
fn an_unsupported_directive_is_refused_if_required_and_ignored_if_optional() {
    let engine = engine_with_cache(65_536);
    let mut ranks = Stdins::adopt(&engine, 1);
    let mut tool = tool(&engine);
    let cases: [(&str, InfoValue, Status); 6] = [
        (key::PMIX_IOF_DROP_OLDEST, true.into(), Status::ERR_NOT_SUPPORTED),
        (key::PMIX_IOF_BUFFERING_SIZE, 100u32.into(), Status::ERR_NOT_SUPPORTED),
        ("unknown.key", true.into(), Status::ERR_NOT_SUPPORTED),
        (key::PMIX_IOF_COMPLETE, 1u32.into(), Status::ERR_BAD_PARAM),
        (key::PMIX_IOF_CACHE_SIZE, 0u32.into(), Status::ERR_BAD_PARAM),
        (key::PMIX_IOF_CACHE_SIZE, u32::MAX.into(), Status::ERR_OUT_OF_RESOURCE),
    ];
    for (key, value, status) in cases {
        let required = Push { directives: vec![Info::required(key, value.clone())], ..push_to(all_ranks()) };
        let failure = refusal(tool.push(&required, b"never", |_| {}));
        assert_eq!(failure.status, status, "{key}: {failure}");
        let optional = Push { directives: vec![Info::new(key, value)], ..push_to(all_ranks()) };
        let granted = tool.begin_push(&optional, Some(0)).unwrap();
        assert_eq!(granted.ignored, [key]);
        tool.fill(granted.push, 0, true).unwrap();
    }
    // How the bytes are collected is up to the tool.
    let collected = push_with(all_ranks(), &[key::PMIX_IOF_PUSH_STDIN, key::PMIX_IOF_COMPLETE]);
    assert_eq!(tool.push(&collected, b"only this", |_| {}).unwrap(), complete_report(9, 1));
    assert_eq!(ranks.rest(0), b"only this");
}

#[test]
fn with_one_closed_target_nothing_is_delivered_unless_partial_is_allowed() {
    let engine = engine_with_cache(65_536);
    let mut ranks = Stdins::adopt(&engine, 4);
    ranks.close(1);
    push(&engine, &final_push(procs(&[2])), b"");
    let mut tool = tool(&engine);
    let failure = refusal(tool.push(&final_push(all_ranks()), b"some", |_| {}));
    assert_eq!(failure.status, Status::ERR_IOF_COMPLETE);
    assert_eq!(failure.reason, "nothing was pushed: ranks 1-2: stdin is closed");
    assert!(ranks.is_quiet(0) && ranks.is_quiet(3));

    let push = push_with(all_ranks(), &[key::PMIX_IOF_COMPLETE, key::IOF_PARTIAL]);
    let granted = tool.begin_push(&push, None).unwrap();
    let skipped = |rank| Skipped { target: procs(&[rank]).remove(0), reason: StdinUnavailable::Closed };
    assert_eq!(granted.skipped, [skipped(1), skipped(2)]);
    tool.push_room(granted.push)[..4].copy_from_slice(b"some");
    tool.fill(granted.push, 4, true).unwrap();
    assert_eq!((ranks.rest(0), ranks.rest(2), ranks.rest(3)), (b"some".into(), vec![], b"some".into()));
    // No target is left, and an empty part is not allowed.
    assert_eq!(refusal(tool.push(&push, b"more", |_| {})).status, Status::ERR_IOF_COMPLETE);
}

#[test]
fn pushes_to_unknown_ranks_and_jobs_are_refused_by_name() {
    let engine = engine_with_cache(65_536);
    let ranks = Stdins::adopt(&engine, 2);
    let mut tool = tool(&engine);
    let partly = |targets| push_with(targets, &[key::IOF_PARTIAL]);
    let failure = refusal(tool.push(&partly(procs(&[0, 2])), b"x", |_| {}));
    assert_eq!(
        (failure.status, failure.reason.as_str()),
        (Status::ERR_NOT_FOUND, "rank 2 does not exist: the last rank of job is 1")
    );
    let elsewhere = Proc::new(Nspace::new("other").unwrap(), Rank(0));
    let failure = refusal(tool.push(&push_to(vec![procs(&[0]).remove(0), elsewhere]), b"x", |_| {}));
    assert_eq!(
        (failure.status, failure.reason.as_str()),
        (Status::ERR_NOT_FOUND, "job other does not exist")
    );
    let failure = refusal(tool.push(&push_to(vec![]), b"x", |_| {}));
    assert_eq!(failure.status, Status::ERR_BAD_PARAM);
    assert!(ranks.is_quiet(0));
}

#[test]
fn pushes_are_limited_per_tool_and_per_target_until_one_has_ended() {
    let engine = engine_with_cache(16_384);
    let mut ranks = Stdins::adopt(&engine, 2);
    let mut pushing = begin_max_pushes(&engine, &push_to(procs(&[0])));
    for (tool, _) in &mut pushing {
        let failure = refusal(tool.begin_push(&push_to(procs(&[1])), None));
        assert_eq!(failure.status, Status::ERR_OUT_OF_RESOURCE);
        assert!(failure.reason.contains(&MAX_PUSHES_PER_TOOL.to_string()), "{failure}");
    }

    let mut other = tool(&engine);
    let failure = refusal(other.begin_push(&push_to(all_ranks()), None));
    assert_eq!(failure.status, Status::ERR_RESOURCE_BUSY);
    assert!(failure.reason.contains("rank 0"), "{failure}");
    assert_eq!(other.push(&push_to(procs(&[1])), b"free", |_| {}).unwrap(), complete_report(4, 1));

    // They are written in the order in which they began, whichever is filled first.
    let mut numbers = Vec::new();
    for (turn, (tool, begun)) in pushing.iter_mut().enumerate().rev() {
        for (index, push) in begun.iter().enumerate().rev() {
            let number = u8::try_from(turn * MAX_PUSHES_PER_TOOL + index).unwrap();
            tool.push_room(*push)[..1].copy_from_slice(&[number]);
            tool.fill(*push, 1, true).unwrap();
            numbers.insert(0, number);
        }
    }
    assert_eq!(ranks.read(0, numbers.len()), numbers);
    for (tool, begun) in &mut pushing {
        for push in begun {
            wait_for_report(tool, *push);
        }
    }
    assert_eq!(other.push(&final_push(all_ranks()), b"", |_| {}).unwrap(), complete_report(0, 2));
    assert_eq!((ranks.rest(0), ranks.rest(1)), (vec![], b"free".into()));
}

#[test]
fn an_impossible_stdin_is_refused_before_anything_runs() {
    let engine = engine_with_cache(65_536);
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let failure = |stdin: &[(u32, Stdin)], pty: Option<u32>| {
        let mut job = spec([shell("").ranks(2)]);
        job.stdin = stdin.iter().map(|(rank, stdin)| (Rank(*rank), stdin.clone())).collect();
        job.ptys = pty
            .map(|rank| {
                (
                    Rank(rank),
                    iof_engine::Pty { size: iof_engine::WindowSize::default(), echo: false, data: false },
                )
            })
            .into_iter()
            .collect();
        engine.spawn(&job).expect_err("the job must not start")
    };
    let file = |path: &std::path::Path| Stdin::File(path.to_owned());
    assert!(matches!(
        failure(&[(2, Stdin::Pipe)], None),
        LaunchError::UnknownStdinRank { rank: Rank(2), ranks: 2 }
    ));
    let shared = failure(&[(Rank::WILDCARD.0, Stdin::Inherit)], None);
    assert!(matches!(shared, LaunchError::SharedStdin { sharers: 2 }), "{shared}");
    for stdin in [Stdin::Pipe, file(directory.path())] {
        let failure = failure(&[(1, stdin)], Some(1));
        assert!(matches!(failure, LaunchError::StdinOfPty { rank: Rank(1) }), "{failure}");
    }
    // Opening it would block until another process opens it for writing.
    let for_fifo = failure(&[(1, file(&fifo))], None);
    assert!(matches!(for_fifo, LaunchError::StdinFifo { rank: Rank(1), .. }), "{for_fifo}");
    let missing = failure(&[(1, file(&directory.path().join("missing")))], None);
    assert!(missing.to_string().contains("missing' (No such file"), "{missing}");
    let for_directory = failure(&[(1, file(directory.path()))], None);
    assert!(for_directory.to_string().contains("Is a directory"), "{for_directory}");
}

fn wait_for_report(tool: &mut iof_tool::Tool, push: u32) -> iof_proto::PushReport {
    wait_for("a report", || {
        tool.dispatch(Some(std::time::Duration::ZERO)).unwrap();
        tool.take_report(push).unwrap()
    })
}
