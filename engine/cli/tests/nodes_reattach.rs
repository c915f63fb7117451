//! Jobs on several nodes whose carriers are cut and replaced (`--reattach`). With `IOF_TEST_CARRIER`, they are TCP
//! connections over a proxy.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write, pipe};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use iof_nodes::Frame;
use iof_nodes::limits::MAX_LINKS;
use iof_proto::socket;
use iof_testing::command::nodes::{agent_of, has_thread, has_variable, send};
use iof_testing::command::site::{Site, iof};
use iof_testing::command::without_waits;
use iof_testing::noise::Noise;
use iof_testing::process::{Process, Stat};
use iof_testing::{wait_for, with_longer_times};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::mpi::CLIENT;

/// A node whose carriers can be cut, and can be kept from being replaced. `sh -c` starts the agents
/// on this node, with two processes between each of them and its front end.
struct Node {
    site: Site,
    is_tcp: bool,
}

/// Starts a proxy for the connections of the agent of a host. The front end's address is in the file `front`.
/// Each connection goes through two processes. While the file `down` exists, none is made.
fn start_proxy(wire: &Path, host: &'static str) {
    let (wire, directory) = (wire.to_owned(), wire.parent().unwrap().to_owned());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    fs::write(directory.join(format!("proxy.{host}")), format!("{}\n", listener.local_addr().unwrap()))
        .unwrap();
    thread::spawn(move || {
        for agent in listener.incoming().map_while(Result::ok) {
            if directory.join("down").exists() {
                let tried = fs::File::options().create(true).append(true).open(directory.join("tried"));
                tried.unwrap().write_all(b"\n").unwrap();
                continue;
            }
            let told = |file| fs::read_to_string(directory.join(file)).map(|text| text.trim().to_owned());
            let Ok(front) = told("front").and_then(TcpStream::connect) else { continue };
            let start = |way, from: &TcpStream, to: &TcpStream| {
                let file = |stream: &TcpStream| OwnedFd::from(stream.try_clone().unwrap());
                let mut wire = Command::new(&wire);
                wire.env("IOF_TEST_STARTED_BY", told("mark").unwrap()).env("NODE", host).env("WAY", way);
                wire.stdin(file(from)).stdout(file(to)).stderr(Stdio::null()).spawn().unwrap()
            };
            let mut wires = vec![
                (start("down", &front, &agent), agent.try_clone().unwrap()),
                (start("up", &agent, &front), front),
            ];
            thread::spawn(move || {
                // Until one is killed, or both have passed on an end.
                while !wires.is_empty() {
                    thread::sleep(Duration::from_millis(2));
                    let is_killed = |status: ExitStatus| status.code().is_none();
                    let statuses: Vec<_> =
                        wires.iter_mut().map(|(wire, _)| wire.try_wait().unwrap()).collect();
                    let how = if statuses.iter().flatten().any(|status| is_killed(*status)) {
                        Shutdown::Both
                    } else {
                        Shutdown::Write
                    };
                    for (index, status) in statuses.iter().enumerate().rev() {
                        if status.is_some() || how == Shutdown::Both {
                            let (mut wire, to) = wires.remove(index);
                            drop((to.shutdown(how), wire.kill(), wire.wait()));
                        }
                    }
                }
            });
        }
    });
}

impl Node {
    fn new() -> Node {
        let site = Site::new();
        let wire = site.install(Path::new("/bin/cat"), "wire");
        let is_tcp = std::env::var("IOF_TEST_CARRIER").is_ok();
        if is_tcp {
            ["a", "b", "c"].iter().for_each(|host| start_proxy(&wire, host));
        }
        let dial = "export NODE=$1; read front; echo $front >front; echo $IOF_TEST_STARTED_BY >mark\n\
                    { cat proxy.$1; cat; } | sh -c \"$2\"\n";
        // The shell keeps neither end, so that the end of a wire is the end of the carrier's output
        // or input. While the file `down` exists, no carrier starts; with `held` the one of node a
        // waits.
        let begin = "cd ${0%/*}; if [ -e down ]; then echo >> tried; exit 1; fi\n\
                     while [ $1 = a ] && [ -e held ]; do sleep 0.01; done\n";
        let wires = "exec 3>&1 4<&0 >/dev/null </dev/null\n\
                      export NODE=$1\n\
                      WAY=down ./wire <&4 3>&- | sh -c \"$2\" 3>&- 4<&- | ./wire >&3 4<&- &\n\
                      exec 3>&- 4<&-\n\
                      wait\n";
        let script = [begin, if is_tcp { dial } else { wires }].concat();
        fs::write(site.path().join("carrier"), script).unwrap();
        Node { site, is_tcp }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.site.path().join(name)
    }

    /// Starts a job named demo, whose ranks run `script` on the nodes a and b.
    fn start(&self, options: &[&str], script: &str) -> Process {
        self.start_on("a,b", options, script)
    }

    /// Starts such a job with a rank on each of these hosts.
    fn start_on(&self, hosts: &str, options: &[&str], script: &str) -> Process {
        let rsh = format!("sh {} %h", self.file("carrier").display());
        let ranks = hosts.split(',').count().to_string();
        let nodes = ["--nspace", "demo", "--hosts", hosts, "-n", &ranks, "--rsh", &rsh];
        self.site.run_sh(&[&nodes, options].concat(), script)
    }

    /// Starts a job on a and b whose ranks write `ready` first, and waits until they have.
    fn start_ready(&self, options: &[&str], script: &str) -> (Process, BufReader<ChildStdout>) {
        self.start_ready_on("a,b", options, script)
    }

    /// Starts such a job with a rank on each of these hosts.
    fn start_ready_on(
        &self,
        hosts: &str,
        options: &[&str],
        script: &str,
    ) -> (Process, BufReader<ChildStdout>) {
        let mut run = self.start_on(hosts, options, &format!("echo ready; {script}"));
        let (mut stdout, mut lines) = (BufReader::new(run.stdout()), String::new());
        let ranks = hosts.split(',').count();
        for _ in 0..ranks {
            stdout.read_line(&mut lines).unwrap();
        }
        assert_eq!(lines, "ready\n".repeat(ranks));
        wait_for("the end of the start", || has_thread(run.pid(), "iof-job").then_some(()));
        (run, stdout)
    }

    /// Returns whether the agent of a host runs.
    fn has_agent(&self, run: &Process, host: &str) -> bool {
        run.running("iof").iter().any(|pid| has_variable(*pid, &format!("NODE={host}")))
    }

    /// Lets no carrier start, or lets them start again.
    fn set_down(&self, is_down: bool) {
        if is_down {
            fs::write(self.file("down"), "").unwrap();
        } else {
            fs::remove_file(self.file("down")).unwrap();
        }
    }

    /// Cuts the carriers of both nodes, and waits until the front end has tried to replace one, or has ended.
    fn cut_for_long(&self, run: &Process) {
        self.set_down(true);
        let wires = run.running("wire");
        let has_ended = || run.exit_code().is_some();
        assert!(!wires.is_empty() || has_ended());
        wires.into_iter().for_each(cut);
        let has_tried = || self.file("tried").exists();
        wait_for("an attempt to replace a carrier", || (has_tried() || has_ended()).then_some(()));
    }
}

/// Ends one direction of a carrier, if it has not ended.
fn cut(wire: u32) {
    let _ = kill(Pid::from_raw(wire.try_into().unwrap()), Signal::SIGKILL);
}

/// Cuts one direction of one carrier; another one with each number. Waits for a carrier if all have
/// just been cut.
fn cut_any(run: &Process, number: usize) {
    wait_for("a carrier to cut", || {
        let wires = run.running("wire");
        let wire = *wires.get(number * 7 % wires.len().max(1))?;
        kill(Pid::from_raw(wire.try_into().unwrap()), Signal::SIGKILL).ok()
    });
}

/// Returns the only socket for links of the agent with this pid.
fn socket_of(node: &Node, agent: u32) -> PathBuf {
    let sockets = node.site.sockets().into_iter();
    let ends = format!(".link.{agent}");
    let mut found = sockets.filter(|path| path.to_str().unwrap().ends_with(&ends));
    let socket = found.next().unwrap();
    assert_eq!(found.next(), None);
    socket
}

#[test]
fn all_output_arrives_once_and_in_order_although_carriers_are_cut() {
    let node = Node::new();
    let (stop, out) = (node.file("stop"), node.file("out.%t"));
    let script = format!(
        "while [ ! -e {} ]; do seq 1 20000; done; echo end; [ $IOF_RANK = 0 ] || exit 7",
        stop.display()
    );
    let run = node.start(&["--reattach", "60", "-o", out.to_str().unwrap()], &script);
    let length = |rank| fs::metadata(node.file(&format!("out.{rank}"))).map_or(0, |file| file.len());
    let mut lengths = [0, 0];
    for number in 0..16 {
        // Whatever was cut before is replaced.
        wait_for("output of both nodes", || {
            let grown = lengths.iter().enumerate().all(|(rank, before)| length(rank) > before + 200_000);
            grown.then_some(())
        });
        cut_any(&run, number);
        lengths = [length(0), length(1)];
    }
    fs::write(&stop, "").unwrap();
    let done = run.finish();
    assert_eq!(done.code, 7, "{}", done.stderr);
    let told: Vec<&str> = done.stderr.lines().collect();
    assert!(told.len() == 1 && told[0].contains("on b) ended with exit code 7"), "{}", done.stderr);
    let block: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    for rank in 0..2 {
        let output = fs::read_to_string(node.file(&format!("out.{rank}"))).unwrap();
        let output = output.strip_suffix("end\n").unwrap();
        assert_eq!(output.len() % block.len(), 0);
        for (number, bytes) in output.as_bytes().chunks(block.len()).enumerate() {
            iof_testing::bytes::assert_same(&format!("rank {rank}, block {number}"), bytes, block.as_bytes());
        }
    }
}

/// A rank of MPI on each of two nodes: in each round both put a value, and get that of the other one, until the file
/// `$1/stop` exists.
const ROUNDS: &str = r#"cd $1; init; space; round=0; goes=1
while [ $goes = 1 ]; do
    round=$((round + 1)); goes=1; [ ! -e stop ] || goes=0
    ask "cmd=put kvsname=$name key=$PMI_RANK-$round value=$goes of $PMI_RANK in $round"; barrier
    ask "cmd=get kvsname=$name key=$((1 - PMI_RANK))-$round"
    [[ $reply = *"of $((1 - PMI_RANK)) in $round" ]] || { echo "$round: $reply"; exit 1; }
    ask "cmd=get kvsname=$name key=0-$round"; reply=${reply#*value=}; goes=${reply%% *}
    echo $round >round.$PMI_RANK
done
barrier; finalize; echo all"#;

#[test]
fn ranks_of_mpi_exchange_each_value_once_although_carriers_are_cut() {
    let node = Node::new();
    let script = format!("#!/bin/bash\nset -- {}\n{CLIENT}{ROUNDS}", node.site.path().display());
    let script = node.site.install_script(&script, "rounds");
    let run = node.start(&["--reattach", "60"], &format!("exec {}", script.display()));
    let round =
        |rank| fs::read_to_string(node.file(&format!("round.{rank}"))).ok()?.trim().parse::<u64>().ok();
    let mut rounds = 0;
    let mut wait_for_rounds = || {
        wait_for("further rounds of both ranks", || {
            let now = round(0)?.min(round(1)?);
            (now > rounds + 3).then(|| rounds = now)
        });
    };
    for number in 0..8 {
        wait_for_rounds();
        cut_any(&run, number);
    }
    wait_for_rounds();
    node.cut_for_long(&run);
    node.set_down(false);
    wait_for_rounds();
    fs::write(node.file("stop"), "").unwrap();
    let done = run.finish();
    assert_eq!((done.text(), done.code), ("all\nall\n", 0), "{done:?}");
}

#[test]
fn what_a_tool_pulls_arrives_once_and_in_order_although_carriers_are_cut() {
    let node = Node::new();
    let stop = node.file("stop");
    let script = format!(
        "i=1; while [ ! -e {} ]; do seq $i $((i + 99)); i=$((i + 100)); sleep 0.01; done",
        stop.display()
    );
    let run = node.start(&["--reattach", "60", "-o", "/dev/null"], &script);
    let produced = |rank| node.site.stream(rank, "stdout").map_or(0, |stream| stream.number("produced"));
    wait_for("output of rank 1", || (produced(1) > 1000).then_some(()));
    let pull = node.site.pull(&["--ranks", "1", "--channel", "stdout"]);
    node.site.wait_for_pulls(1, "stdout", 1);
    let mut before = 0;
    for number in 0..8 {
        wait_for("output of rank 1", || (produced(1) > before + 1000).then_some(()));
        cut_any(&run, number);
        before = produced(1);
    }
    fs::write(&stop, "").unwrap();
    assert_eq!(run.finish().code, 0);
    let done = pull.finish();
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    let mut count = 0;
    for (line, number) in done.text().lines().zip(1..) {
        assert_eq!(line, number.to_string());
        count = number;
    }
    assert!(count > 1000 && count % 100 == 0, "{count}");
}

#[test]
fn what_files_of_a_node_lack_is_told_although_its_carrier_was_cut() {
    let node = Node::new();
    let (go, written) = (node.file("go"), node.file("written"));
    // A fifo that is not read until all is written.
    let mut file = node.site.gate("file.out");
    file.open();
    let script = format!(
        "while [ ! -e {} ]; do sleep 0.01; done; yes | head -c 1000000; : >{}",
        go.display(),
        written.display()
    );
    let output = format!("file={}:pattern:node", node.file("file").display());
    let options =
        ["--reattach", "1000", "--drop", "newest", "--cache-size", "16K", "--output", output.as_str()];
    let mut run = node.start_on("a", &options, &script);
    wait_for("the end of the start", || has_thread(run.pid(), "iof-job").then_some(()));
    let stderr = iof_testing::pipes::collect(run.stderr());
    let first = run.running("wire");
    first.iter().for_each(|wire| cut(*wire));
    let are_new = |wires: Vec<u32>| wires.len() == 2 && wires.iter().all(|wire| !first.contains(wire));
    wait_for("another carrier", || are_new(run.running("wire")).then_some(()));
    fs::write(&go, "").unwrap();
    wait_for("all output", || written.exists().then_some(()));
    let reader = fs::File::open(file.path()).unwrap();
    drop(file);
    let delivered = iof_testing::pipes::collect(reader).get().len();
    assert_eq!(run.wait(), 0);
    let told = String::from_utf8(stderr.get()).unwrap();
    let lost = told.strip_prefix("iof: a: job demo: rank 0 stdout: ");
    let lost = lost.and_then(|rest| rest.split_once(" bytes are missing")?.0.parse::<usize>().ok());
    // A line that a gap cuts gets a newline.
    let sum = delivered + lost.unwrap_or_else(|| panic!("{delivered} bytes: {told}"));
    assert!((1_000_000..1_001_000).contains(&sum), "{delivered} bytes: {told}");
}

#[test]
fn a_job_starts_although_a_carrier_is_cut_before_its_ranks_are_started() {
    let node = Node::new();
    fs::write(node.file("held"), "").unwrap();
    let script = format!("echo $IOF_RANK; : > {}.$IOF_RANK", node.file("ran").display());
    let run = node.start(&["--reattach", "60"], &script);
    let is_down = |wire: &u32| has_variable(*wire, "NODE=b") && has_variable(*wire, "WAY=down");
    let wire = wait_for("the carrier of b", || run.running("wire").into_iter().find(is_down));
    let is_ready = |agent: &u32| {
        has_variable(*agent, "NODE=b")
            && ["iof-listen", "iof-dial"].iter().any(|name| has_thread(*agent, name))
    };
    wait_for("the agent of b", || run.running("iof").iter().any(is_ready).then_some(()));
    send(wire, Signal::SIGSTOP);
    wait_for("the carrier to stop", || (Stat::of(wire)?.state == 'T').then_some(()));
    fs::remove_file(node.file("held")).unwrap();
    // The ranks of both nodes are told to start. Those of b are not: their carrier ends before.
    wait_for("the rank of a", || node.file("ran.0").exists().then_some(()));
    assert!(!node.file("ran.1").exists());
    cut(wire);
    let done = run.finish();
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    let mut lines: Vec<&str> = done.text().lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0", "1"]);
}

#[test]
fn all_stdin_arrives_once_and_in_order_although_carriers_are_cut() {
    let (node, length) = (Node::new(), 6 << 20);
    let mut run = node.start(&["--reattach", "60", "--stdin", "all", "--output", "rank"], "sha256sum");
    let (mut stdin, mut noise) = (run.stdin(), Noise::new(0, "stdin").take(length));
    let wanted = iof_testing::bytes::noise_sum(0, "stdin", length);
    let (output, errors) = run.collect();
    wait_for("the ranks", || (run.running("sha256sum").len() == 2).then_some(()));
    for number in 0..12 {
        std::io::copy(&mut (&mut noise).take(length / 12), &mut stdin).unwrap();
        cut_any(&run, number);
    }
    std::io::copy(&mut noise, &mut stdin).unwrap();
    drop(stdin);
    let code = run.wait();
    let (output, errors) = (output.get(), String::from_utf8(errors.get()).unwrap());
    assert_eq!((code, without_waits(&errors).as_str()), (0, ""));
    let output = String::from_utf8(output).unwrap();
    let sum = wanted.get().sha256;
    let mut lines: Vec<&str> = output.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, [format!("[0]<stdout>: {sum}  -"), format!("[1]<stdout>: {sum}  -")]);
}

#[test]
fn signals_during_a_cut_reach_the_ranks_when_the_carrier_is_replaced() {
    let node = Node::new();
    let script = "trap 'echo got it; exit 3' TERM; while :; do sleep 0.01; done";
    let (run, mut stdout) = node.start_ready(&["--reattach", "60"], script);
    node.cut_for_long(&run);
    run.signal(Signal::SIGTERM);
    wait_for("the signal to be taken", || {
        let status = fs::read_to_string(format!("/proc/{}/status", run.pid())).unwrap();
        status.lines().any(|line| line == "ShdPnd:\t0000000000000000").then_some(())
    });
    node.set_down(false);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), run.wait()), ("got it\ngot it\n", 3));
}

#[test]
fn a_node_that_no_carrier_reaches_in_time_is_lost_with_figures() {
    let node = Node::new();
    let options = ["--reattach", "0.5", "--summary", "--kill-wait", "0.1"];
    let (mut run, mut stdout) = node.start_ready(&options, "exec sleep 1000");
    let stderr = iof_testing::pipes::collect(run.stderr());
    node.cut_for_long(&run);
    let code = run.wait();
    let errors = String::from_utf8(stderr.get()).unwrap();
    assert_eq!(code, 1, "{errors}");
    let (ended, failed) = match node.is_tcp {
        true => ("its connection has ended", "its agent does not connect"),
        false => ("its carrier ended with ", "its carrier ended with exit status: 1"),
    };
    let reason = format!(
        ", and no other one reached its agent in 0.5 s: {failed}; of its unfinished output 6 bytes arrived, at least 0 \
         are missing, and what "
    );
    for (host, rank) in [("a", 0), ("b", 1)] {
        let lost = format!("iof: job demo: node {host} is lost with rank {rank}: {ended}");
        let line = errors.lines().find(|line| line.starts_with(&lost));
        let line = line.unwrap_or_else(|| panic!("{errors}"));
        assert!(line.contains(&reason), "{errors}");
    }
    assert!(errors.contains("unknown exit status: 2 ranks (0-1); 12 bytes forwarded, 0 lost, at least 0 missing from lost nodes"), "{errors}");
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    // The agents have waited as long, and have told why they end.
    wait_for("the end of the ranks", || run.running("sleep").is_empty().then_some(()));
    wait_for("the end of the agents", || run.running("iof").is_empty().then_some(()));
    assert_eq!(node.site.sockets(), [""; 0].map(PathBuf::from));
    let record = fs::read_dir(node.site.path()).unwrap().map(|entry| entry.unwrap().path());
    let records: Vec<String> = record
        .filter(|path| path.to_str().unwrap().contains(".agent."))
        .filter_map(|path| fs::read_to_string(path).ok())
        .collect();
    let reason = "no connection reached the agent for 0.5 s; the ranks of this node are ended";
    assert!(records.len() == 2 && records.iter().all(|record| record.contains(reason)), "{records:?}");
}

#[test]
fn nodes_that_are_over_get_other_carriers_and_end_with_the_job() {
    let node = Node::new();
    let stop = node.file("stop");
    let script = format!("[ $IOF_RANK != 2 ] || while [ ! -e {} ]; do sleep 0.01; done", stop.display());
    let (mut run, _stdout) = node.start_ready_on("a,b,c", &["--reattach", "1000"], &script);
    let stderr = iof_testing::pipes::collect(run.stderr());
    let is_over = |host| !has_thread(agent_of(&run, host), "iof-endings");
    wait_for("the end of two nodes", || (is_over("a") && is_over("b")).then_some(()));
    let wires = run.running("wire");
    let ended: Vec<u32> = wires.iter().copied().filter(|wire| !has_variable(*wire, "NODE=c")).collect();
    assert!(ended.len() >= 4, "{ended:?} of {wires:?}");
    node.set_down(true);
    ended.iter().for_each(|wire| cut(*wire));
    fs::write(&stop, "").unwrap();
    wait_for("the end of the third node", || (!node.has_agent(&run, "c")).then_some(()));
    // The attempts follow in a second or more: the end of the job is not in a hurry.
    fs::write(node.file("tried"), "").unwrap();
    let has_tried = || fs::metadata(node.file("tried")).unwrap().len() >= 8;
    wait_for("four attempts for each of the others", || has_tried().then_some(()));
    node.set_down(false);
    assert_eq!(run.wait(), 0);
    wait_for("the end of the agents", || run.running("iof").is_empty().then_some(()));
    assert_eq!(String::from_utf8(stderr.get()).unwrap(), "");
}

#[test]
fn a_carrier_that_ends_with_the_end_of_the_job_in_it_is_replaced() {
    let node = Node::new();
    let script = format!("while [ ! -e {} ]; do sleep 0.01; done", node.file("stop").display());
    let (mut run, _stdout) = node.start_ready(&["--reattach", "1000"], &script);
    let stderr = iof_testing::pipes::collect(run.stderr());
    let is_down = |wire: &u32| has_variable(*wire, "NODE=b") && has_variable(*wire, "WAY=down");
    let wire = run.running("wire").into_iter().find(is_down).unwrap();
    send(wire, Signal::SIGSTOP);
    wait_for("the carrier to stop", || (Stat::of(wire)?.state == 'T').then_some(()));
    fs::write(node.file("stop"), "").unwrap();
    wait_for("the end of the first node", || (!node.has_agent(&run, "a")).then_some(()));
    cut(wire);
    assert_eq!(run.wait(), 0);
    wait_for("the end of the agents", || run.running("iof").is_empty().then_some(()));
    assert_eq!(String::from_utf8(stderr.get()).unwrap(), "");
}

/// Starts a job, cuts its carriers for ever, and checks that it ends after `timeout`, or after two interrupts.
/// Fails if the time has passed before.
fn end_without_carriers(timeout: Option<&str>) -> Result<(), String> {
    let node = Node::new();
    let mut options = vec!["--reattach", "1000", "--kill-wait", "0.1"];
    options.extend(timeout.iter().flat_map(|seconds| ["--timeout", seconds]));
    let began = Instant::now();
    let mut run = node.start(&options, "echo ready; exec sleep 1000");
    let (mut stdout, mut lines) = (BufReader::new(run.stdout()), String::new());
    let stderr = iof_testing::pipes::collect(run.stderr());
    for _ in 0..2 {
        stdout.read_line(&mut lines).unwrap();
    }
    let has_started = || has_thread(run.pid(), "iof-job") || run.exit_code().is_some();
    wait_for("the end of the start", || has_started().then_some(()));
    node.cut_for_long(&run);
    if timeout.is_some_and(|seconds| began.elapsed().as_secs_f64() >= seconds.parse().unwrap()) {
        return Err(format!("the carriers were cut too late: {lines:?}"));
    }
    if timeout.is_none() {
        run.signal_twice(Signal::SIGINT);
    }
    let code = run.wait();
    // They still wait for a carrier, and hold stderr.
    run.running("iof").into_iter().for_each(|agent| send(agent, Signal::SIGKILL));
    let errors = String::from_utf8(stderr.get()).unwrap();
    let told = errors.matches(", and no other one was waited for; of its unfinished output 6 bytes");
    assert_eq!(told.count(), 2, "{errors}");
    assert_eq!(code, if timeout.is_some() { 124 } else { 130 }, "{errors}");
    Ok(())
}

#[test]
fn a_time_limit_and_two_interrupts_end_a_job_whose_nodes_have_no_carrier() {
    with_longer_times(|seconds| end_without_carriers(Some(seconds)));
    end_without_carriers(None).unwrap();
}

#[test]
fn agents_end_when_a_signal_ends_a_job_of_which_only_output_is_left() {
    let node = Node::new();
    // More than a window, so that the agents are not over.
    let run = node.start(&["--reattach", "1000", "--cache-size", "8M"], "head -c 8M /dev/zero");
    (0..2).for_each(|rank| drop(node.site.wait_for_state(rank, "terminated")));
    assert_eq!(run.running("iof").len(), 3);
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait(), 143);
    wait_for("the end of the agents", || run.running("iof").is_empty().then_some(()));
}

#[test]
fn an_agent_that_was_given_up_ends_when_it_goes_on() {
    let node = Node::new();
    let options = ["--reattach", "1000", "--kill-wait", "0.1"];
    let (mut run, _stdout) = node.start_ready(&options, "exec sleep 1000");
    let stderr = iof_testing::pipes::collect(run.stderr());
    let agents = ["a", "b"].map(|host| agent_of(&run, host));
    agents.iter().for_each(|agent| send(*agent, Signal::SIGSTOP));
    run.signal_twice(Signal::SIGINT);
    assert_eq!(run.wait(), 130);
    agents.iter().for_each(|agent| send(*agent, Signal::SIGCONT));
    wait_for("the end of the agents", || run.running("iof").is_empty().then_some(()));
    let errors = String::from_utf8(stderr.get()).unwrap();
    for lost in ["a is lost with rank 0", "b is lost with rank 1"] {
        assert!(errors.contains(&format!("node {lost}: its agent does not answer")), "{errors}");
    }
}

#[test]
fn an_agent_that_stood_still_when_its_node_was_given_up_ends_when_no_carrier_comes() {
    let node = Node::new();
    let options = ["--reattach", "0.5", "--node-timeout", "5", "--kill-wait", "0.1"];
    let (mut run, _stdout) = node.start_ready(&options, "exec sleep 1000");
    let stderr = iof_testing::pipes::collect(run.stderr());
    let agent = agent_of(&run, "b");
    let is_down = |wire: &u32| has_variable(*wire, "NODE=b") && has_variable(*wire, "WAY=down");
    // What tells the agent that it was given up does not arrive: its carrier stands still, and is killed.
    for pid in [run.running("wire").into_iter().find(is_down).unwrap(), agent] {
        send(pid, Signal::SIGSTOP);
    }
    assert_eq!(run.wait(), 1);
    let errors = String::from_utf8(stderr.get()).unwrap();
    assert!(errors.contains("node b is lost with rank 1: its agent was silent for 5 s; of its"), "{errors}");
    assert_eq!((run.running("iof"), run.running("sleep").len()), (vec![agent], 1));
    send(agent, Signal::SIGCONT);
    wait_for("the end of the rank", || run.running("sleep").is_empty().then_some(()));
    wait_for("the end of the agent", || run.running("iof").is_empty().then_some(()));
    assert_eq!(node.site.sockets(), [""; 0].map(PathBuf::from));
}

#[test]
fn the_death_of_an_agent_is_noticed_by_the_first_attempt() {
    let node = Node::new();
    if node.is_tcp {
        // No command reaches the agent.
        return;
    }
    let (mut run, _stdout) =
        node.start_ready(&["--reattach", "1000", "--kill-wait", "0.1"], "exec sleep 1000");
    let stderr = iof_testing::pipes::collect(run.stderr());
    send(agent_of(&run, "b"), Signal::SIGKILL);
    let code = run.wait();
    let errors = String::from_utf8(stderr.get()).unwrap();
    assert!(errors.contains("node b is lost with rank 1: its carrier ended with "), "{errors}");
    assert!(errors.contains(", and its agent has ended; of its unfinished output 6 bytes"), "{errors}");
    assert_eq!(code, 1, "{errors}");
}

#[test]
fn a_link_without_the_session_of_the_edge_changes_nothing() {
    let node = Node::new();
    if node.is_tcp {
        // No command reaches the agent.
        return;
    }
    let script = "while read line; do echo \"$IOF_RANK $line\"; done";
    let (mut run, mut stdout) = node.start_ready(&["--reattach", "60", "--stdin", "1"], script);
    let mut stdin = run.stdin();
    let socket = socket_of(&node, agent_of(&run, "b"));
    let link = || Process::start(iof().arg("link").arg(&socket));
    let silent: Vec<Process> = (0..3).map(|_| link()).collect();
    for first in [Frame::HELLO, Frame::Resume { session: 7, attempt: 1, received: 0 }, Frame::Padding] {
        let mut wrong = link();
        wrong.stdin().write_all(&first.header().unwrap()).unwrap();
        let done = wrong.finish();
        assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "", ""));
    }
    let short = link().finish();
    assert_eq!((short.code, short.text()), (0, ""));
    let mut exchange = |text: &str| {
        writeln!(stdin, "{text}").unwrap();
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, format!("1 {text}\n"));
    };
    exchange("over the first carrier");
    run.running("wire").into_iter().for_each(cut);
    exchange("over the second one");
    assert!(silent.iter().all(|link| link.exit_code().is_none()));
    drop(stdin);
    assert_eq!(run.wait(), 0);
}

#[test]
fn links_that_say_nothing_are_bounded_and_give_way_to_the_carrier_of_the_front_end() {
    let node = Node::new();
    if node.is_tcp {
        // No command reaches the agent.
        return;
    }
    let script = "while read line; do echo \"$IOF_RANK $line\"; done";
    let (mut run, mut stdout) = node.start_ready(&["--reattach", "300", "--stdin", "1"], script);
    let path = socket_of(&node, agent_of(&run, "b"));
    let connect = || UnixStream::connect(&path).unwrap();
    let mut silent = vec![connect()];
    let (down, up) = pipe().unwrap();
    socket::send(&silent[0], b"l", &[down.as_fd(), up.as_fd()]).unwrap();
    silent.extend((0..=MAX_LINKS).map(|_| connect()));
    for oldest in silent.drain(..2) {
        assert_eq!((&oldest).read(&mut [0]).unwrap(), 0, "the oldest one is closed");
    }
    for link in &mut silent {
        link.set_nonblocking(true).unwrap();
        assert_eq!(link.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    run.running("wire").into_iter().for_each(cut);
    let mut stdin = run.stdin();
    writeln!(stdin, "over the next carrier").unwrap();
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "1 over the next carrier\n");
    drop(stdin);
    assert_eq!(run.wait(), 0);
}

#[test]
fn a_rank_has_a_stddiag_that_every_shell_can_name() {
    let (node, script) = (Node::new(), "[ $IOF_STDDIAG_FD -le 9 ] && echo x >&$IOF_STDDIAG_FD");
    assert_eq!(node.start(&["--reattach", "60"], script).wait(), 0);
}

#[test]
fn agents_outlive_a_front_end_that_is_killed_by_the_time_limit_only() {
    let node = Node::new();
    let (run, _stdout) = node.start_ready(&["--reattach", "0.5", "--kill-wait", "0.1"], "exec sleep 1000");
    let agent = agent_of(&run, "a");
    let Stat { session, .. } = Stat::of(agent).unwrap();
    assert_eq!(session, agent, "signals of its carrier do not reach it");
    run.signal(Signal::SIGKILL);
    wait_for("the end of the ranks", || run.running("sleep").is_empty().then_some(()));
    wait_for("the end of the agents", || run.running("iof").is_empty().then_some(()));
}

#[test]
fn a_job_that_does_not_start_leaves_no_agent_behind() {
    let node = Node::new();
    let options = ["--reattach", "1000", "--wdir", "/nonexistent"];
    let run = node.start(&options, "true");
    assert_eq!(run.wait(), 2);
    wait_for("the end of the agents", || run.running("iof").is_empty().then_some(()));
}

#[test]
fn reattach_is_refused_where_it_cannot_work() {
    let site = Site::new();
    let directory = site.path().to_str().unwrap();
    for (rsh, directory, reason) in [
        ("/usr/bin/srun -w %h sh -c", directory, "over srun: the agent of a node ends with its srun"),
        (
            "sh -c",
            "none",
            "with --rendezvous-dir none: a new connection finds the node's agent by a socket in that directory",
        ),
    ] {
        let mut run = iof();
        run.args(["run", "--hosts", "a,b", "-n", "2", "--reattach", "5", "--rsh", rsh]);
        let done = Process::start(run.args(["--rendezvous-dir", directory, "true"])).finish();
        assert_eq!(done.code, 2);
        assert_eq!(done.stderr, format!("iof: --reattach does not work {reason}; leave one out\n"));
    }
    let done = Site::new().run_sh(&["--reattach", "5"], "true").finish();
    assert_eq!(done.stderr, "iof: --reattach needs nodes: write --hosts or --hostfile\n");
}
