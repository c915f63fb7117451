//! The effects that tools and strangers can have on a run that serves tools of PMIx: every user of
//! the host can connect to the ports of `iof run` and of libpmix.

use std::collections::BTreeSet;
use std::io::{BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use super::embedders::{IOF, embedders};
use super::{Place, TOOL, for_each_place, lines, read_rest, read_until};
use iof_pmix_server::limits::{MAX_PMIX_TOOLS, PMIX_TOOL_HANDSHAKE, PMIX_TOOL_LINGER};
use iof_testing::command::site::{Gate, Site};
use iof_testing::process::Process;
use iof_testing::{wait_for, wait_up_to};
use nix::sys::signal::Signal;

/// The name of the processes that serve tools.
const SERVER: &str = "iof-pmix-tool";
/// The time beyond a limit after which a process is taken not to have noticed it.
const LATE: Duration = Duration::from_secs(40);

/// Returns the process that serves the only tool.
fn server_of_tool(run: &Process) -> u32 {
    wait_for("one server of a tool", || match run.running(SERVER)[..] {
        [server] => Some(server),
        _ => None,
    })
}

fn wait_until_gone(run: &Process, pid: u32, limit: Duration) {
    let gone = || (!run.running(SERVER).contains(&pid)).then_some(());
    wait_up_to(limit + LATE, "the end of the tool's server", gone);
}

/// Returns the port at which a process listens.
fn port_of(pid: u32) -> u16 {
    wait_for("a port", || {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        let targets = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        let sockets: BTreeSet<PathBuf> = targets.collect();
        rows().find_map(|row| {
            // Its state is LISTEN.
            let is_its = row[3] == "0A" && sockets.contains(Path::new(&format!("socket:[{}]", row[9])));
            is_its.then(|| port(&row[1]))
        })
    })
}

/// Returns the fields of the kernel's table of sockets.
fn rows() -> impl Iterator<Item = Vec<String>> {
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let rows: Vec<Vec<String>> =
        table.lines().skip(1).map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
    rows.into_iter()
}

fn port(address: &str) -> u16 {
    u16::from_str_radix(address.split_once(':').unwrap().1, 16).unwrap()
}

/// Returns whether a socket is connected to a port.
fn has_client(of: u16) -> bool {
    rows().any(|row| row[3] == "01" && port(&row[2]) == of)
}

/// Starts a tool that attaches to another port than the run's own.
fn stranger(place: &Place, port: u16, directory: &Path) -> Process {
    for path in place.rendezvous_paths() {
        let text = fs::read_to_string(&path).unwrap();
        let (first, rest) = text.split_once('\n').unwrap();
        let (uri, _) = first.rsplit_once(':').unwrap();
        fs::write(directory.join(path.file_name().unwrap()), format!("{uri}:{port}\n{rest}")).unwrap();
    }
    place.start_in(directory, TOOL.as_ref().unwrap(), "nspace:demo", ["namespaces"])
}

/// Returns the processor time of a process in seconds.
fn cpu(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    // utime and stime, in units of 10 ms (USER_HZ).
    let ticks = |index: usize| fields[index].parse::<f64>().unwrap();
    (ticks(11) + ticks(12)) / 100.0
}

/// Returns the script of a rank that writes a line, 50 MB after `before` is open, and ends after
/// `after` is.
fn writer(before: &Gate, after: &Gate) -> String {
    format!("echo; : < {}; head -c 50000000 /dev/zero; : < {}", before.path(), after.path())
}

/// Attaches a tool that reads one line of a [`writer`], and nothing after `gate` is open, until its
/// socket is full. Keep its stdout as well: it may still write that its request was granted.
fn stall_tool(place: &Place, gate: &mut Gate) -> (Process, BufReader<ChildStdout>) {
    let mut tool = place.tool(["pull", "demo", "all", "2", "stall"]);
    let mut output = BufReader::new(tool.stdout());
    read_until(&mut output, "stalled");
    gate.open();
    let file = place.rendezvous_file().unwrap();
    let port: u16 = file.lines().next().unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
    let is_full = |row: &[String]| port == self::port(&row[1]) && !row[4].starts_with("00000000");
    wait_for("a full socket", || rows().any(|row| is_full(&row)).then_some(()));
    (tool, output)
}

#[test]
fn the_server_of_a_stalled_tool_ends_with_the_engine_of_an_embedder_that_lives_on() {
    for_each_place(|place| {
        for (index, embedder) in embedders() {
            let mut before = place.site.gate(&format!("before-{index}"));
            let mut after = place.site.gate(&format!("after-{index}"));
            let mut command = Command::new(embedder);
            command.args([IOF, "sh", "-c", &writer(&before, &after)]);
            let mut run = place.start_launcher(command.env("PMIX_SERVER_TMPDIR", place.site.path()));
            let stdin = run.stdin();
            let (output, errors) = run.collect();
            let (_tool, _its_output) = stall_tool(place, &mut before);
            let server = server_of_tool(&run);
            after.open();
            // The embedder has no engine after the end of its job.
            wait_until_gone(&run, server, PMIX_TOOL_LINGER);
            assert_eq!(run.exit_code(), None);
            drop(stdin);
            assert_eq!(run.wait(), 0, "{:?}", errors.get());
            drop(output);
        }
    });
}

#[test]
fn the_server_of_a_tool_that_stopped_reading_sleeps_and_ends_with_the_run() {
    for_each_place(|place| {
        let (mut before, mut after) = (place.site.gate("before"), place.site.gate("after"));
        let mut run = place.run(&[], &writer(&before, &after));
        let (output, errors) = run.collect();
        let (_tool, _its_output) = stall_tool(place, &mut before);
        let server = server_of_tool(&run);
        wait_for("the server to sleep", || {
            let used = cpu(server);
            thread::sleep(Duration::from_secs(1));
            (cpu(server) - used < 0.1).then_some(())
        });
        after.open();
        assert_eq!((run.wait(), output.get().len()), (0, 50_000_001), "{:?}", errors.get());
        // The tool still reads nothing.
        wait_until_gone(&run, server, PMIX_TOOL_LINGER);
    });
}

#[test]
fn a_stranger_at_the_server_of_a_tool_ends_it_and_harms_nothing_else() {
    for_each_place(|place| {
        let mut gate = place.site.gate("gate");
        let run = place.run(&[], &format!(": < {}", gate.path()));
        let mut tool = place.tool(["end", "demo"]);
        let mut output = BufReader::new(tool.stdout());
        read_until(&mut output, "waiting");
        let server = server_of_tool(&run);
        let elsewhere = Site::new();
        let refused = stranger(place, port_of(server), elsewhere.path()).finish();
        assert!(refused.code != 0 && !refused.text().contains("attached"), "{refused:?}");
        wait_until_gone(&run, server, Duration::ZERO);
        assert!(read_rest(&mut output).contains("lost connection"));
        assert_eq!(lines(&place.tool(["namespaces"]).finish()), ["attached", "demo"]);
        gate.open();
        assert_eq!(run.finish().code, 0);
    });
}

#[test]
fn a_silent_connection_to_the_server_of_a_tool_does_not_block_it_for_ever() {
    for_each_place(|place| {
        let (mut before, stop) = (place.site.gate("before"), place.site.path().join("stop"));
        // Output until then, because libpmix may accept the connection after the first line.
        let lines = format!("until [ -e {} ]; do echo a; sleep 0.1; done", stop.display());
        let script = format!(": < {}; {lines}; echo b", before.path());
        let run = place.run(&[], &script);
        let mut tool = place.tool(["pull", "demo", "all", "2", "count"]);
        let mut output = BufReader::new(tool.stdout());
        read_until(&mut output, "pulled");
        let server = server_of_tool(&run);
        // libpmix waits for its first bytes and does nothing else meanwhile.
        let silent = TcpStream::connect((Ipv4Addr::LOCALHOST, port_of(server))).unwrap();
        before.open();
        wait_until_gone(&run, server, iof_pmix_server::MAX_CALL_WAIT);
        assert!(read_rest(&mut output).contains("lost connection"));
        drop(silent);
        fs::write(&stop, "").unwrap();
        let done = run.finish();
        assert!(done.code == 0 && done.text().trim_start_matches("a\n") == "b\n", "{done:?}");
    });
}

#[test]
fn connections_without_a_tool_make_place_and_are_told_ten_times_at_most() {
    if TOOL.is_none() {
        return;
    }
    let place = Place { site: Site::new(), server: None, tools: None };
    let mut gate = place.site.gate("gate");
    let run = place.run(&[], &format!(": < {}", gate.path()));
    let file = place.rendezvous_file().unwrap();
    let address = file.lines().next().unwrap().rsplit_once("//").unwrap().1;
    let connect = || TcpStream::connect(address).unwrap();
    let idle: Vec<TcpStream> = (0..MAX_PMIX_TOOLS).map(|_| connect()).collect();
    wait_for("their servers", || (run.running(SERVER).len() == MAX_PMIX_TOOLS).then_some(()));
    for _ in 0..20 {
        let mut refused = connect();
        // It may be closed already.
        let _ = refused.write_all(b"x");
        let closed = || refused.peek(&mut [0]).map_or(Some(()), |count| (count == 0).then_some(()));
        wait_for("the end of a refused connection", closed);
    }
    let none = || run.running(SERVER).is_empty().then_some(());
    wait_up_to(PMIX_TOOL_HANDSHAKE + LATE, "the end of the servers", none);
    assert_eq!(lines(&place.tool(["namespaces"]).finish()), ["attached", "demo"]);
    drop(idle);
    gate.open();
    let done = run.finish();
    let warnings = done.stderr.matches("a tool of PMIx cannot attach").count();
    assert_eq!((done.code, warnings), (0, 10), "{}", done.stderr);
}

#[test]
fn connections_of_another_user_are_refused_many_at_a_time() {
    const SCRIPT: &str = "for n in {1..200}; do exec {fd}<>/dev/tcp/127.0.0.1/$0; fds+=($fd); done
        for fd in ${fds[@]}; do read -u $fd; done; exit 0";
    if TOOL.is_none() || !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can connect as another user");
        return;
    }
    let place = Place { site: Site::new(), server: None, tools: None };
    let mut gate = place.site.gate("gate");
    let run = place.run(&[], &format!(": < {}", gate.path()));
    let file = place.rendezvous_file().unwrap();
    let port = file.lines().next().unwrap().rsplit_once(':').unwrap().1;
    let since = Instant::now();
    let start = |_| {
        let mut shell = Command::new("bash");
        shell.args(["-c", SCRIPT, port]).uid(65534).stderr(Stdio::null()).spawn().unwrap()
    };
    let others: Vec<Child> = (0..10).map(start).collect();
    for mut other in others {
        assert!(other.wait().unwrap().success());
    }
    // One by one, with a pause of 10 ms after each, they would take 20 s.
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
    assert_eq!(lines(&place.tool(["namespaces"]).finish()), ["attached", "demo"]);
    gate.open();
    assert_eq!(run.finish().code, 0);
}

#[test]
fn tools_cannot_join_the_server_of_the_ranks() {
    for_each_place(|place| {
        let mut gate = place.site.gate("gate");
        let tool = TOOL.as_ref().unwrap().to_str().unwrap();
        let run = place.run(&[], &format!("env; : < {}; exec {tool} rank", gate.path()));
        place.site.wait_for_bytes(0, "stdout", 1);
        let port = port_of_ranks(&run);
        let elsewhere = Site::new();
        let refused = stranger(place, port, elsewhere.path());
        wait_for("the connection", || has_client(port).then_some(()));
        // A rank that connects later is served.
        gate.open();
        let done = run.finish();
        assert!(done.code == 0 && done.text().ends_with("\nrank\n"), "{done:?}");
        let refused = refused.finish();
        assert!(refused.code != 0 && !refused.text().contains("attached"), "{refused:?}");
    });
}

/// Returns the port of the server of the ranks, which is not that for tools.
fn port_of_ranks(run: &Process) -> u16 {
    let environments =
        run.living().into_iter().filter_map(|pid| fs::read(format!("/proc/{pid}/environ")).ok());
    let texts = environments.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let uris = texts.filter_map(|text| {
        let found = text.split('\0').find(|variable| variable.starts_with("PMIX_SERVER_URI"))?;
        found.rsplit_once(':')?.1.parse().ok()
    });
    uris.into_iter().next().unwrap()
}

#[test]
fn what_a_killed_run_has_left_is_removed_by_the_next_one() {
    if TOOL.is_none() {
        return;
    }
    let place = Place { site: Site::new(), server: None, tools: None };
    let killed = place.run(&[], "sleep 1000");
    let left = place.rendezvous_paths();
    killed.signal(Signal::SIGKILL);
    killed.wait();
    assert!(left.iter().all(|path| path.exists()));
    let mut gate = place.site.gate("gate");
    let run = place.run(&[], &format!(": < {}", gate.path()));
    wait_for("the removal of the files", || (!left.iter().any(|path| path.exists())).then_some(()));
    gate.open();
    assert_eq!(run.finish().code, 0);
}
