//! Jobs over connections of the launcher: socket pairs, with an agent at the end of each.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use iof_engine::{
    App, Config, Ending, Engine, Grant, JobSpec, KillOnBadExit, LaunchError, Mpi, ProcessGroup, Pty,
    Rendezvous, Stdin, WindowSize,
};
use iof_nodes::{AgentEnd, AgentEvent, ExchangeAnswer, Frame, FrameDecoder, ToAgent, ToFrontEnd};
use iof_proto::{Channels, Exchange, Info, MpiNodes, Nspace, Proc, Rank, Status, directive::key};
use iof_remote::{
    AgentError, AgentExit, Carriers, Launch, Node, NodeConnection, Relatives, RemoteJob, RemoteStartError,
    agent,
};
use iof_tool::{Delivery, Pull, Push, Tool};
use serde_json::Value;

/// The results of agents, as they end.
type Exits = mpsc::Receiver<Result<AgentExit, AgentError>>;

/// Two nodes with two ranks each, and their agents.
struct Site {
    nodes: [Node; 2],
    engine: Arc<Engine>,
    carriers: Carriers,
    /// A handle of the front end's end of each connection, by host.
    sockets: Arc<Mutex<BTreeMap<String, UnixStream>>>,
    exits: Exits,
}

impl Site {
    fn new() -> Site {
        let node =
            |host: &str, first| Node { host: host.into(), ranks: [Rank(first), Rank(first + 1)].into() };
        let nodes = [node("a", 0), node("b", 2)];
        let engine = Arc::new(Engine::start(Config::new(Rendezvous::None)).unwrap());
        let (sockets, (exited, exits)) = (Arc::<Mutex<BTreeMap<_, _>>>::default(), mpsc::channel());
        let kept = Arc::clone(&sockets);
        let carriers = Carriers::connections(move |host| {
            if host == "unreachable" {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (ours, theirs) = UnixStream::pair()?;
            let (theirs, exited) = (NodeConnection::of_socket(theirs)?, exited.clone());
            thread::spawn(move || exited.send(agent(theirs)));
            kept.lock().unwrap().insert(host.to_owned(), ours.try_clone()?);
            NodeConnection::of_socket(ours)
        });
        Site { nodes, engine, carriers, sockets, exits }
    }

    /// Attaches a reader of all output, for which the ranks wait.
    fn reader(&self, spec: &JobSpec) -> Tool {
        let mut tool = self.engine.attach("test", Grant::Block).unwrap();
        tool.pull(&Pull::new(vec![Proc::all(spec.nspace.clone())], Channels::STDOUT)).unwrap();
        tool
    }

    fn start(&self, spec: &JobSpec) -> Result<RemoteJob, RemoteStartError> {
        let mut launch = Launch::new(spec, &self.carriers);
        launch.config.rendezvous = Rendezvous::None;
        launch.start(&self.engine, &self.nodes, &mut |_| false, |_, _| {})
    }

    /// Blocks until both agents have ended, and returns how.
    fn agent_exits(&self) -> [Result<AgentExit, AgentError>; 2] {
        [self.exits.recv().unwrap(), self.exits.recv().unwrap()]
    }
}

/// Returns a job whose four ranks run `script`.
fn job(script: &str) -> JobSpec {
    let app = App::new("sh", ["-c", script]).ranks(4);
    JobSpec::new(Nspace::new("test").unwrap(), vec![app])
}

/// Reads all output to its end. Returns it by rank, with what is missing of broken streams.
fn read(tool: &mut Tool) -> BTreeMap<u32, (Vec<u8>, Option<u64>)> {
    let mut output = BTreeMap::<u32, (Vec<u8>, Option<u64>)>::new();
    while let Some(delivery) = tool.recv().unwrap() {
        match delivery {
            Delivery::Bytes(bytes) => {
                output.entry(bytes.origin().source.rank.0).or_default().0.extend_from_slice(bytes.as_slice());
            }
            Delivery::Broken { origin, missing, .. } => {
                output.entry(origin.source.rank.0).or_default().1 = Some(missing);
            }
            _ => {}
        }
    }
    output
}

#[test]
fn all_output_and_the_exit_code_arrive_without_a_carrier_and_the_agents_end() {
    let (site, spec) = (Site::new(), job("seq 20000; echo $IOF_RANK; exit $((IOF_RANK / 3 * 5))"));
    let mut tool = site.reader(&spec);
    let job = site.start(&spec).unwrap().job;
    let numbers: String = (1..=20000).map(|number| format!("{number}\n")).collect();
    let expected = |rank: u32| (rank, (format!("{numbers}{rank}\n").into_bytes(), None));
    assert!(read(&mut tool) == (0..4).map(expected).collect(), "output differs");
    assert_eq!(job.wait().code(), 5);
    assert!(site.agent_exits().iter().all(|exit| matches!(exit, Ok(AgentExit::Over))));
}

#[test]
fn a_push_reaches_the_ranks_of_both_nodes_and_their_output_comes_back() {
    let (site, mut spec) = (Site::new(), job("cat"));
    spec.stdin = (0..4).map(|rank| (Rank(rank), Stdin::Pipe)).collect();
    let mut tool = site.reader(&spec);
    let job = site.start(&spec).unwrap().job;
    let mut pusher = site.engine.attach("pusher", Grant::Never).unwrap();
    let targets = vec![Proc::all(spec.nspace.clone())];
    for (bytes, is_end) in [(b"ping\n".as_slice(), false), (b"", true)] {
        let directives = vec![Info::new(key::PMIX_IOF_COMPLETE, is_end)];
        pusher.push(&Push { targets: targets.clone(), directives }, bytes, |_: &_| {}).unwrap();
    }
    let expected = (0..4).map(|rank| (rank, (b"ping\n".to_vec(), None))).collect();
    assert_eq!(read(&mut tool), expected);
    assert_eq!(job.wait().code(), 0);
}

#[test]
fn a_connection_that_is_cut_loses_its_node_and_ends_the_job() {
    let (site, mut spec) = (Site::new(), job("echo $IOF_RANK; exec sleep 1000"));
    spec.kill_on_bad_exit = KillOnBadExit::Signal;
    let mut tool = site.reader(&spec);
    let job = site.start(&spec).unwrap().job;
    // Each rank has written before the cut.
    let mut lines = 0;
    while lines < 4 {
        if let Delivery::Bytes(bytes) = tool.recv().unwrap().expect("four lines") {
            lines += bytes.as_slice().iter().filter(|byte| **byte == b'\n').count();
        }
    }
    site.sockets.lock().unwrap()["b"].shutdown(Shutdown::Both).unwrap();
    let broken = read(&mut tool);
    assert!(broken[&2].1.is_some() && broken[&3].1.is_some(), "{broken:?}");
    let lost: Vec<String> = job
        .endings()
        .filter_map(|ending| match ending {
            Ending::NodeLost(lost) => Some(lost.host),
            _ => None,
        })
        .collect();
    assert_eq!(lost, ["b"]);
    assert_ne!(job.wait().code(), 0);
    let exits = site.agent_exits();
    assert!(exits.iter().any(|exit| matches!(exit, Ok(AgentExit::Over))), "{exits:?}");
    assert!(exits.iter().any(|exit| !matches!(exit, Ok(AgentExit::Over))), "{exits:?}");
}

#[test]
fn a_host_that_cannot_be_reached_is_named_and_the_agent_of_the_other_one_ends() {
    let (mut site, spec) = (Site::new(), job("true"));
    let node = |host: &str, first| Node { host: host.into(), ranks: [Rank(first), Rank(first + 1)].into() };
    site.nodes = [node("a", 0), node("unreachable", 2)];
    let error = site.start(&spec).unwrap_err();
    assert!(matches!(&error, RemoteStartError::Carrier { host, .. } if host == "unreachable"), "{error}");
    assert!(matches!(site.exits.recv().unwrap(), Ok(AgentExit::Unstarted)));
    // The name is free again.
    site.nodes[1].host = "b".into();
    assert_eq!(site.start(&spec).unwrap().job.wait().code(), 0);
}

#[test]
fn what_can_not_run_on_other_nodes_is_refused_before_an_agent_starts() {
    let site = Site::new();
    let five = JobSpec::new(Nspace::new("five").unwrap(), vec![App::new("true", [""; 0]).ranks(5)]);
    assert!(matches!(site.start(&five), Err(RemoteStartError::Ranks { placed: 4, ranks: 5 })));
    let mut inherits = job("true");
    inherits.stdin = [(Rank(1), Stdin::Inherit)].into();
    assert!(matches!(Site::new().start(&inherits), Err(RemoteStartError::Stdin(Rank(1)))));
    let mut forwards = job("true");
    forwards.directives.forward = Some(Channels::STDOUT);
    assert!(matches!(Site::new().start(&forwards), Err(RemoteStartError::Forward)));
    assert!(site.sockets.lock().unwrap().is_empty());
}

/// Runs a job here, or on both nodes. Returns its output by rank, and its exit code.
fn run(spec: &JobSpec, on_nodes: bool) -> Result<(BTreeMap<u32, String>, i32), RemoteStartError> {
    let site = Site::new();
    let mut tool = site.reader(spec);
    let here = (!on_nodes).then(|| site.engine.spawn(spec).unwrap());
    let there = if on_nodes { Some(site.start(spec)?) } else { None };
    let output = read(&mut tool).into_iter();
    let output = output.map(|(rank, (bytes, _))| (rank, String::from_utf8(bytes).unwrap())).collect();
    let code = here.map(|job| job.wait().code()).or(there.map(|remote| remote.job.wait().code()));
    Ok((output, code.unwrap()))
}

#[test]
fn each_field_of_a_job_has_its_effect_on_nodes_or_is_refused() {
    let spec = job("true");
    let Value::Object(fields) = serde_json::to_value(&spec).unwrap() else { panic!("no fields") };
    thread::scope(|scope| fields.keys().for_each(|field| drop(scope.spawn(|| check_field(field)))));
}

/// Checks that a job with another value in this field has the same effect here and on nodes, which
/// differs from that of the default value.
fn check_field(field: &str) {
    let all = |stdin| BTreeMap::from([(Rank::WILDCARD, stdin)]);
    let marks = tempfile::tempdir().unwrap();
    // The last line comes before the end, or so late that also on a busy machine it comes after the end.
    let script = |time: &str| match field {
        "nspace" => "echo $IOF_NSPACE".to_owned(),
        "apps" => "pwd".into(),
        "stdin" => "cat".into(),
        "ptys" => "[ -t 1 ] && stty size; true".into(),
        "process_group" => {
            "read -r _ _ _ _ group _ < /proc/$$/stat; [ $group = $$ ] && echo own; true".into()
        }
        "grace" => format!("(sleep {time}; echo late) & echo early"),
        "kill_on_bad_exit" => format!("[ $IOF_RANK != 0 ] || exit 3; sleep {time}; echo done"),
        "timeout" => format!("sleep {time}; echo done"),
        // Rank 0 fails once all ignore SIGTERM.
        "kill_wait" => format!(
            "trap '' TERM; cd {}; : > $IOF_RANK; while [ $IOF_RANK = 0 ]; do
             set -- *; [ $# != 4 ] || {{ rm *; exit 3; }}; sleep 0.05; done; sleep {time}; echo done",
            marks.path().display()
        ),
        "directives" => "[ -p /dev/stdin ] && echo open; true".into(),
        "mpi" => "echo $PMI_RANK of $PMI_SIZE".into(),
        _ => "echo $IOF_RANK".into(),
    };
    let [default_time, time] = if field == "kill_wait" { ["60", "3"] } else { ["0.2", "60"] };
    let mut spec = job(&script(default_time));
    if field == "kill_wait" {
        spec.kill_on_bad_exit = KillOnBadExit::Always;
    }
    let default = run(&spec, false).unwrap();
    spec.apps = job(&script(time)).apps;
    match field {
        "nspace" => spec.nspace = Nspace::new("other").unwrap(),
        "apps" => spec.apps[0].cwd = Some("/".into()),
        "stdin" => spec.stdin = all(Stdin::File("/proc/version".into())),
        "ptys" => {
            let size = WindowSize { rows: 7, columns: 77 };
            spec.ptys = BTreeMap::from([(Rank::WILDCARD, Pty { size, echo: false, data: true })]);
        }
        "process_group" => spec.process_group = ProcessGroup::Inherit,
        "grace" => spec.grace = Some(Duration::from_millis(50)),
        "kill_on_bad_exit" => spec.kill_on_bad_exit = KillOnBadExit::Always,
        // Longer than the default of 2 s.
        "kill_wait" => spec.kill_wait = Duration::from_secs(1000),
        "timeout" => spec.timeout = Some(Duration::from_millis(500)),
        "directives" => spec.directives.stdin = true,
        "mpi" => spec.mpi = Mpi::Pmi1,
        "pmix_tools" => {
            (spec.mpi, spec.pmix_tools) = (Mpi::Pmix, Some("iof".into()));
            return assert!(matches!(run(&spec, true), Err(RemoteStartError::Mpi)));
        }
        "pmi_values" => {
            spec.pmi_values = [("key".into(), "value".into())].into();
            return assert!(matches!(run(&spec, true), Err(RemoteStartError::Mpi)));
        }
        "local" | "elsewhere" | "mpi_nodes" => {
            (spec.local, spec.elsewhere) = (Some([Rank(1)].into()), true);
            spec.mpi_nodes = Some(MpiNodes { name: "x".into(), nodes: Vec::new(), relatives: Vec::new() });
            return assert_eq!(run(&spec, true).unwrap(), default, "the nodes determine {field}");
        }
        // `nodes_options` of the command compares the last three, `on_nodes` of the engine the second one.
        // Readers wait for the ends of lines by the third one, which `lines` of the command tests. `mpi` of
        // the command tests the first one.
        "parent" | "own_stdin" | "interactions" | "binding" | "torch_master" | "hide_launcher" => return,
        field => panic!("{field} is not checked"),
    }
    let here = run(&spec, false).unwrap();
    assert_ne!(here, default, "{field} has no effect");
    let mut there = run(&spec, true);
    // The limit counts the start of the agents, which takes longer on a busy machine.
    while let (Err(RemoteStartError::Timeout { .. }), Some(limit)) = (&there, spec.timeout) {
        spec.timeout = Some(limit * 4);
        there = run(&spec, true);
    }
    assert_eq!(there.unwrap(), here, "{field}");
}

#[test]
fn connections_are_not_replaced_so_reattach_is_refused_before_an_agent_starts() {
    let (site, spec) = (Site::new(), job("true"));
    let launch = Launch { reattach: Some(Duration::from_secs(1)), ..Launch::new(&spec, &site.carriers) };
    let started = launch.start(&site.engine, &site.nodes, &mut |_| false, |_, _| {});
    assert!(matches!(started, Err(RemoteStartError::Reattach)));
    assert!(site.sockets.lock().unwrap().is_empty());
}

#[test]
fn two_jobs_run_on_the_same_nodes_and_one_of_a_taken_name_is_refused() {
    let (site, mut spec) = (Site::new(), job("read line && echo $line || { echo; exit 1; }"));
    spec.stdin = [(Rank(0), Stdin::Pipe)].into();
    let mut tool = site.reader(&spec);
    let first = site.start(&spec).unwrap().job;
    let taken = site.start(&spec);
    assert!(matches!(taken, Err(RemoteStartError::Job(LaunchError::NameTaken(_)))));
    let mut other = spec.clone();
    other.nspace = Nspace::new("other").unwrap();
    other.stdin.clear();
    assert_eq!(site.start(&other).unwrap().job.wait().code(), 1);
    let mut pusher = site.engine.attach("pusher", Grant::Never).unwrap();
    let targets = vec![Proc { nspace: spec.nspace.clone(), rank: Rank(0) }];
    pusher.push(&Push { targets, directives: Vec::new() }, b"first\n", |_: &_| {}).unwrap();
    let output = read(&mut tool);
    assert_eq!((output[&0].0.as_slice(), output[&1].0.as_slice()), (&b"first\n"[..], &b"\n"[..]));
    assert_eq!(first.wait().code(), 1);
}

/// An agent that the test plays, with its end of the connection. It claims that its only rank runs.
struct Played {
    socket: UnixStream,
    decoder: FrameDecoder,
    end: AgentEnd,
}

impl Played {
    fn start(mut socket: UnixStream) -> Played {
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket.write_all(&Frame::HELLO.header().unwrap()).unwrap();
        let mut agent = Played { socket, decoder: FrameDecoder::of_front_end(), end: AgentEnd::default() };
        agent.send(&ToFrontEnd::Ready);
        agent.send(&ToFrontEnd::Started { pids: vec![1] });
        agent
    }

    fn send(&mut self, message: &ToFrontEnd) {
        self.socket.write_all(&message.frame().unwrap()).unwrap();
    }

    /// Requests what rank 0 of a job has put, for its own rank.
    fn request(&mut self, owner: &str) {
        let exchange = Exchange::Modex(Proc::new(Nspace::new(owner).unwrap(), Rank(0)));
        self.send(&ToFrontEnd::Exchange { call: 1, rank: Rank(0), exchange });
    }

    /// Answers the next request for what its rank has put.
    fn answer(&mut self) {
        let request = |message| if let ToAgent::Modex { call, .. } = message { Some(call) } else { None };
        let call = self.next(request);
        self.send(&ToFrontEnd::Modex { call, values: Ok(Vec::new()) });
    }

    /// Waits for the answer to its request.
    fn answered(&mut self) -> Result<usize, Status> {
        let answer = self.next(|message| match message {
            ToAgent::Exchanged { answer: ExchangeAnswer::Fenced(values), .. } => Some(values),
            _ => None,
        });
        answer.map(|values| values.len()).map_err(|failure| failure.status)
    }

    /// Waits for a message.
    fn next<T>(&mut self, find: impl Fn(ToAgent) -> Option<T>) -> T {
        loop {
            while let Some(frame) = self.decoder.decode().unwrap() {
                if let AgentEvent::Message(message) = self.end.receive(&frame).unwrap()
                    && let Some(found) = find(message)
                {
                    return found;
                }
            }
            match self.decoder.read_from(&mut self.socket) {
                // SIGCHLD interrupts a read with a time limit.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => assert_ne!(read.unwrap(), 0),
            }
        }
    }
}

#[test]
fn an_agent_gets_what_ranks_have_put_of_its_own_job_and_of_relatives_only() {
    let engine = Arc::new(Engine::start(Config::new(Rendezvous::None)).unwrap());
    let (started, agents) = mpsc::channel();
    let carriers = Carriers::connections(move |_| {
        let (ours, theirs) = UnixStream::pair()?;
        started.send(Played::start(theirs)).unwrap();
        NodeConnection::of_socket(ours)
    });
    let family = Relatives::default();
    let start = |name: &str, relatives: &Relatives| {
        let mut spec = JobSpec::new(Nspace::new(name).unwrap(), vec![App::new("true", [""; 0])]);
        spec.mpi = Mpi::Pmix;
        let mut launch = Launch::new(&spec, &carriers);
        (launch.config.rendezvous, launch.relatives) = (Rendezvous::None, relatives.clone());
        let node = Node { host: "a".into(), ranks: [Rank(0)].into() };
        launch.start(&engine, &[node], &mut |_| false, |_, _| {})
    };
    let with_agent = |job: Result<RemoteJob, _>| (job.unwrap(), agents.recv().unwrap());
    let (_parent, mut parent) = with_agent(start("parent", &family));
    let (_stranger, mut stranger) = with_agent(start("stranger", &Relatives::default()));
    let (_child, mut child) = with_agent(start("child", &family));
    // A job that is refused because of its name changes nothing for the one that has it.
    assert!(start("parent", &family).unwrap_err().to_string().contains("parent"));
    let refused = Err(Status::ERR_NO_PERMISSIONS);
    for owner in ["parent", "child", "unknown"] {
        stranger.request(owner);
        assert_eq!(stranger.answered(), refused, "{owner}");
    }
    child.request("stranger");
    assert_eq!(child.answered(), refused);
    // The first request that its agent gets is its own one.
    stranger.request("stranger");
    stranger.answer();
    assert_eq!(stranger.answered(), Ok(0));
    child.request("parent");
    parent.answer();
    assert_eq!(child.answered(), Ok(0));
    parent.request("child");
    child.answer();
    assert_eq!(parent.answered(), Ok(0));
}
