//! The part of the printer that deals with what waits: parts of lines, lines that further ranks may
//! write, and files which did not accept all bytes at once. Their streams wait in their rings until a
//! thread has written these bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use iof_proto::{Channel, Proc};
use iof_tool::{BatchReader, FeedId};
use nix::sys::eventfd::EventFd;

use super::{PrintError, PrinterTask};
use crate::batch::Batch;
use crate::destination::OpenDestination;
use crate::files::{FileError, FileId};
use crate::stream::Outcome;

/// A file that a thread opens or writes.
pub(super) struct LateFile {
    /// The first stream that it writes.
    origin: (Proc, Channel),
    /// The outcomes for its streams when it is written.
    pub outcomes: Vec<Outcome>,
    /// The streams of the file that have more.
    waiting: BTreeSet<FeedId>,
}

/// Returns the record of a file that a thread writes now, as `is_late` specifies; `None` if all is
/// written. `proc` and `channel` are one of the streams of the file.
pub(super) fn keep_late<'a>(
    late: &'a mut BTreeMap<FileId, LateFile>,
    file: FileId,
    (proc, channel): (&Proc, Channel),
    is_late: Result<bool, FileError>,
) -> Result<Option<&'a mut LateFile>, PrintError> {
    let is_late = is_late.map_err(|error| PrintError::File { proc: proc.clone(), channel, error })?;
    let origin = || (proc.clone(), channel);
    let new = || LateFile { origin: origin(), outcomes: Vec::new(), waiting: BTreeSet::new() };
    Ok(is_late.then(|| late.entry(file).or_insert_with(new)))
}

impl PrinterTask {
    /// Returns when to check again what waits.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let folded = self.folder.as_ref().and_then(|folder| folder.next_due());
        self.due.first().map(|(time, _)| *time).into_iter().chain(folded).min()
    }

    /// Rearms the streams whose waiting parts of lines are to be checked again by now.
    pub(super) fn rearm_due(&mut self, reader: &mut BatchReader) {
        if self.due.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some((_, id)) = self.due.first().copied().filter(|(time, _)| *time <= now) {
            self.due.pop_first();
            if let Some(stream) = self.stream(id) {
                stream.due = None;
            }
            reader.rearm(id);
        }
    }

    /// Writes the held lines that are due: all of a stream before a gap of it.
    pub(super) fn write_folded(&mut self, gap: Option<FeedId>) -> Result<(), PrintError> {
        let PrinterTask { folder: Some(folder), destination: OpenDestination::Output(output), .. } = self
        else {
            return Ok(());
        };
        let cut = gap.and_then(|id| self.streams.get(id.index())?.as_ref());
        cut.iter().for_each(|stream| folder.flush(stream.key));
        loop {
            let lines = folder.take_due();
            if lines.is_empty() {
                return Ok(());
            }
            let (mut open, _busy) = output.lock();
            let mut batch = Batch::new(mem::take(&mut self.buffer));
            lines.iter().for_each(|line| folder.write(line, &self.options.style, &mut open, &mut batch));
            output.write(&mut batch.slices()).map_err(PrintError::Write)?;
            self.buffer = batch.into_buffer();
        }
    }

    /// Returns whether a stream has to wait for its file. It is listed again when the file is
    /// written.
    pub(super) fn waits_for_file(&mut self, reader: &mut BatchReader, id: FeedId) -> bool {
        if self.late.is_empty() {
            return false;
        }
        let file = self.stream(id).and_then(|stream| stream.file);
        let Some(late) = file.and_then(|file| self.late.get_mut(&file)) else { return false };
        late.waiting.insert(id);
        reader.defer(id);
        true
    }

    /// Returns the descriptor that is readable when [`PrinterTask::take_written`] has something to
    /// do, if threads write files.
    pub(super) fn late_event(&self) -> Option<Arc<EventFd>> {
        let OpenDestination::Files(files) = &self.destination else { return None };
        files.pool.as_ref().filter(|_| !self.late.is_empty()).map(|pool| pool.event())
    }

    /// Continues with the streams of the files that threads have written. If `waits`, blocks until
    /// there is one of these.
    pub(super) fn take_written(&mut self, reader: &mut BatchReader, waits: bool) -> Result<(), PrintError> {
        while !self.late.is_empty() {
            let OpenDestination::Files(files) = &mut self.destination else { return Ok(()) };
            let Some((file, written)) = files.take_written(waits) else { return Ok(()) };
            let Some(LateFile { origin, outcomes, waiting }) = self.late.remove(&file) else { continue };
            let (proc, channel) = origin;
            written.map_err(|error| PrintError::File { proc, channel, error })?;
            outcomes.iter().for_each(|outcome| self.apply(reader, outcome));
            for id in waiting {
                // While the file accepted nothing, the rest of a line may have been held back.
                if let Some(stream) = self.stream(id) {
                    stream.partial.restart();
                }
                reader.rearm(id);
            }
        }
        Ok(())
    }
}
