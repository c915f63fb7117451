//! Trees of agents whose carriers are cut and replaced (`--tree` with `--reattach`). With a radix of
//! 1, the first node relays for the second one, and that one for the third.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::fs;
use std::io::{BufRead, Read, Write};

use common::cuts::{Node, cut_any, cut_node};
use common::front::LinkedFront;
use common::nodes::{agent_of, send};
use common::noise::Noise;
use common::process::Process;
use common::site::Site;
use common::{wait_for, without_waits};
use iof_nodes::limits::{MAX_KEPT, MAX_RELAY_DOWN, MAX_STDIN};
use iof_nodes::{Frame, Place, StdinPiece, ToAgent, ToFrontEnd};
use nix::sys::signal::Signal;

const HOSTS: &str = "a,b,c,d,e";
const TREE: [&str; 4] = ["--tree", "2", "--reattach", "60"];
const CHAIN: [&str; 4] = ["--tree", "1", "--reattach", "1000"];

fn wait_for_no_agent(run: &Process) {
    wait_for("the end of the agents", || run.running("iof").is_empty().then_some(()));
}

#[test]
fn all_output_of_a_tree_arrives_once_and_in_order_although_carriers_are_cut() {
    let node = Node::new();
    let (stop, out) = (node.file("stop"), node.file("out.%t"));
    let script = format!("while [ ! -e {} ]; do seq 1 20000; done; echo end", stop.display());
    let options = [&TREE[..], &["-o", out.to_str().unwrap()]].concat();
    let run = node.start_on(HOSTS, &options, &script);
    let length = |rank| fs::metadata(node.file(&format!("out.{rank}"))).map_or(0, |file| file.len());
    let mut lengths = [0; 5];
    for number in 0..20 {
        // Whatever was cut before is replaced.
        wait_for("output of all nodes", || {
            let grown = lengths.iter().zip(0..).all(|(before, rank)| length(rank) > before + 200_000);
            grown.then_some(())
        });
        cut_any(&run, number);
        lengths = [0, 1, 2, 3, 4].map(length);
    }
    fs::write(&stop, "").unwrap();
    let done = run.finish();
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    // The edges of a and d are those of the front end.
    let (replaced, of_front_end) = (node.replaced(), |host: &String| ["a", "d"].contains(&host.as_str()));
    assert!(replaced.iter().any(of_front_end), "{replaced:?}");
    assert!(!replaced.iter().all(of_front_end), "{replaced:?}");
    let block: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    for rank in 0..5 {
        let output = fs::read_to_string(node.file(&format!("out.{rank}"))).unwrap();
        let output = output.strip_suffix("end\n").unwrap();
        assert_eq!(output.len() % block.len(), 0);
        for (number, bytes) in output.as_bytes().chunks(block.len()).enumerate() {
            common::bytes::assert_same(&format!("rank {rank}, block {number}"), bytes, block.as_bytes());
        }
    }
}

#[test]
fn all_stdin_of_a_tree_arrives_once_and_in_order_although_carriers_are_cut() {
    let (node, length) = (Node::new(), 6 << 20);
    let options = [&TREE[..], &["--stdin", "all"]].concat();
    let mut run = node.start_on(HOSTS, &options, "sha256sum");
    let (mut stdin, mut noise) = (run.stdin(), Noise::new(0, "stdin").take(length));
    let wanted = common::bytes::noise_sum(0, "stdin", length);
    let (output, errors) = run.collect();
    wait_for("the ranks", || (run.running("sha256sum").len() == 5).then_some(()));
    for number in 0..12 {
        std::io::copy(&mut (&mut noise).take(length / 12), &mut stdin).unwrap();
        cut_any(&run, number);
    }
    std::io::copy(&mut noise, &mut stdin).unwrap();
    drop(stdin);
    let code = run.wait();
    let (output, errors) = (output.get(), String::from_utf8(errors.get()).unwrap());
    assert_eq!((code, without_waits(&errors).as_str()), (0, ""));
    assert!(!node.replaced().is_empty());
    let line = format!("{}  -\n", wanted.get().sha256);
    assert_eq!(String::from_utf8(output).unwrap(), line.repeat(5));
}

#[test]
fn lines_arrive_both_ways_after_a_cut_of_each_edge_of_a_chain() {
    let node = Node::new();
    let script = "while read line; do echo \"$IOF_RANK $line\"; done";
    let options = ["--tree", "1", "--reattach", "60", "--stdin", "all"];
    let (mut run, mut stdout) = node.start_ready_on("a,b,c", &options, script);
    let mut stdin = run.stdin();
    let mut exchange = |text: &str| {
        writeln!(stdin, "{text}").unwrap();
        let mut lines = vec![String::new(); 3];
        for line in &mut lines {
            stdout.read_line(line).unwrap();
        }
        lines.sort_unstable();
        let wanted: Vec<String> = (0..3).map(|rank| format!("{rank} {text}\n")).collect();
        assert_eq!(lines, wanted);
    };
    exchange("over the first carriers");
    for host in ["b", "c", "a"] {
        cut_node(&run, host);
        exchange(&format!("after a cut of {host}"));
        assert!(node.replaced().iter().any(|replaced| replaced == host), "{host}");
    }
    drop(stdin);
    assert_eq!(run.wait(), 0);
    wait_for_no_agent(&run);
}

#[test]
fn a_relay_that_dies_takes_its_subtree_along_and_its_agents_end_in_time() {
    let node = Node::new();
    let options = ["--tree", "1", "--reattach", "0.5", "--kill-wait", "0.1"];
    let (mut run, _stdout) = node.start_ready_on("a,b,c", &options, "exec sleep 1000");
    let stderr = common::bytes::collect(run.stderr());
    send(agent_of(&run, "b"), Signal::SIGKILL);
    let code = run.wait();
    let errors = String::from_utf8(stderr.get()).unwrap();
    assert!(errors.contains("node b is lost with rank 1: its carrier ended with "), "{errors}");
    assert!(errors.contains(", and its agent has ended; of its unfinished output 6 bytes"), "{errors}");
    assert!(errors.contains("node c is lost with rank 2: its relay b is lost: "), "{errors}");
    assert!(!errors.contains("node a is lost"), "{errors}");
    assert_eq!(code, 1, "{errors}");
    // Nothing tells the agent of c, which waits for another carrier first.
    wait_for_no_agent(&run);
}

#[test]
fn agents_of_a_tree_end_with_its_job_and_with_a_start_that_fails() {
    let node = Node::new();
    let done = node.start_on("a,b,c", &CHAIN, "echo x").finish();
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "x\nx\nx\n", ""));
    let run = node.start_on("a,b,c", &[&CHAIN[..], &["--wdir", "/nonexistent"]].concat(), "true");
    assert_eq!(run.wait(), 2);
    wait_for_no_agent(&run);
}

#[test]
fn agents_of_a_tree_end_after_a_front_end_that_is_killed() {
    let node = Node::new();
    let options = ["--tree", "1", "--reattach", "0.5", "--kill-wait", "0.1"];
    let (run, _stdout) = node.start_ready_on("a,b,c", &options, "exec sleep 1000");
    run.signal(Signal::SIGKILL);
    wait_for_no_agent(&run);
    wait_for("the end of the ranks", || run.running("sleep").is_empty().then_some(()));
}

#[test]
fn an_agent_behind_a_relay_that_was_given_up_ends_when_it_goes_on() {
    let node = Node::new();
    let options = [&CHAIN[..], &["--kill-wait", "0.1"]].concat();
    let (mut run, _stdout) = node.start_ready_on("a,b", &options, "exec sleep 1000");
    let stderr = common::bytes::collect(run.stderr());
    let agent = agent_of(&run, "b");
    send(agent, Signal::SIGSTOP);
    run.signal_twice(Signal::SIGINT);
    assert_eq!(run.wait(), 130);
    send(agent, Signal::SIGCONT);
    wait_for_no_agent(&run);
    let errors = String::from_utf8(stderr.get()).unwrap();
    assert!(errors.contains("node b is lost with rank 1: "), "{errors}");
}

#[test]
fn a_relay_that_cannot_send_reads_on_and_cuts_off_a_child_that_takes_nothing() {
    let site = Site::new();
    let LinkedFront { mut front, .. } = LinkedFront::relay(&site, "exec cat /dev/zero");
    // No ack is sent until the agent sends nothing more.
    front.link = None;
    let (mut arrived, mut piece) = (0, vec![0; 64 << 10]);
    while arrived < MAX_KEPT {
        let length = front.up.read(&mut piece).unwrap();
        arrived += length;
        front.take(&piece[..length]);
    }
    // The carrier of the child reads nothing.
    let stdin = StdinPiece { call: 1, targets: Vec::new(), bytes: vec![0; MAX_STDIN] };
    let stdin = ToAgent::Stdin(stdin).frame(Place(1)).unwrap();
    // What waits may be passed to the carrier's thread in one batch, and then more has to wait.
    for _ in 0..(MAX_KEPT + 4 * MAX_RELAY_DOWN) / MAX_STDIN + 32 {
        front.down.write_all(&stdin).unwrap();
    }
    let mut more = 0;
    let lost = loop {
        let ack = Frame::Ack { received: (arrived + more).try_into().unwrap() };
        front.down.write_all(&ack.header().unwrap()).unwrap();
        let length = front.up.read(&mut piece).unwrap();
        more += length;
        let mut messages = front.take(&piece[..length]).into_iter();
        if let Some(lost) = messages.find(|message| matches!(message, ToFrontEnd::ChildLost { .. })) {
            break lost;
        }
    };
    let reason = format!("more than {} bytes wait for it", 2 * MAX_RELAY_DOWN);
    assert_eq!(lost, ToFrontEnd::ChildLost { child: Place(1), reason });
}
