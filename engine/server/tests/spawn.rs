//! Jobs that the engine starts for tools.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use iof_engine::{
    App, ApprovalReply, Config, EndCause, Engine, Grant, Host, Job, JobSpec, Policy, Rendezvous, SpawnReply,
    SpawnRequest, Stdin,
};
use iof_proto::limits::{MAX_ENDED_SPAWNED_JOBS, MAX_SPAWNED_JOBS, MAX_SPAWNED_RANKS};
use iof_proto::query::key as query;
use iof_proto::socket::PeerCredentials;
use iof_proto::{Channels, Failure, Nspace, Proc, Rank, Spawn, Status, StreamStats, Value};
use iof_testing::engine::{Received, changed, nspace, shell, spec, wait};
use iof_testing::helper::{Helper, HelperUser, NOBODY, argument, ready};
use iof_testing::wait_for;
use iof_tool::{Delivery, Pull, Reply, RequestError, Tool};

const MEGABYTE: usize = 1 << 20;

/// A host that lets all users attach, and grants every job.
struct Granting;

impl Host for Granting {
    fn approve(&self, _: &PeerCredentials, reply: ApprovalReply) {
        reply.answer(Ok(Grant::Never));
    }

    fn spawn(&self, request: SpawnRequest, reply: SpawnReply) {
        reply.grant(request.spec);
    }
}

/// A host that keeps all requests.
#[derive(Default)]
struct Keeping(Mutex<Vec<(SpawnRequest, SpawnReply)>>);

impl Host for Keeping {
    fn spawn(&self, request: SpawnRequest, reply: SpawnReply) {
        self.0.lock().unwrap().push((request, reply));
    }
}

impl Keeping {
    fn next(&self) -> (SpawnRequest, SpawnReply) {
        wait_for("a request", || self.0.lock().unwrap().pop())
    }
}

fn engine_with(host: Arc<dyn Host>, policy: Policy) -> Engine {
    let config = changed(Config::new(Rendezvous::None), |config| config.policy = policy);
    Engine::start_with(config, host).unwrap()
}

fn engine() -> Engine {
    engine_with(Arc::new(Granting), Policy::DropNewest)
}

fn tool(engine: &Engine) -> Tool {
    engine.attach("spawner", Grant::Never).unwrap()
}

fn pull(tool: &mut Tool, nspace: &Nspace) {
    tool.pull(&Pull::new(vec![Proc::all(nspace.clone())], Channels::STDOUT)).unwrap();
}

fn denied<T: std::fmt::Debug>(result: Result<T, RequestError>) -> Failure {
    match result {
        Err(RequestError::Denied(failure)) => failure,
        other => panic!("{other:?}"),
    }
}

/// Returns a job of 4 ranks that write a megabyte each and exit.
fn four_megabytes(cache_size: usize, policy: Policy) -> JobSpec {
    // The bytes differ, so that the place of a gap shows.
    let script = format!("seq -f %07.0f 1 131072 | head -c {MEGABYTE}");
    changed(spec([shell(&script).ranks(4)]), |spec| {
        spec.directives.cache_size = Some(cache_size as u32);
        spec.directives.drop = Some(policy);
        spec.directives.forward = Some(Channels::STDOUT);
    })
}

fn megabyte() -> Vec<u8> {
    (1..=131_072).flat_map(|number| format!("{number:07}\n").into_bytes()).collect()
}

/// Has the engine start `spec`, and registers when the engine has read all output of its ranks.
/// Returns what arrives of each rank.
fn register_late(spec: &JobSpec) -> BTreeMap<Rank, Received> {
    let engine = engine();
    let (mut tool, mut observer) = (tool(&engine), tool(&engine));
    let nspace = tool.spawn(spec).unwrap();
    wait_for("all output", || {
        let complete = |stream: &&StreamStats| stream.complete && stream.produced == MEGABYTE as u64;
        (stats(&mut observer).iter().filter(complete).count() == 4).then_some(())
    });
    pull(&mut tool, &nspace);
    let mut received: BTreeMap<Rank, Received> = BTreeMap::new();
    while let Some(delivery) = tool.recv().unwrap() {
        match delivery {
            Delivery::Bytes(bytes) => {
                received.entry(bytes.origin().source.rank).or_default().bytes.extend_from_slice(&bytes);
            }
            Delivery::Gap { origin, gap } => {
                received.entry(origin.source.rank).or_default().gaps.push((gap.offset, gap.lost));
            }
            _ => {}
        }
    }
    received
}

fn stats(tool: &mut Tool) -> Vec<StreamStats> {
    let found = tool.query(&[query::IOF_QUERY_STATS]).unwrap();
    match found.into_iter().next().map(|found| found.value) {
        Some(Value::Streams(streams)) => streams,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_spawner_that_registers_after_the_end_of_its_job_receives_every_cached_byte() {
    let received = register_late(&four_megabytes(2 * MEGABYTE, Policy::DropNewest));
    let whole = Received { bytes: megabyte(), gaps: vec![] };
    assert_eq!(received.len(), 4);
    assert!(received.values().all(|got| *got == whole), "{:?}", received.values().map(Received::lost));
}

#[test]
fn of_output_beyond_the_cache_a_spawner_receives_the_exact_gap() {
    for policy in [Policy::DropNewest, Policy::DropOldest] {
        let received = register_late(&four_megabytes(MEGABYTE / 16, policy));
        assert_eq!(received.len(), 4);
        for got in received.values() {
            assert!(!got.bytes.is_empty(), "{policy:?}");
            assert_eq!((got.bytes.len() as u64 + got.lost(), got.gaps.len()), (MEGABYTE as u64, 1));
            let whole = megabyte();
            match policy {
                Policy::DropOldest => assert!(whole.ends_with(&got.bytes)),
                _ => assert!(whole.starts_with(&got.bytes)),
            }
        }
    }
}

#[test]
fn the_caches_of_a_spawner_that_dies_unregistered_are_released_and_its_job_goes_on() {
    let engine = engine_with(Arc::new(Granting), Policy::Block);
    let (mut first, mut observer) = (tool(&engine), tool(&engine));
    let mut job = four_megabytes(MEGABYTE / 16, Policy::Block);
    job.kill_on_bad_exit = iof_engine::KillOnBadExit::Always;
    let nspace = first.spawn(&job).unwrap();
    let job = engine.job(&nspace).unwrap();
    wait_for("full caches", || {
        let waits = |stream: &&StreamStats| stream.produced >= MEGABYTE as u64 / 32;
        (stats(&mut observer).iter().filter(waits).count() == 4).then_some(())
    });
    assert!(job.try_wait_exit().is_none(), "the ranks wait for their spawner");
    drop(first);
    let status = wait(&job);
    assert_eq!((status.code(), status.early_end), (0, None));
    wait_for("the job to be forgotten", || engine.job(&nspace).is_none().then_some(()));
    assert!(stats(&mut observer).is_empty());
}

/// Has a tool start and pull `spawn`. Returns the job.
fn start_and_pull(engine: &Engine, tool: &mut Tool, spawn: &Spawn) -> Job {
    let nspace = tool.spawn_with(spawn).unwrap();
    pull(tool, &nspace);
    engine.job(&nspace).unwrap()
}

#[test]
fn no_name_that_the_engine_has_chosen_is_given_twice() {
    let engine = engine();
    let spawn = changed(Spawn::new(spec([shell("true")])), |spawn| spawn.rename = true);
    let names: Vec<String> = (0..4)
        .map(|_| {
            let mut tool = tool(&engine);
            let name = start_and_pull(&engine, &mut tool, &spawn).nspace().clone();
            while !matches!(tool.recv().unwrap(), Some(Delivery::JobEnded { .. }) | None) {}
            drop(tool);
            wait_for("the engine forgets the job", || engine.job(&name).is_none().then_some(()));
            name.to_string()
        })
        .collect();
    assert_eq!(names, ["job", "job-2", "job-3", "job-4"]);
}

#[test]
fn a_job_ends_with_the_tool_that_has_registered_for_it_unless_it_is_detached() {
    let engine = engine();
    let (mut first, mut second) = (tool(&engine), tool(&engine));
    let mut spec = spec([shell("trap '' TERM; echo ready; while :; do sleep 0.05; done")]);
    spec.kill_wait = Duration::from_millis(200);
    let mut spawn = changed(Spawn::new(spec), |spawn| spawn.rename = true);
    let ends = start_and_pull(&engine, &mut first, &spawn);
    spawn.detached = true;
    let detached = start_and_pull(&engine, &mut first, &spawn);
    assert_eq!([&ends, &detached].map(|job| job.nspace().as_str()), ["job", "job-2"]);
    pull(&mut second, detached.nspace());
    assert!(matches!(second.recv().unwrap(), Some(Delivery::Bytes(_))), "it handles SIGTERM from now on");
    drop(first);
    let status = wait(&ends);
    assert_eq!(status.code(), 137, "killed after the time between SIGTERM and SIGKILL");
    assert_eq!(status.early_end.unwrap().cause, EndCause::ParentEnded);
    assert!(detached.try_wait_exit().is_none());
    detached.signal(iof_engine::Signal::KILL);
    assert_eq!(wait(&detached).early_end, None);
}

#[test]
fn a_bound_job_ends_with_the_tool_that_has_started_it_also_if_that_has_not_registered() {
    let engine = engine();
    let mut first = tool(&engine);
    let mut spawn = Spawn::new(spec([shell("exec sleep 1000")]));
    spawn.is_bound = true;
    let nspace = first.spawn_with(&spawn).unwrap();
    let job = engine.job(&nspace).unwrap();
    drop(first);
    assert_eq!(wait(&job).early_end.unwrap().cause, EndCause::ParentEnded);
}

#[test]
fn a_job_that_a_rank_has_started_ends_with_the_job_of_that_rank() {
    let engine = engine();
    let parent = engine.spawn(&spec([shell("exec sleep 1000")])).unwrap();
    let mut child = Spawn::new(JobSpec::new("child".parse().unwrap(), vec![shell("exec sleep 1000")]));
    child.spec.parent = Some(Proc::new(nspace(), Rank(0)));
    let mut tool = tool(&engine);
    let name = tool.spawn_with(&child).unwrap();
    let child = engine.job(&name).unwrap();
    drop(tool);
    assert!(child.try_wait_exit().is_none(), "the connection is not its parent");
    parent.signal(iof_engine::Signal::KILL);
    wait(&parent);
    let status = wait(&child);
    assert_eq!((status.code(), status.early_end.unwrap().cause), (143, EndCause::ParentEnded));
}

#[test]
fn a_job_that_a_rank_has_started_has_the_time_between_sigterm_and_sigkill_of_its_parent() {
    let engine = engine();
    let mut parent = spec([shell("exec sleep 1000")]);
    parent.kill_wait = Duration::from_secs(3600);
    let parent = engine.spawn(&parent).unwrap();
    // Longer than the default time.
    let slow = "trap 'sleep 2.5; exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let child = JobSpec::new("child".parse().unwrap(), vec![shell(slow)]);
    let mut child = Spawn::new(child);
    child.spec.parent = Some(Proc::new(nspace(), Rank(0)));
    let mut tool = tool(&engine);
    let child = start_and_pull(&engine, &mut tool, &child);
    assert!(matches!(tool.recv().unwrap(), Some(Delivery::Bytes(_))), "it handles SIGTERM from now on");
    parent.signal(iof_engine::Signal::KILL);
    let status = wait(&child);
    assert_eq!((status.code(), status.early_end.unwrap().cause), (5, EndCause::ParentEnded));
}

#[test]
fn a_failed_start_names_the_rank_and_the_error_and_starts_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mark = directory.path().join("started");
    let first = App::new("touch", [&mark]);
    let bad_directory = changed(shell("true"), |app| app.cwd = Some("/nowhere".into()));
    let engine = engine();
    for (bad, error) in [
        (App::new("/no/such/program", [""; 0]), "'/no/such/program' not found"),
        (bad_directory, "'/nowhere' (No such file or directory (os error 2))"),
    ] {
        let failure = denied(tool(&engine).spawn(&spec([first.clone(), bad])));
        assert_eq!(failure.status, Status::ERR_JOB_FAILED_TO_LAUNCH);
        for part in [error, "rank 1 of app 1"] {
            assert!(failure.reason.contains(part), "{failure}");
        }
        assert!(engine.job(&nspace()).is_none());
    }
    // All of the name, the number of jobs and that of ranks is free again.
    assert_eq!(tool(&engine).spawn(&spec([App::new("true", [""; 0])])).unwrap(), nspace());
    assert!(!mark.exists());
}

#[test]
fn the_host_decides_about_each_job_and_may_change_it() {
    let refusing = Engine::start(Config::new(Rendezvous::None)).unwrap();
    let failure = denied(tool(&refusing).spawn(&spec([shell("true")])));
    assert_eq!(failure.status, Status::ERR_NOT_SUPPORTED);
    let host = Arc::new(Keeping::default());
    let engine = engine_with(Arc::<Keeping>::clone(&host), Policy::DropNewest);
    let mut tool = tool(&engine);
    let submitted = tool.submit_spawn(&Spawn::new(spec([shell("echo $COLOUR; exec sleep 1000")]))).unwrap();
    let (mut request, reply) = host.next();
    assert_eq!((request.tool.nspace.as_str(), request.parent, request.detached), ("spawner", None, false));
    request.spec.nspace = "other".parse().unwrap();
    request.spec.apps[0].env.push(("COLOUR".into(), "blue".into()));
    reply.grant(request.spec);
    let other = match tool.recv().unwrap() {
        Some(Delivery::Reply { request, reply: Reply::Spawned(Ok(name)) }) if request == submitted => name,
        other => panic!("{other:?}"),
    };
    pull(&mut tool, &other);
    match tool.recv().unwrap() {
        Some(Delivery::Bytes(bytes)) => assert_eq!(&bytes[..], b"blue\n"),
        other => panic!("{other:?}"),
    }
    // A host that drops a request refuses it.
    tool.submit_spawn(&Spawn::new(spec([shell("true")]))).unwrap();
    drop(host.next());
    let Some(Delivery::Reply { reply: Reply::Spawned(Err(failure)), .. }) = tool.recv().unwrap() else {
        panic!()
    };
    assert_eq!(failure.status, Status::ERR_NOT_AVAILABLE);
}

#[test]
fn what_is_the_launchers_own_a_taken_name_and_remote_ranks_are_refused() {
    let engine = engine();
    let mut tool = tool(&engine);
    let good = spec([shell("exec sleep 1000")]);
    let inherits = changed(good.clone(), |spec| _ = spec.stdin.insert(Rank(0), Stdin::Inherit));
    let remote = changed(good.clone(), |spec| spec.elsewhere = true);
    for bad in [inherits, remote] {
        assert_eq!(denied(tool.spawn(&bad)).status, Status::ERR_NOT_SUPPORTED);
    }
    tool.spawn(&good).unwrap();
    assert_eq!(denied(tool.spawn(&good)).status, Status::ERR_EXISTS);
    engine.job(&nspace()).unwrap().signal(iof_engine::Signal::KILL);
}

#[test]
fn the_jobs_of_tools_and_their_ranks_are_limited_until_they_are_forgotten() {
    let host = Arc::new(Keeping::default());
    let engine = engine_with(Arc::<Keeping>::clone(&host), Policy::DropNewest);
    let many = u32::try_from(MAX_SPAWNED_RANKS).unwrap() - 1;
    let mut first = tool(&engine);
    first.submit_spawn(&Spawn::new(spec([shell("true").ranks(many)]))).unwrap();
    let two = Spawn::new(JobSpec::new("two".parse().unwrap(), vec![shell("true").ranks(2)]));
    let failure = denied(first.spawn_with(&two));
    assert_eq!(failure.status, Status::ERR_OUT_OF_RESOURCE);
    assert!(failure.reason.contains(&MAX_SPAWNED_RANKS.to_string()), "{failure}");
    drop(first);
    // What was not granted is not started, and counts no more.
    let mut second = tool(&engine);
    let one = changed(Spawn::new(spec([shell("true")])), |spawn| spawn.rename = true);
    (0..MAX_SPAWNED_JOBS).for_each(|_| _ = second.submit_spawn(&one).unwrap());
    let failure = denied(second.spawn_with(&one));
    assert_eq!(failure.status, Status::ERR_OUT_OF_RESOURCE);
    assert!(failure.reason.contains(&MAX_SPAWNED_JOBS.to_string()), "{failure}");
}

#[test]
fn an_engine_that_is_dropped_waits_for_jobs_that_are_being_started() {
    for _ in 0..5 {
        let engine = engine();
        let mut tool = tool(&engine);
        tool.submit_spawn(&Spawn::new(spec([App::new("true", [""; 0]).ranks(8)]))).unwrap();
        drop(engine);
        assert!(matches!(tool.recv(), Ok(Some(Delivery::Reply { reply: Reply::Spawned(_), .. }))));
    }
}

#[test]
fn the_last_ended_jobs_of_a_connected_spawner_are_kept_for_it() {
    let engine = engine();
    let mut tool = tool(&engine);
    let jobs: Vec<Job> = (0..MAX_ENDED_SPAWNED_JOBS + 2)
        .map(|number| {
            let name = format!("job{number}").parse().unwrap();
            let spawn = Spawn::new(JobSpec::new(name, vec![shell("true")]));
            let job = start_and_pull(&engine, &mut tool, &spawn);
            wait(&job);
            job
        })
        .collect();
    let (forgotten, kept) = jobs.split_at(2);
    wait_for("the oldest to be forgotten", || {
        forgotten.iter().all(|job| engine.job(job.nspace()).is_none()).then_some(())
    });
    assert!(kept.iter().all(|job| engine.job(job.nspace()).is_some()));
    // It would wait for ever.
    let again = |nspace: &Nspace| Pull::new(vec![Proc::all(nspace.clone())], Channels::STDERR);
    let failure = denied(tool.pull(&again(forgotten[0].nspace())));
    assert_eq!(failure.status, Status::ERR_NOT_FOUND);
    assert_eq!(failure.reason, "job job0 has ended, and its output is no longer kept");
    tool.pull(&again(kept[0].nspace())).unwrap();
    tool.pull(&Pull { persistent: true, ..again(forgotten[1].nspace()) }).unwrap();
    start_and_pull(
        &engine,
        &mut tool,
        &Spawn::new(JobSpec::new("job0".parse().unwrap(), vec![shell("true")])),
    );
    drop(tool);
    wait_for("all to be forgotten", || {
        kept.iter().all(|job| engine.job(job.nspace()).is_none()).then_some(())
    });
}

#[test]
#[ignore = "helper of the next test: a tool of another user"]
fn a_tool_that_spawns() {
    let mut tool = Tool::connect(Path::new(&argument()), "test").unwrap();
    let failure = denied(tool.spawn(&spec([shell("true")])));
    assert_eq!(failure.status, Status::ERR_NO_PERMISSIONS);
    assert_eq!(failure.reason, format!("user {NOBODY} may not start jobs in an engine of user 0"));
    ready();
}

#[test]
fn another_user_starts_no_job_even_if_the_host_lets_the_user_attach() {
    let directory = tempfile::tempdir().unwrap();
    let rendezvous = Rendezvous::Session(Some(directory.path().to_owned()));
    let engine = Engine::start_with(Config::new(rendezvous), Arc::new(Granting)).unwrap();
    let socket = engine.socket().unwrap();
    for path in [directory.path(), socket] {
        fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
    }
    let path = socket.to_str().unwrap();
    let Some(_helper) = Helper::start("spawn::a_tool_that_spawns", path, HelperUser::Nobody) else { return };
    assert!(engine.job(&nspace()).is_none());
}
