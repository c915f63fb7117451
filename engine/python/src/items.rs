//! The objects that a reader returns.

use std::sync::Arc;

use iof::proto::{Channels, Nspace, Proc, Rank};
use iof::tool::{BorrowedLine, Counts, Delivery, Origin};
use pyo3::call::PyCallArgs;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

/// The stream of an item: a channel of a process.
pub struct ItemStream {
    pub nspace: Nspace,
    /// The rank, or `None` for what belongs to a job as a whole.
    pub rank: Option<u32>,
    /// The member of `iof.Channel`.
    pub channel: Py<PyAny>,
    /// `true` if it contains messages that were logged.
    logged: bool,
    /// The number of the job's run, 0 if it is unknown.
    run: u128,
}

impl ItemStream {
    pub fn new(py: Python<'_>, origin: &Origin<'_>, run: u128) -> PyResult<Arc<ItemStream>> {
        let Origin { source: Proc { nspace, rank }, channel, logged, .. } = origin;
        let channel = event(py, "Channel", (Channels::from(*channel).bits(),))?;
        let (nspace, rank) = (nspace.clone(), number(*rank));
        Ok(Arc::new(ItemStream { nspace, rank, channel, logged: *logged, run }))
    }

    /// Returns the text of an item's source for `repr`.
    pub fn source(&self) -> String {
        let ItemStream { nspace, rank, channel, .. } = self;
        let rank = rank.map_or_else(|| "None".to_owned(), |rank| rank.to_string());
        format!("{nspace}, rank {rank}, {channel}")
    }

    /// Returns the object of a gap.
    pub fn gap(&self, py: Python<'_>, offset: u64, lost: u64) -> PyResult<Py<PyAny>> {
        event(py, "Gap", (self.nspace.as_str(), self.rank, &self.channel, offset, lost))
    }

    /// Returns the object of the stream's end, if the delivery is one.
    pub fn end(&self, py: Python<'_>, delivery: &Delivery<'_>) -> PyResult<Option<Py<PyAny>>> {
        let (state, counts, missing) = match delivery {
            Delivery::Complete { counts, .. } => ("complete", counts, 0),
            Delivery::Broken { counts, missing, .. } => ("broken", counts, *missing),
            Delivery::Gone { counts, .. } => ("gone", counts, 0),
            _ => return Ok(None),
        };
        let Counts { produced, delivered, lost, .. } = *counts;
        let (nspace, rank, channel) = (self.nspace.as_str(), self.rank, &self.channel);
        event(py, "End", (nspace, rank, channel, state, produced, delivered, lost, missing)).map(Some)
    }
}

/// Returns an object of a class of `iof`, such as an item that is neither a line nor a batch.
pub fn event<'py>(py: Python<'py>, class: &str, arguments: impl PyCallArgs<'py>) -> PyResult<Py<PyAny>> {
    Ok(py.import("iof")?.getattr(class)?.call1(arguments)?.unbind())
}

/// Returns the number of a rank, unless it stands for several or none.
pub fn number(rank: Rank) -> Option<u32> {
    (rank != Rank::WILDCARD && rank != Rank::UNDEF).then_some(rank.0)
}

/// A line of a rank's output, or a part of one.
#[pyclass(frozen, module = "iof", name = "Line")]
pub struct PyLine {
    stream: Arc<ItemStream>,
    /// The number of bytes that the rank had written to the channel before these.
    #[pyo3(get)]
    offset: u64,
    /// When the first byte was read, in nanoseconds since 1970, or None if unknown.
    #[pyo3(get)]
    time_ns: Option<u64>,
    /// The bytes, without the newline.
    #[pyo3(get)]
    data: Py<PyBytes>,
    /// `true` if a newline followed. If not, this is a part of a line longer than 64 KiB, or what
    /// precedes a gap or the end of the stream.
    #[pyo3(get)]
    ends: bool,
    /// The number of bytes that were lost immediately before.
    #[pyo3(get)]
    lost: u64,
}

impl PyLine {
    pub fn new(py: Python<'_>, stream: &Arc<ItemStream>, line: BorrowedLine<'_>) -> PyLine {
        let BorrowedLine { offset, time: time_ns, bytes, ends, lost, .. } = line;
        let data = PyBytes::new(py, bytes).unbind();
        PyLine { stream: Arc::clone(stream), offset, time_ns, data, ends, lost }
    }
}

#[pymethods]
impl PyLine {
    #[getter]
    fn nspace(&self) -> &str {
        self.stream.nspace.as_str()
    }

    #[getter]
    fn rank(&self) -> Option<u32> {
        self.stream.rank
    }

    #[getter]
    fn channel(&self) -> &Py<PyAny> {
        &self.stream.channel
    }

    /// `true` if the line was logged to the channel on behalf of the rank, which did not write it.
    #[getter]
    fn logged(&self) -> bool {
        self.stream.logged
    }

    /// When the first byte was read, in seconds since 1970, or None if unknown.
    #[getter]
    fn time(&self) -> Option<f64> {
        self.time_ns.map(|time| std::time::Duration::from_nanos(time).as_secs_f64())
    }

    /// The bytes as text. Those that are not UTF-8 are replaced.
    #[getter]
    fn text<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        PyString::new(py, &String::from_utf8_lossy(self.data.as_bytes(py)))
    }

    /// The place behind the line, for `resume`; None if the run of the job is unknown, or the line was
    /// logged.
    #[getter]
    fn token(&self, py: Python<'_>) -> Option<String> {
        let ItemStream { run, logged, .. } = &*self.stream;
        let end =
            self.offset.saturating_add(self.data.as_bytes(py).len() as u64).saturating_add(self.ends.into());
        (*run != 0 && !logged).then(|| format!("{run:x}:{end}"))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let text = String::from_utf8_lossy(self.data.as_bytes(py));
        format!("<iof.Line of {}: {text:?}>", self.stream.source())
    }
}
