//! The common launcher: an engine, two printers and one job.

use std::time::Duration;

use iof_engine::{App, Config, Engine, JobSpec, JobStatus, KillOnBadExit, Mpi, Stdin};
use iof_output::{Choice, Options, PrintReport};
use iof_proto::{Channels, Nspace, Rank};
use iof_tool::{Line, Lines, RequestError};

use crate::error::RunError;
use crate::printers::{JobPrinters, attach};

/// A launcher of one job, which writes the job's output to this process's stdout and stderr.
///
/// No output is lost: ranks wait while stdout or stderr can't be written. Rank 0 reads this
/// process's stdin, the other ranks read /dev/null. Tools of the same user can attach to the job
/// while it runs.
///
/// A launcher handles no signals. By default the ranks lead process groups of their own, so Ctrl-C
/// ends this process (and rank 0 if it reads the terminal), but not the other ranks, whose next
/// writes raise SIGPIPE. With [`ProcessGroup::Inherit`](iof_engine::ProcessGroup) in
/// [`JobSpec::process_group`], set by [`Launcher::job`], Ctrl-C reaches the ranks as well.
///
/// ```
/// use iof::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let ranks = App::new("sh", ["-c", "exit $IOF_RANK"]).ranks(2);
/// let status = Launcher::new("demo".parse()?).app(ranks).run()?;
/// assert_eq!(status.code(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Launcher {
    config: Config,
    spec: JobSpec,
    options: Options,
}

impl Launcher {
    /// Creates a launcher of the job `nspace`. At least one program must be [added](Launcher::app).
    pub fn new(nspace: Nspace) -> Launcher {
        let mut spec = JobSpec::new(nspace, Vec::new());
        spec.stdin = [(Rank(0), Stdin::Inherit)].into();
        spec.kill_on_bad_exit = KillOnBadExit::Signal;
        spec.mpi = Mpi::Auto;
        Launcher { config: Config::default(), spec, options: Options::default() }
    }

    /// Adds a program. The next [`App::nprocs`] ranks run it, after those of the programs added
    /// before.
    pub fn app(mut self, app: App) -> Launcher {
        self.spec.apps.push(app);
        self
    }

    /// Sets the failures of a rank that end the job ([`JobSpec::kill_on_bad_exit`]). By default the
    /// job ends when a signal kills a rank.
    pub fn kill_on_bad_exit(mut self, failures: KillOnBadExit) -> Launcher {
        self.spec.kill_on_bad_exit = failures;
        self
    }

    /// Sets the protocol by which the ranks start MPI ([`JobSpec::mpi`]). By default it is
    /// [`Mpi::Auto`], with which programs of MPICH and Open MPI 5 start.
    pub fn mpi(mut self, mpi: Mpi) -> Launcher {
        self.spec.mpi = mpi;
        self
    }

    /// Ends the job after `timeout` ([`JobSpec::timeout`]). By default the time is unlimited.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use iof::engine::TIMEOUT_CODE;
    /// use iof::prelude::*;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let launcher = Launcher::new("demo".parse()?).app(App::new("sleep", ["1000"]));
    /// let status = launcher.timeout(Duration::from_millis(100)).run()?;
    /// assert_eq!(status.code(), TIMEOUT_CODE);
    /// # Ok(())
    /// # }
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Launcher {
        self.spec.timeout = Some(timeout);
        self
    }

    /// Changes the specification of the job, such as its stdin, ptys and process groups. This
    /// example gives all ranks /dev/null as stdin:
    ///
    /// ```
    /// # use iof::prelude::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let launcher = Launcher::new("demo".parse()?).job(|job| job.stdin.clear());
    /// # Ok(())
    /// # }
    /// ```
    pub fn job(mut self, change: impl FnOnce(&mut JobSpec)) -> Launcher {
        change(&mut self.spec);
        self
    }

    /// Changes the configuration of the engine, such as the cache size. With a policy other than
    /// [`Policy::Block`](iof_engine::Policy::Block), output may be lost.
    pub fn config(mut self, change: impl FnOnce(&mut Config)) -> Launcher {
        change(&mut self.config);
        self
    }

    /// Sets the format of the output, such as tags. By default the bytes are written unchanged.
    pub fn output(mut self, options: Options) -> Launcher {
        self.options = options;
        self
    }

    /// Runs the job. Blocks until all its ranks have ended and their output is written, and then
    /// for at most five seconds while tools receive their last messages. Returns the exit status of
    /// the ranks.
    ///
    /// # Errors
    /// Fails if the engine, the job or the output cannot be set up. Fails also if the output cannot
    /// be written. In this case the ranks are sent SIGTERM, and the call waits until they have
    /// ended. [`RunError::Incomplete`] tells that streams are not whole, and has the exit status.
    pub fn run(self) -> Result<JobStatus, RunError> {
        let engine = Engine::start(self.config.clone())?;
        // The readers attach before the first byte.
        let printers = JobPrinters::start(&engine, &self.spec.nspace, &Choice::default(), &self.options)?;
        let job = engine.spawn(&self.spec)?;
        let written = printers.finish(&job);
        let status = job.wait();
        RunError::check(status, written?.iter().map(PrintReport::incomplete).fold(0, u64::saturating_add))
    }

    /// Runs the job as [`Launcher::run`] does, but passes each line of its output to `call`, in place of
    /// writing it. The call is made on this thread. While it runs, ranks wait as soon as their caches are
    /// full. Lines have their rank, channel and time; a line longer than
    /// [`LONGEST_LINE`](iof_tool::LONGEST_LINE) arrives in parts.
    ///
    /// # Errors
    /// Those of [`Launcher::run`], except for the output.
    ///
    /// ```
    /// use iof::prelude::*;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let ranks = App::new("sh", ["-c", "echo hello from $IOF_RANK"]).ranks(2);
    /// let mut texts = Vec::new();
    /// let status = Launcher::new("demo".parse()?).app(ranks).on_line(|line| {
    ///     texts.push(format!("{}: {}", line.source.rank, String::from_utf8_lossy(&line.bytes)));
    /// })?;
    /// texts.sort();
    /// assert_eq!(texts, ["0: hello from 0", "1: hello from 1"]);
    /// assert_eq!(status.code(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_line(self, mut call: impl FnMut(Line)) -> Result<JobStatus, RunError> {
        let engine = Engine::start(self.config.clone())?;
        let lines = Lines::new(attach(&engine, &self.spec.nspace, Channels::OUTPUTS)?);
        let (job, mut incomplete) = (engine.spawn(&self.spec)?, 0u64);
        for item in lines {
            let item = item.map_err(RequestError::Lost)?;
            incomplete = incomplete.saturating_add(item.incomplete());
            item.line().map(&mut call);
        }
        RunError::check(job.wait(), incomplete)
    }
}
