//! Programs in C that are compiled and run, with what the system has.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Nothing here takes so long: whoever waits longer has failed.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Whether `program` can be run.
pub fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        eprintln!("skipped: there is no {program} here");
    }
    found.is_ok()
}

/// The system's compiler, and a place for what it makes.
pub struct Compiler {
    pub directory: TempDir,
}

pub fn compiler() -> Option<Compiler> {
    if !has("cc") {
        return None;
    }
    // By the names that programs ask for.
    let directory = tempfile::tempdir().unwrap();
    for name in ["libiof.so", "libiof.so.0", "libiof-pmix.so", "libiof-pmix.so.0"] {
        let of = name.trim_end_matches(".0").replace('-', "_");
        symlink(built().join(of), directory.path().join(name)).unwrap();
    }
    Some(Compiler { directory })
}

/// How to compile against the system's PMIx.
pub fn pmix_flags() -> Option<Vec<String>> {
    if !has("pkg-config") {
        return None;
    }
    let asked = Command::new("pkg-config").args(["--cflags", "pmix"]).output().unwrap();
    if !asked.status.success() {
        eprintln!("skipped: there is no pmix.h here (libpmix-dev)");
        return None;
    }
    Some(String::from_utf8(asked.stdout).unwrap().split_whitespace().map(str::to_owned).collect())
}

/// Where cargo has put the libraries: beside this test.
pub fn built() -> PathBuf {
    env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// The folder engine/c, whichever of its packages is tested.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    if here.ends_with("pmix") { here.parent().unwrap().to_owned() } else { here.to_owned() }
}

pub fn include() -> PathBuf {
    root().join("include")
}

impl Compiler {
    /// A command that looks at `program`.
    pub fn syntax(&self, program: &str) -> Command {
        let source = self.directory.path().join("program.c");
        std::fs::write(&source, program).unwrap();
        let mut command = Command::new("cc");
        command.arg(source).arg("-I").arg(include());
        command
    }

    /// Compiles `source`, and links it with the C library.
    pub fn program(&self, source: &Path, flags: &[&str]) -> PathBuf {
        self.linked(source, flags, "-liof")
    }

    /// The same with another library.
    pub fn linked(&self, source: &Path, flags: &[&str], library: &str) -> PathBuf {
        let name = source.file_stem().unwrap();
        let made = self.directory.path().join(name);
        let mut command = Command::new("cc");
        command.args(["-std=gnu17", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&made);
        command.arg(source).args(flags).arg("-I").arg(include());
        command.arg("-L").arg(self.directory.path()).args(library.split_whitespace());
        run(&mut command);
        made
    }
}

/// A program of tests/c.
pub fn source(name: &str) -> PathBuf {
    root().join("tests/c").join(name)
}

const RANKS: &str = "3";
/// `seq 1000`, `oops`, and what the ranks got, of three ranks.
const BYTES: usize = 3 * (3893 + 5 + 10);

/// Runs the launcher of tests/c, and its tool beside it, each as `how` says, to their ends.
pub fn together(launcher: &Path, tool: &Path, how: &[&str], tool_args: &[&str], tool_env: &[(&str, &Path)]) {
    let sockets = tempfile::tempdir().unwrap();
    let command = |program: &Path| {
        let patience = PATIENCE.as_secs().to_string();
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", &patience]).args(how).arg(program);
        environment(&mut command, program, sockets.path());
        command
    };
    let mut starting = command(launcher);
    if how.first() == Some(&"valgrind") {
        // Under valgrind a thread that sleeps in io_uring_enter(2) lets no other run, and there is no
        // pidfd_open(2).
        starting.env("IOF_TEST_BACKEND", "epoll").env("IOF_TEST_ADOPT", "1");
    }
    let mut running = Running(starting.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(running.0.stdout.take().unwrap()).lines();
    let mut hear = || said.next().expect("the launcher says no more").unwrap();

    let uri = hear().strip_prefix("uri ").unwrap().to_owned();
    running.say(&format!("spawn {RANKS}\n"));
    assert_eq!(hear(), "spawned");
    run(command(tool).args([&uri, RANKS]).args(tool_args).envs(tool_env.iter().copied()));
    running.say("wait\n");
    // What two pulls ask for alike the launcher is asked for once; its own it is not.
    let expected = format!("exit 0 bytes {BYTES} lost 0 pulls 1 tools 1 logs 2 pushed hello");
    assert_eq!(hear(), expected);
    assert_eq!(hear(), "$");
    drop(running.0.stdin.take());
    let last = hear();
    assert!(last.starts_with("ends 6 stops "), "{last}");
    assert!(running.0.wait().unwrap().success());
}

/// Runs a command, which must succeed.
pub fn run(command: &mut Command) -> Output {
    let output = output(command.stdin(Stdio::null()));
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&said));
    output
}

/// Runs a command to its end, which must come.
pub fn output(command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let waiting = thread::spawn(move || child.wait_with_output().unwrap());
    let deadline = Instant::now() + PATIENCE;
    while !waiting.is_finished() {
        if Instant::now() > deadline {
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
            let output = waiting.join().unwrap();
            panic!("{command:?} does not end: {output:?}");
        }
        thread::sleep(Duration::from_millis(5));
    }
    waiting.join().unwrap()
}

/// With the libraries beside `program`, where the loader finds them, and sockets where nobody
/// else's are.
pub fn environment<'c>(command: &'c mut Command, program: &Path, sockets: &Path) -> &'c mut Command {
    command
        .env("LD_LIBRARY_PATH", program.parent().unwrap())
        .env("PMIX_SERVER_TMPDIR", sockets)
        .env_remove("IOF_SERVER")
}

/// A process that is killed when the test fails.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    pub fn say(&mut self, line: &str) {
        self.0.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
    }
}
