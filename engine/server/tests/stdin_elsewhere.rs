//! Stdin of ranks that run elsewhere: the host receives it in pieces and decides about each piece.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use iof_engine::{Config, Engine, Grant, Host, HostReply, Rendezvous, StdinPush};
use iof_proto::directive::key;
use iof_proto::limits::{
    MAX_ANSWER, MAX_FAILURE_REASON, MAX_PROCS_PER_PULL, MAX_PUSHES_PER_PROCESS, MAX_PUSHES_PER_TARGET,
    MAX_PUSHES_PER_TOOL,
};
use iof_proto::{
    Failure, Info, PartialCause, PartialDelivery, PushReport, Rank, SlowTarget, SlowTargets, Status,
};
use iof_testing::engine::stdins::*;
use iof_testing::engine::{changed, nspace};
use iof_testing::noise::pattern;
use iof_testing::{TIMEOUT, wait_for};
use iof_tool::{LostError, Push, PushError, RequestError, Tool};

/// Ranks 0 and 1 of the job run here, all others elsewhere.
const LOCAL_RANKS: u32 = 2;

struct Piece {
    stdin: StdinPush,
    bytes: Vec<u8>,
    reply: HostReply,
}

/// A host that passes each piece to the test, which answers it.
struct ForwardingHost(Mutex<Sender<Piece>>);

impl Host for ForwardingHost {
    fn forwards_stdin(&self) -> bool {
        true
    }

    fn directives(&self) -> Vec<String> {
        vec!["site.colour".into()]
    }

    fn push_stdin(&self, stdin: &StdinPush, bytes: &[u8], reply: HostReply) {
        let piece = Piece { stdin: stdin.clone(), bytes: bytes.to_vec(), reply };
        // The test may have ended already.
        let _ = self.0.lock().unwrap().send(piece);
    }
}

struct Fixture {
    engine: Engine,
    pieces: Receiver<Piece>,
    local: Stdins,
}

fn fixture() -> Fixture {
    fixture_at(Rendezvous::None)
}

fn fixture_at(rendezvous: Rendezvous) -> Fixture {
    let (sender, pieces) = channel();
    let config = changed(Config::new(rendezvous), |config| config.cache_size = Some(65_536));
    let engine = Engine::start_with(config, Arc::new(ForwardingHost(Mutex::new(sender)))).unwrap();
    let local = Stdins::adopt_job(&engine, nspace(), LOCAL_RANKS, true);
    Fixture { engine, pieces, local }
}

impl Fixture {
    fn next(&self) -> Piece {
        self.pieces.recv_timeout(TIMEOUT).expect("the host receives a piece")
    }

    /// Grants all pieces of a push up to `length` bytes, and returns the bytes.
    fn take(&self, length: usize) -> Vec<u8> {
        let mut got = Vec::new();
        while got.len() < length {
            let Piece { bytes, reply, .. } = self.next();
            assert!(!bytes.is_empty() && bytes.len() <= 65_536);
            got.extend(bytes);
            reply.grant();
        }
        got
    }

    fn assert_end(&self) {
        let Piece { bytes, reply, .. } = self.next();
        assert_eq!(bytes, b"");
        reply.grant();
    }
}

/// Blocks until a push has ended, and returns its report.
fn report(tool: &mut Tool, push: u32) -> PushReport {
    wait_for("a report", || {
        tool.dispatch(Some(Duration::ZERO)).unwrap();
        tool.take_report(push).unwrap()
    })
}

#[test]
fn the_host_receives_every_byte_in_order_and_then_the_end_once() {
    let fixture = fixture();
    let directives = vec![Info::required(key::PMIX_IOF_COMPLETE, true), Info::required("site.colour", true)];
    let bytes = pattern(1_000_000);
    let push = Push { directives: directives.clone(), ..push_to(procs(&[7, 9])) };
    let pushing = pushing(&fixture.engine, &push, bytes.clone());
    let Piece { stdin, bytes: mut got, reply } = fixture.next();
    assert_eq!((stdin.targets, stdin.directives), (procs(&[7, 9]), directives));
    reply.grant();
    got.extend(fixture.take(bytes.len() - got.len()));
    assert!(got == bytes);
    assert!(!pushing.has_ended(), "the host has not taken the end yet");
    fixture.assert_end();
    assert_eq!(pushing.report(), complete_report(bytes.len(), 2));
    assert!(fixture.pieces.try_recv().is_err());
}

#[test]
fn without_an_end_the_host_receives_no_end() {
    let fixture = fixture();
    let pushing = pushing(&fixture.engine, &push_to(procs(&[7])), b"words".into());
    assert_eq!(fixture.take(5), b"words");
    assert_eq!(pushing.report(), complete_report(5, 1));
    assert!(fixture.pieces.try_recv().is_err());
}

#[test]
fn a_slow_host_receives_no_further_piece_and_the_push_waits_for_it() {
    let fixture = fixture();
    let (sender, waited) = channel();
    let mut tool = tool(&fixture.engine);
    let bytes = pattern(300_000);
    let pushing = thread::spawn({
        let bytes = bytes.clone();
        move || {
            let push = push_to(procs(&[5]));
            tool.push(&push, &bytes, |slow: &SlowTargets| sender.send(slow.clone()).unwrap())
        }
    });
    let Piece { bytes: first, reply, .. } = fixture.next();
    let slow = waited.recv_timeout(TIMEOUT).unwrap();
    let target = procs(&[5]).remove(0);
    assert_eq!(slow, SlowTargets { position: 0, targets: vec![SlowTarget { target, stalled: true }] });
    assert!(fixture.pieces.try_recv().is_err());
    // The answer may come from any thread.
    thread::spawn(move || reply.grant()).join().unwrap();
    let rest = fixture.take(bytes.len() - first.len());
    assert!([first, rest].concat() == bytes);
    assert_eq!(pushing.join().unwrap().unwrap(), complete_report(bytes.len(), 1));
}

#[test]
fn ranks_here_and_elsewhere_receive_the_same_bytes_completely() {
    let mut fixture = fixture();
    let bytes = pattern(500_000);
    let pushing = pushing(&fixture.engine, &final_push(all_ranks()), bytes.clone());
    let local = [0, 1].map(|rank| fixture.local.take(rank));
    let local = local.map(|file| {
        thread::spawn(move || {
            let mut got = Vec::new();
            std::io::Read::read_to_end(&mut &file, &mut got).unwrap();
            got
        })
    });
    let Piece { stdin, bytes: mut elsewhere, reply } = fixture.next();
    assert_eq!(stdin.targets, all_ranks(), "all ranks that run elsewhere");
    reply.grant();
    elsewhere.extend(fixture.take(bytes.len() - elsewhere.len()));
    fixture.assert_end();
    assert_eq!(pushing.report(), complete_report(bytes.len(), 3));
    assert!(elsewhere == bytes);
    for got in local {
        assert!(got.join().unwrap() == bytes);
    }
}

#[test]
fn a_host_that_denies_a_piece_ends_the_push_for_its_ranks_only() {
    let mut fixture = fixture();
    let bytes = pattern(400_000);
    let pushing = pushing(&fixture.engine, &final_push(procs(&[0, 8])), bytes.clone());
    let file = fixture.local.take(0);
    let local = thread::spawn(move || {
        let mut got = Vec::new();
        std::io::Read::read_to_end(&mut &file, &mut got).unwrap();
        got
    });
    let Piece { bytes: first, reply, .. } = fixture.next();
    reply.grant();
    fixture.next().reply.deny(Status(-1234), "that node is down");
    let report = pushing.report();
    assert!(local.join().unwrap() == bytes);
    assert_eq!((report.bytes, report.complete), (400_000, 1));
    let cause = PartialCause::Refused(Failure::new(Status(-1234), "that node is down"));
    let partial = [PartialDelivery { target: procs(&[8]).remove(0), delivered: first.len() as u64, cause }];
    assert_eq!(report.partial, partial);
    assert!(fixture.pieces.try_recv().is_err());
}

/// Puts `bytes` into the inlet of a push.
fn fill(tool: &mut Tool, push: u32, bytes: &[u8], last: bool) {
    tool.push_room(push)[..bytes.len()].copy_from_slice(bytes);
    tool.fill(push, bytes.len(), last).unwrap();
}

#[test]
fn a_host_that_pauses_a_tool_receives_the_rest_after_it_resumes_it() {
    let fixture = fixture();
    let mut tool = fixture.engine.attach("pusher", Grant::Never).unwrap();
    let push = tool.begin_push(&final_push(procs(&[8])), None).unwrap().push;
    fill(&mut tool, push, b"first", false);
    let Piece { stdin, bytes, reply } = fixture.next();
    assert_eq!((stdin.source.to_string().as_str(), &bytes[..]), ("pusher.0", &b"first"[..]));
    reply.pause();
    fill(&mut tool, push, b"second", true);
    // The push of another tool does not wait.
    let mut other = fixture.engine.attach("other.3", Grant::Never).unwrap();
    let others = other.begin_push(&push_to(procs(&[9])), None).unwrap().push;
    fill(&mut other, others, b"else", true);
    let Piece { stdin: of_other, bytes, reply } = fixture.next();
    assert_eq!((of_other.source.to_string().as_str(), &bytes[..]), ("other.3", &b"else"[..]));
    reply.grant();
    fixture.engine.resume_stdin(Some(&stdin.source), || {});
    let Piece { bytes, reply, .. } = fixture.next();
    assert_eq!(bytes, b"second");
    let (sender, paused) = channel();
    fixture.engine.pause_stdin(None, move || sender.send(()).unwrap());
    paused.recv_timeout(TIMEOUT).unwrap();
    reply.grant();
    fixture.engine.resume_stdin(None, || {});
    // The host confirms the end.
    let Piece { bytes, reply, .. } = fixture.next();
    assert_eq!(bytes, b"");
    reply.deny(Status::ERR_IOF_COMPLETE, "the stdin is closed");
    assert_eq!(report(&mut tool, push), complete_report(11, 1));
}

#[test]
fn a_dropped_reply_counts_as_a_denial() {
    let fixture = fixture();
    let pushing = pushing(&fixture.engine, &final_push(procs(&[8])), b"lost".into());
    drop(fixture.next());
    let report = pushing.report();
    assert_eq!((report.bytes, report.complete, report.partial.len()), (4, 0, 1), "{report:?}");
    assert!(
        matches!(&report.partial[0], PartialDelivery { delivered: 0, cause: PartialCause::Refused(_), .. }),
        "{report:?}"
    );
}

#[test]
fn a_dropping_push_cuts_off_a_silent_host_whose_late_answer_changes_nothing() {
    let fixture = fixture();
    let bytes = pattern(300_000);
    let push = push_with(procs(&[0, 8]), &[key::PMIX_IOF_DROP_NEWEST, key::PMIX_IOF_COMPLETE]);
    let pushing = pushing(&fixture.engine, &push, bytes.clone());
    let silent = fixture.next();
    assert!(fixture.local.read(0, bytes.len()) == bytes);
    let report = pushing.report();
    assert_eq!((report.bytes, report.complete), (300_000, 1));
    assert_eq!(report.partial, [partial_delivery(8, 0, PartialCause::CutOff)]);
    silent.reply.grant();
    // Nothing follows, and the engine still serves pushes.
    let again = iof_testing::engine::stdins::pushing(&fixture.engine, &push_to(procs(&[8])), b"again".into());
    assert_eq!(fixture.take(5), b"again");
    assert_eq!(again.report(), complete_report(5, 1));
}

#[test]
fn bytes_of_a_disconnected_tool_still_reach_the_host() {
    let fixture = fixture();
    let mut tool = tool(&fixture.engine);
    let push = tool.begin_push(&final_push(procs(&[8])), None).unwrap().push;
    tool.push_room(push)[..4].copy_from_slice(b"left");
    tool.fill(push, 4, false).unwrap();
    drop(tool);
    assert_eq!(fixture.take(4), b"left");
    fixture.assert_end();
}

#[test]
fn an_engine_that_ends_during_a_piece_fails_the_push() {
    let Fixture { engine, pieces, local: _local } = fixture();
    let pushing = pushing(&engine, &final_push(procs(&[8])), pattern(300_000));
    let silent = pieces.recv_timeout(TIMEOUT).unwrap();
    drop(engine);
    let result = pushing.result();
    assert!(matches!(result, Err(PushError::Request(RequestError::Lost(LostError::Closed)))), "{result:?}");
    silent.reply.grant();
}

#[test]
fn without_a_forwarding_host_ranks_elsewhere_are_refused_or_skipped() {
    let engine = engine_with_cache(65_536);
    let mut local = Stdins::adopt_job(&engine, nspace(), LOCAL_RANKS, true);
    let mut tool = tool(&engine);
    for targets in [procs(&[0, 8]), all_ranks()] {
        let refused = refusal(tool.push(&push_to(targets), b"x", |_| {}));
        assert_eq!(refused.status, Status::ERR_NOT_SUPPORTED);
        assert!(refused.reason.contains("runs on another node, to which no stdin is forwarded"), "{refused}");
        assert!(local.is_quiet(0));
    }
    let push = push_with(procs(&[0, 8]), &[key::IOF_PARTIAL, key::PMIX_IOF_COMPLETE]);
    assert_eq!(tool.push(&push, b"here", |_| {}).unwrap(), complete_report(4, 1));
    assert_eq!(local.rest(0), b"here");
}

#[test]
fn after_the_job_has_ended_elsewhere_its_ranks_there_no_longer_exist() {
    let fixture = fixture();
    fixture.engine.end_job(&nspace(), Some(0));
    let refused = refusal(tool(&fixture.engine).push(&push_to(procs(&[8])), b"x", |_| {}));
    assert_eq!(refused.status, Status::ERR_NOT_FOUND);
    assert_eq!(push(&fixture.engine, &push_to(all_ranks()), b"here"), complete_report(4, 2));
}

#[test]
fn pushes_to_the_same_ranks_elsewhere_wait_for_each_other_and_others_do_not() {
    let fixture = fixture();
    let mut tool = tool(&fixture.engine);
    let mut begun = Vec::new();
    for targets in [procs(&[8, 9]), procs(&[7, 8]), procs(&[5]), all_ranks(), procs(&[6])] {
        let push = tool.begin_push(&push_to(targets), None).unwrap().push;
        tool.push_room(push)[0] = push as u8;
        tool.fill(push, 1, true).unwrap();
        begun.push(push);
    }
    let next = |ranks: &[u32]| {
        let Piece { stdin, bytes, reply } = fixture.next();
        assert_eq!((stdin.targets, bytes.len()), (procs(ranks), 1));
        reply
    };
    let (first, third) = (next(&[8, 9]), next(&[5]));
    let waits = |rank: u32| SlowTarget { target: procs(&[rank]).remove(0), stalled: false };
    assert_eq!(tool.slow_targets(begun[1], None).unwrap().targets, [waits(7), waits(8)]);
    assert_eq!(tool.slow_targets(begun[4], None).unwrap().targets, [waits(6)]);
    assert!(fixture.pieces.try_recv().is_err());
    // A push that was denied has had its turn, too.
    first.deny(Status(-1), "no");
    next(&[7, 8]).grant();
    // The push to all ranks waits for both.
    third.grant();
    let fourth = next(&[Rank::WILDCARD.0]);
    assert!(fixture.pieces.try_recv().is_err());
    fourth.grant();
    next(&[6]).grant();
    let complete = begun.into_iter().map(|push| report(&mut tool, push).complete);
    assert_eq!(complete.collect::<Vec<_>>(), [0, 2, 1, 3, 1]);
    assert_eq!(fixture.local.read(0, 1), [4]);
}

#[test]
fn a_tool_that_does_not_read_its_credit_is_still_served() {
    // More credit messages than a socket holds, and than may wait behind unread answers.
    const PIECES: usize = 2000;
    let fixture = fixture();
    let mut tool = tool(&fixture.engine);
    let push = tool.begin_push(&push_to(procs(&[7])), None).unwrap().push;
    for _ in 0..PIECES {
        tool.push_room(push)[0] = b'x';
        tool.fill(push, 1, false).unwrap();
        assert_eq!(fixture.take(1), b"x");
    }
    tool.fill(push, 0, true).unwrap();
    assert_eq!(report(&mut tool, push), complete_report(PIECES, 1));
}

#[test]
fn pushes_that_wait_for_the_host_at_one_rank_are_limited() {
    let fixture = fixture();
    let mut crowd = begin_max_pushes(&fixture.engine, &push_to(procs(&[7])));
    let mut other = tool(&fixture.engine);
    for targets in [procs(&[7]), procs(&[6, 7]), all_ranks()] {
        let refused = refusal(other.begin_push(&push_to(targets), None));
        assert_eq!(refused.status, Status::ERR_RESOURCE_BUSY);
        assert!(refused.reason.contains(&format!("{MAX_PUSHES_PER_TARGET} pushes wait")), "{refused}");
    }
    other.begin_push(&push_to(procs(&[0, 6])), None).unwrap();
    let (first, begun) = &mut crowd[0];
    first.fill(begun[0], 0, true).unwrap();
    assert_eq!(report(first, begun[0]), complete_report(0, 1));
    other.begin_push(&push_to(procs(&[7])), None).unwrap();
}

#[test]
fn a_report_with_too_many_reasons_is_shortened_until_it_fits() {
    const TARGETS: u32 = MAX_PROCS_PER_PULL as u32;
    let fixture = fixture();
    let ranks: Vec<u32> = (LOCAL_RANKS..LOCAL_RANKS + TARGETS).collect();
    let pushing = pushing(&fixture.engine, &push_to(procs(&ranks)), b"x".into());
    let reason = "n".repeat(MAX_FAILURE_REASON);
    assert!(TARGETS as usize * reason.len() >= MAX_ANSWER);
    fixture.next().reply.deny(Status::ERR_NOT_SUPPORTED, reason.as_str());
    let report = pushing.report();
    assert_eq!((report.bytes, report.complete, report.partial.len()), (1, 0, TARGETS as usize / 2));
    let named = (LOCAL_RANKS..).zip(&report.partial).all(|(rank, short)| {
        let PartialDelivery { target, delivered: 0, cause: PartialCause::Refused(why) } = short else {
            return false;
        };
        target.rank == Rank(rank) && why.reason.contains(&reason)
    });
    assert!(named);
}

/// A host that reports the rank of each piece to the test, and blocks at a piece for rank 5 until
/// the barrier is dropped.
struct BlockingHost {
    received: Mutex<Sender<Rank>>,
    barrier: Mutex<Receiver<()>>,
}

impl Host for BlockingHost {
    fn forwards_stdin(&self) -> bool {
        true
    }

    fn push_stdin(&self, stdin: &StdinPush, _: &[u8], reply: HostReply) {
        let rank = stdin.targets[0].rank;
        // The test may have ended already.
        let _ = self.received.lock().unwrap().send(rank);
        if rank == Rank(5) {
            let _ = self.barrier.lock().unwrap().recv();
        }
        reply.grant();
    }
}

#[test]
fn a_tool_with_many_messages_does_not_delay_the_turns_of_others() {
    let ((sender, received), (barrier, wait)) = (channel(), channel());
    let host = BlockingHost { received: Mutex::new(sender), barrier: Mutex::new(wait) };
    let config = changed(Config::new(Rendezvous::None), |config| config.cache_size = Some(65_536));
    let engine = Engine::start_with(config, Arc::new(host)).unwrap();
    let _local = Stdins::adopt_job(&engine, nspace(), LOCAL_RANKS, true);
    let (mut busy, mut other) = (tool(&engine), tool(&engine));
    let much = busy.begin_push(&push_to(procs(&[5])), None).unwrap().push;
    let waiting = busy.begin_push(&push_to(procs(&[7])), None).unwrap().push;
    let others = other.begin_push(&push_to(procs(&[8])), None).unwrap().push;
    busy.fill(much, 1, false).unwrap();
    assert_eq!(received.recv_timeout(TIMEOUT).unwrap(), Rank(5));
    // The control thread is blocked now, so all of this waits when it looks again.
    for _ in 0..100 {
        busy.fill(much, 1, false).unwrap();
    }
    busy.fill(waiting, 1, false).unwrap();
    other.fill(others, 1, false).unwrap();
    drop(barrier);
    let mut order = (0..).map(|_| received.recv_timeout(TIMEOUT).unwrap()).filter(|rank| *rank != Rank(5));
    assert_eq!([order.next(), order.next()], [Some(Rank(8)), Some(Rank(7))]);
}

#[test]
fn pushes_left_behind_by_one_process_are_limited_whatever_their_ranks() {
    let directory = tempfile::tempdir().unwrap();
    let rendezvous = Rendezvous::Session(Some(directory.path().to_owned()));
    let Fixture { engine, pieces, local: _local } = fixture_at(rendezvous);
    let connect = || Tool::connect(engine.socket().unwrap(), "leaves").unwrap();
    let mut ranks = LOCAL_RANKS..;
    for _ in 0..MAX_PUSHES_PER_PROCESS / MAX_PUSHES_PER_TOOL {
        let mut tool = connect();
        for rank in ranks.by_ref().take(MAX_PUSHES_PER_TOOL) {
            let push = tool.begin_push(&push_to(procs(&[rank])), Some(1)).unwrap().push;
            tool.push_room(push)[0] = b'x';
            // The host does not answer, so the push does not end when its tool disconnects.
            tool.fill(push, 1, true).unwrap();
        }
    }
    let mut again = connect();
    let next = push_to(procs(&[ranks.next().unwrap()]));
    let refused = refusal(again.begin_push(&next, None));
    assert_eq!(refused.status, Status::ERR_OUT_OF_RESOURCE);
    assert!(refused.reason.contains("has 256 of at most 256 pushes in progress"), "{refused}");
    // The limit does not apply to the embedder.
    tool(&engine).begin_push(&next, None).unwrap();
    pieces.recv_timeout(TIMEOUT).unwrap().reply.grant();
    wait_for("a push to end", || again.begin_push(&next, None).ok());
}
