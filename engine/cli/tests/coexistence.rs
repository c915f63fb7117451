//! `iof` and a PMIx library in the same temporary directory: neither mistakes the files of the
//! other for its own.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;

use iof_testing::command::site::{Site, iof};
use iof_testing::process::{Done, Process};
use iof_testing::wait_for;
use nix::unistd::gethostname;

/// A PMIx server that accepts every tool and prints a line for it. It is in Python, because the
/// package of the library has no server.
const SERVER: &str = r#"
import ctypes, sys
pointer, size, status = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
done_type = ctypes.CFUNCTYPE(None, status, pointer, pointer)
@ctypes.CFUNCTYPE(None, pointer, size, done_type, pointer)
def tool_connected(info, ninfo, done, data):
    print("a tool connects", flush=True)
    proc = ctypes.create_string_buffer(b"tool", 260)
    done(0, ctypes.addressof(proc), data)
module = (pointer * 64)()
module[16] = ctypes.cast(tool_connected, pointer)
def true(key):
    key = key.encode().ljust(512, b"\0")
    return key + b"\0" * 8 + b"\1" + b"\0" * 7 + b"\1" + b"\0" * 23
infos = b"".join(map(true, sys.argv[1:]))
pmix = ctypes.CDLL("libpmix.so.2", mode=ctypes.RTLD_GLOBAL)
buffer = ctypes.create_string_buffer(infos, len(infos))
print("status", pmix.PMIx_server_init(module, buffer, size(len(sys.argv) - 1)), flush=True)
sys.stdin.read()
pmix.PMIx_server_finalize()
"#;

/// A TMPDIR that all processes of a test share.
struct SharedDir(Site);

impl SharedDir {
    fn new() -> SharedDir {
        SharedDir(Site::new())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Sets TMPDIR, and removes the variables of PMIx.
    fn with_tmpdir(&self, mut command: Command) -> Command {
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PMIX_")) {
            command.env_remove(name);
        }
        command.env("TMPDIR", self.path());
        command
    }

    fn iof(&self, args: &[&str]) -> Process {
        let mut command = self.with_tmpdir(iof());
        Process::start(command.args(args))
    }

    /// Starts `iof run` with a job of this name that runs until its stdin is closed, and waits
    /// until tools find it.
    fn run(&self, nspace: &str) -> Process {
        let run = self.iof(&["run", "--nspace", nspace, "sh", "-c", "echo hello; cat"]);
        let answer = format!("{nspace}\n");
        wait_for(nspace, || (self.iof(&["query", "namespaces"]).finish().text() == answer).then_some(()));
        run
    }

    /// Runs PMIx's `pps`.
    fn pps(&self) -> Done {
        Process::start(&mut self.with_tmpdir(Command::new("pps"))).finish()
    }

    /// Returns the names of all files and directories below.
    fn files(&self) -> Vec<String> {
        let mut files = Vec::new();
        let mut directories = vec![self.path().to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    directories.push(entry.path());
                }
                files.push(entry.file_name().into_string().unwrap());
            }
        }
        files
    }
}

fn host() -> String {
    gethostname().unwrap().into_string().unwrap()
}

/// Returns `true` if a PMIx library would read a file with this name as that of a PMIx server.
fn is_pmix(name: &str) -> bool {
    let host = host();
    let points = ["sys", "sched", "sysctrlr"].map(|kind| format!("pmix.{kind}.{host}"));
    name.starts_with(&format!("pmix.{host}.tool")) || points.iter().any(|point| name == point)
}

/// Checks that a pull receives the output of the job, and that both end.
fn assert_pulled(shared: &SharedDir, mut run: Process) {
    let mut pull = shared.iof(&["pull"]);
    let pulled = pull.collect();
    wait_for("the pull of three streams", || {
        let stats = shared.iof(&["query", "stats"]).finish();
        (stats.text().matches("iof pull").count() == 3).then_some(())
    });
    drop(run.stdin());
    assert_eq!((pull.wait(), run.wait()), (0, 0));
    assert_eq!((pulled.0.get(), pulled.1.get()), (b"hello\n".to_vec(), Vec::new()));
}

#[test]
fn no_file_of_iof_has_a_name_that_a_pmix_library_reads() {
    let shared = SharedDir::new();
    let run = shared.run(&format!("pmix.{}.tool", host()));
    let files = shared.files();
    assert_eq!(files.len(), 3, "a directory, a socket and a link: {files:?}");
    assert!(files.iter().all(|name| !is_pmix(name)), "{files:?}");
    assert_eq!(run.finish().code, 0);
}

#[test]
fn files_of_a_pmix_server_are_neither_used_nor_changed() {
    let shared = SharedDir::new();
    let pid = std::process::id();
    let text =
        format!("pmix-server.{pid};tcp4://127.0.0.1:1\n4.2.2\n{pid}\n0:0\nSat Nov 21 10:03:13 2026\n\n");
    let rests = ["", ".1", &format!(".{pid}"), ".demo"];
    let names = rests.map(|rest| format!("pmix.{}.tool{rest}", host()));
    let names: Vec<_> = names.into_iter().chain([format!("pmix.sys.{}", host())]).collect();
    assert!(names.iter().all(|name| is_pmix(name)));
    // The files are also in the directory of iof, which lies below the PMIx library's.
    let iof_directory = shared.path().join(format!("iof-{}", nix::unistd::geteuid()));
    fs::DirBuilder::new().create(&iof_directory).unwrap();
    fs::set_permissions(&iof_directory, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let paths: Vec<_> =
        [shared.path(), &iof_directory].iter().flat_map(|dir| names.iter().map(|n| dir.join(n))).collect();
    paths.iter().for_each(|path| fs::write(path, &text).unwrap());

    let pid = pid.to_string();
    for options in [&[][..], &["--system"], &["--session"], &["--pid", &pid], &["--nspace", "demo"]] {
        let done = shared.iof(&[&["query", "namespaces"], options].concat()).finish();
        assert_eq!((done.code, done.text()), (2, ""), "{options:?}: {done:?}");
    }
    assert_pulled(&shared, shared.run("demo"));
    assert!(paths.iter().all(|path| fs::read_to_string(path).unwrap() == text));
}

#[test]
fn a_real_pmix_server_with_its_tool_and_iof_work_side_by_side() {
    let shared = SharedDir::new();
    let mut probe = Command::new("python3");
    probe.args(["-c", "import ctypes; ctypes.CDLL('libpmix.so.2')"]);
    let installed = probe.output().is_ok_and(|done| done.status.success());
    if !installed || Command::new("pps").arg("--version").output().is_err() {
        eprintln!("skipped: it needs python3, and PMIx 4 or newer (apt-get install libpmix-bin)");
        return;
    }
    let alone = shared.pps();
    assert_ne!(alone.code, 0, "no server is running yet: {alone:?}");
    let run = shared.run("demo");
    let beside_run = shared.pps();
    assert_eq!(
        (beside_run.code, &beside_run.stderr),
        (alone.code, &alone.stderr),
        "iof is not a PMIx server"
    );

    // Tools find the server by a search through all directories below, or by the system's name.
    for keys in [&["pmix.srvr.tool"][..], &["pmix.srvr.tool", "pmix.srvr.sess", "pmix.srvr.sys"]] {
        let mut server = shared.with_tmpdir(Command::new("python3"));
        let mut server = Process::start(server.args(["-c", SERVER]).args(keys));
        let mut lines = BufReader::new(server.stdout()).lines().map(Result::unwrap);
        assert_eq!(lines.next().as_deref(), Some("status 0"));
        assert!(shared.files().iter().any(|name| is_pmix(name)), "{:?}", shared.files());
        let pps = shared.pps();
        assert_eq!(pps.code, 0, "{pps:?}");
        assert_eq!(lines.next().as_deref(), Some("a tool connects"));
        for options in [&[][..], &["--session"], &["--nspace", "demo"]] {
            let query = shared.iof(&[&["query", "namespaces"], options].concat()).finish();
            assert_eq!((query.code, query.text()), (0, "demo\n"), "{query:?}");
        }
        let by_pid = ["query", "namespaces", "--pid", &server.pid().to_string()];
        assert_eq!(shared.iof(&by_pid).finish().code, 2);
        assert_eq!(shared.iof(&["query", "namespaces", "--system"]).finish().code, 2);
        drop(server.stdin());
        assert_eq!(server.wait(), 0);
    }
    assert_pulled(&shared, run);
}
