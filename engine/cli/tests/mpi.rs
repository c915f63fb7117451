//! MPI programs: ranks that speak PMI-1 as MPICH does. Programs of real MPI libraries are in
//! `.ci/mpi`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use iof_testing::command::site::Site;
use iof_testing::process::{Done, Process};
use iof_testing::wait_for;
use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// Functions by which a rank speaks PMI-1.
pub const CLIENT: &str = r#"
ask() { echo "$1" >&$PMI_FD; read -r -u $PMI_FD reply; }
init() { ask 'cmd=init pmi_version=1 pmi_subversion=1'; }
barrier() { ask cmd=barrier_in; }
finalize() { ask cmd=finalize; }
abort() { echo "cmd=abort exitcode=$1" >&$PMI_FD; exit $1; }
space() { ask cmd=get_my_kvsname; name=${reply##*=}; }
"#;

/// Runs a job named demo whose ranks execute `script`.
fn run(options: &[&str], script: &str) -> Done {
    let script = format!("{CLIENT}{script}");
    let options = [&["--nspace", "demo"], options].concat();
    Site::new().run(&options, ["bash", "-c", &script]).finish()
}

/// Returns the lines of stdout in order of the alphabet.
pub fn lines(done: &Done) -> Vec<&str> {
    let mut lines: Vec<&str> = done.text().lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn ranks_learn_what_the_others_have_put() {
    let script = r#"init; space; ask "cmd=put kvsname=$name key=card-$PMI_RANK value=of $PMI_RANK"; barrier
        ask "cmd=get kvsname=$name key=card-$(((PMI_RANK + 1) % PMI_SIZE))"; echo "$PMI_RANK: $reply"; finalize"#;
    let done = run(&["-n", "3"], script);
    let values =
        [(0, 1), (1, 2), (2, 0)].map(|(rank, next)| format!("{rank}: cmd=get_result rc=0 value=of {next}"));
    assert_eq!((lines(&done), done.code), (values.iter().map(String::as_str).collect(), 0), "{done:?}");
}

#[test]
fn the_space_of_a_job_has_a_name_of_its_own_even_if_the_pid_returns() {
    let names = [0; 2].map(|_| {
        let done = run(&[], r#"init; space; echo "$name"; finalize"#);
        let name = done.text().trim_end().rsplit_once('.').map(|(_, random)| random.to_owned());
        name.unwrap_or_else(|| panic!("{done:?}"))
    });
    assert!(names[0] != names[1] && names.iter().all(|name| name.len() == 16), "{names:?}");
}

#[test]
fn all_ranks_are_told_of_the_same_file_with_the_topology() {
    // Without libhwloc, no rank is.
    let script = r#"init; space; ask "cmd=get kvsname=$name key=PMI_hwloc_xmlfile"
        test "$reply" = "cmd=get_result rc=1 msg=key_not_found" || test -r "${reply#*value=}" || exit 1
        echo "$reply"; barrier; finalize"#;
    let done = run(&["-n", "8", "--mpi", "pmi1"], script);
    let lines = lines(&done);
    assert!(done.code == 0 && lines == [lines[0]; 8], "{done:?}");
}

#[test]
fn programs_of_a_job_have_their_numbers() {
    let script =
        format!(r#"{CLIENT}init; ask cmd=get_appnum; echo "$PMI_RANK of $PMI_SIZE: $reply"; finalize"#);
    let app = ["bash", "-c", &script];
    let apps = [&app[..], &[":", "-n", "1"], &app].concat();
    let done = Site::new().run(&["-n", "2"], apps).finish();
    let text = [
        "0 of 3: cmd=appnum rc=0 appnum=0",
        "1 of 3: cmd=appnum rc=0 appnum=0",
        "2 of 3: cmd=appnum rc=0 appnum=1",
    ];
    assert_eq!(lines(&done), text, "{done:?}");
}

#[test]
fn an_abort_ends_the_job_with_its_code_and_a_line_about_its_rank() {
    for kill in ["--kill-on-bad-exit=0", "--kill-on-bad-exit=1"] {
        let done = run(&["-n", "3", kill], "init; barrier; [ $PMI_RANK = 1 ] && abort 7; exec sleep 1000");
        assert_eq!(done.code, 7, "{done:?}");
        let line = done.stderr.lines().next().unwrap_or_default();
        assert!(line.starts_with("iof: job demo: rank 1 (bash, pid "), "{done:?}");
        assert!(line.ends_with(") called MPI_Abort with code 7"), "{done:?}");
        assert!(
            done.stderr.contains("terminated 2 other ranks (0,2) because rank 1 called MPI_Abort"),
            "{done:?}"
        );
        assert!(!done.stderr.contains("ended with"), "{done:?}");
    }
}

#[test]
fn the_summary_of_a_job_that_was_aborted_names_the_rank_and_those_that_iof_ended() {
    let script = "init; barrier; [ $PMI_RANK = 1 ] && abort 7; exec sleep 1000";
    let done = run(&["-n", "4", "--summary", "--quiet"], script);
    assert_eq!((done.code, done.stderr.lines().count()), (7, 1), "{done:?}");
    let ranks = "MPI_Abort with code 7: 1 rank (1), ended by iof (SIGTERM): 3 ranks (0,2-3); 0 bytes";
    assert!(done.stderr.contains(ranks), "{done:?}");
}

#[test]
fn the_last_words_of_a_rank_are_heard_before_its_exit() {
    let done = run(&["-n", "1"], "init; echo cmd=abort exitcode=9 >&$PMI_FD; exit 1");
    assert_eq!(done.code, 9, "{done:?}");
    assert!(done.stderr.contains(") called MPI_Abort with code 9"), "{done:?}");
}

#[test]
fn an_abort_counts_although_the_rank_then_breaks_the_protocol() {
    let script = "init; printf 'cmd=abort exitcode=7\\ncmd=abort exitcode=8\\n' >&$PMI_FD; exit 1";
    let done = run(&["-n", "1"], script);
    assert_eq!(done.code, 7, "{done:?}");
}

#[test]
fn an_exit_before_finalize_is_a_failure_that_ends_the_job() {
    let script = "init; [ $PMI_RANK = 0 ] && { echo 0 leaves; exit 0; }; barrier; finalize";
    let done = run(&["-n", "2", "--summary"], script);
    assert_eq!((done.text(), done.code), ("0 leaves\n", 1), "{done:?}");
    assert!(done.stderr.contains("ended with exit code 0 before MPI_Finalize"), "{done:?}");
    assert!(done.stderr.contains("exit code 0 before MPI_Finalize: 1 rank (0)"), "{done:?}");
    let done = run(&["-n", "2"], "init; finalize; exit 0");
    assert_eq!((done.stderr.as_str(), done.code), ("", 0), "{done:?}");
}

#[test]
fn a_rank_that_ends_without_init_ends_the_job_that_waits_for_it() {
    for (script, code) in [
        // The rank ends before the other one begins, and after it.
        ("[ $PMI_RANK = 1 ] && exit 0; sleep 0.2; init; barrier; finalize", 1),
        ("[ $PMI_RANK = 1 ] && sleep 0.2 && exit 0; init; barrier; finalize", 1),
        ("[ $PMI_RANK = 1 ] && exit 16; sleep 0.2; init; barrier; finalize", 16),
        ("[ $PMI_RANK = 1 ] && sleep 0.2 && exit 16; init; barrier; finalize", 16),
    ] {
        let done = run(&["-n", "2"], script);
        assert_eq!(done.code, code, "{script}: {done:?}");
        let line = "job demo: rank 1 ended without MPI_Init, for which the other ranks wait";
        assert!(done.stderr.contains(line), "{script}: {done:?}");
    }
    let done = run(&["-n", "2", "--kill-on-bad-exit=0"], "[ $PMI_RANK = 1 ] || { init; finalize; }");
    assert_eq!((done.stderr.as_str(), done.code), ("", 0), "{done:?}");
}

#[test]
fn the_socket_of_a_rank_is_closed_at_its_exit_although_a_child_holds_it() {
    // read(1) of bash fails with 1 at the end of file, and with a greater number at its time limit.
    let child = "read -r -t 60 -u $PMI_FD reply; echo read ended with $?";
    let done = run(&["-n", "1"], &format!("init; finalize; {{ {child}; }} & exit 0"));
    assert_eq!((done.text(), done.code), ("read ended with 1\n", 0), "{done:?}");
}

#[test]
fn garbage_of_a_rank_harms_only_itself() {
    let script = r#"if [ $PMI_RANK = 0 ]; then
            trap '' PIPE; head -c 100000 /dev/zero >&$PMI_FD; echo cmd=fly >&$PMI_FD; read -r -u $PMI_FD reply || echo closed
        else init; space; echo "$reply"; finalize; fi"#;
    // A rank that ends without MPI_Init otherwise ends the job.
    let done = run(&["-n", "2", "--kill-on-bad-exit=0"], script);
    let told = lines(&done);
    assert!(told.len() == 2 && told[0] == "closed" && told[1].starts_with("cmd=my_kvsname rc=0"), "{done:?}");
    assert!(done.stderr.contains("the rank cannot use MPI any more"), "{done:?}");
}

#[test]
fn variables_of_an_outer_launcher_reach_ranks_only_without_mpi() {
    let script = r#"echo "$PMI_RANK ${PMIX_RANK-unset} ${PMIX_MCA_gds-unset} ${PMI_FD+socket}""#;
    for (choice, text) in
        [("auto", "0 unset hash socket\n"), ("pmi1", "0 unset hash socket\n"), ("none", "5 6 hash \n")]
    {
        let site = Site::new();
        let mut command = site.iof("run");
        let outer = [("PMI_RANK", "5"), ("PMIX_RANK", "6"), ("PMIX_MCA_gds", "hash")];
        command.args(["--mpi", choice, "sh", "-c", script]).envs(outer).env_remove("PMI_FD");
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), text, "{choice}: {output:?}");
    }
}

#[test]
fn a_named_library_for_pmix_that_cannot_be_opened_is_told_and_an_error_if_pmix_is_chosen() {
    for (choice, text, code) in [("pmix", "", 2), ("auto", "0\n", 0), ("pmi1", "0\n", 0)] {
        let site = Site::new();
        let mut command = site.iof("run");
        command
            .args(["--mpi", choice, "sh", "-c", "echo $PMI_RANK"])
            .env("IOF_LIBPMIX", "/nonexistent/library");
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(String::from_utf8_lossy(&output.stdout), text, "{choice}: {errors}");
        assert_eq!(output.status.code(), Some(code), "{choice}: {errors}");
        assert_eq!(errors.contains("/nonexistent/library"), choice != "pmi1", "{choice}: {errors}");
        assert_eq!(errors.contains("IOF_LIBPMIX"), choice != "pmi1", "{errors}");
    }
}

#[test]
fn ranks_are_bound_to_different_cores_only_if_asked() {
    let run = |ranks: usize, binding| {
        let options = ["-n", &ranks.to_string(), "--bind-to", binding];
        Site::new().run(&options, ["grep", "Cpus_allowed_list", "/proc/self/status"]).finish()
    };
    let all = run(1, "none");
    let here = std::fs::read_to_string("/proc/self/status").unwrap();
    assert!(here.contains(all.text()), "{all:?}");
    let one = run(1, "core");
    assert_eq!(one.code, 0, "{one:?}");
    let many = run(2, "core");
    if many.code == 0 {
        let lists = lines(&many);
        assert!(
            lists.len() == 2 && lists[0] != lists[1] && lists.contains(&one.text().trim_end()),
            "{many:?}"
        );
    } else {
        assert!(many.stderr.contains("cannot bind 2 ranks to 1 core"), "{many:?}");
    }
    let refused = run(5000, "core");
    assert!(refused.code == 2 && refused.stderr.contains("cannot bind 5000 ranks"), "{refused:?}");
}

#[test]
fn timings_name_the_protocols_of_mpi() {
    for (choice, text) in [("auto", "MPI by PMI-1"), ("pmi1", "MPI by PMI-1"), ("none", "no MPI")] {
        let done = run(&["--mpi", choice, "--timings"], "exit 0");
        assert!(done.stderr.lines().any(|line| line == format!("iof: timings: {text}")), "{done:?}");
    }
}

/// A libpmix that starts no rank. Its call that the variable STUCK names does not
/// return.
const LIBPMIX: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int call(const char *name) {
    const char *stuck = getenv("STUCK");
    while (stuck && strcmp(stuck, name) == 0) pause();
    return 0;
}
int PMIx_Initialized(void) { return 0; }
const char *PMIx_Error_string(int status) { return "failed"; }
const char *PMIx_Get_version(void) { return "OpenPMIx 5.0.0 (of a test)"; }
int PMIx_server_init(void *module, void *infos, size_t count) { return call("init"); }
int PMIx_server_finalize(void) { return call("finalize"); }
int PMIx_server_register_nspace(void *name, int ranks, void *infos, size_t count, void *done, void *data) { return call("register"); }
void PMIx_server_deregister_nspace(void *name, void *done, void *data) { call("deregister"); }
int PMIx_server_register_client(void *rank, int user, int group, void *object, void *done, void *data) { return 0; }
int PMIx_server_setup_fork(void *rank, char ***list) { *list = calloc(1, sizeof(char *)); return call("fork"); }
int PMIx_server_IOF_deliver(void *rank, int channel, void *bytes, void *infos, size_t count, void *done, void *data) { return 0; }
int PMIx_Notify_event(int status, void *rank, int range, void *infos, size_t count, void *done, void *data) { return 0; }
int PMIx_server_dmodex_request(void *rank, void *done, void *data) { return -1; }
int PMIx_Parse_cpuset_string(const char *text, void *set) { return -1; }
int PMIx_server_generate_locality_string(void *set, char **text) { return -1; }
"#;

/// Compiles this library. Returns `None` where no C compiler is installed, or a static executable
/// cannot open libraries.
fn libpmix(site: &Site, name: &str) -> Option<PathBuf> {
    if cfg!(target_env = "musl") {
        eprintln!("skipped: a static executable cannot open libraries");
        return None;
    }
    let (source, library) = (site.path().join("libpmix.c"), site.path().join(name));
    std::fs::write(&source, LIBPMIX).unwrap();
    let mut cc = Command::new("cc");
    let Ok(status) = cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status() else {
        eprintln!("skipped: no C compiler is installed");
        return None;
    };
    assert!(status.success());
    Some(library)
}

#[test]
fn a_pmix_library_that_does_not_answer_costs_a_job_seconds_at_most() {
    let site = Site::new();
    let Some(library) = libpmix(&site, "libpmix.so") else { return };
    let cases = [
        ("finalize", 0, ""),
        ("init", 2, "libpmix does not answer"),
        ("register", 2, "libpmix does not answer"),
        ("fork", 2, "libpmix does not answer"),
    ];
    // Each waits for a limit of several seconds, so all wait at once.
    let start = |(stuck, ..): &(&str, i32, &str)| {
        let mut command = site.iof("run");
        command.args(["--mpi", "pmix", "true"]).env("IOF_LIBPMIX", &library).env("STUCK", stuck);
        Process::start(&mut command)
    };
    let runs = cases.each_ref().map(start);
    for ((stuck, code, text), run) in cases.into_iter().zip(runs) {
        let done = run.finish();
        assert_eq!(done.code, code, "{stuck}: {done:?}");
        assert!(done.stderr.contains(text), "{stuck}: {done:?}");
        assert!(!text.is_empty() || done.stderr.is_empty(), "{stuck}: {done:?}");
    }
}

#[test]
fn two_signals_end_a_command_whose_job_cannot_start() {
    if cfg!(target_env = "musl") {
        eprintln!("skipped: a static executable cannot open libraries");
        return;
    }
    let site = Site::new();
    // To open this waits for a process that writes, and to read it for what that process writes.
    let library = site.path().join("libpmix.so");
    mkfifo(&library, Mode::S_IRWXU).unwrap();
    let mut command = site.iof("run");
    let run = Process::start(command.args(["--mpi", "pmix", "true"]).env("IOF_LIBPMIX", &library));
    let open = || File::options().write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&library).ok();
    let writer = wait_for("the command to open the library", open);
    run.signal(Signal::SIGINT);
    run.signal(Signal::SIGTERM);
    let done = run.finish();
    drop(writer);
    assert_eq!(done.code, 128 + Signal::SIGTERM as i32, "{done:?}");
}

#[test]
fn scripts_find_their_rank_in_the_variables_of_open_mpi() {
    let site = Site::new();
    let Some(library) = libpmix(&site, "libpmix.so") else { return };
    let mut command = site.iof("run");
    let script =
        "echo $OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_LOCAL_RANK $OMPI_COMM_WORLD_SIZE $OMPI_UNIVERSE_SIZE";
    command.args(["--mpi", "pmix", "-n", "2", "sh", "-c", script]).env("IOF_LIBPMIX", &library);
    let done = Process::start(&mut command).finish();
    assert_eq!(lines(&done), ["0 0 2 2", "1 1 2 2"], "{done:?}");
}

#[test]
fn a_pmix_library_is_not_mixed_with_one_that_the_process_is_linked_with() {
    let site = Site::new();
    let Some((library, other)) = libpmix(&site, "libpmix.so").zip(libpmix(&site, "other.so")) else { return };
    for (linked, code) in [(&other, 2), (&library, 0)] {
        let mut command = site.iof("run");
        command.args(["--mpi", "pmix", "true"]).env("IOF_LIBPMIX", &library).env("LD_PRELOAD", linked);
        let done = Process::start(&mut command).finish();
        assert_eq!(done.code, code, "{done:?}");
        assert_eq!(done.stderr.contains("linked with another libpmix"), code == 2, "{done:?}");
    }
}

/// Compiles a program that is linked with an MPI library of this name, and keeps the file that it is
/// given open until its stdin ends. Returns `None` where no C compiler is installed.
fn linked(site: &Site, library: &str) -> Option<PathBuf> {
    let source = site.path().join("source.c");
    let text = "#include <fcntl.h>\n#include <unistd.h>\nint main(int count, char **words) {
        char byte; if (count > 1) open(words[1], O_CREAT | O_RDWR, 0600);
        while (read(0, &byte, 1) > 0); return 0; }\n";
    std::fs::write(&source, text).ok()?;
    let (library, program) = (site.path().join(library), site.path().join("program"));
    let cc = |options: &[&str], output: &PathBuf| {
        Command::new("cc")
            .arg(&source)
            .args(options)
            .arg("-o")
            .arg(output)
            .status()
            .is_ok_and(|it| it.success())
    };
    let soname = format!("-Wl,-soname,{}", library.file_name()?.to_str()?);
    let is_compiled = cc(&["-shared", "-fPIC", &soname], &library)
        && cc(&["-Wl,--no-as-needed,-rpath,$ORIGIN", library.to_str()?], &program);
    if !is_compiled {
        println!("skipped: no C compiler is installed");
    }
    is_compiled.then_some(program)
}

#[test]
fn a_protocol_that_does_not_serve_a_program_is_refused_before_it_starts() {
    let site = Site::new();
    for (library, protocol, reason) in [
        ("libmpi.so.12", "pmix", "MPICH starts by PMI-1"),
        ("libmpi.so.40", "pmi1", "Open MPI starts by PMIx"),
    ] {
        let Some(program) = linked(&site, library) else { return };
        let done = site.run(&["-n", "2", "--mpi", protocol], [&program]).finish();
        assert_eq!((done.code, done.stderr.lines().count()), (1, 1), "{done:?}");
        let line = format!("iof: each rank would be alone: {reason}");
        assert!(done.stderr.starts_with(&line) && done.stderr.ends_with(": choose auto\n"), "{done:?}");
        // A launcher serves its own ranks.
        std::fs::rename(program, site.path().join("mpiexec")).unwrap();
        let launcher = site.path().join("mpiexec");
        let done = site.run(&["-n", "2", "--mpi", "pmi1"], [&launcher]).finish();
        assert_eq!(done.code, 0, "{done:?}");
    }
}

#[test]
fn a_script_counts_as_its_interpreter_and_python_only_as_what_it_may_use() {
    let site = Site::new();
    let Some(program) = linked(&site, "libmpi.so.12") else { return };
    let script = site.install_script(&format!("#!/usr/bin/env -S {}\n", program.display()), "script");
    let nodes = ["-n", "2", "--rsh", "sh -c", "--hosts", "a,b"];
    for command in [&["taskset", "-c", "0", script.to_str().unwrap()][..], &[script.to_str().unwrap()]] {
        for options in [&["-n", "2"][..], &nodes] {
            let done = site.run(&[options, &["--mpi", "pmix"]].concat(), command).finish();
            assert!(done.code == 1 && done.stderr.contains("each rank would be alone"), "{done:?}");
        }
    }
    let python = site.path().join("python3");
    let compiled = Command::new("cc").arg(site.path().join("source.c")).arg("-o").arg(&python).status();
    assert!(compiled.unwrap().success());
    let extension = site.path().join("packages/mpi4py/MPI.abi3.so");
    std::fs::create_dir_all(extension.parent().unwrap()).unwrap();
    std::fs::rename(program, extension).unwrap();
    let packages = format!("PYTHONPATH={}/packages", site.path().display());
    let done = site.run(&[&nodes[..], &["-x", &packages]].concat(), [&python]).finish();
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
}

/// Starts a job of two ranks, each of which starts a program of Open MPI with `arguments` behind the
/// back of iof.
fn start_hidden(site: &Site, program: &Path, options: &[&str], arguments: &str) -> Process {
    let script = format!("{} {arguments}; exit 0", program.display());
    let options = [&["-n", "2", "--stdin", "all", "--nspace", "demo"], options].concat();
    site.run(&options, ["sh", "-c", &script])
}

#[test]
fn two_ranks_that_have_initialised_mpi_alone_end_the_job_with_the_remedy() {
    let site = Site::new();
    let Some(program) = linked(&site, "libmpi.so.40") else { return };
    let segment = format!("{}/sm_segment.$IOF_RANK", site.path().display());
    let mut run = start_hidden(&site, &program, &[], &segment);
    let _stdin = run.stdin();
    let done = run.finish();
    let last = done.stderr.lines().last().unwrap_or_default();
    let wanted = "iof: job demo: ranks 0-1 have started MPI, each alone, because Open MPI needs PMIx: choose \
                  --mpi pmix, or --mpi none if ranks are to be alone; the job was ended because of this error";
    assert_eq!((done.code, last), (1, wanted), "{done:?}");
    // A protocol that is chosen is for MPI: that the library is open is enough.
    let mut run = start_hidden(&site, &program, &["--mpi", "pmi1"], "");
    let _stdin = run.stdin();
    let done = run.finish();
    assert!(done.code == 1 && done.stderr.contains("ranks 0-1 would be alone, because Open MPI"), "{done:?}");
}

#[test]
fn a_library_that_is_not_initialised_or_only_by_one_rank_ends_no_job() {
    let site = Site::new();
    let Some(program) = linked(&site, "libmpi.so.40") else { return };
    for segment in
        [String::new(), format!("$([ $IOF_RANK = 1 ] || echo {}/sm_segment.)", site.path().display())]
    {
        let mut run = start_hidden(&site, &program, &[], &segment);
        let (stdin, mut stderr) = (run.stdin(), BufReader::new(run.stderr()));
        let mut first = String::new();
        stderr.read_line(&mut first).unwrap();
        let line = "iof: job demo: each rank that starts MPI is alone, because Open MPI needs PMIx: choose --mpi pmix\n";
        assert_eq!(first, line);
        // Both ranks were looked at in the same look, and are several times before this ends.
        std::thread::sleep(Duration::from_millis(200));
        drop(stdin);
        let mut last = String::new();
        stderr.read_to_string(&mut last).unwrap();
        assert_eq!((last.as_str(), run.wait()), (line, 0));
    }
}

#[test]
fn ranks_that_are_alone_end_a_job_in_a_running_engine_with_1_and_the_remedy() {
    let site = Site::new();
    let Some(program) = linked(&site, "libmpi.so.40") else { return };
    let mut gate = site.gate("gate");
    let main = site.run_sh(&["--nspace", "main"], &format!(": < {}", gate.path()));
    site.wait_for_ranks(1);
    let run_in = |options: &[&str], segment: &str| {
        // The ranks exit with 0 also when they are ended.
        let script = format!("trap : TERM; sleep 1000 | {} {segment}; exit 0", program.display());
        let args = ["--in", "main", "-n", "3", "--nspace", "demo"];
        Process::start(site.iof("run").args(args).args(options).args(["sh", "-c", &script])).finish()
    };
    let remedy = "because Open MPI needs PMIx: choose --mpi pmix, or --mpi none if ranks are to be alone";
    for options in [&[][..], &["--quiet"]] {
        let done = run_in(options, &format!("{}/sm_segment.$IOF_RANK", site.path().display()));
        let wanted = format!("iof: job demo: ranks 0-2 have started MPI, each alone, {remedy}");
        assert_eq!((done.code, done.stderr.lines().last()), (1, Some(wanted.as_str())), "{done:?}");
    }
    let done = run_in(&["--mpi", "pmi1"], "");
    assert!(done.code == 1 && done.stderr.contains("ranks 0-2 would be alone, because Open MPI"), "{done:?}");
    gate.open();
    assert_eq!(main.finish().code, 0);
}

#[test]
fn ranks_that_are_alone_end_a_job_that_a_rank_has_spawned_with_the_remedy() {
    let site = Site::new();
    let Some(program) = linked(&site, "libmpi.so.40") else { return };
    let ended = site.path().join("ended");
    let (ended, program) = (ended.display(), program.display());
    let text = format!("#!/bin/sh\ntrap 'touch {ended}' TERM\nsleep 1000 | {program}\nexit 0\n");
    let child = site.install_script(&text, "child");
    let text = format!("#!/bin/sh\nuntil [ -e {ended} ]; do sleep 0.05; done\n");
    let parent = site.install_script(&text, "parent");
    let done = run_spawner(&[], child.to_str().unwrap(), parent.to_str().unwrap(), "");
    let line = "iof: job demo-2: ranks 0-2 would be alone, because Open MPI needs PMIx: choose --mpi pmix";
    assert!(done.stderr.lines().last().unwrap_or_default().starts_with(line), "{done:?}");
    // The exit code is that of the command's own job.
    assert_eq!((done.code, done.stderr.matches(line).count()), (0, 1), "{done:?}");
}

#[test]
fn ranks_of_another_launcher_are_not_alone() {
    let site = Site::new();
    let Some(program) = linked(&site, "libmpi.so.40") else { return };
    let segment = format!("{}/sm_segment.$IOF_RANK", site.path().display());
    let text = format!("#!/bin/sh\n{} {segment}\nexit 0\n", program.display());
    let launcher = site.install_script(&text, "mpiexec");
    let variable = site.install_script(&format!("#!/bin/sh\nPMIX_RANK=0 {}", &text[10..]), "started");
    for program in [launcher, variable] {
        let mut run = start_hidden(&site, &program, &[], "");
        let stdin = run.stdin();
        wait_for("the initialised ranks", || {
            (0..2).all(|rank| site.path().join(format!("sm_segment.{rank}")).exists()).then_some(())
        });
        // Long enough for several looks.
        std::thread::sleep(Duration::from_millis(700));
        drop(stdin);
        let done = run.finish();
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{program:?}");
        (0..2).for_each(|rank| std::fs::remove_file(site.path().join(format!("sm_segment.{rank}"))).unwrap());
    }
}

/// A program that spawns itself twice, as two programs of one job. `$1` is the file, and `$2` what a
/// rank does after that: with `until_started` it waits until the job uses MPI, if that was spawned.
pub const SPAWNER: &str = r#"
block() { printf "mcmd=spawn\nnprocs=$1\nexecname=%s\ntotspawns=2\nspawnssofar=$1\nargcnt=1\narg1=$1=a b
preput_num=1\npreput_key_0=PARENT\npreput_val_0=of 0\ninfo_num=1\ninfo_key_0=wdir\ninfo_val_0=/\n${3}endcmd\n" "$2"; }
until_started() { while [[ $reply = *rc=0 ]]; do ask "cmd=lookup_name service=started"
    [[ $reply != *rc=0* ]] || break; reply=rc=0; sleep 0.02; done; }
init
if [ -n "$PMI_SPAWNED" ]; then
    space; ask "cmd=get kvsname=$name key=PARENT"; value=$reply; barrier
    [ $PMI_RANK != 0 ] || ask "cmd=publish_name service=started port=x"; sleep 1
    echo "$IOF_NSPACE $PMI_RANK of $PMI_SIZE: $1 in $PWD, $value${NODE:+ on $NODE}"
else
    { block 1 "$1" "$3"; block 2 "$1"; } >&$PMI_FD; read -r -u $PMI_FD reply; echo "$reply"; $2
fi
finalize
"#;

/// Runs a rank that spawns a job of `program`, of its own if it is empty. Then the rank executes
/// `after`.
fn run_spawner(options: &[&str], program: &str, after: &str, further: &str) -> Done {
    let site = Site::new();
    let own = site.install_script(&format!("#!/bin/bash\n{CLIENT}{SPAWNER}"), "spawner");
    let own = own.to_str().unwrap();
    let program = if program.is_empty() { own } else { program };
    let options = [&["--nspace", "demo", "--mpi", "pmi1"], options].concat();
    site.run(&options, [own, program, after, further]).finish()
}

#[test]
fn a_job_that_a_rank_has_spawned_finds_its_values_and_survives_a_parent_that_succeeds() {
    let done = run_spawner(&[], "", "until_started", "");
    let line = |rank, arg| format!("demo-2 {rank} of 3: {arg}=a b in /, cmd=get_result rc=0 value=of 0");
    let mut expected = vec!["cmd=spawn_result info=ok rc=0".to_owned()];
    expected.extend([line(0, 1), line(1, 2), line(2, 2)]);
    assert_eq!((lines(&done), done.code), (expected.iter().map(String::as_str).collect(), 0), "{done:?}");
}

#[test]
fn a_job_that_a_rank_has_spawned_ends_with_a_parent_that_fails() {
    let done = run_spawner(&[], "", "exit 3", "");
    let expected = vec!["cmd=spawn_result info=ok rc=0"];
    assert_eq!((lines(&done), done.code), (expected, 3), "{done:?}");
}

#[test]
fn a_rank_learns_that_the_job_that_it_spawns_is_not_started() {
    let host = "info_key_0=host\\ninfo_val_0=elsewhere\\n";
    for (options, program, further, reason) in [
        (&[][..], "/missing", "", "program '/missing' not found"),
        (&[], "", host, "a tool can start ranks on the engine's node only"),
        (&["--spawn", "none"], "", "", "this iof run starts no jobs (--spawn none)"),
        (&["--hosts", "localhost:3"], "", "", "3 ranks need as many slots, but 1 of 3 are in use"),
    ] {
        let done = run_spawner(options, program, "", further);
        assert!(done.text().starts_with("cmd=spawn_result info=error rc=1 msg="), "{done:?}");
        assert!(done.text().contains(&reason.replace(' ', "_")), "{done:?}");
        assert_eq!((done.code, done.stderr.matches(reason).count()), (0, 1), "{done:?}");
    }
}

#[test]
fn jobs_that_ranks_spawn_one_after_the_other_lose_no_line() {
    let site = Site::new();
    let script = format!(
        r#"{CLIENT}init; cd {}
        for number in $(seq 60); do
            printf "mcmd=spawn\nnprocs=1\nexecname=sh\ntotspawns=1\nspawnssofar=1\nargcnt=2\narg1=-c
arg2=echo $PMI_RANK-$number; : > $PWD/$PMI_RANK-$number\nendcmd\n" >&$PMI_FD
            read -r -u $PMI_FD reply; [[ $reply = *rc=0 ]] || echo "$reply"
        done
        # They would end with their parent.
        until [ $(ls $PMI_RANK-* | wc -l) = 60 ]; do sleep 0.01; done
        finalize"#,
        site.path().display()
    );
    let done = site.run(&["-n", "2", "--mpi", "pmi1"], ["bash", "-c", &script]).finish();
    let numbers = |rank| (1..=60).map(move |number| format!("{rank}-{number}"));
    let wanted: BTreeSet<String> = (0..2).flat_map(numbers).collect();
    let lines: BTreeSet<String> = done.text().lines().map(str::to_owned).collect();
    assert_eq!((lines, done.code), (wanted, 0), "{}", done.stderr);
}

#[test]
fn ranks_that_spawn_without_end_are_refused_until_their_jobs_have_ended_and_the_others_lose_nothing() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!(
        r#"{CLIENT}init
        spawns() {{ printf "mcmd=spawn\nnprocs=1\nexecname=sh\ntotspawns=1\nspawnssofar=1\nargcnt=2\narg1=-c
arg2=: < {gate}\nendcmd\n" >&$PMI_FD; read -r -u $PMI_FD reply; [[ $reply = *rc=0 ]]; }}
        if [ $PMI_RANK = 2 ]; then seq 300000
        else while spawns; do :; done; echo "$reply"; : < {gate}; until spawns; do :; done; echo spawned; fi
        barrier; finalize"#,
        gate = gate.path()
    );
    let mut run = site.run(&["-n", "3", "--mpi", "pmi1"], ["bash", "-c", &script]);
    let (mut numbers, mut others) = (Vec::new(), Vec::new());
    for line in BufReader::new(run.stdout()).lines().map(Result::unwrap) {
        if let Ok(number) = line.parse::<u32>() {
            numbers.push(number);
            continue;
        }
        others.push(line);
        // Both are refused while all jobs wait, and a tool is not.
        if others.len() == 2 {
            let done = site.iof("run").args(["--in", "bash", "true"]).output().unwrap();
            assert!(done.status.success(), "{done:?}");
            gate.open();
        }
    }
    assert!(numbers.into_iter().eq(1..=300_000));
    let refusal = "cmd=spawn_result info=error rc=1 msg=this_job_has_128_of_at_most_128_jobs_that_clients_have_started_or_want\
                   _to_start_(MAX_SPAWNED_JOBS_PER_JOB),";
    assert!(others[..2].iter().all(|line| line.starts_with(refusal)), "{others:?}");
    assert_eq!(others[2..], ["spawned", "spawned"]);
    let mut errors = String::new();
    run.stderr().read_to_string(&mut errors).unwrap();
    assert_eq!(run.wait(), 0, "{errors}");
    assert!(errors.lines().count() <= 11 && errors.contains("MAX_SPAWNED_JOBS_PER_JOB"), "{errors}");
}

#[test]
fn jobs_that_start_one_another_are_limited_as_those_of_one_job() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!(
        r#"#!/bin/bash
        {CLIENT}init
        printf "mcmd=spawn\nnprocs=1\nexecname=$0\ntotspawns=1\nspawnssofar=1\nargcnt=0\nendcmd\n" >&$PMI_FD
        read -r -u $PMI_FD reply; [[ $reply = *rc=0 ]] || echo "$reply"; : < {gate}; finalize"#,
        gate = gate.path()
    );
    let own = site.install_script(&script, "chain");
    let mut run = site.run(&["--mpi", "pmi1"], [own.to_str().unwrap()]);
    let mut line = String::new();
    let mut stdout = BufReader::new(run.stdout());
    stdout.read_line(&mut line).unwrap();
    assert!(
        line.contains("has_128_of_at_most_128_jobs") && line.contains("MAX_SPAWNED_JOBS_PER_JOB"),
        "{line}"
    );
    let jobs = site.procs().unwrap().len();
    gate.open();
    assert_eq!((jobs, run.wait()), (129, 0));
}

#[test]
fn ranks_that_publish_without_end_are_refused_and_keep_their_values() {
    const RANKS: usize = 16;
    let script = r#"init; ask "cmd=publish_name service=own-$PMI_RANK port=of $PMI_RANK"; barrier
        publishes() { ask "cmd=publish_name service=$1 port=x"; [[ $reply = *rc=0 ]]; }
        n=0; while publishes $PMI_RANK-$n; do n=$((n + 1)); done; echo "$n $reply"
        barrier; ask "cmd=lookup_name service=own-$(((PMI_RANK + 1) % PMI_SIZE))"; echo "$reply"; finalize"#;
    let done = run(&["-n", &RANKS.to_string(), "--mpi", "pmi1"], script);
    let (found, refused): (Vec<&str>, Vec<&str>) =
        done.text().lines().partition(|line| line.starts_with("cmd="));
    let refusal = "has_16384_of_at_most_16384_values_that_ranks_have_published_(MAX_PUBLISHED_PER_JOB),";
    let published = |line: &&str| line.split_once(' ').unwrap().0.parse::<usize>().unwrap();
    assert!(refused.len() == RANKS && refused.iter().all(|line| line.contains(refusal)), "{done:?}");
    assert_eq!(refused.iter().map(published).sum::<usize>(), 16384 - RANKS);
    let values: BTreeSet<String> =
        (0..RANKS).map(|rank| format!("cmd=lookup_result info=ok rc=0 port=of {rank}")).collect();
    let found: BTreeSet<String> = found.into_iter().map(str::to_owned).collect();
    assert_eq!((found, done.code), (values, 0), "{done:?}");
}
