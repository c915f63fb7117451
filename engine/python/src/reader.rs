//! One registration, on a connection of its own: its output as lines, or as batches.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use iof::proto::{Missed, Status};
use iof::tool::{BorrowedLine, Delivery, LineDivider, Tool};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::batch::{Loan, PyBatch};
use crate::error::{Raised, error};
use crate::items::{ItemStream, PyLine, event, number};
use crate::owned::Owned;
use crate::wait::{CHECK, wait_readable};

/// The largest number of bytes that are read ahead, and of items after which no further ones are.
const MAX_AHEAD_BYTES: usize = 64 << 10;
const MAX_AHEAD: usize = 1024;
/// The time that a reader waits by the tool, which sleeps by timers while traffic is dense, before it waits for
/// the doorbell or a signal.
const DENSE: Duration = Duration::from_millis(20);

/// The form in which output is returned: `iof._tools.Form`.
#[derive(Clone, Copy, FromPyObject)]
pub struct Form {
    /// `true` divides it into lines, `false` returns batches.
    is_lines: bool,
    /// `true` returns gaps and ends, too. Otherwise, what was lost is an attribute of the next line.
    has_events: bool,
}

/// A tool with one registration.
struct Source {
    tool: Tool,
    divider: LineDivider,
    ready: VecDeque<Py<PyAny>>,
    lent: Option<Arc<Loan>>,
    /// The number of streams that may miss bytes.
    incomplete: u64,
}

/// An iterator over what a registration delivers. `iof.Lines` and `iof.Batches` are made of it.
#[pyclass(frozen, weakref, module = "iof", name = "Reader")]
pub struct PyReader {
    source: Owned<Source>,
    is_closed: AtomicBool,
    form: Form,
    run: u128,
    /// The engine of a job that is read where it was started: it would end with its last reference.
    pub engine: Option<Py<PyAny>>,
}

impl Source {
    fn give_back(&mut self) -> PyResult<()> {
        if let Some(lent) = &self.lent {
            lent.give_back()?;
            self.lent = None;
            self.tool.consume(usize::MAX);
        }
        Ok(())
    }

    /// Returns the next item. Waits for it for `limit` at most.
    fn next(&mut self, reader: &Bound<'_, PyReader>, limit: Duration) -> PyResult<Option<Py<PyAny>>> {
        if self.ready.is_empty() {
            self.give_back()?;
            if !self.tool.is_done() {
                self.read(reader, limit)?;
            }
            if self.ready.is_empty() && self.tool.is_done() {
                self.check_whole(reader.get().form)?;
            }
        }
        Ok(self.ready.pop_front())
    }

    /// Reads what there is, as far as there is room, and waits for the first of it for `limit` at most,
    /// without the GIL.
    fn read(&mut self, reader: &Bound<'_, PyReader>, mut limit: Duration) -> PyResult<()> {
        let (py, &PyReader { form, run, .. }) = (reader.py(), reader.get());
        // A batch does not wait here, where it would keep the reader.
        let (mut room, most) = (MAX_AHEAD_BYTES, if form.is_lines { MAX_AHEAD } else { 1 });
        let Source { tool, divider, ready, lent, incomplete } = self;
        while ready.len() < most && room > 0 && lent.is_none() {
            let received = match std::mem::take(&mut limit) {
                Duration::ZERO => tool.try_recv(),
                limit => py.detach(|| tool.recv_timeout(limit)),
            };
            let Some(delivery) = received.map_err(Raised::from)? else { break };
            let stream = delivery.origin().map(|origin| ItemStream::new(py, &origin, run)).transpose()?;
            let mut divided = 0;
            match (&delivery, stream) {
                (Delivery::Bytes(bytes), Some(stream)) if !form.is_lines => {
                    let lent = Arc::clone(lent.insert(Arc::new(Loan::new(bytes))));
                    let reader = reader.clone().unbind();
                    let give_back =
                        Box::new(move |py: Python<'_>, lent: &Loan| reader.get().give_back(py, lent));
                    let (offset, time_ns) = (bytes.offset(), bytes.time());
                    let batch = PyBatch { give_back, lent, stream, offset, time_ns };
                    ready.push_back(Py::new(py, batch)?.into_any());
                }
                (Delivery::Gap { gap, .. }, Some(stream)) if !form.is_lines => {
                    ready.push_back(stream.gap(py, gap.offset, gap.lost)?);
                }
                (_, Some(stream)) => {
                    let mut made = Ok(());
                    divided = divider.divide(&delivery, room, |line| {
                        if made.is_ok() {
                            made = add_line(py, ready, &stream, line, form);
                        }
                    });
                    made?;
                    let is_cut = match &delivery {
                        Delivery::Broken { .. } | Delivery::Gone { .. } => true,
                        Delivery::Complete { counts, .. } => counts.ends_early(),
                        _ => false,
                    };
                    *incomplete = incomplete.saturating_add(is_cut.into());
                    ready.extend(stream.end(py, &delivery)?.filter(|_| form.has_events));
                }
                (Delivery::JobEnded { nspace, exit_code, .. }, None) if form.has_events => {
                    ready.push_back(event(py, "JobEnd", (nspace.as_str(), *exit_code))?);
                }
                (Delivery::Missed { missed: Missed { nspace, rank, streams, bytes, .. }, .. }, None) => {
                    *incomplete = incomplete.saturating_add(*streams);
                    let missed = event(py, "Missed", (nspace.as_str(), number(*rank), *streams, *bytes))?;
                    ready.extend(Some(missed).filter(|_| form.has_events));
                }
                _ => {}
            }
            if divided > 0 {
                room = room.saturating_sub(divided);
                tool.consume(divided);
            }
        }
        Ok(())
    }

    /// Returns the error of a registration that has ended without all output.
    fn check_whole(&self, form: Form) -> PyResult<()> {
        if self.tool.misses_streams() || !form.has_events && self.incomplete > 0 {
            let text = format!(
                "output is missing: the engine (pid {}) has ended, or has removed or lost streams, or they have ended before \
                 the offset to begin at ({})",
                self.tool.engine_pid(),
                self.incomplete
            );
            return Err(error(Status::ERR_LOST_CONNECTION, text));
        }
        Ok(())
    }
}

/// Adds a line, or the gap before it and the rest.
fn add_line(
    py: Python<'_>,
    ready: &mut VecDeque<Py<PyAny>>,
    stream: &Arc<ItemStream>,
    line: BorrowedLine<'_>,
    form: Form,
) -> PyResult<()> {
    if line.lost > 0 && form.has_events {
        ready.push_back(stream.gap(py, line.offset.saturating_sub(line.lost), line.lost)?);
        if line.bytes.is_empty() && !line.ends {
            return Ok(());
        }
    }
    ready.push_back(Py::new(py, PyLine::new(py, stream, line))?.into_any());
    Ok(())
}

fn closed() -> PyErr {
    PyValueError::new_err("the reader is closed")
}

impl PyReader {
    pub fn new(tool: Tool, form: Form, run: u128) -> PyReader {
        let (divider, ready) = (LineDivider::default(), VecDeque::new());
        let source = Owned::new(Source { tool, divider, ready, lent: None, incomplete: 0 });
        PyReader { source, is_closed: AtomicBool::new(false), form, run, engine: None }
    }

    /// Passes the source to `read`.
    fn with<T>(&self, read: impl FnOnce(&mut Source) -> PyResult<T>) -> PyResult<T> {
        match &mut *self.source.lock_alone()? {
            Some(source) if !self.is_closed.load(Relaxed) => read(source),
            _ => Err(closed()),
        }
    }

    /// Ends the loan of a batch.
    fn give_back(&self, py: Python<'_>, lent: &Loan) -> PyResult<()> {
        if let Some(source) = self.source.lock_alone()?.as_mut().filter(|_| lent.is_lent()) {
            source.give_back()?;
        }
        if self.is_closed.load(Relaxed) {
            self.close(py);
        }
        Ok(())
    }
}

#[pymethods]
impl PyReader {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    /// Returns the next item. Blocks until there is one, or until another thread closes the reader.
    fn __next__(slf: &Bound<'_, Self>) -> PyResult<Option<Py<PyAny>>> {
        let item = slf.get().with(|source| {
            loop {
                let item = source.next(slf, DENSE)?;
                if item.is_some() || source.tool.is_done() {
                    return Ok(item);
                }
                wait_readable(slf.py(), source.tool.as_fd(), source.tool.timeout())?;
                if slf.get().is_closed.load(Relaxed) {
                    return Err(closed());
                }
            }
        });
        if slf.get().is_closed.load(Relaxed) {
            slf.get().close(slf.py());
        }
        item
    }

    /// Returns the next item, or None if there is none now.
    fn try_next(slf: &Bound<'_, Self>) -> PyResult<Option<Py<PyAny>>> {
        slf.get().with(|source| source.next(slf, Duration::ZERO))
    }

    /// Returns the descriptor that is readable when there may be something to return, the number of seconds
    /// after which to look again even if it is not, because the reader may be closed, and whether nothing will
    /// follow.
    fn waits(&self) -> PyResult<(i32, f64, bool)> {
        self.with(|source| {
            let timeout = source.tool.timeout().unwrap_or(CHECK).min(CHECK).as_secs_f64();
            Ok((source.tool.as_fd().as_raw_fd(), timeout, source.tool.is_done()))
        })
    }

    /// Ends the registration: the connection is closed, now or when the last export of a batch has ended.
    fn close(&self, py: Python<'_>) {
        self.is_closed.store(true, Relaxed);
        let Ok(mut source) = self.source.lock_alone() else { return };
        let closed = source.take_if(|source| source.give_back().is_ok());
        drop(source);
        py.detach(|| drop(closed));
    }
}
