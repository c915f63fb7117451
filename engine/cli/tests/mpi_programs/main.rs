//! Programs of real MPI libraries. `.ci/mpi` installs these libraries, compiles `ranks.c` with
//! them, and names the executables in the variable `IOF_TEST_MPI`, separated by colons.
//! `IOF_TEST_MPI4PY` names virtual environments with mpi4py in the same way; the first one has Open
//! MPI. Without these the tests do nothing.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use iof_testing::command::site::Site;
use iof_testing::process::{Done, Process};
use sha2::{Digest, Sha256};

/// Calls `test` with each program.
fn for_each_program(test: impl Fn(&str)) {
    let programs = std::env::var("IOF_TEST_MPI").unwrap_or_default();
    programs.split(':').filter(|program| !program.is_empty()).for_each(test);
}

/// Returns the virtual environments with mpi4py.
fn environments() -> Vec<String> {
    let environments = std::env::var("IOF_TEST_MPI4PY").unwrap_or_default();
    environments.split(':').filter(|path| !path.is_empty()).map(str::to_owned).collect()
}

/// Returns the one with Open MPI.
fn with_open_mpi() -> Option<String> {
    environments().into_iter().next()
}

fn run(options: &[&str], program: &str, mode: &str) -> Done {
    Site::new().run(&[&["--nspace", "demo"], options].concat(), [program, mode]).finish()
}

/// Two nodes for two ranks each, whose agents run here.
const TWO_NODES: [&str; 4] = ["--rsh", "sh -c", "--hosts", "a:2,b:2"];

/// The same ranks on this node, on two nodes, and in turn on these.
const PLACES: [&[&str]; 3] = [
    &["-n", "4"],
    &["-n", "4", "--rsh", "sh -c", "--hosts", "a:2,b:2"],
    &["-n", "4", "--rsh", "sh -c", "--hosts", "a:2,b:2", "--map-by", "node"],
];

#[test]
fn ranks_of_a_job_are_one_world() {
    for_each_program(|program| {
        let here = [1, 2, 8, 100].map(|ranks| (ranks, vec!["-n".to_owned(), ranks.to_string()]));
        let nodes =
            PLACES[1..].iter().map(|place| (4, place.iter().map(|word| (*word).to_owned()).collect()));
        for (ranks, options) in here.into_iter().chain(nodes) {
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            let done = run(&options, program, "hello");
            let sum = ranks * (ranks - 1) / 2;
            let line = |rank| format!("rank {rank} of {ranks}, app 0, sum {sum}\n");
            let wanted: BTreeSet<String> = (0..ranks).map(line).collect();
            let lines: BTreeSet<String> = done.text().split_inclusive('\n').map(str::to_owned).collect();
            assert_eq!((lines, done.code), (wanted, 0), "{program}: {}", done.stderr);
        }
    });
}

#[test]
fn ranks_share_memory_with_those_of_their_node_only() {
    for_each_program(|program| {
        for (place, nodes) in PLACES.into_iter().zip([[0xf; 4], [3, 3, 0xc, 0xc], [5, 0xa, 5, 0xa]]) {
            let done = run(place, program, "node");
            let wanted: BTreeSet<String> =
                nodes.iter().enumerate().map(|(rank, ranks)| format!("rank {rank}: {ranks:#x}")).collect();
            let lines: BTreeSet<String> = done.text().lines().map(str::to_owned).collect();
            assert_eq!((lines, done.code), (wanted, 0), "{program} {place:?}: {}", done.stderr);
        }
    });
}

#[test]
fn ranks_find_the_names_that_others_publish_and_connect_by_them() {
    for_each_program(|program| {
        for place in PLACES {
            let done = run(&[place, &["--timeout", "60"]].concat(), program, "meet");
            let result = (done.text(), done.code);
            assert_eq!(result, ("6\n6\n6\n6\n", 0), "{program} {place:?}: {}", done.stderr);
        }
    });
}

#[test]
fn ranks_spawn_jobs_one_after_the_other_and_talk_to_them() {
    for_each_program(|program| {
        let nodes = ["--rsh", "sh -c", "--hosts", "a:8,b:3", "--map-by", "node"];
        for place in [&[][..], &nodes] {
            let done = run(&[&["-n", "2", "--timeout", "60"], place].concat(), program, "spawn");
            let own = std::env::current_dir().unwrap();
            let line = |who: &str, app: u32, arg: &str, cwd: &Path| {
                format!("{who}, app {app}, '{arg}' in {}", cwd.display())
            };
            let wanted = [
                line("spawn 0 of 2: 3", 0, "", &own),
                line("spawn 1 of 2: 3", 0, "", &own),
                line("child 0 of 3: 1", 0, "a b", &own),
                line("child 1 of 3: 1", 1, "", Path::new("/")),
                line("child 2 of 3: 1", 1, "", Path::new("/")),
            ];
            let lines: BTreeSet<String> = done.text().lines().map(str::to_owned).collect();
            assert_eq!((lines, done.code), (wanted.into(), 0), "{program}: {}", done.stderr);
            assert_eq!(done.stderr.matches("program '/missing' not found").count(), 1, "{done:?}");
        }
    });
}

#[test]
fn a_library_for_scripts_does_not_disturb_linked_programs() {
    let Some(environment) = with_open_mpi() else { return };
    for_each_program(|program| {
        let site = Site::new();
        let mut command = site.iof("run");
        command.args(["-n", "2", program, "hello"]);
        command.env("IOF_LIBPMIX", format!("{environment}/lib/openmpi/libpmix.so.2"));
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: BTreeSet<&str> = text.lines().collect();
        let wanted = BTreeSet::from(["rank 0 of 2, app 0, sum 1", "rank 1 of 2, app 0, sum 1"]);
        assert_eq!(lines, wanted, "{program}: {}", String::from_utf8_lossy(&output.stderr));
    });
}

#[test]
fn ranks_of_a_linked_program_that_do_not_initialise_mpi_end_no_job() {
    for_each_program(|program| {
        for command in [program.to_owned(), format!("exec {program}")] {
            let args = [&command, "sequence", "0", "100"];
            let done = match command.strip_prefix("exec ") {
                None => Site::new().run(&["-n", "2"], args).finish(),
                Some(_) => run_hidden(&[], &args.join(" ")),
            };
            assert_eq!((done.code, done.stdout.len()), (0, 200), "{command}: {done:?}");
        }
    });
}

#[test]
fn several_programs_of_a_job_are_one_world() {
    for_each_program(|program| {
        let apps = [program, "hello", ":", "-n", "3", program, "hello"];
        for nodes in [&[][..], &TWO_NODES] {
            let options = [&["-n", "1"], nodes].concat();
            let done = Site::new().run(&options, apps).finish();
            let wanted: BTreeSet<String> =
                (0..4).map(|rank| format!("rank {rank} of 4, app {}, sum 6", u32::from(rank > 0))).collect();
            let lines: BTreeSet<String> = done.text().lines().map(str::to_owned).collect();
            assert_eq!((lines, done.code), (wanted, 0), "{program}: {done:?}");
        }
    });
}

#[test]
fn an_abort_a_killed_rank_and_an_early_exit_end_the_job() {
    for_each_program(|program| {
        for (mode, code, text) in [
            ("abort", 7, ") called MPI_Abort with code 7"),
            ("killed", 137, "was killed by SIGKILL"),
            ("leave", 1, "exit code 0 before MPI_Finalize"),
        ] {
            for place in PLACES {
                let done = run(place, program, mode);
                // A rank of Open MPI on another node aborts when the connection to this one ends, and may be the
                // first one that is noticed.
                let aborts = place.len() > 2 && program.contains("openmpi") && mode != "abort";
                let peer = aborts && done.code == 14;
                assert!(peer || done.code == code, "{program} {mode} {place:?}: {done:?}");
                assert!(peer || done.stderr.contains(text), "{program} {mode} {place:?}: {done:?}");
            }
        }
    });
}

const SCRIPT: &str = "from mpi4py import MPI; c = MPI.COMM_WORLD; print(c.rank, c.size, c.allreduce(c.rank))";

#[test]
fn a_script_of_a_shell_is_served_by_the_library_that_a_variable_names() {
    let Some(environment) = with_open_mpi() else { return };
    let site = Site::new();
    let mut command = site.iof("run");
    let script = format!("exec {environment}/bin/python -c '{SCRIPT}'");
    command.args(["-n", "3", "--timings", "sh", "-c", &script]);
    command.env("IOF_LIBPMIX", format!("{environment}/lib/openmpi/libpmix.so.2"));
    let output = command.output().unwrap();
    let (text, errors) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    let lines: BTreeSet<&str> = text.lines().collect();
    assert_eq!(lines, BTreeSet::from(["0 3 3", "1 3 3", "2 3 3"]), "{errors}");
    assert!(errors.contains("timings: MPI by PMIx (OpenPMIx 5."), "{errors}");
}

#[test]
fn scripts_of_python_have_the_protocol_of_their_mpi4py_whatever_a_variable_names() {
    let Some(open_mpi) = with_open_mpi() else { return };
    for environment in environments() {
        for library in [String::new(), format!("{open_mpi}/lib/openmpi/libpmix.so.2")] {
            let site = Site::new();
            let python = format!("{environment}/bin/python");
            let script = site.install_script(&format!("#!/usr/bin/env -S {python} -u\n{SCRIPT}\n"), "script");
            let script = script.to_str().unwrap();
            for program in [&[python.as_str(), "-c", SCRIPT][..], &[script], &["taskset", "-c", "0", script]]
            {
                let mut command = site.iof("run");
                command.args(["-n", "2"]).args(program).env("IOF_LIBPMIX", &library);
                let done = Process::start(&mut command).finish();
                let lines: BTreeSet<&str> = done.text().lines().collect();
                assert_eq!(lines, BTreeSet::from(["0 2 1", "1 2 1"]), "{program:?}: {done:?}");
            }
        }
    }
}

#[test]
fn ranks_create_communicators_from_groups_also_disjoint_ones_of_one_name() {
    let Some(environment) = with_open_mpi() else { return };
    let script = "from mpi4py import MPI
world = MPI.COMM_WORLD
half = world.Get_group().Incl([rank for rank in range(world.size) if rank % 2 == world.rank % 2])
for turn in range(3):
    for group in world.Get_group(), half:
        made = MPI.Intracomm.Create_from_group(group, f'{turn} {group.size}')
        print(f'{made.size} ranks, sum {made.allreduce(made.rank)}')
        made.Free()";
    let site = Site::new();
    let mut command = site.iof("run");
    command.args(["-n", "4", "--timeout", "60", &format!("{environment}/bin/python"), "-c", script]);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let count = |line| text.matches(line).count();
    assert_eq!((count("4 ranks, sum 6\n"), count("2 ranks, sum 1\n")), (12, 12), "{text}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_program_is_found_behind_a_command_that_starts_it() {
    for_each_program(|program| {
        for starter in [&["env", "A=1"][..], &["taskset", "-c", "0"]] {
            let done = Site::new().run(&["-n", "2"], [starter, &[program, "hello"]].concat()).finish();
            let lines: BTreeSet<&str> = done.text().lines().collect();
            let wanted = BTreeSet::from(["rank 0 of 2, app 0, sum 1", "rank 1 of 2, app 0, sum 1"]);
            assert_eq!(lines, wanted, "{starter:?} {program}: {done:?}");
        }
    });
}

/// Runs two ranks of a shell that execute a command, without a library for scripts.
fn run_hidden(options: &[&str], command: &str) -> Done {
    Site::new().run(&[&["-n", "2"], options].concat(), ["sh", "-c", command]).finish()
}

#[test]
fn ranks_that_start_open_mpi_alone_end_the_job_unless_it_has_no_mpi() {
    let programs = std::env::var("IOF_TEST_MPI").unwrap_or_default();
    let Some(program) = programs.split(':').nth(1) else { return };
    for options in [&[][..], &["--mpi", "pmi1"]] {
        let done = run_hidden(options, &format!("exec {program} hello"));
        let last = done.stderr.lines().last().unwrap_or_default();
        assert!(done.code == 1 && last.contains("because Open MPI needs PMIx: "), "{done:?}");
        assert!(last.contains("IOF_LIBPMIX=/") && last.contains("/libpmix.so.2, or --mpi none"), "{done:?}");
    }
    let done = run_hidden(&["--mpi", "none"], &format!("exec {program} hello"));
    assert_eq!((done.code, done.text().matches("rank 0 of 1").count()), (0, 2), "{done:?}");
}

#[test]
fn ranks_of_python_that_do_not_initialise_mpi_end_no_job() {
    let Some(environment) = with_open_mpi() else { return };
    // Long enough for a look at the process.
    let script = "import mpi4py, time; mpi4py.rc.initialize = False; from mpi4py import MPI; time.sleep(2)";
    let done = run_hidden(&[], &format!("exec {environment}/bin/python -c \"{script}\""));
    let line = "each rank that starts MPI is alone, because Open MPI needs PMIx: set IOF_LIBPMIX=";
    assert_eq!((done.code, done.stderr.matches(line).count()), (0, 2), "{done:?}");
    // Here the library is known.
    let python = format!("{environment}/bin/python");
    let done = Site::new().run(&["-n", "2"], [&python, "-c", script]).finish();
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
}

#[test]
fn each_rank_may_be_a_launcher_of_its_own_job() {
    let programs = std::env::var("IOF_TEST_MPI").unwrap_or_default();
    let mut environments = environments();
    environments.truncate(2);
    // Those of programs are in the order of the alphabet.
    environments.sort();
    for (program, environment) in programs.split(':').zip(environments) {
        let launcher = format!("{environment}/bin/mpiexec");
        let command = [launcher.as_str(), "-n", "2", program, "hello"];
        for hidden in [false, true] {
            let site = Site::new();
            let mut run = site.iof("run");
            // Open MPI's needs this where the tests are root.
            run.envs(["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"].map(|name| (name, "1")));
            run.args(["-n", "2"]);
            match hidden {
                false => run.args(command),
                true => run.args(["sh", "-c", &format!("{}; exit 0", command.join(" "))]),
            };
            let done = Process::start(&mut run).finish();
            let mut lines: Vec<&str> = done.text().lines().collect();
            lines.sort_unstable();
            let [first, second] = ["rank 0 of 2, app 0, sum 1", "rank 1 of 2, app 0, sum 1"];
            assert_eq!((lines, done.code), (vec![first, first, second, second], 0), "{done:?}");
        }
    }
}

#[test]
fn programs_of_two_mpi_libraries_are_refused_and_so_is_a_wrong_protocol() {
    let programs = std::env::var("IOF_TEST_MPI").unwrap_or_default();
    let programs: Vec<&str> = programs.split(':').collect();
    let [mpich, open_mpi] = programs[..] else { return };
    let done = Site::new().run(&[], [mpich, "hello", ":", open_mpi, "hello"]).finish();
    assert_eq!(done.code, 2, "{done:?}");
    assert!(done.stderr.contains("linked with MPICH and others with Open MPI"), "{done:?}");
    let done = run(&["-n", "2", "--mpi", "pmi1"], open_mpi, "hello");
    assert_eq!((done.code, done.text()), (1, ""), "{done:?}");
    assert!(done.stderr.contains("each rank would be alone: Open MPI starts by PMIx"), "{done:?}");
}

/// Returns the shared memory of Open MPI's jobs.
fn segments() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/dev/shm").unwrap();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with("sm_segment.")).collect()
}

#[test]
fn jobs_that_are_ended_leave_no_shared_memory_and_no_directory() {
    for_each_program(|program| {
        let before = segments();
        for mode in ["abort", "killed", "leave"] {
            let site = Site::new();
            let mut command = site.iof("run");
            let temporary = site.path().join("temporary");
            std::fs::create_dir(&temporary).unwrap();
            command.args(["-n", "3", program, mode]).env("TMPDIR", &temporary);
            command.output().unwrap();
            let left = std::fs::read_dir(&temporary).unwrap().map(|entry| entry.unwrap().file_name());
            let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with("iof-pmix-")).collect();
            assert!(left.is_empty(), "{program} {mode}: {left:?}");
        }
        // Those of jobs of other tests vanish when these jobs end.
        let mut left: BTreeSet<String> = segments().difference(&before).cloned().collect();
        let deadline = Instant::now() + Duration::from_secs(120);
        while !left.is_empty() {
            assert!(Instant::now() < deadline, "{program}: {left:?}");
            thread::sleep(Duration::from_millis(20));
            left = left.intersection(&segments()).cloned().collect();
        }
    });
}

/// Returns the checksum of the bytes that a rank writes in the mode `output`.
fn sum_of(program: &str, rank: u32, length: u64) -> Vec<u8> {
    let mut sequence = Command::new(program)
        .args(["sequence", &rank.to_string(), &length.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut sum = Sha256::new();
    io::copy(&mut sequence.stdout.take().unwrap(), &mut sum).unwrap();
    assert!(sequence.wait().unwrap().success());
    sum.finalize().to_vec()
}

#[test]
fn a_gibibyte_of_output_of_mpi_ranks_arrives_unchanged() {
    for_each_program(|program| {
        let (ranks, length) = (4, 256 << 20);
        let site = Site::new();
        let pattern = site.path().join("out.%r").to_string_lossy().into_owned();
        let options = ["-n", "4", "-o", &pattern];
        let done = site.run(&options, [program, "output", &length.to_string()]).finish();
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{program}");
        for rank in 0..ranks {
            let mut sum = Sha256::new();
            let mut file = File::open(site.path().join(format!("out.{rank}"))).unwrap();
            assert_eq!(io::copy(&mut file, &mut sum).unwrap(), length);
            assert_eq!(sum.finalize().to_vec(), sum_of(program, rank, length), "{program}: rank {rank}");
        }
    });
}
