//! The control protocol: every message that a tool and an engine exchange.
//!
//! A tool opens with [`FromTool::Hello`]; the engine answers [`ToTool::Welcome`] or
//! [`ToTool::Refused`]. From then on the tool asks, each request with a number of its own choice
//! that comes back with the result, and the engine announces the rings of each registration as
//! their sources come into being.
//!
//! The encoding names variants by their place, so a change to any message is a new
//! [`PROTOCOL_VERSION`]. `Hello`, `Welcome` and `Refused` keep their place and their layout for
//! ever: they are how two versions find out that they differ.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::directive::Info;
use crate::limits::{
    Excess, MAX_ANSWER, MAX_MESSAGE, MAX_PROCS_PER_PULL, MAX_SLOTS_PER_MESSAGE, MAX_TEXT, within,
};
use crate::log::{Log, LogReport};
use crate::names::{Channel, Channels, Nspace, Proc};
use crate::push::{PushGranted, PushReport, SlowTargets};
use crate::query::{Answer, Query};
use crate::status::Status;

/// The version of the protocol that this build speaks. An engine refuses any other.
pub const PROTOCOL_VERSION: u32 = 5;

/// What makes a type a message: how large it may be and what comes with it.
///
/// [`encode`](crate::encode) and [`Decoder`](crate::Decoder) hold every message to this, on both
/// sides.
pub trait Message: Serialize + DeserializeOwned {
    /// The most bytes that its body may have.
    const CAP: usize;

    /// How many file descriptors come with it, [`MAX_FDS`](crate::limits::MAX_FDS) at most.
    fn fds(&self) -> u8;

    /// Whether it keeps to the limits that its encoded length does not show.
    ///
    /// # Errors
    /// [`Excess`] names the first limit that it breaks.
    fn check(&self) -> Result<(), Excess>;
}

/// What a tool sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromTool {
    /// The first message of a connection, and never a later one.
    Hello {
        /// The tool's [`PROTOCOL_VERSION`].
        version: u32,
        /// What the tool takes its pid to be. For people; the engine believes the kernel only.
        pid: u32,
        /// What the tool calls itself. For people.
        name: String,
    },
    /// Register for the output of some sources (`PMIx_IOF_pull`). Answered by [`ToTool::Pulled`].
    Pull {
        /// The tool's number for this request.
        request: u32,
        /// The sources, which need not exist yet; a wildcard rank stands for a whole job.
        procs: Vec<Proc>,
        /// Their channels. Stdin cannot be pulled.
        channels: Channels,
        /// Start at the oldest byte that is still in the ring, not at the next one.
        backlog: bool,
        /// Keep the registration when its jobs have ended, for later jobs of the same names, until
        /// it is deregistered. Otherwise a job that takes one of the names after its first
        /// end is not part of it, and the engine drops the registration once every job that
        /// it names has ended.
        persistent: bool,
        /// How it is to be done.
        directives: Vec<Info>,
    },
    /// "I have drained this ring, which is sealed; give me the next generation." Answered by a
    /// [`ToTool::Ring`] that `follows` it. Ignored if the ring was not sent to the tool yet, or is
    /// not sealed.
    Follow {
        /// The slot of the drained ring.
        slot: u32,
    },
    /// "I have read these rings to the ends of their streams and unmapped them": the engine may use
    /// their slots for other rings.
    Drained {
        /// The slots of the rings.
        slots: Vec<u32>,
    },
    /// End a registration (`PMIx_IOF_deregister`). Answered by [`ToTool::Deregistered`].
    Deregister {
        /// The tool's number for this request.
        request: u32,
        /// The registration, as [`ToTool::Pulled`] named it.
        handler: u32,
    },
    /// Ask (`PMIx_Query_info`). Answered by [`ToTool::Answer`].
    Query {
        /// The tool's number for this request.
        request: u32,
        /// What to ask for.
        queries: Vec<Query>,
    },
    /// Begin to push stdin to some processes (`PMIx_IOF_push`). Answered by [`ToTool::PushBegun`].
    Push {
        /// The tool's number for this request.
        request: u32,
        /// Who gets it; a wildcard rank stands for a whole job.
        targets: Vec<Proc>,
        /// How many bytes there are going to be, if that is known.
        size: Option<u64>,
        /// How it is to be done.
        directives: Vec<Info>,
    },
    /// "I have put these many more bytes into the inlet of this push."
    Fill {
        /// The push, as [`ToTool::PushBegun`] named it.
        push: u32,
        /// How many, never more than there is [room](ToTool::Room).
        bytes: u64,
        /// They were the last.
        last: bool,
    },
    /// "Who holds this push back?" Answered by [`ToTool::SlowTargets`].
    SlowTargets {
        /// The tool's number for this request.
        request: u32,
        /// The push.
        push: u32,
        /// Cut off, before, who has taken no more than what lies before this position though it was
        /// their turn.
        cut_off: Option<u64>,
    },
    /// Log something (`PMIx_Log`). Answered by [`ToTool::Logged`].
    Log {
        /// The tool's number for this request.
        request: u32,
        /// What, where and how.
        log: Log,
    },
}

impl Message for FromTool {
    const CAP: usize = MAX_MESSAGE;

    fn fds(&self) -> u8 {
        0
    }

    fn check(&self) -> Result<(), Excess> {
        match self {
            FromTool::Hello { name, .. } => within("bytes of tool name", name.len(), MAX_TEXT),
            FromTool::Pull { procs, directives, .. } | FromTool::Push { targets: procs, directives, .. } => {
                within("procs", procs.len(), MAX_PROCS_PER_PULL)?;
                Info::check(directives)
            }
            FromTool::Query { queries, .. } => Query::check(queries),
            FromTool::Log { log, .. } => log.check(),
            FromTool::Drained { slots } => within("slots", slots.len(), MAX_SLOTS_PER_MESSAGE),
            FromTool::Follow { .. }
            | FromTool::Deregister { .. }
            | FromTool::Fill { .. }
            | FromTool::SlowTargets { .. } => Ok(()),
        }
    }
}

/// What an engine sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToTool {
    /// The connection is accepted. Comes with the tool's reader area and its doorbell, and, if the
    /// tool may hold sources back, the bell that tells the engine of room.
    Welcome {
        /// The engine's [`PROTOCOL_VERSION`].
        version: u32,
        /// The engine's pid.
        engine_pid: u32,
        /// Whether this tool's registrations may hold sources back.
        may_block: bool,
    },
    /// The connection is refused; the engine closes it after this.
    Refused {
        /// What kind of refusal.
        status: Status,
        /// Why, in words for the tool's user.
        reason: String,
    },
    /// The result of [`FromTool::Pull`].
    Pulled {
        /// The tool's number for the request.
        request: u32,
        /// What was granted.
        result: Result<Granted, Failure>,
    },
    /// A stream of a registration, or the next generation of one. Comes with one file
    /// descriptor: the ring.
    Ring {
        /// The registration.
        handler: u32,
        /// Who writes.
        source: Proc,
        /// On what.
        channel: Channel,
        /// It is not what the source has written there, but what was logged there.
        logged: bool,
        /// The run of the job's name that the source belongs to, see [`ToTool::JobEnded`].
        run: u64,
        /// The place of this ring in the tool's reader area.
        slot: u32,
        /// The slot whose ring this generation goes on from; `None` for a new stream.
        follows: Option<u32>,
        /// The offset in the stream, in bytes, at which the tool starts to read.
        start: u64,
        /// Bytes dropped before it, which a tool that does not want the backlog has nothing to do
        /// with.
        dropped: u64,
        /// The engine passes this reader, which loses the oldest bytes then: it holds only what it
        /// borrows.
        non_gating: bool,
        /// How it is to be read.
        options: EffectiveOptions,
    },
    /// No further source of the jobs that there are will be announced for this registration; of a
    /// persistent registration, later jobs of the same names have more. What is logged to one
    /// of a job that has not ended may still bring a stream.
    Announced {
        /// The registration.
        handler: u32,
    },
    /// A job of a registration is over: its processes have ended and its streams are complete, and
    /// all rings of it were announced before. Sent once for each run of a name.
    JobEnded {
        /// The registration.
        handler: u32,
        /// The job.
        nspace: Nspace,
        /// Which of the jobs that have had this name. A job that starts later has a higher number.
        run: u64,
        /// Its exit code, as a shell would show it; `None` if nobody here knows.
        exit_code: Option<i32>,
        /// Earlier jobs of this name that have ended and are not told of, because the tool did not
        /// read. 0 in general.
        skipped: u64,
    },
    /// Streams of a registration that the tool is not sent, because it reads too many already. They
    /// are complete.
    Missed {
        /// The registration.
        handler: u32,
        /// What is missing.
        missed: Missed,
    },
    /// The result of [`FromTool::Deregister`].
    Deregistered {
        /// The tool's number for the request.
        request: u32,
        /// Nothing, if it worked.
        result: Result<(), Failure>,
    },
    /// The result of [`FromTool::Query`].
    Answer {
        /// The tool's number for the request.
        request: u32,
        /// What was found; if nothing was, a [`Status::ERR_NOT_FOUND`].
        result: Result<Answer, Failure>,
    },
    /// The result of [`FromTool::Push`]. Comes with the inlet's file if it is granted.
    PushBegun {
        /// The tool's number for the request.
        request: u32,
        /// What was granted.
        result: Result<PushGranted, Failure>,
    },
    /// All targets of a push have taken what lies before a position, so that the inlet has room
    /// again: what it holds, less what was filled behind that.
    Room {
        /// The push.
        push: u32,
        /// Bytes since its beginning.
        position: u64,
    },
    /// The result of [`FromTool::SlowTargets`].
    SlowTargets {
        /// The tool's number for the request.
        request: u32,
        /// Who is the slowest; nobody if the push is over.
        slow: SlowTargets,
    },
    /// A push is over: all bytes have reached their targets, or those are gone.
    Pushed {
        /// The push.
        push: u32,
        /// What became of it.
        report: PushReport,
    },
    /// The result of [`FromTool::Log`].
    Logged {
        /// The tool's number for the request.
        request: u32,
        /// What became of it, if the request made sense.
        result: Result<LogReport, Failure>,
    },
}

impl Message for ToTool {
    const CAP: usize = MAX_ANSWER;

    fn fds(&self) -> u8 {
        match self {
            ToTool::Welcome { may_block, .. } => 2 + u8::from(*may_block),
            ToTool::Ring { .. } | ToTool::PushBegun { result: Ok(_), .. } => 1,
            _ => 0,
        }
    }

    fn check(&self) -> Result<(), Excess> {
        Ok(())
    }
}

/// A registration that was granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// Its handler id, 1 or more.
    pub handler: u32,
    /// The keys of optional directives that could not be honoured.
    pub ignored: Vec<String>,
}

/// Complete streams that a tool was not sent, of all processes of the jobs of one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missed {
    /// The name of the jobs.
    pub nspace: Nspace,
    /// The channel of the streams.
    pub channel: Channel,
    /// How many streams.
    pub streams: u64,
    /// How many bytes their sources had produced, since the registration was made if it left out
    /// the backlog.
    pub bytes: u64,
}

/// How a tool reads a ring: what became of the directives of server, spawn and registration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectiveOptions {
    /// How many bytes to hand out together; 0: as they come.
    pub buffering_size: u64,
    /// How many microseconds to wait for that many; `None`: for ever.
    pub buffering_time: Option<u64>,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{reason} ({status})")]
pub struct Failure {
    /// What kind of failure.
    pub status: Status,
    /// Why, in words for the tool's user.
    pub reason: String,
}
