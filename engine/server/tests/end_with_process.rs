//! The end of an engine whose process is about to exit. A file of its own, because the test counts
//! the maps of its process.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;

use iof_capture::Signal;
use iof_engine::{App, Config, Engine, Grant, JobSpec, Rendezvous};
use iof_proto::{Channels, Nspace, Proc};
use iof_tool::{Delivery, Pull};

fn maps_of_rings() -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains("iof-ring")).count()
}

fn start() -> (Engine, Nspace) {
    let engine = Engine::start(Config::new(Rendezvous::None)).unwrap();
    (engine, Nspace::new("job").unwrap())
}

#[test]
fn an_engine_leaves_only_complete_streams_to_the_exit_of_its_process() {
    let (engine, nspace) = start();
    let job = engine.spawn(&JobSpec::new(nspace.clone(), vec![App::new("sleep", ["1000"])])).unwrap();
    engine.end_with_process();
    assert_eq!(maps_of_rings(), 0, "a stream that is not complete is ended");
    job.signal(Signal::KILL);

    let (engine, nspace) = start();
    let mut tool = engine.attach("reader", Grant::Never).unwrap();
    let all = Proc::all(nspace.clone());
    tool.pull(&Pull::new(vec![all], Channels::STDOUT)).unwrap();
    let job = engine.spawn(&JobSpec::new(nspace, vec![App::new("echo", ["hello"])])).unwrap();
    job.wait();
    engine.end_with_process();
    assert!(maps_of_rings() > 0);
    let (mut bytes, mut complete) = (0, false);
    while let Some(delivery) = tool.recv().unwrap() {
        match delivery {
            Delivery::Bytes(delivered) => bytes += delivered.len(),
            Delivery::Complete { .. } => complete = true,
            _ => {}
        }
    }
    assert_eq!((bytes, complete), (6, true));
}
