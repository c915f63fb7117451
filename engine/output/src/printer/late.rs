//! The part of the printer that deals with what waits: parts of lines, lines that further ranks may
//! write, and files which did not accept all bytes at once. Their streams wait in their rings until a
//! thread has written these bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use iof_proto::{Channel, Proc};
use iof_tool::{BatchReader, Behind, FeedId};
use nix::sys::eventfd::EventFd;

use super::{PrintError, PrinterTask};
use crate::batch::Batch;
use crate::destination::OpenDestination;
use crate::files::{FileError, FileId, MIN_UNCACHED};
use crate::stream::{Outcome, ReadyStream};

/// The time for which a file waits for a write that leaves nothing in the page cache.
const GATHER_TIME: Duration = Duration::from_secs(1);

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

    /// Leaves the bytes of a stream in its ring if they are too few for a write that leaves nothing in
    /// the page cache. Returns `false` if they are not to wait: because there are enough, the ring has no room
    /// for as many, something follows them, or they have waited for [`GATHER_TIME`].
    pub(super) fn gather(&mut self, reader: &mut BatchReader, ready: &ReadyStream) -> bool {
        let (id, now) = (ready.id, Instant::now());
        let may_wait = ready.has_bytes
            && !ready.ends
            && !reader.is_stalled(id)
            && reader.bytes(id).is_some_and(|found| {
                let room = usize::try_from(found.capacity()).unwrap_or(usize::MAX);
                found.len() < MIN_UNCACHED && room / 2 >= MIN_UNCACHED && found.behind() == Behind::Bytes
            });
        let Some(stream) = self.stream(id) else { return false };
        let until = *stream.gathers_until.get_or_insert(now + GATHER_TIME);
        if !may_wait || until <= now {
            stream.gathers_until = None;
            return false;
        }
        if stream.due.is_none() {
            stream.due = Some(until);
            self.due.insert((until, id));
        }
        reader.defer(id);
        true
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
