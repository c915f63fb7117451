//! `iof agent`, with frames of a front end that the test plays.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod front;

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};

use front::{Arrived, Front, LONG, LinkedFront, start};
use iof_nodes::{FrontEnd, ToAgent};
use iof_proto::{Channel, Rank};
use iof_testing::command::nodes::count_threads;
use iof_testing::command::site::Site;
use iof_testing::wait_for;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, shutdown};

#[test]
fn a_line_that_a_rank_writes_in_parts_is_one_record() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let mut front = Front::start();
    front.run(&format!("echo first; printf 'a part'; : < {}; echo ' and its rest'", gate.path()), LONG);
    assert_eq!(front.next(), Arrived::Stdout(b"first\n".to_vec()));
    // The agent has read the part, and does not send it.
    front.expect_total(Rank(0), 12);
    gate.open();
    // Other threads of the agent send the end of stderr and the exit of the rank.
    let line = loop {
        match front.next() {
            Arrived::Stdout(bytes) => break bytes,
            arrived => assert_ne!(arrived, Arrived::End(Channel::Stdout)),
        }
    };
    assert_eq!(line, b"a part and its rest\n");
}

#[test]
fn a_part_of_a_line_is_sent_at_the_end_of_its_stream_or_of_its_time() {
    let script = "head -c 300000 /dev/zero; printf prompt";
    let mut front = Front::start();
    front.run(script, LONG);
    let mut sent = Vec::new();
    // The whole output fits into the window.
    while sent.len() < 300_006 {
        match front.next() {
            Arrived::Stdout(bytes) => sent.extend(bytes),
            arrived => assert!(!matches!(arrived, Arrived::End(Channel::Stdout)), "{arrived:?}"),
        }
    }
    assert!(sent.ends_with(b"\0prompt"));
    for time in [0, 1] {
        let mut front = Front::start();
        front.run("printf prompt; exec sleep 1000", time);
        assert_eq!(front.next(), Arrived::Stdout(b"prompt".to_vec()));
    }
}

#[test]
fn a_part_of_a_line_that_has_waited_is_sent_as_soon_as_there_is_room() {
    let site = Site::new();
    let names = ["second", "parts", "end0", "end1"];
    let mut gates = names.map(|name| site.gate(name));
    let path = |index: usize| gates[index].path();
    let script = format!(
        "[ $IOF_RANK = 1 ] || {{ echo first; : < {}; echo second; }}
        : < {}; printf part; : < {}/end$IOF_RANK; echo; exec sleep 1000",
        path(0),
        path(1),
        site.path().display()
    );
    let ranks: BTreeSet<Rank> = [0, 1].map(Rank).into();
    // One short record, and not two.
    let mut front = Front::start_with(FrontEnd::new(&ranks, 400..=400));
    let mut start = start(&script, 1000);
    start.spec.apps[0].nprocs = 2;
    start.spec.local = Some(ranks);
    front.run_as(start);
    assert_eq!(front.next(), Arrived::Stdout(b"first\n".to_vec()));
    // While the agent waits for room, both parts are written, so that it finds them together.
    gates[0].open();
    front.expect_total(Rank(0), 13);
    gates[1].open();
    front.expect_total(Rank(0), 17);
    front.expect_total(Rank(1), 4);
    front.credit(6);
    assert_eq!(front.next(), Arrived::Stdout(b"second\n".to_vec()));
    front.credit(7);
    assert_eq!(front.next(), Arrived::Stdout(b"part".to_vec()));
    let rank = front.writer;
    // The other part has waited for as long, and precedes what is written now.
    gates[2 + rank.0 as usize].open();
    front.expect_total(rank, if rank == Rank(0) { 18 } else { 5 });
    front.credit(4);
    assert_eq!(front.next(), Arrived::Stdout(b"part".to_vec()));
    assert_eq!(front.writer, Rank(1 - rank.0));
}

#[test]
fn a_link_of_an_earlier_attempt_that_arrives_late_is_refused() {
    let site = Site::new();
    let mut gates = ["one", "two"].map(|name| site.gate(name));
    let [one, two] = gates.each_ref().map(|gate| gate.path());
    let script = format!("echo first; : < {one}; echo second; : < {two}; echo third; exec sleep 1000");
    let mut linked = LinkedFront::run(&site, &script);
    assert_eq!(linked.front.next(), Arrived::Stdout(b"first\n".to_vec()));
    linked.front.cut();
    let (late, next) = (linked.attempt(), linked.attempt());
    let _carrier = linked.resume(next, false);
    gates[0].open();
    assert_eq!(linked.front.next(), Arrived::Stdout(b"second\n".to_vec()));
    let (process, (_down, mut up)) = linked.start_link(late, false);
    let mut answer = Vec::new();
    up.read_to_end(&mut answer).unwrap();
    assert_eq!((answer.as_slice(), process.wait()), (&b""[..], 0));
    gates[1].open();
    assert_eq!(linked.front.next(), Arrived::Stdout(b"third\n".to_vec()));
}

#[test]
fn a_carrier_that_cannot_be_read_is_replaced() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let mut linked =
        LinkedFront::run(&site, &format!("echo first; : < {}; echo second; exec sleep 1000", gate.path()));
    assert_eq!(linked.front.next(), Arrived::Stdout(b"first\n".to_vec()));
    // Totals follow once a second. With unread bytes, a socket ends in ECONNRESET.
    let mut files = [PollFd::new(linked.front.up.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut files, PollTimeout::NONE), Ok(1));
    linked.front.cut();
    let first = linked.attempt();
    let _carrier = linked.resume(first, false);
    gate.open();
    assert_eq!(linked.front.next(), Arrived::Stdout(b"second\n".to_vec()));
}

/// Returns the number of sockets that a process has open.
fn sockets(pid: u32) -> usize {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let names = files.filter_map(|file| fs::read_link(file.path()).ok());
    names.filter(|name| name.to_string_lossy().starts_with("socket:")).count()
}

#[test]
fn an_agent_is_told_of_the_end_over_a_carrier_that_it_cannot_write() {
    let site = Site::new();
    let mut linked = LinkedFront::run(&site, "echo first; exec sleep 1000");
    assert_eq!(linked.front.next(), Arrived::Stdout(b"first\n".to_vec()));
    let agent = linked.front.agent.running("iof")[0];
    let before = sockets(agent);
    // The other direction ends, and totals follow once a second.
    shutdown(linked.front.up.as_raw_fd(), Shutdown::Read).unwrap();
    wait_for("a total that is not written", || (sockets(agent) < before).then_some(()));
    linked.front.send(&ToAgent::HangUp);
    assert_eq!(linked.front.agent.wait(), 1);
}

#[test]
fn carriers_that_take_nothing_and_do_not_end_keep_no_thread_when_another_one_follows() {
    for is_pipe in [false, true] {
        let site = Site::new();
        let mut linked = LinkedFront::run(&site, "exec cat /dev/zero");
        // More than the first carrier takes.
        let mut files = [PollFd::new(linked.front.up.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut files, PollTimeout::NONE), Ok(1));
        let agent = linked.front.agent.running("iof")[0];
        let mut silent = Vec::new();
        for _ in 0..3 {
            let first = linked.attempt();
            silent.push(linked.resume(first, is_pipe));
            wait_for("the threads of the carrier before", || {
                let [readers, writers] = ["iof-down", "iof-greet"].map(|name| count_threads(agent, name));
                (readers == 1 && writers <= 1).then_some(())
            });
        }
        assert!(matches!(linked.front.next(), Arrived::Stdout(_)));
    }
}

#[test]
fn an_agent_outlives_its_carriers_as_soon_as_it_is_ready() {
    for is_going in [false, true] {
        let site = Site::new();
        let mut linked = LinkedFront::start(&site, "echo first; exec sleep 1000");
        if is_going {
            linked.front.send(&ToAgent::Go);
        }
        // `Started` is lost, or what it answers was not sent.
        linked.front.cut();
        let first = linked.attempt();
        let _carrier = linked.resume(first, false);
        if !is_going {
            linked.front.send(&ToAgent::Go);
        }
        linked.expect_start();
        assert_eq!(linked.front.next(), Arrived::Stdout(b"first\n".to_vec()));
    }
}

#[test]
fn an_agent_that_is_not_ready_ends_with_its_carrier() {
    let mut front = LinkedFront::greet();
    front.cut();
    // 124 is that of timeout(1).
    assert_eq!(front.agent.wait(), 0);
}
