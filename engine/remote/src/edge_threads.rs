//! The threads of the front end's edges: one sends, one receives.

use std::fs::File;
use std::hint::black_box;
use std::io::{ErrorKind, IoSlice, Read};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::Instant;

use crossbeam::channel::Sender;
use iof_engine::{Engine, Node, Signal};
use iof_nodes::{
    Decoder, EdgeError, Frame, FrontEnd, FrontEvent, StreamKey, ToAgent, ToFrontEnd, cut_text, window,
};
use iof_proto::directive::key;
use iof_proto::{Channel, Failure as LogFailure, Info, Log, Nspace, Proc};
use nix::sys::socket::{Shutdown, shutdown};

use crate::carrier::{Carrier, CarrierEnd, ended, lock, reap, signal_group, write_frames};
use crate::edge::{Edge, FrameSender, NodeEvent, NumberedEvent};
use crate::greeting::skip_greeting;
use crate::link::CarrierNumber;
use crate::reattach::{Down, LinkedEdge};
use crate::remote::Remote;
use crate::thread::{NoThread, start_thread};

/// The free memory that the allocator keeps for records, in bytes: those of a window of both
/// bundles.
const KEPT_MEMORY: usize = 2 << 20;

/// What the thread that receives needs.
struct Receiving {
    nspace: Nspace,
    /// The node, with this number.
    node: Node,
    number: usize,
    remote: Weak<Remote>,
    engine: Weak<Engine>,
    front: Arc<Mutex<FrontEnd>>,
    down: Weak<FrameSender>,
    carrier: Arc<Mutex<CarrierEnd>>,
    linked: Option<Arc<LinkedEdge>>,
    events: Sender<NumberedEvent>,
}

impl Edge {
    /// Starts the threads of the edge to the node with this number. `linked` is given if the carrier
    /// may be replaced.
    pub fn start(
        (carrier, linked): (Carrier, Option<Arc<LinkedEdge>>),
        (number, node): (usize, &Node),
        (remote, engine): (&Arc<Remote>, &Arc<Engine>),
        events: &Sender<NumberedEvent>,
    ) -> Result<Edge, NoThread> {
        let Carrier { end, down: pipe, up } = carrier;
        let front = FrontEnd::new(&node.ranks, window(remote.nodes.len()));
        let (front, carrier) = (Arc::new(Mutex::new(front)), Arc::new(Mutex::new(end)));
        let (down, frames) = mpsc::channel();
        // The queue is bounded: answers and credit by their limit, stdin by its replies.
        match &linked {
            None => start_thread("iof-down", move || send(pipe, &frames))?,
            Some(linked) => {
                linked.start_writing((pipe, CarrierNumber::default()), &carrier)?;
                let linked = Arc::clone(linked);
                start_thread("iof-down", move || linked.send_all(&frames))?;
            }
        }
        let edge = Edge { down: Arc::new(down), front, carrier, linked };
        let receiving = Receiving {
            nspace: remote.nspace.clone(),
            node: node.clone(),
            number,
            remote: Arc::downgrade(remote),
            engine: Arc::downgrade(engine),
            front: Arc::clone(&edge.front),
            down: Arc::downgrade(&edge.down),
            carrier: Arc::clone(&edge.carrier),
            linked: edge.linked.clone(),
            events: events.clone(),
        };
        start_thread("iof-up", move || receiving.run(up))?;
        Ok(edge)
    }
}

/// Queues an answer to an agent. It is lost if the edge has ended.
fn send_answer(down: &Weak<FrameSender>, frames: Vec<u8>, answer: Arc<()>) {
    if let Some(down) = down.upgrade() {
        drop(down.send(Down { _answer: Some(answer), ..frames.into() }));
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
        let has_failed = lock(&self.front).has_failed();
        self.linked.as_ref().filter(|linked| !has_failed && linked.is_replaceable())
    }

    /// Tells that the node is lost with the edge, unless it was over or given up: whatever follows has
    /// no meaning.
    fn end(&self, result: Result<(), String>) {
        let Some(broken) = lock(&self.front).cut() else { return };
        let reason = match result {
            Ok(()) => ended(&self.carrier),
            Err(reason) => {
                // The agent ends its ranks when its edge ends.
                self.linked.iter().for_each(|linked| linked.cut_off());
                signal_group(&self.carrier, Signal::TERM);
                reason
            }
        };
        self.tell(NodeEvent::Lost { reason, broken });
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
            let refused = |error: EdgeError| format!("its agent is cut off: {error}");
            while let Some(frame) = decoder.decode().map_err(|error| refused(error.into()))? {
                if let (Some(linked), Frame::Ack { received }) = (&self.linked, &frame) {
                    linked.link.acknowledged(*received).map_err(refused)?;
                    continue;
                }
                let event = lock(&self.front).receive(&frame, now);
                self.handle(event.map_err(refused)?)?;
            }
        }
    }

    fn handle(&self, event: FrontEvent<'_>) -> Result<(), String> {
        match event {
            FrontEvent::None => {}
            FrontEvent::Greeted => self.tell(NodeEvent::Greeted),
            FrontEvent::Record { stream, time, bytes } => self.deliver(stream, time, bytes)?,
            FrontEvent::Gap { stream, end, .. } => {
                self.pass_on(stream, Vec::new(), &[Info::new(key::IOF_OFFSET, end)], || {})?;
            }
            FrontEvent::End(stream) => {
                self.pass_on(stream, Vec::new(), &[Info::new(key::PMIX_IOF_COMPLETE, true)], || {})?;
            }
            // The front end's end of the node has noted the totals.
            FrontEvent::Message(ToFrontEnd::Produced(_)) => {}
            FrontEvent::Message(ToFrontEnd::Link(address)) => {
                self.linked.iter().for_each(|linked| linked.set_address(address.clone()));
            }
            FrontEvent::Message(ToFrontEnd::Log { call, log }) => self.log(call, &log),
            FrontEvent::Message(message) => {
                if let (ToFrontEnd::Started { pids }, Some(remote)) = (&message, self.remote.upgrade()) {
                    remote.note_pids(self.number, pids);
                    self.announce()?;
                }
                self.tell(NodeEvent::Message(message));
            }
        }
        Ok(())
    }

    /// Makes the ranks of a node known to the engine, so that tools can push to them before they
    /// write. Called before what the node sends next, which may be a message of such a rank.
    fn announce(&self) -> Result<(), String> {
        for rank in &self.node.ranks {
            for channel in [Channel::Stdout, Channel::Stderr, Channel::Stddiag] {
                self.pass_on(StreamKey { rank: *rank, channel }, Vec::new(), &[], || {})?;
            }
        }
        Ok(())
    }

    /// Logs a message of a tool on a node, and answers when that is done.
    fn log(&self, call: u64, log: &Log) {
        let (down, counted) = (self.down.clone(), lock(&self.front).answer());
        let answer = move |failure: Option<LogFailure>| {
            let cut = |failure: LogFailure| LogFailure { reason: cut_text(&failure.reason), ..failure };
            let logged = ToAgent::Logged { call, failure: failure.map(cut) };
            // With a reason that was cut, the message is within its limits.
            send_answer(&down, logged.frame().unwrap_or_default(), counted.clone());
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

    fn tell(&self, event: NodeEvent) {
        // The command may have decided to end.
        let _ = self.events.send((self.number, event));
    }

    /// Puts bytes into the ring of their stream, and gives credit when they are there.
    fn deliver(&self, stream: StreamKey, time: u64, bytes: &[u8]) -> Result<(), String> {
        let time = (time != 0).then(|| Info::new(key::IOF_READ_TIME, time));
        let (front, down, length) = (Arc::clone(&self.front), self.down.clone(), bytes.len());
        let taken = move || give_credit(&front, &down, stream.channel, length);
        self.pass_on(stream, bytes.to_vec(), time.as_slice(), taken)
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
fn give_credit(front: &Mutex<FrontEnd>, down: &Weak<FrameSender>, channel: Channel, length: usize) {
    let mut front = lock(front);
    if let Some(header) = front.taken(channel, length).and_then(|credit| credit.header()) {
        send_answer(down, header.to_vec(), front.answer());
    }
}
