//! The printers of a job, which write its output to stdout and stderr of this process, or to files.

use std::{io, thread};

use iof_engine::{Engine, Grant, Job, Signal};
use iof_output::{Choice, Destination, Files, NewFiles, Options, PrintError, PrintReport, Printer};
use iof_proto::{Channels, Nspace, Proc};
use iof_tool::{Pull, Tool};

use crate::closed::standard_outputs;
use crate::error::RunError;

/// The printers of a job. No output is lost: ranks wait while it can't be written.
#[derive(Debug, Default)]
pub struct JobPrinters(Vec<Printer>);

impl JobPrinters {
    /// Starts the printers of the job `nspace`, which begins later. They write to the files of `choice`, if it
    /// has some, and otherwise or with [`Choice::copy`] to stdout and stderr of this process. The format is that
    /// of `options`.
    ///
    /// # Errors
    /// A printer can't attach to the engine, or an output can't be had.
    pub fn start(
        engine: &Engine,
        nspace: &Nspace,
        choice: &Choice,
        options: &Options,
    ) -> Result<JobPrinters, RunError> {
        let print = |channels, destination: Destination| -> Result<Printer, RunError> {
            let tool = attach(engine, nspace, channels)?;
            Ok(Printer::start(tool, destination, options.clone(), |_, _, _| {})?)
        };
        let mut printers = Vec::new();
        if let Some(place) = choice.files.clone() {
            let files = Files { merge: choice.merge, ..Files::at(place) };
            let mut new = NewFiles::default();
            files.prepare(&mut new)?;
            new.keep();
            printers.push(print(Channels::OUTPUTS, files.into())?);
            if !choice.copy {
                return Ok(JobPrinters(printers));
            }
        }
        let (out, err) = standard_outputs()?;
        // One printer keeps the order in which stdout and stderr were read.
        if choice.merge || out.is_same_file(&err) {
            printers.push(print(Channels::OUTPUTS, out.into())?);
        } else {
            printers.extend([print(Channels::STDOUT, out.into())?, print(Channels::ERRORS, err.into())?]);
        }
        Ok(JobPrinters(printers))
    }

    /// Blocks until the output of the job is written. Returns what each printer has written.
    ///
    /// # Errors
    /// An output can't be written. The ranks are sent SIGTERM, and the other printers have ended.
    pub fn finish(self, job: &Job) -> Result<Vec<PrintReport>, RunError> {
        // A printer ends after the last byte, or when its output cannot be written. The other ones
        // then still have output to write.
        let finish = |printer: Printer| {
            printer.join().inspect_err(|_| {
                job.signal(Signal::TERM);
            })
        };
        let mut printers = self.0.into_iter();
        let first = printers.next();
        thread::scope(|scope| {
            let finish_other = |printer| thread::Builder::new().spawn_scoped(scope, move || finish(printer));
            let others = printers.map(finish_other).collect::<io::Result<Vec<_>>>()?;
            let first = first.map(finish);
            let others = others.into_iter().map(|other| other.join().unwrap_or(Err(PrintError::Died)));
            Ok(first.into_iter().chain(others).collect::<Result<_, _>>()?)
        })
    }
}

/// Attaches a reader that loses nothing.
pub fn attach(engine: &Engine, nspace: &Nspace, channels: Channels) -> Result<Tool, RunError> {
    let mut tool = engine.attach("launcher", Grant::Block)?;
    tool.pull(&Pull::new(vec![Proc::all(nspace.clone())], channels))?;
    Ok(tool)
}
