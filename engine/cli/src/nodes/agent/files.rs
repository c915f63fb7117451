//! The files of a node, which its agent writes (`--output dir=DIR:node`).

use std::env;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::{Receiver, bounded};
use iof_engine::{Engine, JobSpec};
use iof_nodes::{NodeFiles, Start, ToFrontEnd, cut_text};
use iof_output::{NewFiles, PrintReport};
use iof_proto::Rank;

use super::uplink::Uplink;
use super::{NAME, reason_of};
use crate::error::Failure;
use crate::output::{OpenMode, OutputArgs, TagBy};
use crate::printers::OutputWriter;
use crate::redirect::RedirectArgs;
use crate::run::attach;

/// The printers that write the files of a node.
#[derive(Default)]
pub struct FileWriters {
    writers: Vec<OutputWriter>,
    /// What was created, until the ranks run.
    new: NewFiles,
}

impl FileWriters {
    /// Creates the files that `start` asks for, at most `spare` of them open at a time, and starts
    /// their printers. The ranks wait for these.
    pub fn start(engine: &Engine, spec: &JobSpec, start: &Start, spare: u64) -> Result<FileWriters, Failure> {
        let Some(files) = &start.files else { return Ok(FileWriters::default()) };
        env::set_current_dir(&files.directory).map_err(|error| {
            Failure::Usage(format!("files cannot be written below {}: {error}", files.directory.display()))
        })?;
        let args = output_args(start, files);
        let outputs = args.prepare_agent(files.nprocs)?;
        let mut attached = outputs.attach(Some(files.nprocs), |parts| {
            parts.iter().map(|part| attach(engine, NAME, &spec.nspace, part).map(Some)).collect()
        })?;
        let (ranks, mut new): (Vec<Rank>, _) = (start.ranks.iter().copied().collect(), NewFiles::default());
        attached.lock_files((&spec.nspace, &ranks), spare, &mut new)?;
        attached.check_programs(&spec.apps)?;
        if let Some(path) = attached.open_fifos(&mut new)? {
            let path = path.display();
            return Err(Failure::Usage(format!("no process reads the FIFO {path}: start its reader first")));
        }
        Ok(FileWriters { writers: attached.start()?, new })
    }

    /// Keeps the files, because the ranks run, and tells the front end about each printer that has
    /// ended. The receiver is disconnected after the last one.
    pub fn watch(self, uplink: &Arc<Uplink>) -> Result<Receiver<()>, Failure> {
        self.new.keep();
        let (all, ended) = bounded(0);
        for writer in self.writers {
            let (uplink, all) = (Arc::clone(uplink), all.clone());
            writer.watch(move |report| {
                uplink.send(&message(report));
                drop(all);
            })?;
        }
        Ok(ended)
    }
}

fn message(report: Result<PrintReport, Failure>) -> ToFrontEnd {
    match report {
        Ok(PrintReport { written, lost, .. }) => {
            ToFrontEnd::FilesWritten { written, lost: lost.into_iter().collect(), failure: None }
        }
        Err(failure) => {
            let (reason, _) = reason_of(failure);
            ToFrontEnd::FilesWritten { written: 0, lost: Vec::new(), failure: Some(cut_text(&reason)) }
        }
    }
}

/// Returns the options of the front end, as far as they concern files.
fn output_args(start: &Start, files: &NodeFiles) -> OutputArgs {
    let (file_size, file_count) = files.rotation.unzip();
    OutputArgs {
        output: files.output.clone(),
        redirect: RedirectArgs::default(),
        tag_by: if files.fragments { TagBy::Fragment } else { TagBy::Line },
        tag_suffix: files.suffix.clone(),
        max_line: start.max_line.into(),
        max_line_time: Duration::from_millis(start.max_line_time),
        ranks: None,
        no_forward: Some(files.hidden),
        open_mode: if files.append { OpenMode::Append } else { OpenMode::Truncate },
        file_size,
        file_count: file_count.unwrap_or_default(),
    }
}
