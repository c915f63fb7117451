//! `iof run` over the carriers of real sites: OpenSSH and Slurm, which also only start agents that connect by TCP. Each test starts its own servers,
//! in network namespaces, and is skipped where that is impossible (see `carriers/rig`).
//! `.ci/carriers` runs them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use iof_testing::command::nodes::send;
use iof_testing::command::site::Site;
use iof_testing::process::{Process, Stat};
use iof_testing::wait_for;
use nix::sys::signal::Signal;

/// Servers of a carrier, in a network namespace of their own.
struct Rig {
    site: Site,
    name: String,
}

/// Seconds after which a node counts as lost: more than a busy machine may let a server wait.
const PATIENCE: u32 = 60;

/// The options by which the servers carry the bytes themselves, and by which they only start the agents.
const CARRIERS: [&[&str]; 2] = [&[], &["--carrier", "tcp:10.77.1.1"]];

impl Rig {
    /// Starts the servers of `carrier`. Returns `None`, and tells why, if that is impossible.
    fn start(carrier: &str) -> Option<Rig> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // The names of links have at most 15 letters. Only the number counts, so no order is
        // needed.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let rig = Rig { site: Site::new(), name: format!("iof{}n{number}", std::process::id()) };
        let status = rig.call(carrier);
        let told = fs::read_to_string(rig.site.path().join("rig.out")).unwrap_or_default();
        match status {
            Some(0) => Some(rig),
            Some(3) => {
                println!("{told}");
                None
            }
            _ => panic!("{carrier}: {told}"),
        }
    }

    fn call(&self, action: &str) -> Option<i32> {
        // Servers keep the descriptors, so a pipe would not end.
        let out = fs::File::create(self.site.path().join("rig.out")).unwrap();
        let mut rig = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/carriers/rig"));
        rig.arg(action).arg(self.site.path()).arg(&self.name);
        rig.stdin(Stdio::null()).stderr(out.try_clone().unwrap()).stdout(out);
        rig.status().unwrap().code()
    }

    /// Returns the words that run a command in the front end's network.
    fn inside(&self) -> Command {
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--net=/run/netns/{}", self.name));
        inside
    }

    /// Returns the words that run a command on the node that is the next word. A node that is silent
    /// for `patience` seconds is lost.
    fn ssh(&self, patience: u32) -> String {
        format!(
            "ssh -F {}/ssh_config -T -o BatchMode=yes -o Compression=no -o ServerAliveInterval=1 \
             -o ServerAliveCountMax={patience} -o Ciphers=^aes128-gcm@openssh.com",
            self.site.path().display()
        )
    }

    /// Starts `iof run OPTIONS sh -c SCRIPT` with the template for ssh. A node that is silent for
    /// `patience` seconds is lost.
    fn run_by_ssh(&self, patience: u32, options: &[&str], script: &str) -> Process {
        let directory = self.site.path().to_str().unwrap();
        let options = [&["--rendezvous-dir", directory], options].concat();
        Process::start(&mut self.command_by_ssh(patience, &options, script))
    }

    fn command_by_ssh(&self, patience: u32, options: &[&str], script: &str) -> Command {
        let rsh = format!("{} %h", self.ssh(patience));
        let mut run = self.inside();
        run.arg(env!("CARGO_BIN_EXE_iof")).args(["run", "--nspace", "demo", "--rsh", &rsh]);
        run.args(options).args(["sh", "-c", script]);
        run
    }

    /// Returns `iof run OPTIONS sh -c SCRIPT` on the three nodes of an allocation of Slurm.
    fn command_by_srun(&self, options: &[&str], script: &str) -> Command {
        let mut run = self.inside();
        run.env("SLURM_CONF", self.site.path().join("slurm.conf")).args(["salloc", "-Q", "-N3", "-n6"]);
        run.arg(env!("CARGO_BIN_EXE_iof")).args(["run", "--nspace", "demo", "--rendezvous-dir", "none"]);
        run.args(options).args(["sh", "-c", script]);
        run
    }

    /// Destroys ends of connections by TCP in the front end's network. The other ends notice later if a link is down.
    fn destroy_connections(&self, filter: &[&str]) {
        let status = self.inside().args(["ss", "-tK"]).args(filter).stdout(Stdio::null()).status();
        assert!(status.unwrap().success());
    }

    /// Takes the link to a node down, or up.
    fn set_link(&self, node: &str, state: &str) {
        let link = format!("{}-{node}", self.name);
        let status = Command::new("ip").args(["-n", &self.name, "link", "set", &link, state]).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.call("down");
    }
}

/// Checks that each rank has written the numbers from 1 on, as `seq` does, and returns how many.
fn counts(output: &str) -> BTreeMap<u32, usize> {
    let mut counts = BTreeMap::new();
    for line in output.lines() {
        let (rank, number) = line.split_once(' ').unwrap();
        let count = counts.entry(rank.parse().unwrap()).or_insert(0usize);
        *count += 1;
        assert_eq!(number.parse(), Ok(*count), "rank {rank}");
    }
    counts
}

/// Writes numbered lines, each with the rank. They have 16 bytes, so that none is divided between two
/// writes of seq(1).
const COUNT: &str = "seq -f \"$IOF_RANK %013.0f\"";

#[test]
#[ignore = "starts servers"]
fn all_bytes_of_two_nodes_arrive_over_ssh_also_through_a_short_cut() {
    let Some(rig) = Rig::start("ssh") else { return };
    for (number, carrier) in CARRIERS.into_iter().enumerate() {
        let lines = 300_000;
        let script = format!("{COUNT} {lines}; [ $IOF_RANK != 3 ] || exit 7");
        // A cut in the middle of a line ends the wait for the rest of the line, so each rank has a
        // file.
        let file = |rank: &str| format!("{}/out{number}.{rank}", rig.site.path().display());
        let options = ["--hosts", "a:2,b:2", "-n", "4", "--map-by", "node", "-o", &file("%t")];
        let run = rig.run_by_ssh(PATIENCE, &[carrier, &options].concat(), &script);
        let length = |rank| fs::metadata(file(rank)).map_or(0, |data| data.len());
        wait_for("output of both nodes", || (length("0") > 0 && length("1") > 0).then_some(()));
        rig.set_link("a", "down");
        // The time of the cut.
        std::thread::sleep(Duration::from_millis(800));
        rig.set_link("a", "up");
        let done = run.finish();
        assert_eq!(done.code, 7, "{done:?}");
        for rank in 0..4 {
            let output = fs::read_to_string(file(&rank.to_string())).unwrap();
            assert_eq!(counts(&output), BTreeMap::from([(rank, lines)]));
        }
    }
}

#[test]
#[ignore = "starts servers"]
fn stdin_and_signals_reach_the_ranks_over_ssh() {
    let Some(rig) = Rig::start("ssh") else { return };
    for carrier in CARRIERS {
        let script = "cat; trap 'exit 5' USR1; echo ready; while :; do sleep 0.01; done";
        let mut run = rig.run_by_ssh(
            PATIENCE,
            &[carrier, &["--hosts", "a,b", "-n", "2", "--stdin", "all"]].concat(),
            script,
        );
        let input = "some line\n".repeat(20_000);
        let mut stdin = run.stdin();
        let mut stdout = BufReader::new(run.stdout());
        let copied = input.clone();
        let writer = std::thread::spawn(move || stdin.write_all(copied.as_bytes()).unwrap());
        let (mut copies, mut ready) = (0, 0);
        while ready < 2 {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            match line.as_str() {
                "ready\n" => ready += 1,
                _ => copies += line.len(),
            }
        }
        writer.join().unwrap();
        assert_eq!(copies, 2 * input.len());
        let done = Process::start(rig.site.iof("kill").args(["demo", "USR1"])).finish();
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
        assert_eq!(run.wait(), 5);
    }
}

#[test]
#[ignore = "starts servers"]
fn a_cut_of_ssh_breaks_the_streams_of_its_node_with_true_figures_and_ends_the_job() {
    let Some(rig) = Rig::start("ssh") else { return };
    let mark = format!("{}/rank", rig.site.path().display());
    let script = format!(
        "echo $$ > {mark}.$IOF_RANK; i=0; while :; do i=$((i+1)); echo $IOF_RANK $i; sleep 0.001; done"
    );
    let mut run = rig.run_by_ssh(3, &["--hosts", "a,b", "-n", "2", "--summary", "--kill-wait", "1"], &script);
    let mut stdout = BufReader::new(run.stdout());
    let stderr = iof_testing::pipes::collect(run.stderr());
    let mut output = String::new();
    while counts(&output).len() < 2 {
        stdout.read_line(&mut output).unwrap();
    }
    rig.set_link("a", "down");
    stdout.read_to_string(&mut output).unwrap();
    let code = run.wait();
    let errors = String::from_utf8(stderr.get()).unwrap();
    assert_eq!(code, 1, "{errors}");
    let lost =
        "node a is lost with rank 0: its carrier ended with exit status: 255; of its unfinished output ";
    assert!(errors.contains(lost), "{errors}");
    // What arrived is whole up to its end, and the line has the number of its bytes.
    let arrived: usize =
        output.lines().filter(|line| line.starts_with("0 ")).map(|line| line.len() + 1).sum();
    assert!(errors.contains(&format!("{lost}{arrived} bytes arrived, ")), "{arrived}: {errors}");
    assert_eq!(counts(&output).len(), 2);
    // The rank on the other node was ended. The server of node a takes up to minutes to notice the
    // cut.
    let pid = fs::read_to_string(format!("{mark}.1")).unwrap();
    wait_for("the end of the rank", || (!fs::exists(format!("/proc/{}", pid.trim())).unwrap()).then_some(()));
}

#[test]
#[ignore = "starts servers"]
fn with_reattach_a_long_cut_of_ssh_loses_nothing_and_a_node_goes_on_over_a_new_connection() {
    let Some(rig) = Rig::start("ssh") else { return };
    for carrier in CARRIERS {
        let file = |name: &str| format!("{}/{name}", rig.site.path().display());
        ["stop", "signalled", "out.0", "out.1"].iter().for_each(|name| drop(fs::remove_file(file(name))));
        let script = format!(
            "trap 'echo $IOF_RANK 2 >> {0}' USR1; i=0; while [ ! -e {1} ]; do i=$((i+1)); echo $IOF_RANK $i; done; \
             [ $IOF_RANK = 0 ] || exit 7",
            file("signalled"),
            file("stop")
        );
        let options = ["--hosts", "a,b", "-n", "2", "--reattach", "300", "-o", &file("out.%t")];
        let run = rig.run_by_ssh(3, &[carrier, &options].concat(), &script);
        let length = |rank: u32| fs::metadata(file(&format!("out.{rank}"))).map_or(0, |data| data.len());
        let wait_for_more = |rank| {
            let before = length(rank);
            wait_for("more output", || (length(rank) > before + 100_000).then_some(()));
        };
        for rank in [0, 1] {
            wait_for_more(rank);
        }
        let first = run.running("ssh");
        assert_eq!(first.len(), 2);
        rig.set_link("a", "down");
        if !carrier.is_empty() {
            rig.destroy_connections(&["dst", "10.77.1.2"]);
        }
        wait_for("the end of a connection", || {
            let running = run.running("ssh");
            first.iter().any(|ssh| !running.contains(ssh)).then_some(())
        });
        wait_for_more(1);
        let done = Process::start(rig.site.iof("kill").args(["demo", "USR1"])).finish();
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
        rig.set_link("a", "up");
        wait_for("the signal on both nodes", || {
            let signalled = fs::read_to_string(file("signalled")).unwrap_or_default();
            (signalled.lines().count() == 2).then_some(())
        });
        for rank in [0, 1] {
            wait_for_more(rank);
        }
        fs::write(file("stop"), "").unwrap();
        let done = run.finish();
        assert_eq!(done.code, 7, "{done:?}");
        // The first attempt over a link that is down may print a line, and so may the end of an ssh that has
        // only started an agent.
        let is_of_ssh = |line: &&str| line.contains(": ssh: ") || line.contains(": client_loop: ");
        let (ssh, told): (Vec<&str>, Vec<&str>) = done.stderr.lines().partition(is_of_ssh);
        assert!(
            ssh.len() <= 1 && told.len() == 1 && told[0].contains("on b) ended with exit code 7"),
            "{}",
            done.stderr
        );
        for rank in 0..2 {
            let output = fs::read_to_string(file(&format!("out.{rank}"))).unwrap();
            assert_eq!(counts(&output).keys().copied().collect::<Vec<_>>(), [rank]);
        }
    }
}

#[test]
#[ignore = "starts servers"]
fn a_tool_on_a_node_reaches_the_agent_that_ssh_has_started_there() {
    let Some(rig) = Rig::start("ssh") else { return };
    let front = rig.site.path().join("front");
    fs::create_dir(&front).unwrap();
    let mut gate = rig.site.gate("gate");
    let script = format!("echo $IOF_RANK; : < {}; echo end $IOF_RANK", gate.path());
    let options = ["--hosts", "a,b", "-n", "2", "--host-env", "TMPDIR"];
    let mut command = rig.command_by_ssh(PATIENCE, &options, &script);
    let mut run = Process::start(command.env("TMPDIR", front));
    let mut stdout = BufReader::new(run.stdout());
    let mut line = String::new();
    for _ in 0..2 {
        stdout.read_line(&mut line).unwrap();
    }
    let on_node = |command: &str| {
        let (ssh, mut inside) = (rig.ssh(PATIENCE), rig.inside());
        inside.args(ssh.split(' ')).arg("b").arg(format!("{} {command}", env!("CARGO_BIN_EXE_iof")));
        Process::start(&mut inside)
    };
    let pull = on_node("pull --nspace demo");
    wait_for("the pull", || {
        let done = on_node("query stats --json").finish();
        done.text().contains("\"iof pull\"").then_some(())
    });
    gate.open();
    let done = pull.finish();
    assert_eq!((done.code, done.text()), (0, "1\nend 1\n"), "{done:?}");
    assert_eq!(run.wait(), 0);
}

#[test]
#[ignore = "starts servers"]
fn a_front_end_that_stands_still_stops_the_ranks_over_ssh_and_loses_nothing() {
    const LENGTH: usize = 64 << 20;
    let Some(rig) = Rig::start("ssh") else { return };
    for carrier in CARRIERS {
        let mark = format!("{}/pid", rig.site.path().display());
        let script = format!("echo $$ > {mark}; exec head -c {LENGTH} /dev/zero");
        let mut run = rig.run_by_ssh(PATIENCE, &[carrier, &["--hosts", "a", "-n", "1"]].concat(), &script);
        let mut stdout = run.stdout();
        let mut first = [0];
        stdout.read_exact(&mut first).unwrap();
        run.signal(Signal::SIGSTOP);
        let pid = fs::read_to_string(&mark).unwrap();
        let mut written = 0u64;
        wait_for("the rank to stop", || {
            let io = fs::read_to_string(format!("/proc/{}/io", pid.trim())).unwrap_or_default();
            let now =
                io.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse::<u64>().ok()).unwrap_or(0);
            std::thread::sleep(Duration::from_millis(300));
            let is_still = now > 0 && now == written;
            written = now;
            is_still.then_some(())
        });
        // The cache of the front end, the window, the cache of the agent, and three pipes.
        assert!(written < 4 << 20, "{written}");
        run.signal(Signal::SIGCONT);
        let mut rest = Vec::new();
        stdout.read_to_end(&mut rest).unwrap();
        assert_eq!((rest.len() + 1, run.wait()), (LENGTH, 0));
        println!("a rank whose front end stood still had written {written} bytes");
    }
}

#[test]
#[ignore = "starts servers"]
fn in_an_allocation_of_slurm_srun_starts_the_ranks_on_its_nodes() {
    let Some(rig) = Rig::start("slurm") else { return };
    for carrier in CARRIERS {
        let run = |options: &[&str], script: &str| {
            Process::start(&mut rig.command_by_srun(&[carrier, options].concat(), script)).finish()
        };
        let done = run(&["-n", "6", "--output", "tag-detailed"], "echo");
        let mut hosts: Vec<&str> = done.text().lines().map(|line| line.split(':').next().unwrap()).collect();
        hosts.sort_unstable();
        let expected =
            ["[demo,0][n1", "[demo,1][n1", "[demo,2][n2", "[demo,3][n2", "[demo,4][n3", "[demo,5][n3"];
        assert_eq!((done.code, hosts), (0, expected.to_vec()), "{done:?}");
        let done = run(&["-n", "3", "--map-by", "node"], &format!("{COUNT} 100000; exit $IOF_RANK"));
        assert_eq!(counts(done.text()), (0..3).map(|rank| (rank, 100_000)).collect());
        assert!(done.code == 1 || done.code == 2, "{done:?}");
        assert!(done.stderr.contains(" on n2) ended with exit code 1"), "{}", done.stderr);
    }
}

#[test]
#[ignore = "starts servers"]
fn one_step_of_slurm_starts_all_agents_that_connect_by_tcp_and_lets_them_connect_again() {
    let Some(rig) = Rig::start("slurm") else { return };
    let script = "echo $IOF_RANK ready; read line; echo $IOF_RANK $line";
    let carrier = ["--carrier", "tcp:10.77.1.1:7100"];
    let options =
        [&carrier[..], &["-n", "3", "--map-by", "node", "--stdin", "all", "--reattach", "60"]].concat();
    let mut run = Process::start(&mut rig.command_by_srun(&options, script));
    let (mut stdin, mut stdout) = (run.stdin(), BufReader::new(run.stdout()));
    let mut lines = String::new();
    for _ in 0..3 {
        stdout.read_line(&mut lines).unwrap();
    }
    let mut steps = rig.inside();
    steps.env("SLURM_CONF", rig.site.path().join("slurm.conf")).args(["squeue", "--steps", "-h", "-o", "%i"]);
    let steps = String::from_utf8(steps.output().unwrap().stdout).unwrap();
    assert_eq!(
        steps.lines().filter(|step| step.ends_with(".0") || step.ends_with(".1")).count(),
        1,
        "{steps}"
    );
    let to_front_end = ["dport", "=", ":7100"];
    let ports = || {
        let found =
            rig.inside().args(["ss", "-Htn", "state", "established"]).args(to_front_end).output().unwrap();
        let found = String::from_utf8(found.stdout).unwrap();
        found.lines().map(|line| line.split_whitespace().nth(2).unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    let before = ports();
    assert_eq!(before.len(), 3);
    rig.destroy_connections(&to_front_end);
    wait_for("other connections", || (ports().len() == 3 && ports().is_disjoint(&before)).then_some(()));
    writeln!(stdin, "again").unwrap();
    drop(stdin);
    stdout.read_to_string(&mut lines).unwrap();
    assert_eq!(run.wait(), 0);
    let mut lines: Vec<&str> = lines.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0 again", "0 ready", "1 again", "1 ready", "2 again", "2 ready"]);
}

#[test]
#[ignore = "starts servers"]
fn a_cut_of_tcp_is_noticed_as_one_of_ssh_breaks_the_streams_of_its_node_and_ends_its_ranks() {
    let Some(rig) = Rig::start("ssh") else { return };
    let mark = rig.site.path().join("rank");
    // What the agent of a sends is not acknowledged, so the kernel sends no keep-alives.
    let script = format!(
        "i=0; while :; do i=$((i+1)); echo $IOF_RANK $i; [ $IOF_RANK = 1 ] || echo $$ > {}; sleep 0.1; done",
        mark.display()
    );
    let options = ["--hosts", "a,b", "-n", "2", "--kill-wait", "1"];
    let mut run = rig.run_by_ssh(PATIENCE, &[CARRIERS[1], &options].concat(), &script);
    let (mut stdout, mut output) = (BufReader::new(run.stdout()), String::new());
    let stderr = iof_testing::pipes::collect(run.stderr());
    while counts(&output).len() < 2 || !mark.exists() {
        stdout.read_line(&mut output).unwrap();
    }
    rig.set_link("a", "down");
    stdout.read_to_string(&mut output).unwrap();
    let code = run.wait();
    let errors = String::from_utf8(stderr.get()).unwrap();
    let lost = "node a is lost with rank 0: cannot read from its carrier: ";
    assert!(code == 1 && errors.contains(lost), "{errors}");
    let pid = fs::read_to_string(mark).unwrap();
    wait_for("the end of the rank", || (!fs::exists(format!("/proc/{}", pid.trim())).unwrap()).then_some(()));
}

#[test]
#[ignore = "starts servers"]
fn the_end_of_srun_breaks_the_streams_of_its_node_with_true_figures_and_ends_the_job() {
    let Some(rig) = Rig::start("slurm") else { return };
    let mark = format!("{}/rank", rig.site.path().display());
    let script = format!(
        "echo $$ > {mark}.$IOF_RANK; i=0; while :; do i=$((i+1)); echo $IOF_RANK $i; sleep 0.001; done"
    );
    let options = ["-n", "3", "--map-by", "node", "--kill-wait", "1"];
    let mut run = Process::start(&mut rig.command_by_srun(&options, &script));
    let mut stdout = BufReader::new(run.stdout());
    let stderr = iof_testing::pipes::collect(run.stderr());
    let mut output = String::new();
    while counts(&output).len() < 3 {
        stdout.read_line(&mut output).unwrap();
    }
    // srun has a second process, which ends with it.
    let leads = |pid: &u32| Stat::of(*pid).is_some_and(|stat| stat.group == *pid);
    let is_of_n1 = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|word| word == b"n1")
    };
    let carrier = run.running("srun").into_iter().find(|pid| leads(pid) && is_of_n1(pid)).unwrap();
    send(carrier, Signal::SIGKILL);
    stdout.read_to_string(&mut output).unwrap();
    let code = run.wait();
    let errors = String::from_utf8(stderr.get()).unwrap();
    assert_eq!(code, 1, "{errors}");
    let lost =
        "node n1 is lost with rank 0: its carrier ended with signal: 9 (SIGKILL); of its unfinished output ";
    // What arrived is whole up to its end, and the line has the number of its bytes.
    let arrived: usize =
        output.lines().filter(|line| line.starts_with("0 ")).map(|line| line.len() + 1).sum();
    assert!(errors.contains(&format!("{lost}{arrived} bytes arrived, ")), "{arrived}: {errors}");
    assert_eq!(counts(&output).len(), 3);
    for rank in 0..3 {
        let pid = fs::read_to_string(format!("{mark}.{rank}")).unwrap();
        wait_for("the end of the ranks", || Stat::of(pid.trim().parse().unwrap()).is_none().then_some(()));
    }
}

/// A rank with two children. One ignores SIGTERM.
const FAMILY: &str = "sleep 1000 & (trap '' TERM; exec sleep 1000) & wait";

/// Kills the agent of one of two ranks that run [`FAMILY`], and then the front end. Checks that no
/// process outlives them.
fn assert_that_nothing_outlives_an_agent_and_a_front_end(run: &Process) {
    let wait_for_children = |count| {
        wait_for("the children", || (run.running("sleep").len() == count).then_some(()));
    };
    wait_for_children(4);
    let parent = |pid| Stat::of(pid).unwrap().parent;
    send(parent(parent(run.running("sleep")[0])), Signal::SIGKILL);
    wait_for_children(2);
    let words = |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is_front_end = |pid: &u32| words(pid).split(|byte| *byte == 0).nth(1) == Some(b"run");
    let front_end = run.running("iof").into_iter().find(is_front_end).unwrap();
    send(front_end, Signal::SIGKILL);
    wait_for_children(0);
    wait_for("the end of all", || run.living().is_empty().then_some(()));
    wait_for("the end of the guardians", || run.guardians().is_empty().then_some(()));
}

#[test]
#[ignore = "starts servers"]
fn no_process_outlives_an_agent_or_a_front_end_that_is_killed_over_ssh() {
    let Some(rig) = Rig::start("ssh") else { return };
    for carrier in CARRIERS {
        let options = ["--hosts", "a,b", "-n", "2", "--kill-on-bad-exit=0"];
        assert_that_nothing_outlives_an_agent_and_a_front_end(&rig.run_by_ssh(
            PATIENCE,
            &[carrier, &options].concat(),
            FAMILY,
        ));
    }
}

#[test]
#[ignore = "starts servers"]
fn no_process_outlives_an_agent_or_a_front_end_that_is_killed_over_srun() {
    let Some(rig) = Rig::start("slurm") else { return };
    for carrier in CARRIERS {
        let options = ["-n", "2", "--map-by", "node", "--kill-on-bad-exit=0"];
        let run = Process::start(&mut rig.command_by_srun(&[carrier, &options].concat(), FAMILY));
        assert_that_nothing_outlives_an_agent_and_a_front_end(&run);
    }
}
