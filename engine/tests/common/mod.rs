//! An engine that no tool finds, and what its jobs write.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

pub mod streams;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use iof_engine::{App, BackendKind, Config, Engine, Grant, Job, JobSpec, JobStatus, Policy, Rendezvous};
use iof_proto::{Channels, Nspace, Proc, Rank};
use iof_tool::{Pull, Sink};

/// Nothing here takes so long: whoever waits longer has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn engine() -> Engine {
    engine_on(None)
}

pub fn engine_on(backend: Option<BackendKind>) -> Engine {
    let rendezvous = Rendezvous::None;
    Engine::start(Config { rendezvous, policy: Policy::Block, backend, ..Config::default() }).unwrap()
}

pub fn nspace() -> Nspace {
    Nspace::new("job").unwrap()
}

pub fn spec(apps: impl IntoIterator<Item = App>) -> JobSpec {
    JobSpec::new(nspace(), apps.into_iter().collect())
}

pub fn shell(script: &str) -> App {
    App::new("sh", ["-c", script])
}

/// What comes on some channels of all ranks of the job called `job`, as it comes.
pub struct Output {
    file: File,
    sink: Sink,
}

impl Output {
    pub fn of(engine: &Engine, channels: Channels) -> Output {
        let mut tool = engine.attach("test", Grant::Block).unwrap();
        let all = Proc { nspace: nspace(), rank: Rank::WILDCARD };
        tool.pull(&Pull::new(vec![all], channels)).unwrap();
        let file = tempfile::tempfile().unwrap();
        let sink = Sink::start(tool, &file, |_, _, _| {}).unwrap();
        Output { file, sink }
    }

    /// What has come so far.
    pub fn so_far(&self) -> String {
        read(&self.file)
    }

    /// All of it, once every stream is complete.
    pub fn all(self) -> String {
        let Output { file, sink } = self;
        sink.join().unwrap();
        read(&file)
    }
}

fn read(file: &File) -> String {
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    // Whoever writes does so at the file's position, which must stay where it is.
    file.read_exact_at(&mut bytes, 0).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Runs a job to its end; gives what it wrote to stdout, its lines sorted.
pub fn run(engine: &Engine, spec: &JobSpec) -> (JobStatus, Vec<String>) {
    let output = Output::of(engine, Channels::STDOUT);
    let status = wait(&engine.spawn(spec).unwrap());
    let mut lines: Vec<String> = output.all().lines().map(str::to_owned).collect();
    lines.sort_unstable();
    (status, lines)
}

/// Waits for the end of a job, with patience.
pub fn wait(job: &Job) -> JobStatus {
    let waiting = thread::spawn({
        let job = job.clone();
        move || job.wait()
    });
    wait_for("the end of the job", || waiting.is_finished().then_some(()));
    waiting.join().unwrap()
}

/// Waits until `found` gives something.
pub fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
