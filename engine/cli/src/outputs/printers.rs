//! The printers that implement the output options.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::Sender;
use iof_capture::find_program;
use iof_engine::{App, JobSpec};
use iof_output::{Destination, FileError, NewFiles, Options, PrintError, PrintReport, Printer};
use iof_proto::query::JobInfo;
use iof_proto::{Channels, Nspace, Proc, Rank};
use iof_tool::Tool;
use nix::sys::signal::Signal;

use crate::error::Failure;
use crate::options::values::Ranks;
use crate::processes::threads::{no_thread, start_thread};
use crate::reports::gaps::Gaps;
use crate::reports::objects::print_rank;
use crate::terminal::give_up::WatchedOutput;
use crate::terminal::message::print_message;

/// The number of file descriptors that files leave to what the command opens later, such as stdin.
const RESERVED_FILES: u64 = 16;

/// A printer that writes to stdout, stderr or files.
pub struct OutputWriter {
    printer: Printer,
    gaps: Arc<Gaps>,
    /// Files were not locked before, so that a locked one is found only now.
    locks_late: bool,
    watched: WatchedOutput,
    /// The name of the output, if it only gets a copy of what is written to files.
    copies_to: Option<&'static str>,
}

/// The target of one printer, and the streams that go there.
pub struct OutputTarget<'a> {
    /// The channels of the streams.
    pub channels: Channels,
    /// The ranks of the streams; `None` for all ranks.
    pub ranks: Option<&'a Ranks>,
    pub destination: Destination,
    pub options: Options,
    /// The words for the place in messages about gaps.
    pub place: String,
    pub watched: WatchedOutput,
    /// See [`OutputWriter`].
    pub copies_to: Option<&'static str>,
}

impl OutputTarget<'_> {
    /// Returns whether what is written tells from where to continue it.
    pub fn may_be_resumed(&self) -> bool {
        self.options.style.has_objects() && !matches!(self.destination, Destination::Files(_))
    }
}

/// The report of a printer, with what its user calls it by.
pub type OutputReport<T> = (T, Result<PrintReport, Failure>);

/// The wait of a part of a line in a job of one rank.
pub const LONE_RANK_WAIT: Duration = Duration::from_millis(100);

/// Lets the first of these targets print the objects of ranks if all output goes to files. Otherwise, the first
/// one is stdout.
pub fn print_ranks_beside_files(targets: &mut [OutputTarget<'_>]) {
    if let Some(OutputTarget { destination: Destination::Files(_), options, .. }) = targets.first_mut() {
        options.rank_object = Some(print_rank);
    }
}

/// The outputs whose streams are pulled, and whose printers have not started.
pub struct AttachedOutputs<'a>(pub Vec<(Tool, OutputTarget<'a>)>);

impl AttachedOutputs<'_> {
    /// Lets incomplete lines of text wait for a short time only, because one rank writes all lines.
    pub fn expect_one_rank(&mut self) {
        let options = self.0.iter_mut().map(|(_, target)| &mut target.options);
        for options in options.filter(|options| options.style.joins_parts()) {
            options.flush_timeout.max_time.get_or_insert(LONE_RANK_WAIT);
        }
    }

    /// Adds tokens to the objects of these jobs.
    pub fn set_runs(&mut self, jobs: &[JobInfo]) {
        let runs: BTreeMap<Nspace, u128> = jobs.iter().map(|job| (job.nspace.clone(), job.run)).collect();
        self.0.iter_mut().for_each(|(_, target)| target.options.style.set_runs(runs.clone()));
    }

    /// Creates the directories of files, so that an unusable path is an error before anything is
    /// written. Adds what this creates to `new`.
    fn create_directories(&self, new: &mut NewFiles) -> Result<(), Failure> {
        let no_directory = |error| Failure::Usage(format!("cannot create the directory for files: {error}"));
        self.0.iter().try_for_each(|(_, target)| match &target.destination {
            Destination::Files(files) => files.prepare(new).map_err(no_directory),
            _ => Ok(()),
        })
    }

    /// Creates and locks the files of these ranks of a job, with their directories, and adds what
    /// this creates to `new`. The printers keep up to `spare` of the files open. A job that cannot
    /// start is to be refused before.
    pub fn lock_files(
        &mut self,
        JobSpec { nspace, apps, .. }: &JobSpec,
        ranks: &[Rank],
        spare: u64,
        new: &mut NewFiles,
    ) -> Result<(), Failure> {
        self.create_directories(new)?;
        let targets = || self.0.iter().map(|(_, target)| &target.destination);
        let count = targets().filter(|target| matches!(target, Destination::Files(_))).count().max(1);
        let each = spare.saturating_sub(RESERVED_FILES).checked_div(count as u64).unwrap_or(0);
        for (_, target) in &mut self.0 {
            if let Destination::Files(files) = &mut target.destination {
                files.max_open = usize::try_from(each).unwrap_or(usize::MAX);
                let locked = files
                    .clone()
                    .lock(nspace, ranks.iter().copied(), target.channels, new)
                    .map_err(not_writable)?;
                target.destination = locked.into();
            }
        }
        self.check_programs(apps)
    }

    /// Checks that none of the locked files is the program of one of `apps`, whose contents writing
    /// the file would replace.
    fn check_programs(&self, apps: &[App]) -> Result<(), Failure> {
        for app in apps {
            // A program that cannot be started is reported elsewhere.
            let Some(program) = file_of(app) else { continue };
            if let Some(path) = self.find(&program) {
                return Err(Failure::Usage(format!(
                    "the output file {} is the program '{}': name another file",
                    path.display(),
                    app.program.display()
                )));
            }
        }
        Ok(())
    }

    /// Returns the path of the locked file that is the file with this metadata.
    pub fn find(&self, file: &Metadata) -> Option<&Path> {
        self.0.iter().find_map(|(_, target)| match &target.destination {
            Destination::LockedFiles(files) => files.find(file),
            _ => None,
        })
    }

    /// Opens the FIFOs that have a reader by now. Returns the path of one that has none.
    pub fn open_fifos(&mut self, new: &mut NewFiles) -> Result<Option<&Path>, Failure> {
        for (_, target) in &mut self.0 {
            if let Destination::LockedFiles(files) = &mut target.destination
                && let Some(path) = files.open_fifos(new).map_err(not_writable)?
            {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// Creates the directories of files, and starts the printers.
    pub fn write(self) -> Result<Vec<OutputWriter>, Failure> {
        let mut new_files = NewFiles::default();
        self.create_directories(&mut new_files)?;
        let writers = self.start()?;
        new_files.keep();
        Ok(writers)
    }

    /// Writes as [`AttachedOutputs::write`] does. Each printer sends its report with `id` once it has
    /// ended. Returns their number.
    pub fn write_and_report<T: Clone + Send + 'static>(
        self,
        id: &T,
        done: &Sender<OutputReport<T>>,
    ) -> Result<usize, Failure> {
        let writers = self.write()?;
        let count = writers.len();
        for writer in writers {
            let (id, done) = (id.clone(), done.clone());
            writer.watch(move |report| drop(done.send((id, report))))?;
        }
        Ok(count)
    }

    /// Starts the printers.
    pub fn start(self) -> Result<Vec<OutputWriter>, Failure> {
        self.0.into_iter().map(|(tool, target)| OutputWriter::start(tool, target)).collect()
    }
}

/// Returns the metadata of the file that the ranks of `app` execute.
pub fn file_of(app: &App) -> Option<Metadata> {
    find_program(app).and_then(fs::metadata).ok()
}

/// Adds the bytes of a report to `sum`.
///
/// # Errors
/// Streams are missing, or the printer has ended before them.
pub fn add_report(sum: &mut PrintReport, report: PrintReport) -> Result<(), Failure> {
    let PrintReport { written, lost, missed, broken, unfinished, misses_streams, drops, .. } = report;
    if missed > 0 {
        // A line on their missing bytes names them.
        return Err(Failure::running("an output lacks whole streams, for which memory was missing"));
    }
    if misses_streams || unfinished > 0 {
        return Err(Failure::running(
            "an output has lost its connection to the streams before their ends, so it is incomplete",
        ));
    }
    sum.written = sum.written.saturating_add(written);
    sum.broken = sum.broken.saturating_add(broken);
    sum.drops.add(drops);
    for (channel, lost) in lost {
        let total = sum.lost.entry(channel).or_default();
        *total = total.saturating_add(lost);
    }
    Ok(())
}

fn not_writable(error: FileError) -> Failure {
    Failure::Usage(format!("cannot write the output file: {error}"))
}

impl OutputWriter {
    /// Starts a printer that writes the streams of `tool` to `target`.
    fn start(tool: Tool, target: OutputTarget<'_>) -> Result<OutputWriter, Failure> {
        let OutputTarget { destination, options, place, watched, copies_to, .. } = target;
        let gaps = Gaps::new(place);
        let locks_late = matches!(destination, Destination::Files(_));
        let added = Arc::clone(&gaps);
        let on_gap = move |source: &Proc, channel, gap| added.add(source, channel, gap);
        let printer = Printer::start(tool, destination, options, on_gap);
        Ok(OutputWriter { printer: printer.map_err(no_thread)?, gaps, locks_late, watched, copies_to })
    }

    /// Returns the output that this writes to, or one with the same watch.
    pub fn watched(&self) -> WatchedOutput {
        self.watched.clone()
    }

    /// Starts a thread that waits for the end of the printer and passes its report to `on_end`.
    ///
    /// The report of a copy of what is written to files only states whether streams are missing. If the copy cannot be written,
    /// the files are still completed.
    pub fn watch(
        self,
        on_end: impl FnOnce(Result<PrintReport, Failure>) + Send + 'static,
    ) -> Result<(), Failure> {
        start_thread("iof-output", move || on_end(self.finish()))
    }

    fn finish(self) -> Result<PrintReport, Failure> {
        let report = self.printer.join();
        self.gaps.finish();
        match (report, self.copies_to) {
            (Ok(report), None) => Ok(report),
            (Ok(PrintReport { missed, unfinished, misses_streams, .. }), Some(_)) => {
                let misses_streams = misses_streams || unfinished > 0;
                Ok(PrintReport { missed, misses_streams, ..PrintReport::default() })
            }
            (Err(PrintError::Write(error)), Some(name)) => {
                print_message(format_args!(
                    "{name}: {error}; output is no longer shown there, but the files will be complete"
                ));
                Ok(PrintReport::default())
            }
            (Err(PrintError::Write(error)), None) if error.kind() == ErrorKind::BrokenPipe => {
                Err(Failure::Signal(Signal::SIGPIPE))
            }
            (Err(error), _) if self.locks_late && is_busy(&error) => Err(Failure::usage(error)),
            (Err(error @ PrintError::File { .. }), _) => {
                Err(Failure::running(format_args!("{error}; other files may end early, too")))
            }
            (Err(error), _) => Err(Failure::running(error)),
        }
    }
}

/// Returns whether another process has locked the file.
fn is_busy(error: &PrintError) -> bool {
    matches!(error, PrintError::File { error, .. } if error.error.kind() == ErrorKind::ResourceBusy)
}
