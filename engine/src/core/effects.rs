//! What leaves the core. The driver carries it out: see `Tables` and `Control`.

use iof_capture::{ProcessId, Signal};
use iof_proto::Failure;

use crate::core::channel_entry::{ChannelEntry, LogRoute};
use crate::core::commands::Command;
use crate::core::ids::{JobId, PeerId, SignalRequest};
use crate::core::job_status::JobStatus;
use crate::core::notice::Notice;
use crate::core::upcall::Upcall;

/// The effects of inputs and calls, in the order in which they are carried out.
#[derive(Default)]
pub(crate) struct Effects {
    /// What happens to the handles that the driver holds. Carried out before the tables are
    /// unlocked.
    pub handles: Vec<HandleOp>,
    /// Commands to the capture thread. Sent before the tables are unlocked.
    pub commands: Vec<Command>,
    /// Connections that the control thread refuses and closes.
    pub refused: Vec<(PeerId, Failure)>,
    /// Entries that threads of the engine log. The control thread hands them over after it has
    /// unlocked the tables.
    pub channel_entries: Vec<(LogRoute, ChannelEntry)>,
    /// Upcalls and callbacks, which the control thread makes after it has unlocked the tables.
    pub upcalls: Vec<Upcall>,
    /// What is worth a line of the log, see `Core::take_notices`.
    pub notices: Vec<Notice>,
    /// Jobs were ended early: threads that wait for a change look at the tables.
    pub ended_early: bool,
}

/// A change of the driver's handles: the rendezvous entries of jobs, and the pidfds and terminals
/// of ranks. None of these waits for another thread. What is removed is closed once the tables are
/// unlocked.
#[derive(Debug)]
pub(crate) enum HandleOp {
    /// Publishes the name of a job, so that tools find the engine by it.
    Announce(JobId),
    /// Forgets a job that was removed with this exit status.
    RemoveJob { run: u64, status: JobStatus },
    /// Sends a signal to ranks. If a tool has requested it, its answer follows as
    /// [`Input::Signalled`](super::input::Input::Signalled).
    Signal { ranks: Vec<ProcessId>, signal: Signal, requested: Option<SignalRequest> },
    /// Closes the terminal of a rank that has exited. With the master still open, closing the
    /// stream would not hang up the terminal of the rank's children.
    HangUp(ProcessId),
    /// Forgets the process and the terminal of a rank.
    RemoveRank(ProcessId),
}
