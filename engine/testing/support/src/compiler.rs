//! Compiles and runs C programs with the system's compiler.

use std::env;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use tempfile::TempDir;

use crate::process::Dialog;
use crate::{BULK_TIMEOUT, wait_or};

/// Returns whether `program` can be run. If it cannot, prints that the test is skipped.
pub fn has(program: &str) -> bool {
    let status = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if status.is_err() {
        eprintln!("skipped: {program} is not installed");
    }
    status.is_ok()
}

/// The system's compiler, and a directory for the compiled programs and their libraries.
pub struct Compiler {
    pub directory: TempDir,
}

/// Returns the system's compiler, or `None` if there is none.
pub fn compiler() -> Option<Compiler> {
    if !has("cc") {
        return None;
    }
    // Link the libraries under their installed names.
    let directory = tempfile::tempdir().unwrap();
    for (name, built) in [("libiof", "libiof_c.so"), ("libiof-pmix", "libiof_pmix.so")] {
        for installed in [format!("{name}.so"), format!("{name}.so.0")] {
            symlink(library_directory().join(built), directory.path().join(installed)).unwrap();
        }
    }
    Some(Compiler { directory })
}

/// Returns the compiler flags for the system's PMIx, or `None` if it is not installed.
pub fn pmix_flags() -> Option<Vec<String>> {
    if !has("pkg-config") {
        return None;
    }
    let output = Command::new("pkg-config").args(["--cflags", "pmix"]).output().unwrap();
    if !output.status.success() {
        eprintln!("skipped: pmix.h is not installed (libpmix-dev)");
        return None;
    }
    Some(String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect())
}

/// Returns the directory of the built libraries, which is that of the running test.
pub fn library_directory() -> PathBuf {
    env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// Returns the directory engine/c.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../c").canonicalize().unwrap()
}

pub fn include() -> PathBuf {
    root().join("include")
}

impl Compiler {
    /// Returns a compiler command for the source text `program`.
    pub fn command(&self, program: &str) -> Command {
        let source = self.directory.path().join("program.c");
        std::fs::write(&source, program).unwrap();
        let mut command = Command::new("cc");
        command.arg(source).arg("-I").arg(include());
        command
    }

    /// Compiles `source` and links it with the C library. Returns the program.
    pub fn program(&self, source: &Path, flags: &[&str]) -> PathBuf {
        self.linked(source, flags, "-liof")
    }

    /// Compiles `source` and links it with `library`, a list of linker flags. Returns the program.
    pub fn linked(&self, source: &Path, flags: &[&str], library: &str) -> PathBuf {
        let name = source.file_stem().unwrap();
        let program = self.directory.path().join(name);
        let mut command = Command::new("cc");
        command.args(["-std=gnu17", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&program);
        command.arg(source).args(flags).arg("-I").arg(include());
        command.arg("-L").arg(self.directory.path()).args(library.split_whitespace());
        run(&mut command);
        program
    }
}

/// Returns the path of a source file in tests/c.
pub fn source(name: &str) -> PathBuf {
    root().join("tests/c").join(name)
}

const RANKS: &str = "3";
/// Output of three ranks: `seq 1000`, `oops`, and the line that each reads from stdin.
const BYTES: usize = 3 * (3893 + 5 + 10);

/// Starts the launcher of tests/c with a job of this number of ranks. Returns its URI, too.
fn start_job(launcher: &mut Command, ranks: &str) -> (Dialog, String) {
    let mut launcher = Dialog::start(launcher);
    let uri = launcher.next_line().strip_prefix("uri ").unwrap().to_owned();
    launcher.write(&format!("spawn {ranks}"));
    assert_eq!(launcher.next_line(), "spawned");
    (launcher, uri)
}

/// Runs the launcher of tests/c with its tool, both under `wrapper`, a command with arguments or
/// nothing.
pub fn run_launcher_and_tool(
    launcher: &Path,
    tool: &Path,
    wrapper: &[&str],
    tool_args: &[&str],
    tool_env: &[(&str, &Path)],
) {
    let sockets = tempfile::tempdir().unwrap();
    let command = |program: &Path| {
        let timeout = BULK_TIMEOUT.as_secs().to_string();
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", &timeout]).args(wrapper).arg(program);
        environment(&mut command, program, sockets.path());
        command
    };
    let mut starting = command(launcher);
    if wrapper.first() == Some(&"valgrind") {
        // Under valgrind a thread that sleeps in io_uring_enter(2) lets no other thread run, and
        // pidfd_open(2) does not exist.
        starting.env("IOF_TEST_BACKEND", "epoll").env("IOF_TEST_ADOPT", "1");
    }
    let (mut launcher, uri) = start_job(&mut starting, RANKS);
    run(command(tool).args([&uri, RANKS]).args(tool_args).envs(tool_env.iter().copied()));
    launcher.write("wait");
    // The engine asks the launcher once for two equal pulls of the tool, and not for the launcher's
    // own pull.
    let expected = format!("exit 0 bytes {BYTES} lost 0 pulls 1 tools 1 logs 2 pushed hello");
    assert_eq!([launcher.next_line(), launcher.next_line()], [&expected, "$"]);
    let (last, code) = launcher.finish();
    assert!(last.starts_with("ends 6 stops ") && code == 0, "{last}, exit code {code}");
}

/// The output of tests/c/standard.c. The names of statuses are those of iof.
pub const STANDARD_OUTPUT: &str = "copy PMIX_SUCCESS text
scope SHARE ACROSS ALL NODES, persistence RETAIN UNTIL APPLICATION OF PUBLISHING PROCESS TERMINATES, \
    range AVAIL TO PROCESSES IN SAME JOB ONLY
empty 1 1 0 1 1 0
registered 0 0, running 1, pushed 0, ended 0
answers 2
";

/// Runs the launcher of tests/c with a job of two ranks, and then `tool` with the launcher's URI and
/// this number. Returns the output of the tool.
pub fn run_with_launcher(launcher: &Path, tool: &Path) -> String {
    let sockets = tempfile::tempdir().unwrap();
    let mut starting = Command::new(launcher);
    environment(&mut starting, launcher, sockets.path());
    let (launcher, uri) = start_job(&mut starting, "2");
    let output = run(environment(&mut Command::new(tool), tool, sockets.path()).args([&uri, "2"]));
    let (last, code) = launcher.finish();
    assert!(last.starts_with("ends ") && code == 0, "{last}, exit code {code}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command, which must succeed. Returns its output.
pub fn run(command: &mut Command) -> Output {
    let output = output(command.stdin(Stdio::null()));
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&text));
    output
}

/// Runs a command, which must exit within [`BULK_TIMEOUT`]. Returns its output.
pub fn output(command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let waiting = thread::spawn(move || child.wait_with_output().unwrap());
    let explain = || {
        let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        format!("the end of {command:?}")
    };
    wait_or(BULK_TIMEOUT, || waiting.is_finished().then_some(()), explain);
    waiting.join().unwrap()
}

/// Sets the environment of a command: the loader finds the libraries beside `program`, and sockets
/// are created in the directory `sockets`.
pub fn environment<'c>(command: &'c mut Command, program: &Path, sockets: &Path) -> &'c mut Command {
    command
        .env("LD_LIBRARY_PATH", program.parent().unwrap())
        .env("PMIX_SERVER_TMPDIR", sockets)
        .env_remove("IOF_SERVER")
}
