//! Messages that the embedder logs.

use iof_proto::{Failure, Log, LogReport};

use crate::engine::Engine;

impl Engine {
    /// Logs a message on the embedder's behalf (`PMIx_Log_nb`), as
    /// [`Tool::log`](iof_tool::Tool::log) does for a tool. Does not block.
    ///
    /// `done` is called with the outcome, on the engine's control thread and under the same rules
    /// as [upcalls](crate::Host). It is not called if the engine ends first.
    ///
    /// # Errors
    /// Fails if the request is invalid or exceeds the [`limits`](iof_proto::limits), or if too many
    /// requests are in progress. `done` is then dropped without being called.
    pub fn log(&self, log: &Log, done: impl FnOnce(LogReport) + Send + 'static) -> Result<(), Failure> {
        self.starter.tables.lock().log_message(log, done)?;
        // Steps for the host have queued upcalls.
        self.starter.tables.reports.wake();
        Ok(())
    }
}
