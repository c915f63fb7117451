//! One connected tool: its socket, what waits to be sent to it, what it reads.
//!
//! Everything that comes from it is taken for hostile. It costs the engine one [`Peer`] with
//! bounded buffers; when it breaks the protocol it loses its connection, and nobody else notices.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::Instant;

use iof_capture::{PushId, RoomBell, SourceId};
use iof_proto::limits::MAX_DEFERRED_BYTES;
use iof_proto::{
    DecodeError, Decoder, EncodeError, Failure, FromTool, Message, PROTOCOL_VERSION, SlowTargets, Status,
    ToTool, encode, socket,
};
use iof_shm_ring::{Bell, Inlet, ReaderPage, Ring, Ringer};
use nix::errno::Errno;

use crate::backlog::{Backlog, Item, Key};
use crate::client::Client;
use crate::demand::Ticket;
use crate::in_flight::{Budget, Departed, InFlight};
use crate::incoming::Incoming;
use crate::linger::AtEnd;
use crate::pulls::Pull;
use crate::registrations::Registration;
use crate::stream_options::StreamOptions;

/// Answers that wait for a tool before the engine defers its requests. What it is told unasked does
/// not count: of that there is no more than it registered for.
const MAX_ANSWERS_WAITING: usize = 64;
/// The same for their bytes.
const MAX_BYTES_WAITING: usize = 256 * 1024;

/// A ring that the tool reads.
pub(crate) struct Reading {
    pub source: SourceId,
    pub handler: u32,
    pub options: StreamOptions,
    /// The slot of the generation before, until the tool has left it for certain.
    pub old_slot: Option<u32>,
    /// As long as the stream knows this reader.
    pub ring: Weak<Ring>,
    /// The ring was sent to the tool.
    pub sent: bool,
    /// How many bytes the source had produced where the registration begins.
    pub begin: u64,
    /// How many bytes the tool misses if it never gets the ring; `None` until the stream is
    /// forgotten.
    pub unread: Option<u64>,
}

impl Reading {
    /// Returns whether the tool can have read the ring to its end, and the stream goes on in
    /// another.
    pub(crate) fn may_follow(&self) -> bool {
        self.sent && self.ring.upgrade().is_some_and(|ring| ring.is_sealed())
    }
}

/// Something on its way to the tool.
pub(crate) struct Outgoing {
    pub frame: Vec<u8>,
    pub sent: usize,
    with: With,
    /// It is an answer.
    answers: bool,
    /// It tells of room for this push.
    room_of: Option<u32>,
    /// It announces the ring of the reading at this slot.
    ring_at: Option<u32>,
    /// What it is for the backlog.
    pub item: Item,
}

impl Outgoing {
    /// What the tool misses under `key`, encoded when it is sent.
    pub(crate) fn missed(key: Key) -> Outgoing {
        Outgoing {
            frame: Vec::new(),
            sent: 0,
            with: With::Nothing,
            answers: false,
            room_of: None,
            ring_at: None,
            item: Item::Missed(key),
        }
    }
}

/// The descriptors that go with the first byte of a message.
enum With {
    Nothing,
    Ring(Arc<Ring>),
    Inlet(Arc<Inlet>),
    Welcome { page: Arc<ReaderPage>, bell: Bell, room: Option<Ringer> },
}

impl With {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            With::Nothing => Vec::new(),
            With::Ring(ring) => ring.as_fd().into_iter().collect(),
            With::Inlet(inlet) => vec![inlet.as_fd()],
            With::Welcome { page, bell, room } => {
                page.as_fd().into_iter().chain([bell.as_fd()]).chain(room.as_ref().map(AsFd::as_fd)).collect()
            }
        }
    }
}

/// Why a tool is let go.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DisconnectReason {
    #[error("it closed the connection")]
    Closed,
    #[error("its socket: {0}")]
    Socket(#[from] io::Error),
    #[error(transparent)]
    Garbled(#[from] DecodeError),
    #[error("it sent {0}")]
    Unexpected(&'static str),
}

/// How far [`Peer::flush`] came.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Flushed {
    /// Nothing waits, or it waits for the tool to read.
    Waits,
    /// The kernel has no memory: try again in a moment.
    Retry,
    /// The kernel has too many descriptors on their way: try again in a moment.
    Crowded,
    /// It is the turn of others, and there may be more to serve.
    More,
}

/// Whether a tool has asked for `message`.
fn is_answer(message: &ToTool) -> bool {
    match message {
        ToTool::Pulled { .. }
        | ToTool::Deregistered { .. }
        | ToTool::Answer { .. }
        | ToTool::PushBegun { .. }
        | ToTool::SlowTargets { .. }
        | ToTool::Logged { .. }
        | ToTool::Pushed { .. } => true,
        ToTool::Welcome { .. }
        | ToTool::Refused { .. }
        | ToTool::Ring { .. }
        | ToTool::Announced { .. }
        | ToTool::JobEnded { .. }
        | ToTool::Missed { .. }
        // One for each push at most.
        | ToTool::Room { .. } => false,
    }
}

/// Whether a tool waits for an answer to `message`.
fn is_request(message: &FromTool) -> bool {
    match message {
        FromTool::Pull { .. }
        | FromTool::Deregister { .. }
        | FromTool::Query { .. }
        | FromTool::Push { .. }
        | FromTool::SlowTargets { .. }
        | FromTool::Log { .. } => true,
        FromTool::Hello { .. }
        | FromTool::Follow { .. }
        | FromTool::Drained { .. }
        | FromTool::Fill { .. } => false,
    }
}

/// Whether a send that failed so may work in a moment: the kernel has no memory. The tool is not to
/// suffer from that: while it is connected, nothing that it borrows is overwritten.
fn is_for_now(error: &io::Error) -> bool {
    let now = [Errno::ENOBUFS, Errno::ENOMEM].map(|errno| Some(errno as i32));
    now.contains(&error.raw_os_error())
}

/// Whether a send failed so because the tool reads no more: it has gone, and what it said before is
/// still to be heard.
fn is_deaf(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// One connected tool.
pub(crate) struct Peer {
    incoming: Incoming,
    /// Requests, as they came, that wait until the tool has read answers to those before.
    deferred: VecDeque<Vec<u8>>,
    /// Their bytes.
    deferred_bytes: usize,
    pub outgoing: VecDeque<Outgoing>,
    /// What it has not read of forgotten jobs.
    pub backlog: Backlog,
    /// Outgoing answers, and their bytes.
    answers: usize,
    answer_bytes: usize,
    in_flight: InFlight,
    /// When it took something of what was sent to it the last time.
    took: Instant,
    /// When it connected, or asked for something the last time.
    asked: Instant,
    pub name: String,
    /// The process at the other end.
    pub client: Client,
    /// It belongs to the embedder.
    pub own: bool,
    /// It may hold sources back that wait for who may.
    pub may_block: bool,
    pub page: Arc<ReaderPage>,
    /// By which it tells of room, if it may hold sources back and is not the embedder's.
    pub room: Option<RoomBell>,
    pub registrations: BTreeMap<u32, Registration>,
    /// What these, and the pulls that wait for the host, count for in its budget, in processes.
    pub procs: usize,
    /// Pulls that wait for the host's word.
    pub waiting: BTreeMap<Ticket, Pull>,
    pub last_handler: u32,
    /// Its pushes under way, by its numbers for them.
    pub pushes: BTreeMap<u32, PushId>,
    pub last_push: u32,
    /// By slot.
    pub readings: HashMap<u32, Reading>,
    /// The slots of these, by stream and registration.
    pub slots: HashMap<(SourceId, u32), u32>,
    /// As long as it is here: what it alone wants need not be begun any more once it has gone.
    pub here: Arc<()>,
}

impl Peer {
    pub(crate) fn new(
        incoming: Incoming,
        client: Client,
        name: String,
        own: bool,
        may_block: bool,
        page: ReaderPage,
    ) -> Peer {
        let now = Instant::now();
        Peer {
            incoming,
            deferred: VecDeque::new(),
            deferred_bytes: 0,
            outgoing: VecDeque::new(),
            backlog: Backlog::default(),
            answers: 0,
            answer_bytes: 0,
            in_flight: InFlight::default(),
            took: now,
            asked: now,
            name,
            client,
            own,
            may_block,
            page: Arc::new(page),
            room: None,
            registrations: BTreeMap::new(),
            procs: 0,
            waiting: BTreeMap::new(),
            last_handler: 0,
            pushes: BTreeMap::new(),
            last_push: 0,
            readings: HashMap::new(),
            slots: HashMap::new(),
            here: Arc::new(()),
        }
    }

    pub(crate) fn socket(&self) -> &UnixStream {
        self.incoming.socket()
    }

    /// Returns the process behind it, for which limits count; `None` if it is the embedder's own.
    pub(crate) fn counted(&self) -> Option<Client> {
        (!self.own).then_some(self.client)
    }

    /// The socket became readable (edge-triggered).
    pub(crate) fn now_readable(&mut self) {
        self.incoming.now_readable();
    }

    /// Returns the next message that can be served. While many answers wait for the tool, its
    /// requests are deferred, and what it says that has no answer is still heard.
    pub(crate) fn receive(&mut self) -> Result<Option<FromTool>, DisconnectReason> {
        loop {
            let has_unread = self.answers >= MAX_ANSWERS_WAITING || self.answer_bytes >= MAX_BYTES_WAITING;
            if !has_unread && let Some(frame) = self.deferred.pop_front() {
                self.deferred_bytes = self.deferred_bytes.saturating_sub(frame.len());
                return Ok(Decoder::new().decode(&mut frame.as_slice())?);
            }
            if self.deferred_bytes >= MAX_DEFERRED_BYTES {
                return Ok(None);
            }
            let message = match self.incoming.next() {
                // It reads no answers any more, and what it asked for is still done.
                Err(DisconnectReason::Closed) if !self.deferred.is_empty() => {
                    self.drop_outgoing();
                    continue;
                }
                arrived => arrived?,
            };
            let Some(message) = message else { return Ok(None) };
            if is_request(&message) {
                self.asked = Instant::now();
            }
            if !(has_unread && is_request(&message)) {
                return Ok(Some(message));
            }
            let frame = encode(&message)
                .map_err(|_| DisconnectReason::Unexpected("a message that breaks its limits"))?;
            self.deferred_bytes = self.deferred_bytes.saturating_add(frame.len());
            self.deferred.push_back(frame);
        }
    }

    /// Returns how many descriptors it has not received, as far as is known.
    pub(crate) fn fds_in_flight(&self) -> usize {
        self.in_flight.fds()
    }

    /// Ends the connection. What is left of it has to be kept for as long as descriptors are in
    /// flight.
    pub(crate) fn depart(self) -> Option<Departed> {
        Departed::new(self.incoming.into_socket(), self.in_flight, self.client)
    }

    /// Lets it in, with its doorbell and, if it may hold sources back, what tells the engine of
    /// room.
    pub(crate) fn welcome(&mut self, bell: Bell, room: Option<Ringer>) {
        let engine_pid = std::process::id();
        let message = ToTool::Welcome { version: PROTOCOL_VERSION, engine_pid, may_block: self.may_block };
        let with = With::Welcome { page: Arc::clone(&self.page), bell, room };
        self.queue(&message, with);
    }

    pub(crate) fn answer(&mut self, message: &ToTool) {
        self.queue(message, With::Nothing);
    }

    /// Tells of room for a push, in place of what was to be told of it and has not gone out.
    pub(crate) fn tell_room(&mut self, push: u32, position: u64) {
        self.outgoing.retain(|out| out.room_of != Some(push) || out.sent > 0);
        self.answer(&ToTool::Room { push, position });
    }

    pub(crate) fn answer_with_inlet(&mut self, message: &ToTool, inlet: Arc<Inlet>) {
        self.queue(message, With::Inlet(inlet));
    }

    pub(crate) fn announce(&mut self, message: &ToTool, ring: Arc<Ring>) {
        self.queue(message, With::Ring(ring));
    }

    /// Drops the rings at `slots`, whose readings have ended, that were not sent. The tool never
    /// maps them.
    pub(crate) fn drop_rings(&mut self, slots: &HashSet<u32>) {
        if slots.is_empty() {
            return;
        }
        self.outgoing.retain_mut(|out| {
            let ended = out.ring_at.take_if(|slot| slots.contains(slot)).is_some();
            // The tool waits for the rest of a message that it has a part of.
            !ended || out.sent > 0
        });
    }

    fn queue(&mut self, message: &ToTool, with: With) {
        debug_assert_eq!(with.fds().len(), usize::from(message.fds()));
        match encode(message) {
            Ok(frame) => {
                let answers = is_answer(message);
                if answers {
                    self.answers = self.answers.saturating_add(1);
                    self.answer_bytes = self.answer_bytes.saturating_add(frame.len());
                }
                let room_of = if let ToTool::Room { push, .. } = message { Some(*push) } else { None };
                let ring_at = if let ToTool::Ring { slot, .. } = message { Some(*slot) } else { None };
                let item = Item::of(message);
                self.backlog.queued(&item);
                self.outgoing.push_back(Outgoing { frame, sent: 0, with, answers, room_of, ring_at, item });
            }
            Err(error) => self.queue_refusal(message, &error),
        }
    }

    /// Says instead of an answer beyond its message's cap that it is.
    fn queue_refusal(&mut self, message: &ToTool, error: &EncodeError) {
        tracing::warn!(tool = self.name, %error, "an answer is too long to send");
        let failure =
            || Failure { status: Status::ERR_OUT_OF_RESOURCE, reason: format!("the answer is {error}") };
        let instead = match message {
            ToTool::Answer { request, result: Ok(_) } => {
                ToTool::Answer { request: *request, result: Err(failure()) }
            }
            ToTool::PushBegun { request, .. } => {
                ToTool::PushBegun { request: *request, result: Err(failure()) }
            }
            ToTool::SlowTargets { request, slow } => ToTool::SlowTargets {
                request: *request,
                slow: SlowTargets { position: slow.position, targets: Vec::new() },
            },
            // Half as often as it takes, down to none.
            ToTool::Pushed { push, report } if !report.partial.is_empty() => {
                let mut report = report.clone();
                report.partial.truncate(report.partial.len() / 2);
                ToTool::Pushed { push: *push, report }
            }
            _ => return,
        };
        self.queue(&instead, With::Nothing);
    }

    /// Sends what waits, as far as the socket takes it and `budget` allows, of whose shared part
    /// all tools use `used`.
    pub(crate) fn flush(&mut self, budget: Budget, used: &mut usize) -> Result<Flushed, DisconnectReason> {
        let of_pool = |fds| if self.own { 0 } else { budget.of_pool(fds) };
        let known = of_pool(self.in_flight.fds());
        self.in_flight.look(self.incoming.socket())?;
        *used = used.saturating_sub(known.saturating_sub(of_pool(self.in_flight.fds())));
        while let Some(out) = self.outgoing.front_mut() {
            if let Item::Missed(key) = &out.item
                && out.frame.is_empty()
            {
                out.frame = self.backlog.tell(key).unwrap_or_default();
            }
            let fds = if out.sent == 0 { out.with.fds() } else { Vec::new() };
            let known = self.in_flight.fds();
            let after = known.saturating_add(fds.len());
            if !fds.is_empty() && after > budget.share(known, *used, self.own) {
                break;
            }
            match socket::send(self.incoming.socket(), out.frame.get(out.sent..).unwrap_or_default(), &fds) {
                Ok(sent) => {
                    self.in_flight.sent(fds.len());
                    *used = used.saturating_add(of_pool(after).saturating_sub(of_pool(known)));
                    out.sent = out.sent.saturating_add(sent);
                    self.took = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.raw_os_error() == Some(Errno::ETOOMANYREFS as i32) => {
                    return Ok(Flushed::Crowded);
                }
                Err(error) if is_for_now(&error) => return Ok(Flushed::Retry),
                Err(error) if is_deaf(&error) => {
                    self.drop_outgoing();
                    break;
                }
                Err(error) => return Err(error.into()),
            }
            if out.sent >= out.frame.len() {
                if out.answers {
                    self.answers = self.answers.saturating_sub(1);
                    self.answer_bytes = self.answer_bytes.saturating_sub(out.frame.len());
                }
                if let Some(reading) = out.ring_at.and_then(|slot| self.readings.get_mut(&slot)) {
                    self.backlog.ring_sent(reading);
                    reading.sent = true;
                }
                self.backlog.sent(&out.item);
                self.outgoing.pop_front();
            }
        }
        Ok(Flushed::Waits)
    }

    /// Drops what was to be sent.
    fn drop_outgoing(&mut self) {
        self.outgoing.clear();
        self.backlog.nothing_is_sent();
        (self.answers, self.answer_bytes) = (0, 0);
    }

    /// What its registrations, and its pulls that wait, hold of the host's.
    pub(crate) fn tickets(&self) -> impl Iterator<Item = Ticket> {
        let registered = self.registrations.values().filter_map(|registration| registration.ticket);
        registered.chain(self.waiting.keys().copied())
    }

    /// Returns what an engine that ends has to know of this tool.
    pub(crate) fn at_end(&self) -> AtEnd {
        let asked = (!self.own).then_some(self.asked);
        AtEnd { has_unsent: !self.outgoing.is_empty(), took: self.took, asked }
    }
}

#[cfg(test)]
mod tests;
