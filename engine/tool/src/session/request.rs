//! The requests of a tool that the engine has not answered.
//!
//! Every request has one owner, to which its answer is passed: the deliveries, a blocking method,
//! or the tool itself. The wait of a blocking method ends with the answer, at its deadline
//! ([`Requests::abandon`]), or with the connection ([`Requests::fail_all`]). Nothing of the request
//! is left then, and a late answer is ignored.

use std::collections::BTreeMap;
use std::mem;

use iof_proto::{Failure, Status};

use crate::session::registration::RegistrationState;
use crate::session::reply::Reply;

/// A request that was sent.
pub(crate) enum Request {
    /// A pull, with the registration that begins when it is granted.
    Pull(RegistrationState),
    Query,
    Push,
    SlowTargets,
    Log,
    Signal,
    Spawn,
    /// The barrier of a registration that is being ended.
    Barrier {
        handler: u32,
    },
    /// The end of a registration.
    Deregister {
        handler: u32,
    },
}

/// The wait of a blocking method. There is at most one, as one thread at a time uses a tool.
#[derive(Default)]
enum Wait {
    #[default]
    None,
    /// For the answer to this request.
    Pending(u32),
    /// The answer has arrived.
    Over(Reply),
}

/// All requests that the engine has not answered, by their numbers.
#[derive(Default)]
pub(crate) struct Requests {
    last: u32,
    unanswered: BTreeMap<u32, Request>,
    wait: Wait,
}

impl Requests {
    /// Returns the number for another request.
    pub(crate) fn next_number(&mut self) -> u32 {
        self.last = self.last.wrapping_add(1);
        self.last
    }

    /// Records that `request` was sent with this number.
    pub(crate) fn sent(&mut self, number: u32, request: Request) {
        self.unanswered.insert(number, request);
    }

    /// Returns whether every request was answered or abandoned.
    pub(crate) fn is_empty(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// Removes the request that is answered. Returns `None` if there is none: it was abandoned.
    pub(crate) fn take(&mut self, number: u32) -> Option<Request> {
        self.unanswered.remove(&number)
    }

    /// Begins the wait for the answer to a request.
    pub(crate) fn begin_wait(&mut self, number: u32) {
        self.wait = Wait::Pending(number);
    }

    /// Passes `reply` to the method that waits for it. Returns it if no method does.
    pub(crate) fn end_wait(&mut self, number: u32, reply: Reply) -> Option<Reply> {
        if !self.is_awaited(number) {
            return Some(reply);
        }
        self.wait = Wait::Over(reply);
        None
    }

    /// Returns the answer that was waited for, once.
    pub(crate) fn take_answer(&mut self) -> Option<Reply> {
        match mem::take(&mut self.wait) {
            Wait::Over(reply) => Some(reply),
            wait => {
                self.wait = wait;
                None
            }
        }
    }

    /// Ends the wait for an answer that has not arrived. The answer is ignored when it arrives.
    pub(crate) fn abandon(&mut self, number: u32) {
        self.unanswered.remove(&number);
        self.wait = Wait::None;
    }

    /// Removes all requests, because the engine is gone. Returns the replies that are to be
    /// delivered. A blocking method receives none: it returns the error that it has met.
    pub(crate) fn fail_all(&mut self) -> Vec<(u32, Reply)> {
        let unanswered = mem::take(&mut self.unanswered).into_iter();
        let failed = unanswered
            .filter(|(number, _)| !self.is_awaited(*number))
            .filter_map(|(number, request)| Some((number, request.failed()?)))
            .collect();
        if let Wait::Pending(_) = self.wait {
            self.wait = Wait::None;
        }
        failed
    }

    fn is_awaited(&self, number: u32) -> bool {
        matches!(self.wait, Wait::Pending(awaited) if awaited == number)
    }
}

impl Request {
    /// Returns the reply to a request that the engine can't answer any more, or `None` for a
    /// request of the tool itself.
    fn failed(&self) -> Option<Reply> {
        let gone = Failure::new(Status::ERR_UNREACH, "the engine has ended");
        match self {
            Request::Pull(_) => Some(Reply::Pulled(Err(gone))),
            Request::Query => Some(Reply::Answered(Err(gone))),
            Request::Push => Some(Reply::PushBegun(Err(gone))),
            Request::SlowTargets => Some(Reply::SlowTargets(Err(gone))),
            Request::Log => Some(Reply::Logged(Err(gone))),
            Request::Signal => Some(Reply::Signalled(Err(gone))),
            Request::Spawn => Some(Reply::Spawned(Err(gone))),
            Request::Barrier { .. } | Request::Deregister { .. } => None,
        }
    }
}
