//! Bytes that stay in the engine's shared memory while Python uses them.
//!
//! A reader lends the bytes of one delivery, and does nothing else with its tool until they are given
//! back: it is what the borrow of `Delivery::Bytes` is in Rust. Each export of the buffer protocol is
//! counted. As long as there is one, the bytes cannot be given back, and the object that exports them
//! keeps the tool, whatever is closed.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use iof::tool::Bytes;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::items::ItemStream;
use crate::owned::Owned;

/// Bytes that a reader has lent.
pub struct Loan {
    start: *const u8,
    len: usize,
    /// The number of exports. It is closed when the bytes were given back, which permits no further ones.
    exports: Owned<usize>,
}

// SAFETY: the pointer is only read from, by `PyBatch::__getbuffer__`, and the bytes do not change while they
// are lent.
unsafe impl Send for Loan {}
// SAFETY: as above; the counter has a lock.
unsafe impl Sync for Loan {}

impl Loan {
    /// Lends the bytes of a delivery. Its tool must not be used before [`Loan::give_back`] has succeeded.
    pub fn new(bytes: &Bytes<'_>) -> Loan {
        let bytes = bytes.as_slice();
        Loan { start: bytes.as_ptr(), len: bytes.len(), exports: Owned::new(0) }
    }

    /// Ends the loan.
    ///
    /// # Errors
    /// Raises BufferError while there are exports.
    pub fn give_back(&self) -> PyResult<()> {
        let mut exports = self.exports.lock()?;
        if let Some(count) = exports.filter(|count| *count > 0) {
            let text = format!("{count} exports of the batch exist: release the memoryviews first");
            return Err(PyBufferError::new_err(text));
        }
        exports.take();
        Ok(())
    }

    /// Returns whether the loan has not ended.
    pub fn is_lent(&self) -> bool {
        self.exports.lock().is_ok_and(|exports| exports.is_some())
    }
}

/// Ends a loan, and consumes its bytes if that was not done. It has the reader, which keeps the memory.
pub type GiveBack = Box<dyn Fn(Python<'_>, &Loan) -> PyResult<()> + Send + Sync>;

/// Bytes of one stream, in the engine's shared memory, by the buffer protocol: `memoryview(batch)`,
/// `bytes(batch)`, `file.write(batch)`. They are read-only, and given back by `release()`, at the end of
/// a `with` block, or when the next batch is asked for. Each of these raises BufferError while a
/// memoryview of it or a slice of one exists.
#[pyclass(frozen, module = "iof", name = "Batch")]
pub struct PyBatch {
    pub give_back: GiveBack,
    pub lent: Arc<Loan>,
    pub stream: Arc<ItemStream>,
    /// The number of bytes that the rank had written to the channel before these.
    #[pyo3(get)]
    pub offset: u64,
    /// When the first byte was read, in nanoseconds since 1970.
    #[pyo3(get)]
    pub time_ns: Option<u64>,
}

#[pymethods]
impl PyBatch {
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

    /// Gives the bytes back, which makes room for the rank. Has no effect the second time.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        (self.give_back)(py, &self.lent)
    }

    fn __len__(&self) -> usize {
        self.lent.len
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.release(py)
    }

    /// Exports the bytes.
    ///
    /// # Safety
    /// Python passes a view that may be written to, and calls `__releasebuffer__` once for each call that
    /// has succeeded.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let lent = &slf.get().lent;
        let mut exports = lent.exports.lock()?;
        let count = exports.as_mut().ok_or_else(|| PyBufferError::new_err("the batch was released"))?;
        let len = ffi::Py_ssize_t::try_from(lent.len)?;
        let start: *mut c_void = lent.start.cast_mut().cast();
        // SAFETY: the view is Python's to fill. The bytes are mapped and do not change until `__releasebuffer__`
        // has been called for each export: until then, the loan does not end, so the tool neither reads on nor
        // is dropped (the reader uses it only when no loan is left, and the view keeps this object, which has the
        // reader), and an engine does not overwrite what a tool that follows the protocol borrows, or unmap what
        // is mapped here. The view is read-only: a request for a writable one fails.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 1, flags) };
        if filled < 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        *count = count.saturating_add(1);
        Ok(())
    }

    /// Ends an export.
    ///
    /// # Safety
    /// Python calls this once for each export.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        if let Ok(mut exports) = self.lent.exports.lock() {
            *exports = exports.map(|count| count.saturating_sub(1));
        }
    }

    fn __repr__(&self) -> String {
        format!("<iof.Batch of {}: {} bytes at {}>", self.stream.source(), self.lent.len, self.offset)
    }
}
