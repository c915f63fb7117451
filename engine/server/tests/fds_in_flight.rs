//! Tools that receive nothing of what is sent to them. The kernel limits descriptors in flight only
//! for unprivileged users, so the engine and its tools run as one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::os::unix::process::CommandExt;
use std::process::Command;

use iof_engine::Config;
use iof_proto::query::key;
use iof_proto::{Channels, Proc};
use iof_testing::engine::raw::RawTool;
use iof_testing::engine::{adopt_reported, changed, nspace, report_exits, session};
use iof_testing::wait_for;
use iof_tool::{Delivery, Pull, Tool};
use nix::unistd::geteuid;

/// The user ID of `nobody`.
const NOBODY: u32 = 65534;
const RANKS: u32 = 10;

/// Runs the test `name` of this file in its own process, as an unprivileged user that may open 512
/// files.
fn run_confined(name: &str) {
    let mut test = Command::new("sh");
    test.args(["-c", "ulimit -n 512 && exec \"$0\" --exact --ignored --nocapture \"$1\""]);
    test.arg(std::env::current_exe().unwrap()).arg(name).current_dir("/");
    if geteuid().is_root() {
        // A directory for temporary files may be for root alone.
        test.uid(NOBODY).gid(NOBODY).env_remove("TMPDIR");
    }
    match test.output() {
        Ok(output) => {
            let log = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && log.contains("1 passed"), "{log}");
        }
        Err(error) => eprintln!("skipped: cannot run a process as user {NOBODY}: {error}"),
    }
}

#[test]
fn tools_that_receive_nothing_do_not_keep_other_tools_out() {
    run_confined("tools_that_receive_nothing_do_not_keep_other_tools_out_confined");
}

#[test]
#[ignore = "helper of the previous test: needs an unprivileged user with few files"]
fn tools_that_receive_nothing_do_not_keep_other_tools_out_confined() {
    let config = changed(Config::default(), |config| config.cache_size = Some(16 * 1024));
    let (engine, _directory) = session(config);
    let job = adopt_reported(&engine, RANKS).unwrap();
    let all = Proc::all(nspace());
    let outputs = Channels::STDOUT | Channels::STDERR | Channels::STDDIAG;
    let mut silent: Vec<RawTool> = (0..8).map(|_| RawTool::connect(&engine)).collect();
    for raw in &mut silent {
        (0..8).for_each(|_| raw.pull(vec![all.clone()], outputs));
    }
    // These tools have nothing to do either, but they read.
    let mut tools: Vec<Tool> =
        (0..4).map(|_| Tool::connect(engine.socket().unwrap(), "test").unwrap()).collect();
    for tool in &mut tools {
        tool.pull(&Pull::new(vec![all.clone()], outputs)).unwrap();
    }
    report_exits(&job, RANKS);
    for tool in &mut tools {
        let mut complete = 0;
        wait_for("all streams", || {
            while let Some(delivery) = tool.try_recv().unwrap() {
                complete += u32::from(matches!(delivery, Delivery::Complete { .. }));
            }
            tool.is_done().then_some(())
        });
        assert_eq!(complete, 3 * RANKS);
        tool.query(&[key::PMIX_QUERY_NAMESPACES]).expect("the engine serves a tool that reads");
    }
}
