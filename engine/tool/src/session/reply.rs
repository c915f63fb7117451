//! The engine's answers to requests.

use iof_proto::{Answer, Failure, Granted, LogReport, Nspace, PushGranted, SlowTargets};

/// The engine's answer to a non-blocking request.
///
/// Each method of [`Tool`](crate::Tool) that waits for the engine has a non-blocking form, for
/// tools with an event loop, which begins with `submit_` and returns the number of the request. The
/// answer arrives as a [`Delivery::Reply`](crate::Delivery::Reply) with that number, before any
/// other delivery that results from the request. If the connection ends before the engine has
/// answered, the reply is an error with
/// [`Status::ERR_UNREACH`](iof_proto::Status::ERR_UNREACH).
///
/// ```
/// # use iof_engine::{App, Config, Engine, Grant, JobSpec, Rendezvous};
/// use iof_proto::{Channels, Nspace, Proc, Rank};
/// use iof_tool::{Delivery, Pull, Reply};
///
/// # let engine = Engine::start(Config::new(Rendezvous::None))?;
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
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// The answer to [`Tool::submit_pull`](crate::Tool::submit_pull), as
    /// [`Tool::pull`](crate::Tool::pull) returns it.
    Pulled(Result<Granted, Failure>),
    /// The answer to [`Tool::submit_query`](crate::Tool::submit_query), as
    /// [`Tool::queries`](crate::Tool::queries) returns it.
    Answered(Result<Answer, Failure>),
    /// The answer to [`Tool::submit_push`](crate::Tool::submit_push), as
    /// [`Tool::begin_push`](crate::Tool::begin_push) returns it.
    PushBegun(Result<PushGranted, Failure>),
    /// The answer to [`Tool::submit_slow_targets`](crate::Tool::submit_slow_targets), as
    /// [`Tool::slow_targets`](crate::Tool::slow_targets) returns it. The engine never denies it.
    SlowTargets(Result<SlowTargets, Failure>),
    /// The answer to [`Tool::submit_log`](crate::Tool::submit_log), as
    /// [`Tool::log`](crate::Tool::log) returns it.
    Logged(Result<LogReport, Failure>),
    /// The answer to [`Tool::submit_signal`](crate::Tool::submit_signal), as
    /// [`Tool::signal`](crate::Tool::signal) returns it.
    Signalled(Result<u32, Failure>),
    /// The answer to [`Tool::submit_spawn`](crate::Tool::submit_spawn), as
    /// [`Tool::spawn_with`](crate::Tool::spawn_with) returns it.
    Spawned(Result<Nspace, Failure>),
}

/// The number of processes and groups that a signal was sent to.
pub(crate) struct Signalled(pub(crate) u32);

/// The answer that a method waits for, in the reply that contains it.
pub(crate) trait FromReply: Sized {
    /// Returns the answer, or `None` if `reply` answers another kind of request.
    fn from_reply(reply: Reply) -> Option<Result<Self, Failure>>;
}

impl FromReply for Granted {
    fn from_reply(reply: Reply) -> Option<Result<Granted, Failure>> {
        if let Reply::Pulled(result) = reply { Some(result) } else { None }
    }
}

impl FromReply for Answer {
    fn from_reply(reply: Reply) -> Option<Result<Answer, Failure>> {
        if let Reply::Answered(result) = reply { Some(result) } else { None }
    }
}

impl FromReply for PushGranted {
    fn from_reply(reply: Reply) -> Option<Result<PushGranted, Failure>> {
        if let Reply::PushBegun(result) = reply { Some(result) } else { None }
    }
}

impl FromReply for SlowTargets {
    fn from_reply(reply: Reply) -> Option<Result<SlowTargets, Failure>> {
        if let Reply::SlowTargets(result) = reply { Some(result) } else { None }
    }
}

impl FromReply for LogReport {
    fn from_reply(reply: Reply) -> Option<Result<LogReport, Failure>> {
        if let Reply::Logged(result) = reply { Some(result) } else { None }
    }
}

impl FromReply for Nspace {
    fn from_reply(reply: Reply) -> Option<Result<Nspace, Failure>> {
        if let Reply::Spawned(result) = reply { Some(result) } else { None }
    }
}

impl FromReply for Signalled {
    fn from_reply(reply: Reply) -> Option<Result<Signalled, Failure>> {
        if let Reply::Signalled(result) = reply { Some(result.map(Signalled)) } else { None }
    }
}
