//! The host approves tools and may let them hold sources back. A host that does not answer delays
//! only the tools that wait for it.

use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use iof_engine::{ApprovalReply, Grant, Host, QueryReply, same_user};
use iof_proto::limits::{MAX_OWED_BYTES_PER_USER, MAX_QUERY_KEYS};
use iof_proto::query::key;
use iof_proto::{Channels, Failure, FromTool, Query, Status, ToTool, socket};
use iof_tool::{AttachError, Tool};

use super::{fixture_with, read, start_engine, whole_job};
use iof_testing::engine::raw::RawTool;
use iof_testing::engine::{shell, spec, wait};
use iof_testing::wait_for;

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
