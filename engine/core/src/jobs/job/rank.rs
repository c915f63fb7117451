//! The state of a rank.

use std::mem;
use std::time::{Instant, SystemTime};

use iof_capture::{ProcessId, Signal, SourceId, TargetId};
use iof_proto::{Channel, Channels, StdinUnavailable, UsedResources};

use crate::jobs::exit::{Exit, SentSignals};
use crate::jobs::nodes::NodeId;

/// The node of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// This node. The streams are in the order of [`Channel::OUTPUTS`].
    Here([SourceId; Channel::OUTPUTS.len()]),
    /// Another node of the job. The streams are those of its deliveries.
    There(NodeId),
}

/// The state of one rank.
pub struct RankState {
    place: Place,
    /// The name of its program.
    pub executable: String,
    /// 0 if the embedder did not specify it.
    pub pid: u32,
    /// When it was started, if that is known.
    pub began: Option<SystemTime>,
    /// Resources that it has used, once it has exited and if that is known.
    pub used: Option<UsedResources>,
    signals: SignalReach,
    stdin: StdinAccess,
    exit: Option<Exit>,
    /// The signals that were sent to the rank.
    sent: SentSignals,
    /// The rank failed because of these signals.
    exit_requested: bool,
    /// The embedder has reported the exit of the rank.
    reported: bool,
    /// The channels whose streams are complete.
    complete: Channels,
}

/// The processes that receive the signals to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalReach {
    /// None: only the embedder can send signals to the rank.
    Nothing,
    /// The process and its descendants in the embedder's process group, even after the rank itself
    /// has exited.
    Process,
    /// The process group that the rank leads, even after the rank itself has exited. A rank on
    /// another node always leads one there, or its terminal.
    Group,
}

/// The tools that can push to the stdin of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StdinAccess {
    /// All.
    #[default]
    All,
    /// The embedder's own.
    Own,
    /// None, for this reason.
    None(StdinUnavailable),
}

/// A rank that is being started.
#[derive(Default)]
pub struct Launching {
    /// The name of its program.
    pub executable: String,
    /// 0 before the process starts, or if the embedder did not specify it.
    pub pid: u32,
    /// When the process was started, if that is known.
    pub began: Option<SystemTime>,
    /// The tools that can push to its stdin.
    pub stdin: StdinAccess,
}

impl RankState {
    /// Returns a running rank.
    pub(crate) fn new(
        place: Place,
        Launching { executable, pid, began, stdin }: Launching,
        signals: SignalReach,
    ) -> RankState {
        RankState {
            place,
            executable,
            pid,
            began,
            used: None,
            signals,
            stdin,
            exit: None,
            sent: SentSignals::default(),
            exit_requested: false,
            reported: false,
            complete: Channels::empty(),
        }
    }

    /// Returns a running rank on another node, of which the pid is not known.
    pub(crate) fn there(node: NodeId, launching: Launching) -> RankState {
        let stdin = match launching.stdin {
            // The embedder pushes its stdin.
            StdinAccess::None(StdinUnavailable::Inherited) => StdinAccess::Own,
            stdin => stdin,
        };
        RankState::new(Place::There(node), Launching { stdin, ..launching }, SignalReach::Group)
    }

    /// Returns the streams of a local rank, in the order of [`Channel::OUTPUTS`]; none if it is not local.
    pub fn streams(&self) -> &[SourceId] {
        if let Place::Here(streams) = &self.place { streams } else { &[] }
    }

    /// Returns the node of the rank if that is another one.
    pub fn node(&self) -> Option<NodeId> {
        if let Place::There(node) = self.place { Some(node) } else { None }
    }

    /// Returns the id of a local rank's process at the capture. It is the id of the rank's first
    /// stream, which no other rank has.
    pub fn process(&self) -> Option<ProcessId> {
        self.streams().first().map(|stream| ProcessId(stream.0))
    }

    /// Returns the id of a local rank's stdin at the capture, which is derived in the same way.
    pub(crate) fn target(&self) -> Option<TargetId> {
        self.streams().first().map(|stream| TargetId(stream.0))
    }

    /// Notes the pid of a rank on another node, which has begun.
    pub(super) fn note_pid(&mut self, pid: u32, began: SystemTime) {
        (self.pid, self.began) = (pid, Some(began));
    }

    /// Returns the program, as the embedder specified it.
    pub(crate) fn executable(&self) -> &str {
        &self.executable
    }

    /// Returns the pid; 0 if the embedder did not specify it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns whether the rank is in the embedder's process group.
    pub(crate) fn shares_group(&self) -> bool {
        self.signals == SignalReach::Process
    }

    /// Returns whether the rank leads a process group of this node.
    pub fn leads_group(&self) -> bool {
        self.signals == SignalReach::Group && self.node().is_none()
    }

    /// Returns the exit status of the rank, unless it runs.
    pub fn exit(&self) -> Option<Exit> {
        self.exit
    }

    /// Returns whether the rank failed because of the signals that were sent to it.
    pub(super) fn is_exit_requested(&self) -> bool {
        self.exit_requested
    }

    /// Returns whether a signal was sent to the rank that asks it to end.
    pub(super) fn was_asked_to_end(&self, now: Instant) -> bool {
        self.sent.asks_to_end(now)
    }

    /// Returns the signal that asked the rank to end, the last one of
    /// [`REQUESTS_TO_END`](crate::jobs::exit::REQUESTS_TO_END); `None` if none did.
    pub(crate) fn request(&self) -> Option<Signal> {
        self.sent.request()
    }

    /// Notes that the rank has exited. Returns whether it was running. Only the capture of its own
    /// node knows of other processes that read its stdin.
    pub(super) fn exited(&mut self, exit: Exit, requested: bool) -> bool {
        if self.node().is_some() {
            self.close_stdin();
        }
        self.exit_requested = requested;
        self.exit.replace(exit).is_none()
    }

    /// Returns whether the rank fails with `exit` at `now` because of the signals that were sent to
    /// it.
    pub(super) fn is_requested(&self, exit: Exit, now: Instant) -> bool {
        self.sent.explains(exit, self.shares_group(), now)
    }

    /// Notes that the embedder has reported the exit of the rank. Returns whether the engine does
    /// not detect the exit, and it was not reported before.
    pub(super) fn report_exit(&mut self) -> bool {
        self.signals == SignalReach::Nothing && !mem::replace(&mut self.reported, true)
    }

    /// Notes that `signal` is sent to the rank at `now`.
    pub(super) fn note_signal(&mut self, signal: Signal, now: Instant) {
        self.sent.insert(signal, now);
    }

    /// Returns which processes receive a signal to the rank; `None` if none does.
    pub(super) fn signal_reach(&self) -> Option<SignalReach> {
        (self.signals != SignalReach::Nothing).then_some(self.signals)
    }

    /// Notes that the stream of an output channel is complete.
    pub(super) fn completed(&mut self, channel: Channel) {
        self.complete |= channel.into();
    }

    /// Returns the streams that are open if the rank has exited and all of them are those of
    /// [`Channel::FURTHER`], whose end is not waited for.
    pub(crate) fn left_open(&self) -> impl Iterator<Item = SourceId> {
        let open = Channels::OUTPUTS - self.complete;
        let is_left = self.exit.is_some() && Channels::FURTHER.contains(open);
        let streams = self.streams().iter().zip(Channel::OUTPUTS).filter(move |_| is_left);
        streams.filter_map(move |(id, channel)| open.contains(channel.into()).then_some(*id))
    }

    /// Returns the reason why a tool, which is the embedder's `own` or another, can't push to the
    /// stdin of the rank; `None` if it can.
    pub(crate) fn stdin_unavailable(&self, own: bool) -> Option<StdinUnavailable> {
        match self.stdin {
            StdinAccess::None(why) => Some(why),
            StdinAccess::Own if !own => Some(StdinUnavailable::Inherited),
            StdinAccess::Own | StdinAccess::All => None,
        }
    }

    /// Notes that nothing can be pushed to the stdin of the rank any more.
    pub(crate) fn close_stdin(&mut self) {
        if self.stdin_unavailable(true).is_none() {
            self.stdin = StdinAccess::None(StdinUnavailable::Closed);
        }
    }
}
