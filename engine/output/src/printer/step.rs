//! The printer's thread, and the printer's step on the thread that reads the ranks' output.
//!
//! A lone line would wake two threads one after the other: the engine's capture thread, and the
//! printer. Instead, the capture thread itself writes whole lines while the printer sleeps. It
//! waits neither for room in the output nor for another printer. If the output does not take all
//! bytes at once, or if they are not whole lines of streams that the printer knows, the printer
//! wakes up and writes them.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iof_proto::{Channel, Proc};
use iof_tool::{BatchReader, FeedId, Gap};

use super::{MAX_STREAMS, PrintError, PrintReport, PrinterTask};
use crate::destination::OpenDestination;

/// A printer that runs: what its thread and its step share.
pub(super) struct Running<G> {
    pub task: PrinterTask,
    pub reader: BatchReader,
    pub on_gap: G,
}

/// A printer with a step, on the printer's thread. At the end the printer is dropped there, with
/// the caller's closure, although the step exists as long as the reader page.
struct Shared<G>(Arc<Mutex<Option<Running<G>>>>);

impl<G> Shared<G> {
    fn lock(&self) -> Result<MutexGuard<'_, Option<Running<G>>>, PrintError> {
        self.0.lock().map_err(|_| PrintError::Died)
    }
}

impl<G> Drop for Shared<G> {
    fn drop(&mut self) {
        // Dropped after the lock is released.
        let _running = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Returns the printer, which is there until its thread ends.
fn running_of<G>(running: &mut Option<Running<G>>) -> Result<&mut Running<G>, PrintError> {
    running.as_mut().ok_or(PrintError::Died)
}

impl<G: FnMut(&Proc, Channel, Gap) + Send + 'static> Running<G> {
    /// Runs the printer on its thread until its registrations have ended.
    pub fn run(mut self) -> Result<PrintReport, PrintError> {
        // The order of a process's streams can be kept only if all of them are known.
        self.reader.wait_for_streams()?;
        let stepper = self.reader.stepper().filter(|_| self.task.may_step()).cloned();
        let Some(stepper) = stepper else { return self.run_alone() };
        let sleeper = self.reader.sleeper();
        let shared = Shared(Arc::new(Mutex::new(Some(self))));
        let running = Arc::clone(&shared.0);
        stepper.set(move || {
            // The thread has ended if it is empty. A panic poisons the lock, which ends the thread.
            let step =
                || running.try_lock().ok()?.as_mut().map(|Running { task, reader, .. }| task.step(reader));
            catch_unwind(AssertUnwindSafe(step)).is_ok_and(|slept_on| slept_on == Some(true))
        });
        let mut ids = Vec::new();
        loop {
            let mut locked = shared.lock()?;
            let Running { task, reader, .. } = running_of(&mut locked)?;
            let mut call = reader.begin_poll(task.next_due())?;
            let polled = loop {
                let Running { reader, .. } = running_of(&mut locked)?;
                if let Some(polled) = reader.continue_poll(&mut call, &mut ids)? {
                    break polled;
                }
                drop(locked);
                sleeper.sleep(&mut call, None)?;
                locked = shared.lock()?;
            };
            let Running { task, reader, on_gap } = running_of(&mut locked)?;
            if task.turn(reader, (polled, &ids), on_gap)? {
                return Ok(task.report.clone());
            }
        }
    }

    /// Runs a printer without a step.
    fn run_alone(mut self) -> Result<PrintReport, PrintError> {
        let Running { task, reader, on_gap, .. } = &mut self;
        let (sleeper, mut ids) = (reader.sleeper(), Vec::new());
        loop {
            let mut call = reader.begin_poll(task.next_due())?;
            let polled = loop {
                task.take_written(reader, false)?;
                if let Some(polled) = reader.continue_poll(&mut call, &mut ids)? {
                    break polled;
                }
                sleeper.sleep(&mut call, task.late_event().as_ref().map(AsFd::as_fd))?;
            };
            if task.turn(reader, (polled, &ids), on_gap)? {
                return Ok(task.report.clone());
            }
        }
    }
}

impl PrinterTask {
    /// Returns whether the step could ever write anything.
    fn may_step(&self) -> bool {
        let OpenDestination::Output(output) = &self.destination else { return false };
        output.is_pipe() && self.options.style.is_plain() && self.folder.is_none()
    }

    /// Writes the ready lines if all of them can be written at once. Returns whether the printer
    /// may continue to sleep.
    fn step(&mut self, reader: &mut BatchReader) -> bool {
        let OpenDestination::Output(output) = &self.destination else { return false };
        let output = output.clone();
        // A line that is open at the output has to be continued or ended.
        let Some(open) = output.try_lock().filter(|open| open.is_none()) else { return false };
        let mut ids = Vec::new();
        if !reader.begin_step(&mut ids) || ids.len() > MAX_STREAMS {
            return false;
        }
        self.round = self.round.wrapping_add(1);
        let mut slices = Vec::with_capacity(ids.len());
        let mut total = 0usize;
        for &id in &ids {
            let Some(line) = self.whole_lines(reader, id) else { return false };
            total = total.saturating_add(line.len());
            slices.push(IoSlice::new(line));
        }
        if !ids.is_empty() && !output.write_now(&slices) {
            return false;
        }
        drop((slices, open));
        ids.iter().for_each(|id| reader.consume(*id, usize::MAX));
        reader.end_step();
        self.report.written = self.report.written.saturating_add(total as u64);
        true
    }

    /// Returns the bytes of a stream if they are whole lines that need not be ordered with those of
    /// other streams.
    fn whole_lines<'a>(&mut self, reader: &'a BatchReader, id: FeedId) -> Option<&'a [u8]> {
        // Two streams of one process.
        if !self.siblings.contains(id) || !self.siblings.begin_round(id, self.round) {
            return None;
        }
        // Another stream of the process may be announced that has older bytes.
        if self.misses_siblings(reader, id) {
            return None;
        }
        let stream = self.stream(id)?;
        let lines = reader.bytes(id)?.as_slice();
        (lines.last() == Some(&b'\n') && !stream.partial.is_waiting()).then_some(lines)
    }
}
