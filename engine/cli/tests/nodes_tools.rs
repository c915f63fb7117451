//! Tools on the nodes of an `iof run --hosts`: the sockets of its agents. A carrier gives each node a
//! directory of its own by TMPDIR.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use iof_testing::command::nodes::agent_of;
use iof_testing::command::site::{Site, found, iof, program};
use iof_testing::process::{Done, Process};
use iof_testing::wait_for;
use nix::unistd::geteuid;

/// The nodes a and b, and the front end.
struct Nodes(Site);

impl Nodes {
    fn new() -> Nodes {
        let site = Site::new();
        for name in ["a", "b", "front"] {
            fs::create_dir(site.path().join(name)).unwrap();
        }
        Nodes(site)
    }

    /// Starts a job named demo with two ranks on a and one on b. `TMPDIR` of the ranks is that of
    /// their node.
    fn start(&self, options: &[&str], script: &str) -> Process {
        let carrier = format!("env NODE=%h TMPDIR={}/%h sh -c", self.0.path().display());
        let mut command = self.iof("front", "run");
        command.args(["--rsh", &carrier, "--hosts", "a:2,b", "-n", "3", "--host-env", "TMPDIR"]);
        Process::start(command.args(["--nspace", "demo"]).args(options).args(["sh", "-c", script]))
    }

    /// Returns `iof COMMAND` as a user of this node runs it.
    fn iof(&self, node: &str, command: &str) -> Command {
        let mut iof = iof();
        iof.arg(command).env("TMPDIR", self.0.path().join(node));
        iof
    }

    fn run(&self, node: &str, command: &str, options: &[&str]) -> Done {
        Process::start(self.iof(node, command).args(options)).finish()
    }

    /// Returns the directory of the engines of a node.
    fn directory(&self, node: &str) -> PathBuf {
        self.0.path().join(node).join(format!("iof-{}", geteuid()))
    }

    /// Returns the names of the files of engines on a node, without the lock.
    fn files(&self, node: &str) -> Vec<String> {
        let files = fs::read_dir(self.directory(node)).into_iter().flatten();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name.starts_with("iof.")).collect();
        names.sort();
        names
    }

    /// Returns the ranks that `iof query procs` on a node shows.
    fn ranks(&self, node: &str) -> Vec<u64> {
        let done = self.run(node, "query", &["procs", "--json"]);
        assert_eq!(done.code, 0, "{done:?}");
        let procs = found(&done).remove(0);
        procs.as_array().unwrap().iter().map(|proc| proc["rank"].as_u64().unwrap()).collect()
    }
}

/// Reads one line of each of three ranks.
fn wait_for_lines(run: &mut Process) -> BufReader<std::process::ChildStdout> {
    let mut stdout = BufReader::new(run.stdout());
    for _ in 0..3 {
        stdout.read_line(&mut String::new()).unwrap();
    }
    stdout
}

#[test]
fn tools_on_a_node_reach_the_engine_of_its_agent() {
    let nodes = Nodes::new();
    let mut go = nodes.0.gate("go");
    let script = format!("echo rank $IOF_RANK; : <{}; echo end $IOF_RANK", go.path());
    let mut run = nodes.start(&[], &script);
    let _stdout = wait_for_lines(&mut run);
    assert_eq!(
        (nodes.ranks("front"), nodes.ranks("a"), nodes.ranks("b")),
        (vec![0, 1, 2], vec![0, 1], vec![2])
    );
    for (node, host) in [("a", "a"), ("b", "b")] {
        let agent = agent_of(&run, host);
        let ps = nodes.run(node, "ps", &[]);
        let row = ps.text().lines().find(|line| line.contains(" demo ")).unwrap();
        assert!(row.starts_with(&format!("{agent} (agent)")), "{row}");
        let socket = nodes.directory(node).join(format!("iof.{}.agent.{agent}", host_name()));
        assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(nodes.directory(node)).unwrap().permissions().mode() & 0o777, 0o700);
    }
    // By the only engine, by the name of the job, and by its pid.
    let agent = agent_of(&run, "a").to_string();
    let pulls = [["--output", "tag", "--nspace", "demo"], ["--output", "tag", "--pid", &agent]];
    let pulls = pulls.map(|options| Process::start(nodes.iof("a", "pull").args(options)));
    let attached = || {
        let done = nodes.run("a", "query", &["stats", "--json"]);
        // Each reads three channels of two ranks.
        (done.text().matches("iof pull").count() >= 12).then_some(())
    };
    wait_for("the pulls", attached);
    go.open();
    for pull in pulls {
        let done = pull.finish();
        let mut lines: Vec<&str> = done.text().lines().collect();
        lines.sort_unstable();
        let of = |rank, line| format!("[demo,{rank}]<stdout>: {line} {rank}");
        assert_eq!(lines, [of(0, "end"), of(0, "rank"), of(1, "end"), of(1, "rank")], "{done:?}");
        assert_eq!(done.code, 0, "{done:?}");
    }
    assert_eq!(run.wait(), 0);
    wait_for("the sockets to be removed", || {
        ["a", "b", "front"].iter().all(|node| nodes.files(node).is_empty()).then_some(())
    });
}

/// Returns the output of a pull, which is the only one of its ranks.
fn lines_of(pull: Process) -> Vec<String> {
    let done = pull.finish();
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    done.text().lines().map(str::to_owned).collect()
}

#[test]
fn a_tool_at_the_front_end_gets_what_the_node_of_its_rank_has_and_all_that_comes() {
    let nodes = Nodes::new();
    let (mut first, mut second) = (nodes.0.gate("first"), nodes.0.gate("second"));
    let script = format!(
        "seq 1 1000; [ $IOF_RANK = 2 ] && {{ : <{}; seq 1001 2000; exit; }}; : <{}; seq 1001 2000",
        first.path(),
        second.path()
    );
    let mut run = nodes.start(&[], &script);
    let stdout = iof_testing::pipes::collect(run.stdout());
    let stats = || nodes.run("front", "query", &["stats", "--json"]).text().to_owned();
    let readers = |count: usize| {
        wait_for("the pulls", || (stats().matches("iof pull").count() == count).then_some(()));
    };
    wait_for("the end of the start", || stats().contains("\"produced\": 3893").then_some(()));
    // Nothing reads a ring.
    let maps = || fs::read_to_string(format!("/proc/{}/maps", run.pid())).unwrap();
    assert!(!maps().contains("iof-ring"), "{}", maps());
    let pull = |ranks: &str| {
        let options = ["--nspace", "demo", "--ranks", ranks, "--channel", "stdout"];
        Process::start(nodes.iof("front", "pull").args(options))
    };
    let mut pulls = vec![pull("2")];
    readers(1);
    assert!(maps().contains("iof-ring"), "{}", maps());
    pulls.push(pull("2"));
    readers(2);
    first.open();
    let all: Vec<String> = (1..=2000).map(|number| number.to_string()).collect();
    wait_for("its output", || stats().contains("\"produced\": 8893").then_some(()));
    // The rank has ended, and the job has not: so do pulls of the rank, of before and after its end.
    pulls.push(pull("2"));
    for pull in pulls {
        assert_eq!(lines_of(pull), all);
    }
    readers(0);
    let unknown = pull("3").finish();
    let told = "iof: rank 3 does not exist: the last rank of demo is 2\n";
    assert_eq!((unknown.code, unknown.stderr.as_str()), (2, told));
    let whole = pull("all");
    readers(2);
    second.open();
    let lines = lines_of(whole);
    assert_eq!(lines.len(), 6000);
    assert!(all.iter().all(|line| lines.iter().filter(|other| *other == line).count() == 3));
    assert_eq!(run.wait(), 0);
    assert_eq!(stdout.get().iter().filter(|byte| **byte == b'\n').count(), 6000);
}

fn host_name() -> String {
    nix::unistd::gethostname().unwrap().into_string().unwrap()
}

#[test]
fn the_front_end_logs_messages_of_ranks_and_an_agent_those_for_its_job_record() {
    let nodes = Nodes::new();
    let program = env!("CARGO_BIN_EXE_iof");
    let script = format!(
        "{program} log --channel stdout --tag \"of $IOF_RANK\"; {program} log --channel job_record kept; \
         cat $IOF_SERVER.record; {program} log --channel no.such x 2>&1"
    );
    let done = nodes.start(&["--kill-on-bad-exit=0"], &script).finish();
    let count = |text: &str| done.text().matches(text).count();
    for rank in 0..3 {
        assert_eq!(count(&format!("[demo,{rank}]<stdout>: of {rank}\n")), 1, "{done:?}");
    }
    assert_eq!(count("iof: no.such: unknown log channel 'no.such'\n"), 3, "{done:?}");
    // Both ranks of a show one record.
    assert!((3..=5).contains(&count("kept")), "{done:?}");
}

#[test]
fn a_rank_logs_while_others_on_its_node_are_not_yet_started() {
    let nodes = Nodes::new();
    let carrier = format!("env TMPDIR={}/%h sh -c", nodes.0.path().display());
    let mut command = nodes.iof("front", "run");
    command.args(["--rsh", &carrier, "--hosts", "a:24,b:24", "-n", "48", "--host-env", "TMPDIR"]);
    command.args([env!("CARGO_BIN_EXE_iof"), "log", "--channel", "stdout", "logged"]);
    let done = Process::start(&mut command).finish();
    assert_eq!((done.code, done.text().matches("logged").count()), (0, 48), "{done:?}");
}

#[test]
fn a_rank_attaches_to_the_agent_that_started_it() {
    let nodes = Nodes::new();
    let program = env!("CARGO_BIN_EXE_iof");
    let script =
        format!("{program} query procs | grep -c demo; echo ${{IOF_SERVER#{}/}}", nodes.0.path().display());
    let done = nodes.start(&["--output", "rank"], &script).finish();
    let mut lines: Vec<&str> = done.text().lines().collect();
    lines.sort_unstable();
    let count = |rank: u32, count: u32| format!("[{rank}]<stdout>: {count}");
    let starts: Vec<String> = [(0, 2, "a"), (1, 2, "a"), (2, 1, "b")]
        .into_iter()
        .flat_map(|(rank, ranks, node)| [count(rank, ranks), format!("[{rank}]<stdout>: {node}/iof-")])
        .collect();
    assert!(
        lines.len() == 6 && lines.iter().zip(&starts).all(|(line, start)| line.starts_with(start)),
        "{done:?}"
    );
}

#[test]
fn a_tool_on_a_node_that_starts_a_job_learns_where_to_start_it_instead() {
    let nodes = Nodes::new();
    let (spawner, iof) = (program("spawn"), env!("CARGO_BIN_EXE_iof"));
    let script = format!(
        "[ $IOF_RANK = 2 ] || exec {spawner} new-$IOF_RANK 1 0 attached true; exec {iof} run --in demo true"
    );
    let done = nodes.start(&["--output", "rank", "--kill-on-bad-exit=0"], &script).finish();
    let reason = "the engine of one node starts no jobs for tools: start them at the engine of the launcher, as by \
                  iof run --in on its node, or by PMIx_Spawn or MPI_Comm_spawn in a rank";
    for rank in 0..2 {
        let refused = format!("[{rank}]<stdout>: refused: ");
        let line = done.text().lines().find(|line| line.starts_with(&refused));
        assert!(line.is_some_and(|line| line.contains(reason)), "{done:?}");
    }
    assert!(
        done.stderr.lines().any(|line| line.starts_with("[2]<stderr>: iof: ") && line.contains(reason)),
        "{done:?}"
    );
}

#[test]
fn agents_share_a_directory_in_which_the_front_end_is_preferred() {
    let site = Site::new();
    let nodes = ["--nspace", "demo", "--rsh", "env NODE=%h sh -c", "--hosts", "a,b,c", "-n", "3"];
    let mut run = site.run_sh(&nodes, "echo rank $IOF_RANK; exec sleep 1000");
    let _stdout = wait_for_lines(&mut run);
    assert_eq!(site.sockets().len(), 4);
    let rows = |options: &[&str]| {
        let done = site.query(&[&["procs", "--json"], options].concat());
        assert_eq!(done.code, 0, "{done:?}");
        found(&done).remove(0).as_array().unwrap().len()
    };
    assert_eq!((rows(&[]), rows(&["--nspace", "demo"]), rows(&["--session"])), (3, 3, 3));
    assert_eq!(rows(&["--pid", &agent_of(&run, "b").to_string()]), 1);
}

#[test]
fn without_a_rendezvous_directory_agents_have_no_sockets() {
    let nodes = Nodes::new();
    let done = nodes.start(&["--rendezvous-dir", "none"], "echo server=$IOF_SERVER").finish();
    assert_eq!((done.code, done.text()), (0, "server=\n".repeat(3).as_str()), "{done:?}");
    assert!(!nodes.directory("a").exists());
}

#[test]
fn a_node_whose_default_directory_is_not_usable_is_named_and_its_ranks_run() {
    let nodes = Nodes::new();
    fs::create_dir(nodes.directory("b")).unwrap();
    fs::set_permissions(nodes.directory("b"), fs::Permissions::from_mode(0o755)).unwrap();
    let done = nodes.start(&[], "echo started; [ $IOF_RANK != 2 ] || [ -z \"$IOF_SERVER\" ]").finish();
    assert_eq!((done.code, done.text()), (0, "started\nstarted\nstarted\n"), "{done:?}");
    let directory = nodes.directory("b");
    let told = format!(
        "iof: b: tools cannot attach on {}: the rendezvous directory {} is accessible to",
        host_name(),
        directory.display()
    );
    assert!(done.stderr.starts_with(&told) && done.stderr.lines().count() == 1, "{done:?}");
}
