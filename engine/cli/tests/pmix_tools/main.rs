//! Tools of PMIx, compiled against the system's `pmix.h`, that attach to `iof run`. Without
//! libpmix-dev the tests do nothing. With `IOF_TEST_LIBPMIX`, the path of another libpmix such as
//! version 5, they are repeated with this library on either side. A static executable cannot open
//! libraries.
#![cfg(not(target_env = "musl"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod calls;
mod embedders;
mod facts;
mod isolation;
mod nodes;
mod spawning;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::{env, fs};

use iof_testing::command::site::Site;
use iof_testing::process::{Done, Process};
use iof_testing::wait_for;

/// The directories with `pmix.h`, besides those of the compiler.
const INCLUDE: &str = "-I/usr/lib/x86_64-linux-gnu/pmix2/include";

/// The protocol by which tools authenticate. With munge, which 4.2.2 prefers where its daemon runs, they crash a
/// server that does not have it.
const NATIVE: &str = "native";

/// The compiled tool; `None` without libpmix-dev.
static TOOL: LazyLock<Option<PathBuf>> = LazyLock::new(|| compile("tool"));

/// Compiles a program of this directory; `None` without libpmix-dev.
fn compile(name: &str) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/pmix_tools/{name}.c"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pmix-{name}-{}", std::process::id()));
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Wextra", INCLUDE, "-o"]).arg(&program).arg(source);
    let output = compiler.args(["-l:libpmix.so.2", "-lpthread"]).output();
    match output {
        Ok(output) if output.status.success() => Some(program),
        Ok(output) if String::from_utf8_lossy(&output.stderr).contains(".h: No such") => {
            eprintln!("skipped: the headers of PMIx are not installed (libpmix-dev)");
            None
        }
        Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            eprintln!("skipped: no C compiler: {error}");
            None
        }
    }
}

/// A run of a job that hosts PMIx, and the libraries of its server and of tools.
struct Place {
    site: Site,
    server: Option<PathBuf>,
    tools: Option<PathBuf>,
}

impl Place {
    /// Starts `iof run OPTIONS -- sh -c SCRIPT` with a job named demo.
    fn run(&self, options: &[&str], script: &str) -> Process {
        let mut command = self.site.iof("run");
        command.args(["--mpi", "pmix", "--nspace", "demo"]).args(options).args(["--", "sh", "-c", script]);
        self.start_launcher(&mut command)
    }

    /// Starts a launcher of a job named demo, and waits until tools can attach to it.
    fn start_launcher(&self, command: &mut Command) -> Process {
        command.env("TMPDIR", self.site.path()).env_remove("IOF_LIBPMIX").env("PMIX_MCA_psec", NATIVE);
        if let Some(library) = &self.server {
            command.env("IOF_LIBPMIX", library);
        }
        let process = Process::start(command);
        wait_for("the rendezvous file", || self.rendezvous_file());
        process
    }

    /// Asserts that no file of PMIx is left.
    fn assert_clean(&self) {
        assert_eq!(self.left(), None);
    }

    /// Returns a file of PMIx that is left.
    fn left(&self) -> Option<PathBuf> {
        let mut left = fs::read_dir(self.site.path()).unwrap().map(|entry| entry.unwrap().path());
        left.find(|path| path.to_str().unwrap().contains("iof-pmix"))
    }

    /// Returns the content of the file that names the job, once it is whole.
    fn rendezvous_file(&self) -> Option<String> {
        let texts = self.rendezvous_paths().into_iter().filter_map(|path| fs::read_to_string(path).ok());
        texts.into_iter().find(|text| text.ends_with('\n'))
    }

    /// Returns the files that name the job.
    fn rendezvous_paths(&self) -> Vec<PathBuf> {
        let directories = fs::read_dir(self.site.path()).unwrap().map(|entry| entry.unwrap().path());
        let files = directories.filter_map(|directory| fs::read_dir(directory).ok()).flatten();
        let paths = files.filter_map(|entry| Some(entry.ok()?.path()));
        paths.filter(|path| path.to_str().unwrap().ends_with(".tool.demo")).collect()
    }

    /// Starts a tool that attaches to the run of the job.
    fn tool<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Process {
        self.start(TOOL.as_ref().unwrap(), "nspace:demo", args)
    }

    fn start<A: AsRef<OsStr>>(
        &self,
        program: &Path,
        server: &str,
        args: impl IntoIterator<Item = A>,
    ) -> Process {
        self.start_in(self.site.path(), program, server, args)
    }

    /// Starts a tool that looks for rendezvous files in `directory`.
    fn start_in<A: AsRef<OsStr>>(
        &self,
        directory: &Path,
        program: &Path,
        server: &str,
        args: impl IntoIterator<Item = A>,
    ) -> Process {
        let mut command = Command::new(program);
        command.arg(server).args(args).env("TMPDIR", directory);
        command.env("PMIX_MCA_psec", NATIVE);
        if let Some(library) = &self.tools {
            command.env("LD_LIBRARY_PATH", library.parent().unwrap());
        }
        Process::start(&mut command)
    }
}

/// Calls `test` with each pair of libraries of the server and of the tools.
fn for_each_place(test: impl Fn(&Place)) {
    if TOOL.is_none() {
        return;
    }
    let other = env::var_os("IOF_TEST_LIBPMIX").map(PathBuf::from);
    let mut pairs = vec![(None, None)];
    if other.is_some() {
        pairs.extend([(other.clone(), None), (None, other.clone()), (other.clone(), other)]);
    }
    for (server, tools) in pairs {
        println!("server {server:?}, tools {tools:?}");
        test(&Place { site: Site::new(), server, tools });
    }
}

/// Reads lines of a process until one equals `line`. Returns all that was read.
fn read_until(output: &mut impl BufRead, line: &str) -> String {
    let mut read = String::new();
    while !read.ends_with(&format!("{line}\n")) {
        assert!(output.read_line(&mut read).unwrap() > 0, "no line {line}: {read}");
    }
    read
}

fn lines(done: &Done) -> Vec<&str> {
    assert_eq!(done.code, 0, "{done:?}");
    done.text().lines().collect()
}

/// Returns the lines after that with which a tool confirms its pull, in the order of the alphabet.
fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().filter(|line| !["attached", "pulled"].contains(line)).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn tools_find_the_run_by_its_pid_or_its_job_and_query_it() {
    for_each_place(|place| {
        let mut gate = place.site.gate("gate");
        let run = place.run(&["-n", "2"], &format!(": < {}", gate.path()));
        place.site.wait_for_ranks(2);
        for server in
            [format!("pid:{}", run.pid()), format!("nspace:iof-{}", run.pid()), "nspace:demo".into()]
        {
            let tool = place.start(TOOL.as_ref().unwrap(), &server, ["namespaces"]);
            assert_eq!(lines(&tool.finish()), ["attached", "demo"]);
        }
        let table = place.tool(["table", "demo"]).finish();
        let procs = place.site.procs().unwrap();
        let row = |rank: usize| format!("demo {rank} {} 5 sh", procs[rank]["pid"]);
        assert_eq!(lines(&table), ["attached", &row(0), &row(1)]);
        assert_eq!(lines(&place.tool(["status", "demo"]).finish()), ["attached", "-191"]);
        gate.open();
        assert_eq!(run.finish().code, 0);
        place.assert_clean();
    });
}

#[test]
fn tools_receive_the_ranks_and_channels_that_they_pull_even_late() {
    for_each_place(|place| {
        let (mut before, mut after) = (place.site.gate("before"), place.site.gate("after"));
        let script = format!(
            ": < {}; echo out $IOF_RANK; echo err $IOF_RANK >&2; : < {}; exit 3",
            before.path(),
            after.path()
        );
        let run = place.run(&["-n", "2"], &script);
        let mut all = place.tool(["pull", "demo", "all", "6", "print"]);
        let mut one = place.tool(["pull", "demo", "1", "4", "print"]);
        let mut own = place.tool(["print", "demo"]);
        let mut outputs = [&mut all, &mut one, &mut own].map(|tool| BufReader::new(tool.stdout()));
        for output in &mut outputs {
            read_until(output, "pulled");
        }
        before.open();
        for rank in 0..2 {
            place.site.wait_for_bytes(rank, "stderr", 6);
        }
        let mut late = place.tool(["pull", "demo", "all", "2", "print"]);
        let mut late_output = BufReader::new(late.stdout());
        // Cached output may arrive before the tool knows that its request was granted.
        let first = read_until(&mut late_output, "pulled");
        after.open();
        let texts = outputs.map(|mut output| read_rest(&mut output));
        let late_text = first + &read_rest(&mut late_output);
        assert_eq!(
            sorted(&texts[0]),
            ["0 2: out 0", "0 4: err 0", "1 2: out 1", "1 4: err 1", "bytes 24 lost 0 streams 4", "ended 3"]
        );
        assert_eq!(sorted(&texts[1]), ["1 4: err 1", "bytes 6 lost 0 streams 1", "ended 3"]);
        assert_eq!(sorted(&texts[2]), ["out 0", "out 1"]);
        assert_eq!(sorted(&late_text), ["0 2: out 0", "1 2: out 1", "bytes 12 lost 0 streams 2", "ended 3"]);
        assert_eq!([all, one, own, late].map(|tool| tool.wait()), [0; 4]);
        assert_eq!(run.finish().code, 3);
    });
}

fn read_rest(output: &mut impl BufRead) -> String {
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_tool_that_reads_nothing_costs_no_other_and_learns_what_it_misses() {
    const BYTES: u64 = 300_000_000;
    for_each_place(|place| {
        let (mut before, mut after) = (place.site.gate("before"), place.site.gate("after"));
        let script = format!("echo; : < {}; head -c {BYTES} /dev/zero; : < {}", before.path(), after.path());
        let mut run = place.run(&[], &script);
        let (output, errors) = run.collect();
        let mut stalled = place.tool(["pull", "demo", "all", "2", "stall"]);
        let mut stalled_output = BufReader::new(stalled.stdout());
        read_until(&mut stalled_output, "stalled");
        let mut other = place.tool(["pull", "demo", "all", "2", "count"]);
        let mut other_output = BufReader::new(other.stdout());
        read_until(&mut other_output, "pulled");
        before.open();
        // Neither the job nor the launcher's own output waits for the tool.
        place.site.wait_for_bytes(0, "stdout", BYTES + 1);
        for pid in run.running("iof-pmix-tool") {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let data = status.lines().find(|line| line.starts_with("VmData:")).unwrap();
            let kib: u64 = data.split_whitespace().nth(1).unwrap().parse().unwrap();
            assert!(kib < 100 << 10, "{data}");
        }
        after.open();
        assert_eq!((run.wait(), output.get().len() as u64), (0, BYTES + 1), "{:?}", errors.get());
        // The end of the job reaches the other tool, with all that it has read or missed.
        let text = read_rest(&mut other_output);
        assert_eq!(total(&text), BYTES + 1, "{text}");
        stalled.stdin().write_all(b"\n").unwrap();
        let text = read_rest(&mut stalled_output);
        assert_eq!(total(&text), BYTES + 1, "{text}");
        assert!(number_after(&text, "lost ") > 0, "{text}");
        assert_eq!([stalled, other].map(|tool| tool.wait()), [0; 2]);
    });
}

/// Returns the number of bytes that a tool has received or knows to be lost.
fn total(text: &str) -> u64 {
    number_after(text, "bytes ") + number_after(text, "lost ")
}

fn number_after(text: &str, word: &str) -> u64 {
    let rest = text.split_once(word).unwrap_or_else(|| panic!("no {word}: {text}")).1;
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_pull_that_the_engine_refuses_fails_and_the_tool_stays_attached() {
    for_each_place(|place| {
        let mut gate = place.site.gate("gate");
        let run = place.run(&[], &format!("echo out; : < {}", gate.path()));
        let mut tool = place.tool(["pulls", "demo", "7", "0"]);
        let mut output = BufReader::new(tool.stdout());
        let text = read_until(&mut output, "pulled");
        // `PMIX_ERR_NOT_FOUND`.
        assert!(text.contains("refused -46\n"), "{text}");
        gate.open();
        assert_eq!(sorted(&read_rest(&mut output)).last(), Some(&"ended 0"));
        assert_eq!((tool.wait(), run.finish().code), (0, 0));
    });
}

#[test]
fn tools_push_to_open_stdins_and_close_them() {
    for_each_place(|place| {
        let run = place.run(&["-n", "3", "--stdin-open", "0-1"], "cat");
        let refused = place.tool(["push", "demo", "2", "x"]).finish();
        assert_eq!(refused.code, 3, "{refused:?}");
        let pushed = place.tool(["push", "demo", "0", "a", "b\n", "c\n"]).finish();
        assert_eq!(lines(&pushed), ["attached", "pushed"]);
        // libpmix itself reads the stdin of the tool.
        let mut own = place.tool(["stdin", "demo", "1"]);
        let bytes = "0123456789\n".repeat(30_000);
        let mut stdin = own.stdin();
        stdin.write_all(bytes.as_bytes()).unwrap();
        drop(stdin);
        let done = run.finish();
        assert_eq!(own.wait(), 0);
        let mut received: Vec<&str> = done.text().lines().collect();
        received.sort_unstable();
        let mut wanted: Vec<&str> = bytes.lines().chain(["ab", "c"]).collect();
        wanted.sort_unstable();
        assert!(received == wanted, "{} lines", received.len());
    });
}

#[test]
fn messages_that_tools_log_are_written_or_refused() {
    for_each_place(|place| {
        let mut gate = place.site.gate("gate");
        let run = place.run(&[], &format!(": < {}", gate.path()));
        let logged = place.tool(["log", "pmix.log.stderr", "half done\n"]).finish();
        assert_eq!(lines(&logged), ["attached", "logged"]);
        assert_eq!(place.tool(["log", "pmix.log.nothing", "half done\n"]).finish().code, 3);
        gate.open();
        assert_eq!(run.finish().stderr, "half done\n");
    });
}

#[test]
fn a_tool_that_ends_its_registration_can_pull_again() {
    for_each_place(|place| {
        let (mut before, mut after) = (place.site.gate("before"), place.site.gate("after"));
        let script = format!("echo first; : < {}; echo second; : < {}", before.path(), after.path());
        let run = place.run(&[], &script);
        let mut tool = place.tool(["stop", "demo"]);
        let mut output = BufReader::new(tool.stdout());
        read_until(&mut output, "deregistered");
        read_until(&mut output, "pulled");
        before.open();
        place.site.wait_for_bytes(0, "stdout", 13);
        after.open();
        // The cached line arrives again.
        let text = read_rest(&mut output);
        assert_eq!(sorted(&text), ["bytes 19 lost 0 streams 1", "ended 0"]);
        assert_eq!((tool.wait(), run.finish().code), (0, 0));
    });
}

#[test]
fn garbage_on_the_socket_of_tools_harms_nothing() {
    for_each_place(|place| {
        let mut gate = place.site.gate("gate");
        let run = place.run(&[], &format!(": < {}", gate.path()));
        let file = place.rendezvous_file().unwrap();
        let address = file.lines().next().unwrap().rsplit_once("//").unwrap().1;
        for garbage in [&b""[..], b"\n", &[0; 64], &[0xff; 4096], b"GET / HTTP/1.0\r\n\r\n"] {
            let mut socket = TcpStream::connect(address).unwrap();
            // It may be closed already.
            let _ = socket.write_all(garbage);
        }
        assert_eq!(lines(&place.tool(["namespaces"]).finish()), ["attached", "demo"]);
        gate.open();
        assert_eq!(run.finish().code, 0);
    });
}

#[test]
fn a_job_is_refused_without_its_library_only_if_its_programs_need_it() {
    // The tool is linked with libpmix, as programs of Open MPI are.
    let Some(tool) = &*TOOL else { return };
    let tool = tool.to_str().unwrap();
    let run = |ranks: &str, program: &[&str]| {
        let site = Site::new();
        let mut command = site.iof("run");
        command.args(["-n", ranks, "--"]).args(program).env("IOF_LIBPMIX", "/nonexistent/libpmix.so.2");
        Process::start(&mut command).finish()
    };
    let listed = run("2", &["ls", tool]);
    assert_eq!((listed.text(), listed.code), (format!("{tool}\n{tool}\n").as_str(), 0), "{listed:?}");
    assert!(listed.stderr.contains("cannot serve PMIx"), "{listed:?}");
    for needed in [&["env", tool, "rank"][..], &[tool, "rank"]] {
        let refused = run("2", needed);
        assert!(refused.code == 2 && refused.stderr.contains("cannot open the PMIx library"), "{refused:?}");
        // One rank alone starts, and reports that it has no server.
        let alone = run("1", needed);
        assert!(alone.code == 3 && alone.stderr.contains("cannot serve PMIx"), "{alone:?}");
    }
}

#[test]
fn ranks_share_the_topology_and_learn_the_processors_to_which_they_are_bound() {
    for_each_place(|place| {
        let tool = TOOL.as_ref().unwrap();
        let mut command = place.site.iof("run");
        command.args(["--mpi", "pmix", "--bind-to", "core", "--"]).arg(tool).arg("processors");
        command.env("TMPDIR", place.site.path()).env_remove("IOF_LIBPMIX");
        if let Some(library) = &place.server {
            command.env("IOF_LIBPMIX", library);
        }
        if let Some(library) = &place.tools {
            command.env("LD_LIBRARY_PATH", library.parent().unwrap());
        }
        let done = Process::start(&mut command).finish();
        assert_eq!(done.code, 0, "{done:?}");
        let words: Vec<&str> = done.text().split_whitespace().collect();
        let [cpuset, locality, "1"] = words[..] else { panic!("{done:?}") };
        let number = |text: &str| text.bytes().next().is_some_and(|byte| byte.is_ascii_digit());
        assert!(cpuset.strip_prefix("hwloc:").is_some_and(number), "{done:?}");
        // Such as SK0:L30:L20:L10:CR0:HT0:NM0.
        assert!(locality.split(':').any(|level| level.starts_with("CR")), "{done:?}");
    });
}

#[test]
fn a_tool_that_ends_a_pull_receives_what_buffering_has_held_back() {
    for_each_place(|place| {
        let mut gate = place.site.gate("gate");
        let mut command = place.site.iof("run");
        let script = format!("echo out; echo err >&2; : < {}", gate.path());
        command.args(["--mpi", "pmix", "--nspace", "demo", "--", "sh", "-c", &script]);
        // libpmix answers the end of a pull from memory that it never sets.
        let run = place.start_launcher(command.env("MALLOC_PERTURB_", "85"));
        place.site.wait_for_bytes(0, "stdout", 4);
        place.site.wait_for_bytes(0, "stderr", 4);
        let mut tool = place.tool(["held", "demo"]);
        let mut stdin = tool.stdin();
        let mut output = BufReader::new(tool.stdout());
        let mut errors = BufReader::new(tool.stderr());
        let before = read_until(&mut output, "held");
        assert!(!before.contains("out"), "{before}");
        // Either of both pulls, whose bytes libpmix writes.
        stdin.write_all(b"\n").unwrap();
        read_until(&mut output, "out");
        stdin.write_all(b"\n").unwrap();
        read_until(&mut output, "ended");
        assert_eq!((tool.wait(), read_rest(&mut errors)), (0, "err\n".into()));
        gate.open();
        assert_eq!(run.finish().code, 0);
    });
}

#[test]
fn a_run_without_a_socket_hosts_pmix_without_a_word_about_tools() {
    for_each_place(|place| {
        let mut command = Command::new(embedders::IOF);
        command.args(["run", "--rendezvous-dir", "none", "--mpi", "pmix", "true"]).env_remove("IOF_LIBPMIX");
        if let Some(library) = &place.server {
            command.env("IOF_LIBPMIX", library);
        }
        let done = Process::start(command.env("TMPDIR", place.site.path())).finish();
        assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    });
}

#[test]
fn pps_of_the_system_lists_the_job() {
    if !Path::new("/usr/bin/pps").exists() {
        eprintln!("skipped: pps is not installed (libpmix-bin)");
        return;
    }
    let place = Place { site: Site::new(), server: None, tools: None };
    let mut gate = place.site.gate("gate");
    let run = place.run(&[], &format!(": < {}", gate.path()));
    let done = place.start(Path::new("/usr/bin/pps"), "--pid", [run.pid().to_string()]).finish();
    // As under prterun, it writes all of this to stderr.
    assert!(done.code == 0 && done.stderr.contains("Active nspaces: demo\n"), "{done:?}");
    gate.open();
    assert_eq!(run.finish().code, 0);
}
