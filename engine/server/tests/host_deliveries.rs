//! Output delivered from elsewhere: it reaches tools as if the rank ran on this node, and ends
//! once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};

use iof_engine::{Config, DeliverError, Engine, Grant, JobSpec, LaunchError, MAX_DELIVERED, Mpi, Policy};
use iof_proto::directive::key;
use iof_proto::{Channel, Channels, Directives, Info, InfoValue, Proc, Rank, Status, ToTool};
use iof_testing::TIMEOUT;
use iof_testing::engine::raw::RawTool;
use iof_testing::engine::streams::engine_with_policy;
use iof_testing::engine::{changed, nspace, session, shell, spec, wait};
use iof_testing::noise::pattern;
use iof_tool::{Delivery, Pull, RequestError, Tool};

const CACHE: u32 = 64 << 10;

fn engine_with(policy: Policy) -> Engine {
    engine_with_policy(policy, CACHE)
}

fn rank(rank: u32) -> Proc {
    Proc::new(nspace(), Rank(rank))
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

/// The bytes that a tool has received of one source.
#[derive(Debug, Default, PartialEq, Eq)]
struct Received {
    bytes: Vec<u8>,
    /// The position and length of each gap.
    gaps: Vec<(u64, u64)>,
    ended: bool,
}

/// Reads until `enough` returns true or no more deliveries follow.
fn read(tool: &mut Tool, enough: impl Fn(&BTreeMap<u32, Received>) -> bool) -> BTreeMap<u32, Received> {
    let mut all: BTreeMap<u32, Received> = BTreeMap::new();
    while !enough(&all) {
        let Some(delivery) = tool.recv_timeout(TIMEOUT).unwrap() else { break };
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

fn read_all(tool: &mut Tool) -> BTreeMap<u32, Received> {
    read(tool, |_| false)
}

fn whole(bytes: &[u8]) -> Received {
    Received { bytes: bytes.to_vec(), gaps: vec![], ended: true }
}

#[test]
fn a_tool_receives_every_byte_whenever_it_registers() {
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
fn a_registration_receives_the_processes_that_it_names() {
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
fn under_every_policy_every_byte_is_delivered_or_counted_as_lost() {
    let bytes = pattern(1 << 20);
    for policy in [Policy::DropNewest, Policy::DropOldest, Policy::Block] {
        let engine = engine_with(policy);
        // Reads only after the end.
        let mut stalled = attach(&engine, Grant::Never, vec![whole_job()]);
        let mut quick = attach(&engine, Grant::Block, vec![whole_job()]);
        let reading = std::thread::spawn(move || read_all(&mut quick));
        for chunk in bytes.chunks(3001) {
            let deliver = || engine.deliver(&rank(0), Channel::Stdout, chunk.to_vec(), &[], || {});
            let full = |delivered: &Result<(), _>| matches!(delivered, Err(DeliverError::Full { .. }));
            iof_testing::wait_for("room", || Some(deliver()).filter(|delivered| !full(delivered))).unwrap();
        }
        finish(&engine, 0);
        assert!(engine.end_job(&nspace(), None));
        let quick = reading.join().unwrap();
        assert!(
            policy != Policy::Block || quick == [(0, whole(&bytes))].into(),
            "the tool holds back the deliveries"
        );
        let late = read_all(&mut attach(&engine, Grant::Never, vec![rank(0)]));
        for got in [quick, read_all(&mut stalled), late] {
            let got = &got[&0];
            // All bytes are at their offsets.
            let (mut offset, mut rest) = (0, &got.bytes[..]);
            for &(gap, lost) in &got.gaps {
                let (before, after) = rest.split_at(usize::try_from(gap).unwrap() - offset);
                assert!(before == &bytes[offset..offset + before.len()], "{policy:?}");
                offset += before.len() + usize::try_from(lost).unwrap();
                rest = after;
            }
            assert!(rest == &bytes[offset..], "{policy:?}");
            assert!(got.ended);
        }
    }
}

#[test]
fn without_a_reader_deliveries_are_kept_from_their_first_byte_on() {
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

/// Returns the ends that the tool has received since the last call: `None` for "no source will
/// follow", else the job's exit code.
fn ends(raw: &mut RawTool) -> Vec<Option<Option<i32>>> {
    raw.sync();
    let end = |end| if let ToTool::JobEnded { exit_code, .. } = end { Some(exit_code) } else { None };
    raw.ends.drain(..).map(end).collect()
}

fn raw_pull(engine: &Engine) -> RawTool {
    let mut raw = RawTool::connect(engine);
    raw.pull(vec![whole_job()], Channels::STDOUT);
    raw.next_pulled().unwrap();
    raw
}

#[test]
fn a_stream_completes_once_and_then_its_job_ends_once() {
    let (engine, _directory) = session(Config::default());
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
    assert!(!engine.end_job(&nspace(), Some(4)), "the job has ended already");
    let got = read_all(&mut tool);
    assert!(got[&1].ended && !got.contains_key(&0), "the stream ends once: {got:?}");
    let mut received = Vec::new();
    iof_testing::wait_for("the end of the job", || {
        received.extend(ends(&mut raw));
        (received.len() == 2).then_some(())
    });
    assert_eq!(received, [None, Some(Some(3))]);
    assert_eq!(ends(&mut raw), [], "no end is sent twice");
    for from in [1, 2] {
        let late = engine.deliver(&rank(from), Channel::Stdout, b"x".to_vec(), &[], || {}).unwrap_err();
        assert_eq!(late.status(), Status::ERR_IOF_COMPLETE);
    }
}

#[test]
fn an_unknown_job_can_be_ended_too() {
    let (engine, _directory) = session(Config::default());
    let mut raw = raw_pull(&engine);
    assert!(engine.end_job(&nspace(), None));
    assert_eq!(ends(&mut raw), [None, Some(None)]);
    // A tool that registers later receives the end, too.
    assert_eq!(ends(&mut raw_pull(&engine)), [None, Some(None)]);
}

#[test]
fn a_job_with_ranks_here_and_elsewhere_is_one_job() {
    let (engine, _directory) = session(Config::default());
    let mut raw = raw_pull(&engine);
    let mut tool = attach(&engine, Grant::Never, vec![whole_job()]);
    let here = changed(spec([shell("echo here; exit 5")]), |job| job.elsewhere = true);
    let with_mpi = engine.spawn(&changed(here.clone(), |job| job.mpi = Mpi::Auto));
    assert!(matches!(with_mpi, Err(LaunchError::MpiElsewhere)), "{with_mpi:?}");
    let job = engine.spawn(&here).unwrap();
    assert_eq!(wait(&job).code(), 5, "its local ranks have exited");
    assert_eq!(ends(&mut raw), []);
    // An unknown rank may run elsewhere.
    tool.pull(&Pull::new(vec![rank(8)], Channels::STDERR)).unwrap();
    deliver(&engine, 1, b"there\n");
    let own = engine.deliver(&rank(0), Channel::Stdout, b"x".to_vec(), &[], || {}).unwrap_err();
    assert!(matches!(own, DeliverError::Captured(_)));
    assert!(engine.end_job(&nspace(), None));
    assert_eq!(read_all(&mut tool), [(0, whole(b"here\n")), (1, whole(b"there\n"))].into());
    iof_testing::wait_for("the end of the job", || ends(&mut raw).contains(&Some(Some(5))).then_some(()));
    let unknown = tool.pull(&Pull::new(vec![rank(8)], Channels::STDERR));
    assert!(matches!(unknown, Err(RequestError::Denied(failure)) if failure.status == Status::ERR_NOT_FOUND));
    tool.pull(&Pull::new(vec![rank(1)], Channels::STDERR)).unwrap();
}

#[test]
fn deliveries_before_a_job_starts_here_belong_to_it() {
    let engine = engine_with(Policy::DropNewest);
    deliver(&engine, 1, b"there");
    let taken = |spec: &JobSpec| matches!(engine.spawn(spec), Err(LaunchError::NameTaken(_)));
    assert!(taken(&spec([shell("")])), "the new job has no ranks elsewhere");
    let two = spec([shell("").ranks(2)]);
    assert!(taken(&changed(two, |job| job.elsewhere = true)), "rank 1 occurs in both");
    let job = engine.spawn(&changed(spec([shell("printf here")]), |job| job.elsewhere = true)).unwrap();
    deliver(&engine, 1, b" too");
    assert!(matches!(engine.spawn(&spec([shell("")])), Err(LaunchError::NameTaken(_))));
    wait(&job);
    assert!(engine.end_job(&nspace(), None));
    let mut tool = attach(&engine, Grant::Never, vec![whole_job()]);
    assert_eq!(read_all(&mut tool), [(0, whole(b"here")), (1, whole(b"there too"))].into());
}

#[test]
fn offsets_make_gaps_and_a_broken_end_tells_how_many_bytes_are_missing() {
    let engine = engine_with(Policy::Block);
    let deliver = |bytes: &[u8], infos: &[Info]| {
        engine.deliver(&rank(0), Channel::Stdout, bytes.to_vec(), infos, || {})
    };
    let at = |offset: u64| Info::required(key::IOF_OFFSET, offset);
    deliver(b"abc", &[at(0)]).unwrap();
    deliver(b"hi", &[at(7)]).unwrap();
    let repeated = deliver(b"hi", &[at(8)]).unwrap_err();
    assert!(matches!(repeated, DeliverError::Offset { offset: 8, position: 9, .. }), "{repeated}");
    deliver(b"", &[at(10)]).unwrap();
    deliver(b"k", &[Info::required(key::IOF_BROKEN, 6u64)]).unwrap();
    assert!(matches!(deliver(b"", &[complete()]), Err(DeliverError::Complete { .. })));
    assert!(engine.end_job(&nspace(), None));
    let mut tool = attach(&engine, Grant::Block, vec![whole_job()]);
    let mut received = Vec::new();
    while let Some(delivery) = tool.recv().unwrap() {
        received.push(match delivery {
            Delivery::Bytes(bytes) => (bytes.offset(), String::from_utf8(bytes.to_vec()).unwrap()),
            Delivery::Gap { gap, .. } => (gap.offset, format!("{} lost", gap.lost)),
            Delivery::Broken { counts, missing, .. } => {
                assert_eq!((counts.delivered, counts.lost), (6, 5));
                (counts.produced, format!("{missing} missing"))
            }
            Delivery::JobEnded { .. } => continue,
            other => panic!("{other:?}"),
        });
    }
    let expected = [(0, "abc"), (3, "4 lost"), (7, "hi"), (9, "1 lost"), (10, "k"), (11, "6 missing")];
    assert_eq!(received, expected.map(|(offset, text)| (offset, text.to_owned())));
    let found = tool.query(&[iof_proto::query::key::IOF_QUERY_STATS]).unwrap();
    let missing = found.into_iter().find_map(|found| match found.value {
        iof_proto::Value::Streams(streams) => streams.first()?.missing,
        _ => None,
    });
    assert_eq!(missing, Some(6));
}

#[test]
fn invalid_deliveries_are_refused_with_a_reason() {
    let engine = engine_with(Policy::DropNewest);
    let job = engine.spawn(&spec([shell("")])).unwrap();
    wait(&job);
    let refused = |from: &Proc, channel, infos: &[Info]| {
        engine
            .deliver(from, channel, b"x".to_vec(), infos, || panic!("the delivery was refused"))
            .unwrap_err()
    };
    let remote = Proc::new(iof_proto::Nspace::new("far").unwrap(), Rank(0));
    assert!(matches!(refused(&rank(1), Channel::Stdout, &[]), DeliverError::NoRemoteRanks(_)));
    assert!(!engine.end_job(&nspace(), None), "all its ranks run here");
    assert!(matches!(refused(&rank(0), Channel::Stdout, &[]), DeliverError::Captured(_)));
    assert!(matches!(refused(&remote, Channel::Stdin, &[]), DeliverError::NoSource { .. }));
    let all = Proc { rank: Rank::WILDCARD, ..remote.clone() };
    assert!(matches!(refused(&all, Channel::Stdout, &[]), DeliverError::NoSource { .. }));
    for (key, value, status) in [
        ("site.colour", InfoValue::Bool(true), Status::ERR_NOT_SUPPORTED),
        (key::PMIX_IOF_COMPLETE, InfoValue::Number(1), Status::ERR_BAD_PARAM),
        (key::IOF_READ_TIME, InfoValue::Bool(true), Status::ERR_BAD_PARAM),
    ] {
        assert_eq!(refused(&remote, Channel::Stdout, &[Info::required(key, value.clone())]).status(), status);
        // None of these optional directives ends the stream.
        let optional = Info { key: key.into(), value, required: false };
        engine.deliver(&remote, Channel::Stdout, Vec::new(), &[optional], || {}).unwrap();
    }
}

fn deliver_numbered(
    engine: &Engine,
    bytes: usize,
    number: usize,
    sender: &std::sync::mpsc::Sender<usize>,
) -> Result<(), DeliverError> {
    let sender = sender.clone();
    engine.deliver(&rank(0), Channel::Stdout, vec![b'x'; bytes], &[], move || sender.send(number).unwrap())
}

fn next(taken: &Receiver<usize>) -> usize {
    taken.recv_timeout(TIMEOUT).expect("the bytes are taken")
}

#[test]
fn each_delivery_is_acknowledged_once_and_in_order() {
    let engine = engine_with(Policy::DropNewest);
    let (sender, taken) = channel();
    (0..100).for_each(|number| deliver_numbered(&engine, number * 100, number, &sender).unwrap());
    (0..100).for_each(|number| assert_eq!(next(&taken), number));
    drop((engine, sender));
    assert!(taken.recv().is_err());
}

#[test]
fn a_blocking_reader_holds_deliveries_back_up_to_a_limit() {
    let engine = engine_with(Policy::Block);
    let mut tool = attach(&engine, Grant::Block, vec![whole_job()]);
    let (sender, taken) = channel();
    let mut sent = 0;
    let refused = loop {
        match deliver_numbered(&engine, 1 << 16, sent, &sender) {
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
    // There is room again. A single delivery may exceed the limit.
    deliver_numbered(&engine, 5 << 20, sent, &sender).unwrap();
    assert!(deliver_numbered(&engine, 1, 0, &sender).is_err());
    // A delivery without bytes is always accepted.
    finish(&engine, 0);
    drop(tool);
    assert_eq!(next(&taken), sent, "no reader holds back the delivery any more");
}

#[test]
fn waiting_deliveries_are_acknowledged_when_the_engine_ends() {
    let engine = engine_with(Policy::Block);
    let _holds_back = attach(&engine, Grant::Block, vec![whole_job()]);
    let (sender, taken) = channel();
    (0..10).for_each(|number| deliver_numbered(&engine, 1 << 16, number, &sender).unwrap());
    drop(engine);
    drop(sender);
    assert_eq!(taken.iter().collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
}

#[test]
fn a_forwarded_job_holds_deliveries_until_a_registration_or_the_release() {
    let engine = engine_with(Policy::Block);
    let directives = Directives { forward: Some(Channels::STDOUT), ..Directives::default() };
    let mut job = spec([shell("")]);
    (job.elsewhere, job.directives) = (true, directives);
    let job = engine.spawn(&job).unwrap();
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
    assert_eq!(got[&1].gaps, [], "the stream was held from its first byte on");
    fill(2);
    job.release_backlog();
    // Neither this stream nor a later one is held any more.
    for from in [2, 3] {
        let (sender, taken) = channel();
        let taken_callback = move || sender.send(0).unwrap();
        let again = || {
            engine
                .deliver(&rank(from), Channel::Stdout, vec![b'x'; 6 << 20], &[], taken_callback.clone())
                .ok()
        };
        iof_testing::wait_for("room", again);
        assert_eq!(next(&taken), 0);
    }
    assert!(engine.end_job(&nspace(), None));
    wait(&job);
}

#[test]
fn every_callback_is_called_although_one_before_it_panics() {
    let engine = engine_with(Policy::DropOldest);
    let deliver = |taken: Box<dyn FnOnce() + Send>| {
        engine.deliver(&rank(0), Channel::Stdout, b"x".to_vec(), &[], taken).unwrap();
    };
    let (release, held) = channel::<()>();
    // The callbacks that follow are queued meanwhile, most of them for one turn.
    deliver(Box::new(move || _ = held.recv()));
    // Unlike panic!, this prints nothing on stderr.
    deliver(Box::new(|| std::panic::resume_unwind(Box::new(()))));
    let (sender, called) = channel();
    for number in 0..100 {
        let sender = sender.clone();
        deliver(Box::new(move || sender.send(number).unwrap()));
    }
    drop(release);
    for number in 0..100 {
        assert_eq!(called.recv_timeout(TIMEOUT), Ok(number));
    }
}
