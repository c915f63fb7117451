//! The requests of the program, and how their results are returned.

use iof_proto::{Answer, Failure, Log, Nspace, Query, Spawn, Status};
use iof_tool::{Pull, Push};

use crate::ffi::callbacks::iof_iof_cbfunc_t;
use crate::infos::format::{Format, Print};

/// Receives the result of a request, once. It is dropped without a call if the session's thread has
/// panicked.
pub(crate) type Done<T> = Box<dyn FnOnce(Result<T, Failure>) + Send>;

/// The receiver of a registration's output.
pub(crate) enum Sink {
    /// A callback; with `lines`, for each line.
    Callback {
        callback: iof_iof_cbfunc_t,
        lines: bool,
    },
    Print(Box<Print>),
}

/// A request of the program.
pub(crate) enum Command {
    Pull(Pull, Sink, Done<usize>),
    Deregister(usize, Done<()>),
    Push(Push, Payload, Done<()>),
    Query(Vec<Query>, Done<Answer>),
    Log(Log, Done<()>),
    /// A job, with the attributes of its output.
    Spawn(Box<Spawn>, Format, Done<Nspace>),
    /// Calls back on the thread that has the core, after output that was delivered is printed.
    Call(Done<()>),
}

impl Command {
    /// Reports the failure of the command.
    pub(crate) fn fail(self, failure: Failure) {
        match self {
            Command::Pull(_, _, done) => done(Err(failure)),
            Command::Deregister(_, done) => done(Err(failure)),
            Command::Push(_, payload, done) => {
                drop(payload);
                done(Err(failure));
            }
            Command::Query(_, done) => done(Err(failure)),
            Command::Spawn(_, _, done) => done(Err(failure)),
            Command::Log(_, done) | Command::Call(done) => done(Err(failure)),
        }
    }
}

/// The bytes of a push.
pub(crate) enum Payload {
    /// A copy: the call has returned.
    Copied(Vec<u8>),
    /// The program's own bytes: the call blocks until the push has ended.
    Lent(*const u8, usize),
}

// SAFETY: the bytes are read only while the call that owns them blocks, see `Payload::bytes`.
unsafe impl Send for Payload {}

impl Payload {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Payload::Copied(bytes) => bytes,
            // SAFETY: the call that lent the bytes has checked the pointer. It returns only after
            // the payload is dropped: it waits for the answer, or for the end of the core that
            // would give it (`EngineSession::blocking`).
            Payload::Lent(start, size) => unsafe { std::slice::from_raw_parts(*start, *size) },
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes().len()
    }
}

/// Returns the failure of a request whose connection has ended.
pub(crate) fn gone(reason: impl std::fmt::Display) -> Failure {
    Failure::new(Status::ERR_UNREACH, reason.to_string())
}
