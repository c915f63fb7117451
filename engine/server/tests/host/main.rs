//! Upcalls to the host: approval of tools, pulls, and stops of unwanted sources. This file has the
//! host and the tools that the tests of the other files share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod approvals;
mod pulls;
mod reentrancy;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use iof_engine::{ApprovalReply, Config, Engine, Grant, Host, HostReply, same_user};
use iof_proto::query::key;
use iof_proto::{Channels, Failure, Granted, Info, Proc, Rank, Value, socket};
use iof_testing::TIMEOUT;
use iof_testing::engine::raw::RawTool;
use iof_testing::engine::{nspace, session_with};
use iof_tool::{Delivery, Pull, RequestError, Tool};
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
    session_with(Config::default(), host)
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
