//! The lines of ranks in Rust: by an iterator, a callback, and on the event loop of tokio.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs::File;
use std::future::poll_fn;
use std::os::fd::AsFd;
use std::path::Path;
use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime};

use futures_core::Stream as _;
use iof::engine::Rendezvous;
use iof::output::{Output, Printer};
use iof::prelude::*;
use iof::proto::directive::key;
use iof::proto::{Channel, Info, ProcState};
use iof::tool::{AsyncTool, Line, LineItem, Lines, OwnedDelivery};

/// The script of a rank that writes a line, and its rest once `gate` exists.
fn gated(gate: &Path) -> String {
    format!("echo one; while [ ! -e {} ]; do sleep .01; done; printf two; exit 3", gate.display())
}

/// Starts such a rank, and returns a tool that pulls it.
fn start(gate: &Path) -> (Engine, Job, Tool) {
    let engine = Engine::start(Config::new(Rendezvous::None)).unwrap();
    let nspace: Nspace = "lines".parse().unwrap();
    let mut tool = engine.attach("test", Grant::Block).unwrap();
    tool.pull(&Pull::new(vec![Proc::all(nspace.clone())], Channels::STDOUT)).unwrap();
    let job = engine.spawn(&JobSpec::new(nspace, vec![App::new("sh", ["-c", &gated(gate)])])).unwrap();
    (engine, job, tool)
}

#[test]
fn lines_have_times_and_are_followed_by_the_ends_of_their_stream_and_job() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let (_engine, job, tool) = start(&gate);
    let mut lines = Lines::new(tool);
    let one = lines.next().unwrap().unwrap().line().unwrap();
    assert_eq!((one.bytes.as_slice(), one.ends, one.source.rank), (&b"one"[..], true, Rank(0)));
    assert!(one.time.unwrap() >= began);
    assert!(lines.try_next().unwrap().is_none() && !lines.is_done());
    let deadline = Instant::now() + Duration::from_millis(20);
    assert!(lines.next_until(deadline).unwrap().is_none() && Instant::now() >= deadline);
    File::create(&gate).unwrap();
    // As an event loop does.
    let two = loop {
        match lines.try_next().unwrap() {
            Some(item) => break item.line().unwrap(),
            None => {
                let timeout = iof::tool::poll_timeout(lines.timeout());
                let timeout = nix::poll::PollTimeout::try_from(timeout).unwrap();
                let fd = nix::poll::PollFd::new(lines.as_fd(), nix::poll::PollFlags::POLLIN);
                nix::poll::poll(&mut [fd], timeout).unwrap();
            }
        }
    };
    assert_eq!((two.bytes.as_slice(), two.ends), (&b"two"[..], false));
    assert!(two.time > one.time);
    let ends: Vec<LineItem> = lines.map(Result::unwrap).collect();
    match &ends[..] {
        [
            LineItem::Other(OwnedDelivery::Complete { origin, counts }),
            LineItem::Other(OwnedDelivery::JobEnded { exit_code, .. }),
        ] => assert_eq!((origin.source.rank, counts.produced, *exit_code), (Rank(0), 7, Some(3))),
        ends => panic!("{ends:?}"),
    }
    assert_eq!(job.wait().code(), 3);
}

#[test]
fn lines_have_the_start_and_the_end_of_each_rank_once() {
    let engine = Engine::start(Config::new(Rendezvous::None)).unwrap();
    let nspace: Nspace = "ranks".parse().unwrap();
    let mut tool = engine.attach("test", Grant::Block).unwrap();
    let pull = Pull::new(vec![Proc::all(nspace.clone())], Channels::STDOUT);
    tool.pull(&Pull { reports_ranks: true, ..pull }).unwrap();
    let ranks = App::new("sh", ["-c", "echo out; exit $IOF_RANK"]).ranks(2);
    let job = engine.spawn(&JobSpec::new(nspace, vec![ranks])).unwrap();
    let reported = |item| match item {
        Ok(LineItem::Other(OwnedDelivery::Rank { info, .. })) => Some(info),
        _ => None,
    };
    let ranks: Vec<_> = Lines::new(tool).filter_map(reported).collect();
    assert!(ranks.iter().all(|info| info.pid > 0 && info.began.is_some()), "{ranks:?}");
    assert!(ranks.iter().all(|info| info.used.is_some() == info.exit_code.is_some()), "{ranks:?}");
    let mut reports: Vec<_> =
        ranks.iter().map(|info| (info.proc.rank.0, info.state, info.exit_code)).collect();
    reports[2..].sort_by_key(|(rank, ..)| *rank);
    let starts = [0, 1].map(|rank| (rank, ProcState::Running, None));
    let ends = [(0, ProcState::Terminated, Some(0)), (1, ProcState::Failed, Some(1))];
    assert_eq!(reports, [starts, ends].concat());
    assert_eq!(job.wait().code(), 1);
}

#[test]
fn a_launcher_passes_each_line_to_a_callback_and_returns_the_status() {
    let ranks = App::new("sh", ["-c", "echo out; echo err >&2; exit $((IOF_RANK > 0))"]).ranks(3);
    let launcher = Launcher::new("called".parse().unwrap()).app(ranks);
    let mut found = Vec::new();
    let mut call = |line: Line| found.push((line.source.rank.0, line.channel, line.bytes));
    let status = launcher.config(|config| config.rendezvous = Rendezvous::None).on_line(&mut call).unwrap();
    assert_eq!(status.code(), 1);
    found.sort();
    let lines = |rank| [(rank, Channel::Stdout, b"out".to_vec()), (rank, Channel::Stderr, b"err".to_vec())];
    assert_eq!(found, [0, 1, 2].map(lines).concat());
}

#[tokio::test(flavor = "current_thread")]
async fn an_async_tool_wakes_its_task_for_each_delivery_and_ends_after_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let (_engine, _job, tool) = start(&gate);
    let mut deliveries = AsyncTool::new(tool).unwrap();
    let (mut text, mut ends) = (Vec::new(), 0);
    while let Some(delivery) = poll_fn(|task| Pin::new(&mut deliveries).poll_next(task)).await {
        match delivery.unwrap() {
            OwnedDelivery::Bytes { offset, bytes, .. } => {
                assert_eq!(offset, text.len() as u64);
                text.extend(bytes);
                // The task waits for what the rank writes only now.
                File::create(&gate).unwrap();
            }
            OwnedDelivery::Complete { .. } | OwnedDelivery::JobEnded { .. } => ends += 1,
            delivery => panic!("{delivery:?}"),
        }
    }
    assert_eq!((text.as_slice(), ends), (&b"one\ntwo"[..], 2));
    assert!(deliveries.into_inner().is_done());
}

#[test]
fn lines_and_printers_count_a_stream_that_is_broken() {
    let engine = Engine::start(Config::new(Rendezvous::None)).unwrap();
    let nspace: Nspace = "broken".parse().unwrap();
    let pull = || {
        let mut tool = engine.attach("test", Grant::Block).unwrap();
        tool.pull(&Pull::new(vec![Proc::all(nspace.clone())], Channels::STDOUT)).unwrap();
        tool
    };
    let (lines, printed) = (Lines::new(pull()), pull());
    let output = Output::new(File::options().write(true).open("/dev/null").unwrap()).unwrap();
    let printer = Printer::start(printed, output, Options::default(), |_, _, _| {}).unwrap();
    let ends = [Info::required(key::IOF_BROKEN, 6u64)];
    let rank = Proc::new(nspace.clone(), Rank(0));
    engine.deliver(&rank, Channel::Stdout, b"one".to_vec(), &ends, || {}).unwrap();
    assert!(engine.end_job(&nspace, None));
    let incomplete: u64 = lines.map(|item| item.unwrap().incomplete()).sum();
    assert_eq!((incomplete, printer.join().unwrap().incomplete()), (1, 1));
}
