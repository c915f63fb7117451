//! Output that comes from elsewhere: it reaches tools as if the rank ran here, and ends once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};

use common::raw::Raw;
use common::{PATIENCE, nspace, shell, spec, wait};
use iof_engine::{
    App, Config, DeliverError, Engine, Grant, JobSpec, LaunchError, MAX_DELIVERED, Policy, Rendezvous,
};
use iof_proto::directive::key;
use iof_proto::{Channel, Channels, Directives, Info, InfoValue, Proc, Rank, Status, ToTool};
use iof_tool::{Delivery, Pull, RequestError, Tool};

const CACHE: u32 = 64 << 10;

fn engine_with(policy: Policy) -> Engine {
    Engine::start(Config { rendezvous: Rendezvous::None, policy, cache_size: CACHE, ..Config::default() })
        .unwrap()
}

fn rank(rank: u32) -> Proc {
    Proc { nspace: nspace(), rank: Rank(rank) }
}

fn whole_job() -> Proc {
    rank(Rank::WILDCARD.0)
}

fn complete() -> Info {
    Info::required(key::PMIX_IOF_COMPLETE, true)
}

fn deliver(engine: &Engine, from: u32, bytes: &[u8]) {
    engine.deliver(&rank(from), Channel::Stdout, bytes.to_vec(), &[], || {}).unwrap();
}

fn finish(engine: &Engine, from: u32) {
    engine.deliver(&rank(from), Channel::Stdout, Vec::new(), &[complete()], || {}).unwrap();
}

fn attach(engine: &Engine, grant: Grant, procs: Vec<Proc>) -> Tool {
    let mut tool = engine.attach("test", grant).unwrap();
    tool.pull(&Pull::new(procs, Channels::STDOUT)).unwrap();
    tool
}

/// What a tool got of one source.
#[derive(Debug, Default, PartialEq, Eq)]
struct Got {
    bytes: Vec<u8>,
    /// Where bytes are missing, and how many.
    gaps: Vec<(u64, u64)>,
    ended: bool,
}

/// Reads what `tool` gets until `enough` has come, or until all has.
fn read(tool: &mut Tool, enough: impl Fn(&BTreeMap<u32, Got>) -> bool) -> BTreeMap<u32, Got> {
    let mut all: BTreeMap<u32, Got> = BTreeMap::new();
    while !enough(&all) {
        let Some(delivery) = tool.next(Some(PATIENCE)).unwrap() else { break };
        let Some(origin) = delivery.origin() else { continue };
        let got = all.entry(origin.source.rank.0).or_default();
        match &delivery {
            Delivery::Bytes(bytes) => got.bytes.extend_from_slice(bytes),
            Delivery::Gap { gap, .. } => got.gaps.push((gap.offset, gap.lost)),
            Delivery::Complete { .. } => got.ended = true,
            other => panic!("{other:?}"),
        }
    }
    all
}

fn read_all(tool: &mut Tool) -> BTreeMap<u32, Got> {
    read(tool, |_| false)
}

fn whole(bytes: &[u8]) -> Got {
    Got { bytes: bytes.to_vec(), gaps: vec![], ended: true }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn who_registers_before_between_or_after_has_every_byte() {
    let engine = engine_with(Policy::DropNewest);
    let mut before = attach(&engine, Grant::Never, vec![rank(3)]);
    deliver(&engine, 3, b"one ");
    let mut between = attach(&engine, Grant::Never, vec![rank(3)]);
    deliver(&engine, 3, b"two ");
    engine.deliver(&rank(3), Channel::Stdout, b"three".to_vec(), &[complete()], || {}).unwrap();
    assert!(engine.end_job(&nspace(), None));
    let mut after = attach(&engine, Grant::Never, vec![rank(3)]);
    for tool in [&mut before, &mut between, &mut after] {
        assert_eq!(read_all(tool), [(3, whole(b"one two three"))].into());
    }
}

#[test]
fn a_registration_gets_what_it_names() {
    let engine = engine_with(Policy::DropNewest);
    let mut all = attach(&engine, Grant::Never, vec![whole_job()]);
    let mut one = attach(&engine, Grant::Never, vec![rank(1), rank(9)]);
    for from in 0..3 {
        deliver(&engine, from, from.to_string().as_bytes());
        let stderr = engine.deliver(&rank(from), Channel::Stderr, b"error".to_vec(), &[], || {});
        stderr.unwrap();
    }
    assert!(engine.end_job(&nspace(), None));
    assert_eq!(read_all(&mut all), [(0, whole(b"0")), (1, whole(b"1")), (2, whole(b"2"))].into());
    assert_eq!(read_all(&mut one), [(1, whole(b"1"))].into());
}

#[test]
fn under_every_policy_every_byte_is_delivered_or_reported_lost() {
    let bytes = pattern(1 << 20);
    for policy in [Policy::DropNewest, Policy::DropOldest, Policy::Block] {
        let engine = engine_with(policy);
        // It reads when all is over.
        let mut stalled = attach(&engine, Grant::Never, vec![whole_job()]);
        let mut quick = attach(&engine, Grant::Block, vec![whole_job()]);
        let reading = std::thread::spawn(move || read_all(&mut quick));
        for chunk in bytes.chunks(3001) {
            let deliver = || engine.deliver(&rank(0), Channel::Stdout, chunk.to_vec(), &[], || {});
            let full = |delivered: &Result<(), _>| matches!(delivered, Err(DeliverError::Full { .. }));
            common::wait_for("room", || Some(deliver()).filter(|delivered| !full(delivered))).unwrap();
        }
        finish(&engine, 0);
        assert!(engine.end_job(&nspace(), None));
        let quick = reading.join().unwrap();
        assert!(policy != Policy::Block || quick == [(0, whole(&bytes))].into(), "it holds back");
        let late = read_all(&mut attach(&engine, Grant::Never, vec![rank(0)]));
        for got in [quick, read_all(&mut stalled), late] {
            let got = &got[&0];
            // Everything is where it belongs.
            let (mut at, mut rest) = (0, &got.bytes[..]);
            for &(offset, lost) in &got.gaps {
                let (here, later) = rest.split_at(usize::try_from(offset).unwrap() - at);
                assert!(here == &bytes[at..at + here.len()], "{policy:?}");
                at += here.len() + usize::try_from(lost).unwrap();
                rest = later;
            }
            assert!(rest == &bytes[at..], "{policy:?}");
            assert!(got.ended);
        }
    }
}

#[test]
fn what_nobody_reads_yet_is_kept_from_its_first_byte_on() {
    let engine = engine_with(Policy::DropNewest);
    let bytes = pattern(1 << 20);
    bytes.chunks(1 << 16).for_each(|chunk| deliver(&engine, 0, chunk));
    finish(&engine, 0);
    assert!(engine.end_job(&nspace(), None));
    let got = read_all(&mut attach(&engine, Grant::Never, vec![rank(0)])).remove(&0).unwrap();
    assert!(!got.bytes.is_empty() && bytes.starts_with(&got.bytes));
    let kept = got.bytes.len() as u64;
    assert_eq!(got.gaps, [(kept, (1 << 20) - kept)]);
}

/// What the tool has heard of ends since the last time: `None` that no source will come, or the
/// job's exit code.
fn ends(raw: &mut Raw) -> Vec<Option<Option<i32>>> {
    raw.until_heard();
    let end = |end| if let ToTool::JobEnded { exit_code, .. } = end { Some(exit_code) } else { None };
    raw.ends.drain(..).map(end).collect()
}

fn raw_engine() -> (Engine, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let rendezvous = Rendezvous::Session(Some(directory.path().to_owned()));
    (Engine::start(Config { rendezvous, ..Config::default() }).unwrap(), directory)
}

fn raw_pull(engine: &Engine) -> Raw {
    let mut raw = Raw::connect(engine);
    raw.pull(vec![whole_job()], Channels::STDOUT);
    raw.next_pulled().unwrap();
    raw
}

#[test]
fn a_stream_is_complete_once_and_then_its_job_ends_once() {
    let (engine, _directory) = raw_engine();
    let mut raw = raw_pull(&engine);
    let mut tool = attach(&engine, Grant::Never, vec![whole_job()]);
    deliver(&engine, 0, b"all");
    finish(&engine, 0);
    let again = engine.deliver(&rank(0), Channel::Stdout, Vec::new(), &[complete()], || {}).unwrap_err();
    assert!(matches!(again, DeliverError::Complete { .. }));
    assert_eq!(again.status(), Status::ERR_IOF_COMPLETE);
    deliver(&engine, 1, b"open");
    let got = read(&mut tool, |got| got.len() == 2 && got[&0].ended);
    assert_eq!(got[&0], whole(b"all"));
    assert_eq!(ends(&mut raw), []);
    assert!(engine.end_job(&nspace(), Some(3)));
    assert!(!engine.end_job(&nspace(), Some(4)), "it was said before");
    let got = read_all(&mut tool);
    assert!(got[&1].ended && !got.contains_key(&0), "it ends once: {got:?}");
    let mut heard = Vec::new();
    common::wait_for("the end of the job", || {
        heard.extend(ends(&mut raw));
        (heard.len() == 2).then_some(())
    });
    assert_eq!(heard, [None, Some(Some(3))]);
    assert_eq!(ends(&mut raw), [], "and no second time");
    for from in [1, 2] {
        let late = engine.deliver(&rank(from), Channel::Stdout, b"x".to_vec(), &[], || {}).unwrap_err();
        assert_eq!(late.status(), Status::ERR_IOF_COMPLETE);
    }
}

#[test]
fn a_job_of_which_nobody_has_heard_ends_as_well() {
    let (engine, _directory) = raw_engine();
    let mut raw = raw_pull(&engine);
    assert!(engine.end_job(&nspace(), None));
    assert_eq!(ends(&mut raw), [None, Some(None)]);
    // Whoever comes later hears it, too.
    assert_eq!(ends(&mut raw_pull(&engine)), [None, Some(None)]);
}

#[test]
fn a_job_with_ranks_here_and_elsewhere_is_one() {
    let (engine, _directory) = raw_engine();
    let mut raw = raw_pull(&engine);
    let mut tool = attach(&engine, Grant::Never, vec![whole_job()]);
    let job = engine.spawn(&JobSpec { elsewhere: true, ..spec([shell("echo here; exit 5")]) }).unwrap();
    assert_eq!(wait(&job).code(), 5, "for its ranks here nobody waits");
    assert_eq!(ends(&mut raw), []);
    // A rank of which nothing is known may be elsewhere.
    tool.pull(&Pull::new(vec![rank(8)], Channels::STDERR)).unwrap();
    deliver(&engine, 1, b"there\n");
    let own = engine.deliver(&rank(0), Channel::Stdout, b"x".to_vec(), &[], || {}).unwrap_err();
    assert!(matches!(own, DeliverError::Captured(_)));
    assert!(engine.end_job(&nspace(), None));
    assert_eq!(read_all(&mut tool), [(0, whole(b"here\n")), (1, whole(b"there\n"))].into());
    common::wait_for("the end of the job", || ends(&mut raw).contains(&Some(Some(5))).then_some(()));
    let unknown = tool.pull(&Pull::new(vec![rank(8)], Channels::STDERR));
    assert!(matches!(unknown, Err(RequestError::Denied(failure)) if failure.status == Status::ERR_NOT_FOUND));
    tool.pull(&Pull::new(vec![rank(1)], Channels::STDERR)).unwrap();
}

#[test]
fn what_comes_before_the_job_starts_here_belongs_to_it() {
    let engine = engine_with(Policy::DropNewest);
    deliver(&engine, 1, b"there");
    let taken = |spec: &JobSpec| matches!(engine.spawn(spec), Err(LaunchError::NameTaken(_)));
    assert!(taken(&spec([shell("")])), "it has no ranks elsewhere");
    let two = spec([App { nprocs: 2, ..shell("") }]);
    assert!(taken(&JobSpec { elsewhere: true, ..two }), "rank 1 is one of them");
    let job = engine.spawn(&JobSpec { elsewhere: true, ..spec([shell("printf here")]) }).unwrap();
    deliver(&engine, 1, b" too");
    assert!(matches!(engine.spawn(&spec([shell("")])), Err(LaunchError::NameTaken(_))));
    wait(&job);
    assert!(engine.end_job(&nspace(), None));
    let mut tool = attach(&engine, Grant::Never, vec![whole_job()]);
    assert_eq!(read_all(&mut tool), [(0, whole(b"here")), (1, whole(b"there too"))].into());
}

#[test]
fn what_makes_no_sense_is_refused_and_says_why() {
    let engine = engine_with(Policy::DropNewest);
    let job = engine.spawn(&spec([shell("")])).unwrap();
    wait(&job);
    let refused = |from: &Proc, channel, infos: &[Info]| {
        engine.deliver(from, channel, b"x".to_vec(), infos, || panic!("it was not taken")).unwrap_err()
    };
    let far = Proc { nspace: iof_proto::Nspace::new("far").unwrap(), rank: Rank(0) };
    assert!(matches!(refused(&rank(1), Channel::Stdout, &[]), DeliverError::AllHere(_)));
    assert!(!engine.end_job(&nspace(), None), "all its ranks run here");
    assert!(matches!(refused(&rank(0), Channel::Stdout, &[]), DeliverError::Captured(_)));
    assert!(matches!(refused(&far, Channel::Stdin, &[]), DeliverError::NoSource { .. }));
    let all = Proc { rank: Rank::WILDCARD, ..far.clone() };
    assert!(matches!(refused(&all, Channel::Stdout, &[]), DeliverError::NoSource { .. }));
    for (key, value, status) in [
        ("site.colour", InfoValue::Bool(true), Status::ERR_NOT_SUPPORTED),
        (key::PMIX_IOF_COMPLETE, InfoValue::Number(1), Status::ERR_BAD_PARAM),
        (key::IOF_TIME, InfoValue::Bool(true), Status::ERR_BAD_PARAM),
    ] {
        assert_eq!(refused(&far, Channel::Stdout, &[Info::required(key, value.clone())]).status(), status);
        // None of these ends the stream.
        let optional = Info { key: key.into(), value, required: false };
        engine.deliver(&far, Channel::Stdout, Vec::new(), &[optional], || {}).unwrap();
    }
}

fn told(
    engine: &Engine,
    bytes: usize,
    number: usize,
    tell: &std::sync::mpsc::Sender<usize>,
) -> Result<(), DeliverError> {
    let tell = tell.clone();
    engine.deliver(&rank(0), Channel::Stdout, vec![b'x'; bytes], &[], move || tell.send(number).unwrap())
}

fn next(taken: &Receiver<usize>) -> usize {
    taken.recv_timeout(PATIENCE).expect("it is taken")
}

#[test]
fn the_host_hears_once_and_in_order_when_its_bytes_are_taken() {
    let engine = engine_with(Policy::DropNewest);
    let (tell, taken) = channel();
    (0..100).for_each(|number| told(&engine, number * 100, number, &tell).unwrap());
    (0..100).for_each(|number| assert_eq!(next(&taken), number));
    drop((engine, tell));
    assert!(taken.recv().is_err());
}

#[test]
fn a_reader_that_may_block_holds_deliveries_back_and_they_are_limited() {
    let engine = engine_with(Policy::Block);
    let mut tool = attach(&engine, Grant::Block, vec![whole_job()]);
    let (tell, taken) = channel();
    let mut sent = 0;
    let refused = loop {
        match told(&engine, 1 << 16, sent, &tell) {
            Ok(()) => sent += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.status(), Status::ERR_IOF_XOFF);
    assert!(sent as u64 >= MAX_DELIVERED >> 16);
    let DeliverError::Full { waiting } = refused else { panic!("{refused}") };
    assert!(waiting <= MAX_DELIVERED);
    let size = sent << 16;
    let got = read(&mut tool, |got| got.get(&0).is_some_and(|got| got.bytes.len() == size));
    assert_eq!(got[&0].gaps, []);
    (0..sent).for_each(|number| assert_eq!(next(&taken), number));
    // There is room again, even for more than the limit if it comes alone.
    told(&engine, 5 << 20, sent, &tell).unwrap();
    assert!(told(&engine, 1, 0, &tell).is_err());
    // The end alone may always come.
    finish(&engine, 0);
    drop(tool);
    assert_eq!(next(&taken), sent, "nobody holds it back any more");
}

#[test]
fn what_waits_when_the_engine_ends_is_no_longer_required() {
    let engine = engine_with(Policy::Block);
    let _holds_back = attach(&engine, Grant::Block, vec![whole_job()]);
    let (tell, taken) = channel();
    (0..10).for_each(|number| told(&engine, 1 << 16, number, &tell).unwrap());
    drop(engine);
    drop(tell);
    assert_eq!(taken.iter().collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
}

#[test]
fn a_job_that_is_to_be_forwarded_holds_deliveries_until_somebody_registers_or_it_lets_go() {
    let engine = engine_with(Policy::Block);
    let directives = Directives { forward: Some(Channels::STDOUT), ..Directives::default() };
    let job = engine.spawn(&JobSpec { elsewhere: true, directives, ..spec([shell("")]) }).unwrap();
    let fill = |from| loop {
        let delivered = engine.deliver(&rank(from), Channel::Stdout, vec![b'x'; 1 << 16], &[], || {});
        if let Err(refused) = delivered {
            assert!(matches!(refused, DeliverError::Full { .. }), "{refused}");
            return;
        }
    };
    fill(1);
    let mut tool = attach(&engine, Grant::Block, vec![rank(1)]);
    finish(&engine, 1);
    let got = read(&mut tool, |got| got.get(&1).is_some_and(|got| got.ended));
    assert_eq!(got[&1].gaps, [], "it was held from its first byte on");
    fill(2);
    job.release_backlog();
    // Neither that one is held any more, nor one that comes later.
    for from in [2, 3] {
        let (tell, taken) = channel();
        let tell = move || tell.send(0).unwrap();
        let again =
            || engine.deliver(&rank(from), Channel::Stdout, vec![b'x'; 6 << 20], &[], tell.clone()).ok();
        common::wait_for("room", again);
        assert_eq!(next(&taken), 0);
    }
    assert!(engine.end_job(&nspace(), None));
    wait(&job);
}
