//! Stdin of ranks that run elsewhere: the host is brought it, piece by piece, and has the say.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use common::stdins::*;
use common::{PATIENCE, nspace, wait_for};
use iof_engine::{Config, Engine, Host, Rendezvous, Reply, StdinPush};
use iof_proto::directive::key;
use iof_proto::limits::{MAX_ANSWER, MAX_PUSHES_PER_PROCESS, MAX_PUSHES_PER_TARGET, MAX_PUSHES_PER_TOOL};
use iof_proto::{Info, PartialCause, PartialDelivery, PushReport, Rank, SlowTarget, SlowTargets, Status};
use iof_tool::{LostError, Push, PushError, RequestError, Tool};

/// Of this job rank 0 and 1 run here, all others elsewhere.
const HERE: u32 = 2;

struct Piece {
    stdin: StdinPush,
    bytes: Vec<u8>,
    reply: Reply,
}

/// Tells the test what it is brought, and leaves the answer to it.
struct Far(Mutex<Sender<Piece>>);

impl Host for Far {
    fn forwards_stdin(&self) -> bool {
        true
    }

    fn directives(&self) -> Vec<String> {
        vec!["site.colour".into()]
    }

    fn push_stdin(&self, stdin: &StdinPush, bytes: &[u8], reply: Reply) {
        let piece = Piece { stdin: stdin.clone(), bytes: bytes.to_vec(), reply };
        // The test may be over.
        let _ = self.0.lock().unwrap().send(piece);
    }
}

struct World {
    engine: Engine,
    pieces: Receiver<Piece>,
    here: Stdins,
}

fn world() -> World {
    world_at(Rendezvous::None)
}

fn world_at(rendezvous: Rendezvous) -> World {
    let (tell, pieces) = channel();
    let config = Config { rendezvous, cache_size: 65_536, ..Config::default() };
    let engine = Engine::start_with(config, Arc::new(Far(Mutex::new(tell)))).unwrap();
    let here = Stdins::of_job(&engine, nspace(), HERE, true);
    World { engine, pieces, here }
}

impl World {
    fn next(&self) -> Piece {
        self.pieces.recv_timeout(PATIENCE).expect("the host is brought something")
    }

    /// Grants all pieces of one push, up to the one that ends it with so many bytes.
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

/// What became of a push, once that is known.
fn report(tool: &mut Tool, push: u32) -> PushReport {
    wait_for("a report", || {
        tool.dispatch(Some(Duration::ZERO)).unwrap();
        tool.take_report(push).unwrap()
    })
}

#[test]
fn the_host_is_brought_every_byte_in_order_and_then_the_end_once() {
    let world = world();
    let directives = vec![Info::required(key::PMIX_IOF_COMPLETE, true), Info::required("site.colour", true)];
    let bytes = pattern(1_000_000);
    let push = Push { directives: directives.clone(), ..to(procs(&[7, 9])) };
    let pushing = pushing(&world.engine, &push, bytes.clone());
    let Piece { stdin, bytes: mut got, reply } = world.next();
    assert_eq!((stdin.targets, stdin.directives), (procs(&[7, 9]), directives));
    reply.grant();
    got.extend(world.take(bytes.len() - got.len()));
    assert!(got == bytes);
    assert!(!pushing.is_over(), "nobody has taken the end yet");
    world.assert_end();
    assert_eq!(pushing.report(), whole(bytes.len(), 2));
    assert!(world.pieces.try_recv().is_err());
}

#[test]
fn without_an_end_the_host_is_told_of_none() {
    let world = world();
    let pushing = pushing(&world.engine, &to(procs(&[7])), b"words".into());
    assert_eq!(world.take(5), b"words");
    assert_eq!(pushing.report(), whole(5, 1));
    assert!(world.pieces.try_recv().is_err());
}

#[test]
fn a_host_that_answers_late_is_brought_nothing_more_meanwhile_and_waited_for() {
    let world = world();
    let (tell, waited) = channel();
    let mut tool = tool(&world.engine);
    let bytes = pattern(300_000);
    let pushing = thread::spawn({
        let bytes = bytes.clone();
        move || {
            let push = to(procs(&[5]));
            tool.push(&push, &bytes, |lagging: &SlowTargets| tell.send(lagging.clone()).unwrap())
        }
    });
    let Piece { bytes: first, reply, .. } = world.next();
    let lagging = waited.recv_timeout(PATIENCE).unwrap();
    let target = procs(&[5]).remove(0);
    assert_eq!(lagging, SlowTargets { position: 0, targets: vec![SlowTarget { target, stalled: true }] });
    assert!(world.pieces.try_recv().is_err());
    // From whatever thread.
    thread::spawn(move || reply.grant()).join().unwrap();
    let rest = world.take(bytes.len() - first.len());
    assert!([first, rest].concat() == bytes);
    assert_eq!(pushing.join().unwrap().unwrap(), whole(bytes.len(), 1));
}

#[test]
fn ranks_here_and_elsewhere_get_the_same_and_neither_loses_by_the_other() {
    let mut world = world();
    let bytes = pattern(500_000);
    let pushing = pushing(&world.engine, &last(all()), bytes.clone());
    let here = [0, 1].map(|rank| world.here.take(rank));
    let here = here.map(|file| {
        thread::spawn(move || {
            let mut got = Vec::new();
            std::io::Read::read_to_end(&mut &file, &mut got).unwrap();
            got
        })
    });
    let Piece { stdin, bytes: mut far, reply } = world.next();
    assert_eq!(stdin.targets, all(), "all that run elsewhere");
    reply.grant();
    far.extend(world.take(bytes.len() - far.len()));
    world.assert_end();
    assert_eq!(pushing.report(), whole(bytes.len(), 3));
    assert!(far == bytes);
    for got in here {
        assert!(got.join().unwrap() == bytes);
    }
}

#[test]
fn a_host_that_says_no_ends_it_for_its_ranks_and_those_here_get_everything() {
    let mut world = world();
    let bytes = pattern(400_000);
    let pushing = pushing(&world.engine, &last(procs(&[0, 8])), bytes.clone());
    let file = world.here.take(0);
    let here = thread::spawn(move || {
        let mut got = Vec::new();
        std::io::Read::read_to_end(&mut &file, &mut got).unwrap();
        got
    });
    let Piece { bytes: first, reply, .. } = world.next();
    reply.grant();
    world.next().reply.deny(Status(-1234), "that node is down");
    let report = pushing.report();
    assert!(here.join().unwrap() == bytes);
    assert_eq!((report.bytes, report.complete), (400_000, 1));
    let [PartialDelivery { target, delivered, cause: PartialCause::Failed(why) }] = report.partial.as_slice()
    else {
        panic!("{report:?}")
    };
    assert_eq!((target, *delivered), (&procs(&[8])[0], first.len() as u64));
    assert!(why.contains("that node is down"), "{why}");
    assert!(world.pieces.try_recv().is_err());
}

#[test]
fn a_host_that_drops_the_request_has_said_no() {
    let world = world();
    let pushing = pushing(&world.engine, &last(procs(&[8])), b"lost".into());
    drop(world.next());
    let report = pushing.report();
    assert_eq!((report.bytes, report.complete, report.partial.len()), (4, 0, 1), "{report:?}");
    assert!(
        matches!(&report.partial[0], PartialDelivery { delivered: 0, cause: PartialCause::Failed(_), .. }),
        "{report:?}"
    );
}

#[test]
fn a_host_that_never_answers_is_cut_off_by_a_push_that_drops_and_its_late_answer_changes_nothing() {
    let world = world();
    let bytes = pattern(300_000);
    let push = with(procs(&[0, 8]), &[key::PMIX_IOF_DROP_NEWEST, key::PMIX_IOF_COMPLETE]);
    let pushing = pushing(&world.engine, &push, bytes.clone());
    let silent = world.next();
    assert!(world.here.read(0, bytes.len()) == bytes);
    let report = pushing.report();
    assert_eq!((report.bytes, report.complete), (300_000, 1));
    assert_eq!(report.partial, [short(8, 0, PartialCause::CutOff)]);
    silent.reply.grant();
    // Nothing follows, and the engine lives.
    let again = common::stdins::pushing(&world.engine, &to(procs(&[8])), b"again".into());
    assert_eq!(world.take(5), b"again");
    assert_eq!(again.report(), whole(5, 1));
}

#[test]
fn what_a_tool_handed_over_is_brought_to_the_host_when_it_has_gone() {
    let world = world();
    let mut tool = tool(&world.engine);
    let push = tool.begin_push(&last(procs(&[8])), None).unwrap().push;
    tool.push_room(push)[..4].copy_from_slice(b"left");
    tool.fill(push, 4, false).unwrap();
    drop(tool);
    assert_eq!(world.take(4), b"left");
    world.assert_end();
}

#[test]
fn an_engine_that_goes_while_its_host_is_silent_leaves_nobody_waiting() {
    let World { engine, pieces, here: _here } = world();
    let pushing = pushing(&engine, &last(procs(&[8])), pattern(300_000));
    let silent = pieces.recv_timeout(PATIENCE).unwrap();
    drop(engine);
    let gone = pushing.result();
    assert!(matches!(gone, Err(PushError::Request(RequestError::Lost(LostError::Closed)))), "{gone:?}");
    silent.reply.grant();
}

#[test]
fn where_the_host_forwards_no_stdin_ranks_elsewhere_are_refused_or_left_out() {
    let engine = engine_with_cache(65_536);
    let mut here = Stdins::of_job(&engine, nspace(), HERE, true);
    let mut tool = tool(&engine);
    for targets in [procs(&[0, 8]), all()] {
        let refused = refusal(tool.push(&to(targets), b"x", |_| {}));
        assert_eq!(refused.status, Status::ERR_NOT_SUPPORTED);
        assert!(refused.reason.contains("runs elsewhere, where no stdin is forwarded"), "{refused}");
        assert!(here.is_quiet(0));
    }
    let push = with(procs(&[0, 8]), &[key::IOF_PARTIAL, key::PMIX_IOF_COMPLETE]);
    assert_eq!(tool.push(&push, b"here", |_| {}).unwrap(), whole(4, 1));
    assert_eq!(here.rest(0), b"here");
}

#[test]
fn when_the_job_is_over_elsewhere_its_ranks_there_are_no_more() {
    let world = world();
    world.engine.end_job(&nspace(), Some(0));
    let refused = refusal(tool(&world.engine).push(&to(procs(&[8])), b"x", |_| {}));
    assert_eq!(refused.status, Status::ERR_NOT_FOUND);
    assert_eq!(push(&world.engine, &to(all()), b"here"), whole(4, 2));
}

#[test]
fn pushes_to_the_same_ranks_elsewhere_come_one_behind_the_other_and_those_to_others_meanwhile() {
    let world = world();
    let mut tool = tool(&world.engine);
    let mut begun = Vec::new();
    for targets in [procs(&[8, 9]), procs(&[7, 8]), procs(&[5]), all(), procs(&[6])] {
        let push = tool.begin_push(&to(targets), None).unwrap().push;
        tool.push_room(push)[0] = push as u8;
        tool.fill(push, 1, true).unwrap();
        begun.push(push);
    }
    let next = |of: &[u32]| {
        let Piece { stdin, bytes, reply } = world.next();
        assert_eq!((stdin.targets, bytes.len()), (procs(of), 1));
        reply
    };
    let (first, third) = (next(&[8, 9]), next(&[5]));
    let waits = |rank: u32| SlowTarget { target: procs(&[rank]).remove(0), stalled: false };
    assert_eq!(tool.slow_targets(begun[1], None).unwrap().targets, [waits(7), waits(8)]);
    assert_eq!(tool.slow_targets(begun[4], None).unwrap().targets, [waits(6)]);
    assert!(world.pieces.try_recv().is_err());
    // Whoever was denied has had its turn, too.
    first.deny(Status(-1), "no");
    next(&[7, 8]).grant();
    // Who is for all is behind both.
    third.grant();
    let fourth = next(&[Rank::WILDCARD.0]);
    assert!(world.pieces.try_recv().is_err());
    fourth.grant();
    next(&[6]).grant();
    let wholes = begun.into_iter().map(|push| report(&mut tool, push).complete);
    assert_eq!(wholes.collect::<Vec<_>>(), [0, 2, 1, 3, 1]);
    assert_eq!(world.here.read(0, 1), [4]);
}

#[test]
fn a_tool_that_does_not_read_of_room_is_heard_all_the_same() {
    // More words of room than a socket takes, and than answers may wait behind those.
    const PIECES: usize = 2000;
    let world = world();
    let mut tool = tool(&world.engine);
    let push = tool.begin_push(&to(procs(&[7])), None).unwrap().push;
    for _ in 0..PIECES {
        tool.push_room(push)[0] = b'x';
        tool.fill(push, 1, false).unwrap();
        assert_eq!(world.take(1), b"x");
    }
    tool.fill(push, 0, true).unwrap();
    assert_eq!(report(&mut tool, push), whole(PIECES, 1));
}

#[test]
fn only_so_many_pushes_wait_for_the_host_at_one_rank() {
    let world = world();
    let mut crowd = crowd(&world.engine, &to(procs(&[7])));
    let mut other = tool(&world.engine);
    for targets in [procs(&[7]), procs(&[6, 7]), all()] {
        let refused = refusal(other.begin_push(&to(targets), None));
        assert_eq!(refused.status, Status::ERR_RESOURCE_BUSY);
        assert!(refused.reason.contains(&format!("{MAX_PUSHES_PER_TARGET} pushes wait")), "{refused}");
    }
    other.begin_push(&to(procs(&[0, 6])), None).unwrap();
    let (first, begun) = &mut crowd[0];
    first.fill(begun[0], 0, true).unwrap();
    assert_eq!(report(first, begun[0]), whole(0, 1));
    other.begin_push(&to(procs(&[7])), None).unwrap();
}

#[test]
fn a_report_with_more_reasons_than_a_message_holds_has_as_many_as_it_holds() {
    const TARGETS: u32 = 1000;
    let world = world();
    let ranks: Vec<u32> = (HERE..HERE + TARGETS).collect();
    let pushing = pushing(&world.engine, &to(procs(&ranks)), b"x".into());
    let reason = "no ".repeat(10_000);
    assert!(TARGETS as usize * reason.len() > MAX_ANSWER);
    world.next().reply.deny(Status::ERR_NOT_SUPPORTED, reason.as_str());
    let report = pushing.report();
    assert_eq!((report.bytes, report.complete, report.partial.len()), (1, 0, 500));
    let named = (HERE..).zip(&report.partial).all(|(rank, short)| {
        let PartialDelivery { target, delivered: 0, cause: PartialCause::Failed(why) } = short else {
            return false;
        };
        target.rank == Rank(rank) && why.contains(&reason)
    });
    assert!(named);
}

/// Says for which rank it is brought something, and does not come back with rank 5's before the
/// gate is gone.
struct Gated {
    brought: Mutex<Sender<Rank>>,
    gate: Mutex<Receiver<()>>,
}

impl Host for Gated {
    fn forwards_stdin(&self) -> bool {
        true
    }

    fn push_stdin(&self, stdin: &StdinPush, _: &[u8], reply: Reply) {
        let rank = stdin.targets[0].rank;
        // The test may be over.
        let _ = self.brought.lock().unwrap().send(rank);
        if rank == Rank(5) {
            let _ = self.gate.lock().unwrap().recv();
        }
        reply.grant();
    }
}

#[test]
fn a_tool_that_has_much_to_say_does_not_say_it_all_before_others_have_their_turn() {
    let ((tell, brought), (gate, wait)) = (channel(), channel());
    let host = Gated { brought: Mutex::new(tell), gate: Mutex::new(wait) };
    let config = Config { rendezvous: Rendezvous::None, cache_size: 65_536, ..Config::default() };
    let engine = Engine::start_with(config, Arc::new(host)).unwrap();
    let _here = Stdins::of_job(&engine, nspace(), HERE, true);
    let (mut talking, mut other) = (tool(&engine), tool(&engine));
    let much = talking.begin_push(&to(procs(&[5])), None).unwrap().push;
    let behind = talking.begin_push(&to(procs(&[7])), None).unwrap().push;
    let others = other.begin_push(&to(procs(&[8])), None).unwrap().push;
    talking.fill(much, 1, false).unwrap();
    assert_eq!(brought.recv_timeout(PATIENCE).unwrap(), Rank(5));
    // Nobody is heard now: all of this lies there when the engine looks again.
    for _ in 0..100 {
        talking.fill(much, 1, false).unwrap();
    }
    talking.fill(behind, 1, false).unwrap();
    other.fill(others, 1, false).unwrap();
    drop(gate);
    let mut order = (0..).map(|_| brought.recv_timeout(PATIENCE).unwrap()).filter(|rank| *rank != Rank(5));
    assert_eq!([order.next(), order.next()], [Some(Rank(8)), Some(Rank(7))]);
}

#[test]
fn one_process_leaves_only_so_many_pushes_behind_whatever_ranks_they_are_for() {
    let directory = tempfile::tempdir().unwrap();
    let rendezvous = Rendezvous::Session(Some(directory.path().to_owned()));
    let World { engine, pieces, here: _here } = world_at(rendezvous);
    let connect = || Tool::connect(engine.socket().unwrap(), "leaves").unwrap();
    let mut ranks = HERE..;
    for _ in 0..MAX_PUSHES_PER_PROCESS / MAX_PUSHES_PER_TOOL {
        let mut tool = connect();
        for rank in ranks.by_ref().take(MAX_PUSHES_PER_TOOL) {
            let push = tool.begin_push(&to(procs(&[rank])), Some(1)).unwrap().push;
            tool.push_room(push)[0] = b'x';
            // The host does not answer, so it is not over when its tool is gone.
            tool.fill(push, 1, true).unwrap();
        }
    }
    let mut again = connect();
    let next = to(procs(&[ranks.next().unwrap()]));
    let refused = refusal(again.begin_push(&next, None));
    assert_eq!(refused.status, Status::ERR_OUT_OF_RESOURCE);
    assert!(refused.reason.contains("the process's pushes are limited to 256"), "{refused}");
    // The embedder is another matter.
    tool(&engine).begin_push(&next, None).unwrap();
    pieces.recv_timeout(PATIENCE).unwrap().reply.grant();
    wait_for("one to be over", || again.begin_push(&next, None).ok());
}
