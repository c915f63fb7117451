//! Jobs on other nodes: the engine follows their ranks through the embedder's edges.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use iof_engine::{
    Config, DeliveredBytes, DeliveredEnd, Edges, EndCause, Ending, Engine, Exit, Grant, Job, JobSpec,
    KillOnBadExit, LastStep, LaunchError, Node, NodeId, NodeLost, NodeReport, NodeRequest, Rendezvous,
    Signal, Stdin, StdinAnswer,
};
use iof_proto::directive::key::IOF_PARTIAL;
use iof_proto::query::key;
use iof_proto::{
    Channel, Channels, Failure, InputState, Interaction, NodeStream, PartialCause, PartialDelivery, Position,
    Proc, ProcInfo, ProcState, PushReport, Rank, Status, StreamPull, UntakenStdin, Value,
};
use iof_testing::engine::stdins::{Pushing, all_ranks, final_push, procs, push_to, push_with, pushing};
use iof_testing::engine::{changed, nspace, session, shell, spec, wait};
use iof_testing::{TIMEOUT, wait_for};
use iof_tool::{BatchReader, Delivery, DirectItem, PollReady, Pull, Tool};

pub const A: NodeId = NodeId(0);
pub const B: NodeId = NodeId(1);

/// A request that an edge has received.
#[derive(Debug, PartialEq, Eq)]
pub enum Request {
    Signal(Signal),
    SignalRanks(Signal, Vec<Rank>),
    Stdin(u64, Option<Vec<Rank>>, Vec<u8>),
    End(LastStep),
    Pull(Vec<StreamPull>),
    EndPulls(Vec<u32>),
    Modex(u64, Rank),
}

struct Recorder(Mutex<Sender<(NodeId, Request)>>);

impl Edges for Recorder {
    fn send(&self, node: NodeId, request: NodeRequest<'_>) {
        let request = match request {
            NodeRequest::Signal(signal) => Request::Signal(signal),
            NodeRequest::SignalRanks(signal, ranks) => Request::SignalRanks(signal, ranks.to_vec()),
            NodeRequest::Stdin { call, ranks, bytes } => {
                Request::Stdin(call, ranks.map(<[Rank]>::to_vec), bytes.to_vec())
            }
            NodeRequest::End(step) => Request::End(step),
            NodeRequest::Pull(pulls) => Request::Pull(pulls.to_vec()),
            NodeRequest::EndPulls(pulls) => Request::EndPulls(pulls.to_vec()),
            NodeRequest::Modex { call, rank } => Request::Modex(call, rank),
            NodeRequest::Resize(_) => return,
        };
        // The test may have ended.
        let _ = self.0.lock().unwrap().send((node, request));
    }
}

pub struct Fixture {
    pub engine: Arc<Engine>,
    pub job: Job,
    pub requests: Receiver<(NodeId, Request)>,
    /// The stdin of the rank whose bytes are delivered.
    input: Option<InputState>,
}

pub fn job_spec() -> JobSpec {
    spec([shell("true").ranks(4)])
}

/// Returns a job whose ranks have these stdins, in their order.
fn with_stdins(stdins: [Stdin; 4]) -> JobSpec {
    changed(job_spec(), |spec| spec.stdin = (0..).map(Rank).zip(stdins).collect())
}

/// Begins a job with ranks 0 and 1 on a node, and 2 and 3 on another one.
fn begin(spec: &JobSpec) -> Fixture {
    begin_in(Engine::start(Config::new(Rendezvous::None)).unwrap(), spec, false)
}

fn begin_in(engine: impl Into<Arc<Engine>>, spec: &JobSpec, is_direct: bool) -> Fixture {
    let engine = engine.into();
    let (sender, requests) = channel();
    let recorder = Arc::new(Recorder(Mutex::new(sender)));
    let job = engine.begin_on_nodes(spec, &nodes(), recorder, is_direct).unwrap();
    Fixture { engine, job, requests, input: None }
}

fn nodes() -> [Node; 2] {
    [("a", [0, 1]), ("b", [2, 3])]
        .map(|(host, ranks)| Node { host: host.into(), ranks: ranks.map(Rank).into() })
}

/// Starts the ranks of such a job, too.
pub fn start(spec: &JobSpec) -> Fixture {
    begin(spec).started()
}

impl Fixture {
    fn started(self) -> Fixture {
        self.job.report_node(A, NodeReport::Started { pids: vec![10, 11], began: SystemTime::UNIX_EPOCH });
        self.job.report_node(B, NodeReport::Started { pids: vec![12, 13], began: SystemTime::UNIX_EPOCH });
        self
    }

    /// Starts another job of the same engine.
    pub fn another(&self, spec: &JobSpec) -> Fixture {
        begin_in(Arc::clone(&self.engine), spec, false).started()
    }

    pub fn next(&self) -> (NodeId, Request) {
        self.requests.recv_timeout(TIMEOUT).expect("a request")
    }

    pub fn exit(&self, rank: u32, raw: i32, requested: bool) {
        let exit = Exit::Status(ExitStatus::from_raw(raw));
        let node = if rank < 2 { A } else { B };
        self.job.report_node(node, NodeReport::Exited { rank: Rank(rank), exit, requested, used: None });
    }

    /// Reports that nodes are over, and ends the remote part of the job.
    pub fn end(&self, nodes: &[NodeId]) {
        for node in nodes {
            self.job.report_node(*node, NodeReport::Over { cut_off: Vec::new() });
        }
        self.engine.end_job(&nspace(), None);
    }

    fn answer(&self, node: NodeId, call: u64, answer: StdinAnswer) {
        self.job.report_node(node, NodeReport::StdinTaken { call, answer });
    }

    fn tool(&self) -> Tool {
        self.engine.attach("test", Grant::Never).unwrap()
    }

    fn table(&self, key: &str) -> Vec<ProcInfo> {
        match self.tool().query(&[key]).unwrap().remove(0).value {
            Value::Procs(table) => table,
            value => panic!("{value:?}"),
        }
    }
}

#[test]
fn the_status_and_the_process_table_of_a_job_on_nodes_follow_its_reports() {
    let fixture = start(&job_spec());
    fixture.exit(3, 9, false);
    fixture.exit(1, 5 << 8, false);
    let table = fixture.table(key::PMIX_QUERY_PROC_TABLE);
    let seen: Vec<_> = table.iter().map(|row| (row.host.as_str(), row.pid, row.state)).collect();
    let (running, killed) = (ProcState::Running, ProcState::Killed);
    let expected = [("a", 10, running), ("a", 11, ProcState::Failed), ("b", 12, running), ("b", 13, killed)];
    assert_eq!(seen, expected);
    assert_eq!((table[0].executable.as_str(), table[1].exit_code), ("sh", Some(5)));
    assert_eq!(fixture.table(key::PMIX_QUERY_LOCAL_PROC_TABLE), []);
    assert!(fixture.job.try_wait_exit().is_none());
    fixture.exit(0, 0, false);
    fixture.exit(2, 0, false);
    assert_eq!(fixture.job.wait_exit().first_failure.unwrap().0, Rank(3));
    fixture.end(&[A, B]);
    assert_eq!(wait(&fixture.job).code(), 137);
    let ended = fixture.job.endings().map(|ending| match ending {
        Ending::Rank(exit) => (exit.host.unwrap(), exit.rank.0, exit.pid),
        other => panic!("{other:?}"),
    });
    assert_eq!(
        ended.collect::<Vec<_>>(),
        [("b", 3, 13), ("a", 1, 11), ("a", 0, 10), ("b", 2, 12)].map(|(host, rank, pid)| (
            host.to_owned(),
            rank,
            pid
        ))
    );
}

#[test]
fn a_failure_on_one_node_ends_the_ranks_of_all_nodes_by_sigterm_and_then_sigkill() {
    let fixture = start(&changed(job_spec(), |spec| {
        spec.kill_on_bad_exit = KillOnBadExit::Always;
        spec.kill_wait = Duration::from_millis(10);
    }));
    fixture.exit(2, 3 << 8, false);
    for signal in [Signal::TERM, Signal::CONT, Signal::KILL] {
        for node in [A, B] {
            assert_eq!(fixture.next(), (node, Request::Signal(signal)));
        }
    }
    [0, 1, 3].into_iter().for_each(|rank| fixture.exit(rank, 9, true));
    fixture.end(&[A, B]);
    let status = wait(&fixture.job);
    let end = status.early_end.as_ref().unwrap();
    assert_eq!((end.cause, end.left.as_slice()), (EndCause::BadExit(Rank(2)), &[0, 1, 3].map(Rank)[..]));
    assert_eq!(status.code(), 3);
}

#[test]
fn nodes_that_do_not_end_after_sigkill_are_cut_off_hung_up_and_given_up() {
    let fixture = start(&job_spec());
    assert_eq!(fixture.job.signal(Signal::KILL), 4);
    for node in [A, B] {
        assert_eq!(fixture.next(), (node, Request::Signal(Signal::KILL)));
    }
    for node in [A, B] {
        assert_eq!(fixture.next(), (node, Request::End(LastStep::CutOff)));
    }
    [0, 1].into_iter().for_each(|rank| fixture.exit(rank, 9, true));
    fixture.job.report_node(A, NodeReport::Over { cut_off: Vec::new() });
    for step in [LastStep::HangUp, LastStep::GiveUp] {
        assert_eq!(fixture.next(), (B, Request::End(step)));
    }
    // No step follows.
    [2, 3].into_iter().for_each(|rank| fixture.exit(rank, 9, true));
    fixture.end(&[B]);
    assert_eq!(wait(&fixture.job).code(), 137);
    assert!(fixture.requests.try_recv().is_err());
}

#[test]
fn the_exits_of_a_lost_node_are_unknown_and_requested_if_its_ranks_were_asked_to_end() {
    for is_asked in [false, true] {
        let fixture = start(&job_spec());
        if is_asked {
            assert_eq!(fixture.job.signal(Signal::TERM), 4);
        }
        let (host, reason, ranks) = ("b".into(), "a fault".into(), [2, 3].map(Rank).into());
        let lost = NodeLost { host, reason, ranks, delivered: 1, missing: 2, totals: None };
        fixture.job.report_node(B, NodeReport::Lost(lost));
        fixture.exit(0, 15, is_asked);
        fixture.exit(1, 0, is_asked);
        fixture.end(&[A]);
        let first = wait(&fixture.job).first_failure.unwrap();
        // Among ends on request, one of a known status counts first.
        assert_eq!(first.0, if is_asked { Rank(0) } else { Rank(2) });
        let lost: Vec<String> = fixture
            .job
            .endings()
            .filter_map(|ending| if let Ending::NodeLost(lost) = ending { Some(lost.host) } else { None })
            .collect();
        assert_eq!(lost, ["b"]);
    }
}

#[test]
fn all_lost_nodes_are_there_without_a_wait_once_the_status_of_the_job_is_known() {
    let fixture = start(&job_spec());
    for (node, host, ranks) in [(A, "a", [0, 1]), (B, "b", [2, 3])] {
        assert!(fixture.job.try_wait_exit().is_none());
        let (host, reason, ranks) = (host.into(), "a fault".into(), ranks.map(Rank).into());
        let lost = NodeLost { host, reason, ranks, delivered: 1, missing: 2, totals: None };
        fixture.job.report_node(node, NodeReport::Lost(lost));
    }
    wait_for("the status", || fixture.job.try_wait_exit());
    let mut endings = fixture.job.endings();
    for host in ["a", "b"] {
        assert!(matches!(endings.try_next(), Some(Ending::NodeLost(lost)) if lost.host == host));
    }
    assert!(endings.try_next().is_none_or(|ending| matches!(ending, Ending::Early(_))));
}

#[test]
fn a_tool_signals_the_running_ranks_on_other_nodes_that_it_names() {
    let fixture = start(&job_spec());
    let mut tool = fixture.tool();
    fixture.exit(1, 0, false);
    assert_eq!(tool.signal(&procs(&[0, 1, 3]), Signal::USR1.number()).unwrap(), 2);
    assert_eq!(fixture.next(), (A, Request::SignalRanks(Signal::USR1, vec![Rank(0)])));
    assert_eq!(fixture.next(), (B, Request::SignalRanks(Signal::USR1, vec![Rank(3)])));
    assert!(tool.signal(&procs(&[7]), Signal::USR1.number()).is_err());
    fixture.end(&[A, B]);
    assert_eq!(tool.signal(&[Proc::all(nspace())], Signal::USR1.number()).unwrap(), 0);
}

fn open_stdins() -> JobSpec {
    with_stdins([Stdin::Pipe, Stdin::Pipe, Stdin::Pipe, Stdin::Pipe])
}

fn closed() -> StdinAnswer {
    Err(Failure::new(Status::ERR_IOF_COMPLETE, "they have ended"))
}

/// Returns the ranks of a report that have not received everything, with the bytes that they have.
fn partial(report: &PushReport) -> Vec<(u32, u64, PartialCause)> {
    let partial = |PartialDelivery { target, delivered, cause }: &PartialDelivery| {
        (target.rank.0, *delivered, cause.clone())
    };
    report.partial.iter().map(partial).collect()
}

#[test]
fn each_rank_of_a_push_to_nodes_has_its_own_delivery_and_a_piece_follows_all_answers() {
    let fixture = start(&open_stdins());
    let pushing = pushing(&fixture.engine, &push_to(procs(&[0, 2, 3])), vec![b'x'; 200_000]);
    let (first, second) = (fixture.next(), fixture.next());
    let (A, Request::Stdin(call, Some(ranks), bytes)) = first else { panic!("{first:?}") };
    let piece = bytes.len() as u64;
    assert_eq!(ranks, [Rank(0)]);
    // All of the node.
    assert_eq!(second, (B, Request::Stdin(call, None, bytes)));
    fixture.answer(A, call, Ok(Vec::new()));
    assert!(fixture.requests.try_recv().is_err(), "one node has not answered");
    // It may name others, or claim more than it was sent.
    let untaken = [(2, 7), (3, u64::MAX), (1, 0), (2, 0)].map(|(rank, delivered)| {
        let cause = if rank == 2 { PartialCause::Closed } else { PartialCause::Failed("a fault".into()) };
        UntakenStdin { rank: Rank(rank), delivered, cause }
    });
    fixture.answer(B, call, Ok(untaken.into()));
    let third = fixture.next();
    let (A, Request::Stdin(call, Some(_), bytes)) = third else { panic!("{third:?}") };
    let both = piece + bytes.len() as u64;
    fixture.answer(A, call, Ok(Vec::new()));
    assert!(matches!(fixture.next(), (A, Request::Stdin(..))), "no rank of the other node is left");
    fixture.answer(A, call, closed());
    let report = pushing.report();
    let (closed, failed) = (PartialCause::Closed, PartialCause::Failed("a fault".into()));
    // The push ends when no rank is left, which may be before the tool has given all bytes.
    assert!(report.complete == 0 && (both..=200_000).contains(&report.bytes), "{report:?}");
    assert_eq!(partial(&report), [(2, 7, closed.clone()), (3, piece, failed), (0, both, closed)]);
    // A rank that has closed its stdin is known as such.
    let again = push_with(procs(&[1, 2]), &[]);
    let refused = self::pushing(&fixture.engine, &again, b"x".to_vec()).result().unwrap_err().to_string();
    assert!(refused.contains("rank 2: stdin is closed"), "{refused}");
}

#[test]
fn a_node_that_refuses_stdin_or_ends_does_not_concern_the_ranks_of_another_one() {
    for is_over in [false, true] {
        let fixture = start(&open_stdins());
        let pushing = pushing(&fixture.engine, &push_to(all_ranks()), b"x".to_vec());
        let first = fixture.next();
        let (A, Request::Stdin(call, None, _)) = first else { panic!("{first:?}") };
        fixture.answer(A, call, Ok(Vec::new()));
        let refused = Failure::new(Status::ERR_NOT_AVAILABLE, "no thread");
        let cause = if is_over {
            fixture.end(&[B]);
            PartialCause::Closed
        } else {
            fixture.answer(B, call, Err(refused.clone()));
            PartialCause::Refused(refused)
        };
        let report = pushing.report();
        assert_eq!((report.complete, partial(&report)), (2, vec![(2, 0, cause.clone()), (3, 0, cause)]));
    }
}

#[test]
fn a_push_that_waited_for_another_one_sends_nothing_to_a_node_that_has_ended() {
    let fixture = start(&open_stdins());
    let first = pushing(&fixture.engine, &push_to(procs(&[2])), b"x".to_vec());
    assert!(matches!(fixture.next(), (B, Request::Stdin(..))));
    let second = pushing(&fixture.engine, &push_to(procs(&[0, 2])), b"y".to_vec());
    // It waits once a push to rank 1, which does not wait for it, is sent.
    let other = pushing(&fixture.engine, &push_to(procs(&[1])), b"z".to_vec());
    let (node, request) = fixture.next();
    let Request::Stdin(call, ..) = request else { panic!("{request:?}") };
    fixture.answer(node, call, Ok(Vec::new()));
    assert_eq!(other.report().complete, 1);
    fixture.end(&[B]);
    let ended = [(2, 0, PartialCause::Closed)];
    assert_eq!(partial(&first.report()), ended);
    let (asked, report) = answer_all(&fixture, second);
    assert_eq!((asked, report.complete, partial(&report)), ([Some(vec![Rank(0)])].into(), 1, ended.into()));
}

/// Answers requests for stdin until the push has ended. Returns the ranks that were sent it, `None` for
/// all of a node.
fn answer_all(fixture: &Fixture, pushing: Pushing) -> (BTreeSet<Option<Vec<Rank>>>, PushReport) {
    let mut asked = BTreeSet::new();
    while !pushing.has_ended() {
        if let Ok((node, Request::Stdin(call, ranks, _))) =
            fixture.requests.recv_timeout(Duration::from_millis(10))
        {
            asked.insert(ranks);
            fixture.answer(node, call, Ok(Vec::new()));
        }
    }
    (asked, pushing.report())
}

#[test]
fn a_push_to_ranks_on_nodes_is_refused_as_one_to_ranks_here_if_some_cannot_be_reached() {
    let file = Stdin::File("/dev/zero".into());
    let fixture = start(&with_stdins([Stdin::Pipe, Stdin::Null, file, Stdin::Pipe]));
    let push = |targets: Vec<Proc>, directives: &[&str], bytes: &[u8]| {
        pushing(&fixture.engine, &push_with(targets, directives), bytes.to_vec())
    };
    let reason = |pushing: Pushing| pushing.result().unwrap_err().to_string();
    for targets in [procs(&[0, 1, 2]), all_ranks()] {
        let refused = reason(push(targets, &[], b"x"));
        assert!(refused.contains("ranks 1-2: stdin was not left open"), "{refused}");
    }
    // Nothing was sent to the ranks that are open.
    assert!(fixture.requests.try_recv().is_err());
    let (asked, report) = answer_all(&fixture, push(all_ranks(), &[IOF_PARTIAL], b"x"));
    assert_eq!((asked, report.complete), ([Some(vec![Rank(0)]), Some(vec![Rank(3)])].into(), 2));
    // The end of rank 3 is pushed, and rank 0 exits.
    let (_, report) = answer_all(&fixture, pushing(&fixture.engine, &final_push(procs(&[3])), Vec::new()));
    assert_eq!(report.complete, 1);
    let refused = reason(push(procs(&[0, 3]), &[], b"x"));
    assert!(refused.contains("rank 3: stdin is closed"), "{refused}");
    fixture.exit(0, 0, false);
    let refused = reason(push(procs(&[0, 3]), &[IOF_PARTIAL], b"x"));
    assert!(refused.contains("ranks 0,3: stdin is closed"), "{refused}");
}

#[test]
fn a_push_to_ranks_whose_end_another_push_is_bringing_is_refused() {
    let fixture = start(&open_stdins());
    let ending = pushing(&fixture.engine, &final_push(procs(&[1])), b"x".to_vec());
    let first = fixture.next();
    let (A, Request::Stdin(call, ..)) = first else { panic!("{first:?}") };
    let refused = pushing(&fixture.engine, &push_to(all_ranks()), b"y".to_vec()).result().unwrap_err();
    assert!(refused.to_string().contains("rank 1: stdin is closed"), "{refused}");
    fixture.answer(A, call, Ok(Vec::new()));
    assert_eq!(answer_all(&fixture, ending).1.complete, 1);
    // All that are left of one node are named.
    let rest = push_with(all_ranks(), &[IOF_PARTIAL]);
    let (asked, report) = answer_all(&fixture, pushing(&fixture.engine, &rest, b"z".to_vec()));
    assert_eq!((asked, report.complete), ([Some(vec![Rank(0)]), None].into(), 3));
}

#[test]
fn tools_from_outside_cannot_push_to_the_embedders_own_stdin_on_nodes() {
    let (engine, _directory) = session(Config::default());
    let spec = changed(with_stdins([Stdin::Pipe, Stdin::Pipe, Stdin::Inherit, Stdin::Pipe]), |spec| {
        spec.own_stdin = [Rank(0)].into();
    });
    let fixture = begin_in(engine, &spec, false).started();
    let mut outside = Tool::connect(fixture.engine.socket().unwrap(), "outside").unwrap();
    for rank in [0, 2] {
        let refused = outside.push(&push_to(procs(&[rank, 1])), b"x", |_| {}).unwrap_err().to_string();
        let expected = format!("rank {rank}: reads the stdin of the command that started it");
        assert!(refused.contains(&expected), "{refused}");
    }
    let own = pushing(&fixture.engine, &push_to(all_ranks()), b"x".to_vec());
    assert_eq!(
        answer_all(&fixture, own),
        ([None].into(), PushReport { bytes: 1, complete: 4, ..PushReport::default() })
    );
}

#[test]
fn the_name_of_a_job_is_free_again_if_its_ranks_are_not_all_started() {
    let fixture = begin(&job_spec());
    fixture.job.report_node(A, NodeReport::Started { pids: vec![10, 11], began: SystemTime::UNIX_EPOCH });
    let again = |fixture: &Fixture| {
        let (sender, _requests) = channel();
        fixture.engine.begin_on_nodes(&job_spec(), &nodes(), Arc::new(Recorder(Mutex::new(sender))), false)
    };
    assert!(matches!(again(&fixture), Err(LaunchError::NameTaken(_))));
    let mut tool = fixture.tool();
    let signalled = tool.signal(&[Proc::all(nspace())], Signal::USR1.number());
    assert!(signalled.unwrap_err().to_string().contains("is being started"));
    fixture.engine.withdraw_from_nodes(&fixture.job);
    assert_eq!(wait(&fixture.job).code(), 0);
    again(&fixture).unwrap();
}

/// Begins and starts such a job whose output passes to the printers of the embedder.
fn start_direct() -> Fixture {
    begin_in(Engine::start(Config::new(Rendezvous::None)).unwrap(), &job_spec(), true).started()
}

impl Fixture {
    /// Delivers bytes of rank 2, which pull `number` has brought. Returns what tells that they are taken.
    fn deliver(&self, number: u32, offset: u64, bytes: &str, end: Option<DeliveredEnd>) -> Receiver<()> {
        let (done, taken) = channel();
        let from = Proc::new(nspace(), Rank(2));
        let (channel, bytes, offset) = (Channel::Stdout, bytes.into(), Some(offset));
        let bytes =
            DeliveredBytes { from: &from, channel, bytes, offset, time: None, input: self.input, end };
        self.job.deliver_pulled(number, bytes, move || done.send(()).unwrap()).unwrap();
        taken
    }

    /// Returns a tool that pulls stdout of rank 2.
    fn puller(&self) -> Tool {
        let mut tool = self.tool();
        tool.pull(&Pull::new(vec![Proc::new(nspace(), Rank(2))], Channels::STDOUT)).unwrap();
        tool
    }

    fn pull(&self, number: u32) {
        let pull = StreamPull { number, rank: Rank(2), channel: Channel::Stdout };
        assert_eq!(self.next(), (B, Request::Pull(vec![pull])));
    }
}

/// Reads until the end of the stream: its bytes, the lost ones, and those that are missing at its end.
fn read(tool: &mut Tool) -> (String, u64, Option<u64>) {
    let (mut text, mut lost) = (String::new(), 0);
    loop {
        match tool.recv_timeout(TIMEOUT).unwrap().expect("a delivery") {
            Delivery::Bytes(bytes) => text += std::str::from_utf8(&bytes).unwrap(),
            Delivery::Gap { gap, .. } => lost += gap.lost,
            Delivery::Complete { counts, .. } => {
                assert_eq!(counts.delivered + counts.lost, counts.produced);
                return (text, lost, None);
            }
            Delivery::Broken { missing, .. } => return (text, lost, Some(missing)),
            delivery => panic!("{delivery:?}"),
        }
    }
}

#[test]
fn a_stream_of_a_node_is_pulled_while_tools_read_it_and_begins_with_what_the_node_has() {
    let fixture = start_direct();
    let mut first = fixture.puller();
    fixture.pull(1);
    fixture.deliver(1, 5, "some ", None).recv_timeout(TIMEOUT).unwrap();
    // The second one is served by the same pull.
    let mut second = fixture.puller();
    fixture.deliver(1, 10, "bytes", Some(DeliveredEnd::Complete)).recv_timeout(TIMEOUT).unwrap();
    let all = ("some bytes".to_owned(), 5, None);
    assert_eq!((read(&mut first), read(&mut second)), (all.clone(), all));
    drop(first);
    drop(second);
    assert_eq!(fixture.next(), (B, Request::EndPulls(vec![1])));
    // What arrives late of the first pull is not part of the second one.
    let mut third = fixture.puller();
    fixture.pull(2);
    fixture.deliver(1, 15, "late", None).recv_timeout(TIMEOUT).unwrap();
    fixture.deliver(2, 0, "all", Some(DeliveredEnd::Complete)).recv_timeout(TIMEOUT).unwrap();
    assert_eq!(read(&mut third), ("all".to_owned(), 0, None));
    fixture.end(&[A, B]);
}

#[test]
fn a_pull_of_a_job_that_was_not_started_reports_no_lost_node() {
    let engine = Engine::start(Config::new(Rendezvous::None)).unwrap();
    let fixture = begin_in(engine, &job_spec(), true);
    fixture.job.report_node(B, NodeReport::Started { pids: vec![12, 13], began: SystemTime::UNIX_EPOCH });
    let mut tool = fixture.puller();
    // The node does not answer.
    fixture.pull(1);
    fixture.engine.withdraw_from_nodes(&fixture.job);
    // The next job of this name is the first one for the tool.
    let fixture = begin_in(fixture.engine, &job_spec(), true).started();
    fixture.pull(1);
    fixture.deliver(1, 0, "all", Some(DeliveredEnd::Complete)).recv_timeout(TIMEOUT).unwrap();
    assert_eq!(read(&mut tool), ("all".to_owned(), 0, None));
    fixture.end(&[A, B]);
}

#[test]
fn a_pull_without_backlog_has_no_gap_before_its_first_byte() {
    let fixture = start_direct();
    let mut tool = fixture.tool();
    let source = vec![Proc::new(nspace(), Rank(2))];
    tool.pull(&Pull::new(source, Channels::STDOUT).from(Position::Newest)).unwrap();
    fixture.pull(1);
    // The node marks the end of what it had cached.
    for (offset, bytes) in [(3, "old "), (7, "")] {
        fixture.deliver(1, offset, bytes, None).recv_timeout(TIMEOUT).unwrap();
    }
    tool.wait_for_cached().unwrap();
    fixture.deliver(1, 7, "new", Some(DeliveredEnd::Broken(4))).recv_timeout(TIMEOUT).unwrap();
    match tool.recv_timeout(TIMEOUT).unwrap() {
        Some(Delivery::Bytes(bytes)) => assert_eq!((bytes.offset(), &*bytes), (7, b"new".as_slice())),
        delivery => panic!("{delivery:?}"),
    }
    assert_eq!(read(&mut tool), (String::new(), 0, Some(4)));
    fixture.end(&[A, B]);
}

#[test]
fn pulls_without_backlog_begin_where_the_node_and_the_engine_have_attached_them() {
    for from in [Position::Newest, Position::Lines(0)] {
        let fixture = start_direct();
        let newest = || {
            let mut tool = fixture.tool();
            let source = vec![Proc::new(nspace(), Rank(2))];
            tool.pull(&Pull::new(source, Channels::STDOUT).from(from)).unwrap();
            tool
        };
        let mut first = newest();
        fixture.pull(1);
        fixture.deliver(1, 3, "old ", None).recv_timeout(TIMEOUT).unwrap();
        let mut second = newest();
        // The node marks the end of what it had cached. The tools read nothing meanwhile.
        for (offset, bytes) in [(7, "old "), (11, ""), (11, "new ")] {
            fixture.deliver(1, offset, bytes, None).recv_timeout(TIMEOUT).unwrap();
        }
        let mut third = newest();
        fixture.deliver(1, 15, "newer", Some(DeliveredEnd::Broken(4))).recv_timeout(TIMEOUT).unwrap();
        for (tool, text) in [(&mut first, "new newer"), (&mut second, "new newer"), (&mut third, "newer")] {
            assert_eq!(read(tool), (text.to_owned(), 0, Some(4)));
        }
        drop((first, second, third));
        assert_eq!(fixture.next(), (B, Request::EndPulls(vec![1])));
        // A node that is lost before sends no mark.
        let mut late = newest();
        fixture.pull(2);
        fixture.deliver(2, 20, "old", None).recv_timeout(TIMEOUT).unwrap();
        fixture.deliver(2, 23, "", Some(DeliveredEnd::Broken(2))).recv_timeout(TIMEOUT).unwrap();
        assert_eq!(read(&mut late), (String::new(), 0, Some(2)));
        fixture.end(&[A, B]);
    }
}

#[test]
fn a_pull_waits_only_for_the_nodes_of_its_own_streams() {
    let fixture = start_direct();
    let pull = |rank, from| {
        let mut tool = fixture.tool();
        let source = vec![Proc::new(nspace(), Rank(rank))];
        tool.pull(&Pull::new(source, Channels::STDOUT).from(from)).unwrap();
        tool
    };
    // Node a sends nothing.
    let silent = pull(0, Position::Oldest);
    assert!(matches!(fixture.next(), (A, Request::Pull(_))));
    let mut newest = pull(2, Position::Newest);
    fixture.pull(2);
    fixture.deliver(2, 3, "old ", None).recv_timeout(TIMEOUT).unwrap();
    fixture.deliver(2, 7, "", None).recv_timeout(TIMEOUT).unwrap();
    newest.wait_for_cached().unwrap();
    let mut oldest = pull(2, Position::Oldest);
    oldest.wait_for_cached().unwrap();
    fixture.deliver(2, 7, "new", Some(DeliveredEnd::Broken(4))).recv_timeout(TIMEOUT).unwrap();
    for (mut tool, text, lost) in [(newest, "new", 0), (oldest, "old new", 3)] {
        assert_eq!(read(&mut tool), (text.to_owned(), lost, Some(4)));
        // It ends with its stream, before the job.
        let polled = BatchReader::new(tool).poll_ready(Some(Instant::now() + TIMEOUT), &mut Vec::new());
        assert_eq!(polled.unwrap(), PollReady::Done);
    }
    drop(silent);
    fixture.end(&[A, B]);
}

#[test]
fn streams_without_rings_have_the_figures_that_their_nodes_report_and_their_ends() {
    let fixture = start_direct();
    let stream = |produced, missing| NodeStream {
        rank: Rank(2),
        channel: Channel::Stdout,
        produced,
        lost: 3,
        ended: false,
        missing,
    };
    let found = || match fixture.tool().query(&[key::IOF_QUERY_STATS]).unwrap().remove(0).value {
        Value::Streams(streams) => {
            assert_eq!(streams.len(), 4 * Channel::OUTPUTS.len(), "each stream of each rank");
            let is_it = |row: &&iof_proto::StreamStats| {
                row.source.rank == Rank(2) && row.channel == Channel::Stdout && !row.logged
            };
            let row = streams.iter().find(is_it).unwrap();
            (row.produced, row.dropped, row.complete, row.missing)
        }
        value => panic!("{value:?}"),
    };
    assert_eq!(found(), (0, 0, false, None));
    fixture.job.report_node(B, NodeReport::Streams(vec![stream(9, None)]));
    assert_eq!(found(), (9, 3, false, None));
    fixture.job.report_node(B, NodeReport::Streams(vec![stream(20, Some(11))]));
    let lost = NodeLost {
        host: "b".into(),
        reason: "a cut".into(),
        ranks: [Rank(2), Rank(3)].into(),
        delivered: 9,
        missing: 11,
        totals: None,
    };
    fixture.job.report_node(B, NodeReport::Lost(lost));
    assert_eq!(found(), (20, 3, true, Some(11)));
    // The node has nothing left.
    assert_eq!(read(&mut fixture.puller()), (String::new(), 0, Some(20)));
    (0..2).for_each(|rank| fixture.exit(rank, 0, false));
    fixture.end(&[A]);
    let mut late = fixture.tool();
    late.pull(&Pull::new(vec![Proc::all(nspace())], Channels::STDOUT)).unwrap();
    let mut missed = 0;
    while let Some(delivery) = late.recv_timeout(TIMEOUT).unwrap() {
        match delivery {
            Delivery::Missed { missed: found, .. } => missed += found.bytes,
            // The ring of the first tool is still there.
            Delivery::Broken { missing, .. } => missed += missing,
            Delivery::JobEnded { .. } => break,
            delivery => panic!("{delivery:?}"),
        }
    }
    assert_eq!(missed, 20, "what can't be read is not silently missing");
}

#[test]
fn readers_of_a_pulled_stream_know_the_stdin_of_its_rank_and_the_size_of_the_last_read() {
    let mut fixture = start_direct();
    let mut tool = fixture.puller();
    fixture.pull(1);
    let states = [(Interaction::Piped, false), (Interaction::Piped, true), (Interaction::None, false)];
    for (offset, (interaction, is_answer)) in (0..).step_by(4096).zip(states) {
        fixture.input = Some(InputState { interaction, is_answer });
        fixture.deliver(1, offset, &"x".repeat(4096), None).recv_timeout(TIMEOUT).unwrap();
        match tool.recv_timeout(TIMEOUT).unwrap() {
            Some(Delivery::Bytes(bytes)) => {
                let last = bytes.last_read().unwrap();
                assert_eq!((last.interaction, last.is_answer), (interaction, is_answer));
                // Reads at almost the same time are one.
                assert!(last.len % 4096 == 0 && last.len > 0, "{}", last.len);
            }
            delivery => panic!("{delivery:?}"),
        }
    }
    fixture.deliver(1, 3 * 4096, "", Some(DeliveredEnd::Complete)).recv_timeout(TIMEOUT).unwrap();
    (0..4).for_each(|rank| fixture.exit(rank, 0, false));
    fixture.end(&[A, B]);
}

#[test]
fn a_pull_that_its_node_does_not_answer_before_the_end_of_the_job_has_a_gap() {
    let fixture = start_direct();
    let mut tool = fixture.puller();
    fixture.pull(1);
    (0..4).for_each(|rank| fixture.exit(rank, 0, false));
    let stream = NodeStream {
        rank: Rank(2),
        channel: Channel::Stdout,
        produced: 9,
        lost: 0,
        ended: true,
        missing: None,
    };
    fixture.job.report_node(B, NodeReport::Streams(vec![stream]));
    fixture.end(&[A, B]);
    assert_eq!(read(&mut tool), (String::new(), 9, None));
}

#[test]
fn printers_of_the_embedder_get_no_rings_of_nodes_whose_output_passes_to_them() {
    let fixture = start_direct();
    let mut printer = fixture.engine.attach("printer", Grant::Block).unwrap();
    printer.pull(&Pull::new(vec![Proc::all(nspace())], Channels::STDOUT)).unwrap();
    let mut tool = fixture.puller();
    fixture.pull(1);
    fixture.deliver(1, 0, "x", Some(DeliveredEnd::Complete)).recv_timeout(TIMEOUT).unwrap();
    assert_eq!(read(&mut tool), ("x".to_owned(), 0, None));
    (0..4).for_each(|rank| fixture.exit(rank, 0, false));
    fixture.end(&[A, B]);
    match printer.recv_timeout(TIMEOUT).unwrap() {
        Some(Delivery::JobEnded { .. }) => {}
        delivery => panic!("{delivery:?}"),
    }
}

#[test]
fn streams_without_rings_are_read_in_order_and_their_bytes_are_given_back() {
    let fixture = start_direct();
    let mut printer = fixture.engine.attach("printer", Grant::Block).unwrap();
    let pull = Pull::new(vec![Proc::new(nspace(), Rank(1)), Proc::new(nspace(), Rank(2))], Channels::STDOUT);
    let handler = printer.pull(&pull).unwrap().handler;
    let input = printer.direct_input(handler, &pull).unwrap();
    let bytes = |text: &str| Arc::new(text.to_owned().into_bytes());
    let (first, second) = (bytes("first"), bytes("second"));
    let item = |bytes: &Arc<Vec<u8>>, time| DirectItem::Bytes { bytes: Arc::<Vec<u8>>::clone(bytes), time };
    input.push(Rank(2), Channel::Stdout, &item(&first, 7));
    input.push(Rank(2), Channel::Stdout, &DirectItem::Gap(3));
    // Neither this rank nor this channel was pulled.
    input.push(Rank(0), Channel::Stdout, &item(&second, 0));
    input.push(Rank(1), Channel::Stderr, &item(&second, 0));
    assert_eq!((Arc::strong_count(&first), Arc::strong_count(&second)), (2, 1));
    let sleeper = std::thread::spawn(move || {
        match printer.recv_timeout(TIMEOUT).unwrap() {
            Some(Delivery::Bytes(bytes)) => {
                assert_eq!((&*bytes, bytes.offset(), bytes.time()), (b"first".as_slice(), 0, Some(7)));
            }
            delivery => panic!("{delivery:?}"),
        }
        // The tool sleeps until the rest is pushed.
        let rest = read(&mut printer);
        (printer, rest)
    });
    input.flush();
    while Arc::strong_count(&first) > 1 {
        std::thread::yield_now();
    }
    input.push(Rank(2), Channel::Stdout, &item(&second, 0));
    input.push(Rank(2), Channel::Stdout, &DirectItem::Broken(5));
    input.flush();
    let (printer, rest) = sleeper.join().unwrap();
    assert_eq!(rest, ("second".to_owned(), 3, Some(5)));
    input.push(Rank(1), Channel::Stdout, &item(&first, 0));
    drop(printer);
    assert_eq!((Arc::strong_count(&first), Arc::strong_count(&second)), (1, 1));
    input.push(Rank(1), Channel::Stdout, &item(&first, 0));
    assert_eq!(Arc::strong_count(&first), 1, "nothing is kept for a tool that is gone");
    fixture.end(&[A, B]);
}
