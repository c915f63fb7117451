//! Grace periods, as an embedder sets them and sees them in the status.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::time::Duration;

use iof_proto::{Channel, Channels, Rank};
use iof_testing::engine::{Output, engine, shell, spec, wait};

#[test]
fn the_status_names_exactly_the_streams_that_the_grace_period_cut_off() {
    let engine = engine();
    let output = Output::start(&engine, Channels::STDOUT);
    let holds_stdout = shell("echo out; exec 2>&- ; sleep 1000 2>/dev/null & exit 3");
    let mut spec = spec([shell("echo out"), holds_stdout]);
    spec.grace = Some(Duration::from_millis(50));
    let job = engine.spawn(&spec).unwrap();
    let status = wait(&job);
    assert_eq!(output.all(), "out\nout\n");
    assert_eq!(status.code(), 3);
    let channels: Vec<Channel> =
        status.cut_off.iter().filter(|(rank, _)| *rank == Rank(1)).map(|(_, channel)| *channel).collect();
    assert_eq!(channels.len(), status.cut_off.len(), "rank 0 had its ends of file: {status:?}");
    assert!(channels.contains(&Channel::Stdout) && !channels.contains(&Channel::Stderr), "{status:?}");
    job.signal(iof_engine::Signal::KILL);
}
