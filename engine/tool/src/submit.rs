//! Non-blocking requests: the answer arrives as a delivery.

use iof_proto::{Answer, Failure, FromTool, Granted, Log, LogReport, PushGranted, Query, Status};

use crate::delivery::Delivery;
use crate::error::RequestError;
use crate::push::Push;
use crate::registration::{Callback, Registration};
use crate::tool::{Event, Pull, Tool};

/// The engine's answer to a non-blocking request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// The answer to [`Tool::submit_pull`], as [`Tool::pull`] returns it.
    Pulled(Result<Granted, Failure>),
    /// The answer to [`Tool::submit_query`], as [`Tool::queries`] returns it.
    Answered(Result<Answer, Failure>),
    /// The answer to [`Tool::submit_push`], as [`Tool::begin_push`] returns it.
    PushBegun(Result<PushGranted, Failure>),
    /// The answer to [`Tool::submit_log`], as [`Tool::log`] returns it.
    Logged(Result<LogReport, Failure>),
}

/// A request that was not answered yet.
pub(crate) enum Pending {
    Pull(Registration),
    Query,
    Push,
    Log,
}

/// Non-blocking requests, for tools with an event loop. Each method returns the number of the
/// request. The answer arrives as a [`Delivery::Reply`] with that number, before any other delivery
/// that results from the request. If the connection ends before the engine has answered, the reply
/// is an error with [`Status::ERR_UNREACH`].
///
/// ```
/// # use iof_engine::{App, Config, Engine, Grant, JobSpec, Rendezvous};
/// use iof_proto::{Channels, Nspace, Proc, Rank};
/// use iof_tool::{Delivery, Pull, Reply};
///
/// # let engine = Engine::start(Config { rendezvous: Rendezvous::None, ..Config::default() })?;
/// # let mut tool = engine.attach("example", Grant::Never)?;
/// let all = Proc::all(Nspace::new("job1")?);
/// let submitted = tool.submit_pull(&Pull::new(vec![all.clone()], Channels::STDOUT))?;
/// match tool.recv()? {
///     Some(Delivery::Reply { request, reply: Reply::Pulled(Ok(granted)) }) => {
///         assert_eq!((request, granted.handler), (submitted, 1));
///     }
///     other => unreachable!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Tool {
    /// Sends the request of [`Tool::pull`] without waiting for the answer.
    ///
    /// # Errors
    /// Returns [`RequestError::Unsendable`] if the request exceeds a limit on messages, and
    /// [`RequestError::Lost`] if the connection has ended. No reply follows then.
    pub fn submit_pull(&mut self, pull: &Pull) -> Result<u32, RequestError> {
        self.submit_registration(pull, None)
    }

    /// Sends the request of [`Tool::pull_with`] without waiting for the answer. The reply is
    /// delivered by [`Tool::recv`], not to `callback`.
    ///
    /// # Errors
    /// The same as [`Tool::submit_pull`].
    pub fn submit_pull_with(
        &mut self,
        pull: &Pull,
        callback: impl FnMut(&Delivery<'_>) + Send + 'static,
    ) -> Result<u32, RequestError> {
        self.submit_registration(pull, Some(Box::new(callback)))
    }

    fn submit_registration(&mut self, pull: &Pull, callback: Option<Callback>) -> Result<u32, RequestError> {
        let request = self.next_request();
        self.submit(&pull.message(request), request, Pending::Pull(Registration::new(pull, callback)))
    }

    /// Sends the request of [`Tool::queries`] without waiting for the answer.
    ///
    /// # Errors
    /// The same as [`Tool::submit_pull`].
    pub fn submit_query(&mut self, queries: Vec<Query>) -> Result<u32, RequestError> {
        let request = self.next_request();
        self.submit(&FromTool::Query { request, queries }, request, Pending::Query)
    }

    /// Sends the request of [`Tool::begin_push`] without waiting for the answer.
    ///
    /// # Errors
    /// The same as [`Tool::submit_pull`].
    pub fn submit_push(&mut self, push: &Push, size: Option<u64>) -> Result<u32, RequestError> {
        let request = self.next_request();
        self.submit(&push.message(request, size), request, Pending::Push)
    }

    /// Sends the request of [`Tool::log`] without waiting for the answer.
    ///
    /// # Errors
    /// The same as [`Tool::submit_pull`].
    pub fn submit_log(&mut self, log: &Log) -> Result<u32, RequestError> {
        let request = self.next_request();
        self.submit(&FromTool::Log { request, log: log.clone() }, request, Pending::Log)
    }

    fn submit(&mut self, message: &FromTool, request: u32, pending: Pending) -> Result<u32, RequestError> {
        self.check_engine()?;
        self.link.send(message)?;
        self.pending.insert(request, pending);
        Ok(request)
    }

    /// Queues the answer to `request` as an event, if the request is non-blocking.
    pub(crate) fn reply(&mut self, request: u32, reply: Reply) {
        match (self.pending.remove(&request), &reply) {
            (Some(Pending::Pull(registration)), Reply::Pulled(Ok(granted))) => {
                self.registrations.insert(granted.handler, registration);
            }
            (Some(_), _) => {}
            (None, _) => return,
        }
        self.events.push_back(Event::Reply { request, reply });
    }

    /// Fails every outstanding request, because the engine is gone.
    pub(crate) fn reply_to_all(&mut self) {
        let gone = || Failure { status: Status::ERR_UNREACH, reason: "the engine has ended".into() };
        for (request, pending) in std::mem::take(&mut self.pending) {
            let reply = match pending {
                Pending::Pull(_) => Reply::Pulled(Err(gone())),
                Pending::Query => Reply::Answered(Err(gone())),
                Pending::Push => Reply::PushBegun(Err(gone())),
                Pending::Log => Reply::Logged(Err(gone())),
            };
            self.events.push_back(Event::Reply { request, reply });
        }
    }
}
