//! The common launcher: an engine, two printers and one job.

use std::io;

use iof_engine::{App, Config, Engine, Grant, JobSpec, JobStatus, LaunchError, Signal, StartError, Stdin};
use iof_output::{Options, Output, PrintError, Printer};
use iof_proto::{Channels, Nspace, Proc, Rank};
use iof_tool::{AttachError, Pull, RequestError};

/// A launcher of one job, which writes the job's output to this process's stdout and stderr.
///
/// The output loses nothing: ranks wait while it can't be written. Rank 0 reads this process's
/// stdin, the other ranks read /dev/null. Tools can attach to the job while it runs.
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

/// The reason why [`Launcher::run`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The engine did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The job did not start.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A reader of the job's output could not attach.
    #[error("cannot read the job's output: {0}")]
    Attach(#[from] AttachError),
    /// A reader of the job's output could not register.
    #[error("cannot read the job's output: {0}")]
    Pull(#[from] RequestError),
    /// No thread or descriptor was left for writing the output.
    #[error("cannot write the job's output: {0}")]
    Output(#[from] io::Error),
    /// The output could not be written. The job was sent SIGTERM and has ended.
    #[error(transparent)]
    Print(#[from] PrintError),
}

impl Launcher {
    /// Returns a launcher of the job `nspace`, which has no app yet.
    pub fn new(nspace: Nspace) -> Launcher {
        let stdin = [(Rank(0), Stdin::Inherit)].into();
        Launcher {
            config: Config::default(),
            spec: JobSpec { stdin, ..JobSpec::new(nspace, Vec::new()) },
            options: Options::default(),
        }
    }

    /// Adds a program, which the next [`App::nprocs`] ranks run.
    pub fn app(mut self, app: App) -> Launcher {
        self.spec.apps.push(app);
        self
    }

    /// Changes the specification of the job.
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

    /// Changes the configuration of the engine. With a policy other than
    /// [`Policy::Block`](iof_engine::Policy::Block) the output may lose bytes.
    pub fn config(mut self, change: impl FnOnce(&mut Config)) -> Launcher {
        change(&mut self.config);
        self
    }

    /// Sets the format of the output.
    pub fn output(mut self, options: Options) -> Launcher {
        self.options = options;
        self
    }

    /// Runs the job. Blocks until all its ranks have ended and their output is written, and returns
    /// their exit status.
    ///
    /// # Errors
    /// Fails if the engine, the job or the output cannot be set up, or if the output cannot be
    /// written; then the ranks are sent SIGTERM, and the call waits for them.
    pub fn run(self) -> Result<JobStatus, RunError> {
        let engine = Engine::start(self.config.clone())?;
        // The readers attach before the first byte.
        let stdout = Output::new(io::stdout())?;
        let stderr = stdout.beside(io::stderr())?;
        let out = self.print(&engine, Channels::STDOUT, stdout)?;
        let err = self.print(&engine, Channels::STDERR | Channels::STDDIAG, stderr)?;
        let job = engine.spawn(&self.spec)?;
        // A printer ends after the last byte, or when its output cannot be written.
        let written = out.join().and_then(|_| err.join());
        if written.is_err() {
            job.signal(Signal::TERM);
        }
        let status = job.wait();
        written?;
        Ok(status)
    }

    fn print(&self, engine: &Engine, channels: Channels, output: Output) -> Result<Printer, RunError> {
        let mut tool = engine.attach("launcher", Grant::Block)?;
        tool.pull(&Pull::new(vec![Proc::all(self.spec.nspace.clone())], channels))?;
        Ok(Printer::start(tool, output, self.options.clone(), |_, _, _| {})?)
    }
}
