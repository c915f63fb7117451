//! Jobs on several nodes whose agents connect by TCP (`--carrier tcp`), and what others make of the listener.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use iof_nodes::Invitation;
use iof_nodes::limits::MAX_DIALS;
use iof_nodes::proof::{ANSWER, AwaitedConfirmation, CHALLENGE, CONFIRMATION, Challenge};
use iof_testing::command::nodes::{agent_of, has_thread, has_variable, send};
use iof_testing::command::site::{Site, iof};
use iof_testing::process::{Done, Process};
use iof_testing::wait_for;
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};

/// Starts a rank on each of these hosts. The invitation of an agent passes through a file named after its host,
/// and is then changed by `edit`, a command for a shell.
fn start_edited(site: &Site, hosts: &str, edit: &str, options: &[&str], script: &str) -> Process {
    let path = site.path().display();
    let carrier = format!(
        "#!/bin/sh\ncat >{path}/$1.new; mv {path}/$1.new {path}/$1; export NODE=$1\n\
         {edit} <{path}/$1 >{path}/$1.edited; exec sh -c \"$2\" <{path}/$1.edited\n"
    );
    let rsh = format!("{} %h", site.install_script(&carrier, "carrier").display());
    let ranks = hosts.split(',').count().to_string();
    let nodes = ["--nspace", "demo", "--hosts", hosts, "-n", &ranks, "--rsh", &rsh];
    let carrier = ["--carrier", "tcp:127.0.0.1"];
    start_over(site, &[&nodes[..], &carrier, options].concat(), script)
}

fn start(site: &Site, hosts: &str, options: &[&str], script: &str) -> Process {
    start_edited(site, hosts, "cat", options, script)
}

/// Starts `iof run OPTIONS -- sh -c SCRIPT`, without the carrier of all tests.
fn start_over(site: &Site, options: &[&str], script: &str) -> Process {
    Process::start(site.iof("run").args(options).args(["--", "sh", "-c", script]))
}

/// Returns the text that invited the agent of a host.
fn invitation_text(site: &Site, host: &str) -> String {
    wait_for("the invitation", || fs::read_to_string(site.path().join(host)).ok())
}

/// Returns the invitation of a host.
fn invitation(site: &Site, host: &str) -> Invitation {
    Invitation::read(invitation_text(site, host).as_bytes(), &[]).unwrap()
}

/// Connects to an address as a host with the second address, such as 127.0.0.2.
fn connect_from(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let SocketAddr::V4(to) = to else { unreachable!("an address of IPv4") };
    let stream = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(stream.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(from.into(), 0))).unwrap();
    connect(stream.as_raw_fd(), &SockaddrIn::from(to)).unwrap();
    stream.into()
}

/// Waits until the other end closes a connection, without another byte than those of the challenge.
fn assert_refused(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    assert!(rest.len() <= CHALLENGE, "{rest:?}");
}

/// Answers a challenge with the token of an invitation. Returns whether that is confirmed.
fn prove(invitation: &Invitation, answers: &mut Vec<Vec<u8>>) -> bool {
    let mut stream = TcpStream::connect(invitation.address).unwrap();
    let mut challenge = [0; CHALLENGE];
    stream.read_exact(&mut challenge).unwrap();
    let (answer, answered) =
        AwaitedConfirmation::new(&challenge, (invitation.node, &invitation.token), [7; 16]).unwrap();
    answers.push(answer.to_vec());
    stream.write_all(&answer).unwrap();
    let mut confirmation = [0; CONFIRMATION];
    let read = stream.read_exact(&mut confirmation);
    read.is_ok() && answered.check(&confirmation).is_ok()
}

#[test]
fn ranks_run_over_connections_of_ipv4_and_ipv6() {
    for carrier in ["tcp:127.0.0.1", "tcp:[::1]", "tcp:::1", "tcp:127.0.0.1:0"] {
        let site = Site::new();
        let nodes = ["--hosts", "a,b", "-n", "2", "--rsh", "sh -c", "--carrier", carrier];
        let done = start_over(&site, &nodes, "echo $IOF_RANK").finish();
        let mut lines: Vec<&str> = done.text().lines().collect();
        lines.sort_unstable();
        assert_eq!((done.code, lines, done.stderr.as_str()), (0, vec!["0", "1"], ""), "{carrier}");
    }
}

#[test]
fn without_an_address_agents_connect_to_the_one_from_which_their_host_is_reached() {
    let nodes = ["--hosts", "127.0.0.1", "-n", "1", "--rsh", "sh -c", "--carrier", "tcp"];
    let done = start_over(&Site::new(), &nodes, "echo ran").finish();
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "ran\n", ""));
    let nodes = ["--hosts", "no..host", "-n", "1", "--rsh", "sh -c", "--carrier", "tcp"];
    let done = start_over(&Site::new(), &nodes, "echo ran").finish();
    let told = "iof: --carrier tcp: cannot tell from which address this node reaches no..host: write tcp:ADDRESS with \
                one that the nodes reach\n";
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (2, "", told));
}

#[test]
fn no_argument_and_no_variable_contains_a_token() {
    let site = Site::new();
    let mut run = start(&site, "a", &[], "echo ready; exec sleep 1000");
    run.stdout().read_exact(&mut [0; 6]).unwrap();
    let token = format!("{:x}", invitation(&site, "a").token);
    let processes = run.living();
    assert!(processes.len() >= 3, "{processes:?}");
    for pid in processes {
        for file in ["cmdline", "environ"] {
            let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            assert!(!bytes.windows(token.len()).any(|part| part == token.as_bytes()), "{pid}");
        }
    }
}

/// Changes the first digit of the token.
const OTHER_TOKEN: &str = "sed '2s/ [0-4]/ 5/;t;2s/ [5-9a-f]/ 4/'";

#[test]
fn an_agent_with_another_token_is_refused_and_the_start_ends_in_time() {
    let site = Site::new();
    let run = start_edited(&site, "a", OTHER_TOKEN, &["--start-timeout", "1"], "echo ran");
    let done = run.finish();
    assert_eq!((done.code, done.text()), (1, ""));
    let address = invitation(&site, "a").address;
    let told = format!(
        "iof: the ranks did not start within 1 s: no answer from a (--start-timeout; the nodes must be able to connect \
         to {address})\n"
    );
    assert_eq!(done.stderr, told);
}

#[test]
fn an_agent_that_cannot_connect_tells_the_address_and_what_to_do() {
    let done = start_edited(&Site::new(), "a", "sed '1s/:[0-9]*$/:1/'", &[], "true").finish();
    let told = "cannot connect to the front end at 127.0.0.1:1: Connection refused (os error 111) (choose an address \
                that the nodes reach with --carrier tcp:ADDRESS)\n";
    assert!(done.code == 1 && done.stderr.ends_with(told), "{done:?}");
}

#[test]
fn an_agent_that_gets_no_invitation_tells_so() {
    let done = start_edited(&Site::new(), "a", ": ", &[], "echo ran").finish();
    assert_eq!((done.code, done.text()), (1, ""));
    assert!(
        done.stderr.contains("no invitation arrived on stdin, which the command of the carrier must pass on")
    );
    assert!(
        done.stderr.contains("cannot start ranks on a: its carrier ended with exit status: 1"),
        "{done:?}"
    );
}

#[test]
fn what_a_command_prints_that_starts_an_agent_is_shown() {
    let site = Site::new();
    let carrier = "#!/bin/sh\necho Welcome; echo to you >&2; exec sh -c \"$1\"\n";
    let rsh = site.install_script(carrier, "carrier");
    let nodes = ["--hosts", "a", "-n", "1", "--rsh", rsh.to_str().unwrap(), "--carrier", "tcp:127.0.0.1"];
    let done = start_over(&site, &nodes, "echo ran").finish();
    assert_eq!(
        (done.code, done.text(), done.stderr.as_str()),
        (0, "ran\n", "iof: a: Welcome\niof: a: to you\n")
    );
}

#[test]
fn hostile_connections_change_nothing_for_agents_that_start_and_tools() {
    let site = Site::new();
    let gate = site.path().join("gate");
    let wait =
        format!("if [ $NODE = b ]; then while [ ! -e {} ]; do sleep 0.01; done; fi; cat", gate.display());
    let mut run = start_edited(&site, "a,b", &wait, &[], "echo $IOF_RANK; read line; echo $line");
    let to = invitation(&site, "b").address;
    let is_connected = |pid: &u32| has_variable(*pid, "NODE=a") && has_thread(*pid, "iof-down");
    wait_for("the first agent", || run.running("iof").iter().any(is_connected).then_some(()));

    // Too many that are silent, from another host and from this one. The oldest ones are closed.
    let mut silent: Vec<TcpStream> = (0..2 * MAX_DIALS).map(|_| connect_from([127, 0, 0, 2], to)).collect();
    silent.iter_mut().take(MAX_DIALS).for_each(assert_refused);
    // Garbage, an end, and parts of an answer.
    for number in 0..1000u32 {
        let mut stream = connect_from([127, 0, 0, 3], to);
        let _ = stream.write_all(&vec![number as u8; number as usize % 200]);
    }
    // An answer that was overheard, and one for a node that is not expected.
    let mut answers = Vec::new();
    let used = invitation(&site, "a");
    assert!(!prove(&used, &mut answers), "the token of a was used");
    let unknown = Invitation { node: 4711, ..invitation(&site, "b") };
    assert!(!prove(&unknown, &mut answers));
    for answer in answers {
        let mut stream = TcpStream::connect(to).unwrap();
        stream.write_all(&answer).unwrap();
        assert_refused(&mut stream);
    }
    // Some of them are there while the agent connects.
    let silent: Vec<TcpStream> = (0..MAX_DIALS).map(|_| connect_from([127, 0, 0, 2], to)).collect();
    fs::write(gate, "").unwrap();
    site.wait_for_ranks(2);
    drop(silent);
    let pull = site.pull(&["--ranks", "0"]);
    site.wait_for_pulls(0, "stdout", 1);
    writeln!(run.stdin(), "a line").unwrap();
    let (done, pulled) = (run.finish(), pull.finish());
    let mut lines: Vec<&str> = done.text().lines().collect();
    lines.sort_unstable();
    assert_eq!((done.code, lines, done.stderr.as_str()), (0, vec!["", "0", "1", "a line"], ""));
    assert_eq!((pulled.code, pulled.text()), (0, "0\na line\n"));
}

/// Passes connections on to an address. `streams` gets the stream to that address of each.
fn pass_on(proxy: TcpListener, to: SocketAddr, streams: Sender<TcpStream>) {
    thread::spawn(move || {
        for agent in proxy.incoming().map_while(Result::ok) {
            let Ok(front) = TcpStream::connect(to) else { continue };
            for (from, to) in [(&agent, &front), (&front, &agent)] {
                to.set_nodelay(true).unwrap();
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                });
            }
            if streams.send(front).is_err() {
                return;
            }
        }
    });
}

/// Makes hostile connections from these numbers of hosts, without tokens, with an answer that was overheard,
/// silent, with garbage, and with an end or a reset in the middle of an answer. The last silent ones stay.
fn attack(to: SocketAddr, numbers: Range<u32>, overheard: &[u8]) -> VecDeque<TcpStream> {
    let mut silent = VecDeque::new();
    for number in numbers {
        // Half of them are from one host, the others from 250.
        let host = if number % 2 == 0 { 2 } else { (number % 250) as u8 + 3 };
        let mut stream = connect_from([127, 0, 0, host], to);
        let part = overheard.len() / 2;
        let _ = match number % 5 {
            0 => stream.write_all(&[0; ANSWER]),
            1 => stream.write_all(overheard),
            2 => stream.write_all(&vec![number as u8; number as usize % 4096]),
            3 => stream.write_all(&overheard[..part]).and_then(|()| stream.shutdown(Shutdown::Write)),
            _ => {
                silent.push_back(stream);
                let _ = (silent.len() > 2 * MAX_DIALS).then(|| silent.pop_front());
                continue;
            }
        };
    }
    silent
}

#[test]
fn ten_thousand_hostile_connections_change_nothing_for_a_job_and_agents_that_connect_again() {
    let (site, proxy) = (Site::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    let edit = format!("sed 1s/.*/{}/", proxy.local_addr().unwrap());
    let options = ["--reattach", "60", "--stdin", "all", "--output", "rank"];
    let mut run = start_edited(&site, "a,b", &edit, &options, "echo ready; exec cat");
    let (streams, connected) = channel();
    let invited = invitation(&site, "a");
    pass_on(proxy, invited.address, streams);
    let (mut stdin, mut lines) = (run.stdin(), BufReader::new(run.stdout()).lines());
    let mut expect = |text: &str| {
        let mut found = [(); 2].map(|()| lines.next().unwrap().unwrap());
        found.sort_unstable();
        assert_eq!(found, [format!("[0]<stdout>: {text}"), format!("[1]<stdout>: {text}")]);
    };
    expect("ready");
    let pull = site.pull(&["--ranks", "1"]);
    site.wait_for_pulls(1, "stdout", 1);
    // That of further connections of the agent, for another challenge.
    let token = invited.token.next();
    let challenge = Challenge::new([0; 16]).bytes();
    let (overheard, _) = AwaitedConfirmation::new(&challenge, (invited.node, &token), [7; 16]).unwrap();
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", run.pid())).unwrap().count();
    let (before, memory) = (descriptors(), run.memory_kib());
    let attacks = [0, 1, 2, 3].map(|thread: u32| {
        let to = invited.address;
        thread::spawn(move || attack(to, thread * 2500..(thread + 1) * 2500, &overheard))
    });
    let (mut number, mut most) = (0, 0);
    while number < 200 || !attacks.iter().all(|attack| attack.is_finished()) {
        if number % 50 == 0 {
            connected.try_iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        }
        writeln!(stdin, "{number}").unwrap();
        expect(&number.to_string());
        (number, most) = (number + 1, most.max(descriptors()));
    }
    let silent = attacks.map(|attack| attack.join().unwrap());
    // Those of connections that replace others come on top.
    assert!(most <= before + MAX_DIALS + 8, "{before} descriptors before, {most} at most");
    let grown = run.memory_kib().saturating_sub(memory);
    assert!(grown < 4 << 10, "{grown} KiB more");
    wait_for("the end of silent connections", || (descriptors() <= before).then_some(()));
    drop((stdin, silent));
    let expected: String = (0..number).map(|number| format!("{number}\n")).collect();
    let pulled = pull.finish();
    assert_eq!((pulled.code, pulled.text()), (0, format!("ready\n{expected}").as_str()));
    assert_eq!((lines.count(), run.wait()), (0, 0));
}

#[test]
fn nothing_listens_when_all_agents_have_connected_and_none_may_do_so_again() {
    let site = Site::new();
    let mut run = start(&site, "a,b", &[], "echo ready; read line");
    run.stdout().read_exact(&mut [0; 12]).unwrap();
    let address = invitation(&site, "a").address;
    wait_for("the end of the listener", || {
        TcpStream::connect(address)
            .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
            .then_some(())
    });
    // The thread ends after its listener.
    wait_for("the end of its thread", || (!has_thread(run.pid(), "iof-dials")).then_some(()));
    drop(run.stdin());
    assert_eq!(run.wait(), 1);
}

#[test]
fn the_first_token_does_not_replace_the_connection_of_an_agent() {
    let site = Site::new();
    let mut run = start(&site, "a", &["--reattach", "60"], "echo ready; read line; echo $line");
    let mut stdout = run.stdout();
    stdout.read_exact(&mut [0; 6]).unwrap();
    assert!(!prove(&invitation(&site, "a"), &mut Vec::new()));
    writeln!(run.stdin(), "a line").unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), run.wait()), ("a line\n", 0));
}

/// Starts an agent for each of the hosts in its second argument, as one step of srun.
const ALL: &str = "#!/bin/sh\n\
    [ $1 -eq $(echo $2 | tr , '\\n' | wc -l) ] || exit 9\n\
    cat >$0.in\n\
    for host in $(echo $2 | tr , ' '); do NODE=$host SLURMD_NODENAME=$host.site sh -c \"$3\" <$0.in & done\n\
    wait\n";

/// Starts a rank on each of these hosts by one command.
fn start_at_once(site: &Site, hosts: &str, options: &[&str], script: &str) -> Process {
    let rsh = format!("{} %n %h", site.install_script(ALL, "all").display());
    let ranks = hosts.split(',').count().to_string();
    let nodes = ["--nspace", "demo", "--hosts", hosts, "-n", &ranks, "--rsh", &rsh];
    start_over(site, &[&nodes[..], &["--carrier", "tcp:127.0.0.1"], options].concat(), script)
}

#[test]
fn one_command_starts_the_agents_of_all_nodes() {
    let done =
        start_at_once(&Site::new(), "a,b,c", &["--output", "rank"], "echo on $NODE; exit $IOF_RANK").finish();
    let mut lines: Vec<&str> = done.text().lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.first(), Some(&"[0]<stdout>: on a"), "{done:?}");
    assert!(done.code == 1 || done.code == 2, "{done:?}");
    let site = Site::new();
    let script = "echo on $NODE";
    let done: Done =
        start_at_once(&site, "a,b,c", &["--reattach", "60", "--output", "rank"], script).finish();
    let mut lines: Vec<&str> = done.text().lines().collect();
    lines.sort_unstable();
    let expected = vec!["[0]<stdout>: on a", "[1]<stdout>: on b", "[2]<stdout>: on c"];
    assert_eq!((done.code, lines, done.stderr.as_str()), (0, expected, ""));
}

#[test]
fn a_command_for_all_nodes_that_fails_is_told_once_and_not_repeated() {
    let site = Site::new();
    let rsh = site.install_script("#!/bin/sh\necho once >>$0.starts; exit 255\n", "all");
    let (told, rsh) = (rsh.with_extension("starts"), format!("{} %n %h", rsh.display()));
    let nodes = ["--hosts", "a,b,c", "-n", "3", "--rsh", &rsh, "--carrier", "tcp:127.0.0.1"];
    let done = start_over(&site, &nodes, "true").finish();
    assert_eq!(done.code, 1);
    assert!(
        done.stderr.contains("cannot start ranks on a: its carrier ended with exit status: 255"),
        "{done:?}"
    );
    assert_eq!(fs::read_to_string(told).unwrap(), "once\n");
}

#[test]
fn the_end_of_an_agent_that_was_started_with_others_is_told_and_ends_no_other_one() {
    let site = Site::new();
    let script = "echo ready; [ $IOF_RANK = 0 ] || exec sleep 1000; read line; echo $line";
    let mut run = start_at_once(&site, "a,b", &["--kill-on-bad-exit=0"], script);
    let mut stdout = run.stdout();
    stdout.read_exact(&mut [0; 12]).unwrap();
    let stderr = iof_testing::pipes::collect(run.stderr());
    wait_for("the end of the start", || has_thread(run.pid(), "iof-job").then_some(()));
    send(agent_of(&run, "b"), Signal::SIGKILL);
    wait_for("the loss of b", || site.procs()?.iter().any(|proc| proc["state"] != "running").then_some(()));
    writeln!(run.stdin(), "a line").unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    let (code, errors) = (run.wait(), String::from_utf8(stderr.get()).unwrap());
    assert_eq!((rest.as_str(), code), ("a line\n", 1), "{errors}");
    let lost = "iof: job demo: node b is lost with rank 1: its connection has ended; of its unfinished output 6 bytes";
    assert!(errors.starts_with(lost), "{errors}");
}

#[test]
fn carriers_that_cannot_work_or_are_not_private_are_refused() {
    let nodes = ["--hosts", "a,b", "-n", "2"];
    let private = "is not an address of a private network, and the connections are plain text: choose another one \
                   with tcp:ADDRESS, or add --carrier-insecure";
    for (options, told) in [
        (&["--carrier", "tcp:8.8.8.8"][..], format!("--carrier: 8.8.8.8 {private}")),
        (&["--carrier", "tcp:[2001:db8::1]:70"], format!("--carrier: 2001:db8::1 {private}")),
        (
            &["--carrier", "tcp:192.0.2.1", "--carrier-insecure"],
            "--carrier: cannot listen at 192.0.2.1:0: Cannot assign requested address (os error 99)".into(),
        ),
        (
            &["--rsh", "srun -n%n -w %h sh -c"],
            "--rsh with %n starts all agents at once, which needs --carrier tcp: write a command for each host, or \
             add that option"
                .into(),
        ),
        (
            &["--rsh", "srun -n%n -w %h sh -c", "--carrier", "tcp", "--starts", "3"],
            "--starts has no effect: one command starts all agents; leave it out".into(),
        ),
    ] {
        let done = Process::start(iof().arg("run").args(nodes).args(options).arg("true")).finish();
        assert_eq!((done.code, done.stderr), (2, format!("iof: {told}\n")), "{options:?}");
    }
    let done = start_over(&Site::new(), &["--carrier", "tcp"], "true").finish();
    assert_eq!(done.stderr, "iof: --carrier needs nodes: write --hosts or --hostfile\n");
    for value in ["udp", "tcp:", "tcp:host", "tcp:0.0.0.0", "tcp:[::]:1", "tcp:1.2.3.4:99999"] {
        let done = start_over(&Site::new(), &["--hosts", "a", "--carrier", value], "true").finish();
        assert!(done.code == 2 && done.stderr.contains("for '--carrier"), "{done:?}");
    }
}
