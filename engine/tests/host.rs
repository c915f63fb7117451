//! Upcalls to the host: approval of tools, pulls, and stops of unwanted sources.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::{self, JoinHandle};

use common::raw::RawTool;
use common::{TIMEOUT, nspace, shell, spec, wait, wait_for};
use iof_engine::{
    ApprovalReply, Config, Engine, Grant, Host, HostReply, Policy, QueryReply, Rendezvous, same_user,
};
use iof_proto::limits::{MAX_OWED_BYTES_PER_USER, MAX_QUERY_KEYS, MAX_REGISTRATIONS_PER_TOOL};
use iof_proto::query::key;
use iof_proto::{
    Channel, Channels, Failure, FromTool, Granted, Info, Proc, Query, Rank, Status, ToTool, Value, socket,
};
use iof_tool::{AttachError, Delivery, Pull, RequestError, Tool};
use tempfile::TempDir;

/// A directive that only the host understands.
const CREDENTIAL: &str = "site.credential";

/// A request to the host.
enum Request {
    Pull(Vec<Proc>, Channels, Vec<Info>, HostReply),
    Stop(Vec<Proc>, Channels),
}

type Approval = Box<dyn Fn(&socket::PeerCredentials) -> Result<Grant, Failure> + Send + Sync>;

/// A host that passes each request to the test, which answers it.
struct ScriptedHost {
    requests: Mutex<Sender<Request>>,
    approve: Approval,
}

impl Host for ScriptedHost {
    fn approve(&self, tool: &socket::PeerCredentials, reply: ApprovalReply) {
        reply.answer((self.approve)(tool));
    }

    fn iof_pull(&self, procs: &[Proc], channels: Channels, directives: &[Info], reply: HostReply) {
        self.send(Request::Pull(procs.to_vec(), channels, directives.to_vec(), reply));
    }

    fn directives(&self) -> Vec<String> {
        vec![CREDENTIAL.into()]
    }

    fn iof_stop(&self, procs: &[Proc], channels: Channels) {
        self.send(Request::Stop(procs.to_vec(), channels));
    }
}

impl ScriptedHost {
    fn send(&self, request: Request) {
        // The test may have ended already.
        let _ = self.requests.lock().unwrap().send(request);
    }
}

struct Fixture {
    engine: Engine,
    requests: Receiver<Request>,
    _directory: TempDir,
}

fn fixture() -> Fixture {
    fixture_with(same_user)
}

fn fixture_with(
    approve: impl Fn(&socket::PeerCredentials) -> Result<Grant, Failure> + Send + Sync + 'static,
) -> Fixture {
    let (sender, requests) = channel();
    let (engine, _directory) =
        start_engine(Arc::new(ScriptedHost { requests: Mutex::new(sender), approve: Box::new(approve) }));
    Fixture { engine, requests, _directory }
}

fn start_engine(host: Arc<dyn Host>) -> (Engine, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let rendezvous = Rendezvous::Session(Some(directory.path().to_owned()));
    let config = Config { rendezvous, policy: Policy::Block, ..Config::default() };
    (Engine::start_with(config, host).unwrap(), directory)
}

fn procs(ranks: &[u32]) -> Vec<Proc> {
    ranks.iter().map(|rank| Proc { nspace: nspace(), rank: Rank(*rank) }).collect()
}

fn whole_job() -> Vec<Proc> {
    procs(&[Rank::WILDCARD.0])
}

/// A thread that pulls, and returns its tool with the answer.
type Pulled = JoinHandle<(Tool, Result<Granted, RequestError>)>;

impl Fixture {
    fn tool(&self) -> Tool {
        Tool::connect(self.engine.socket().unwrap(), "test").unwrap()
    }

    /// Starts a thread in which a new tool pulls.
    fn pull(&self, procs: Vec<Proc>, channels: Channels) -> Pulled {
        pull(self.tool(), procs, channels)
    }

    fn next(&self) -> Request {
        self.requests.recv_timeout(TIMEOUT).expect("the host receives a request")
    }

    fn next_pull(&self) -> (Vec<Proc>, Channels, HostReply) {
        match self.next() {
            Request::Pull(procs, channels, _, reply) => (procs, channels, reply),
            Request::Stop(procs, _) => panic!("a stop of {procs:?}"),
        }
    }

    fn next_stop(&self) -> (Vec<Proc>, Channels) {
        match self.next() {
            Request::Stop(procs, channels) => (procs, channels),
            Request::Pull(procs, ..) => panic!("a pull of {procs:?}"),
        }
    }

    /// Has a new tool pull sources that are not granted yet, and grants them.
    fn granted(&self, procs: Vec<Proc>, channels: Channels) -> (Tool, Granted) {
        let pulling = self.pull(procs, channels);
        self.next_pull().2.grant();
        granted(pulling)
    }

    /// Asserts that the host has received no request until now.
    fn assert_no_request(&self, tool: &mut Tool) {
        // The engine makes its upcalls after it has answered its tools. So they are made before the
        // second answer.
        (0..2).for_each(|_| drop(tool.query(&[key::PMIX_QUERY_NAMESPACES]).unwrap()));
        assert!(self.requests.try_recv().is_err(), "unexpected request");
    }

    fn raw(&self) -> RawTool {
        RawTool::connect(&self.engine)
    }

    /// Returns the number of readers of all streams together.
    fn readers(&self) -> usize {
        let mut own = self.engine.attach("observer", Grant::Never).unwrap();
        let Value::Streams(streams) = own.query(&[key::IOF_QUERY_STATS]).unwrap().remove(0).value else {
            panic!("no streams");
        };
        streams.iter().map(|stream| stream.readers.len()).sum()
    }
}

fn pull(mut tool: Tool, procs: Vec<Proc>, channels: Channels) -> Pulled {
    thread::spawn(move || {
        let granted = tool.pull(&Pull::new(procs, channels));
        (tool, granted)
    })
}

fn granted(pulling: Pulled) -> (Tool, Granted) {
    let (tool, granted) = pulling.join().unwrap();
    (tool, granted.unwrap())
}

fn denied(pulling: Pulled) -> (Tool, Failure) {
    let (tool, granted) = pulling.join().unwrap();
    let Err(RequestError::Denied(failure)) = granted else { panic!("{granted:?}") };
    (tool, failure)
}

/// Reads `tool` until its registrations have ended.
fn read(tool: &mut Tool) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(delivery) = tool.recv_timeout(TIMEOUT).unwrap() {
        if let Delivery::Bytes(some) = delivery {
            bytes.extend_from_slice(&some);
        }
    }
    bytes
}

#[test]
fn a_tool_waits_for_the_hosts_grant_and_then_receives_the_first_byte() {
    let fixture = fixture();
    let directives = vec![Info::new("site.colour", true)];
    let mut tool = fixture.tool();
    let pulling = thread::spawn(move || {
        let granted = tool.pull(&Pull { directives, ..Pull::new(whole_job(), Channels::STDOUT) });
        (tool, granted)
    });
    let Request::Pull(procs, channels, directives, reply) = fixture.next() else { panic!("a stop") };
    assert_eq!((procs, channels), (whole_job(), Channels::STDOUT));
    assert_eq!(directives, [Info::new("site.colour", true)]);
    let job = fixture.engine.spawn(&spec([shell("echo first")])).unwrap();
    assert!(!pulling.is_finished());
    wait(&job);
    thread::spawn(move || reply.grant()).join().unwrap();
    let (mut tool, granted) = granted(pulling);
    assert_eq!((granted.handler, granted.ignored), (1, vec!["site.colour".to_owned()]));
    assert_eq!(read(&mut tool), b"first\n");
}

#[test]
fn only_new_sources_and_channels_are_requested_from_the_host() {
    let fixture = fixture();
    let (mut tool, _) = fixture.granted(procs(&[0, 1]), Channels::STDOUT);
    // All sources are granted, so the host receives no request.
    tool.pull(&Pull::new(procs(&[1]), Channels::STDOUT)).unwrap();
    fixture.assert_no_request(&mut tool);
    let pulling = fixture.pull(procs(&[1, 2]), Channels::STDOUT);
    let (requested, channels, reply) = fixture.next_pull();
    assert_eq!((requested, channels), (procs(&[2]), Channels::STDOUT));
    reply.grant();
    let _second = granted(pulling);
    let pulling = fixture.pull(procs(&[0]), Channels::STDOUT | Channels::STDERR);
    let (requested, channels, reply) = fixture.next_pull();
    assert_eq!((requested, channels), (procs(&[0]), Channels::STDERR));
    reply.grant();
    let _third = granted(pulling);
    fixture.assert_no_request(&mut tool);
}

#[test]
fn a_whole_job_covers_its_ranks() {
    let fixture = fixture();
    let (mut tool, _) = fixture.granted(whole_job(), Channels::STDOUT);
    tool.pull(&Pull::new(procs(&[0, 7]), Channels::STDOUT)).unwrap();
    fixture.assert_no_request(&mut tool);
}

#[test]
fn a_denied_tool_receives_the_reason_and_no_output() {
    let fixture = fixture();
    let job = fixture.engine.spawn(&spec([shell("echo secret; read x")])).unwrap();
    let pulling = fixture.pull(whole_job(), Channels::STDOUT);
    fixture.next_pull().2.deny(Status(-1234), "not today");
    let (mut tool, failure) = denied(pulling);
    assert_eq!(failure, Failure::new(Status(-1234), "not today"));
    wait(&job);
    assert_eq!(read(&mut tool), b"");
    assert_eq!(fixture.readers(), 0);
    // The tool may pull again.
    let pulling = pull(tool, whole_job(), Channels::STDOUT);
    fixture.next_pull().2.grant();
    assert_eq!(read(&mut granted(pulling).0), b"secret\n");
}

#[test]
fn a_request_that_the_host_drops_is_denied() {
    let fixture = fixture();
    let pulling = fixture.pull(whole_job(), Channels::STDOUT);
    drop(fixture.next_pull());
    assert_eq!(denied(pulling).1.status, Status::ERR_NOT_AVAILABLE);
}

#[test]
fn concurrent_equal_requests_make_one_upcall_and_share_its_answer() {
    let fixture = fixture();
    let mut other = fixture.tool();
    for grants in [false, true] {
        let mut raws: Vec<RawTool> = (0..8).map(|_| fixture.raw()).collect();
        for raw in &mut raws {
            raw.pull(whole_job(), Channels::STDOUT);
            raw.sync();
        }
        let (_, _, reply) = fixture.next_pull();
        fixture.assert_no_request(&mut other);
        assert!(raws.iter().all(|raw| raw.pulled.is_empty()));
        if grants {
            reply.grant();
        } else {
            reply.deny(Status::ERR_NO_PERMISSIONS, "no");
        }
        for raw in &mut raws {
            assert_eq!(raw.next_pulled().is_ok(), grants);
        }
        fixture.assert_no_request(&mut other);
    }
    assert_eq!(fixture.next_stop(), (whole_job(), Channels::STDOUT));
}

#[test]
fn after_a_denial_different_requests_are_sent_to_the_host_separately() {
    let fixture = fixture();
    let (mut first, mut less, mut other) = (fixture.raw(), fixture.raw(), fixture.raw());
    first.pull(procs(&[0, 1]), Channels::STDOUT);
    less.pull(procs(&[0]), Channels::STDOUT);
    other.pull_with(procs(&[0, 1]), Channels::STDOUT, vec![Info::required(CREDENTIAL, true)]);
    let (requested, _, reply) = fixture.next_pull();
    [&mut first, &mut less, &mut other].into_iter().for_each(RawTool::sync);
    assert_eq!(requested, procs(&[0, 1]), "the others wait for the same answer");
    reply.deny(Status::ERR_NO_PERMISSIONS, "not rank 1");
    assert!(first.next_pulled().is_err());
    let mut again = BTreeSet::new();
    for _ in 0..2 {
        let Request::Pull(procs, _, directives, reply) = fixture.next() else { panic!("a stop") };
        again.insert((procs, directives.iter().any(|info| info.key == CREDENTIAL)));
        reply.grant();
    }
    assert_eq!(again, BTreeSet::from([(procs(&[0]), false), (procs(&[1]), true)]));
    assert!(less.next_pulled().is_ok() && other.next_pulled().is_ok());
}

#[test]
fn directives_that_only_the_host_understands_are_passed_to_it() {
    let fixture = fixture();
    let mut tool = fixture.tool();
    let pulling = thread::spawn(move || {
        let directives = vec![Info::required(CREDENTIAL, true), Info::new("unknown.key", true)];
        let granted = tool.pull(&Pull { directives, ..Pull::new(whole_job(), Channels::STDOUT) });
        (tool, granted)
    });
    let Request::Pull(_, _, directives, reply) = fixture.next() else { panic!("a stop") };
    assert!(directives.iter().any(|info| info.key == CREDENTIAL && info.required));
    reply.grant();
    assert_eq!(granted(pulling).1.ignored, ["unknown.key"]);
}

#[test]
fn the_waiting_requests_of_a_tool_are_limited() {
    let fixture = fixture();
    let mut raw = fixture.raw();
    for rank in 0..=u32::try_from(MAX_REGISTRATIONS_PER_TOOL).unwrap() {
        raw.pull(procs(&[rank]), Channels::STDOUT);
    }
    raw.sync();
    let refused = raw.next_pulled().unwrap_err();
    assert_eq!(refused.status, Status::ERR_OUT_OF_RESOURCE);
    (0..MAX_REGISTRATIONS_PER_TOOL).for_each(|_| fixture.next_pull().2.grant());
    (0..MAX_REGISTRATIONS_PER_TOOL).for_each(|_| drop(raw.next_pulled().unwrap()));
}

#[test]
fn a_waiting_request_is_not_a_registration_yet() {
    let fixture = fixture();
    let mut raw = fixture.raw();
    raw.pull(whole_job(), Channels::STDOUT);
    raw.send(&FromTool::Deregister { request: 7, handler: 1 });
    let answer = loop {
        if let ToTool::Deregistered { result, .. } = raw.receive() {
            break result;
        }
    };
    assert_eq!(answer.unwrap_err().status, Status::ERR_NOT_FOUND);
    fixture.next_pull().2.grant();
    assert_eq!(raw.next_pulled().unwrap().handler, 1);
}

#[test]
fn the_host_is_informed_once_of_sources_that_no_tool_wants_any_more() {
    let fixture = fixture();
    let (mut first, registration) = fixture.granted(procs(&[0, 1]), Channels::STDOUT);
    let mut second = fixture.tool();
    second.pull(&Pull::new(procs(&[1]), Channels::STDOUT)).unwrap();
    first.deregister(registration.handler).unwrap();
    let ended = first.recv_timeout(TIMEOUT).unwrap();
    assert!(matches!(ended, Some(Delivery::Deregistered { .. })), "{ended:?}");
    assert_eq!(fixture.next_stop(), (procs(&[0]), Channels::STDOUT));
    drop(second);
    assert_eq!(fixture.next_stop(), (procs(&[1]), Channels::STDOUT));
    fixture.assert_no_request(&mut first);
}

#[test]
fn a_source_granted_after_its_tool_has_disconnected_is_stopped() {
    let fixture = fixture();
    let mut raw = fixture.raw();
    raw.pull(whole_job(), Channels::STDOUT);
    let (_, _, reply) = fixture.next_pull();
    drop(raw);
    // Tools are served in order, so the disconnection is processed first.
    let mut other = fixture.tool();
    fixture.assert_no_request(&mut other);
    reply.grant();
    assert_eq!(fixture.next_stop(), (whole_job(), Channels::STDOUT));
    // The next pull makes a new request.
    let pulling = pull(other, whole_job(), Channels::STDOUT);
    fixture.next_pull().2.grant();
    granted(pulling);
}

#[test]
fn partial_grants_of_a_denied_pull_are_undone() {
    let fixture = fixture();
    let (tool, _) = fixture.granted(procs(&[0]), Channels::STDERR);
    let pulling = fixture.pull(procs(&[0, 1]), Channels::STDOUT | Channels::STDERR);
    let (first, second) = (fixture.next_pull(), fixture.next_pull());
    first.2.grant();
    second.2.deny(Status::ERR_NOT_SUPPORTED, "not that one");
    denied(pulling);
    assert_eq!(fixture.next_stop(), (first.0, first.1));
    drop(tool);
    assert_eq!(fixture.next_stop(), (procs(&[0]), Channels::STDERR));
}

#[test]
fn the_embedders_own_tools_make_no_requests_to_the_host() {
    let fixture = fixture();
    let mut own = fixture.engine.attach("own", Grant::Block).unwrap();
    own.pull(&Pull::new(whole_job(), Channels::ALL)).unwrap();
    fixture.assert_no_request(&mut own);
}

#[test]
fn the_host_approves_tools_by_their_credentials() {
    let seen = Arc::new(OnceLock::new());
    let fixture = fixture_with({
        let seen = Arc::clone(&seen);
        move |tool| {
            seen.set(*tool).unwrap();
            Err(Failure::new(Status::ERR_NO_PERMISSIONS, format!("not group {}", tool.gid)))
        }
    });
    let refused = Tool::connect(fixture.engine.socket().unwrap(), "test").err();
    let Some(AttachError::Refused { status, reason }) = refused else { panic!("{refused:?}") };
    let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    assert_eq!(*seen.get().unwrap(), socket::PeerCredentials { pid: std::process::id(), uid, gid });
    assert_eq!((status, reason), (Status::ERR_NO_PERMISSIONS, format!("not group {gid}")));
}

/// A host that never answers.
#[derive(Default)]
struct SilentHost {
    approvals: Mutex<Vec<ApprovalReply>>,
    queries: Mutex<Vec<QueryReply>>,
    approves: bool,
}

impl Host for SilentHost {
    fn approve(&self, tool: &socket::PeerCredentials, reply: ApprovalReply) {
        if self.approves {
            reply.answer(same_user(tool));
        } else {
            self.approvals.lock().unwrap().push(reply);
        }
    }

    fn query(&self, _: &[Query], reply: QueryReply) {
        self.queries.lock().unwrap().push(reply);
    }
}

#[test]
fn a_slow_approval_delays_no_other_tool() {
    let host = Arc::new(SilentHost::default());
    let (engine, _directory) = start_engine(Arc::clone(&host) as Arc<dyn Host>);
    let path = engine.socket().unwrap().to_owned();
    let refused = thread::spawn(move || Tool::connect(&path, "test").err());
    wait_for("the host to receive the request", || {
        (!host.approvals.lock().unwrap().is_empty()).then_some(())
    });
    let mut own = engine.attach("own", Grant::Never).unwrap();
    for _ in 0..100 {
        own.query(&[key::PMIX_QUERY_NAMESPACES]).unwrap();
    }
    assert!(!refused.is_finished(), "the engine has served others meanwhile");
    let refused = refused.join().unwrap();
    let Some(AttachError::Refused { status, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(status, Status::ERR_TIMEOUT);
    // A late answer has no effect.
    host.approvals.lock().unwrap().pop().unwrap().answer(Ok(Grant::Never));
    own.query(&[key::PMIX_QUERY_NAMESPACES]).unwrap();
}

#[test]
fn unanswered_requests_of_disconnected_tools_are_bounded() {
    let host = Arc::new(SilentHost { approves: true, ..SilentHost::default() });
    let (engine, _directory) = start_engine(Arc::clone(&host) as Arc<dyn Host>);
    let keys = || (0..MAX_QUERY_KEYS).map(|number| format!("{number:0>1000}"));
    let ask = || {
        let mut raw = RawTool::connect(&engine);
        for request in 0..15 {
            raw.send(&FromTool::Query { request, queries: vec![Query::new(keys())] });
        }
        // The engine answers this query without the host, so it has read the others.
        raw.send(&FromTool::Query { request: 15, queries: vec![Query::new([key::PMIX_QUERY_NAMESPACES])] });
        loop {
            match raw.receive() {
                ToTool::Answer { request: 15, .. } => return None,
                ToTool::Answer { result: Err(failure), .. } => return Some(failure),
                _ => {}
            }
        }
    };
    let refused = (0..64).find_map(|_| ask()).expect("the engine refuses a query eventually");
    assert_eq!(refused.status, Status::ERR_RESOURCE_BUSY);
    assert!(refused.reason.contains(&MAX_OWED_BYTES_PER_USER.to_string()), "{refused}");
    drop(host.queries.lock().unwrap().split_off(0));
    wait_for("the host's answers to be processed", || ask().is_none().then_some(()));
}

#[test]
fn by_default_only_the_engines_user_and_root_are_approved() {
    let me = nix::unistd::geteuid().as_raw();
    let tool = |uid| socket::PeerCredentials { pid: 1, uid, gid: 1 };
    assert_eq!(same_user(&tool(me)), Ok(Grant::Never));
    assert_eq!(same_user(&tool(0)), Ok(Grant::Never));
    assert_eq!(same_user(&tool(me + 1)).unwrap_err().status, Status::ERR_NO_PERMISSIONS);
}

#[test]
fn a_tool_holds_back_sources_only_if_the_host_grants_it() {
    // More than the cache and the pipe hold.
    const SIZE: usize = 8_000_000;
    for grant in [Grant::Block, Grant::Never] {
        let fixture = fixture_with(move |_| Ok(grant));
        let (mut tool, _) = fixture.granted(whole_job(), Channels::STDOUT);
        let job = fixture.engine.spawn(&spec([shell(&format!("head -c {SIZE} /dev/zero"))])).unwrap();
        if grant == Grant::Never {
            wait(&job);
        }
        let delivered = read(&mut tool).len();
        assert_eq!(delivered == SIZE, grant == Grant::Block, "{delivered}");
        wait(&job);
    }
}

/// A host that calls the engine in its upcalls.
#[derive(Default)]
struct CallingHost {
    engine: OnceLock<Weak<Engine>>,
}

impl Host for CallingHost {
    fn iof_pull(&self, procs: &[Proc], _: Channels, _: &[Info], reply: HostReply) {
        let engine = self.engine.get().and_then(Weak::upgrade).unwrap();
        let spec = iof_engine::JobSpec { nspace: procs[0].nspace.clone(), ..spec([shell("echo here")]) };
        engine.spawn(&spec).unwrap();
        reply.grant();
    }
}

/// A host that drops the engine in an upcall.
#[derive(Default)]
struct DroppingHost {
    engine: Mutex<Option<Arc<Engine>>>,
}

impl Host for DroppingHost {
    fn iof_pull(&self, _: &[Proc], _: Channels, _: &[Info], reply: HostReply) {
        let engine = self.engine.lock().unwrap().take();
        drop(engine);
        reply.grant();
    }
}

#[test]
fn an_upcall_may_drop_the_engine_and_deliveries_are_still_acknowledged() {
    let host = Arc::new(DroppingHost::default());
    let (engine, _directory) = start_engine(Arc::clone(&host) as Arc<dyn Host>);
    let mut holds_back = engine.attach("own", Grant::Block).unwrap();
    holds_back.pull(&Pull::new(whole_job(), Channels::STDOUT)).unwrap();
    let (sender, taken) = channel();
    let taken_callback = move || sender.send(()).unwrap();
    engine.deliver(&procs(&[0])[0], Channel::Stdout, vec![0; 8 << 20], &[], taken_callback).unwrap();
    let tool = Tool::connect(engine.socket().unwrap(), "test").unwrap();
    *host.engine.lock().unwrap() = Some(Arc::new(engine));
    // The tool may still receive the grant, because the engine sends its queued messages.
    let _ = pull(tool, whole_job(), Channels::STDERR).join().unwrap();
    assert_eq!(taken.recv_timeout(TIMEOUT), Ok(()));
    assert!(taken.recv().is_err());
}

#[test]
fn an_upcall_may_call_the_engine() {
    let host = Arc::new(CallingHost::default());
    let (engine, _directory) = start_engine(Arc::clone(&host) as Arc<dyn Host>);
    let engine = Arc::new(engine);
    host.engine.set(Arc::downgrade(&engine)).unwrap();
    let tool = Tool::connect(engine.socket().unwrap(), "test").unwrap();
    let (mut tool, _) = granted(pull(tool, whole_job(), Channels::STDOUT));
    assert_eq!(read(&mut tool), b"here\n");
}
