//! The limits of processes on open files, processes and memory. Each error names the limit and the
//! remedy.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use iof_testing::command::site::{Site, iof};
use iof_testing::process::{Done, Process};
use iof_testing::wait_for;
use nix::unistd::{Uid, chown, geteuid};

/// Starts `iof run ARGS` in a shell that sets limits first.
fn limited(site: &Site, limits: &str, args: &[&str]) -> Process {
    let mut shell = Command::new("sh");
    let script = format!(r#"{limits} && exec "$0" run --rendezvous-dir "$@""#);
    shell.arg("-c").arg(script).arg(iof().get_program()).arg(site.path()).args(args);
    Process::start(&mut shell)
}

/// Checks that nothing was started: for exit code 2 and one line that contains all `parts`.
fn assert_refused(done: &Done, parts: &[&str]) {
    assert_ended(done, 2, parts);
}

fn assert_ended(done: &Done, code: i32, parts: &[&str]) {
    assert_eq!((done.code, done.text(), done.stderr.lines().count()), (code, "", 1), "{done:?}");
    assert!(parts.iter().all(|part| done.stderr.contains(part)), "{parts:?} in {done:?}");
}

/// Returns the number that follows `before`.
fn number_after(text: &str, before: &str) -> u64 {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("no '{before}' in {text}"));
    rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

#[test]
fn a_tiny_limit_on_open_files_is_reported_with_the_needed_number() {
    let site = Site::new();
    for limit in [6, 8, 12, 16, 20, 24, 28, 32, 40] {
        let done = limited(&site, &format!("ulimit -n {limit}"), &["true"]).finish();
        assert_refused(&done, &[&format!("RLIMIT_NOFILE is {limit}:"), "that are open", "ulimit -n"]);
        assert!(number_after(&done.stderr, "too few files for an engine and one rank: ") > 40, "{done:?}");
    }
}

#[test]
fn a_job_that_needs_more_files_than_the_limit_fits_the_limit_that_is_reported() {
    let site = Site::new();
    for ranks in ["5", "40"] {
        let args = ["-n", ranks, "sh", "-c", "seq 1000; seq 1000 >&2"];
        let done = limited(&site, "ulimit -n 70", &args).finish();
        assert_refused(
            &done,
            &[&format!("too few files for {ranks} ranks"), "RLIMIT_NOFILE is 70:", "start fewer ranks"],
        );
        let enough = number_after(&done.stderr, "raise it to ");
        assert!(enough > 64);
        let fits = limited(&site, &format!("ulimit -n {enough}"), &args).finish();
        assert_eq!(fits.code, 0, "{fits:?}");
        let one_less = limited(&site, &format!("ulimit -n {}", enough - 1), &args).finish();
        assert_refused(&one_less, &["too few files"]);
    }
}

#[test]
fn too_few_files_for_a_job_on_nodes_are_reported_with_its_ranks() {
    let site = Site::new();
    let args = ["--hosts", "a:1,b:2,c:3,d:1", "--rsh", "env NODE=%h sh -c", "-n", "7", "true"];
    let done = limited(&site, "ulimit -n 90", &args).finish();
    assert_refused(&done, &["too few files for 7 ranks", "RLIMIT_NOFILE is 90:"]);
}

/// The printers keep fewer of their files open when few descriptors are left.
#[test]
fn at_each_limit_a_job_with_files_is_refused_or_complete() {
    let site = Site::new();
    let out = site.path().join("out");
    let list = format!("dir={}", out.display());
    let args = ["--nspace", "j", "-n", "8", "--output", &list, "sh", "-c", "seq 100; seq 100 >&2"];
    let needs = |limit: u64| {
        let done = limited(&site, &format!("ulimit -n {limit}"), &args).finish();
        if done.code == 2 {
            assert_refused(&done, &["too few files"]);
            return true;
        }
        assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "", ""), "{limit}");
        for rank in 0..8 {
            for name in ["stdout", "stderr"] {
                let text = fs::read_to_string(out.join(format!("j/rank.{rank}/{name}"))).unwrap();
                assert_eq!(text.lines().count(), 100, "{limit}: {name} of {rank}");
            }
        }
        fs::remove_dir_all(&out).unwrap();
        false
    };
    let enough = (20..).step_by(10).find(|limit| !needs(*limit)).unwrap();
    let refused: Vec<u64> = (enough - 10..enough + 30).filter(|limit| needs(*limit)).collect();
    assert!(!refused.is_empty());
    assert!(refused.iter().all(|limit| *limit < enough), "complete at {enough}, but refused at {refused:?}");
}

#[test]
fn a_job_that_needs_more_memory_maps_than_the_limit_is_rejected() {
    let site = Site::new();
    let limit: u64 = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
    let ranks = limit / 12 + 1;
    let args = ["-n", &ranks.to_string(), "true"];
    let done = limited(&site, &format!("ulimit -n {} || exit 77", ranks * 8), &args).finish();
    if done.code == 77 {
        return eprintln!("not tested: this user may not open the files of {ranks} ranks");
    }
    let needed = format!("{} memory maps are needed besides", ranks * 12);
    assert_refused(&done, &[&needed, &format!("vm.max_map_count is {limit}:"), "start fewer ranks"]);
}

#[test]
fn a_limit_too_small_for_an_engine_is_reported_with_the_needs_of_the_job() {
    let site = Site::new();
    for ranks in [1, 2, 5] {
        let args = ["-n", &ranks.to_string(), "sh", "-c", "seq 1000; seq 1000 >&2"];
        let done = limited(&site, "ulimit -n 50", &args).finish();
        assert_refused(&done, &["RLIMIT_NOFILE is 50:", "for each further rank"]);
        let (base, step) = (number_after(&done.stderr, "raise it to "), number_after(&done.stderr, "by "));
        let enough = base + step * (ranks - 1);
        let fits = limited(&site, &format!("ulimit -n {enough}"), &args).finish();
        assert_eq!(fits.code, 0, "{fits:?}");
        let one_less = limited(&site, &format!("ulimit -n {}", enough - 1), &args).finish();
        assert_refused(&one_less, &["too few files"]);
    }
}

#[test]
fn a_low_soft_limit_is_raised_for_the_engine_and_kept_for_the_ranks() {
    let site = Site::new();
    let args = ["-n", "20", "sh", "-c", "echo $(ulimit -Sn) $(ulimit -Hn)"];
    let done = limited(&site, "ulimit -Sn 16 && ulimit -Hn 400", &args).finish();
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    assert_eq!(done.text(), "16 400\n".repeat(20));
}

#[test]
fn an_address_space_too_small_for_the_rings_is_reported_and_ends_all_ranks() {
    let site = Site::new();
    let run = limited(&site, "ulimit -v 2000000", &["-n", "50", "--cache-size", "64M", "sleep", "1000"]);
    assert_eq!(run.wait(), 1);
    wait_for("the end of the ranks", || run.living().is_empty().then_some(()));
    assert_ended(&run.finish(), 1, &["ulimit -v", "smaller cache", "rank "]);
}

/// Runs `iof run ARGS sleep` as a user who has no other processes and may have `limit` of them.
fn run_with_processes(site: &Site, limit: u32, args: &[&str]) -> Done {
    // The limit does not apply to root, and all processes of the test's own user would count, also
    // those that nothing has reaped yet.
    let user = Uid::from_raw(2_000_000_011 + limit);
    let program = site.install(Path::new(iof().get_program()), "iof");
    fs::set_permissions(site.path(), Permissions::from_mode(0o755)).unwrap();
    let rendezvous = site.path().join("rendezvous");
    fs::create_dir_all(&rendezvous).unwrap();
    chown(&rendezvous, Some(user), None).unwrap();
    let mut shell = Command::new("sh");
    // In dash the option is -p.
    let ulimit = format!("{{ ulimit -u {limit} 2>/dev/null || ulimit -p {limit}; }}");
    shell.arg("-c").arg(format!(r#"{ulimit} && exec "$0" run --rendezvous-dir "$@""#)).arg(program);
    shell.arg(rendezvous).args(args).args(["sleep", "1000"]).uid(user.as_raw());
    let run = Process::start(&mut shell);
    run.wait();
    wait_for("the end of the ranks", || run.living().is_empty().then_some(()));
    run.finish()
}

#[test]
fn too_few_processes_for_ranks_or_threads_are_reported_and_end_all_ranks() {
    if !geteuid().is_root() {
        // Only root can become a user without processes. The output of `eprintln!` would not be
        // shown, because the test passes.
        let message = "SKIPPED: the limit on processes is tested by root only; run this test as root";
        return writeln!(std::io::stderr(), "{message}").unwrap();
    }
    let site = Site::new();
    let done = run_with_processes(&site, 20, &["-n", "40"]);
    assert_ended(
        &done,
        1,
        &["too many processes to start 'sleep'", "RLIMIT_NPROC is 20", "ulimit -u", "rank "],
    );
    // Not enough processes even for the threads of iof. This is a failure at run time.
    let done = run_with_processes(&site, 2, &["-n", "40"]);
    assert_eq!((done.code, done.stderr.lines().count()), (1, 1), "{done:?}");
    assert!(done.stderr.contains("thread") && done.stderr.contains("ulimit -u"), "{done:?}");
    // With enough for the ranks, and not for the threads that follow them.
    let run = |limit| run_with_processes(&site, limit, &["-n", "3", "--stdin", "all", "--timeout", "1"]);
    let failed: Vec<Done> = (8..40).map(run).take_while(|done| done.code == 1).collect();
    let last = failed.last().filter(|_| failed.len() < 32);
    assert!(last.is_some_and(|done| done.stderr.contains("thread")), "{failed:?}");
}

#[test]
fn a_file_size_limit_fails_only_the_writer_of_the_file() {
    let site = Site::new();
    // In blocks of 512 bytes. This is more than an empty engine needs for memory files.
    let limit = "ulimit -f 2200";
    let small = ["--cache-size", "16K", "--nspace", "job"];
    let run = |args: &[&str]| limited(&site, limit, &[&small[..], args].concat()).finish();

    let log = format!("{} log --channel job_record,stdout \"$text\"", iof().get_program().display());
    let script = format!(
        "text=$(head -c 30000 /dev/zero | tr '\\0' x); for i in $(seq 50); do {log}; done; echo end >&2"
    );
    let done = run(&["--", "sh", "-c", &script]);
    let full = "iof: job_record: the job record ";
    let failed = done.stderr.lines().filter(|line| line.starts_with(full) && line.contains("File too large"));
    assert!((1..50).contains(&failed.count()), "{}", done.stderr);
    assert!(done.code == 0 && done.stderr.ends_with("end\n"), "{}", done.stderr);
    assert_eq!(done.stdout.len(), 50 * 30_001, "the other channel has all messages");

    let file = site.path().join("out");
    let output = format!("file={}", file.display());
    let done = run(&["--output", &output, "--", "head", "-c", "2M", "/dev/zero"]);
    assert_eq!((done.code, done.stderr.lines().count()), (1, 1), "{done:?}");
    assert!(done.stderr.contains("out.job.0.out: File too large"), "{done:?}");

    let script = format!("head -c 2M /dev/zero > {}", file.display());
    let done = run(&["--", "sh", "-c", &script]);
    assert_eq!(done.code, 153, "SIGXFSZ ends a rank as without iof: {done:?}");

    let done = limited(&site, limit, &["--cache-size", "4M", "true"]).finish();
    assert_ended(&done, 1, &["rank 0", "File too large", "`ulimit -f`"]);

    let done = limited(&site, "ulimit -f 8", &["true"]).finish();
    assert_eq!((done.text(), done.stderr.lines().count()), ("", 1), "{done:?}");
    assert!(done.stderr.contains("File too large") && done.stderr.contains("`ulimit -f`"), "{done:?}");
}

/// Fails one call of the kernel: the memory of a reader page's slots, or the receipt of a message.
/// Or interrupts each allocation once.
const FAILING_CALLS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
static atomic_int calls, interrupted;
static int fails(const char *call) {
    const char *name = getenv("CALL"), *number = getenv("NUMBER");
    return name && !strcmp(name, call) && atomic_fetch_add(&calls, 1) == atoi(number);
}
int fallocate64(int fd, int mode, off_t offset, off_t length) {
    static int (*next)(int, int, off_t, off_t);
    if (!next) next = dlsym(RTLD_NEXT, "fallocate64");
    const char *name = getenv("CALL");
    if (name && !strcmp(name, "interrupted") && atomic_fetch_add(&interrupted, 1) % 2 == 0) { errno = EINTR; return -1; }
    if (offset % 4096 != 0 && fails("slot")) { errno = ENOMEM; return -1; }
    return next(fd, mode, offset, length);
}
int fallocate(int fd, int mode, off_t offset, off_t length) { return fallocate64(fd, mode, offset, length); }
ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    static ssize_t (*next)(int, struct msghdr *, int);
    if (!next) next = dlsym(RTLD_NEXT, "recvmsg");
    if (fails("recvmsg")) { errno = ECONNRESET; return -1; }
    return next(fd, message, flags);
}
"#;

#[test]
fn a_job_whose_output_cannot_be_read_to_its_end_fails() {
    if cfg!(target_env = "musl") {
        eprintln!("skipped: a static executable cannot load libraries");
        return;
    }
    let site = Site::new();
    let (source, library) = (site.path().join("calls.c"), site.path().join("calls.so"));
    fs::write(&source, FAILING_CALLS).unwrap();
    let mut cc = Command::new("cc");
    let Ok(status) = cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status() else {
        eprintln!("skipped: no C compiler is installed");
        return;
    };
    assert!(status.success());
    let run = |call: &str, number: usize| {
        let mut command = site.iof("run");
        command.args(["-n", "2", "env", "-u", "LD_PRELOAD", "seq", "300"]);
        command.envs([("CALL", call), ("NUMBER", &number.to_string())]).env("LD_PRELOAD", &library);
        let done = Process::start(&mut command).finish();
        (done.code, done.text().lines().count(), done.stderr)
    };
    // The first slots of a page share one allocation.
    let (code, lines, stderr) = run("slot", 0);
    assert_eq!((code, lines), (1, 0), "{stderr}");
    assert!(stderr.contains("Cannot allocate memory") && stderr.contains("rank 0"), "{stderr}");
    let mut failed = 0;
    for number in 0..24 {
        let (code, lines, stderr) = run("recvmsg", number);
        assert!(
            (code, lines) == (0, 600) || (code != 0 && !stderr.is_empty()),
            "{number}: {code} {lines} {stderr}"
        );
        failed += usize::from(code != 0);
    }
    assert!(failed > 0, "no call was failed");
    assert_eq!(run("interrupted", 0), (0, 600, String::new()));
}
