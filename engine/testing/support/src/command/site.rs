//! The rendezvous directory of one test, with its engines and tools.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Done, Process};
use crate::{TIMEOUT, wait_for, wait_or};

/// The values of `--backend`.
pub const BACKENDS: [&str; 2] = ["io-uring", "epoll"];

/// The directory of one test: the rendezvous point of its engines, and the place of its gates.
pub struct Site {
    directory: TempDir,
    /// The value of `--backend` for `iof run`; `None` for its default.
    backend: Option<String>,
    /// The value of `--carrier` for `iof run --rsh`; `None` for the stdin and stdout of that command.
    carrier: Option<String>,
}

/// One stream in the answer to `iof query stats --json`.
#[derive(Clone, Debug)]
pub struct Stream(pub Value);

impl Stream {
    pub fn number(&self, field: &str) -> u64 {
        self.0[field].as_u64().unwrap_or_else(|| panic!("no number {field} in {}", self.0))
    }

    pub fn is(&self, rank: u32, channel: &str) -> bool {
        self.number("rank") == u64::from(rank) && self.0["channel"] == channel
    }

    pub fn is_complete(&self) -> bool {
        self.0["complete"].as_bool().unwrap()
    }

    /// Returns the number of `iof pull` that read the stream.
    pub fn pulls(&self) -> usize {
        self.readers("iof pull").len()
    }

    /// Returns the readers with the name `tool`.
    pub fn readers(&self, tool: &str) -> Vec<&Value> {
        self.0["readers"].as_array().unwrap().iter().filter(|reader| reader["tool"] == tool).collect()
    }
}

/// Returns the values in the answer to `iof query --json`.
pub fn found(done: &Done) -> Vec<Value> {
    let answer = done.text();
    let mut answer: Value = serde_json::from_str(answer).unwrap_or_else(|e| panic!("{e}: {answer}"));
    answer["results"].as_array_mut().unwrap().iter_mut().map(|result| result["value"].take()).collect()
}

impl Site {
    /// Returns a site on the backend in `IOF_TEST_BACKEND` and over the carrier in `IOF_TEST_CARRIER`, so
    /// that all tests can be run on either backend, and those of several nodes over either carrier.
    pub fn new() -> Site {
        let [backend, carrier] =
            ["BACKEND", "CARRIER"].map(|name| std::env::var(format!("IOF_TEST_{name}")).ok());
        Site { directory: tempfile::tempdir().unwrap(), backend, carrier }
    }

    /// Returns a site whose agents have the stdin and stdout of their command as the connection.
    pub fn over_stdin() -> Site {
        Site { carrier: None, ..Site::new() }
    }

    pub fn on(backend: &str) -> Site {
        Site { backend: Some(backend.into()), ..Site::new() }
    }

    /// Returns a site on the default backend of `iof run`.
    pub fn on_default_backend() -> Site {
        Site { backend: None, ..Site::new() }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns `iof COMMAND --rendezvous-dir` with the directory of this site.
    pub fn iof(&self, command: &str) -> Command {
        let mut iof = iof();
        iof.arg(command).arg("--rendezvous-dir").arg(self.path());
        iof
    }

    /// Starts `iof run OPTIONS -- PROGRAM...`
    pub fn run<P: AsRef<OsStr>>(&self, options: &[&str], program: impl IntoIterator<Item = P>) -> Process {
        let backend = self.backend.iter().flat_map(|backend| ["--backend", backend]);
        let is_open = options.contains(&"--rsh") && !options.contains(&"--carrier");
        let carrier = self.carrier.iter().filter(|_| is_open);
        let carrier = carrier.flat_map(|carrier| ["--carrier", carrier]);
        Process::start(self.iof("run").args(backend).args(carrier).args(options).arg("--").args(program))
    }

    /// Starts `iof run OPTIONS -- sh -c SCRIPT`.
    pub fn run_sh(&self, options: &[&str], script: &str) -> Process {
        self.run(options, ["sh", "-c", script])
    }

    /// Starts `iof pull OPTIONS`.
    pub fn pull(&self, options: &[&str]) -> Process {
        Process::start(self.iof("pull").args(options))
    }

    /// Runs `iof query OPTIONS` to its end.
    pub fn query(&self, options: &[&str]) -> Done {
        Process::start(self.iof("query").args(options)).finish()
    }

    fn rows(&self, key: &str) -> Option<Vec<Value>> {
        let done = self.query(&[key, "--json"]);
        // The exit code is 2 while there is no engine.
        assert!(matches!(done.code, 0 | 2), "{done:?}");
        (done.code == 0).then(|| match found(&done).remove(0) {
            Value::Array(rows) => rows,
            other => panic!("no rows: {other}"),
        })
    }

    /// Returns all streams; `None` while there is no engine.
    pub fn streams(&self) -> Option<Vec<Stream>> {
        Some(self.rows("stats")?.into_iter().map(Stream).collect())
    }

    /// Returns one stream, if it exists.
    pub fn stream(&self, rank: u32, channel: &str) -> Option<Stream> {
        self.streams()?.into_iter().find(|stream| stream.is(rank, channel))
    }

    /// Returns all processes; `None` while there is no engine.
    pub fn procs(&self) -> Option<Vec<Value>> {
        self.rows("procs")
    }

    /// Waits until a job has started all of its `ranks` ranks.
    pub fn wait_for_ranks(&self, ranks: usize) {
        let is_started = |proc: &Value| proc["state"] != "launching";
        wait_for("the ranks", || {
            let procs = self.procs()?;
            (procs.len() == ranks && procs.iter().all(is_started)).then_some(())
        });
    }

    /// Waits until `reached` holds for the stream.
    pub fn wait_for_stream(&self, rank: u32, channel: &str, reached: impl Fn(&Stream) -> bool) -> Stream {
        let found = || self.stream(rank, channel).filter(&reached);
        wait_or(TIMEOUT, found, || format!("rank {rank}'s {channel}: {:?}", self.stream(rank, channel)))
    }

    /// Waits until the stream has produced at least `bytes` bytes.
    pub fn wait_for_bytes(&self, rank: u32, channel: &str, bytes: u64) -> Stream {
        self.wait_for_stream(rank, channel, |stream| stream.number("produced") >= bytes)
    }

    /// Waits for an engine with a job, and starts `iof pull`.
    pub fn pull_when_ready(&self) -> Process {
        wait_for("a job", || (!self.streams()?.is_empty()).then_some(()));
        self.pull(&[])
    }

    /// Waits until `bytes` bytes were logged to the output of the rank, and both `iof run` and an
    /// `iof pull` read them.
    pub fn wait_for_logged(&self, rank: u32, channel: &str, bytes: u64) {
        let is_logged = |stream: &Stream| {
            let is_read = !stream.readers("iof run").is_empty() && stream.pulls() > 0;
            let has_bytes = stream.0["logged"] == true && stream.number("produced") >= bytes;
            stream.is(rank, channel) && has_bytes && is_read
        };
        wait_for("the logged bytes", || self.streams()?.iter().any(is_logged).then_some(()));
    }

    /// Waits until exactly `pulls` `iof pull` read the stream.
    pub fn wait_for_pulls(&self, rank: u32, channel: &str, pulls: usize) {
        self.wait_for_stream(rank, channel, |stream| stream.pulls() == pulls);
    }

    /// Waits until the rank is in `state` (`running`, `terminated`...), and returns its row of the
    /// process table.
    pub fn wait_for_state(&self, rank: u32, state: &str) -> Value {
        wait_for(&format!("rank {rank} to be {state}"), || {
            let matches = |proc: &Value| proc["rank"] == rank && proc["state"] == state;
            self.procs()?.into_iter().find(matches)
        })
    }

    /// Copies `source` to an executable file in this directory, and returns its path.
    ///
    /// The writer is another process. A process that another test starts holds the files that this
    /// process writes for a moment, and a file that is open for writing cannot be executed.
    pub fn install(&self, source: &Path, name: &str) -> PathBuf {
        let path = self.path().join(name);
        let status = Command::new("install").args(["-m", "755"]).arg(source).arg(&path).status().unwrap();
        assert!(status.success(), "install: {status}");
        path
    }

    /// Creates an executable script in this directory, and returns its path.
    pub fn install_script(&self, text: &str, name: &str) -> PathBuf {
        let source = self.path().join(format!("{name}.text"));
        fs::write(&source, text).unwrap();
        self.install(&source, name)
    }

    /// Creates a closed gate.
    pub fn gate(&self, name: &str) -> Gate {
        let path = self.path().join(name);
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        Gate { path, open: None }
    }

    /// Returns the sockets of the engines.
    pub fn sockets(&self) -> Vec<PathBuf> {
        let paths = fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().path());
        let is_socket = |path: &PathBuf| {
            path.file_name().unwrap().to_str().unwrap().starts_with("iof.")
                && path.symlink_metadata().unwrap().file_type().is_socket()
        };
        paths.filter(is_socket).collect()
    }
}

/// A fifo at which a rank waits by opening it: with `: < PATH` in a shell, or with
/// `--gate OFFSET:PATH` of the program `rank`.
pub struct Gate {
    path: PathBuf,
    open: Option<File>,
}

impl Gate {
    /// Opens the gate for all processes that wait at it or come later.
    pub fn open(&mut self) {
        // Also for reading, so that the open does not block.
        self.open = Some(File::options().read(true).write(true).open(&self.path).unwrap());
    }

    /// Returns the path for a shell or for `--gate OFFSET:`.
    pub fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

/// Returns `iof` without arguments, and without the variables that select engines and logs.
pub fn iof() -> Command {
    let mut iof = Command::new(built("iof"));
    let directories = ["PMIX_SERVER_TMPDIR", "PMIX_SYSTEM_TMPDIR"];
    let rank = ["IOF_SERVER", "IOF_NSPACE", "IOF_RANK"];
    let logs = ["IOF_SYSLOG", "PMIX_MCA_plog_base_order", "PMIX_MCA_plog_base_log_once"];
    for variable in directories.iter().chain(&rank).chain(&logs) {
        iof.env_remove(variable);
    }
    iof
}

/// Returns the path of a file in the folder of the built programs, two above the running test.
fn built(name: &str) -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().with_file_name(name)
}

/// Returns the path of a program in `examples`.
pub fn program(name: &str) -> String {
    let program = built("examples").join(name);
    assert!(program.exists(), "{}: run `cargo build -p iof-cli --examples`", program.display());
    program.to_str().unwrap().to_owned()
}

/// Returns the command line of the generator program, `examples/rank.rs`.
pub fn rank<A: AsRef<str>>(args: impl IntoIterator<Item = A>) -> Vec<String> {
    let args = args.into_iter().map(|arg| arg.as_ref().to_owned());
    std::iter::once(program("rank")).chain(args).collect()
}

/// Returns the lines as a set.
pub fn lines(text: &str) -> BTreeSet<&str> {
    text.lines().collect()
}

/// Runs a job `launcher@1`, which must end with exit code 0.
pub fn run(site: &Site, options: &[&str], script: &str) -> Done {
    let done = site.run_sh(&[&["--nspace", "launcher@1"], options].concat(), script).finish();
    assert_eq!(done.code, 0, "{done:?}");
    done
}
