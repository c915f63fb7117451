//! `iof agent`, with frames of a front end that the test plays.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use common::process::Process;
use common::site::{Site, iof};
use common::wait_for;
use iof_nodes::limits::{MAX_RELAY_DOWN, MAX_STDIN, MAX_WINDOW};
use iof_nodes::{
    AgentSocket, ChildNode, Decoder, DropPolicy, FrontEnd, FrontEvent, Place, Program, Start, StartRelay,
    StdinPiece, ToAgent, ToFrontEnd,
};
use iof_proto::{Channel, Nspace, Rank};
use nix::sys::signal::Signal;

/// What arrives from an agent.
#[derive(Debug, PartialEq)]
enum Arrived {
    Stdout(Vec<u8>),
    End(Channel),
    Message(ToFrontEnd),
}

/// The front end of one agent.
struct Front {
    _agent: Process,
    stdin: ChildStdin,
    stdout: ChildStdout,
    decoder: Decoder,
    end: FrontEnd,
}

impl Front {
    /// Starts an agent, and greets it.
    fn start() -> Front {
        // A test that waits in vain ends.
        let iof = iof();
        let mut agent = Command::new("timeout");
        for (name, _) in iof.get_envs().filter(|(_, value)| value.is_none()) {
            agent.env_remove(name);
        }
        let mut agent = Process::start(agent.arg("60").arg(iof.get_program()).arg("agent"));
        let (mut stdin, stdout) = (agent.stdin(), agent.stdout());
        let end = FrontEnd::new(&ranks(), MAX_WINDOW);
        stdin.write_all(&end.greeting(Place::NEXT)).unwrap();
        Front { _agent: agent, stdin, stdout, decoder: Decoder::of_agent(), end }
    }

    fn send(&mut self, place: Place, message: &ToAgent) {
        self.stdin.write_all(&message.frame(place).unwrap()).unwrap();
    }

    /// Starts rank 0, which runs this script. Parts of its lines wait for this number of
    /// milliseconds.
    fn run(&mut self, script: &str, max_line_time: u64) {
        self.send(Place::NEXT, &ToAgent::Start(start(script, max_line_time).into()));
        assert_eq!(self.next(), Arrived::Message(ToFrontEnd::Ready));
        self.send(Place::NEXT, &ToAgent::Go);
        assert!(matches!(self.next(), Arrived::Message(ToFrontEnd::Started { .. })));
    }

    /// Returns what arrives next that is not a total.
    fn next(&mut self) -> Arrived {
        loop {
            match self.next_or_total() {
                Arrived::Message(ToFrontEnd::Produced(_)) => {}
                arrived => return arrived,
            }
        }
    }

    fn next_or_total(&mut self) -> Arrived {
        loop {
            while let Some((_, frame)) = self.decoder.decode().unwrap() {
                match self.end.receive(&frame, Instant::now()).unwrap() {
                    FrontEvent::None | FrontEvent::Greeted => {}
                    FrontEvent::Record { bytes, .. } => return Arrived::Stdout(bytes.to_vec()),
                    FrontEvent::End(stream) => return Arrived::End(stream.channel),
                    FrontEvent::Message(message) => return Arrived::Message(message),
                    FrontEvent::Gap { .. } => panic!("a gap"),
                }
            }
            let mut piece = [0; 4096];
            let length = self.stdout.read(&mut piece).unwrap();
            assert!(length > 0, "the agent has ended");
            self.decoder.receive(&piece[..length]);
        }
    }
}

fn ranks() -> BTreeSet<Rank> {
    [Rank(0)].into()
}

fn start(script: &str, max_line_time: u64) -> Start {
    let program = Program {
        nprocs: 1,
        program: "sh".into(),
        args: vec!["-c".into(), script.into()],
        env: Vec::new(),
        cwd: "/".into(),
        merge_stderr: false,
    };
    Start {
        nspace: Nspace::new("demo").unwrap(),
        programs: vec![program],
        env: Vec::new(),
        ranks: ranks(),
        stdin: BTreeMap::new(),
        ptys: BTreeMap::new(),
        cache_size: None,
        cache_total: 64 << 20,
        max_line: 64 << 10,
        max_line_time,
        drop: DropPolicy::None,
        grace: None,
        kill_wait: 1000,
        hide_launcher: true,
        backend: None,
        socket: AgentSocket::None,
        files: None,
    }
}

/// A time that no test waits for.
const LONG: u64 = 1_000_000;

#[test]
fn a_line_that_a_rank_writes_in_parts_is_one_record() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let mut front = Front::start();
    front.run(&format!("echo first; printf 'a part'; : < {}; echo ' and its rest'", gate.path()), LONG);
    assert_eq!(front.next(), Arrived::Stdout(b"first\n".to_vec()));
    // The agent has read the part, and does not send it.
    let has_part = |total: &iof_nodes::RankTotal| total.channel == Channel::Stdout && total.produced == 12;
    loop {
        match front.next_or_total() {
            Arrived::Message(ToFrontEnd::Produced(totals)) if totals.iter().any(has_part) => break,
            Arrived::Message(ToFrontEnd::Produced(_)) => {}
            arrived => panic!("{arrived:?}"),
        }
    }
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
fn a_relay_whose_child_takes_nothing_ends_with_its_front_end() {
    let site = Site::new();
    let path = site.path().join("frames");
    let rsh = ["sleep", "1000"].map(str::to_owned).to_vec();
    let children = vec![ChildNode { host: "a".into(), nodes: 1 }];
    let relay = ToAgent::Relay(StartRelay { rsh, agent: "1".into(), children });
    let piece = StdinPiece { call: 1, targets: Vec::new(), bytes: vec![0; MAX_STDIN] };
    let piece = ToAgent::Stdin(piece);
    let greeting = FrontEnd::new(&ranks(), MAX_WINDOW).greeting(Place::NEXT);
    let mut frames = [greeting, relay.frame(Place::NEXT).unwrap()].concat();
    // More than the relay holds, with what waits in the pipes. It has no ranks, whose totals would
    // find that the front end is gone.
    let pieces = MAX_RELAY_DOWN / MAX_STDIN + 32;
    frames.extend(piece.frame(Place(1)).unwrap().repeat(pieces));
    fs::write(&path, &frames).unwrap();
    let mut front = Command::new("tail");
    let mut front = Process::start(front.args(["-c", "+1", "-f"]).arg(&path));
    let files = (front.stdout(), Stdio::piped());
    let agent = Process::start_with_its_files(iof().arg("agent").stdin(files.0).stdout(files.1));
    wait_for("the front end to send", || {
        let io = fs::read_to_string(format!("/proc/{}/io", front.pid())).unwrap();
        let written = io.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse::<usize>().ok());
        (written.unwrap() > MAX_RELAY_DOWN).then_some(())
    });
    front.signal(Signal::SIGKILL);
    agent.wait();
}

#[test]
fn a_relay_does_not_start_a_child_that_is_cut_before_its_turn() {
    let site = Site::new();
    let mut front = Front::start();
    // At most eight agents that have not greeted are started.
    let script = format!("touch {}/$0; exec sleep 1000", site.path().display());
    let rsh = ["sh", "-c", &script, "%h"].map(str::to_owned).to_vec();
    let children = (1..=9).map(|place| ChildNode { host: place.to_string(), nodes: 1 }).collect();
    front.send(Place::NEXT, &ToAgent::Relay(StartRelay { rsh, agent: "".into(), children }));
    let waiting =
        || (1..=9).filter(|place| !site.path().join(place.to_string()).exists()).collect::<Vec<u32>>();
    wait_for("the others to start", || (waiting().len() == 1).then_some(()));
    let child = Place(waiting()[0]);
    front.send(Place::NEXT, &ToAgent::CutChild { child, kill: false });
    let reason = "it was not started".into();
    assert_eq!(front.next(), Arrived::Message(ToFrontEnd::ChildLost { child, reason }));
    // One that was started is ended.
    let child = Place(child.0 % 9 + 1);
    front.send(Place::NEXT, &ToAgent::CutChild { child, kill: false });
    let reason = "its carrier ended with signal: 15 (SIGTERM)".into();
    assert_eq!(front.next(), Arrived::Message(ToFrontEnd::ChildLost { child, reason }));
    assert_eq!(waiting().len(), 1);
}
