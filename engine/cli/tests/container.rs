//! `iof run` with what containers leave out: /proc, a directory for files, pidfd_open(2), a parent
//! that reaps orphans, and a reader of the output.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use iof_testing::command::site::{Site, iof};
use iof_testing::process::{Done, Process};
use iof_testing::wait_for;
use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Returns `unshare OPTIONS`, or `None` with a message if this process may not create namespaces.
fn unshare(options: &[&str]) -> Option<Command> {
    let mut command = Command::new("unshare");
    command.args(options);
    let mut trial = Command::new("unshare");
    if trial.args(options).arg("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return Some(command);
    }
    eprintln!("skipped: unshare {options:?} is not permitted here");
    None
}

/// Adds `iof run OPTIONS -- sh -c SCRIPT` to the arguments of `command`.
fn run_in(command: &mut Command, options: &[&str], script: &str) -> Process {
    let iof = iof();
    command.arg(iof.get_program()).arg("run").args(options).args(["--", "sh", "-c", script]);
    for (name, value) in iof.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Process::start(command)
}

/// Returns a new namespace in which `iof run` is the first process. Such runs need a socket each,
/// or none, because all have the same pid.
fn new_pid_namespace() -> Option<Command> {
    unshare(&["--pid", "--fork", "--kill-child", "--mount-proc"])
}

#[test]
fn the_first_process_of_a_pid_namespace_reaps_orphans() {
    let Some(mut container) = new_pid_namespace() else { return };
    // A process that was not reaped stays in /proc as a zombie.
    let script = "orphan=$(sh -c 'exec 2>&-; sleep 0.01 >&- & echo $!'); [ $PPID = 1 ] || exit 9
        while [ -e /proc/$orphan ]; do sleep 0.01; done; exit 5";
    assert_eq!(run_in(&mut container, &["-n", "3", "--rendezvous-dir", "none"], script).finish().code, 5);
}

#[test]
fn orphans_that_a_real_time_signal_has_ended_are_reaped() {
    let Some(mut container) = new_pid_namespace() else { return };
    let script = "orphan=$(sh -c 'exec 2>&-; sleep 1000 >&- & echo $!'); [ $PPID = 1 ] || exit 9
        kill -40 $orphan; while [ -e /proc/$orphan ]; do sleep 0.01; done; exit 5";
    assert_eq!(run_in(&mut container, &["-n", "3", "--rendezvous-dir", "none"], script).finish().code, 5);
}

#[test]
fn the_first_process_of_a_pid_namespace_passes_signals_on() {
    let Some(mut container) = new_pid_namespace() else { return };
    let script = "trap 'echo got; exit 3' TERM; echo ready; while :; do sleep 0.01; done";
    let mut container = run_in(&mut container, &["--rendezvous-dir", "none"], script);
    let mut stdout = container.stdout();
    stdout.read_exact(&mut [0; "ready\n".len()]).unwrap();
    let children = format!("/proc/{0}/task/{0}/children", container.pid());
    let first = fs::read_to_string(children).unwrap();
    kill(Pid::from_raw(first.trim().parse().unwrap()), Signal::SIGTERM).unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), container.wait()), ("got\n", 3));
}

#[test]
fn a_job_runs_without_proc() {
    let Some(mut container) = unshare(&["--mount"]) else { return };
    let site = Site::new();
    container.args(["sh", "-c", "umount -l /proc && exec \"$@\"", "sh"]);
    let directory = site.path().to_str().unwrap();
    let done = run_in(&mut container, &["-n", "2", "--rendezvous-dir", directory], "echo $IOF_RANK").finish();
    let mut lines: Vec<&str> = done.text().lines().collect();
    lines.sort_unstable();
    assert_eq!((done.code, &lines[..], done.stderr.as_str()), (0, &["0", "1"][..], ""));
}

/// Runs `iof run` with `options` where the kernel refuses these system calls, as some seccomp
/// filters do.
fn run_without(calls: &[i64], options: &[&str], script: &str) -> Done {
    let rules = calls.iter().map(|call| (*call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
    let filter = BpfProgram::try_from(filter).unwrap();
    let run = || {
        seccompiler::apply_filter(&filter).unwrap();
        Site::new().run_sh(options, script).finish()
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

#[test]
fn a_job_runs_where_pidfd_open_is_refused() {
    let done = run_without(&[libc::SYS_pidfd_open], &["-n", "2"], "exit 4");
    assert_eq!(done.code, 4, "{done:?}");
}

#[test]
fn ranks_receive_signals_where_pidfd_send_signal_is_refused() {
    let refused = [libc::SYS_pidfd_send_signal, libc::SYS_pidfd_open];
    let script = "[ $IOF_RANK = 1 ] && kill -KILL $$; sleep 1000";
    for stdin in ["0", "none"] {
        let options = ["-n", "3", "--nspace", "demo", "--stdin", stdin, "--kill-wait", "100"];
        let done = run_without(&refused, &options, script);
        let told = "iof: job demo: terminated 2 other ranks (0,2) because rank 1 failed";
        assert!(done.code == 137 && done.stderr.contains(told), "{done:?}");
    }
}

/// Runs jobs with this TMPDIR, which cannot be used for `reason`: refused with the remedy, nothing
/// started, and with the remedy it runs. `start` returns the command that starts `iof`.
fn assert_refused_with_a_remedy(start: impl Fn() -> Command, tmpdir: &Path, reason: &str) {
    let run = |options: &[&str]| -> Done {
        let site = Site::new();
        let mut command = start();
        let proof = site.path().join("proof");
        let done =
            run_in(command.env("TMPDIR", tmpdir), options, &format!("echo hello; : > {}", proof.display()));
        let done = done.finish();
        assert_eq!(proof.exists(), done.code == 0, "{done:?}");
        done
    };
    let refused = run(&[]);
    assert_eq!((refused.code, refused.text(), refused.stderr.lines().count()), (2, "", 1), "{refused:?}");
    let named = tmpdir.join(format!("iof-{}", nix::unistd::geteuid()));
    for told in [named.to_str().unwrap(), reason, "--rendezvous-dir none"] {
        assert!(refused.stderr.contains(told), "{told}: {refused:?}");
    }
    // libpmix keeps files in TMPDIR. If it is not installed, that is told.
    let refused = run(&["--rendezvous-dir", "none", "--mpi", "pmix"]);
    assert_eq!((refused.code, refused.text(), refused.stderr.lines().count()), (2, "", 1), "{refused:?}");
    let remedy = if refused.stderr.contains("iof-pmix-") { "set TMPDIR to" } else { "IOF_LIBPMIX" };
    assert!(refused.stderr.contains(remedy), "{refused:?}");
    let elsewhere = Site::new();
    for directory in ["none", elsewhere.path().to_str().unwrap()] {
        let done = run(&["--rendezvous-dir", directory]);
        assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "hello\n", ""));
    }
}

#[test]
fn with_a_missing_temporary_directory_one_line_names_the_remedy() {
    let site = Site::new();
    let missing = site.path().join("missing/directory");
    assert_refused_with_a_remedy(|| Command::new("env"), &missing, "No such file or directory");
    assert!(!site.path().join("missing").exists(), "the parents of the rendezvous directory are not created");
    // The kernel permits no new directory there.
    assert_refused_with_a_remedy(|| Command::new("env"), Path::new("/proc/self/task"), "");
}

#[test]
fn with_a_read_only_temporary_directory_one_line_names_the_remedy() {
    let site = Site::new();
    let directory = site.path().join("read-only");
    fs::create_dir(&directory).unwrap();
    if nix::unistd::geteuid().is_root() {
        // The mode of a directory does not restrict root.
        if unshare(&["--mount"]).is_none() {
            return;
        }
        let script = "mount --bind -o ro \"$0\" \"$0\" && exec \"$@\"";
        let start = || {
            let mut container = unshare(&["--mount"]).unwrap();
            container.args(["sh", "-c", script]).arg(&directory);
            container
        };
        assert_refused_with_a_remedy(start, &directory, "Read-only file system");
    } else {
        fs::set_permissions(&directory, Permissions::from_mode(0o555)).unwrap();
        assert_refused_with_a_remedy(|| Command::new("env"), &directory, "Permission denied");
    }
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
}

#[test]
fn two_signals_end_the_first_process_of_a_namespace_whose_job_cannot_start() {
    if cfg!(target_env = "musl") {
        eprintln!("skipped: a static executable cannot open libraries");
        return;
    }
    let Some(mut container) = new_pid_namespace() else { return };
    let site = Site::new();
    // dlopen(3) reads it under the lock that exit(3) needs.
    let library = site.path().join("libpmix.so");
    mkfifo(&library, Mode::S_IRWXU).unwrap();
    container.env("IOF_LIBPMIX", &library);
    let run = run_in(&mut container, &["--mpi", "pmix", "--rendezvous-dir", "none"], "exit");
    let open = || File::options().write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&library).ok();
    let writer = wait_for("the command to open the library", open);
    let [iof] = run.running("iof")[..] else { panic!("{:?}", run.running("iof")) };
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        kill(Pid::from_raw(iof.try_into().unwrap()), signal).unwrap();
    }
    assert_eq!(run.wait(), 128 + Signal::SIGTERM as i32);
    drop(writer);
}
