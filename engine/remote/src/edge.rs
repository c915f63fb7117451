//! The front end's edges: a carrier, a thread that receives and one that sends, and the nodes
//! behind.

use std::fs::File;
use std::hint::black_box;
use std::io::{ErrorKind, IoSlice, Read};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::Instant;

use crossbeam::channel::Sender;
use iof_engine::{Engine, Signal as RankSignal};
use iof_nodes::{
    Branch, BrokenEnd, ChildNode, ControlError, Decoder, Fault, Frame, FrontEnd, FrontEvent, Place,
    StreamKey, ToAgent, ToFrontEnd, cut_text,
};
use iof_proto::directive::key;
use iof_proto::{Channel, Failure as LogFailure, Info, Log, Nspace, Proc};
use nix::sys::signal::Signal;
use nix::sys::socket::{Shutdown, shutdown};

use crate::carrier::{Carrier, CarrierEnd, ended, lock, reap, signal_group, write_frames};
use crate::greeting::skip_greeting;
use crate::reattach::{Down, LinkedEdge};
use crate::remote::{Node, Remote};
use crate::thread::{NoThread, start_thread};

/// The free memory that the allocator keeps for records, in bytes: those of a window of both
/// bundles.
const KEPT_MEMORY: usize = 2 << 20;

/// What arrives from a node.
pub enum NodeEvent {
    /// The agent runs.
    Greeted,
    Message(ToFrontEnd),
    /// The node can't be reached any more, and its end was not due.
    Lost {
        reason: String,
        broken: BrokenEnd,
    },
    /// The ranks of all nodes were sent this signal.
    Signalled(RankSignal),
}

/// An event of the node with this number.
pub type NumberedEvent = (usize, NodeEvent);

/// Takes frames for an edge. A receiver of the standard library sleeps at once when its queue is
/// empty; one of crossbeam first yields the processor several times.
type FrameSender = mpsc::Sender<Down>;

/// What the front end has of one node: its place behind an edge.
#[derive(Clone)]
pub struct Edge {
    /// Frames to send. The thread that sends ends with the last sender.
    down: Arc<FrameSender>,
    branch: Arc<Mutex<Branch>>,
    carrier: Arc<Mutex<CarrierEnd>>,
    /// If the carrier may be replaced.
    linked: Option<Arc<LinkedEdge>>,
    /// The number of the node at the end of the edge.
    first: usize,
    place: Place,
}

/// What the thread that receives needs.
struct Receiving {
    nspace: Nspace,
    nodes: Arc<[Node]>,
    remote: Weak<Remote>,
    engine: Weak<Engine>,
    branch: Arc<Mutex<Branch>>,
    down: Weak<FrameSender>,
    carrier: Arc<Mutex<CarrierEnd>>,
    linked: Option<Arc<LinkedEdge>>,
    events: Sender<NumberedEvent>,
    first: usize,
}

impl Edge {
    /// Starts the threads of the edge behind which are the nodes of `branch`, from number `first`
    /// on. `linked` is given if the carrier may be replaced. Returns the node at its end.
    pub fn start(
        (carrier, linked): (Carrier, Option<Arc<LinkedEdge>>),
        (first, branch): (usize, Branch),
        (remote, engine): (&Arc<Remote>, &Arc<Engine>),
        events: &Sender<NumberedEvent>,
    ) -> Result<Edge, NoThread> {
        let Carrier { end, down: pipe, up } = carrier;
        let (branch, carrier) = (Arc::new(Mutex::new(branch)), Arc::new(Mutex::new(end)));
        let (down, frames) = mpsc::channel();
        // The queue is bounded: answers and credit by their limit, stdin by its replies.
        match &linked {
            None => start_thread("iof-down", move || send(pipe, &frames))?,
            Some(linked) => {
                linked.start(pipe, &carrier)?;
                let linked = Arc::clone(linked);
                start_thread("iof-down", move || linked.send_all(frames.into_iter()))?;
            }
        }
        let edge = Edge { down: Arc::new(down), branch, carrier, linked, first, place: Place::NEXT };
        let receiving = Receiving {
            nspace: remote.nspace.clone(),
            nodes: Arc::clone(&remote.nodes),
            remote: Arc::downgrade(remote),
            engine: Arc::downgrade(engine),
            branch: Arc::clone(&edge.branch),
            down: Arc::downgrade(&edge.down),
            carrier: Arc::clone(&edge.carrier),
            linked: edge.linked.clone(),
            events: events.clone(),
            first,
        };
        start_thread("iof-up", move || receiving.run(up))?;
        Ok(edge)
    }

    /// Returns what the front end has of the node with this number behind the same edge.
    pub fn to(&self, number: usize) -> Edge {
        let place = u32::try_from(number.saturating_sub(self.first)).unwrap_or(u32::MAX);
        Edge { place: Place(place), ..self.clone() }
    }

    /// Returns the number of the node at the end of the edge.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Returns the number of this node.
    pub fn number(&self) -> usize {
        number(self.first, self.place)
    }

    /// Returns the place of this node behind the edge.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Queues a message. It is lost if the edge has ended.
    pub fn send(&self, message: &ToAgent) -> Result<(), ControlError> {
        let is_last = self.place == Place::NEXT && matches!(message, ToAgent::Close);
        drop(self.down.send(Down { is_last, ..message.frame(self.place)?.into() }));
        Ok(())
    }

    /// Queues a frame. It is lost if the edge has ended.
    pub fn queue(&self, frame: Vec<u8>) {
        drop(self.down.send(frame.into()));
    }

    /// Notes a piece of stdin for this node, which is about to be queued.
    pub fn note_call(&self, call: u64) {
        lock(&self.branch).note_call(self.place, call);
    }

    /// Greets an agent, and opens its windows.
    pub fn greet(&self) {
        if let Some(end) = lock(&self.branch).end(self.place) {
            self.queue(end.greeting(self.place));
        }
    }

    /// Returns the nodes to which the agent of this one has edges.
    pub fn children(&self, nodes: &[Node]) -> Vec<ChildNode> {
        let children = lock(&self.branch).children(self.place);
        let child = |places: Range<u32>| {
            let host = nodes.get(number(self.first, Place(places.start)))?.host.clone();
            Some(ChildNode { host, nodes: places.end.saturating_sub(places.start) })
        };
        children.into_iter().filter_map(child).collect()
    }

    /// Sends a signal to the carrier and what it has started on this node. A carrier on another
    /// node is ended by its relay.
    pub fn signal_carrier(&self, signal: Signal) {
        let relay = lock(&self.branch).relay(self.place);
        match (relay, &self.linked) {
            (Some((relay, child)), _) => cut_child(&self.down, relay, child, signal == Signal::SIGKILL),
            (None, Some(linked)) => linked.signal(&self.carrier, signal),
            (None, None) => signal_group(&self.carrier, signal),
        }
    }

    /// Ends the carrier of a job that does not start. The agent ends its ranks when its edge ends.
    pub fn end_carrier(&self) {
        match &self.linked {
            Some(linked) if lock(&self.branch).end(self.place).is_some_and(FrontEnd::has_greeted) => {
                linked.hang_up();
            }
            _ => signal_group(&self.carrier, Signal::SIGTERM),
        }
    }

    /// Returns the edge if its carrier may be replaced.
    pub fn linked(&self) -> Option<&Arc<LinkedEdge>> {
        self.linked.as_ref()
    }

    /// Gives up the node, and those behind it. Returns what is known about them.
    pub fn give_up(&self) -> Vec<(usize, BrokenEnd)> {
        let cut = lock(&self.branch).cut(self.place);
        cut.into_iter().map(|(place, broken)| (number(self.first, place), broken)).collect()
    }
}

/// Returns the number of the node at `place` behind the edge to the node with number `first`.
fn number(first: usize, place: Place) -> usize {
    first.saturating_add(usize::try_from(place.0).unwrap_or(usize::MAX))
}

/// Returns the reason why a node is lost if the edge to the node `cause` has ended for `reason`: that
/// node itself, or one behind it.
pub fn loss_reason(nodes: &[Node], lost: usize, (cause, reason): (usize, &str)) -> String {
    match nodes.get(cause) {
        Some(relay) if lost != cause => format!("its relay {} is lost: {reason}", relay.host),
        _ => reason.to_owned(),
    }
}

/// Queues an answer to an agent. It is lost if the edge has ended.
fn send_answer(down: &Weak<FrameSender>, frames: Vec<u8>, _answer: Option<Arc<()>>) {
    if let Some(down) = down.upgrade() {
        drop(down.send(Down { _answer, ..frames.into() }));
    }
}

/// Asks a relay to end the edge to one of its children.
fn cut_child(down: &FrameSender, relay: Place, child: Place, kill: bool) {
    // The message is within its limits.
    if let Ok(frame) = (ToAgent::CutChild { child, kill }).frame(relay) {
        drop(down.send(frame.into()));
    }
}

/// Lets the allocator keep the memory of records for the next ones. By default, glibc returns what
/// is free beyond 128 KiB to the kernel, and each page of it costs a page fault when it is used
/// again. When a larger block is freed, glibc adapts: it keeps twice the size of that block
/// (`M_MMAP_THRESHOLD` in mallopt(3)).
fn keep_freed_memory() {
    drop(black_box(vec![0u8; KEPT_MEMORY / 2]));
}

/// Writes frames until the edge is dropped or can't be written. The thread that receives notices
/// that it has ended.
fn send(mut pipe: File, sent: &mpsc::Receiver<Down>) {
    for Down { frames, .. } in sent {
        if write_frames(&mut pipe, &[IoSlice::new(&frames)]).is_err() {
            return;
        }
    }
    // Ends a socket, which has duplicates. A pipe is closed.
    let _ = shutdown(pipe.as_raw_fd(), Shutdown::Write);
}

impl Receiving {
    fn run(&self, up: File) {
        keep_freed_memory();
        let mut decoder = Decoder::of_agent();
        let mut received = skip_greeting(up).and_then(|up| self.receive(up, &mut decoder));
        while let (Ok(()), Some(linked)) = (&received, self.replaceable()) {
            received = linked.replace(&self.carrier).and_then(|up| self.receive(up, &mut decoder));
        }
        self.end(received);
        self.linked.iter().for_each(|linked| linked.link.abandon());
        reap(&self.carrier);
    }

    /// Returns the edge if a carrier that has ended is to be replaced: the agent can be reached, has
    /// not failed to start its ranks, and the job goes on. An agent that has sent everything waits
    /// for the end of the job, which only another carrier can tell it.
    fn replaceable(&self) -> Option<&Arc<LinkedEdge>> {
        let has_failed = lock(&self.branch).end(Place::NEXT).is_none_or(FrontEnd::has_failed);
        self.linked.as_ref().filter(|linked| !has_failed && linked.is_replaceable())
    }

    /// Tells which nodes are lost with the edge.
    fn end(&self, result: Result<(), String>) {
        let cut = lock(&self.branch).cut(Place::NEXT);
        if cut.is_empty() {
            // Whatever follows the end has no meaning.
            return;
        }
        let reason = match result {
            Ok(()) => ended(&self.carrier),
            Err(reason) => {
                // The agent ends its ranks when its edge ends.
                self.linked.iter().for_each(|linked| linked.cut_off());
                signal_group(&self.carrier, Signal::SIGTERM);
                reason
            }
        };
        self.lose(Place::NEXT, cut, &reason);
    }

    /// Receives until the end of the carrier's output.
    ///
    /// # Errors
    /// The agent has broken a rule, or the output can't be taken.
    fn receive(&self, mut up: impl Read, decoder: &mut Decoder) -> Result<(), String> {
        loop {
            let length = match decoder.read_from(&mut up) {
                Ok(0) => return Ok(()),
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // Another carrier can be read.
                Err(_) if self.linked.is_some() => return Ok(()),
                Err(error) => return Err(format!("cannot read from its carrier: {error}")),
            };
            if let Some(linked) = &self.linked {
                linked.link.receive(length);
            }
            let now = Instant::now();
            let refused = |error| format!("its agent is cut off: {error}");
            while let Some((place, frame)) = decoder.decode().map_err(|error| refused(error.to_string()))? {
                if let (Some(linked), Frame::Ack { received }) = (&self.linked, &frame) {
                    let taken = linked.link.acknowledged(*received);
                    taken.map_err(|error| refused(error.to_string()))?;
                    continue;
                }
                let event = lock(&self.branch).receive(place, &frame, now);
                match event {
                    Ok(event) => match self.handle(place, event) {
                        Err(reason) if place == Place::NEXT => return Err(reason),
                        Err(reason) => self.cut(place, &reason),
                        Ok(()) => {}
                    },
                    Err(Fault { place: Place::NEXT, error }) => return Err(refused(error.to_string())),
                    Err(Fault { place, error }) => self.cut(place, &refused(error.to_string())),
                }
            }
        }
    }

    fn handle(&self, place: Place, event: FrontEvent<'_>) -> Result<(), String> {
        match event {
            FrontEvent::None => {}
            FrontEvent::Greeted => self.tell(place, NodeEvent::Greeted),
            FrontEvent::Record { stream, time, bytes } => self.deliver(place, stream, time, bytes)?,
            FrontEvent::Gap { stream, end, .. } => {
                self.pass_on(stream, Vec::new(), &[Info::new(key::IOF_OFFSET, end)], || {})?;
            }
            FrontEvent::End(stream) => self.complete(stream)?,
            // The front end's end of the node has noted the totals.
            FrontEvent::Message(ToFrontEnd::Produced(_)) => {}
            FrontEvent::Message(ToFrontEnd::ChildLost { child, reason }) => {
                let mut branch = lock(&self.branch);
                if let Some(child) = branch.child(place, child) {
                    let cut = branch.cut(child);
                    drop(branch);
                    self.lose(child, cut, &reason);
                }
            }
            FrontEvent::Message(ToFrontEnd::Link(address)) => {
                if let Some(linked) = self.linked.as_ref().filter(|_| place == Place::NEXT) {
                    linked.set_address(address);
                }
            }
            FrontEvent::Message(ToFrontEnd::Log { call, log }) => self.log(place, call, &log),
            FrontEvent::Message(message) => {
                if let (ToFrontEnd::Started { pids }, Some(remote)) = (&message, self.remote.upgrade()) {
                    remote.note_pids(number(self.first, place), pids);
                    self.announce(place)?;
                }
                self.tell(place, NodeEvent::Message(message));
            }
        }
        Ok(())
    }

    /// Makes the ranks of a node known to the engine, so that tools can push to them before they
    /// write. Called before what the node sends next, which may be a message of such a rank.
    fn announce(&self, place: Place) -> Result<(), String> {
        let Some(node) = self.nodes.get(number(self.first, place)) else { return Ok(()) };
        for rank in &node.ranks {
            for channel in [Channel::Stdout, Channel::Stderr, Channel::Stddiag] {
                self.pass_on(StreamKey { rank: *rank, channel }, Vec::new(), &[], || {})?;
            }
        }
        Ok(())
    }

    /// Logs a message of a tool on a node, and answers when that is done.
    fn log(&self, place: Place, call: u64, log: &Log) {
        let (down, counted) = (self.down.clone(), lock(&self.branch).end(place).map(FrontEnd::answer));
        let answer = move |failure: Option<LogFailure>| {
            let cut = |failure: LogFailure| LogFailure { reason: cut_text(&failure.reason), ..failure };
            let logged = ToAgent::Logged { call, failure: failure.map(cut) };
            // With a reason that was cut, the message is within its limits.
            send_answer(&down, logged.frame(place).unwrap_or_default(), counted.clone());
        };
        // The command ends.
        let Some(engine) = self.engine.upgrade() else { return };
        let done = answer.clone();
        let logged = engine.log(log, move |report| {
            done(report.outcomes.into_iter().find_map(|outcome| outcome.result.err()));
        });
        if let Err(failure) = logged {
            answer(Some(failure));
        }
    }

    fn tell(&self, place: Place, event: NodeEvent) {
        // The command may have decided to end.
        let _ = self.events.send((number(self.first, place), event));
    }

    /// Cuts off a node that has broken a rule and is behind a relay.
    fn cut(&self, place: Place, reason: &str) {
        let mut branch = lock(&self.branch);
        let (relay, cut) = (branch.relay(place), branch.cut(place));
        drop(branch);
        if let (Some((relay, child)), Some(down)) = (relay, self.down.upgrade()) {
            // The agent ends its ranks, which takes it a while.
            cut_child(&down, relay, child, false);
        }
        self.lose(place, cut, reason);
    }

    /// Tells that the node at `first` is lost for this reason, and with it those behind it.
    fn lose(&self, first: Place, cut: Vec<(Place, BrokenEnd)>, reason: &str) {
        let first_number = number(self.first, first);
        for (place, broken) in cut {
            let lost = number(self.first, place);
            let reason = loss_reason(&self.nodes, lost, (first_number, reason));
            self.tell(place, NodeEvent::Lost { reason, broken });
        }
    }

    /// Puts bytes into the ring of their stream, and gives credit when they are there.
    fn deliver(&self, place: Place, stream: StreamKey, time: u64, bytes: &[u8]) -> Result<(), String> {
        let time = (time != 0).then(|| Info::new(key::IOF_READ_TIME, time));
        let (branch, down, length) = (Arc::clone(&self.branch), self.down.clone(), bytes.len());
        let taken = move || give_credit(&branch, &down, (place, stream.channel), length);
        self.pass_on(stream, bytes.to_vec(), time.as_slice(), taken)
    }

    fn complete(&self, stream: StreamKey) -> Result<(), String> {
        self.pass_on(stream, Vec::new(), &[Info::new(key::PMIX_IOF_COMPLETE, true)], || {})
    }

    fn pass_on(
        &self,
        StreamKey { rank, channel }: StreamKey,
        bytes: Vec<u8>,
        infos: &[Info],
        taken: impl FnOnce() + Send + 'static,
    ) -> Result<(), String> {
        // The command ends.
        let Some(engine) = self.engine.upgrade() else { return Ok(()) };
        let source = Proc { nspace: self.nspace.clone(), rank };
        let delivered = engine.deliver(&source, channel, bytes, infos, taken);
        delivered.map_err(|error| format!("{channel} of rank {rank}: {error}"))
    }
}

/// Gives credit for bytes that are in their ring.
fn give_credit(
    branch: &Mutex<Branch>,
    down: &Weak<FrameSender>,
    (place, channel): (Place, Channel),
    length: usize,
) {
    let mut branch = lock(branch);
    if let Some(header) = branch.taken(place, channel, length).and_then(|credit| credit.header_at(place)) {
        send_answer(down, header.to_vec(), branch.end(place).map(FrontEnd::answer));
    }
}
