//! `iof pull` at the beginning and at the end of a run: it receives all cached bytes of one engine,
//! or reports the missing ones.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::thread;
use std::time::Duration;

use iof_engine::{App, Config, Engine, JobSpec, Rendezvous};
use iof_proto::limits::MAX_FORGOTTEN_PER_TOOL;
use iof_proto::{Channel, Nspace, Proc, Rank};
use iof_testing::bytes::{messages, pieces};
use iof_testing::command::site::Site;
use iof_testing::process::Process;
use iof_testing::wait_for;
use nix::sys::signal::Signal;

/// A number of ranks with more streams (three each) than one message announces to a tool.
const RANKS: usize = 40;
const LINES: usize = 2000;

/// Waits until `pull` has its two connections to an engine, for stdout and stderr.
fn wait_for_connection(pull: &Process) {
    let socket = |fd: fs::DirEntry| {
        let file = fs::read_link(fd.path()).ok()?.into_os_string().into_string().ok()?;
        Some(file.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
    };
    wait_for("the connections", || {
        let fds = fs::read_dir(format!("/proc/{}/fd", pull.pid())).unwrap().flatten();
        let sockets: Vec<String> = fds.filter_map(socket).collect();
        // The state and the inode of each socket are in the sixth and the seventh column; 3 is
        // SS_CONNECTED.
        let table = fs::read_to_string("/proc/net/unix").unwrap();
        let is_connected = |line: &&str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields[5] == "03" && sockets.iter().any(|socket| socket == fields[6])
        };
        // It has no other socket before it is connected.
        (table.lines().filter(is_connected).count() >= 2).then_some(())
    });
}

/// Returns an engine without a job at `site`.
fn idle_engine(site: &Site) -> Engine {
    let rendezvous = Rendezvous::Session(Some(site.path().to_owned()));
    Engine::start(Config::new(rendezvous)).unwrap()
}

/// Returns a run that is stopped after its ranks have ended, and an `iof pull` that has just
/// connected to it.
fn stopped_at_the_end(site: &Site) -> (Process, Process) {
    let mut gate = site.gate("gate");
    let script = format!("seq {LINES}; seq {LINES} >&2; : < {}", gate.path());
    let mut run = site.run_sh(&["-n", &RANKS.to_string()], &script);
    run.collect();
    wait_for("all lines", || {
        let streams = site.streams()?;
        let written = streams.iter().filter(|stream| stream.number("produced") > 0);
        (written.map(|stream| stream.number("produced")).sum::<u64>() == 2 * bytes() as u64).then_some(())
    });
    run.stop();
    let pull = site.pull(&[]);
    wait_for_connection(&pull);
    gate.open();
    wait_for("the end of all ranks", || {
        let living = run.living();
        (living == [run.pid()]).then_some(())
    });
    (run, pull)
}

/// Returns the number of bytes that all ranks write to stdout.
fn bytes() -> usize {
    (1..=LINES).map(|number| number.to_string().len() + 1).sum::<usize>() * RANKS
}

#[test]
fn a_pull_just_before_the_end_of_the_run_receives_all_bytes() {
    let site = Site::new();
    let (run, mut pull) = stopped_at_the_end(&site);
    let (stdout, stderr) = pull.collect();
    run.signal(Signal::SIGCONT);
    let (stdout, stderr) = (stdout.get(), stderr.get());
    assert_eq!((pull.wait(), run.wait()), (0, 0), "{}", String::from_utf8_lossy(&stderr));
    assert_eq!((stdout.len(), stderr.len()), (bytes(), bytes()));
}

#[test]
fn a_stopped_pull_does_not_delay_the_end_of_the_run_and_fails() {
    let site = Site::new();
    let (run, mut pull) = stopped_at_the_end(&site);
    let (stdout, stderr) = pull.collect();
    pull.stop();
    run.signal(Signal::SIGCONT);
    assert_eq!(run.wait(), 0);
    pull.signal(Signal::SIGCONT);
    assert_eq!(pull.wait(), 1);
    assert_eq!(stdout.get(), b"");
    let stderr = String::from_utf8(stderr.get()).unwrap();
    assert!(stderr.starts_with("iof: ") && stderr.lines().count() == 1, "{stderr}");
}

/// Returns an engine without a job, and a pull that is connected to it.
fn without_a_job(site: &Site) -> (Engine, Process) {
    let engine = idle_engine(site);
    let pull = site.pull(&[]);
    wait_for_connection(&pull);
    (engine, pull)
}

/// Starts a job, for which `pull` waits, and checks that `pull` receives its output.
fn pulls_the_first_job(engine: &Engine, pull: Process) {
    // Gives the pull time to query the jobs. On a slow machine it may be too short; then the test
    // passes without testing the wait.
    thread::sleep(Duration::from_millis(100));
    let app = App::new("echo", ["hello"]);
    let job = engine.spawn(&JobSpec::new(Nspace::new("job").unwrap(), vec![app])).unwrap();
    let done = pull.finish();
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "hello\n", ""));
    job.wait();
}

#[test]
fn a_pull_from_an_engine_without_a_job_waits_for_the_first_job() {
    let site = Site::new();
    let (engine, pull) = without_a_job(&site);
    pulls_the_first_job(&engine, pull);
}

#[test]
fn a_pull_of_a_named_job_waits_for_it_while_an_engine_has_no_job() {
    let site = Site::new();
    let engine = idle_engine(&site);
    let pull = site.pull(&["--nspace", "job"]);
    pulls_the_first_job(&engine, pull);
}

#[test]
fn a_pull_stops_waiting_for_a_job_after_a_timeout() {
    let site = Site::new();
    let (_engine, pull) = without_a_job(&site);
    let done = pull.finish();
    assert_eq!((done.code, done.text()), (1, ""));
    assert_eq!(done.stderr, "iof: the engine still has no job after 5 s: try again\n");
}

#[test]
fn a_pull_whose_engine_is_killed_within_a_line_reports_the_received_bytes() {
    let site = Site::new();
    let never = site.gate("never");
    let run = site.run_sh(&[], &format!("echo hello; printf half; : < {}", never.path()));
    site.wait_for_bytes(0, "stdout", 10);
    let mut pull = site.pull(&["--channel", "stdout"]);
    let (stdout, stderr) = pull.collect();
    site.wait_for_pulls(0, "stdout", 1);
    run.signal(Signal::SIGKILL);
    assert_eq!(pull.wait(), 1);
    assert_eq!(stdout.get(), b"hello\nhalf");
    let wanted = format!(
        "iof: lost the engine (pid {}) before 1 of its streams were complete: their output after the first 10 bytes \
         (in total) is missing\n",
        run.pid()
    );
    let stderr = String::from_utf8(stderr.get()).unwrap();
    assert_eq!(stderr, wanted);
}

#[test]
fn a_pull_in_json_shows_the_bytes_of_streams_that_it_missed_entirely() {
    const STREAMS: u32 = 4 * MAX_FORGOTTEN_PER_TOOL as u32;
    let site = Site::new();
    let rendezvous = Rendezvous::Session(Some(site.path().to_owned()));
    let engine = Engine::start(Config::new(rendezvous)).unwrap();
    let nspace = Nspace::new("job").unwrap();
    let deliver = |rank: u32| {
        let from = Proc::new(nspace.clone(), Rank(rank));
        engine.deliver(&from, Channel::Stdout, b"0123456789".to_vec(), &[], || {}).unwrap();
    };
    deliver(0);
    let mut pull = site.pull(&["--channel", "stdout", "--output", "json"]);
    site.wait_for_pulls(0, "stdout", 1);
    pull.stop();
    (1..STREAMS).for_each(deliver);
    assert!(engine.end_job(&nspace, Some(0)));
    // The engine forgets the job, and most of its streams before the pull has learnt of them.
    wait_for("the end of the job", || engine.remove(&nspace).then_some(()));
    pull.signal(Signal::SIGCONT);
    let (stdout, stderr) = pull.collect();
    assert_eq!(pull.wait(), 0);
    let (mut read, mut missed, mut streams) = (0, 0, 0);
    let stdout = stdout.get();
    for object in pieces(&stdout) {
        match object["lost"].as_u64() {
            None => read += object["data"].as_str().unwrap().len() as u64,
            Some(lost) => {
                missed += lost;
                streams += object["streams"].as_u64().unwrap();
                let shown = ["rank", "time", "host", "pid"].map(|key| object[key].is_null());
                assert_eq!(
                    (shown, &object["channel"], &object["offset"]),
                    ([true; 4], &"stdout".into(), &0.into())
                );
            }
        }
    }
    assert_eq!(read + missed, 10 * u64::from(STREAMS));
    assert!(streams > 0 && missed == 10 * streams, "{missed} bytes of {streams} streams");
    let told = messages(&stdout);
    assert!(told.contains("rank * stdout: ") && stderr.get().is_empty(), "{told}");
}
