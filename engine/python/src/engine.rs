//! An engine in this process.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use iof::JobPrinters;
use iof::engine::{
    AdoptError::{Kind, Number, Ranks, Shared, Twice},
    AdoptSpec, AdoptedRank, App, Config, Engine as Native, Grant, Job as NativeJob, JobSpec, KillOnBadExit,
    Policy, Process, Rendezvous, Stdin,
};
use iof::nodes::hosts::{Hosts, MapBy, is_here};
use iof::nodes::{Carriers, Launch, Node, NodeConfig, SSH, StartProgress, Template};
use iof::output::{Choice, Options, Style, StyleExtras};
use iof::proto::{Channels, Nspace, Proc, Rank};
use iof::tool::Pull;
use pyo3::prelude::*;

use crate::arguments::{channel, invalid, nspace};
use crate::descriptor::duplicate;
use crate::error::Raised;
use crate::job::PyJob;
use crate::owned::{Owned, opened};
use crate::reader::{Form, PyReader};

/// An engine in this process. `iof.Engine` is made of it.
#[pyclass(frozen, module = "iof", name = "Engine")]
pub struct PyEngine {
    native: Arc<Owned<Arc<Native>>>,
    config: Config,
    /// The path of the socket at which tools find the engine, or None.
    #[pyo3(get)]
    socket: Option<PathBuf>,
    /// The jobs that were started and have not ended.
    jobs: Owned<Vec<NativeJob>>,
}

/// A job, and the reader of its output.
type Begun = (PyJob, Option<PyReader>);

/// A program of a job, as `iof.App`.
#[derive(FromPyObject)]
struct Program {
    args: Vec<PathBuf>,
    ranks: u32,
    env: BTreeMap<OsString, OsString>,
    cwd: Option<PathBuf>,
    merge_stderr: bool,
}

/// The uses of the output of a job: the form in which a reader returns it, and the words of `--output` for printers.
type Wanted = (Option<Form>, Option<String>);

/// The options of a job.
#[derive(FromPyObject)]
struct JobOptions {
    /// `inherit`, `null` or `pipe`.
    stdin: String,
    timeout: Option<f64>,
    kill_on_bad_exit: bool,
    /// The hosts with their slots, the command that starts a shell command on one, and that of an agent.
    hosts: Option<String>,
    rsh: Option<String>,
    agent: OsString,
}

impl JobOptions {
    /// Returns the nodes of `nprocs` ranks and the way to their agents, unless the ranks run here.
    fn nodes(&self, nprocs: u64) -> PyResult<Option<(Vec<Node>, Carriers)>> {
        let Some(hosts) = &self.hosts else { return Ok(None) };
        let nodes = hosts.parse().and_then(|hosts: Hosts| hosts.place(nprocs, MapBy::Slot));
        let nodes = nodes.map_err(|error| invalid("hosts", error))?;
        let are_elsewhere = self.rsh.is_some() || !nodes.iter().all(|node| is_here(&node.host));
        let template = Template::new(self.rsh.as_deref().unwrap_or(SSH));
        let template = template.map_err(|error| invalid("rsh", error))?;
        Ok(are_elsewhere.then(|| (nodes, Carriers::command(template, &self.agent))))
    }
}

/// A process that somebody else starts, as `iof.Adopted`.
#[derive(FromPyObject)]
struct Adopted {
    rank: u32,
    executable: String,
    /// The descriptors of its channels.
    files: Vec<(u16, RawFd)>,
    pid: u32,
    /// `true` if the engine waits for the process.
    reap: bool,
}

impl PyEngine {
    /// Begins a job by `start`, without the GIL, with what reads its output.
    fn begin(
        engine: &Bound<'_, Self>,
        name: &Nspace,
        wanted: &Wanted,
        start: impl FnOnce(&Arc<Native>) -> Result<NativeJob, Raised> + Send,
    ) -> PyResult<Begun> {
        let own = &engine.get().native;
        let (job, mut reader) = engine.py().detach(|| -> Result<_, Raised> {
            let mut owned = own.lock()?;
            let native = opened(&mut *owned, "engine")?;
            let (reader, printers) = read(native, name, wanted)?;
            Ok((PyJob::new(start(native)?, Arc::clone(own), printers), reader))
        })?;
        reader.iter_mut().for_each(|reader| reader.engine = Some(engine.clone().into_any().unbind()));
        Ok((job, reader))
    }
}

/// Starts the ranks of a job on other nodes.
fn spawn_on_nodes(
    native: &Arc<Native>,
    config: &Config,
    spec: &JobSpec,
    (nodes, carriers): &(Vec<Node>, Carriers),
) -> Result<NativeJob, Raised> {
    let mut launch = Launch::new(spec, carriers);
    launch.config = NodeConfig {
        cache_size: config.cache_size,
        policy: config.policy,
        rendezvous: config.rendezvous.clone(),
        ..launch.config
    };
    let mut raised = Ok(());
    let mut is_interrupted = |_: &StartProgress<'_>| {
        raised = Python::try_attach(|py| py.check_signals()).unwrap_or(Ok(()));
        raised.is_err()
    };
    let started = launch.start(native, nodes, &mut is_interrupted, |_, _| {});
    raised?;
    Ok(started?.job)
}

/// Attaches the readers that the output of a job goes to, before the job begins.
fn read(
    native: &Native,
    job: &Nspace,
    (form, style): &Wanted,
) -> Result<(Option<PyReader>, JobPrinters), Raised> {
    if let Some(form) = *form {
        let mut tool = native.attach("python", Grant::Block)?;
        tool.pull(&Pull::new(vec![Proc::all(job.clone())], Channels::OUTPUTS))?;
        return Ok((Some(PyReader::new(tool, form, 0)), JobPrinters::default()));
    }
    let choice = match style.as_deref() {
        None => return Ok((None, JobPrinters::default())),
        Some("") => Choice::default(),
        Some(words) => words.parse().map_err(|error| invalid("style", error))?,
    };
    let style = Style::new(&choice, &StyleExtras::default());
    let options = Options { style, raw: choice.raw, ..Options::default() };
    Ok((None, JobPrinters::start(native, job, &choice, &options)?))
}

#[pymethods]
impl PyEngine {
    #[new]
    fn new(
        py: Python<'_>,
        cache_size: Option<u32>,
        drop: &str,
        find: bool,
        directory: Option<PathBuf>,
        guardian: Option<PathBuf>,
    ) -> PyResult<PyEngine> {
        let mut config = Config::new(if find { Rendezvous::Session(directory) } else { Rendezvous::None });
        (config.cache_size, config.guardian) = (cache_size, guardian);
        config.policy = match drop {
            "none" => Policy::Block,
            "newest" => Policy::DropNewest,
            "oldest" => Policy::DropOldest,
            other => return Err(invalid("drop", format!("'{other}' is not 'none', 'newest' or 'oldest'"))),
        };
        // The engine starts it with the first ranks, and goes on without it.
        let is_missing = |path: &&PathBuf| path.parent() != Some("".as_ref()) && !path.is_file();
        if let Some(path) = config.guardian.as_ref().filter(is_missing) {
            return Err(invalid("guardian", format!("no file {}: expected the command iof", path.display())));
        }
        let native = py.detach(|| Native::start(config.clone())).map_err(Raised::from)?;
        let socket = native.socket().map(Into::into);
        let native = Arc::new(Owned::new(Arc::new(native)));
        Ok(PyEngine { native, config, socket, jobs: Owned::new(Vec::new()) })
    }

    /// Starts a job. Blocks until its ranks run.
    fn spawn(
        slf: &Bound<'_, Self>,
        name: &str,
        programs: Vec<Program>,
        wanted: Wanted,
        options: JobOptions,
    ) -> PyResult<Begun> {
        let name = nspace("name", name)?;
        let app = |program: Program| {
            let mut args = program.args.into_iter();
            let first = args.next().ok_or_else(|| invalid("args", "expected a program"))?;
            let mut app = App::new(first, args).ranks(program.ranks);
            (app.env, app.cwd) = (program.env.into_iter().collect(), program.cwd);
            app.merge_stderr = program.merge_stderr;
            Ok(app)
        };
        let mut spec = JobSpec::new(name.clone(), programs.into_iter().map(app).collect::<PyResult<_>>()?);
        match options.stdin.as_str() {
            "null" => {}
            "inherit" => drop(spec.stdin.insert(Rank(0), Stdin::Inherit)),
            "pipe" => drop(spec.stdin.insert(Rank::WILDCARD, Stdin::Pipe)),
            other => return Err(invalid("stdin", format!("'{other}' is not 'null', 'inherit' or 'pipe'"))),
        }
        let timeout = options.timeout.map(Duration::try_from_secs_f64).transpose();
        spec.timeout = timeout.map_err(|error| invalid("timeout", error))?;
        spec.kill_on_bad_exit =
            if options.kill_on_bad_exit { KillOnBadExit::Always } else { KillOnBadExit::Signal };
        let own = slf.get();
        let nodes = options.nodes(spec.nprocs())?;
        PyEngine::begin(slf, &name, &wanted, |native| {
            let job = match &nodes {
                None => native.spawn(&spec)?,
                Some(nodes) => spawn_on_nodes(native, &own.config, &spec, nodes)?,
            };
            let mut jobs = own.jobs.lock()?;
            let jobs = opened(&mut *jobs, "engine")?;
            jobs.retain(|job| job.try_wait_exit().is_none());
            jobs.push(job.clone());
            Ok(job)
        })
    }

    /// Adopts processes that somebody else has started, as a job.
    fn adopt(slf: &Bound<'_, Self>, name: &str, ranks: Vec<Adopted>, wanted: Wanted) -> PyResult<Begun> {
        let name = nspace("name", name)?;
        let rank = |adopted: Adopted| {
            let pid = adopted.pid;
            let process = if adopted.reap { Process::Pid(pid) } else { Process::Reported { pid } };
            let mut rank = AdoptedRank::new(Rank(adopted.rank), adopted.executable, process);
            for (bits, fd) in adopted.files {
                let channel = channel("files", bits)?;
                rank.files.insert(channel, duplicate(&channel.to_string(), fd)?);
            }
            PyResult::Ok(rank)
        };
        let ranks = ranks.into_iter().map(rank).collect::<PyResult<_>>()?;
        let spec = AdoptSpec::new(name.clone(), ranks);
        PyEngine::begin(slf, &name, &wanted, |native| {
            native.adopt(spec).map_err(|failed| match failed {
                Ranks { .. } | Number { .. } | Twice { .. } | Kind { .. } | Shared { .. } => {
                    Raised::from(invalid("ranks", failed))
                }
                failed => failed.into(),
            })
        })
    }

    /// Ends the jobs that run and the engine. Blocks until the ranks have exited, and then for up
    /// to five seconds while tools receive their last messages. Has no effect in a child after fork(2), whose
    /// parent has the jobs.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            let jobs = self.jobs.take().unwrap_or_default();
            jobs.iter().for_each(NativeJob::fail);
            jobs.iter().for_each(|job| drop(job.wait_exit()));
            drop(self.native.take());
        });
    }
}

impl Drop for PyEngine {
    fn drop(&mut self) {
        // Without the GIL: tools in other threads may need it to receive their last messages. A lock that is held
        // here belongs to a thread that drops the engine itself, or, after fork(2), to one of the parent.
        let native = self.native.lock_alone().ok().and_then(|mut native| native.take());
        let _ = Python::try_attach(|py| py.detach(|| drop(native)));
    }
}
