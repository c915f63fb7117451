//! MPI programs on several nodes: ranks that speak PMI-1 as MPICH does, with an agent for each node that
//! `sh -c` starts on this one. Programs of real MPI libraries are in `.ci/mpi`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::io::{BufRead, BufReader, read_to_string};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::time::Duration;

use iof_testing::command::nodes::{agent_of, send};
use iof_testing::command::site::Site;
use iof_testing::process::{Done, Process};
use iof_testing::wait_for;
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, getsockname, setsockopt, socket, sockopt::ReuseAddr,
};

use crate::mpi::{CLIENT, SPAWNER, lines};

/// Starts a job named demo, whose ranks execute `script`, on hosts.
fn start(site: &Site, hosts: &str, options: &[&str], script: &str) -> Process {
    let nodes = ["--nspace", "demo", "--rsh", "env NODE=%h sh -c", "--hosts", hosts];
    site.run(&[&nodes, options].concat(), ["bash", "-c", &format!("{CLIENT}{script}")])
}

fn run(hosts: &str, options: &[&str], script: &str) -> Done {
    start(&Site::new(), hosts, options, script).finish()
}

#[test]
fn ranks_learn_what_ranks_of_other_nodes_have_put() {
    let script = r#"init; space; ask "cmd=put kvsname=$name key=card-$PMI_RANK value=of $PMI_RANK"; barrier
        ask "cmd=get kvsname=$name key=card-$(((PMI_RANK + 1) % PMI_SIZE))"
        echo "$PMI_RANK, $MPI_LOCALRANKID of $MPI_LOCALNRANKS: ${reply##*=}"; barrier; finalize"#;
    for (options, wanted) in [
        (&["-n", "3"][..], ["0, 0 of 2: of 1", "1, 1 of 2: of 2", "2, 0 of 1: of 0"]),
        (&["-n", "3", "--map-by", "node"], ["0, 0 of 2: of 1", "1, 0 of 1: of 2", "2, 1 of 2: of 0"]),
    ] {
        let done = run("a:2,b:1", options, script);
        assert_eq!((lines(&done), done.code), (wanted.to_vec(), 0), "{done:?}");
    }
}

#[test]
fn ranks_learn_which_of_them_share_a_node_and_one_name_of_their_space() {
    let script = r#"init; space; ask "cmd=get kvsname=$name key=PMI_process_mapping"; echo "$name $reply"; barrier; finalize"#;
    for (options, mapping) in [
        (&["-n", "4"][..], "(vector,(0,2,2))"),
        (&["-n", "4", "--map-by", "node"], "(vector,(0,2,1),(0,2,1))"),
        (&["-n", "3"], "(vector,(0,1,2),(1,1,1))"),
    ] {
        let done = run("a:2,b:2", options, script);
        let lines = lines(&done);
        let (name, reply) = lines[0].split_once(' ').unwrap();
        assert!(lines.iter().all(|line| *line == lines[0]) && name.starts_with("iof-"), "{done:?}");
        assert_eq!((reply, done.code), (&*format!("cmd=get_result rc=0 value={mapping}"), 0), "{done:?}");
    }
}

#[test]
fn an_abort_on_a_node_ends_the_ranks_of_all_nodes_with_its_code() {
    for kill in ["--kill-on-bad-exit=0", "--kill-on-bad-exit=1"] {
        let done =
            run("a,b,c", &["-n", "3", kill], "init; barrier; [ $PMI_RANK = 1 ] && abort 7; exec sleep 1000");
        let line = done.stderr.lines().next().unwrap_or_default();
        assert!(done.code == 7 && line.starts_with("iof: job demo: rank 1 (bash, pid "), "{done:?}");
        assert!(line.ends_with(" on b) called MPI_Abort with code 7"), "{done:?}");
        assert!(
            done.stderr.contains("terminated 2 other ranks (0,2) because rank 1 called MPI_Abort"),
            "{done:?}"
        );
    }
}

#[test]
fn an_exit_before_finalize_or_without_init_ends_the_ranks_of_all_nodes() {
    let done = run("a,b", &["-n", "2"], "init; [ $PMI_RANK = 1 ] && exit 0; barrier; finalize");
    assert!(done.code == 1 && done.stderr.contains("ended with exit code 0 before MPI_Finalize"), "{done:?}");
    for script in [
        "[ $PMI_RANK = 1 ] && exit 0; sleep 0.2; init; barrier; finalize",
        "[ $PMI_RANK = 1 ] && sleep 0.2 && exit 0; init; barrier; finalize",
    ] {
        let done = run("a,b", &["-n", "2"], script);
        let line = "job demo: rank 1 ended without MPI_Init, for which the other ranks wait";
        assert!(done.code == 1 && done.stderr.contains(line), "{script}: {done:?}");
    }
    let done = run("a,b", &["-n", "2"], "init; barrier; finalize; exit 0");
    assert_eq!((done.stderr.as_str(), done.code), ("", 0), "{done:?}");
}

#[test]
fn a_node_that_is_lost_ends_a_barrier_and_the_job() {
    let site = Site::new();
    let flag = site.path().join("there");
    let script = format!(
        "init; barrier; if [ $PMI_RANK = 2 ]; then echo >{}; exec sleep 1000; fi; barrier; echo $reply",
        flag.display()
    );
    let run = start(&site, "a:2,b", &["-n", "3"], &script);
    wait_for("the second barrier", || flag.exists().then_some(()));
    send(agent_of(&run, "b"), Signal::SIGKILL);
    let done = run.finish();
    assert!(done.code == 1 && done.stderr.contains("node b is lost with rank 2"), "{done:?}");
}

#[test]
fn ranks_of_two_nodes_that_put_one_key_with_different_values_end_the_job_with_a_line() {
    let script = r#"init; space; ask "cmd=put kvsname=$name key=same value=of $PMI_RANK"; barrier; finalize; exec sleep 1000"#;
    let done = run("a,b", &["-n", "2"], script);
    let told = done.stderr.contains("the value of key same of rank 0: duplicate_key")
        || done.stderr.contains("the value of key same of rank 1: duplicate_key");
    assert!(told && done.stderr.contains("ends the job, whose ranks can't exchange values"), "{done:?}");
    assert!(done.stderr.contains("because its ranks can't exchange values") && done.code != 0, "{done:?}");
    let script =
        r#"init; space; ask "cmd=put kvsname=$name key=same value=x"; barrier; echo "$reply"; finalize"#;
    let done = run("a,b", &["-n", "2"], script);
    assert_eq!((lines(&done), done.code), (vec!["cmd=barrier_out rc=0"; 2], 0), "{done:?}");
}

#[test]
fn values_pass_between_nodes_that_are_longer_than_a_message() {
    // Each of 10 ranks puts 200 values of 900 bytes: 9 times the limit of one message.
    let script = r#"init; space; printf -v long "%0900d" 0
        for key in {1..200}; do ask "cmd=put kvsname=$name key=$PMI_RANK-$key value=$long$PMI_RANK"; done; barrier
        ask "cmd=get kvsname=$name key=$((9 - PMI_RANK))-200"; echo "${#reply} ${reply: -1}"; finalize"#;
    let done = run("a:5,b:5", &["-n", "10"], script);
    let wanted: Vec<String> = (0..10).map(|rank| format!("927 {rank}")).collect();
    assert_eq!((lines(&done), done.code), (wanted.iter().map(String::as_str).collect(), 0), "{done:?}");
}

#[test]
fn ranks_of_different_nodes_find_the_names_that_they_publish() {
    let script = r#"init; ask "cmd=publish_name service=s$PMI_RANK port=port of $PMI_RANK"; barrier
        ask "cmd=lookup_name service=s$((1 - PMI_RANK))"; echo "$reply"; barrier
        ask "cmd=unpublish_name service=s$((1 - PMI_RANK))"; echo "$reply"
        ask "cmd=publish_name service=s$((1 - PMI_RANK)) port=x"; echo "$reply"; barrier; finalize"#;
    let done = run("a,b", &["-n", "2"], script);
    let mut found = lines(&done);
    found.retain(|line| line.starts_with("cmd=lookup_result") || line.contains("info=ok"));
    let wanted = [0, 1].map(|rank| format!("cmd=lookup_result info=ok rc=0 port=port of {rank}"));
    assert_eq!((found, done.code), (wanted.iter().map(String::as_str).collect(), 0), "{done:?}");
}

#[test]
fn the_time_limit_ends_a_barrier_that_a_rank_never_joins_and_a_line_names_its_node() {
    let script = "init; [ $PMI_RANK = 2 ] && exec sleep 1000; barrier; echo $reply; exec sleep 1000";
    for (hosts, ranks, line) in [
        ("a:2,b:2", "4", "job demo: a barrier or fence of MPI waits for ranks on b\n"),
        ("a:3,b,c", "5", "job demo: a barrier or fence of MPI waits for ranks on a\n"),
    ] {
        let done = run(hosts, &["-n", ranks, "--timeout", "2"], script);
        assert_eq!((done.text(), done.code), ("", 124), "{done:?}");
        assert!(done.stderr.contains(line) && done.stderr.contains("(--timeout)"), "{done:?}");
    }
}

#[test]
fn a_value_beyond_its_limit_is_refused_and_a_longer_line_ends_the_job_with_the_node_and_the_rank() {
    let script = |length| {
        format!(
            r#"init; space; [ $PMI_RANK = 0 ] || {{ printf -v long "%0{length}d" 0
            ask "cmd=put kvsname=$name key=k value=$long"; echo "$reply"; }}; barrier; finalize"#
        )
    };
    let done = run("a,b", &["-n", "2"], &script(960));
    let refused = "cmd=put_result rc=1 msg=invalid_key_or_value";
    assert_eq!((lines(&done), done.code, done.stderr.as_str()), (vec![refused], 0, ""));
    let done = run("a,b", &["-n", "2"], &script(20_000));
    let line = "b: the rank cannot use MPI any more (job demo, rank 1): a PMI line has more than 16384 bytes";
    assert!(done.code != 0 && done.stderr.contains(line), "{done:?}");
}

/// Runs a rank on two nodes that spawns a job as in [`SPAWNER`], with three ranks. Then the rank executes `after`.
/// Agents are started by the script `rsh`, for the host `$1` the command `$2`.
fn spawn(hosts: &str, program: &str, after: &str, rsh: &str) -> (Site, Process) {
    spawn_with(&[], hosts, [program, after], rsh)
}

fn spawn_with(more: &[&str], hosts: &str, [program, after]: [&str; 2], rsh: &str) -> (Site, Process) {
    let site = Site::new();
    let own = site.install_script(&format!("#!/bin/bash\ntrap '' USR1\n{CLIENT}{SPAWNER}"), "spawner");
    let rsh = site.install_script(
        &format!("#!/bin/bash\ncd {}\n{rsh}\nNODE=$1 exec sh -c \"$2\"", site.path().display()),
        "rsh",
    );
    let (own, rsh) = (own.to_str().unwrap(), format!("{} %h", rsh.display()));
    let options = ["--nspace", "demo", "--mpi", "pmi1", "--rsh", &rsh, "--hosts", hosts];
    let program = if program.is_empty() { own } else { program };
    let run = site.run(&[&options, more].concat(), [own, program, after, ""]);
    (site, run)
}

#[test]
fn a_job_that_a_rank_spawns_is_started_on_the_nodes_of_the_rank() {
    let (_site, run) = spawn("a:2,b:2", "", "until_started", "");
    let done = run.finish();
    let line = |host, rank, arg| {
        format!("demo-2 {rank} of 3: {arg}=a b in /, cmd=get_result rc=0 value=of 0 on {host}")
    };
    // They follow the rank that runs.
    let mut expected = vec!["cmd=spawn_result info=ok rc=0".to_owned()];
    expected.extend([line("a", 0, 1), line("b", 1, 2), line("b", 2, 2)]);
    assert_eq!((lines(&done), done.code), (expected.iter().map(String::as_str).collect(), 0), "{done:?}");
}

#[test]
fn a_spawned_job_listens_at_the_next_port_while_its_parent_has_that_of_the_carrier() {
    // Nothing else gets the port of a socket that is bound. One that listens may share it, because neither forbids it.
    let bound = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    setsockopt(&bound, ReuseAddr, &true).unwrap();
    bind(bound.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
    let port = getsockname::<SockaddrIn>(bound.as_raw_fd()).unwrap().port();
    let carrier = ["--carrier", &format!("tcp:127.0.0.1:{port}"), "--reattach", "20"];
    let (_site, run) = spawn_with(&carrier, "a:2,b:2", ["", "until_started"], "");
    let done = run.finish();
    assert_eq!((lines(&done).len(), done.code), (4, 0), "{done:?}");
}

#[test]
fn nodes_write_the_files_of_a_job_that_a_rank_spawns_and_one_that_fails_ends_the_jobs() {
    let site = Site::new();
    let run = |name: &str| {
        let output = format!("file={}/{name}:pattern:node", site.path().display());
        spawn_with(&["--output", &output], "a:2,b:2", ["", "until_started"], "").1.finish()
    };
    let read = |job, rank| fs::read_to_string(site.path().join(format!("{job}.{rank}.stdout"))).unwrap();
    let done = run("%j.%R.%c");
    assert_eq!((done.text(), done.stderr.as_str(), done.code), ("", "", 0));
    assert_eq!(read("demo", 0), "cmd=spawn_result info=ok rc=0\n");
    for (rank, host) in [(0, "a"), (1, "b"), (2, "b")] {
        let text = read("demo-2", rank);
        assert!(
            text.starts_with(&format!("demo-2 {rank} of 3: ")) && text.ends_with(&format!(" {host}\n")),
            "{text}"
        );
    }
    let done = run("of-all.%R.%c");
    assert!(
        done.code == 0
            && done.stderr.contains("the names of the output files do not contain that of the job")
    );
    symlink("/dev/full", site.path().join("full.demo-2.1.stdout")).unwrap();
    let done = run("full.%j.%R.%c");
    assert_eq!((done.text(), done.code), ("", 1), "{done:?}");
    assert!(done.stderr.contains("b: ") && done.stderr.contains("No space left on device"), "{done:?}");
}

#[test]
fn a_spawned_job_on_several_nodes_ends_with_a_parent_that_fails() {
    let (_site, run) = spawn("a:2,b:2", "", "exit 3", "");
    let done = run.finish();
    assert_eq!((lines(&done), done.code), (vec!["cmd=spawn_result info=ok rc=0"], 3), "{done:?}");
}

#[test]
fn none_of_a_spawned_job_is_started_if_a_node_cannot_and_the_spawner_gets_the_reason() {
    // The spawner runs on a.
    let no_b = "[ $1 = a ] || exit 9";
    for (hosts, program, rsh, reason) in [
        ("a:2,b:2", "", no_b, "cannot start ranks on b: its carrier ended"),
        ("a:1,b:3", "/missing", "", "b: program '/missing' not found"),
        ("a:1,b:3", "/etc/passwd", "", "rank 0"),
        ("a:1,b:3", "/etc/passwd", "", "Permission denied"),
        ("a:1,b:2", "", "", "4 ranks need as many slots, but --hosts has 3 slots"),
    ] {
        let (_site, run) = spawn(hosts, program, "", rsh);
        let done = run.finish();
        let line = lines(&done).concat();
        assert!(line.starts_with("cmd=spawn_result info=error rc=1 msg="), "{done:?}");
        assert!(line.contains(&reason.replace(' ', "_")), "{reason}: {done:?}");
        assert_eq!((done.code, lines(&done).len()), (0, 1), "{done:?}");
        assert!(done.stderr.contains("a: cannot start the job that a rank spawns"), "{done:?}");
    }
}

#[test]
fn a_line_tells_of_a_spawned_job_whose_start_is_late_and_a_signal_interrupts_it() {
    let second = "[ $1 = a ] && ! mkdir first 2>/dev/null && echo >there && exec sleep 1000";
    let (_site, mut run) = spawn("a:2,b:2", "", "", second);
    let mut line = String::new();
    let mut stderr = BufReader::new(run.stderr());
    stderr.read_line(&mut line).unwrap();
    assert_eq!(line, "iof: job demo-2: waiting for the agents of a, for at most 60s (--start-timeout)\n");
    send(run.pid(), Signal::SIGTERM);
    assert_eq!(
        (run.wait_up_to(Duration::from_secs(40)), read_to_string(run.stdout()).unwrap()),
        (143, String::new())
    );
}

#[test]
fn a_signal_during_the_start_of_a_job_that_a_rank_spawns_reaches_its_ranks_once_they_run() {
    let second =
        "[ $1 = a ] && ! mkdir first 2>/dev/null && echo >there && until [ -e go ]; do sleep 0.05; done";
    // The signal may end a rank that has not set its traps. SIGTERM follows from the end of the parent.
    let waits = "trap 'exit 0' USR1; trap 'echo lost; exit' TERM; while :; do sleep 0.1; done";
    let scripts = Site::new();
    let waits = scripts.install_script(&format!("#!/bin/bash\n{waits}\n"), "waits");
    let (site, run) = spawn("a:2,b:2", waits.to_str().unwrap(), "sleep 1", second);
    wait_for("the start to hang", || site.path().join("there").exists().then_some(()));
    send(run.pid(), Signal::SIGUSR1);
    run.wait_for_signals();
    fs::write(site.path().join("go"), "").unwrap();
    let done = run.finish();
    assert_eq!((lines(&done), done.code), (vec!["cmd=spawn_result info=ok rc=0"], 0), "{done:?}");
}
