//! A tool with very many streams, registrations and ends of jobs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use iof_engine::{App, Config, Engine, Grant, JobSpec};
use iof_proto::limits::MAX_CONNECTIONS_PER_PROCESS;
use iof_proto::query::key::PMIX_QUERY_NAMESPACES;
use iof_proto::{Channels, Nspace, Proc, Rank};
use iof_testing::engine::stdins::engine_with_cache;
use iof_testing::engine::{nspace, session, spec, wait};
use iof_testing::wait_for;
use iof_tool::{AttachError, Delivery, Pull, Tool};

fn engine() -> Engine {
    engine_with_cache(16 * 1024)
}

/// Reads to the end. Returns how many streams were complete and how many jobs have ended.
fn read(tool: &mut Tool) -> (usize, usize) {
    let (mut complete, mut ended) = (0, 0);
    wait_for("the end", || {
        while let Some(delivery) = tool.try_recv().unwrap() {
            complete += usize::from(matches!(delivery, Delivery::Complete { .. }));
            ended += usize::from(matches!(delivery, Delivery::JobEnded { .. }));
        }
        tool.is_done().then_some(())
    });
    (complete, ended)
}

#[test]
fn a_busy_tool_receives_all_streams_and_ends_of_many_registrations() {
    let engine = engine();
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let all = Proc::all(nspace());
    for handler in 1..=32 {
        let granted = tool.pull(&Pull::new(vec![all.clone()], Channels::STDOUT)).unwrap();
        assert_eq!(granted.handler, handler);
    }
    wait(&engine.spawn(&spec([App::new("echo", ["hello"]).ranks(3)])).unwrap());
    assert_eq!(read(&mut tool), (96, 32));
    tool.query(&[PMIX_QUERY_NAMESPACES]).expect("the engine serves the tool");
}

#[test]
fn a_busy_tool_receives_all_streams_and_ends_of_many_jobs() {
    let engine = engine();
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let names: Vec<Nspace> = (0..150).map(|number| Nspace::new(format!("job{number}")).unwrap()).collect();
    let procs = names.iter().map(|nspace| Proc { nspace: nspace.clone(), rank: Rank::WILDCARD });
    tool.pull(&Pull::new(procs.collect(), Channels::STDOUT)).unwrap();
    for name in &names {
        wait(&engine.spawn(&JobSpec::new(name.clone(), vec![App::new("true", [""; 0])])).unwrap());
        assert!(engine.remove(name), "its rings are sent nevertheless");
    }
    assert_eq!(read(&mut tool), (150, 150));
}

#[test]
fn one_process_cannot_take_all_connections() {
    let (engine, _directory) = session(Config::default());
    let connect = || Tool::connect(engine.socket().unwrap(), "test");
    let mut tools: Vec<Tool> = (0..MAX_CONNECTIONS_PER_PROCESS).map(|_| connect().unwrap()).collect();
    let Err(AttachError::Refused { reason, .. }) = connect() else { panic!("expected a refusal") };
    assert!(reason.contains("close one"), "{reason}");
    tools.pop();
    wait_for("the place to be free", || connect().ok());
}
