//! The control protocol: every message that a tool and an engine exchange.
//!
//! A tool starts with [`FromTool::Hello`]; the engine answers with [`ToTool::Welcome`] or
//! [`ToTool::Refused`]. Then the tool sends requests. A message with a field `request` carries a
//! number that the tool chooses; the answer repeats it. For each stream of a registration, the
//! engine sends a [`ToTool::Ring`] when the stream is created.
//!
//! The encoding identifies a variant by its index, so every change to a message requires a new
//! [`PROTOCOL_VERSION`]. `Hello`, `Welcome` and `Refused` keep their index and layout for ever:
//! with them, two versions detect that they differ.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::info::Info;
use crate::job::job_spec::JOB_VERSION;
use crate::job::spawn::Spawn;
use crate::limits::{
    Excess, MAX_ANSWER, MAX_MESSAGE, MAX_PROCS_PER_PULL, MAX_SLOTS_PER_MESSAGE, MAX_TEXT, check_limit,
};
use crate::names::{Channel, Channels, Nspace, Proc, Rank};
use crate::requests::exchange::{Exchange, FoundValue};
use crate::requests::log::{Log, LogReport};
use crate::requests::position::Position;
use crate::requests::push::{PushGranted, PushReport, SlowTargets};
use crate::requests::query::{Answer, ProcInfo, Query};
use crate::status::Status;

/// The protocol version of this build. An engine refuses tools with any other version.
///
/// A sum rises with each of its parts: with that of the messages, to which each change of them adds 1, and
/// with that of the jobs that they contain.
pub const PROTOCOL_VERSION: u32 = 15 + JOB_VERSION;

/// The properties of a message type: its size limit and its file descriptors.
///
/// [`encode`](crate::encode) and [`Decoder`](crate::Decoder) enforce them on both sides.
pub trait Message: Serialize + DeserializeOwned {
    /// Maximum length of the body, in bytes.
    const CAP: usize;

    /// Returns the number of file descriptors that accompany this message, at most
    /// [`MAX_FDS`](crate::limits::MAX_FDS).
    fn fds(&self) -> u8;

    /// Checks the limits that do not follow from the encoded length.
    ///
    /// # Errors
    /// [`Excess`] names the first limit that the message exceeds.
    fn check(&self) -> Result<(), Excess>;
}

/// A message from a tool to the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromTool {
    /// The first message of a connection. It must not be sent again.
    Hello {
        /// The tool's [`PROTOCOL_VERSION`].
        version: u32,
        /// The tool's pid in its own pid namespace. For display only: the engine trusts only the
        /// pid that the kernel reports.
        pid: u32,
        /// The tool's name. For display only.
        name: String,
    },
    /// Registers for the output of some processes (`PMIx_IOF_pull`). Answered by
    /// [`ToTool::Pulled`].
    Pull {
        /// The tool's number for this request.
        request: u32,
        /// The processes. They need not exist yet. A wildcard rank means all ranks of a job.
        procs: Vec<Proc>,
        /// The output channels to receive, or [`Channels::ALL`]. Any other mask with stdin is
        /// refused.
        channels: Channels,
        /// The position at which to begin. The tool finds it in the ring, which it receives from the
        /// oldest byte on, unless only what follows is to be received.
        from: Position,
        /// Set if the registration continues when its jobs have ended, for later jobs of the same
        /// names, until the tool deregisters it. Otherwise it covers only the first job of each
        /// name, and the engine removes it when these jobs have ended.
        persistent: bool,
        /// Set if the tool receives [`ToTool::Ranks`].
        reports_ranks: bool,
        /// The directives (see [`Directives`](crate::Directives)).
        directives: Vec<Info>,
    },
    /// Requests the next generation of a stream after the tool has drained a sealed ring.
    /// Answered by a [`ToTool::Ring`] whose `follows` is this slot. Ignored if the ring has not
    /// been sent to the tool or is not sealed.
    Follow {
        /// The slot of the drained ring.
        slot: u32,
    },
    /// Returns the slots of rings that the tool has read to the ends of their streams and unmapped.
    /// The engine may use the slots for other rings.
    Drained {
        /// The slots of the rings.
        slots: Vec<u32>,
    },
    /// Ends a registration (`PMIx_IOF_deregister`). Answered by [`ToTool::Deregistered`].
    Deregister {
        /// The tool's number for this request.
        request: u32,
        /// The handler id from [`ToTool::Pulled`].
        handler: u32,
    },
    /// Asks for an answer that arrives after everything that the engine has sent before it.
    /// Answered by an empty [`ToTool::Answer`].
    Barrier {
        /// The tool's number for this request.
        request: u32,
    },
    /// Queries the engine (`PMIx_Query_info`). Answered by [`ToTool::Answer`].
    Query {
        /// The tool's number for this request.
        request: u32,
        /// The queries.
        queries: Vec<Query>,
    },
    /// Begins a push to the stdin of some processes (`PMIx_IOF_push`). Answered by
    /// [`ToTool::PushBegun`].
    Push {
        /// The tool's number for this request.
        request: u32,
        /// The processes. A wildcard rank means all ranks of a job.
        targets: Vec<Proc>,
        /// The total number of bytes, if known.
        size: Option<u64>,
        /// The directives (see [`PushDirectives`](crate::PushDirectives)).
        directives: Vec<Info>,
    },
    /// Reports that the tool has put more bytes into the inlet of a push.
    Fill {
        /// The number of the push from [`ToTool::PushBegun`].
        push: u32,
        /// The number of bytes added, at most the free [room](ToTool::Room).
        bytes: u64,
        /// Set if these bytes are the last of the push.
        last: bool,
    },
    /// Asks which targets delay a push. Answered by [`ToTool::SlowTargets`].
    SlowTargets {
        /// The tool's number for this request.
        request: u32,
        /// The number of the push.
        push: u32,
        /// A position in the push, in bytes. If it is given, the engine first closes the stdin of
        /// every target that has received no byte beyond this position and for which no earlier
        /// push is in progress.
        cut_off: Option<u64>,
    },
    /// Logs a message (`PMIx_Log`). Answered by [`ToTool::Logged`].
    Log {
        /// The tool's number for this request.
        request: u32,
        /// The messages, their channels and the directives.
        log: Log,
    },
    /// Sends a signal to some local processes. Answered by [`ToTool::Signalled`].
    Signal {
        /// The tool's number for this request.
        request: u32,
        /// The processes. A wildcard rank means all ranks of a job on this node.
        procs: Vec<Proc>,
        /// The number of the signal, see signal(7).
        signal: i32,
    },
    /// Has the engine start a job (`PMIx_Spawn`). Answered by [`ToTool::Spawned`].
    Spawn {
        /// The tool's number for this request.
        request: u32,
        /// The job.
        spawn: Box<Spawn>,
    },
    /// Publishes, finds or removes values. Answered by [`ToTool::Exchanged`]. Only ranks request it,
    /// so that it is not encoded.
    #[serde(skip)]
    Exchange(Exchange),
}

impl Message for FromTool {
    const CAP: usize = MAX_MESSAGE;

    fn fds(&self) -> u8 {
        0
    }

    fn check(&self) -> Result<(), Excess> {
        match self {
            FromTool::Hello { name, .. } => check_limit("bytes of a tool's name", name.len(), MAX_TEXT),
            FromTool::Pull { procs, directives, .. } | FromTool::Push { targets: procs, directives, .. } => {
                check_limit("processes", procs.len(), MAX_PROCS_PER_PULL)?;
                Info::check(directives)
            }
            FromTool::Signal { procs, .. } => check_limit("processes", procs.len(), MAX_PROCS_PER_PULL),
            FromTool::Query { queries, .. } => Query::check(queries),
            FromTool::Log { log, .. } => log.check(),
            FromTool::Drained { slots } => check_limit("slots", slots.len(), MAX_SLOTS_PER_MESSAGE),
            FromTool::Follow { .. }
            | FromTool::Deregister { .. }
            | FromTool::Barrier { .. }
            | FromTool::Fill { .. }
            | FromTool::SlowTargets { .. }
            | FromTool::Spawn { .. }
            | FromTool::Exchange(_) => Ok(()),
        }
    }
}

/// A message from the engine to a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToTool {
    /// The connection is accepted. Comes with the file descriptors of the tool's reader page and of
    /// its doorbell and, if the tool may hold sources back, of the bell that the tool rings when it
    /// has made room in a ring.
    Welcome {
        /// The engine's [`PROTOCOL_VERSION`].
        version: u32,
        /// The engine's pid.
        engine_pid: u32,
        /// Set if this tool's registrations may hold sources back: a process whose cache is full
        /// waits until the tool has read.
        may_block: bool,
    },
    /// The connection is refused. The engine closes it after this message.
    Refused {
        /// The kind of refusal.
        status: Status,
        /// The reason, as text for the tool's user.
        reason: String,
    },
    /// The result of [`FromTool::Pull`].
    Pulled {
        /// The tool's number for the request.
        request: u32,
        /// The registration.
        result: Result<Granted, Failure>,
    },
    /// A stream of a registration, or its next generation. Comes with one file descriptor: the
    /// ring.
    Ring {
        /// The handler id of the registration.
        handler: u32,
        /// The process that writes the stream.
        source: Proc,
        /// The channel on which it writes.
        channel: Channel,
        /// Set if the stream holds logged messages instead of the process's own output.
        logged: bool,
        /// The run of the job to which the source belongs, see [`ToTool::JobEnded`].
        run: u64,
        /// The slot of this ring in the tool's reader page.
        slot: u32,
        /// The slot of the ring that this generation continues; `None` for a new stream.
        follows: Option<u32>,
        /// The position in the stream at which the tool starts to read, in bytes. Dropped bytes
        /// are not counted.
        start: u64,
        /// The number of bytes that were dropped when the reader was attached. A tool that begins with
        /// the next byte does not count them as lost.
        dropped: u64,
        /// Set if the reader is non-gating: the writer may overtake it, and it then loses the
        /// oldest bytes. Only the bytes that it borrows are safe from being overwritten.
        non_gating: bool,
        /// The options for reading the ring.
        options: EffectiveOptions,
    },
    /// The rings that were sent before contain all bytes that were cached when the registration was
    /// made, on other nodes, too.
    Cached {
        /// The handler id of the registration.
        handler: u32,
    },
    /// All sources of the registration's present jobs are announced. Two kinds of streams may still
    /// follow: those of later jobs of the same names, if the registration is persistent, and those
    /// of messages that are logged to a job that has not ended.
    Announced {
        /// The handler id of the registration.
        handler: u32,
    },
    /// Processes of a registration that have started, as `Running`, or ended, and that the engine knows
    /// more of than their output. Each is reported once with its start and then once with its end, both
    /// before the end of the job. Only if the registration asks for them.
    Ranks {
        /// The handler id of the registration.
        handler: u32,
        /// The run of their job, see [`ToTool::JobEnded`].
        run: u64,
        /// The processes, at most [`MAX_RANKS_PER_REPORT`](crate::limits::MAX_RANKS_PER_REPORT).
        ranks: Vec<ProcInfo>,
    },
    /// A job of a registration has ended: its processes have exited, its streams are complete, and
    /// all of its rings have been announced. Sent once for each run of a name.
    JobEnded {
        /// The handler id of the registration.
        handler: u32,
        /// The name of the job.
        nspace: Nspace,
        /// The number of this job among the jobs that had this name. A later job has a higher
        /// number.
        run: u64,
        /// The exit code of the process that failed first (128 + *n* if signal *n* ended it), or 0,
        /// unless the host specified another code; `None` if unknown to this engine.
        exit_code: Option<i32>,
        /// The number of earlier jobs of this name whose ends are not reported separately because
        /// the tool did not read, and neither are their [`ToTool::Ranks`]. Usually 0.
        skipped: u64,
    },
    /// Complete streams of a registration that the tool does not receive. It reads too slowly
    /// ([`MAX_FORGOTTEN_PER_TOOL`](crate::limits::MAX_FORGOTTEN_PER_TOOL)), or too many of its
    /// registrations cover these streams
    /// ([`MAX_READERS_PER_TOOL`](crate::limits::MAX_READERS_PER_TOOL)).
    Missed {
        /// The handler id of the registration.
        handler: u32,
        /// The missing streams.
        missed: Missed,
    },
    /// The result of [`FromTool::Deregister`].
    Deregistered {
        /// The tool's number for the request.
        request: u32,
        /// The failure, or `Ok`.
        result: Result<(), Failure>,
    },
    /// The result of [`FromTool::Query`] or [`FromTool::Barrier`].
    Answer {
        /// The tool's number for the request.
        request: u32,
        /// The values that were found, or [`Status::ERR_NOT_FOUND`] if there are none.
        result: Result<Answer, Failure>,
    },
    /// The result of [`FromTool::Push`]. Comes with the file descriptor of the inlet if the push is
    /// granted.
    PushBegun {
        /// The tool's number for the request.
        request: u32,
        /// The push.
        result: Result<PushGranted, Failure>,
    },
    /// Every target of a push has received the bytes before a position, so the inlet has room
    /// again. The free room is the inlet's capacity less the bytes that were filled after this
    /// position.
    Room {
        /// The number of the push.
        push: u32,
        /// The position, in bytes since the beginning of the push.
        position: u64,
    },
    /// The result of [`FromTool::SlowTargets`].
    SlowTargets {
        /// The tool's number for the request.
        request: u32,
        /// The slowest targets. The list is empty if the push has ended.
        slow: SlowTargets,
    },
    /// A push has ended: every target has received all bytes or can receive no more.
    Pushed {
        /// The number of the push.
        push: u32,
        /// The outcome.
        report: PushReport,
    },
    /// The result of [`FromTool::Log`].
    Logged {
        /// The tool's number for the request.
        request: u32,
        /// The outcome on each channel, or the reason why the request was refused.
        result: Result<LogReport, Failure>,
    },
    /// The result of [`FromTool::Signal`].
    Signalled {
        /// The tool's number for the request.
        request: u32,
        /// The number of processes and process groups that the signal was sent to.
        result: Result<u32, Failure>,
    },
    /// The result of [`FromTool::Spawn`].
    Spawned {
        /// The tool's number for the request.
        request: u32,
        /// The name of the job, all of whose ranks are started.
        result: Result<Nspace, Failure>,
    },
    /// The result of [`FromTool::Exchange`]: the values that were found. It is not encoded.
    #[serde(skip)]
    Exchanged(Result<Vec<FoundValue>, Failure>),
    /// The result of [`Exchange::Fence`], the values of all nodes, one after the other, or of
    /// [`Exchange::Modex`]. It is not encoded.
    #[serde(skip)]
    Fenced(Result<Arc<[u8]>, Failure>),
}

impl ToTool {
    /// Returns the answer that refuses an exchange.
    pub fn refused(exchange: &Exchange, failure: Failure) -> ToTool {
        match exchange {
            Exchange::Fence { .. } | Exchange::Modex(_) => ToTool::Fenced(Err(failure)),
            Exchange::Group { .. } => ToTool::Answer { request: 0, result: Err(failure) },
            Exchange::Spawn(_) => ToTool::Spawned { request: 0, result: Err(failure) },
            _ => ToTool::Exchanged(Err(failure)),
        }
    }
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
    /// The handler id of the registration, at least 1.
    pub handler: u32,
    /// The keys of optional directives that could not be honoured.
    pub ignored: Vec<String>,
}

/// The number and size of complete streams that a tool did not receive, for one channel and one job
/// name. It covers all processes of all jobs that had this name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missed {
    /// The name of the jobs.
    pub nspace: Nspace,
    /// The rank whose streams they are, or [`Rank::WILDCARD`] for those of several ranks.
    pub rank: Rank,
    /// The channel of the streams.
    pub channel: Channel,
    /// The number of streams.
    pub streams: u64,
    /// The number of bytes that their sources produced since their beginning. That includes bytes
    /// before a registration that begins with the next byte, if its reader of an older stream found no memory.
    pub bytes: u64,
    /// The rank and the number of bytes of each of these streams that had ended on another node before the
    /// registration. The list is empty in a delivery: a tool delivers such streams separately.
    pub ended: Vec<(Rank, u64)>,
    /// The offset of the first missing byte of a stream that a tool delivers separately.
    #[serde(skip)]
    pub offset: Option<u64>,
}

/// The options with which a tool reads a ring: the directives of server, spawn and registration
/// combined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectiveOptions {
    /// Bytes to collect before delivery; 0 delivers them as they arrive, `u64::MAX` collects all
    /// bytes that arrive in `buffering_time`.
    pub buffering_size: u64,
    /// Longest time for which bytes are collected, in microseconds; `None` means without limit.
    pub buffering_time: Option<u64>,
}
