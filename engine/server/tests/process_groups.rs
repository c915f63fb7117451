//! The process groups of ranks, as an embedder selects them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use iof_engine::ProcessGroup;
use iof_proto::{Channels, Rank};
use iof_testing::engine::{Output, changed, engine, shell, spec, wait};
use iof_testing::wait_for;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgid, getpgrp};

/// A rank that prints its pid and the pid of a child, which holds its output open.
const PARENT: &str = "sleep 1000 & echo $$ $!; wait";

#[test]
fn signals_reach_each_ranks_whole_group_unless_it_is_the_embedders() {
    for own in [true, false] {
        let engine = engine();
        let output = Output::start(&engine, Channels::STDOUT);
        let process_group = if own { ProcessGroup::Own } else { ProcessGroup::Inherit };
        let app = shell(PARENT).ranks(2);
        let job = engine.spawn(&changed(spec([app]), |job| job.process_group = process_group)).unwrap();
        let printed =
            wait_for("their pids", || Some(output.so_far()).filter(|text| text.lines().count() == 2));
        let pids = printed.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap()));
        let pids: Vec<Pid> = pids.collect();

        for pair in pids.chunks(2) {
            let group = if own { pair[0] } else { getpgrp() };
            assert_eq!([getpgid(Some(pair[0])), getpgid(Some(pair[1]))], [Ok(group), Ok(group)]);
            let rank = job.rank_of_group(pair[0].as_raw().try_into().unwrap());
            assert_eq!(rank.is_some(), own);
            assert!(rank.is_none_or(|Rank(rank)| rank < 2));
        }
        // SIGCONT for processes that the terminal did not signal.
        assert_eq!(job.signal_groups(iof_engine::Signal::CONT), if own { 2 } else { 0 });
        assert_eq!(job.signal(iof_engine::Signal::TERM), 2);
        if !own {
            assert_eq!(job.wait_exit().code(), 143);
            pids.chunks(2).for_each(|pair| kill(pair[1], Signal::SIGKILL).expect("it lives"));
        }
        assert_eq!(wait(&job).code(), 143);
    }
}
