//! Having something logged (`PMIx_Log`, RFC0010, RFC0032).

use std::env;
use std::time::{Duration, Instant};

use iof_proto::{FromTool, Log, LogReport, Nspace, Proc, Rank, ToTool};

use crate::error::{LostError, RequestError};
use crate::link::Received;
use crate::tool::Tool;

/// The process that we are in a job, if an engine has started us, or somebody whom it has started:
/// by `IOF_NSPACE` and `IOF_RANK` in our environment. To be named as
/// [`PMIX_LOG_SOURCE`](iof_proto::log::key::PMIX_LOG_SOURCE).
pub fn own_proc() -> Option<Proc> {
    let nspace = Nspace::new(env::var("IOF_NSPACE").ok()?).ok()?;
    let rank = env::var("IOF_RANK").ok()?.parse().ok()?;
    Some(Proc { nspace, rank: Rank(rank) })
}

impl Tool {
    /// Has something logged, and waits until that is done or has failed. The engine gives up on
    /// channels of its own when they stall; one of its host's takes as long as the host does.
    ///
    /// What goes to stdout or stderr ends up as a stream of the process that the directives name as
    /// source, or else of the engine's only job: tools that have registered for it get it like
    /// its output, with [`Origin::logged`](crate::Origin::logged).
    ///
    /// # Errors
    /// [`RequestError`]: the request makes no sense, is too large ([`MAX_LOG_TEXT`](iof_proto::limits::MAX_LOG_TEXT)), a
    /// required directive can't be honoured, the engine has no room for it, or is gone. That a
    /// channel did not take it is no error: the report says so.
    ///
    /// # Example
    /// ```
    /// # use iof_engine::{Config, Engine, Grant, LogConfig, Rendezvous};
    /// use iof_proto::{Info, Log, Status, log::key};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let log = LogConfig { job_record: Some(directory.path().join("record")), ..LogConfig::default() };
    /// # let engine = Engine::start(Config { rendezvous: Rendezvous::None, log, ..Config::default() })?;
    /// # let mut tool = engine.attach("example", Grant::Never)?;
    /// let log = Log {
    ///     directives: vec![Info::required(key::PMIX_LOG_ONCE, true)],
    ///     ..Log::to([key::PMIX_LOG_JOB_RECORD, key::PMIX_LOG_SYSLOG], "half done")
    /// };
    /// assert_eq!(tool.log(&log)?.status, Status::SUCCESS);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn log(&mut self, log: &Log) -> Result<LogReport, RequestError> {
        let request = self.next_request();
        let message = FromTool::Log { request, log: log.clone() };
        let result = self.ask(&message, |received| match received.message {
            ToTool::Logged { request: of, result } if of == request => Ok(result),
            message => Err(Box::new(Received { message, ..received })),
        })?;
        Ok(result?)
    }

    /// The same, but waits for `patience` at most; `None` if nobody knows by then what became of
    /// it.
    ///
    /// # Errors
    /// As [`Tool::log`].
    pub fn log_within(&mut self, log: &Log, patience: Duration) -> Result<Option<LogReport>, RequestError> {
        if self.gone {
            return Err(LostError::Closed.into());
        }
        // A time that the clock can't show is over.
        let now = Instant::now();
        let deadline = now.checked_add(patience).unwrap_or(now);
        let request = self.next_request();
        self.link.send(&FromTool::Log { request, log: log.clone() })?;
        loop {
            match self.link.receive_until(deadline) {
                Ok(None) => return Ok(None),
                Ok(Some(Received { message: ToTool::Logged { request: of, result }, .. }))
                    if of == request =>
                {
                    return Ok(Some(result?));
                }
                Ok(Some(received)) => self.handle(received)?,
                Err(lost) => return Err(self.lost(lost).into()),
            }
        }
    }
}
