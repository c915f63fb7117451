//! The files of a node, which its agent writes (`--output dir=DIR:node`).

use std::mem;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use iof_engine::Engine;
use iof_nodes::{NodeConfig, NodeFiles, NodeStart};
use iof_output::{NewFiles, PrintReport};
use iof_proto::Rank;
use iof_remote::{FileWriter, FilesEnd, StartRefusal};
use nix::sys::signal::Signal;

use crate::commands::attach::attach_own;
use crate::error::Failure;
use crate::events::job_event::GRACE;
use crate::outputs::file_args::{FileArgs, FileCache, OpenMode};
use crate::outputs::lines::LineArgs;
use crate::outputs::output::{OutputArgs, TagBy};
use crate::outputs::printers::{OutputWriter, add_report};
use crate::outputs::redirect::RedirectArgs;
use crate::processes::threads::{recv_until, start_thread};
use crate::terminal::give_up::WriteWait;

/// The name of the agent's own tools.
const NAME: &str = "iof agent";

/// The printers that write the files of a node.
#[derive(Default)]
pub struct FileWriters {
    writers: Vec<OutputWriter>,
    /// The files that were created, until the ranks run.
    new: NewFiles,
    /// The time for which files may accept nothing (`--give-up`).
    give_up: Option<Duration>,
    /// The same after the ranks were ended.
    write_limit: Duration,
    /// For the thread that waits for the printers, once the ranks run.
    events: Option<Sender<FileEvent>>,
    /// Disconnected at the end of the wait.
    ended: Option<Receiver<()>>,
}

impl FileWriters {
    /// Creates the files that `start` asks for, at most `spare` of them open at a time, and starts
    /// their printers. The ranks wait for these.
    pub fn start(engine: &Engine, start: &NodeStart, spare: u64) -> Result<FileWriters, Failure> {
        let NodeStart { spec, config } = start;
        let Some(files) = &config.files else { return Ok(FileWriters::default()) };
        let args = output_args(config, files);
        let outputs = args.prepare_agent(files.nprocs, files.directory.as_ref())?;
        let mut attached = outputs.attach(|parts| {
            parts.iter().map(|part| attach_own(engine, NAME, &spec.nspace, part).map(Some)).collect()
        })?;
        let (ranks, mut new): (Vec<Rank>, _) =
            (spec.local.iter().flatten().copied().collect(), NewFiles::default());
        attached.lock_files(spec, &ranks, spare, &mut new)?;
        if let Some(path) = attached.open_fifos(&mut new)? {
            let path = path.display();
            return Err(Failure::Usage(format!("no process reads the FIFO {path}: start its reader first")));
        }
        let (give_up, write_limit) = (files.give_up, spec.kill_wait.max(GRACE));
        let writers = attached.start()?;
        Ok(FileWriters { writers, new, give_up, write_limit, ..FileWriters::default() })
    }
}

impl FileWriter for FileWriters {
    fn watch(&mut self, done: Box<dyn FnOnce(FilesEnd) + Send>) -> Result<(), StartRefusal> {
        mem::take(&mut self.new).keep();
        let writers = mem::take(&mut self.writers);
        let count = writers.len();
        let write_wait = WriteWait::new(writers.iter().map(OutputWriter::watched), self.give_up);
        let (events, queue) = unbounded();
        for writer in writers {
            let events = events.clone();
            writer.watch(move |report| drop(events.send(FileEvent::Ended(report)))).map_err(refusal)?;
        }
        let (all, ended) = bounded(0);
        (self.events, self.ended) = (Some(events), Some(ended));
        start_thread("iof-files", move || {
            if count > 0 {
                let mut are_ended = false;
                let report = wait_for_all(&queue, count, write_wait, &mut are_ended);
                done(FilesEnd { are_blocked: report.is_err() && are_ended, result: report.map_err(reason) });
            }
            drop::<Sender<()>>(all);
        })
        .map_err(refusal)
    }

    fn ranks_were_ended(&self) {
        // The wait may be over.
        if let Some(events) = &self.events {
            let _ = events.send(FileEvent::RanksEnded(self.write_limit));
        }
    }

    fn wait(&self) {
        let _ = self.ended.as_ref().map(Receiver::recv);
    }
}

/// The events that the wait for files takes into account.
enum FileEvent {
    /// A printer has ended.
    Ended(Result<PrintReport, Failure>),
    /// The ranks were ended. Files may accept nothing for this long.
    RanksEnded(Duration),
}

/// Waits for `count` printers. Returns the sum of their reports. Sets `are_ended` when the ranks
/// were ended.
fn wait_for_all(
    queue: &Receiver<FileEvent>,
    count: usize,
    mut write_wait: WriteWait,
    are_ended: &mut bool,
) -> Result<PrintReport, Failure> {
    let (mut sum, mut ended) = (PrintReport::default(), 0);
    while ended < count {
        match recv_until(queue, write_wait.next_check()) {
            Ok(FileEvent::Ended(report)) => {
                add_report(&mut sum, report?)?;
                ended = ended.saturating_add(1);
            }
            Ok(FileEvent::RanksEnded(limit)) => {
                *are_ended = true;
                write_wait.limit(limit);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(Failure::running("the printers are gone")),
        }
        if let Some(blocked) = write_wait.check(Instant::now()) {
            return Err(Failure::Running(blocked.to_string()));
        }
    }
    Ok(sum)
}

/// Returns what the front end is told of a failure.
pub fn refusal(failure: Failure) -> StartRefusal {
    match failure {
        Failure::Usage(reason) | Failure::Choice(reason) => StartRefusal::usage(reason),
        Failure::Running(reason) | Failure::Timeout(reason) => StartRefusal::running(reason),
        Failure::Signal(signal) => StartRefusal::running(signal),
    }
}

/// Returns the reason why files can't be written.
fn reason(failure: Failure) -> String {
    match failure {
        Failure::Signal(Signal::SIGPIPE) => "the reader of an output file has gone".into(),
        failure => refusal(failure).reason,
    }
}

/// Returns the options of the front end, as far as they concern files.
fn output_args(config: &NodeConfig, files: &NodeFiles) -> OutputArgs {
    let (file_size, file_count) = files.rotation.unzip();
    OutputArgs {
        output: files.output.clone(),
        redirect: RedirectArgs::default(),
        lines: LineArgs::default(),
        tag_by: if files.fragments { TagBy::Fragment } else { TagBy::Line },
        tag_suffix: files.suffix.clone(),
        max_line: u64::try_from(config.max_line).unwrap_or(u64::MAX),
        max_line_time: config.max_line_time,
        ranks: None,
        no_forward: Some(files.hidden),
        files: FileArgs {
            open_mode: if files.append { OpenMode::Append } else { OpenMode::Truncate },
            file_size,
            file_count: file_count.unwrap_or_default(),
            file_cache: if files.drops_cache { FileCache::Drop } else { FileCache::Keep },
        },
    }
}
