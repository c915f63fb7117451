//! What the engine asks of its host: whom to let in, what tools want, what nobody wants any more.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::{self, JoinHandle};

use common::raw::Raw;
use common::{PATIENCE, nspace, shell, spec, wait, wait_for};
use iof_engine::{
    ApprovalReply, Config, Engine, Grant, Host, Policy, QueryReply, Rendezvous, Reply, same_user,
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

/// What a host was asked.
enum Asked {
    Pull(Vec<Proc>, Channels, Vec<Info>, Reply),
    Stop(Vec<Proc>, Channels),
}

type Approval = Box<dyn Fn(&socket::PeerCredentials) -> Result<Grant, Failure> + Send + Sync>;

/// Tells the test what it is asked, and leaves the answer to it.
struct Scripted {
    asked: Mutex<Sender<Asked>>,
    approve: Approval,
}

impl Host for Scripted {
    fn approve(&self, tool: &socket::PeerCredentials, reply: ApprovalReply) {
        reply.answer((self.approve)(tool));
    }

    fn iof_pull(&self, procs: &[Proc], channels: Channels, directives: &[Info], reply: Reply) {
        self.tell(Asked::Pull(procs.to_vec(), channels, directives.to_vec(), reply));
    }

    fn directives(&self) -> Vec<String> {
        vec![CREDENTIAL.into()]
    }

    fn iof_stop(&self, procs: &[Proc], channels: Channels) {
        self.tell(Asked::Stop(procs.to_vec(), channels));
    }
}

impl Scripted {
    fn tell(&self, asked: Asked) {
        // The test may be over.
        let _ = self.asked.lock().unwrap().send(asked);
    }
}

struct World {
    engine: Engine,
    asked: Receiver<Asked>,
    _directory: TempDir,
}

fn world() -> World {
    world_with(same_user)
}

fn world_with(
    approve: impl Fn(&socket::PeerCredentials) -> Result<Grant, Failure> + Send + Sync + 'static,
) -> World {
    let (tell, asked) = channel();
    let (engine, _directory) =
        engine_of(Arc::new(Scripted { asked: Mutex::new(tell), approve: Box::new(approve) }));
    World { engine, asked, _directory }
}

fn engine_of(host: Arc<dyn Host>) -> (Engine, TempDir) {
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

/// A tool that was answered, or not.
type Pulled = JoinHandle<(Tool, Result<Granted, RequestError>)>;

impl World {
    fn tool(&self) -> Tool {
        Tool::connect(self.engine.socket().unwrap(), "test").unwrap()
    }

    /// Has a new tool pull on a thread of its own.
    fn pull(&self, procs: Vec<Proc>, channels: Channels) -> Pulled {
        pull(self.tool(), procs, channels)
    }

    fn next(&self) -> Asked {
        self.asked.recv_timeout(PATIENCE).expect("the host is asked")
    }

    fn next_pull(&self) -> (Vec<Proc>, Channels, Reply) {
        match self.next() {
            Asked::Pull(procs, channels, _, reply) => (procs, channels, reply),
            Asked::Stop(procs, _) => panic!("a stop of {procs:?}"),
        }
    }

    fn next_stop(&self) -> (Vec<Proc>, Channels) {
        match self.next() {
            Asked::Stop(procs, channels) => (procs, channels),
            Asked::Pull(procs, ..) => panic!("a pull of {procs:?}"),
        }
    }

    /// Has a new tool pull what is not granted yet.
    fn granted(&self, procs: Vec<Proc>, channels: Channels) -> (Tool, Granted) {
        let pulling = self.pull(procs, channels);
        self.next_pull().2.grant();
        granted(pulling)
    }

    /// That the host was asked nothing until now: the engine has answered `tool` since.
    fn nothing_asked(&self, tool: &mut Tool) {
        // The engine speaks to its host when it has answered its tools, so it has done so before the
        // second.
        (0..2).for_each(|_| drop(tool.query(&[key::PMIX_QUERY_NAMESPACES]).unwrap()));
        assert!(self.asked.try_recv().is_err(), "the host was asked");
    }

    fn raw(&self) -> Raw {
        Raw::connect(&self.engine)
    }

    /// Readers of all streams together.
    fn readers(&self) -> usize {
        let mut own = self.engine.attach("looks", Grant::Never).unwrap();
        let Value::Streams(streams) = own.query(&[key::IOF_STATS]).unwrap().remove(0).value else {
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

/// All that `tool` gets until its registrations are over.
fn read(tool: &mut Tool) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(delivery) = tool.next(Some(PATIENCE)).unwrap() {
        if let Delivery::Bytes(some) = delivery {
            bytes.extend_from_slice(&some);
        }
    }
    bytes
}

#[test]
fn a_tool_waits_for_the_hosts_word_and_then_has_the_first_byte() {
    let world = world();
    let directives = vec![Info::new("site.colour", true)];
    let mut tool = world.tool();
    let pulling = thread::spawn(move || {
        let granted = tool.pull(&Pull { directives, ..Pull::new(whole_job(), Channels::STDOUT) });
        (tool, granted)
    });
    let Asked::Pull(procs, channels, directives, reply) = world.next() else { panic!("a stop") };
    assert_eq!((procs, channels), (whole_job(), Channels::STDOUT));
    assert_eq!(directives, [Info::new("site.colour", true)]);
    let job = world.engine.spawn(&spec([shell("echo first")])).unwrap();
    assert!(!pulling.is_finished());
    wait(&job);
    thread::spawn(move || reply.grant()).join().unwrap();
    let (mut tool, granted) = granted(pulling);
    assert_eq!((granted.handler, granted.ignored), (1, vec!["site.colour".to_owned()]));
    assert_eq!(read(&mut tool), b"first\n");
}

#[test]
fn only_new_sources_and_channels_go_up() {
    let world = world();
    let (mut tool, _) = world.granted(procs(&[0, 1]), Channels::STDOUT);
    // All covered: the host is not asked.
    tool.pull(&Pull::new(procs(&[1]), Channels::STDOUT)).unwrap();
    world.nothing_asked(&mut tool);
    let pulling = world.pull(procs(&[1, 2]), Channels::STDOUT);
    let (asked, channels, reply) = world.next_pull();
    assert_eq!((asked, channels), (procs(&[2]), Channels::STDOUT));
    reply.grant();
    let _second = granted(pulling);
    let pulling = world.pull(procs(&[0]), Channels::STDOUT | Channels::STDERR);
    let (asked, channels, reply) = world.next_pull();
    assert_eq!((asked, channels), (procs(&[0]), Channels::STDERR));
    reply.grant();
    let _third = granted(pulling);
    world.nothing_asked(&mut tool);
}

#[test]
fn a_whole_job_covers_its_ranks() {
    let world = world();
    let (mut tool, _) = world.granted(whole_job(), Channels::STDOUT);
    tool.pull(&Pull::new(procs(&[0, 7]), Channels::STDOUT)).unwrap();
    world.nothing_asked(&mut tool);
}

#[test]
fn a_denied_tool_is_told_why_and_gets_nothing() {
    let world = world();
    let job = world.engine.spawn(&spec([shell("echo secret; read x")])).unwrap();
    let pulling = world.pull(whole_job(), Channels::STDOUT);
    world.next_pull().2.deny(Status(-1234), "not today");
    let (mut tool, failure) = denied(pulling);
    assert_eq!(failure, Failure { status: Status(-1234), reason: "not today".into() });
    wait(&job);
    assert_eq!(read(&mut tool), b"");
    assert_eq!(world.readers(), 0);
    // It may ask again.
    let pulling = pull(tool, whole_job(), Channels::STDOUT);
    world.next_pull().2.grant();
    assert_eq!(read(&mut granted(pulling).0), b"secret\n");
}

#[test]
fn an_unanswered_request_that_the_host_drops_is_denied() {
    let world = world();
    let pulling = world.pull(whole_job(), Channels::STDOUT);
    drop(world.next_pull());
    assert_eq!(denied(pulling).1.status, Status::ERR_NOT_AVAILABLE);
}

#[test]
fn concurrent_equal_requests_make_one_upcall_and_share_its_answer() {
    let world = world();
    let mut other = world.tool();
    for grants in [false, true] {
        let mut raws: Vec<Raw> = (0..8).map(|_| world.raw()).collect();
        for raw in &mut raws {
            raw.pull(whole_job(), Channels::STDOUT);
            raw.until_heard();
        }
        let (_, _, reply) = world.next_pull();
        world.nothing_asked(&mut other);
        assert!(raws.iter().all(|raw| raw.pulled.is_empty()));
        if grants {
            reply.grant();
        } else {
            reply.deny(Status::ERR_NO_PERMISSIONS, "no");
        }
        for raw in &mut raws {
            assert_eq!(raw.next_pulled().is_ok(), grants);
        }
        world.nothing_asked(&mut other);
    }
    assert_eq!(world.next_stop(), (whole_job(), Channels::STDOUT));
}

#[test]
fn what_was_denied_to_one_tool_is_asked_again_for_another_that_wants_less_or_is_another() {
    let world = world();
    let (mut first, mut less, mut other) = (world.raw(), world.raw(), world.raw());
    first.pull(procs(&[0, 1]), Channels::STDOUT);
    less.pull(procs(&[0]), Channels::STDOUT);
    other.pull_with(procs(&[0, 1]), Channels::STDOUT, vec![Info::required(CREDENTIAL, true)]);
    let (asked, _, reply) = world.next_pull();
    [&mut first, &mut less, &mut other].into_iter().for_each(Raw::until_heard);
    assert_eq!(asked, procs(&[0, 1]), "the others wait for the same");
    reply.deny(Status::ERR_NO_PERMISSIONS, "not rank 1");
    assert!(first.next_pulled().is_err());
    let mut again = BTreeSet::new();
    for _ in 0..2 {
        let Asked::Pull(procs, _, directives, reply) = world.next() else { panic!("a stop") };
        again.insert((procs, directives.iter().any(|info| info.key == CREDENTIAL)));
        reply.grant();
    }
    assert_eq!(again, BTreeSet::from([(procs(&[0]), false), (procs(&[1]), true)]));
    assert!(less.next_pulled().is_ok() && other.next_pulled().is_ok());
}

#[test]
fn what_only_the_host_understands_is_left_to_it_required_or_not() {
    let world = world();
    let mut tool = world.tool();
    let pulling = thread::spawn(move || {
        let directives = vec![Info::required(CREDENTIAL, true), Info::new("nobody.knows", true)];
        let granted = tool.pull(&Pull { directives, ..Pull::new(whole_job(), Channels::STDOUT) });
        (tool, granted)
    });
    let Asked::Pull(_, _, directives, reply) = world.next() else { panic!("a stop") };
    assert!(directives.iter().any(|info| info.key == CREDENTIAL && info.required));
    reply.grant();
    assert_eq!(granted(pulling).1.ignored, ["nobody.knows"]);
}

#[test]
fn a_tool_may_have_so_many_requests_waiting_and_no_more() {
    let world = world();
    let mut raw = world.raw();
    for rank in 0..=u32::try_from(MAX_REGISTRATIONS_PER_TOOL).unwrap() {
        raw.pull(procs(&[rank]), Channels::STDOUT);
    }
    raw.until_heard();
    let refused = raw.next_pulled().unwrap_err();
    assert_eq!(refused.status, Status::ERR_OUT_OF_RESOURCE);
    (0..MAX_REGISTRATIONS_PER_TOOL).for_each(|_| world.next_pull().2.grant());
    (0..MAX_REGISTRATIONS_PER_TOOL).for_each(|_| drop(raw.next_pulled().unwrap()));
}

#[test]
fn a_request_that_waits_is_no_registration_yet() {
    let world = world();
    let mut raw = world.raw();
    raw.pull(whole_job(), Channels::STDOUT);
    raw.send(&FromTool::Deregister { request: 7, handler: 1 });
    let answer = loop {
        if let ToTool::Deregistered { result, .. } = raw.receive() {
            break result;
        }
    };
    assert_eq!(answer.unwrap_err().status, Status::ERR_NOT_FOUND);
    world.next_pull().2.grant();
    assert_eq!(raw.next_pulled().unwrap().handler, 1);
}

#[test]
fn the_host_learns_once_what_nobody_wants_any_more() {
    let world = world();
    let (mut first, registration) = world.granted(procs(&[0, 1]), Channels::STDOUT);
    let mut second = world.tool();
    second.pull(&Pull::new(procs(&[1]), Channels::STDOUT)).unwrap();
    first.deregister(registration.handler).unwrap();
    let ended = first.next(Some(PATIENCE)).unwrap();
    assert!(matches!(ended, Some(Delivery::Deregistered { .. })), "{ended:?}");
    assert_eq!(world.next_stop(), (procs(&[0]), Channels::STDOUT));
    drop(second);
    assert_eq!(world.next_stop(), (procs(&[1]), Channels::STDOUT));
    world.nothing_asked(&mut first);
}

#[test]
fn what_is_granted_after_its_tool_has_gone_is_stopped() {
    let world = world();
    let mut raw = world.raw();
    raw.pull(whole_job(), Channels::STDOUT);
    let (_, _, reply) = world.next_pull();
    drop(raw);
    // Whoever comes after it is heard after its end.
    let mut other = world.tool();
    world.nothing_asked(&mut other);
    reply.grant();
    assert_eq!(world.next_stop(), (whole_job(), Channels::STDOUT));
    // The next one asks anew.
    let pulling = pull(other, whole_job(), Channels::STDOUT);
    world.next_pull().2.grant();
    granted(pulling);
}

#[test]
fn what_was_granted_in_part_is_undone() {
    let world = world();
    let (tool, _) = world.granted(procs(&[0]), Channels::STDERR);
    let pulling = world.pull(procs(&[0, 1]), Channels::STDOUT | Channels::STDERR);
    let (first, second) = (world.next_pull(), world.next_pull());
    first.2.grant();
    second.2.deny(Status::ERR_NOT_SUPPORTED, "not that one");
    denied(pulling);
    assert_eq!(world.next_stop(), (first.0, first.1));
    drop(tool);
    assert_eq!(world.next_stop(), (procs(&[0]), Channels::STDERR));
}

#[test]
fn the_embedders_own_readers_ask_nobody() {
    let world = world();
    let mut own = world.engine.attach("own", Grant::Block).unwrap();
    own.pull(&Pull::new(whole_job(), Channels::ALL)).unwrap();
    world.nothing_asked(&mut own);
}

#[test]
fn tools_are_approved_by_user_and_group() {
    let seen = Arc::new(OnceLock::new());
    let world = world_with({
        let seen = Arc::clone(&seen);
        move |tool| {
            seen.set(*tool).unwrap();
            Err(Failure { status: Status::ERR_NO_PERMISSIONS, reason: format!("not group {}", tool.gid) })
        }
    });
    let refused = Tool::connect(world.engine.socket().unwrap(), "test").err();
    let Some(AttachError::Refused { status, reason }) = refused else { panic!("{refused:?}") };
    let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    assert_eq!(*seen.get().unwrap(), socket::PeerCredentials { pid: std::process::id(), uid, gid });
    assert_eq!((status, reason), (Status::ERR_NO_PERMISSIONS, format!("not group {gid}")));
}

/// Answers nothing, ever.
#[derive(Default)]
struct Mute {
    approvals: Mutex<Vec<ApprovalReply>>,
    queries: Mutex<Vec<QueryReply>>,
    lets_in: bool,
}

impl Host for Mute {
    fn approve(&self, tool: &socket::PeerCredentials, reply: ApprovalReply) {
        if self.lets_in {
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
fn a_host_that_does_not_say_whom_it_lets_in_keeps_no_other_tool_waiting() {
    let host = Arc::new(Mute::default());
    let (engine, _directory) = engine_of(Arc::clone(&host) as Arc<dyn Host>);
    let path = engine.socket().unwrap().to_owned();
    let refused = thread::spawn(move || Tool::connect(&path, "test").err());
    wait_for("the host to be asked", || (!host.approvals.lock().unwrap().is_empty()).then_some(()));
    let mut own = engine.attach("own", Grant::Never).unwrap();
    for _ in 0..100 {
        own.query(&[key::PMIX_QUERY_NAMESPACES]).unwrap();
    }
    assert!(!refused.is_finished(), "the engine has served others meanwhile");
    let refused = refused.join().unwrap();
    let Some(AttachError::Refused { status, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(status, Status::ERR_TIMEOUT);
    // What comes too late is no answer.
    host.approvals.lock().unwrap().pop().unwrap().answer(Ok(Grant::Never));
    own.query(&[key::PMIX_QUERY_NAMESPACES]).unwrap();
}

#[test]
fn what_a_host_owes_to_tools_that_come_and_go_is_bounded() {
    let host = Arc::new(Mute { lets_in: true, ..Mute::default() });
    let (engine, _directory) = engine_of(Arc::clone(&host) as Arc<dyn Host>);
    let keys = || (0..MAX_QUERY_KEYS).map(|number| format!("{number:0>1000}"));
    let ask = || {
        let mut raw = Raw::connect(&engine);
        for request in 0..15 {
            raw.send(&FromTool::Query { request, queries: vec![Query::new(keys())] });
        }
        // The engine answers this itself, so it has heard the others.
        raw.send(&FromTool::Query { request: 15, queries: vec![Query::new([key::PMIX_QUERY_NAMESPACES])] });
        loop {
            match raw.receive() {
                ToTool::Answer { request: 15, .. } => return None,
                ToTool::Answer { result: Err(failure), .. } => return Some(failure),
                _ => {}
            }
        }
    };
    let refused = (0..64).find_map(|_| ask()).expect("the engine refuses some time");
    assert_eq!(refused.status, Status::ERR_RESOURCE_BUSY);
    assert!(refused.reason.contains(&MAX_OWED_BYTES_PER_USER.to_string()), "{refused}");
    drop(host.queries.lock().unwrap().split_off(0));
    wait_for("the host's answers to be heard", || ask().is_none().then_some(()));
}

#[test]
fn only_users_of_the_engine_and_root_are_let_in_unless_the_host_says_so() {
    let me = nix::unistd::geteuid().as_raw();
    let tool = |uid| socket::PeerCredentials { pid: 1, uid, gid: 1 };
    assert_eq!(same_user(&tool(me)), Ok(Grant::Never));
    assert_eq!(same_user(&tool(0)), Ok(Grant::Never));
    assert_eq!(same_user(&tool(me + 1)).unwrap_err().status, Status::ERR_NO_PERMISSIONS);
}

#[test]
fn a_tool_holds_sources_back_only_if_the_host_says_so() {
    // More than cache and pipe hold.
    const SIZE: usize = 8_000_000;
    for grant in [Grant::Block, Grant::Never] {
        let world = world_with(move |_| Ok(grant));
        let (mut tool, _) = world.granted(whole_job(), Channels::STDOUT);
        let job = world.engine.spawn(&spec([shell(&format!("head -c {SIZE} /dev/zero"))])).unwrap();
        if grant == Grant::Never {
            wait(&job);
        }
        let delivered = read(&mut tool).len();
        assert_eq!(delivered == SIZE, grant == Grant::Block, "{delivered}");
        wait(&job);
    }
}

/// Calls the engine from inside its upcalls.
#[derive(Default)]
struct Busy {
    engine: OnceLock<Weak<Engine>>,
}

impl Host for Busy {
    fn iof_pull(&self, procs: &[Proc], _: Channels, _: &[Info], reply: Reply) {
        let engine = self.engine.get().and_then(Weak::upgrade).unwrap();
        let spec = iof_engine::JobSpec { nspace: procs[0].nspace.clone(), ..spec([shell("echo here")]) };
        engine.spawn(&spec).unwrap();
        reply.grant();
    }
}

/// Drops the engine from inside an upcall.
#[derive(Default)]
struct Last {
    engine: Mutex<Option<Arc<Engine>>>,
}

impl Host for Last {
    fn iof_pull(&self, _: &[Proc], _: Channels, _: &[Info], reply: Reply) {
        let engine = self.engine.lock().unwrap().take();
        drop(engine);
        reply.grant();
    }
}

#[test]
fn an_upcall_may_drop_the_engine_and_what_was_delivered_is_not_forgotten() {
    let host = Arc::new(Last::default());
    let (engine, _directory) = engine_of(Arc::clone(&host) as Arc<dyn Host>);
    let mut holds_back = engine.attach("own", Grant::Block).unwrap();
    holds_back.pull(&Pull::new(whole_job(), Channels::STDOUT)).unwrap();
    let (tell, taken) = channel();
    let tell = move || tell.send(()).unwrap();
    engine.deliver(&procs(&[0])[0], Channel::Stdout, vec![0; 8 << 20], &[], tell).unwrap();
    let tool = Tool::connect(engine.socket().unwrap(), "test").unwrap();
    *host.engine.lock().unwrap() = Some(Arc::new(engine));
    // It may still hear that it was granted: the engine sends what it owes.
    let _ = pull(tool, whole_job(), Channels::STDERR).join().unwrap();
    assert_eq!(taken.recv_timeout(PATIENCE), Ok(()));
    assert!(taken.recv().is_err());
}

#[test]
fn an_upcall_may_call_the_engine() {
    let host = Arc::new(Busy::default());
    let (engine, _directory) = engine_of(Arc::clone(&host) as Arc<dyn Host>);
    let engine = Arc::new(engine);
    host.engine.set(Arc::downgrade(&engine)).unwrap();
    let tool = Tool::connect(engine.socket().unwrap(), "test").unwrap();
    let (mut tool, _) = granted(pull(tool, whole_job(), Channels::STDOUT));
    assert_eq!(read(&mut tool), b"here\n");
}
