//! The front end's edge to one node: a carrier, a thread that receives and one that sends.

use std::io::{ErrorKind, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, unbounded};
use iof_engine::{Engine, Signal as RankSignal};
use iof_nodes::{BrokenEnd, Decoder, EdgeError, Frame, FrontEnd, FrontEvent, StreamKey, ToAgent, ToFrontEnd};
use iof_proto::directive::key;
use iof_proto::{Channel, Info, Nspace, Proc};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::carrier::Carrier;
use super::hosts::Node;
use super::remote::Remote;
use crate::error::Failure;
use crate::threads::start_thread;

/// How long a carrier may take to exit: after it has ended its output, and after SIGTERM.
pub(super) const EXIT_LIMIT: Duration = Duration::from_millis(500);

/// What arrives from a node.
pub enum NodeEvent {
    Message(ToFrontEnd),
    /// The edge has ended before its end was due.
    Lost {
        reason: String,
        broken: BrokenEnd,
    },
    /// The ranks of all nodes were sent this signal.
    Signalled(RankSignal),
}

/// An event of the node with this number.
pub type NumberedEvent = (usize, NodeEvent);

/// The edge to one node.
#[derive(Clone)]
pub struct Edge {
    /// Frames to send. The thread that sends ends with the last sender.
    down: Arc<Sender<Vec<u8>>>,
    end: Arc<Mutex<FrontEnd>>,
    carrier: Arc<Mutex<Child>>,
}

/// What the thread that receives needs.
struct Receiving {
    nspace: Nspace,
    remote: Weak<Remote>,
    engine: Weak<Engine>,
    end: Arc<Mutex<FrontEnd>>,
    down: Weak<Sender<Vec<u8>>>,
    carrier: Arc<Mutex<Child>>,
    events: Sender<NumberedEvent>,
    node: usize,
}

impl Edge {
    /// Starts the threads of the edge to `node`, whose number is `number`.
    pub fn start(
        carrier: Carrier,
        (number, node): (usize, &Node),
        (remote, engine): (&Arc<Remote>, &Arc<Engine>),
        events: &Sender<NumberedEvent>,
    ) -> Result<Edge, Failure> {
        let Carrier { child, down: pipe, up } = carrier;
        let (down, frames) = unbounded::<Vec<u8>>();
        // The queue is bounded: credit by the windows, stdin by its replies.
        start_thread("iof-down", move || send(pipe, &frames))?;
        let end = Arc::new(Mutex::new(FrontEnd::new(&node.ranks)));
        let edge = Edge { down: Arc::new(down), end, carrier: Arc::new(Mutex::new(child)) };
        let receiving = Receiving {
            nspace: remote.nspace.clone(),
            remote: Arc::downgrade(remote),
            engine: Arc::downgrade(engine),
            end: Arc::clone(&edge.end),
            down: Arc::downgrade(&edge.down),
            carrier: Arc::clone(&edge.carrier),
            events: events.clone(),
            node: number,
        };
        start_thread("iof-up", move || receiving.run(up))?;
        edge.send_frame(&Frame::HELLO);
        Ok(edge)
    }

    /// Queues a message. It is lost if the edge has ended.
    pub fn send(&self, message: &ToAgent) -> Result<(), Failure> {
        let frame = message.frame().map_err(Failure::usage)?;
        drop(self.down.send(frame));
        Ok(())
    }

    /// Sends a signal to the carrier and what it has started on this node.
    pub(super) fn signal_carrier(&self, signal: Signal) {
        signal_group(&mut lock(&self.carrier), signal);
    }

    /// Ends the carrier of a job that does not start.
    pub(super) fn end_carrier(&self) {
        // One that still connects has no agent. It may have inherited a mask without SIGTERM.
        let has_agent = lock(&self.end).has_greeted();
        self.signal_carrier(if has_agent { Signal::SIGTERM } else { Signal::SIGKILL });
    }

    /// Returns what is known when the agent does not answer any more.
    pub(super) fn broken(&self) -> BrokenEnd {
        lock(&self.end).broken()
    }

    fn send_frame(&self, frame: &Frame<'_>) {
        drop(self.down.send(frame.header().into_iter().flatten().collect()));
    }
}

/// Writes frames until the edge is dropped or can't be written. The thread that receives notices that it
/// has ended.
fn send(mut pipe: ChildStdin, frames: &Receiver<Vec<u8>>) {
    for frame in frames {
        let written = pipe.write_all(&frame).and_then(|()| match frame.last() {
            Some(b'\n') | None => Ok(()),
            // Carriers may hold back what does not end in a newline.
            Some(_) => pipe.write_all(&Frame::Padding.header().unwrap_or_default()),
        });
        if written.is_err() {
            return;
        }
    }
}

impl Receiving {
    fn run(&self, up: ChildStdout) {
        let result = self.receive(up);
        let end = lock(&self.end);
        let (is_over, broken) = (end.is_over(), end.broken());
        drop(end);
        let reason = match result {
            // Whatever follows the end has no meaning.
            _ if is_over => return,
            Ok(()) => ended(&self.carrier),
            Err(reason) => {
                // The agent ends its ranks when its edge ends.
                signal_group(&mut lock(&self.carrier), Signal::SIGTERM);
                reason
            }
        };
        let _ = self.events.send((self.node, NodeEvent::Lost { reason, broken }));
    }

    /// Receives until the end of the carrier's output.
    ///
    /// # Errors
    /// The agent has broken a rule, or the output can't be taken.
    fn receive(&self, mut up: ChildStdout) -> Result<(), String> {
        let (mut decoder, mut piece) = (Decoder::default(), vec![0; 64 << 10]);
        let refused = |error: EdgeError| format!("its agent is cut off: {error}");
        loop {
            let length = match up.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(format!("cannot read from its carrier: {error}")),
            };
            decoder.receive(piece.get(..length).unwrap_or_default());
            let now = Instant::now();
            while let Some(frame) = decoder.decode().map_err(|error| refused(error.into()))? {
                let event = lock(&self.end).receive(&frame, now);
                match event.map_err(refused)? {
                    FrontEvent::None => {}
                    FrontEvent::Record { stream, time, bytes } => self.deliver(stream, time, bytes)?,
                    FrontEvent::Gap { stream, end, .. } => {
                        self.pass_on(stream, Vec::new(), &[Info::new(key::IOF_OFFSET, end)], || {})?;
                    }
                    FrontEvent::End(stream) => self.complete(stream)?,
                    // `FrontEnd` has noted the totals.
                    FrontEvent::Message(ToFrontEnd::Produced(_)) => {}
                    FrontEvent::Message(message) => {
                        if let (ToFrontEnd::Started { pids }, Some(remote)) =
                            (&message, self.remote.upgrade())
                        {
                            remote.note_pids(self.node, pids);
                        }
                        let _ = self.events.send((self.node, NodeEvent::Message(message)));
                    }
                }
            }
        }
    }

    /// Puts bytes into the ring of their stream, and gives credit when they are there.
    fn deliver(&self, stream: StreamKey, time: u64, bytes: &[u8]) -> Result<(), String> {
        let time = (time != 0).then(|| Info::new(key::IOF_READ_TIME, time));
        let (end, down, length) = (Arc::clone(&self.end), self.down.clone(), bytes.len());
        let taken = move || give_credit(&end, &down, stream.channel, length);
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
        engine.deliver(&source, channel, bytes, infos, taken).map_err(|error| error.to_string())
    }
}

/// Gives credit for bytes that are in their ring.
fn give_credit(end: &Mutex<FrontEnd>, down: &Weak<Sender<Vec<u8>>>, channel: Channel, length: usize) {
    let credit = lock(end).taken(channel, length);
    if let Some(header) = credit.and_then(|credit| credit.header())
        && let Some(down) = down.upgrade()
    {
        drop(down.send(header.to_vec()));
    }
}

/// Returns how a carrier has ended that has ended its output.
fn ended(carrier: &Mutex<Child>) -> String {
    let deadline = Instant::now() + EXIT_LIMIT;
    loop {
        match lock(carrier).try_wait() {
            Ok(Some(status)) => return format!("its carrier ended with {status}"),
            Ok(None) if Instant::now() < deadline => {}
            Ok(None) | Err(_) => break,
        }
        thread::sleep(Duration::from_millis(5));
    }
    signal_group(&mut lock(carrier), Signal::SIGTERM);
    "its carrier has closed its output".into()
}

/// Sends a signal to the process group of a carrier, which the carrier leads, unless the carrier has
/// ended.
fn signal_group(carrier: &mut Child, signal: Signal) {
    // The pid can't belong to another process: only these functions wait for the carrier, with its lock.
    if let (Ok(None), Ok(pid)) = (carrier.try_wait(), i32::try_from(carrier.id())) {
        let _ = killpg(Pid::from_raw(pid), signal);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
