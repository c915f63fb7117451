//! Log requests (`PMIx_Log`, RFC0010, RFC0032).

use std::time::{Duration, Instant};

use iof_proto::{FromTool, Log, LogReport};

use super::Tool;
use crate::error::RequestError;
use crate::session::request::Request;

impl Tool {
    /// Logs messages to the channels of `log`. Blocks until each channel has succeeded or failed.
    /// The engine's own channels have timeouts: by default 2 s for the syslog and 10 s for a mail
    /// server. Channels of the host have no timeout.
    ///
    /// A message for stdout or stderr becomes part of a separate stream of the process that the
    /// directive `PMIX_LOG_SOURCE` names. Without this directive, the stream belongs to the
    /// engine's only job. Tools that have registered for that process or job receive it with
    /// [`Origin::logged`](crate::Origin::logged) set.
    ///
    /// # Errors
    /// Returns [`RequestError`] if the request is invalid or too large
    /// ([`MAX_LOG_TEXT`](iof_proto::limits::MAX_LOG_TEXT)), a required directive can't be honoured,
    /// too many requests are in progress, or the connection has ended. The failure of a channel is
    /// not an error, but part of the report.
    ///
    /// # Example
    /// ```
    /// # use iof_engine::{Config, Engine, Grant, Rendezvous};
    /// use iof_proto::{Info, Log, Status, log::key};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let mut config = Config::new(Rendezvous::None);
    /// # config.log.job_record = Some(directory.path().join("record"));
    /// # let engine = Engine::start(config)?;
    /// # let mut tool = engine.attach("example", Grant::Never)?;
    /// let log = Log {
    ///     directives: vec![Info::required(key::PMIX_LOG_ONCE, true)],
    ///     ..Log::to([key::PMIX_LOG_JOB_RECORD, key::PMIX_LOG_SYSLOG], "half done")
    /// };
    /// assert_eq!(tool.log(&log)?.status, Status::SUCCESS);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn log(&mut self, log: &Log) -> Result<LogReport, RequestError> {
        let request = self.submit_log(log)?;
        self.wait(request)
    }

    /// Logs like [`Tool::log`], but blocks for `timeout` at most. Returns `None` if the outcome is
    /// not known by then; the message may still be logged later.
    ///
    /// # Errors
    /// The same as [`Tool::log`].
    pub fn log_within(&mut self, log: &Log, timeout: Duration) -> Result<Option<LogReport>, RequestError> {
        // A deadline that the clock can't represent counts as passed.
        let now = Instant::now();
        let deadline = now.checked_add(timeout).unwrap_or(now);
        let request = self.submit_log(log)?;
        self.wait_until(request, Some(deadline))
    }

    /// Sends the request of [`Tool::log`] without waiting for the answer, see
    /// [`Reply`](crate::Reply).
    ///
    /// # Errors
    /// The same as [`Tool::submit_pull`].
    pub fn submit_log(&mut self, log: &Log) -> Result<u32, RequestError> {
        self.submit(Request::Log, |request| FromTool::Log { request, log: log.clone() })
    }
}
