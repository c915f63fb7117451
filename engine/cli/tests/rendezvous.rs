//! The search of `iof pull` and `iof query` for an engine: by pid, by job, by level, from a rank.
//! Also the files that engines leave behind.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use iof_engine::{App, Config, Engine, Job, JobSpec, Rendezvous, StartError};
use iof_proto::Nspace;
use iof_proto::rendezvous::BindError;
use iof_testing::command::site::{Site, iof};
use iof_testing::process::{Done, Process};
use iof_testing::wait_for;
use nix::sys::signal::Signal;
use nix::unistd::{Uid, geteuid};

/// The system-level engine of a site, in this process, with a job that runs until it is dropped.
struct SystemEngine {
    engine: Engine,
    job: Job,
}

impl SystemEngine {
    fn of(site: &Site) -> SystemEngine {
        let engine = Engine::start(config(site.path())).unwrap();
        let job =
            engine.spawn(&JobSpec::new(Nspace::new("daemon").unwrap(), vec![App::new("sleep", ["1000"])]));
        SystemEngine { engine, job: job.unwrap() }
    }
}

impl Drop for SystemEngine {
    fn drop(&mut self) {
        self.job.signal(iof_engine::Signal::KILL);
    }
}

fn config(directory: &Path) -> Config {
    Config::new(Rendezvous::System(Some(directory.to_owned())))
}

/// Returns the sorted names of the files in a directory.
fn files(directory: &Path) -> Vec<String> {
    let files = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn assert_found(done: &Done, job: &str) {
    assert_eq!(
        (done.code, done.text(), done.stderr.as_str()),
        (0, format!("{job}\n").as_str(), ""),
        "{done:?}"
    );
}

fn assert_refused(done: &Done, message: &str) {
    assert_eq!((done.code, done.text()), (2, ""), "{done:?}");
    assert!(done.stderr.contains(message), "no {message:?} in {done:?}");
}

#[test]
fn a_job_is_found_by_its_name_while_it_runs() {
    let site = Site::new();
    let [mut ocean, mut air] = ["ocean", "air"].map(|name| {
        let run = site.run_sh(&["--nspace", name], &format!("echo {name}; cat"));
        wait_for(name, || (site.query(&["namespaces", "--nspace", name]).code == 0).then_some(()));
        run
    });
    assert_refused(&site.query(&["namespaces"]), "choose one with --pid");
    assert_found(&site.query(&["namespaces", "--nspace", "air"]), "air");
    let mut pull = site.pull(&["--nspace", "ocean"]);
    let pulled = pull.collect();
    wait_for("the pull of three streams", || {
        let stats = site.query(&["stats", "--nspace", "ocean"]);
        (stats.text().matches("iof pull").count() == 3).then_some(())
    });
    drop((ocean.stdin(), air.stdin()));
    assert_eq!(pull.wait(), 0);
    assert_eq!(pulled.0.get(), b"ocean\n");
    assert_eq!((ocean.wait(), air.wait()), (0, 0));
    assert_refused(&site.query(&["namespaces", "--nspace", "air"]), "has a job air");
    assert!(files(site.path()).is_empty(), "{:?}", files(site.path()));
}

#[test]
fn a_name_that_two_jobs_have_is_reported_as_ambiguous() {
    let site = Site::new();
    let runs = [(); 2].map(|()| site.run(&["--nspace", "same"], ["cat"]));
    let refused = wait_for("both runs", || {
        let done = site.query(&["namespaces", "--nspace", "same"]);
        (done.stderr.lines().count() == 3).then_some(done)
    });
    for run in &runs {
        let pid = run.pid().to_string();
        assert_refused(&refused, &format!("--pid {pid} "));
        // A run announces the name before its job begins.
        let found = wait_for("its job", || {
            let found = site.query(&["namespaces", "--pid", &pid]);
            (!found.stdout.is_empty()).then_some(found)
        });
        assert_found(&found, "same");
    }
}

#[test]
fn a_process_started_by_a_rank_finds_the_engine_of_that_rank() {
    let site = Site::new();
    let _other = site.run(&["--nspace", "other"], ["cat"]);
    site.wait_for_ranks(1);
    let script = format!("cd /; exec {} query namespaces", env!("CARGO_BIN_EXE_iof"));
    // The path of the rendezvous directory is relative to the working directory of the engine.
    let mut run = iof();
    run.current_dir(site.path()).args([
        "run",
        "--rendezvous-dir",
        ".",
        "--nspace",
        "mine",
        "sh",
        "-c",
        &script,
    ]);
    assert_found(&Process::start(&mut run).finish(), "mine");
}

#[test]
fn a_process_that_outlives_its_engine_does_not_use_another_engine() {
    let site = Site::new();
    let _other = site.run(&["--nspace", "other"], ["cat"]);
    site.wait_for_ranks(1);
    let gone = site.path().join("gone");
    let query = |options: &[&str]| {
        let mut query = iof();
        query.env("TMPDIR", "/nowhere").env("IOF_SERVER", &gone).args(["query", "namespaces"]);
        Process::start(query.args(options)).finish()
    };
    assert_refused(&query(&[]), "IOF_SERVER: cannot connect to");
    assert_found(&query(&["--rendezvous-dir", site.path().to_str().unwrap()]), "other");
    assert_refused(&query(&["--session"]), "no engine has a socket in /nowhere");
}

#[test]
fn ranks_of_an_engine_without_a_socket_do_not_use_another_engine() {
    let site = Site::new();
    // A launcher without a rendezvous point, which may itself be a rank of another engine.
    let engine = Engine::start(Config::new(Rendezvous::None)).unwrap();
    assert_eq!(engine.socket(), None);
    let proof = site.path().join("proof");
    let script = format!("echo \"${{IOF_SERVER?}}\" > {}", proof.display());
    let job = engine.spawn(&JobSpec::new(Nspace::new("job").unwrap(), vec![App::new("sh", ["-c", &script])]));
    assert_eq!(job.unwrap().wait().code(), 0);
    assert_eq!(fs::read_to_string(proof).unwrap(), "\n");
}

#[test]
fn files_of_a_killed_run_are_removed_by_the_next_run() {
    let site = Site::new();
    let killed = site.run(&["--nspace", "killed"], ["cat"]);
    site.wait_for_ranks(1);
    assert_eq!(files(site.path()).len(), 2, "a socket and a link: {:?}", files(site.path()));
    killed.signal(Signal::SIGKILL);
    assert_eq!(killed.wait(), 137);
    drop(killed);
    let left = files(site.path());
    assert_refused(&site.query(&["namespaces", "--nspace", "killed"]), "has a job killed");
    assert_eq!(files(site.path()), left, "tools remove nothing");
    let next = site.run(&["--nspace", "next"], ["cat"]);
    site.wait_for_ranks(1);
    let now = files(site.path());
    assert!(now.len() == 2 && left.iter().all(|name| !now.contains(name)), "{left:?}, then {now:?}");
    assert_eq!(next.finish().code, 0);
}

#[test]
fn the_directory_is_below_pmix_server_tmpdir_or_tmpdir_and_private() {
    let site = Site::new();
    let [server, tmp] = ["server", "tmp"].map(|name| site.path().join(name));
    for (variable, base) in [("PMIX_SERVER_TMPDIR", &server), ("TMPDIR", &tmp)] {
        fs::create_dir(base).unwrap();
        let mut run = iof();
        // TMPDIR is used only if the other variable is not set.
        run.env("TMPDIR", &tmp).env(variable, base);
        let query = format!("{} query namespaces --session", env!("CARGO_BIN_EXE_iof"));
        run.args(["run", "--nspace", "job", "sh", "-c", &format!("{query}; echo $IOF_SERVER")]);
        let done = Process::start(&mut run).finish();
        let (job, socket) = done.text().split_once('\n').unwrap();
        let directory = base.join(format!("iof-{}", geteuid()));
        assert_eq!((job, Path::new(socket.trim()).parent()), ("job", Some(directory.as_path())), "{done:?}");
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o7777, 0o700);
    }
}

#[test]
fn a_default_directory_that_another_user_has_taken_leaves_a_job_without_a_socket() {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can create the files of another user");
        return;
    }
    let site = Site::new();
    let directory = site.path().join("iof-0");
    let run = || {
        let script = ["run", "sh", "-c", "echo server=$IOF_SERVER"];
        Process::start(iof().env("TMPDIR", site.path()).args(script)).finish()
    };
    for is_directory in [true, false] {
        if is_directory {
            fs::create_dir(&directory).unwrap()
        } else {
            fs::write(&directory, "").unwrap()
        }
        chown(&directory, Some(65534), None).unwrap();
        let done = run();
        assert_eq!((done.code, done.text()), (0, "server=\n"), "{done:?}");
        let told = "iof: tools cannot attach: ";
        assert!(done.stderr.starts_with(told) && done.stderr.contains("/iof-0"), "{done:?}");
        if is_directory {
            fs::remove_dir(&directory).unwrap()
        } else {
            chown(&directory, Some(0), None).unwrap()
        }
    }
    assert_refused(&run(), "expected a directory");
}

#[test]
fn the_system_level_engine_is_preferred_unless_another_is_selected() {
    let site = Site::new();
    let run = site.run(&["--nspace", "session"], ["cat"]);
    site.wait_for_ranks(1);
    assert_refused(&site.query(&["namespaces", "--system"]), "no system-level engine");
    assert_found(&site.query(&["namespaces"]), "session");
    let system = SystemEngine::of(&site);
    let socket = system.engine.socket().unwrap().to_str().unwrap();
    assert_eq!(fs::metadata(socket).unwrap().mode() & 0o7777, 0o666);
    for options in [&["namespaces"][..], &["namespaces", "--system"]] {
        assert_found(&site.query(options), "daemon");
    }
    let named = Process::start(iof().args(["query", "namespaces", "--server", socket])).finish();
    assert_found(&named, "daemon");
    let pid = run.pid().to_string();
    for options in [&["--session"][..], &["--pid", &pid], &["--nspace", "session"]] {
        assert_found(&site.query(&[&["namespaces"], options].concat()), "session");
    }
    drop(system);
    assert_found(&site.query(&["namespaces"]), "session");
}

#[test]
fn a_second_system_level_engine_on_a_node_is_rejected() {
    let site = Site::new();
    let first = SystemEngine::of(&site);
    let Err(StartError::Rendezvous(error)) = Engine::start(config(site.path())) else {
        panic!("two system-level engines");
    };
    assert!(matches!(&error, BindError::InUse(path) if path == first.engine.socket().unwrap()), "{error}");
    drop(first);
    drop(SystemEngine::of(&site));
    assert!(files(site.path()).is_empty());
}

#[test]
fn a_user_refused_by_the_system_level_engine_uses_a_session_level_one() {
    let user = Uid::from_raw(65534);
    if !geteuid().is_root() {
        eprintln!("skipped: only root can be another user");
        return;
    }
    let site = Site::new();
    // The other user needs access to the site and to the program.
    fs::set_permissions(site.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = site.install(Path::new(env!("CARGO_BIN_EXE_iof")), "iof");
    let rendezvous = site.path().join("rendezvous");
    fs::create_dir(&rendezvous).unwrap();
    chown(&rendezvous, Some(user.as_raw()), None).unwrap();
    let _system = Engine::start(config(&rendezvous)).unwrap();
    let as_user = |args: &[&str]| {
        let mut command = Command::new(&program);
        command.uid(user.as_raw()).current_dir("/").arg(args[0]).arg("--rendezvous-dir").arg(&rendezvous);
        Process::start(command.args(&args[1..]))
    };
    let alone = as_user(&["query", "namespaces"]).finish();
    assert_eq!(alone.code, 1);
    assert!(alone.stderr.contains("user 65534 may not attach"), "{alone:?}");
    let _run = as_user(&["run", "--nspace", "own", "cat"]);
    wait_for("the user's run", || {
        let done = as_user(&["query", "namespaces"]).finish();
        (done.code == 0 && done.text() == "own\n").then_some(())
    });
    assert_eq!(as_user(&["query", "namespaces", "--system"]).finish().code, 1);
}
