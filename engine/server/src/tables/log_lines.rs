//! Lines of the log that wait until the tables are unlocked.

use iof_core::{Notice, StreamName};

/// Lines of the log, which are written when they are dropped. Whoever has the tables locked drops
/// them after unlocking.
#[derive(Default)]
pub(crate) struct LogLines(Vec<Box<dyn FnOnce() + Send>>);

impl LogLines {
    /// Adds a line, which `write` passes to the embedder's subscriber.
    pub(crate) fn push(&mut self, write: impl FnOnce() + Send + 'static) {
        self.0.push(Box::new(write));
    }

    /// Adds a line for each notice of the core.
    pub(crate) fn extend(&mut self, notices: Vec<Notice>) {
        notices.into_iter().for_each(|notice| self.push(move || write(notice)));
    }

    /// Moves all lines of `other` behind these.
    pub(crate) fn append(&mut self, mut other: LogLines) {
        self.0.append(&mut other.0);
    }
}

impl Drop for LogLines {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|write| write());
    }
}

fn write(notice: Notice) {
    match notice {
        Notice::CutOff(stream) => {
            let StreamName { source, channel, .. } = &*stream;
            tracing::info!(%source, %channel, "a stream was cut off: it was open at the end of its rank's grace period, or was closed by the embedder");
        }
        Notice::StreamFailed { stream, error } => {
            let StreamName { source, channel, .. } = &*stream;
            tracing::warn!(%source, %channel, %error, "a stream ended with an error");
        }
        Notice::ExitUnknown { source, error } => {
            tracing::warn!(%source, %error, "the exit status of a rank is not available");
        }
        Notice::NoBacklog(error) => tracing::warn!(%error, "no backlog is kept"),
        Notice::Missed(tool) => tracing::debug!(tool, "a tool misses a new source"),
        Notice::ExchangeFailed { job, host, reason } => {
            tracing::error!(
                "job {job}: node {host} ends the job, whose ranks can't exchange values: {reason}"
            );
        }
        Notice::FenceAwaits { job, host, others: 0 } => {
            tracing::warn!("job {job}: a barrier or fence of MPI waits for ranks on {host}");
        }
        Notice::FenceAwaits { job, host, others } => {
            tracing::warn!(
                "job {job}: a barrier or fence of MPI waits for ranks on {host} and {others} other nodes"
            );
        }
        Notice::TooLong { tool, error } => {
            tracing::warn!(tool, %error, "an answer is too long to send");
        }
    }
}
