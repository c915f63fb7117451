//! Upcalls in which the host calls the engine, or drops it.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use iof_engine::{Engine, Grant, Host, HostReply};
use iof_proto::{Channel, Channels, Info, Proc};
use iof_tool::{Pull, Tool};

use super::{granted, procs, pull, read, start_engine, whole_job};
use iof_testing::TIMEOUT;
use iof_testing::engine::shell;

/// A host that calls the engine in its upcalls.
#[derive(Default)]
struct CallingHost {
    engine: OnceLock<Weak<Engine>>,
}

impl Host for CallingHost {
    fn iof_pull(&self, procs: &[Proc], _: Channels, _: &[Info], reply: HostReply) {
        let engine = self.engine.get().and_then(Weak::upgrade).unwrap();
        let spec = iof_engine::JobSpec::new(procs[0].nspace.clone(), vec![shell("echo here")]);
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
