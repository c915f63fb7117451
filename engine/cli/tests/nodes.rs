//! `iof run --hosts`: ranks on several nodes, each with an agent that `sh -c` starts on this one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::ChildStdout;

use common::nodes::{agent_of, by_rank, send};
use common::process::{Done, Process};
use common::site::{Gate, Site, iof};
use common::terminal::Terminal;
use common::wait_for;
use iof_nodes::{HEADER, ToFrontEnd};
use nix::sys::signal::Signal;

/// Starts a job named demo over agents on `hosts`.
fn start(site: &Site, hosts: &str, options: &[&str], script: &str) -> Process {
    let nodes = ["--nspace", "demo", "--rsh", "env NODE=%h sh -c", "--hosts", hosts];
    site.run_sh(&[&nodes, options].concat(), script)
}

fn run(hosts: &str, options: &[&str], script: &str) -> Done {
    start(&Site::new(), hosts, options, script).finish()
}

#[test]
fn ranks_fill_the_slots_of_their_hosts_and_have_the_numbers_of_the_whole_job() {
    let done = run("a:2,b:2", &["-n", "3", "--output", "tag-detailed"], "echo $IOF_RANK of $IOF_NPROCS");
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    let mut lines: Vec<&str> = done.text().lines().collect();
    lines.sort_unstable();
    for (rank, (line, host)) in lines.iter().zip(["a", "a", "b"]).enumerate() {
        assert!(line.starts_with(&format!("[demo,{rank}][{host}:")), "{line}");
        assert!(line.ends_with(&format!("{rank} of 3")), "{line}");
    }
    assert_eq!(lines.len(), 3);
}

#[test]
fn the_pids_of_ranks_are_shown_although_their_nodes_start_at_different_times() {
    let done = run("a,b,c,d", &["-n", "4", "--output", "json"], "sleep 0.$IOF_RANK; echo x");
    let lines: Vec<&str> = done.text().lines().filter(|line| line.contains("x\\n")).collect();
    assert_eq!(lines.len(), 4, "{done:?}");
    assert!(lines.iter().all(|line| line.contains("\"pid\":") && !line.contains("\"pid\":null")), "{done:?}");
}

/// Returns the host of each rank, from the output of `--output tag-detailed`.
fn hosts_of(done: &Done) -> BTreeMap<u32, String> {
    let tagged = done.text().lines().map(|line| {
        let (rank, rest) = line.strip_prefix("[demo,").unwrap().split_once("][").unwrap();
        (rank.parse().unwrap(), rest.split(':').next().unwrap().to_owned())
    });
    tagged.collect()
}

fn named(hosts: &[(u32, &str)]) -> BTreeMap<u32, String> {
    hosts.iter().map(|(rank, host)| (*rank, (*host).to_owned())).collect()
}

#[test]
fn a_hostfile_lists_hosts_and_by_node_ranks_take_their_slots_in_turn() {
    let site = Site::new();
    let path = site.path().join("hosts");
    fs::write(&path, "# the nodes\na slots=3\n\nb:1 # small\nc\nc\n").unwrap();
    let path = path.to_str().unwrap();
    let run = |options: &[&str]| {
        let nodes = ["--nspace", "demo", "--rsh", "sh -c", "-n", "5", "--output", "tag-detailed"];
        site.run_sh(&[&nodes, options].concat(), "echo; [ $IOF_RANK != 4 ] || exit 3").finish()
    };
    let done = run(&["--hostfile", path, "--map-by", "node"]);
    assert_eq!(hosts_of(&done), named(&[(0, "a"), (1, "b"), (2, "c"), (3, "a"), (4, "c")]), "{done:?}");
    assert!(done.code == 3 && done.stderr.contains(" on c) ended with exit code 3"), "{done:?}");
    let done = run(&["-machinefile", path]);
    assert_eq!(hosts_of(&done), named(&[(0, "a"), (1, "a"), (2, "a"), (3, "b"), (4, "c")]), "{done:?}");
    fs::write(path, "a\nb slots=many\n").unwrap();
    let done = run(&["--hostfile", path]);
    let told =
        format!("iof: --hostfile {path}: line 2: unexpected 'slots=many': expected NAME, NAME:SLOTS or ");
    assert!(done.code == 2 && done.stderr.starts_with(&told), "{done:?}");
    let done = run(&[]);
    assert_eq!(
        (done.code, done.stderr.as_str()),
        (2, "iof: --rsh needs nodes: write --hosts or --hostfile\n")
    );
}

#[test]
fn in_an_allocation_of_several_nodes_ranks_run_on_all_of_them_by_srun() {
    let site = Site::new();
    let programs = site.path().join("programs");
    fs::create_dir(&programs).unwrap();
    // Prints its options to stderr, and runs the last word.
    let srun = "#!/bin/sh\nfor word; do :; done; echo \"$@\" | cut -d/ -f1 >&2; exec sh -c \"$word\"\n";
    fs::write(programs.join("srun"), srun).unwrap();
    fs::set_permissions(programs.join("srun"), Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let run = |nodes: &str, options: &[&str]| {
        let options = [&["--nspace", "demo", "-n", "3", "--output", "tag-detailed"], options].concat();
        let mut command = site.iof("run");
        command.args(options).args(["sh", "-c", "echo"]).env("PATH", &path);
        let variables = [("SLURM_JOB_NODELIST", nodes), ("SLURM_TASKS_PER_NODE", "2(x2)")];
        Process::start(command.envs(variables)).finish()
    };
    let done = run("n[1-2]", &[]);
    assert_eq!(hosts_of(&done), named(&[(0, "n1"), (1, "n1"), (2, "n2")]), "{done:?}");
    let mut lines: Vec<&str> = done.stderr.lines().collect();
    lines.sort_unstable();
    let words = |node| format!("-N1 -n1 --overlap --cpu-bind=none --mpi=none -w {node} sh -c exec '");
    assert_eq!(lines, [words("n1"), words("n2")]);
    // The user's choice precedes the allocation.
    let done = run("n[1-2]", &["--hosts", "localhost:3"]);
    assert!(done.code == 0 && done.stderr.is_empty() && !done.text().contains("n1"), "{done:?}");
    // Nodes of the allocation are reached by srun, however they are named.
    let done = run("n[1-2]", &["--hosts", "n2:3"]);
    assert_eq!(hosts_of(&done), named(&[(0, "n2"), (1, "n2"), (2, "n2")]), "{done:?}");
    assert_eq!(done.stderr.trim_end(), words("n2"));
    // A node needs no carrier if it is the only one.
    let done = run("n1", &["--rsh", "false"]);
    assert!(done.code == 0 && done.stderr.is_empty(), "{done:?}");
    let done = run("n[1-3]", &[]);
    let told = "iof: SLURM_JOB_NODELIST: SLURM_TASKS_PER_NODE is '2(x2)', which are not the slots of 3 nodes; write ";
    assert!(done.code == 2 && done.stderr.starts_with(told), "{done:?}");
    let done = run("n1", &[]);
    assert!(done.code == 0 && done.stderr.is_empty(), "{done:?}");
}

#[test]
fn ranks_on_other_nodes_have_the_variables_of_iof_except_those_of_a_host() {
    let run = |options: &[&str]| {
        let site = Site::new();
        let node = ["--hosts", "a", "--rsh", "env KEPT=node OWN=node SSH_TTY=node sh -c"];
        let mut command = site.iof("run");
        command.args(node).args(options).args(["sh", "-c", "echo $KEPT $OWN $SSH_TTY"]);
        let variables = [("KEPT", "front"), ("OWN", "front"), ("SSH_TTY", "front")];
        Process::start(command.envs(variables)).finish().text().to_owned()
    };
    assert_eq!(run(&[]), "front front node\n");
    assert_eq!(run(&["--host-env", "OWN"]), "front node node\n");
    assert_eq!(run(&["-x", "SSH_TTY", "-x", "KEPT=set"]), "set front front\n");
}

#[test]
fn a_program_that_is_linked_with_mpi_is_refused_on_several_nodes() {
    let site = Site::new();
    let compile = |file: &str, text: &str, options: &[&str]| {
        let source = site.path().join(format!("{file}.c"));
        fs::write(&source, text).unwrap();
        let mut cc = std::process::Command::new("cc");
        let cc = cc.current_dir(site.path()).args(["-o", file]).arg(source).args(options);
        cc.status().is_ok_and(|status| status.success())
    };
    if !compile("libmpi.so.12", "int MPI_Init(void) { return 0; }", &["-shared", "-fPIC"])
        || !compile(
            "program",
            "int main(void) { return 0; }",
            &["-Wl,--no-as-needed,-rpath,$ORIGIN", "libmpi.so.12"],
        )
    {
        println!("skipped: no C compiler");
        return;
    }
    let program = site.path().join("program");
    let run = |options: &[&str]| {
        let nodes = ["--hosts", "a,b", "-n", "2", "--rsh", "sh -c"];
        Process::start(site.iof("run").args(nodes).args(options).arg(&program)).finish()
    };
    let done = run(&[]);
    let told = "iof: MPI programs run on one node only: write --hosts localhost:2 for this node, or --mpi none for \
                ranks that are alone\n";
    assert_eq!((done.code, done.stderr.as_str()), (2, told));
    assert_eq!(run(&["--mpi", "none"]).code, 0);
}

#[test]
fn all_bytes_of_1_3_and_20_agents_arrive_once_and_in_order() {
    for (agents, ranks, lines) in [(1, 1, 100_000), (3, 6, 20_000), (20, 40, 2_000)] {
        let slots = ranks / agents;
        let hosts: Vec<String> = (0..agents).map(|number| format!("n{number}:{slots}")).collect();
        // Lines of 16 bytes, so that none is divided between two writes of seq(1).
        let count = format!("seq -f %015.0f {lines}");
        let script = format!("{count}; {count} >&2");
        let options = ["-n", &ranks.to_string(), "--output", "rank", "--no-forward", "stderr"];
        let done = run(&hosts.join(","), &options, &script);
        assert_eq!((done.code, done.stderr.as_str()), (0, ""));
        let output = by_rank(done.text());
        assert_eq!(output.len(), ranks);
        for lines_of_rank in output.values() {
            assert!(lines_of_rank.iter().zip(1..).all(|(line, number)| *line == format!("{number:015}")));
            assert_eq!(lines_of_rank.len(), lines);
        }
    }
}

#[test]
fn a_failed_rank_is_told_with_its_host_and_gives_the_exit_code() {
    let done = run("a,b", &["-n", "2", "--summary"], "[ $IOF_RANK = 0 ] || exit 7");
    assert_eq!(done.code, 7);
    let lines: Vec<&str> = done.stderr.lines().collect();
    assert!(lines[0].starts_with("iof: job demo: rank 1 (sh, pid "), "{done:?}");
    assert!(lines[0].ends_with(" on b) ended with exit code 7"), "{done:?}");
    assert!(
        lines[1].contains("exit code 0: 1 rank, exit code 7: 1 rank (1); 0 bytes forwarded, 0 lost"),
        "{done:?}"
    );
}

#[test]
fn a_killed_rank_ends_the_ranks_of_all_nodes() {
    let done = run("a,b,c", &["-n", "3"], "[ $IOF_RANK = 1 ] && kill -KILL $$; exec sleep 1000");
    assert_eq!(done.code, 137);
    let told = "iof: job demo: terminated 2 other ranks (0,2) because rank 1 failed (see --kill-on-bad-exit)";
    assert_eq!(done.stderr.lines().last(), Some(told));
}

#[test]
fn a_time_limit_ends_the_ranks_of_all_nodes() {
    let done = run("a,b", &["-n", "2", "--timeout", "0.5"], "exec sleep 1000");
    assert_eq!(done.code, 124, "{done:?}");
    let told = "iof: job demo: not finished after 0.5s (--timeout): terminating ranks 0-1\n";
    assert_eq!(done.stderr, told);
}

#[test]
fn stdin_goes_to_rank_0_or_to_all_ranks() {
    for (options, ranks) in [(&["-n", "3"] as &[&str], 1), (&["-n", "3", "--stdin", "all"], 3)] {
        let site = Site::new();
        let mut run = start(&site, "a,b,c", options, "cat");
        let input = "some line\n".repeat(50_000);
        let mut stdin = run.stdin();
        let (stdout, stderr) = run.collect();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        assert_eq!(run.wait(), 0, "{}", String::from_utf8_lossy(&stderr.get()));
        let output = stdout.get();
        assert_eq!(output.len(), ranks * input.len());
        assert!(output.chunks(10).all(|line| line == b"some line\n"));
    }
}

#[test]
fn a_signal_reaches_the_ranks_of_all_nodes() {
    let site = Site::new();
    let script = "trap 'echo got it; exit 3' TERM; echo ready; while :; do sleep 0.01; done";
    let mut run = start(&site, "a,b", &["-n", "2"], script);
    let mut stdout = BufReader::new(run.stdout());
    let mut line = String::new();
    for _ in 0..2 {
        stdout.read_line(&mut line).unwrap();
    }
    assert_eq!(line, "ready\nready\n");
    run.signal(Signal::SIGTERM);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "got it\ngot it\n");
    assert_eq!(run.wait(), 3);
}

#[test]
fn a_node_that_dies_is_told_with_figures_and_ends_the_job() {
    let site = Site::new();
    let script = "echo $IOF_RANK; exec sleep 1000";
    let mut run = start(&site, "a,b:2", &["-n", "3", "--output", "rank", "--summary"], script);
    let mut stdout = BufReader::new(run.stdout());
    let stderr = common::bytes::collect(run.stderr());
    let mut line = String::new();
    for _ in 0..3 {
        stdout.read_line(&mut line).unwrap();
    }
    send(agent_of(&run, "b"), Signal::SIGKILL);
    assert_eq!(run.wait(), 1);
    let stderr = String::from_utf8(stderr.get()).unwrap();
    let lines: Vec<&str> = stderr.lines().collect();
    let lost = "iof: job demo: node b is lost with ranks 1-2: its carrier ended with signal: 9 (SIGKILL); of its \
                unfinished output 4 bytes arrived, at least 0 are missing, and what";
    assert!(lines[0].starts_with(lost), "{stderr}");
    let ended = "iof: job demo: terminated 1 other rank (0) because rank 1 failed (see --kill-on-bad-exit)";
    assert_eq!(lines[1], ended, "{stderr}");
    let ranks = "ended by iof (SIGTERM): 1 rank (0), unknown exit status: 2 ranks (1-2); ";
    assert!(lines[2].contains(ranks), "{stderr}");
}

#[test]
fn a_node_that_does_not_answer_is_given_up_after_a_time_limit_or_two_interrupts() {
    let options = ["-n", "2", "--kill-wait", "0.1"];
    for timeout in [Some(["--timeout", "1"]), None] {
        let site = Site::new();
        let options: Vec<&str> = options.iter().chain(timeout.iter().flatten()).copied().collect();
        let mut run = start(&site, "a,b", &options, "echo ready; exec sleep 1000");
        let mut stdout = BufReader::new(run.stdout());
        let stderr = common::bytes::collect(run.stderr());
        let mut line = String::new();
        for _ in 0..2 {
            stdout.read_line(&mut line).unwrap();
        }
        send(agent_of(&run, "b"), Signal::SIGSTOP);
        if timeout.is_none() {
            run.signal(Signal::SIGINT);
            // A second one within 0.25 s counts as the same.
            std::thread::sleep(std::time::Duration::from_millis(300));
            run.signal(Signal::SIGINT);
        }
        let code = run.wait();
        let stderr = String::from_utf8(stderr.get()).unwrap();
        assert!(stderr.contains("node b is lost with rank 1: its agent does not answer; of its"), "{stderr}");
        assert_eq!(code, if timeout.is_some() { 124 } else { 130 }, "{stderr}");
    }
}

#[test]
fn a_start_that_hangs_ends_at_an_interrupt() {
    let site = Site::new();
    let path = site.path().join("carrier");
    fs::write(&path, "exec sleep 1000\n").unwrap();
    let run =
        site.run_sh(&["-n", "2", "--hosts", "a,b", "--rsh", &format!("sh {} %h", path.display())], "true");
    wait_for("the carriers", || (run.running("sleep").len() == 2).then_some(()));
    run.signal(Signal::SIGINT);
    assert_eq!(run.wait(), 130);
    wait_for("the end of the carriers", || run.running("sleep").is_empty().then_some(()));
}

#[test]
fn carriers_have_no_blocked_signals() {
    let site = Site::new();
    let path = site.path().join("carrier");
    // By the shell itself: it blocks signals while it starts a program.
    let script =
        "while read key value; do [ $key != SigBlk: ] || echo $value; done </proc/self/status >&2; exit 1\n";
    fs::write(&path, script).unwrap();
    let done = site.run_sh(&["--hosts", "a", "--rsh", &format!("sh {} %h", path.display())], "true").finish();
    assert_eq!(done.stderr.lines().next(), Some("0000000000000000"), "{done:?}");
}

/// Starts ranks on the nodes a and b. What the agent of b sends after it is ready arrives when the
/// gate is opened. Returns when the rank on a runs.
fn start_with_delay(site: &Site, script: &str, gate: &Gate) -> (Process, BufReader<ChildStdout>) {
    // A hello, and the message with the padding after it.
    let length = ToFrontEnd::Ready.frame().unwrap().len() + 2 * HEADER;
    let path = site.path().join("carrier");
    let delay = format!("{{ dd bs=1 count={length} 2>/dev/null; : < {}; exec cat; }}", gate.path());
    fs::write(&path, format!("[ $1 = a ] && exec sh -c \"$2\"; sh -c \"$2\" | {delay}\n")).unwrap();
    let carrier = format!("sh {} %h", path.display());
    let mut run = site.run_sh(&["--hosts", "a,b", "-n", "2", "--rsh", &carrier], script);
    let (mut stdout, mut line) = (BufReader::new(run.stdout()), String::new());
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (run, stdout)
}

/// Waits until no signal of a process is pending.
fn wait_for_signals(run: &Process) {
    wait_for("the signal to be taken", || {
        let status = fs::read_to_string(format!("/proc/{}/status", run.pid())).unwrap();
        status.lines().any(|line| line == "ShdPnd:\t0000000000000000").then_some(())
    });
}

#[test]
fn a_signal_while_some_nodes_have_started_their_ranks_is_for_the_ranks() {
    let site = Site::new();
    let (mut gate, ready) = (site.gate("gate"), site.path().join("ready"));
    let script = format!(
        "trap 'echo got it; exit 3' TERM; : > {}.$IOF_RANK; echo ready; while :; do sleep 0.01; done",
        ready.display()
    );
    let (run, mut stdout) = start_with_delay(&site, &script, &gate);
    wait_for("the rank on b", || ready.with_extension("1").exists().then_some(()));
    run.signal(Signal::SIGTERM);
    wait_for_signals(&run);
    gate.open();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    let mut lines: Vec<&str> = rest.lines().collect();
    lines.sort_unstable();
    assert_eq!((lines, run.wait()), (vec!["got it", "got it", "ready"], 3));
}

#[test]
fn two_signals_end_a_start_although_a_node_does_not_answer() {
    let site = Site::new();
    let gate = site.gate("gate");
    let (run, _stdout) = start_with_delay(&site, "echo ready; exec sleep 1000", &gate);
    run.signal(Signal::SIGTERM);
    wait_for_signals(&run);
    // A second one within 0.25 s counts as the same.
    std::thread::sleep(std::time::Duration::from_millis(300));
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait(), 143);
    wait_for("the ranks to end", || run.running("sleep").is_empty().then_some(()));
}

#[test]
fn ranks_do_not_inherit_the_variables_of_the_launcher_that_started_their_agent() {
    let carrier = "env PMI_RANK=7 PMIX_NAMESPACE=srun.1 sh -c";
    let run = |options: &[&str]| {
        let options = [&["--hosts", "a", "--rsh", carrier], options].concat();
        Site::new().run_sh(&options, "echo $PMI_RANK$PMIX_NAMESPACE").finish()
    };
    assert_eq!(run(&[]).text(), "\n");
    assert_eq!(run(&["--mpi", "none"]).text(), "7srun.1\n");
}

#[test]
fn a_node_takes_stdin_for_any_number_of_sets_of_ranks_one_after_the_other() {
    let site = Site::new();
    let run = start(&site, "a:70", &["-n", "70", "--stdin-open", "all"], "cat");
    site.wait_for_stream(69, "stdout", |_| true);
    for rank in 0..70 {
        let mut push = Process::start(site.iof("push").args(["--rank", &rank.to_string()]));
        push.stdin().write_all(b"x").unwrap();
        let done = push.finish();
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "rank {rank}");
    }
    let done = run.finish();
    assert_eq!((done.code, done.text().len()), (0, 70), "{done:?}");
}

#[test]
fn tools_tell_the_broken_streams_of_a_dead_node_from_complete_ones() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("echo $IOF_RANK; [ $IOF_RANK = 1 ] && exec sleep 1000; : < {}", gate.path());
    let options = ["-n", "2", "--output", "json", "--kill-on-bad-exit=0"];
    let mut run = start(&site, "a,b", &options, &script);
    let mut stdout = BufReader::new(run.stdout());
    let stderr = common::bytes::collect(run.stderr());
    let mut lines = String::new();
    for _ in 0..2 {
        stdout.read_line(&mut lines).unwrap();
    }
    let pull = site.pull(&["--output", "rank"]);
    site.wait_for_pulls(1, "stddiag", 1);
    send(agent_of(&run, "b"), Signal::SIGKILL);
    site.wait_for_stream(1, "stdout", |stream| stream.0["missing"] == 0);
    assert!(!site.stream(0, "stdout").unwrap().is_complete());
    gate.open();
    stdout.read_to_string(&mut lines).unwrap();
    assert_eq!(run.wait(), 1);
    let errors = String::from_utf8(stderr.get()).unwrap();
    assert!(errors.contains("node b is lost with rank 1"), "{errors}");
    // The stdout of rank 1, and its stderr and stddiag.
    for (output, count) in [(&lines, 1), (&errors, 2)] {
        let broken: Vec<&str> = output.lines().filter(|line| line.ends_with(",\"missing\":0}")).collect();
        assert_eq!(broken.len(), count, "{output}");
        assert!(broken.iter().all(|line| line.contains("\"rank\":1") && line.contains("\"host\":\"b\"")));
    }
    let done = pull.finish();
    let told = "iof: 3 streams are broken, because the nodes of their ranks were lost: at least 0 bytes at \
                their ends are missing\n";
    assert_eq!((done.code, done.stderr.as_str()), (1, told), "{done:?}");
    assert_eq!(by_rank(done.text()).len(), 2);
}

#[test]
fn stdin_goes_on_when_the_ranks_of_one_node_have_ended() {
    let site = Site::new();
    let script = "[ $IOF_RANK = 0 ] && exit 0; exec cat";
    let mut run = start(&site, "a,b", &["-n", "2", "--stdin", "all"], script);
    let mut stdin = run.stdin();
    let mut stdout = BufReader::new(run.stdout());
    let mut line = String::new();
    site.wait_for_state(0, "terminated");
    for text in ["hello\n", "world\n", "again\n"] {
        stdin.write_all(text.as_bytes()).unwrap();
        line.clear();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, text);
    }
    drop(stdin);
    assert_eq!(run.wait(), 0);
}

#[test]
fn with_drop_the_ranks_go_on_and_every_byte_is_written_or_counted_as_lost() {
    const LENGTH: usize = 64 << 20;
    for policy in ["newest", "oldest"] {
        let site = Site::new();
        let script = format!("head -c {LENGTH} /dev/zero; echo done > {}/done", site.path().display());
        let options = ["-n", "1", "--drop", policy, "--summary", "--quiet"];
        let mut run = start(&site, "a", &options, &script);
        let mut stdout = run.stdout();
        let stderr = common::bytes::collect(run.stderr());
        // The output is not read, and the rank ends all the same.
        wait_for("the rank to end", || site.path().join("done").exists().then_some(()));
        let mut output = Vec::new();
        stdout.read_to_end(&mut output).unwrap();
        assert_eq!(run.wait(), 0);
        let stderr = String::from_utf8(stderr.get()).unwrap();
        let summary = stderr.lines().find(|line| line.contains("summary")).unwrap();
        let number = |end: &str| {
            let before = summary.split_once(end).unwrap().0;
            before.rsplit(' ').next().unwrap().parse::<usize>().unwrap()
        };
        assert_eq!(number(" bytes forwarded"), output.len(), "{stderr}");
        assert_eq!(number(" lost") + output.len(), LENGTH, "{stderr}");
        assert!(output.len() < LENGTH, "{stderr}");
    }
}

#[test]
fn ranks_end_when_their_front_end_dies() {
    let site = Site::new();
    let mut run = start(&site, "a,b", &["-n", "2"], "echo ready; exec sleep 1000");
    let mut stdout = BufReader::new(run.stdout());
    let mut line = String::new();
    for _ in 0..2 {
        stdout.read_line(&mut line).unwrap();
    }
    assert_eq!(run.running("sleep").len(), 2);
    run.signal(Signal::SIGKILL);
    wait_for("the agents and their ranks to end", || (run.living().len() <= 1).then_some(()));
}

#[test]
fn a_reader_that_stops_holds_the_ranks_back_and_nothing_is_lost() {
    const LENGTH: usize = 32 << 20;
    let site = Site::new();
    let script = format!("head -c {LENGTH} /dev/zero");
    let mut run = start(&site, "a,b,c", &["-n", "3"], &script);
    let mut stdout = run.stdout();
    let mut first = [0];
    stdout.read_exact(&mut first).unwrap();
    // The output is not read. The ranks stop when the windows and caches are full.
    let mut before = BTreeMap::new();
    wait_for("the ranks to stop", || {
        let written: BTreeMap<u32, String> = run
            .running("head")
            .into_iter()
            .map(|pid| (pid, fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default()))
            .collect();
        std::thread::sleep(std::time::Duration::from_millis(200));
        let is_still = written.len() == 3 && written == before;
        before = written;
        is_still.then_some(())
    });
    // The front end has a cache of 1 MiB for each rank and a window of 1 MiB for each node, and
    // what is about to be delivered; an agent has its cache.
    assert!(run.memory_kib() < 48 << 10, "{} KiB", run.memory_kib());
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len() + 1, 3 * LENGTH);
    assert_eq!(run.wait(), 0);
}

#[test]
fn timings_contain_the_cost_of_all_agents() {
    let done = run("a,b", &["-n", "2", "--timings", "--backend", "epoll"], "echo");
    assert_eq!(done.code, 0, "{done:?}");
    for text in
        ["iof: timings: 2 agents, CPU of them together 0.", "iof: timings: backend of 2 agents: epoll\n"]
    {
        assert!(done.stderr.contains(text), "{done:?}");
    }
}

#[test]
fn queries_and_top_show_the_ranks_of_all_nodes() {
    let site = Site::new();
    let options = ["--nspace", "demo", "--rsh", "sh -c", "--hosts", "a,b:2", "-n", "3"];
    let run = site.run_sh(&options, "echo $IOF_RANK; exec sleep 1000");
    for rank in 0..3 {
        site.wait_for_bytes(rank, "stdout", 2);
    }
    let procs = site.procs().unwrap();
    let found: Vec<_> = procs.iter().map(|proc| (&proc["rank"], &proc["host"], &proc["state"])).collect();
    for (rank, host) in [(0, "a"), (1, "b"), (2, "b")] {
        let wanted = (&rank.into(), &host.into(), &"running".into());
        assert!(found.contains(&wanted), "{procs:?}");
    }
    let mut pids: Vec<u64> = procs.iter().filter_map(|proc| proc["pid"].as_u64()).collect();
    pids.sort_unstable();
    let mut sleeps = run.running("sleep");
    sleeps.sort_unstable();
    assert_eq!(pids, sleeps.into_iter().map(u64::from).collect::<Vec<_>>());
    let (terminal, top) = Terminal::start(&mut site.iof("top"), 24, 100);
    for rank in 0..3 {
        terminal.wait_to_see("a stream", |picture| {
            let is_row =
                |line: &String| line.split_whitespace().take(3).eq(["demo", &rank.to_string(), "stdout"]);
            picture.iter().any(is_row).then_some(())
        });
    }
    terminal.type_keys("q");
    assert_eq!(top.wait(), 0);
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait(), 143);
}

#[test]
fn options_that_do_not_work_with_hosts_are_refused_by_name() {
    for (option, name) in [
        (&["--mpi", "pmi1"] as &[&str], "--mpi pmi1"),
        (&["--mpi", "pmix"], "--mpi pmix"),
        (&["-o", "%h"], "%h or %N in the name of a file"),
    ] {
        let done = run("a", option, "echo started >&2");
        let told = format!("iof: {name} does not work on several nodes yet: ");
        assert!(done.code == 2 && done.stderr.starts_with(&told), "{done:?}");
        assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
    }
    for names in ["A=1", "A,B", "A*", ""] {
        let done = run("a", &["--host-env", names], "echo started >&2");
        assert!(done.code == 2 && done.stderr.contains("--host-env"), "{names}: {done:?}");
    }
    let done = run("a,b", &["-n", "3"], "echo started >&2");
    assert_eq!(done.code, 2);
    assert_eq!(
        done.stderr,
        "iof: 3 ranks need as many slots, but --hosts has 2 slots: write more, such as --hosts a:2,b:2\n"
    );
}

#[test]
fn no_rank_starts_if_one_node_cannot_start_its_ranks() {
    let site = Site::new();
    let nodes =
        ["--rsh", "sh -c", "--hosts", "a,b", "-n", "1", "echo", "started", ":", "-n", "1", "/no/such"];
    let done = Process::start(site.iof("run").args(nodes)).finish();
    assert_eq!((done.code, done.text()), (2, ""), "{done:?}");
    assert!(done.stderr.starts_with("iof: b: ") && done.stderr.contains("/no/such"), "{done:?}");
    let by = |rsh| site.run_sh(&["--hosts", "a", "--rsh", rsh], "true").finish();
    let done = by("/no/such");
    assert!(done.code == 2 && done.stderr.contains("cannot start an agent on a: "), "{done:?}");
    let done = by("false");
    assert_eq!(done.code, 1);
    assert_eq!(done.stderr, "iof: cannot start ranks on a: its carrier ended with exit status: 1\n");
}

#[test]
fn an_agent_that_speaks_wrongly_is_cut_off() {
    let site = Site::new();
    let path = site.path().join("stranger");
    fs::write(&path, "#!/bin/sh\necho Welcome to this node, which greets its users; exec cat\n").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    let options = ["--hosts", "a", "--rsh", path.to_str().unwrap()];
    let done = site.run_sh(&options, "true").finish();
    assert_eq!(done.code, 1);
    let told = "iof: cannot start ranks on a: its agent is cut off: unknown kind of frame 87\n";
    assert_eq!(done.stderr, told);
}

#[test]
fn an_agent_cuts_off_a_front_end_that_speaks_wrongly() {
    let mut agent = Process::start(iof().arg("agent"));
    let mut stdin = agent.stdin();
    stdin.write_all(&[9; 32]).unwrap();
    let done = agent.finish();
    assert_eq!(done.code, 1, "{done:?}");
    assert_eq!(done.stderr, "iof: the front end is cut off: unknown kind of frame 9\n");
}

#[test]
fn iof_kill_signals_all_or_some_ranks_on_other_nodes() {
    let site = Site::new();
    let script = "trap 'echo got it' USR1; trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let options = ["-n", "3", "--output", "rank", "--no-forward", "stderr"];
    let mut run = start(&site, "a:2,b:1", &options, script);
    let mut stdout = BufReader::new(run.stdout());
    let mut lines = |count: usize| {
        let mut lines = Vec::new();
        for _ in 0..count {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            lines.push(line);
        }
        lines.sort_unstable();
        lines.concat()
    };
    lines(3);
    let kill = |words: &[&str]| Process::start(site.iof("kill").args(words)).finish();
    let done = kill(&["demo", "USR1"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    assert_eq!(lines(3), "[0]<stdout>: got it\n[1]<stdout>: got it\n[2]<stdout>: got it\n");
    assert_eq!(kill(&["demo", "USR1", "--rank", "1"]).code, 0);
    assert_eq!(lines(1), "[1]<stdout>: got it\n");
    let done = kill(&["demo", "--rank", "7"]);
    assert_eq!((done.code, done.stderr.as_str()), (1, "iof: no selected rank of job demo is running\n"));
    assert_eq!(kill(&["demo"]).code, 0);
    assert_eq!(run.wait(), 0);
}

#[test]
fn the_line_about_a_failed_rank_follows_its_last_output() {
    let done = run("a:2,b:2", &["-n", "4"], "seq 20000 >&2; exit 3");
    assert_eq!(done.code, 3, "{done:?}");
    let lines: Vec<&str> = done.stderr.lines().collect();
    let first = lines.iter().position(|line| line.starts_with("iof: job demo: rank ")).unwrap();
    assert!(lines[..first].contains(&"20000"), "{}", lines[first]);
    for line in lines.iter().filter(|line| line.starts_with("iof: ")) {
        assert!(line.contains(") ended with exit code 3") || line.contains("terminated"), "{line}");
    }
}
