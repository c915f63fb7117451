//! The events that `iof run` waits for, and how long it waits for ranks and output at their end.

use std::time::Duration;

use iof_engine::{Ending, Job, JobStatus, QueryReply, Remedy, SpawnReply, SpawnRequest};
use iof_output::PrintReport;
use iof_proto::{Channel, Nspace, Rank};
use iof_remote::RemoteJob;

use crate::error::Failure;
use crate::events::stdin::StdinEvent;
use crate::processes::signals::ReceivedSignal;

/// The time for which the line about a failed rank waits until the rank's own output is written.
pub const FLUSH_LIMIT: Duration = Duration::from_millis(500);

/// The time for which the ranks may run on after SIGTERM when their output has lost its reader, and
/// for which the command waits for the end of the output after it killed the ranks.
pub const GRACE: Duration = Duration::from_secs(2);

/// The end of a job in another engine.
pub struct InsideEnd {
    pub code: u8,
    /// The lines that are printed about it.
    pub lines: Vec<String>,
}

/// An event that `iof run` waits for.
pub enum JobEvent {
    Signal(ReceivedSignal),
    /// A rank has exited, a node is lost, or the engine ends the job early.
    Ending(Ending),
    /// Every rank has exited.
    Exited(JobStatus),
    /// Every rank has exited and every stream is complete.
    Over(JobStatus),
    /// A rank delays the output of all others.
    Stalled {
        rank: Rank,
        channel: Channel,
        remedy: Remedy,
    },
    /// Each rank of a job is alone, as this line says.
    Alone {
        nspace: Nspace,
        line: String,
        ends_job: bool,
    },
    /// This rank does not fill the screen of the command's terminal any more.
    ScreenClosed(Rank),
    /// The push of the command's stdin.
    Stdin(StdinEvent),
    /// One of the command's outputs has ended.
    Output(Result<PrintReport, Failure>),
    /// A tool wants to start a job.
    Spawn {
        request: Box<SpawnRequest>,
        reply: SpawnReply,
    },
    /// The ranks of a job that was granted are started, or none is.
    Spawned {
        nspace: Nspace,
        /// With its agents, if they run on other nodes.
        job: Option<(Job, Option<RemoteJob>)>,
    },
    /// A job that a tool has started is over. Its failed ranks have these lines.
    ChildOver {
        nspace: Nspace,
        lines: Vec<String>,
    },
    /// A tool asks for these lines.
    Query {
        nspace: Nspace,
        reply: QueryReply,
    },
    /// The job that this command has started in another engine has ended, or that engine is lost.
    InsideOver(Result<InsideEnd, Failure>),
    /// A tool has sent a signal to the command itself.
    Killed,
    /// Files on another node are complete, or can't be written.
    NodeFiles(Result<PrintReport, Failure>),
}
