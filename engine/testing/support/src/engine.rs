//! Helpers for tests that run an engine in this process.

pub mod logging;
pub mod raw;
pub mod stdins;
pub mod streams;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use iof_engine::{
    AdoptError, AdoptSpec, AdoptedRank, App, BackendKind, Config, Engine, Exit, Grant, Host, Job, JobSpec,
    JobStatus, Process, Rendezvous, Standalone,
};
use iof_output::{Options, Printer};
use iof_proto::directive::DirectiveLevel;
use iof_proto::{Channel, Channels, Directives, Info, Nspace, Proc, Rank};
use iof_tool::{Delivery, Pull, Tool};
use tempfile::TempDir;

use crate::pipes::pipe;
use crate::{Pending, wait_for};

pub fn engine() -> Engine {
    engine_on(None)
}

pub fn engine_on(backend: Option<BackendKind>) -> Engine {
    Engine::start(changed(Config::new(Rendezvous::None), |config| config.backend = backend)).unwrap()
}

/// Starts an engine to which tools can connect from outside, in a directory of its own.
pub fn session_with(config: Config, host: Arc<dyn Host>) -> (Engine, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let rendezvous = Rendezvous::Session(Some(directory.path().to_owned()));
    let config = changed(config, |config| config.rendezvous = rendezvous);
    (Engine::start_with(config, host).unwrap(), directory)
}

/// Starts such an engine with the default host.
pub fn session(config: Config) -> (Engine, TempDir) {
    session_with(config, Arc::new(Standalone))
}

/// Returns `value` after `change`.
pub fn changed<T>(mut value: T, change: impl FnOnce(&mut T)) -> T {
    change(&mut value);
    value
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

/// The output of some channels of all ranks of the job `job`, in the order in which it arrives.
pub struct Output {
    file: File,
    printer: Printer,
}

impl Output {
    pub fn start(engine: &Engine, channels: Channels) -> Output {
        let mut tool = engine.attach("test", Grant::Block).unwrap();
        let all = Proc::all(nspace());
        tool.pull(&Pull::new(vec![all], channels)).unwrap();
        let file = tempfile::tempfile().unwrap();
        let output = iof_output::Output::new(&file).unwrap();
        let printer = Printer::start(tool, output, Options::default(), |_, _, _| {}).unwrap();
        Output { file, printer }
    }

    /// Returns the output that has arrived so far.
    pub fn so_far(&self) -> String {
        read(&self.file)
    }

    /// Blocks until every stream is complete, and returns all output.
    pub fn all(self) -> String {
        let Output { file, printer } = self;
        printer.join().unwrap();
        read(&file)
    }
}

fn read(file: &File) -> String {
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    // The writer appends at the file's position, which must not move.
    file.read_exact_at(&mut bytes, 0).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Runs a job to its end. Returns its status and the sorted lines of its stdout.
pub fn run(engine: &Engine, spec: &JobSpec) -> (JobStatus, Vec<String>) {
    let output = Output::start(engine, Channels::STDOUT);
    let status = wait(&engine.spawn(spec).unwrap());
    let mut lines: Vec<String> = output.all().lines().map(str::to_owned).collect();
    lines.sort_unstable();
    (status, lines)
}

/// Blocks until a job has ended, for at most [`TIMEOUT`](crate::TIMEOUT).
pub fn wait(job: &Job) -> JobStatus {
    let job = job.clone();
    Pending::start(move || job.wait()).get()
}

/// The bytes and gaps that a tool has received.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Received {
    pub bytes: Vec<u8>,
    /// The position and length of each gap.
    pub gaps: Vec<(u64, u64)>,
}

impl Received {
    pub fn lost(&self) -> u64 {
        self.gaps.iter().map(|(_, lost)| lost).sum()
    }

    /// Receives what `tool` has without blocking. Returns whether nothing more will follow.
    pub fn take_available(&mut self, tool: &mut Tool) -> bool {
        while let Some(delivery) = tool.try_recv().unwrap() {
            match delivery {
                Delivery::Bytes(bytes) => self.bytes.extend_from_slice(&bytes),
                Delivery::Gap { gap, .. } => self.gaps.push((gap.offset, gap.lost)),
                _ => {}
            }
        }
        tool.is_done()
    }

    /// Receives everything up to the end of all streams.
    pub fn read_all(tool: &mut Tool) -> Received {
        let mut got = Received::default();
        wait_for("the end of the streams", || got.take_available(tool).then_some(()));
        got
    }
}

/// Adopts a job of ranks without descriptors.
pub fn adopt_reported(engine: &Engine, ranks: u32) -> Result<Job, AdoptError> {
    engine.adopt(AdoptSpec::new(nspace(), (0..ranks).map(reported_rank).collect()))
}

/// Reports the exits of all ranks of such a job.
pub fn report_exits(job: &Job, ranks: u32) {
    (0..ranks).for_each(|rank| assert!(job.report_exit(Rank(rank), Exit::Unknown)));
}

/// Returns a rank to adopt, without descriptors, whose exit the test reports.
pub fn reported_rank(number: u32) -> AdoptedRank {
    AdoptedRank::new(Rank(number), "test", Process::Reported { pid: 0 })
}

/// Adopts a job of one rank whose stdout is a pipe that the test writes to.
pub fn adopt_pipe(engine: &Engine, directives: &[Info]) -> (Job, File) {
    let (stdout, write) = pipe();
    let rank = reported_rank(0).with(Channel::Stdout, stdout);
    let (directives, ignored) = Directives::read(directives, DirectiveLevel::Spawn).unwrap();
    assert!(ignored.is_empty(), "{ignored:?}");
    let job = engine.adopt(AdoptSpec { directives, ..AdoptSpec::new(nspace(), vec![rank]) }).unwrap();
    // The exit is irrelevant here; the stream ends when the pipe is closed.
    assert!(job.report_exit(Rank(0), Exit::Unknown));
    (job, write)
}

/// Attaches a tool that pulls the stdout of rank 0.
pub fn puller(engine: &Engine, grant: Grant, directives: Vec<Info>) -> Tool {
    let mut tool = engine.attach("test", grant).unwrap();
    let rank = Proc::new(nspace(), Rank(0));
    tool.pull(&Pull { directives, ..Pull::new(vec![rank], Channels::STDOUT) }).unwrap();
    tool
}
