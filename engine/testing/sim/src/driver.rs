//! A driver of the core without threads, sockets and a clock: the core's inputs, and what leaves it.

mod checks;
mod connections;
mod digest;
mod host;
mod inspection;
mod launcher;
mod limit_checks;
mod peer_checks;
mod pushes;
mod ranks;
mod reached;
mod socket;
mod spawns;
mod steps;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use std::{io, mem};

use iof_capture::test_utils::{Backend, SimulatedCapture};
use iof_capture::{EndedStreams, Event, ProcessId, PushId, Signal, SourceId, TargetId};
pub use iof_core::Limits;
use iof_core::{
    Command, Core, DueUpcall, Grant, HandleOp, Input, LogConfig, LogRoutes, Logs, MemorySource, Settings,
    SharedMemory, StreamOptions,
};
pub use iof_proto::socket::PeerCredentials;
use iof_proto::{Channel, Failure, LogReport, Proc, Status, ToTool};
use iof_shm_ring::{CreateError, Inlet, ReaderId, ReaderPage, Ringer, Stream, StreamConfig, bell};

pub use digest::Digest;
use host::SignalCalls;
pub use host::{CallToken, HostCall};
pub use launcher::{MpiReport, NewJob, Output, OutputEnd, RankSignals, RankStdin, SentToNode};
pub use pushes::PushAnswer;
use pushes::PushWatch;
pub use reached::ReachedLimits;
use socket::Socket;
pub use socket::{Packet, Shared};
use spawns::Claim;
pub use spawns::spawn_words;
pub use steps::{PullOptions, ReaderOwner, SentStep};

/// The number of a connection.
pub type ConnectionId = usize;

/// The outcome of a message of the embedder, with the number of its callback.
type NumberedReport = (u64, LogReport);

/// The answer to a request of a rank, with its number.
type NumberedAnswer = (u64, ToTool);

/// The largest cache that a registration may request.
const MAX_CACHE_SIZE: u32 = 16 << 20;

/// The user that the engine belongs to.
pub const OWN_USER: u32 = 1000;

/// A command that was sent to the capture.
#[derive(Debug)]
pub enum SentCommand {
    /// A stream without a pipe was opened.
    Opened {
        /// Its id.
        source: SourceId,
        /// The process that it belongs to.
        proc: Proc,
        /// Its channel.
        channel: Channel,
        /// Set if it holds logged messages.
        logged: bool,
        /// The run of its job.
        run: u64,
        /// The configuration with which it was created.
        config: StreamConfig,
    },
    /// Readers were attached or detached, or the configuration of streams was changed, in one piece.
    Steps(Vec<SentStep>),
    /// Processes were signalled.
    Signal {
        /// The processes.
        processes: Vec<ProcessId>,
        /// The signal.
        signal: Signal,
        /// The tool that has asked for it, with its number for the request.
        requested: Option<(ConnectionId, u32)>,
    },
    /// A stream is to be completed with the bytes that were written so far.
    Finished(SourceId),
    /// A stream is to be completed with the bytes that were read so far.
    Closed(SourceId),
    /// Bytes were delivered.
    Delivered {
        /// Their stream.
        source: SourceId,
        /// The number of bytes that were lost before them.
        lost: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A push begins at local ranks.
    PushBegun {
        /// Its id.
        push: PushId,
        /// The stdin of the ranks.
        targets: Vec<TargetId>,
        /// Set if the stdin ends with it.
        closes: bool,
    },
    /// The local ranks that have taken at most `position` bytes of a push are cut off.
    CutOff {
        /// The push.
        push: PushId,
        /// The number of bytes.
        position: u64,
    },
    /// The stdin of a rank is closed.
    Shut(TargetId),
    /// A tool was disconnected.
    Left {
        /// Its connection.
        tool: ConnectionId,
        /// The jobs that it has spawned and registered for.
        claimed: Vec<CallToken>,
    },
}

/// The engine's settings in a simulation.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The options of streams.
    pub options: StreamOptions,
    /// The number of connections from outside that may exist at a time.
    pub places: usize,
    /// The number of readers that a tool may have.
    pub slots: usize,
    /// The limits of the core.
    pub limits: Limits,
    /// Set if the host forwards stdin.
    pub host_stdin: bool,
    /// The keys of queries that the host answers in part.
    pub host_queries: BTreeSet<String>,
    /// The channels to which the host logs.
    pub host_channels: BTreeSet<String>,
    /// The host lets clients start jobs.
    pub may_spawn: bool,
    /// Set if signals to remote ranks wait for [`SimulatedEngine::signalled_elsewhere`].
    pub late_signals: bool,
}

/// The resources that have run out, apart from the rings of
/// [`HeapMemory`](iof_shm_ring::HeapMemory).
#[derive(Default)]
struct Shortages {
    files: AtomicBool,
    slots: AtomicBool,
    /// The configurations of the streams that were created, and whose commands were not noted.
    created: Mutex<VecDeque<StreamConfig>>,
}

/// Memory on the heap, where a simulator can let it run out.
struct HeapSource {
    shortages: Arc<Shortages>,
}

impl MemorySource for HeapSource {
    fn inlet(&self, capacity: u64) -> Result<Inlet, Failure> {
        self.shortages.check_files()?;
        Inlet::create(capacity, "simulated stdin").map_err(lacking)
    }

    fn log_stream(&self, config: StreamConfig, label: &str) -> Result<Stream, Failure> {
        self.delivered_stream(config, label).map_err(lacking)
    }

    fn delivered_stream(&self, config: StreamConfig, _: &str) -> Result<Stream, CreateError> {
        let stream = Stream::on_heap(config)?;
        self.shortages.created().push_back(config);
        Ok(stream)
    }

    fn prepare_slot(&self, page: &ReaderPage, slot: ReaderId) -> Result<(), CreateError> {
        if self.shortages.slots.load(Relaxed) {
            let source = io::ErrorKind::OutOfMemory.into();
            return Err(CreateError::Memory { step: "fallocate", len: 4096, source });
        }
        page.prepare_slot(slot)
    }

    fn has_syslog(&self) -> bool {
        true
    }
}

impl Shortages {
    fn created(&self) -> MutexGuard<'_, VecDeque<StreamConfig>> {
        self.created.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if files have run out.
    fn check_files(&self) -> Result<(), Failure> {
        if self.files.load(Relaxed) { Err(lacking("too many open files")) } else { Ok(()) }
    }
}

fn lacking(error: impl ToString) -> Failure {
    Failure::new(Status::ERR_OUT_OF_RESOURCE, error.to_string())
}

/// The core with simulated sockets and a simulated clock.
#[allow(missing_debug_implementations, reason = "a run describes what it has done")]
pub struct SimulatedEngine {
    core: Core,
    now: Instant,
    sockets: BTreeMap<ConnectionId, Socket>,
    /// Rung by tools that have made room.
    room: Ringer,
    /// The streams, once the capture has ended.
    ended_streams: Option<EndedStreams>,
    /// The events of commands that the capture did not take.
    reports: Vec<Event>,
    memory: Arc<SharedMemory>,
    /// Upcalls that were not taken yet.
    upcalls: Vec<DueUpcall>,
    signals: SignalCalls,
    /// The numbers of callbacks, sent when they are called.
    called: (Sender<u64>, Receiver<u64>),
    log_reports: (Sender<NumberedReport>, Receiver<NumberedReport>),
    /// The answers to ranks, with the numbers of their requests.
    answers: (Sender<NumberedAnswer>, Receiver<NumberedAnswer>),
    shortages: Arc<Shortages>,
    /// The limits that have been reached.
    reached: ReachedLimits,
    /// The connections that were granted to hold back sources.
    grants: BTreeMap<ConnectionId, Grant>,
    /// The embedder's own connections.
    own: BTreeSet<ConnectionId>,
    /// The commands that were not sent, and what a simulator must know of them.
    commands: Vec<Command>,
    noted: Vec<SentCommand>,
    pushes: PushWatch,
    /// The host lets clients start jobs.
    may_spawn: bool,
    spawn_calls: Vec<HostCall>,
    /// The jobs that connected tools spawn.
    claims: Vec<Claim>,
    /// Depends on all messages, commands and upcalls.
    digest: Digest,
}

impl SimulatedEngine {
    /// Creates an engine without jobs and tools. `room` wakes the capture.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn new(setting: Setting, room: Ringer, now: Instant) -> io::Result<SimulatedEngine> {
        let Setting {
            options,
            places,
            slots,
            limits,
            host_stdin,
            host_queries,
            host_channels,
            may_spawn,
            late_signals,
        } = setting;
        let routes = LogRoutes {
            config: LogConfig::default(),
            has_record: true,
            has_gateway: false,
            has_mail: false,
            host: host_channels,
        };
        let settings = Settings {
            host_keys: BTreeSet::new(),
            host_queries,
            host_stdin,
            options,
            max_cache_size: MAX_CACHE_SIZE,
            places,
            slots,
            limits,
            run: 0,
            pid: 1,
            uid: OWN_USER,
            node: "node".into(),
        };
        let holder = ReaderPage::on_heap(bell()?.0);
        let shortages = Arc::new(Shortages::default());
        let source = HeapSource { shortages: Arc::clone(&shortages) };
        let memory = Arc::new(SharedMemory::new(Box::new(source), holder));
        let core = Core::new(2, settings, Logs::new(routes), Box::new(Arc::clone(&memory)));
        let (sockets, reports, upcalls) = (BTreeMap::new(), Vec::new(), Vec::new());
        let digest = Digest::default();
        let ended_streams = None;
        Ok(SimulatedEngine {
            core,
            now,
            sockets,
            room,
            ended_streams,
            reports,
            memory,
            upcalls,
            signals: SignalCalls::new(late_signals),
            called: channel(),
            log_reports: channel(),
            answers: channel(),
            shortages,
            reached: ReachedLimits::default(),
            grants: BTreeMap::new(),
            own: BTreeSet::new(),
            commands: Vec::new(),
            noted: Vec::new(),
            pushes: PushWatch::default(),
            may_spawn,
            spawn_calls: Vec::new(),
            claims: Vec::new(),
            digest,
        })
    }

    /// Sets whether files run out, for inlets and reader pages of new tools, and whether memory
    /// runs out for the slots of reader pages.
    pub fn refuse(&self, files: bool, slots: bool) {
        self.shortages.files.store(files, Relaxed);
        self.shortages.slots.store(slots, Relaxed);
    }

    /// Returns a word that depends on all messages in both directions, all commands and all
    /// upcalls.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    fn handle(&mut self, input: Input) {
        // Only messages can break the protocol.
        let _ = self.core.handle(input, self.now);
        self.note_commands();
        self.take_upcalls();
        self.note_claims(None);
    }

    /// Sets the time, and handles what is due. A driver sleeps until then, so before it nothing may
    /// happen only because time has passed. All effects of earlier inputs must have been carried out.
    pub fn set_time(&mut self, now: Instant) {
        let is_due = self.core.next_deadline().is_some_and(|due| due <= now);
        let sleeps = now > self.now && !is_due;
        self.now = now;
        self.handle(Input::Time);
        if sleeps {
            let commands = &self.commands;
            assert!(commands.is_empty(), "a driver would have missed {commands:?}");
            let ops = self.core.take_handle_ops();
            assert!(ops.is_empty(), "a driver would have missed {ops:?}");
            let is_overdue = |id: &ConnectionId| self.core.check_deadline(*id, now).is_err();
            assert!(!self.core.pending_ids().iter().any(is_overdue), "a driver would have missed a deadline");
        }
        let overdue: Vec<ConnectionId> = self.core.pending_ids();
        for id in overdue {
            if let Err(ended) = self.core.check_deadline(id, now) {
                self.end_pending(id, ended);
            }
        }
    }

    /// Returns when something is due next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.core.next_deadline()
    }

    /// Handles an event of the capture.
    pub fn captured(&mut self, event: Event) {
        match event {
            Event::Ended { mut streams } => {
                streams.retain(self.core.keeps());
                self.ended_streams = Some(streams);
                self.handle(Input::CaptureEnded);
            }
            Event::Answered { request, answers } => {
                let tools = self.core.joining_tools(request);
                let answers = self.memory.keep_rings(&tools, request, answers);
                self.handle(Input::StreamAnswered { request, answers });
            }
            event => self.handle(Input::Captured(event)),
        }
    }

    /// Sends the queued commands to the capture. Returns what a simulator must know of them.
    pub fn send_commands<B: Backend>(&mut self, capture: &SimulatedCapture<B>) -> Vec<SentCommand> {
        self.note_commands();
        let mut noted = mem::take(&mut self.noted);
        let commands = mem::take(&mut self.commands);
        for command in &commands {
            match command {
                Command::Deliver { source, delivery } => {
                    self.digest.add_word(source.0);
                    self.digest.add_word(delivery.lost);
                    self.digest.add(&delivery.bytes);
                }
                command => self.digest.add_debug(command),
            }
        }
        let commands = self.memory.with_memory(commands);
        let mut sent = Vec::new();
        for op in self.core.take_handle_ops() {
            self.digest.add_debug(&op);
            sent.extend(self.perform(op));
        }
        sent.append(&mut noted);
        for notice in self.core.take_notices() {
            self.digest.add_debug(&notice);
        }
        let events = match &mut self.ended_streams {
            Some(streams) => streams.perform(commands),
            None => {
                let refused = capture.send(commands).err().into_iter().flatten();
                refused.flat_map(iof_capture::Command::refused).collect()
            }
        };
        self.reports.extend(events);
        sent
    }

    fn perform(&mut self, op: HandleOp) -> Option<SentCommand> {
        match op {
            HandleOp::Signal { receivers, signal, requested } => {
                let ranks = receivers.processes;
                let count = ranks.len();
                let asked = requested.as_ref().map(|request| (request.peer, request.request));
                if let Some(request) = requested {
                    self.handle(Input::Signalled { request, count });
                }
                return Some(SentCommand::Signal { processes: ranks, signal, requested: asked });
            }
            HandleOp::DropInlet(push) => drop(self.memory.remove_inlet(push)),
            HandleOp::DropPage(tool) => drop(self.memory.remove_tool(tool)),
            // Those for nodes are taken by `take_sent_to_nodes`.
            HandleOp::Announce(_)
            | HandleOp::EndNode { .. }
            | HandleOp::Stdin { .. }
            | HandleOp::Pull { .. }
            | HandleOp::EndPulls { .. }
            | HandleOp::Modex { .. }
            | HandleOp::RemoveJob { .. }
            | HandleOp::HangUp(_)
            | HandleOp::RemoveRank(_) => {}
        }
        None
    }

    /// Returns the events that stand for those of the capture, since the last call.
    pub fn take_reports(&mut self) -> Vec<Event> {
        mem::take(&mut self.reports)
    }

    /// Returns whether the engine knows that the capture has ended.
    pub fn is_without_capture(&self) -> bool {
        self.ended_streams.is_some()
    }
}

/// Checks.
impl SimulatedEngine {
    /// Panics if a limit is exceeded or the tables contradict each other. Notes the limits that are
    /// reached.
    pub fn check(&mut self) {
        self.reached.add(limit_checks::check_limits(&self.core));
        checks::check(&self.core, &self.signals.tools());
        checks::check_memory(&self.core, &self.memory);
    }

    /// Returns the limits that have been reached.
    pub fn reached(&self) -> &ReachedLimits {
        &self.reached
    }

    /// Returns the tables that have entries which do not wait for the host.
    pub fn remains_without_owed(&self) -> Vec<String> {
        checks::remains_without_owed(&self.core)
    }

    /// Returns the tables that are not empty.
    pub fn remains(&self) -> Vec<String> {
        checks::remains(&self.core)
    }
}
