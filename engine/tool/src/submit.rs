//! Requests whose answer is not waited for: it comes as a delivery, among all others.

use iof_proto::{Answer, Failure, FromTool, Granted, Log, LogReport, PushGranted, Query, Status};

use crate::delivery::Delivery;
use crate::error::RequestError;
use crate::push::Push;
use crate::registration::{Callback, Registration};
use crate::tool::{Event, Pull, Tool};

/// What a request has come to that was not waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// Of [`Tool::submit_pull`]: as [`Tool::pull`] gives it.
    Pulled(Result<Granted, Failure>),
    /// Of [`Tool::submit_query`]: as [`Tool::queries`] gives it.
    Answered(Result<Answer, Failure>),
    /// Of [`Tool::submit_push`]: as [`Tool::begin_push`] gives it.
    PushBegun(Result<PushGranted, Failure>),
    /// Of [`Tool::submit_log`]: as [`Tool::log`] gives it.
    Logged(Result<LogReport, Failure>),
}

/// A request whose answer is still to come.
pub(crate) enum Pending {
    Pull(Registration),
    Query,
    Push,
    Log,
}

/// For tools that must not wait, such as those with an event loop: each gives the number of the
/// request, and [`Delivery::Reply`] brings that number again, with what came of it; before anything
/// that follows from it. If the engine goes before it has answered, that is
/// [`Status::ERR_UNREACH`].
///
/// ```
/// # use iof_engine::{App, Config, Engine, Grant, JobSpec, Rendezvous};
/// use iof_proto::{Channels, Nspace, Proc, Rank};
/// use iof_tool::{Delivery, Pull, Reply};
///
/// # let engine = Engine::start(Config { rendezvous: Rendezvous::None, ..Config::default() })?;
/// # let mut tool = engine.attach("example", Grant::Never)?;
/// let all = Proc { nspace: Nspace::new("job1")?, rank: Rank::WILDCARD };
/// let asked = tool.submit_pull(&Pull::new(vec![all.clone()], Channels::STDOUT))?;
/// match tool.next(None)? {
///     Some(Delivery::Reply { request, reply: Reply::Pulled(Ok(granted)) }) => {
///         assert_eq!((request, granted.handler), (asked, 1));
///     }
///     other => unreachable!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Tool {
    /// [`Tool::pull`] without a wait.
    ///
    /// # Errors
    /// [`RequestError::Unsendable`], [`RequestError::Lost`]; no reply follows.
    pub fn submit_pull(&mut self, pull: &Pull) -> Result<u32, RequestError> {
        self.submit_registration(pull, None)
    }

    /// [`Tool::pull_with`] without a wait. The reply goes to [`Tool::next`] all the same, not to
    /// `callback`.
    ///
    /// # Errors
    /// As [`Tool::submit_pull`].
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

    /// [`Tool::queries`] without a wait.
    ///
    /// # Errors
    /// As [`Tool::submit_pull`].
    pub fn submit_query(&mut self, queries: Vec<Query>) -> Result<u32, RequestError> {
        let request = self.next_request();
        self.submit(&FromTool::Query { request, queries }, request, Pending::Query)
    }

    /// [`Tool::begin_push`] without a wait.
    ///
    /// # Errors
    /// As [`Tool::submit_pull`].
    pub fn submit_push(&mut self, push: &Push, size: Option<u64>) -> Result<u32, RequestError> {
        let request = self.next_request();
        self.submit(&push.message(request, size), request, Pending::Push)
    }

    /// [`Tool::log`] without a wait.
    ///
    /// # Errors
    /// As [`Tool::submit_pull`].
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

    /// The engine has answered `request`, if its answer is not waited for.
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

    /// No answer will come any more.
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
