//! `iof run --hosts`: ranks on several nodes, each with an agent that `sh -c` starts on this one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};

use iof_testing::command::nodes::{by_rank, run, start};
use iof_testing::command::site::{Site, iof};
use iof_testing::command::terminal::Terminal;
use iof_testing::process::{Done, Process};
use iof_testing::wait_for;
use nix::sys::signal::Signal;
use sha2::{Digest, Sha256};

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
fn the_line_of_each_rank_of_a_hundred_agents_arrives_once() {
    let hosts: Vec<String> = (0..100).map(|number| format!("n{number}:4")).collect();
    let done = run(&hosts.join(","), &["-n", "400"], "echo $IOF_RANK");
    // If the start takes 5 s, a line names the nodes that are waited for.
    let is_known = |line: &str| line.starts_with("iof: job demo: waiting for the ");
    assert!(done.code == 0 && done.stderr.lines().all(is_known), "{done:?}");
    let mut ranks: Vec<u32> = done.text().lines().map(|line| line.parse().unwrap()).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, (0..400).collect::<Vec<_>>());
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
    site.install_script(srun, "programs/srun");
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
    let words =
        |node| format!("iof: {node}: -N1 -n1 --overlap --cpu-bind=none --mpi=none -w {node} sh -c exec '");
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
fn stdin_goes_to_rank_0_or_to_all_ranks() {
    for (options, ranks) in [(&["-n", "3"] as &[&str], 1), (&["-n", "3", "--stdin", "all"], 3)] {
        let site = Site::new();
        // cat writes parts of lines, which must not be divided however slow the machine is.
        let mut run = start(&site, "a,b,c", &[options, &["--max-line-time", "1000"]].concat(), "cat");
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
fn long_lines_of_many_ranks_of_a_node_stay_whole() {
    const LINES: usize = 40;
    // 16 streams have bytes at the same time. The longest lines have 58 KiB.
    let script = format!(
        "letter=$(printf \\\\$(printf %o $((97 + IOF_RANK)))); n=0
         while [ $n -lt {LINES} ]; do head -c $((n * 1500 + 9)) /dev/zero | tr '\\0' $letter; echo; n=$((n + 1)); done"
    );
    let done = run("a:16", &["-n", "16", "--max-line-time", "1000"], &script);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    let mut next = [0usize; 16];
    for line in done.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let first = line[0];
        let number = &mut next[usize::from(first - b'a')];
        assert!(line.iter().all(|byte| *byte == first), "line {number} of {} is mixed", char::from(first));
        assert_eq!(line.len(), *number * 1500 + 9);
        *number += 1;
    }
    assert_eq!(next, [LINES; 16]);
}

#[test]
fn ranks_do_not_inherit_the_variables_of_the_launcher_that_started_their_agent() {
    let carrier = "env PMI_RANK=7 PMIX_NAMESPACE=srun.1 sh -c";
    let run = |options: &[&str]| {
        let options = [&["--hosts", "a", "--rsh", carrier], options].concat();
        Site::new().run_sh(&options, "echo $PMI_RANK$PMIX_NAMESPACE").finish()
    };
    // iof serves PMI-1.
    assert_eq!(run(&[]).text(), "0\n");
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
fn a_push_to_a_rank_without_open_stdin_is_refused_on_nodes_as_it_is_here() {
    for nodes in [&[][..], &["--hosts", "a:1,b:1", "--rsh", "sh -c"]] {
        let site = Site::new();
        let mut gate = site.gate("gate");
        let options = [nodes, &["-n", "2", "--stdin", "none"]].concat();
        let run = site.run_sh(&options, &format!("echo; : < {}", gate.path()));
        site.wait_for_bytes(1, "stdout", 1);
        let mut push = Process::start(site.iof("push").args(["--rank", "1"]));
        // It may have been refused.
        let _ = push.stdin().write_all(b"x");
        let done = push.finish();
        let told = "iof: nothing was pushed: rank 1: stdin was not left open (iof run --stdin-open ";
        assert!(done.code == 2 && done.stderr.starts_with(told), "{nodes:?}: {done:?}");
        gate.open();
        assert_eq!(run.wait(), 0);
    }
}

#[test]
fn a_tool_of_a_rank_cannot_push_to_the_stdin_of_the_command_on_nodes_as_here() {
    for nodes in [&[][..], &["--hosts", "a:1,b:1", "--rsh", "sh -c"]] {
        let site = Site::new();
        let script = "[ $IOF_RANK = 1 ] || exit 0; $IOF push --rank 1 </dev/null 2>&1; echo $?; cat";
        let mut command = site.iof("run");
        command.args(nodes).args(["-n", "2", "--stdin", "1", "sh", "-c", script]);
        let mut run = Process::start(command.env("IOF", iof().get_program()));
        let (mut stdin, mut stdout) = (run.stdin(), BufReader::new(run.stdout()));
        let told = read_lines(&mut stdout, 2);
        let expected = "iof: nothing was pushed: rank 1: reads the stdin of the command that started it ";
        assert!(told.starts_with(expected) && told.ends_with("\n2\n"), "{nodes:?}: {told}");
        stdin.write_all(b"typed\n").unwrap();
        drop(stdin);
        assert_eq!(read_lines(&mut stdout, 1), "typed\n");
        assert_eq!(run.wait(), 0);
    }
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

/// Reads one line of each rank.
fn read_lines(stdout: &mut impl BufRead, count: usize) -> String {
    let mut lines = String::new();
    for _ in 0..count {
        stdout.read_line(&mut lines).unwrap();
    }
    lines
}

#[test]
fn stdin_for_all_ranks_of_a_node_passes_its_edge_once() {
    const BYTES: usize = 4 << 20;
    let site = Site::new();
    let script = "wc -c; exec sleep 1000";
    let mut run = start(&site, "a:4,b:2", &["-n", "6", "--stdin", "all"], script);
    let mut stdin = run.stdin();
    stdin.write_all(&vec![b'x'; BYTES]).unwrap();
    drop(stdin);
    let mut stdout = BufReader::new(run.stdout());
    assert_eq!(read_lines(&mut stdout, 6), format!("{BYTES}\n").repeat(6));
    // What the front end has passed to write(2) and its relatives.
    let io = fs::read_to_string(format!("/proc/{}/io", run.pid())).unwrap();
    let written = io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap();
    let written: usize = written.parse().unwrap();
    assert!((2 * BYTES..3 * BYTES).contains(&written), "{written}");
    run.signal(Signal::SIGTERM);
    run.wait();
}

#[test]
fn stdin_for_all_ranks_waits_for_one_that_does_not_read_yet_and_for_none_that_has_ended() {
    let site = Site::new();
    let go = site.path().join("go");
    let wait = format!("until [ -e {} ]; do sleep 0.05; done", go.display());
    let script =
        format!("case $IOF_RANK in 1) exit 0 ;; 2) {wait} ;; esac; read line; echo begins; sha256sum");
    let mut run = start(&site, "a,b:2,c", &["-n", "4", "--stdin", "all"], &script);
    let input: String = (0..600_000).map(|number| format!("{number}\n")).collect();
    let sum = Sha256::digest(input.strip_prefix("0\n").unwrap());
    let line: String = sum.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "  -\n";
    let mut stdin = run.stdin();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let mut stdout = BufReader::new(run.stdout());
    assert_eq!(read_lines(&mut stdout, 2), "begins\n".repeat(2));
    fs::write(go, "").unwrap();
    let output = read_lines(&mut stdout, 4);
    assert_eq!(output.matches(&line).count(), 3, "{output}");
    writer.join().unwrap().unwrap();
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
        let stderr = iof_testing::pipes::collect(run.stderr());
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
    for (rank, host) in [(0, "a"), (1, "b"), (2, "b")] {
        terminal.wait_to_see("a stream", |picture| {
            let is_row = |line: &String| {
                line.split_whitespace().take(4).eq(["demo", &rank.to_string(), host, "stdout"])
            };
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
        (&["-o", "%h"] as &[&str], "%h or %N in the name of a file"),
        (&["-o", "%N"], "%h or %N in the name of a file"),
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
        "iof: 3 ranks need as many slots, but --hosts has 2 slots: write more, such as a:2,b:2\n"
    );
    let done = run("a,b", &["-n", "3", "--oversubscribe"], "echo $IOF_RANK");
    assert_eq!((done.code, done.text().lines().count()), (0, 3), "{done:?}");
}
