//! The effects of inputs, which leave the core. The driver carries it out: see `Tables` and `Control`.

use std::mem;

use iof_capture::{self as capture, ProcessId, PushId, Signal};
use iof_proto::{Failure, Rank, StreamPull};

use crate::Core;
use crate::ids::{JobId, PageId, PeerId, SignalRequest};
use crate::jobs::early_end::LastStep;
use crate::jobs::job::Receivers;
use crate::jobs::job::endings::Ending;
use crate::jobs::nodes::{NodeKey, StdinNodes};
use crate::jobs::status::JobStatus;
use crate::logs::channel_entry::{ChannelEntry, LogRoute};
use crate::notice::Notice;
use crate::upcall::{Piece, Upcall};

/// A command to the capture thread. The driver adds the memory: reader pages, and the streams and
/// inlets that [`Resources`](crate::resources::Resources) has created.
pub type Command = capture::Command<PageId, (), ()>;

/// The effects of inputs and calls. The driver takes each kind in the order in which they are to be
/// carried out.
#[derive(Default)]
pub(crate) struct Effects {
    /// Changes of the handles that the driver holds. Carried out before the tables are
    /// unlocked.
    pub(crate) handles: Vec<HandleOp>,
    /// Commands to the capture thread. Sent in this order before the next input is handled and
    /// before the tables are unlocked, so the capture thread performs them in the order of the
    /// changes to the tables, whichever thread made these. Sending never waits.
    pub(crate) commands: Vec<Command>,
    /// Connections that the control thread refuses and closes.
    pub(crate) refused: Vec<(PeerId, Failure)>,
    /// Entries that threads of the engine log. The control thread hands them over after it has
    /// unlocked the tables.
    pub(crate) channel_entries: Vec<(LogRoute, ChannelEntry)>,
    /// Upcalls and callbacks, which the control thread makes after it has unlocked the tables.
    pub(crate) upcalls: Vec<Upcall>,
    /// Notices for the log, see `Core::take_notices`.
    pub(crate) notices: Vec<Notice>,
    /// Jobs were ended early: threads that wait for a change look at the tables.
    pub(crate) ended_early: bool,
}

impl Core {
    /// Takes the queued changes of the driver's handles.
    pub fn take_handle_ops(&mut self) -> Vec<HandleOp> {
        mem::take(&mut self.effects.handles)
    }

    /// Takes the queued commands to the capture thread.
    pub fn take_commands(&mut self) -> Vec<Command> {
        mem::take(&mut self.effects.commands)
    }

    /// Takes the connections that are to be refused.
    pub fn take_refused(&mut self) -> Vec<(PeerId, Failure)> {
        mem::take(&mut self.effects.refused)
    }

    /// Takes the entries that threads of the engine are to log.
    pub fn take_channel_entries(&mut self) -> Vec<(LogRoute, ChannelEntry)> {
        mem::take(&mut self.effects.channel_entries)
    }

    /// Takes the queued upcalls and callbacks.
    pub fn take_upcalls(&mut self) -> Vec<Upcall> {
        mem::take(&mut self.effects.upcalls)
    }

    /// Takes what is worth a line of the log.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        let mut notices = mem::take(&mut self.effects.notices);
        notices.extend(self.streams.take_refused().into_iter().map(Notice::NoBacklog));
        notices
    }

    /// Returns whether jobs were ended early since the last call.
    pub fn take_ended_early(&mut self) -> bool {
        mem::take(&mut self.effects.ended_early)
    }
}

/// A change of the driver's handles: the rendezvous entries of jobs, the edges to their other nodes,
/// the pidfds and terminals of ranks, and the memory that the engine shares with tools. None of these
/// waits for another thread. What is removed is closed once the tables are unlocked.
#[derive(Debug)]
#[allow(missing_docs, reason = "the variants describe their fields")]
pub enum HandleOp {
    /// Publishes the name of a job, so that tools find the engine by it.
    Announce(JobId),
    /// Forgets a job that was removed with this exit status, after these endings.
    RemoveJob { run: u64, status: JobStatus, endings: Vec<Ending> },
    /// Sends a signal to ranks. If a tool has requested it, its answer follows as
    /// [`Input::Signalled`](crate::input::Input::Signalled). Otherwise it is for whole jobs.
    Signal { receivers: Receivers, signal: Signal, requested: Option<SignalRequest> },
    /// Takes a step towards the end of another node.
    EndNode { node: NodeKey, step: LastStep },
    /// Begins to pull streams of another node.
    Pull { node: NodeKey, pulls: Vec<StreamPull> },
    /// Requests what a rank of another node has put.
    Modex { node: NodeKey, call: u64, rank: Rank },
    /// Ends pulls of another node.
    EndPulls { node: NodeKey, pulls: Vec<u32> },
    /// Sends a piece of stdin to other nodes. The driver copies the piece before it sends a tool
    /// credit for its bytes.
    Stdin { push: PushId, nodes: StdinNodes, piece: Piece },
    /// Closes the terminal of a rank that has exited. With the master still open, closing the
    /// stream would not hang up the terminal of the rank's children.
    HangUp(ProcessId),
    /// Forgets the process and the terminal of a rank.
    RemoveRank(ProcessId),
    /// Drops the driver's reference of the inlet of a push that has ended. Commands and upcalls that
    /// are queued by then still have it.
    DropInlet(PushId),
    /// Drops the reader page of a tool that has disconnected, and what waits to be sent to it.
    /// Commands that are queued by then still have the page.
    DropPage(PeerId),
}
