//! A job of an engine in this process.

use std::io::PipeReader;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex};
use std::thread;

use iof::JobPrinters;
use iof::engine::{EndCause, Ending, Engine as Native, Exit, Job as NativeJob, JobStatus, Signal};
use iof::output::PrintReport;
use iof::proto::Rank;
use pyo3::prelude::*;

use crate::arguments::invalid;
use crate::owned::{Owned, lock, opened};

/// The end of a job: its exit code, those of its ranks as far as they are known, why it ended early, the
/// number of bytes that were lost and not written, and why its output could not be written.
type Ended = (i32, Vec<(u32, Option<i32>)>, Option<&'static str>, u64, Option<String>);

/// A job. `iof.Job` is made of it.
#[pyclass(frozen, module = "iof", name = "Job")]
pub struct PyJob {
    native: Owned<NativeJob>,
    engine: Arc<Owned<Arc<Native>>>,
    printers: Mutex<JobPrinters>,
    /// The end of the job, for which a thread waits once it is asked for, and a pipe that then has its end of
    /// file.
    ended: Arc<Mutex<Option<Ended>>>,
    waits: Mutex<Option<PipeReader>>,
}

impl PyJob {
    pub fn new(job: NativeJob, engine: Arc<Owned<Arc<Native>>>, printers: JobPrinters) -> PyJob {
        PyJob {
            native: Owned::new(job),
            engine,
            printers: Mutex::new(printers),
            ended: Arc::default(),
            waits: Mutex::default(),
        }
    }

    /// Returns the job.
    fn native(&self) -> PyResult<NativeJob> {
        opened(&mut *self.native.lock()?, "job").cloned()
    }
}

/// Waits for the output of a job and for its end.
fn wait(job: &NativeJob, printers: JobPrinters) -> Ended {
    let (reports, failed) = match printers.finish(job) {
        Ok(reports) => (reports, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let lost = reports.iter().flat_map(|report| report.lost.values().copied()).fold(0, u64::saturating_add);
    let status = job.wait();
    let incomplete = reports.iter().map(PrintReport::incomplete).fold(0, u64::saturating_add);
    // Otherwise the code tells the failure.
    let failed = failed.or((status.code() == 0 && incomplete > 0).then(|| {
        format!("the job's output is incomplete: {incomplete} of its streams were not read to their ends")
    }));
    let exits = job.endings().filter_map(|ending| match ending {
        Ending::Rank(end) => Some((end.rank.0, (end.exit != Exit::Unknown).then(|| end.exit.code()))),
        _ => None,
    });
    (status.code(), exits.collect(), early_end(&status), lost, failed)
}

/// Returns the reason why the engine has ended the job, in one word.
fn early_end(status: &JobStatus) -> Option<&'static str> {
    status.early_end.as_ref().map(|end| match end.cause {
        EndCause::Timeout => "timeout",
        EndCause::Abort { .. } => "abort",
        EndCause::Embedder => "request",
        _ => "failure",
    })
}

#[pymethods]
impl PyJob {
    /// The name of the job.
    #[getter]
    fn nspace(&self) -> PyResult<String> {
        Ok(self.native()?.nspace().to_string())
    }

    /// The pids of the ranks.
    #[getter]
    fn pids(&self) -> PyResult<Vec<u32>> {
        Ok(self.native()?.pids())
    }

    /// Sends a signal to the ranks. Returns the number of ranks and groups that it was sent to.
    fn signal(&self, signal: i32) -> PyResult<usize> {
        let signal = Signal::try_from(signal).map_err(|error| invalid("signal", error))?;
        Ok(self.native()?.signal(signal))
    }

    /// Ends the job: SIGTERM, and two seconds later SIGKILL. Its exit code is 1.
    fn fail(&self) -> PyResult<()> {
        self.native()?.fail();
        Ok(())
    }

    /// Reports the exit of an adopted rank, as `Popen.returncode` has it, or None if it is not known.
    fn report_exit(&self, rank: u32, code: Option<i32>) -> PyResult<bool> {
        let raw = |code: i32| if code < 0 { code.saturating_neg() } else { (code & 0xff) << 8 };
        let exit = code.map_or(Exit::Unknown, |code| Exit::Status(ExitStatus::from_raw(raw(code))));
        Ok(self.native()?.report_exit(Rank(rank), exit))
    }

    /// Removes a job that has ended from its engine, with its cached output. Returns whether it has.
    fn remove(&self, py: Python<'_>) -> PyResult<bool> {
        let job = self.native()?;
        // Without the GIL: a thread that has the engine may need it to raise an exception.
        py.detach(|| Ok(self.engine.lock()?.as_ref().is_some_and(|engine| engine.remove(job.nspace()))))
    }

    /// Completes the streams of a rank with the bytes written so far.
    fn close(&self, rank: u32) -> PyResult<()> {
        let job = self.native()?;
        for channel in iof::proto::Channel::OUTPUTS {
            job.close(Rank(rank), channel);
        }
        Ok(())
    }

    /// Returns the end of the job and its output, or before it a descriptor that is readable then.
    fn end(&self) -> PyResult<(Option<Ended>, i32)> {
        let job = self.native()?;
        let mut waits = lock(&self.waits);
        if waits.is_none() {
            let (reading, writing) = std::io::pipe()?;
            let printers = std::mem::take(&mut *lock(&self.printers));
            let ended = Arc::clone(&self.ended);
            // Not a thread of Python, which could end after the interpreter.
            thread::Builder::new().name("iof-job".into()).spawn(move || {
                let end = wait(&job, printers);
                *lock(&ended) = Some(end);
                drop(writing);
            })?;
            *waits = Some(reading);
        }
        Ok((lock(&self.ended).clone(), waits.as_ref().map_or(-1, PipeReader::as_raw_fd)))
    }
}
