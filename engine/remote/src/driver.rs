//! The thread that drives all edges of the front end: it receives, writes what a carrier did not take
//! at once, replaces carriers, and reaps them.

pub mod driven;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fs::File;
use std::hint::black_box;
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, TryRecvError, unbounded};
use iof_capture::Signal;
use iof_nodes::proof::Proven;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use self::driven::Driven;
use crate::carrier::{Carrier, CarrierEnd, MAX_STARTS};
use crate::carriers::Carriers;
use crate::dials::DialsEnd;
use crate::edge::Edge;
use crate::follower::Follower;
use crate::thread::start_thread;

/// The free memory that the allocator keeps for records, in bytes: those of a window of both
/// bundles.
const KEPT_MEMORY: usize = 2 << 20;

/// The number of reads from one carrier before others have their turn.
const READS_PER_TURN: usize = 4;

/// The token of what wakes the driver, and the first one of the end of a carrier. Below are those of
/// the files of each edge's carrier: four times the number of the edge, and one of these.
const WAKER: Token = Token(usize::MAX);
const FIRST_CARRIER: usize = usize::MAX / 2;
const UP: usize = 0;
const DOWN: usize = 1;
const ERRORS: usize = 2;

/// A message to the driver.
pub enum Command {
    /// Drives another edge.
    Add(Box<Driven>),
    /// The edge with this number has changed.
    Look(usize),
    /// All ranks run: follows the nodes.
    Follow(Box<Follower>),
    /// An agent has connected, and has proved to be that of its node.
    Dialed(TcpStream, Proven),
    /// A carrier that replaces another one was started, or could not be.
    Started(usize, io::Result<Carrier>),
}

/// Takes commands for the driver, which ends when this is dropped and no edge is left.
pub struct DriverInbox {
    /// `None` while this is dropped.
    commands: Option<Sender<Command>>,
    waker: Arc<Waker>,
}

/// The driver, but for its edges.
pub struct EdgeDriver {
    registry: Arc<Registry>,
    inbox: Weak<DriverInbox>,
    /// The driver is woken for the last time when the inbox is gone.
    _waker: Arc<Waker>,
    pub carriers: Carriers,
    /// The listener for agents that connect themselves, while any may do so.
    dials: Option<DialsEnd>,
    /// Follows the nodes once all ranks run, until all have ended.
    follower: Option<Box<Follower>>,
    /// The ends of carriers that are not reaped, by token, with the numbers of their edges.
    unreaped: BTreeMap<usize, (CarrierEnd, Vec<usize>)>,
    next_token: usize,
    /// The edges to look at.
    changed: VecDeque<usize>,
    /// The number of attempts that are being made to replace carriers, and the edges that wait for
    /// their turn.
    attempts: usize,
    waiting: VecDeque<usize>,
}

impl DriverInbox {
    /// Begins to drive an edge. Returns the handle of it.
    pub fn drive(self: &Arc<Self>, edge: Driven) -> Edge {
        let (number, ends, driver) = (edge.number(), Arc::clone(&edge.ends), Arc::clone(self));
        self.send(Command::Add(Box::new(edge)));
        Edge::new(ends, move || driver.send(Command::Look(number)))
    }

    pub fn send(&self, command: Command) {
        // The driver is there as long as its inbox.
        let _ = self.commands.as_ref().map(|commands| commands.send(command));
        let _ = self.waker.wake();
    }
}

impl Drop for DriverInbox {
    fn drop(&mut self) {
        self.commands = None;
        let _ = self.waker.wake();
    }
}

impl EdgeDriver {
    /// Starts the thread, for edges whose carriers are replaced by `carriers`.
    ///
    /// # Errors
    /// The process can have no further file or thread.
    pub fn start(carriers: &Carriers) -> io::Result<Arc<DriverInbox>> {
        let poll = Poll::new()?;
        let (commands, queue) = unbounded();
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let inbox = Arc::new(DriverInbox { commands: Some(commands), waker: Arc::clone(&waker) });
        let dialed = Arc::downgrade(&inbox);
        let dials = carriers.dials().map(|dials| {
            dials.start(move |stream, proven| {
                let _ = dialed.upgrade().map(|inbox| inbox.send(Command::Dialed(stream, proven)));
            })
        });
        let driver =
            EdgeDriver::new(&poll, (Arc::downgrade(&inbox), waker), carriers.clone(), dials.transpose()?)?;
        start_thread("iof-edges", move || driver.run(poll, &queue)).map_err(|error| error.0)?;
        Ok(inbox)
    }

    /// Creates a driver without edges, with its inbox and waker.
    fn new(
        poll: &Poll,
        (inbox, waker): (Weak<DriverInbox>, Arc<Waker>),
        carriers: Carriers,
        dials: Option<DialsEnd>,
    ) -> io::Result<EdgeDriver> {
        Ok(EdgeDriver {
            registry: Arc::new(poll.registry().try_clone()?),
            inbox,
            _waker: waker,
            carriers,
            dials,
            follower: None,
            unreaped: BTreeMap::new(),
            next_token: FIRST_CARRIER,
            changed: VecDeque::new(),
            attempts: 0,
            waiting: VecDeque::new(),
        })
    }

    fn run(mut self, mut poll: Poll, queue: &Receiver<Command>) {
        keep_freed_memory();
        let mut events = Events::with_capacity(1024);
        let mut edges = BTreeMap::<usize, Driven>::new();
        let (mut timers, mut readable) = (BTreeSet::<(Instant, usize)>::new(), BTreeSet::<usize>::new());
        loop {
            let now = Instant::now();
            let close = self.follower.as_ref().and_then(|follower| follower.due());
            let timer = timers.first().map(|(time, _)| *time).into_iter().chain(close).min();
            let timer = timer.map(|time| time.saturating_duration_since(now));
            let timeout = if readable.is_empty() { timer } else { Some(Duration::ZERO) };
            if poll.poll(&mut events, timeout).is_err() {
                // Such as after this process was stopped, when all timers are due: what has arrived
                // meanwhile comes first.
                continue;
            }
            for event in &events {
                match event.token() {
                    WAKER => {}
                    Token(token @ FIRST_CARRIER..) => self.reap(token),
                    Token(token) => {
                        let number = token >> 2;
                        let Some(edge) = edges.get_mut(&number) else { continue };
                        if token & 3 == DOWN {
                            let is_closed = event.is_write_closed() || event.is_error();
                            edge.ends.state().take_event(is_closed);
                            self.changed.push_back(number);
                            continue;
                        }
                        edge.has_text |= token & 3 == ERRORS;
                        edge.is_ending |= token & 3 == UP && event.is_read_closed();
                        readable.insert(number);
                    }
                }
            }
            let is_closed = self.take_commands(queue, &mut edges);
            let now = Instant::now();
            readable.retain(|number| {
                let mut reads = 0..READS_PER_TURN;
                let edge = edges.get_mut(number);
                let is_left =
                    edge.is_some_and(|edge| reads.all(|_| edge.read_text() | edge.read(&mut self, now)));
                self.changed.push_back(*number);
                is_left
            });
            let due = timers.iter().take_while(|(time, _)| *time <= now).map(|(_, number)| *number);
            self.changed.extend(due);
            while let Some(number) = self.changed.pop_front() {
                let Some(edge) = edges.get_mut(&number) else { continue };
                edge.timer.take().map(|timer| timers.remove(&(timer, number)));
                edge.look(&mut self, now);
                if edge.is_over() {
                    edges.remove(&number);
                    continue;
                }
                edge.timer = edge.due();
                timers.extend(edge.timer.map(|timer| (timer, number)));
            }
            self.follower.take_if(|follower| follower.follow(now));
            if is_closed && edges.is_empty() && self.unreaped.is_empty() {
                return;
            }
        }
    }

    /// Does what the driver was told. Returns whether nothing more follows.
    fn take_commands(&mut self, queue: &Receiver<Command>, edges: &mut BTreeMap<usize, Driven>) -> bool {
        loop {
            match queue.try_recv() {
                Ok(Command::Add(mut edge)) => {
                    let number = edge.number();
                    edge.begin(self);
                    edges.insert(number, *edge);
                    self.changed.push_back(number);
                }
                Ok(Command::Follow(follower)) => {
                    self.follower = Some(follower);
                    // All agents have connected, and none connects again.
                    if !edges.values().any(Driven::outlives_carriers) {
                        self.dials = None;
                    }
                }
                Ok(Command::Dialed(stream, proven)) => {
                    let number = usize::try_from(proven.node).unwrap_or(usize::MAX);
                    let dialed = edges.get_mut(&number).map(|edge| edge.dialed(self, stream, &proven));
                    if let Some(Err(error)) = dialed {
                        tracing::debug!("a connection of node {number} can't be used: {error}");
                    }
                    self.changed.push_back(number);
                }
                Ok(Command::Look(number)) => self.changed.push_back(number),
                Ok(Command::Started(number, carrier)) => {
                    let _ = carrier.as_ref().map(|carrier| self.reap_later(&carrier.end, number));
                    match edges.get_mut(&number) {
                        Some(edge) => edge.attempt_started(self, carrier),
                        None => drop(carrier.map(|carrier| carrier.end.signal(Signal::KILL))),
                    }
                    self.changed.push_back(number);
                }
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => return true,
            }
        }
    }

    /// Receives the events of a carrier of the edge with this number. The carrier's files block no
    /// longer.
    pub fn watch(&mut self, number: usize, [up, down, errors]: [Option<&File>; 3]) -> io::Result<()> {
        let (readable, writable) = (Interest::READABLE, Interest::WRITABLE);
        for (file, kind, interest) in [(up, UP, readable), (down, DOWN, writable), (errors, ERRORS, readable)]
        {
            let Some(file) = file else { continue };
            let token = number << 2 | kind;
            let flags = OFlag::from_bits_retain(fcntl(file.as_fd(), FcntlArg::F_GETFL)?);
            fcntl(file.as_fd(), FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
            self.registry.register(&mut SourceFd(&file.as_raw_fd()), Token(token), interest)?;
        }
        Ok(())
    }

    /// Returns the registration of the input of the carriers of the edge with this number.
    pub fn watched_input(&self, number: usize) -> (Arc<Registry>, Token) {
        (Arc::clone(&self.registry), Token(number << 2 | DOWN))
    }

    /// Asks for an event when the output of a carrier is readable, also if it is now: a read that found
    /// nothing has used up the edge.
    pub fn await_output(&self, number: usize, up: &File) {
        let _ = self.registry.reregister(
            &mut SourceFd(&up.as_raw_fd()),
            Token(number << 2 | UP),
            Interest::READABLE,
        );
    }

    /// Receives no further events of the output of a carrier.
    pub fn forget(&self, up: &File) {
        let _ = self.registry.deregister(&mut SourceFd(&up.as_raw_fd()));
    }

    /// Reaps a carrier of the edge with this number when it has ended.
    pub fn reap_later(&mut self, carrier: &CarrierEnd, number: usize) {
        let (Some(pidfd), token) = (carrier.pidfd(), self.next_token) else { return };
        self.next_token = token.wrapping_add(1);
        // Otherwise it is a zombie until this process ends.
        match self.registry.register(&mut SourceFd(&pidfd), Token(token), Interest::READABLE) {
            Ok(()) => drop(self.unreaped.insert(token, (carrier.clone(), vec![number]))),
            // It has started the agents of other edges, too.
            Err(_) => {
                let same = self.unreaped.values_mut().find(|(other, _)| other.is_same(carrier));
                same.into_iter().for_each(|(_, numbers)| numbers.push(number));
            }
        }
    }

    fn reap(&mut self, token: usize) {
        let Some((carrier, numbers)) = self.unreaped.get(&token) else { return };
        if carrier.reap() {
            self.changed.extend(numbers);
            let pidfd = carrier.pidfd();
            let _ = pidfd.map(|pidfd| self.registry.deregister(&mut SourceFd(&pidfd)));
            self.unreaped.remove(&token);
        }
    }

    /// Returns whether an edge may make an attempt to replace its carrier. If not, it is looked at when
    /// it may.
    pub fn take_turn(&mut self, number: usize) -> bool {
        if self.attempts < MAX_STARTS {
            self.attempts = self.attempts.saturating_add(1);
            return true;
        }
        if !self.waiting.contains(&number) {
            self.waiting.push_back(number);
        }
        false
    }

    /// Ends the turn of an edge.
    pub fn end_turn(&mut self) {
        self.attempts = self.attempts.saturating_sub(1);
        self.changed.append(&mut self.waiting);
    }

    /// Starts a carrier that reaches the agent which listens at `path`, in a thread: it may block.
    pub fn start_carrier(
        &self,
        (number, host): (usize, &str),
        path: OsString,
        is_silent: bool,
    ) -> io::Result<()> {
        let (carriers, host) = (self.carriers.clone(), host.to_owned());
        // No handle of the edge is left.
        let Some(inbox) = self.inbox.upgrade() else { return Err(ErrorKind::Interrupted.into()) };
        start_thread("iof-attach", move || {
            let carrier = carriers.start(&host, Some(path.as_ref()), is_silent, None);
            inbox.send(Command::Started(number, carrier));
        })
        .map_err(|error| error.0)
    }
}

/// Lets the allocator keep the memory of records for the next ones. By default, glibc returns what
/// is free beyond 128 KiB to the kernel, and each page of it costs a page fault when it is used
/// again. When a larger block is freed, glibc adapts: it keeps twice the size of that block
/// (`M_MMAP_THRESHOLD` in mallopt(3)).
fn keep_freed_memory() {
    drop(black_box(vec![0u8; KEPT_MEMORY / 2]));
}
