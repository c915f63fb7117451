//! One connected tool: its socket, its outgoing messages and the rings that it reads.
//!
//! Every byte from a tool is treated as hostile. A tool costs the engine one [`Peer`] with bounded
//! buffers. A tool that breaks the protocol loses its connection, and nothing else is affected.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::Instant;

use iof_capture::{PushId, RoomBell, SourceId};
use iof_proto::limits::MAX_DEFERRED_BYTES;
use iof_proto::{
    DecodeError, Decoder, EncodeError, Failure, FromTool, PROTOCOL_VERSION, SlowTargets, Status, ToTool,
    encode, socket,
};
use iof_shm_ring::{Bell, Inlet, ReaderId, ReaderPage, Ring, Ringer};
use nix::errno::Errno;

use crate::client::Client;
use crate::demand::Ticket;
use crate::in_flight::{Budget, Departed, InFlight};
use crate::incoming::Incoming;
use crate::linger::LastActivity;
use crate::outgoing::{Attachment, Outgoing};
use crate::pulls::Pull;
use crate::registrations::Registration;
use crate::stream_options::StreamOptions;
use crate::unread::{QueuedItem, Unread};

/// The number of unsent answers from which on the engine defers a tool's requests. Unsolicited
/// messages do not count: their number is bounded by the tool's registrations.
const MAX_ANSWERS_WAITING: usize = 64;
/// The same limit for the answers' size, in bytes.
const MAX_BYTES_WAITING: usize = 256 * 1024;

/// A ring that the tool reads.
pub(crate) struct Reading {
    pub source: SourceId,
    pub handler: u32,
    pub options: StreamOptions,
    /// The id in the previous generation, until the tool has certainly left its slot.
    pub old_id: Option<ReaderId>,
    /// Alive for as long as the stream knows this reader.
    pub ring: Weak<Ring>,
    /// The ring was sent to the tool.
    pub sent: bool,
    /// How many bytes the source had produced at the position where the registration begins.
    pub begin: u64,
    /// How many bytes the tool misses if it never receives the ring; `None` until the job of the
    /// stream is removed.
    pub unread: Option<u64>,
}

impl Reading {
    /// Returns whether the tool may have read the ring to its end while the stream continues in
    /// another ring.
    pub(crate) fn may_follow(&self) -> bool {
        self.sent && self.ring.upgrade().is_some_and(|ring| ring.is_sealed())
    }
}

/// Why a tool is disconnected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DisconnectReason {
    #[error("the tool closed the connection")]
    Closed,
    #[error("socket error: {0}")]
    Socket(#[from] io::Error),
    #[error(transparent)]
    Garbled(#[from] DecodeError),
    #[error("protocol error: {0}")]
    Unexpected(&'static str),
}

/// The result of [`Peer::flush`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Flushed {
    /// No message is left, or the tool must read first.
    Waits,
    /// The kernel has no memory. Try again shortly.
    Retry,
    /// Too many descriptors are in flight. Try again shortly.
    Crowded,
    /// Other tools have their turn now, and there may be more to serve.
    More,
}

/// Returns whether a tool expects an answer to `message`.
fn is_request(message: &FromTool) -> bool {
    match message {
        FromTool::Pull { .. }
        | FromTool::Deregister { .. }
        | FromTool::Query { .. }
        | FromTool::Push { .. }
        | FromTool::SlowTargets { .. }
        | FromTool::Log { .. }
        | FromTool::Signal { .. } => true,
        FromTool::Hello { .. }
        | FromTool::Follow { .. }
        | FromTool::Drained { .. }
        | FromTool::Fill { .. } => false,
    }
}

/// Returns whether a failed send may succeed shortly because the kernel has no memory. The
/// connection is kept: while a tool is connected, nothing that it borrows is overwritten.
fn is_transient(error: &io::Error) -> bool {
    let transient = [Errno::ENOBUFS, Errno::ENOMEM].map(|errno| Some(errno as i32));
    transient.contains(&error.raw_os_error())
}

/// Returns whether a send failed because the tool no longer reads. The tool has closed its end, but
/// the messages that it sent before must still be processed.
fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// One connected tool.
pub(crate) struct Peer {
    incoming: Incoming,
    /// Requests, encoded, that wait until the tool has read the answers to earlier requests.
    deferred: VecDeque<Vec<u8>>,
    /// The size of the deferred requests, in bytes.
    deferred_bytes: usize,
    pub outgoing: VecDeque<Outgoing>,
    /// The bytes of removed jobs that the tool has not read.
    pub unread: Unread,
    /// The number of outgoing answers, and their size in bytes.
    answers: usize,
    answer_bytes: usize,
    in_flight: InFlight,
    /// When the socket last accepted outgoing bytes.
    last_sent: Instant,
    /// When the tool connected or last sent a request.
    last_request: Instant,
    pub name: String,
    /// The process at the other end of the connection.
    pub client: Client,
    /// Whether the tool belongs to the embedder.
    pub own: bool,
    /// Whether the tool may hold back sources under the block policy.
    pub may_block: bool,
    pub page: Arc<ReaderPage>,
    /// The bell by which the tool signals room in its rings. Only a tool that may hold back sources
    /// and is not the embedder's has one.
    pub room_bell: Option<RoomBell>,
    pub registrations: BTreeMap<u32, Registration>,
    /// The weight of the registrations and the pulls that wait for the host, in processes.
    pub weight: usize,
    /// Pulls that wait for the host's answer.
    pub waiting: BTreeMap<Ticket, Pull>,
    pub last_handler: u32,
    /// The tool's pushes under way, by the tool's numbers for them.
    pub pushes: BTreeMap<u32, PushId>,
    pub last_push: u32,
    /// The rings that the tool reads.
    pub readings: HashMap<ReaderId, Reading>,
    /// The ids of the readings, by stream and registration.
    pub reader_ids: HashMap<(SourceId, u32), ReaderId>,
    /// Alive while the tool is connected. Work for this tool alone need not begin after it has
    /// disconnected.
    pub alive: Arc<()>,
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
            unread: Unread::default(),
            answers: 0,
            answer_bytes: 0,
            in_flight: InFlight::default(),
            last_sent: now,
            last_request: now,
            name,
            client,
            own,
            may_block,
            page: Arc::new(page),
            room_bell: None,
            registrations: BTreeMap::new(),
            weight: 0,
            waiting: BTreeMap::new(),
            last_handler: 0,
            pushes: BTreeMap::new(),
            last_push: 0,
            readings: HashMap::new(),
            reader_ids: HashMap::new(),
            alive: Arc::new(()),
        }
    }

    pub(crate) fn socket(&self) -> &UnixStream {
        self.incoming.socket()
    }

    /// Returns the process to which limits apply; `None` for the embedder's own tool.
    pub(crate) fn counted(&self) -> Option<Client> {
        (!self.own).then_some(self.client)
    }

    /// Records that the socket became readable (edge-triggered).
    pub(crate) fn now_readable(&mut self) {
        self.incoming.now_readable();
    }

    /// Returns the next message to serve. While many answers wait for the tool, its requests are
    /// deferred, but messages without an answer are still returned.
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
                // The tool no longer reads answers, but its earlier requests are still served.
                Err(DisconnectReason::Closed) if !self.deferred.is_empty() => {
                    self.drop_outgoing();
                    continue;
                }
                arrived => arrived?,
            };
            let Some(message) = message else { return Ok(None) };
            if is_request(&message) {
                self.last_request = Instant::now();
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

    /// Returns how many descriptors the tool has not received, as far as the engine knows.
    pub(crate) fn fds_in_flight(&self) -> usize {
        self.in_flight.fds()
    }

    /// Closes the connection. Returns what must be kept while descriptors are in flight.
    pub(crate) fn depart(self) -> Option<Departed> {
        Departed::new(self.incoming.into_socket(), self.in_flight, self.client)
    }

    /// Accepts the tool: sends its doorbell and, if it may hold back sources, the bell by which it
    /// signals room.
    pub(crate) fn welcome(&mut self, bell: Bell, room: Option<Ringer>) {
        let engine_pid = std::process::id();
        let message = ToTool::Welcome { version: PROTOCOL_VERSION, engine_pid, may_block: self.may_block };
        let attachment = Attachment::Welcome { page: Arc::clone(&self.page), bell, room };
        self.queue(&message, attachment);
    }

    /// Queues a message without descriptors.
    pub(crate) fn answer(&mut self, message: &ToTool) {
        self.queue(message, Attachment::None);
    }

    /// Returns credit for a push up to `position`. Replaces a queued credit message of this push
    /// that was not sent.
    pub(crate) fn return_credit(&mut self, push: u32, position: u64) {
        self.outgoing.retain(|out| out.credit_push != Some(push) || out.sent > 0);
        self.answer(&ToTool::Room { push, position });
    }

    pub(crate) fn answer_with_inlet(&mut self, message: &ToTool, inlet: Arc<Inlet>) {
        self.queue(message, Attachment::Inlet(inlet));
    }

    pub(crate) fn announce(&mut self, message: &ToTool, ring: Arc<Ring>) {
        self.queue(message, Attachment::Ring(ring));
    }

    /// Drops the unsent rings of `readers`, whose readings have ended. The tool never maps them.
    pub(crate) fn drop_rings(&mut self, readers: &HashSet<ReaderId>) {
        if readers.is_empty() {
            return;
        }
        self.outgoing.retain_mut(|out| {
            let ended = out.ring_reader.take_if(|id| readers.contains(id)).is_some();
            // The tool has received a part of this message and expects the rest.
            !ended || out.sent > 0
        });
    }

    fn queue(&mut self, message: &ToTool, attachment: Attachment) {
        match Outgoing::new(message, attachment) {
            Ok(out) => {
                if out.is_answer {
                    self.answers = self.answers.saturating_add(1);
                    self.answer_bytes = self.answer_bytes.saturating_add(out.frame.len());
                }
                self.unread.queued(&out.item);
                self.outgoing.push_back(out);
            }
            Err(error) => self.queue_replacement(message, &error),
        }
    }

    /// Queues a shorter answer, or an error, in place of an answer that exceeds the limit of its
    /// message.
    fn queue_replacement(&mut self, message: &ToTool, error: &EncodeError) {
        tracing::warn!(tool = self.name, %error, "an answer is too long to send");
        let failure = || Failure {
            status: Status::ERR_OUT_OF_RESOURCE,
            reason: format!("cannot send the answer: {error}"),
        };
        let replacement = match message {
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
            // Halves the list until it fits; without it the report always fits.
            ToTool::Pushed { push, report } if !report.partial.is_empty() => {
                let mut report = report.clone();
                report.partial.truncate(report.partial.len() / 2);
                ToTool::Pushed { push: *push, report }
            }
            _ => return,
        };
        self.queue(&replacement, Attachment::None);
    }

    /// Sends queued messages, as far as the socket accepts them and `budget` allows. `used` is how
    /// much of the budget's shared pool all tools use.
    pub(crate) fn flush(&mut self, budget: Budget, used: &mut usize) -> Result<Flushed, DisconnectReason> {
        let from_pool = |fds| if self.own { 0 } else { budget.pool_share(fds) };
        let known = from_pool(self.in_flight.fds());
        self.in_flight.update(self.incoming.socket())?;
        *used = used.saturating_sub(known.saturating_sub(from_pool(self.in_flight.fds())));
        while let Some(out) = self.outgoing.front_mut() {
            if let QueuedItem::Missed(key) = &out.item
                && out.frame.is_empty()
            {
                out.frame = self.unread.encode_missed(key).unwrap_or_default();
            }
            let fds = if out.sent == 0 { out.attachment.fds() } else { Vec::new() };
            let known = self.in_flight.fds();
            let after = known.saturating_add(fds.len());
            if !fds.is_empty() && after > budget.allowance(known, *used, self.own) {
                break;
            }
            match socket::send(self.incoming.socket(), out.frame.get(out.sent..).unwrap_or_default(), &fds) {
                Ok(sent) => {
                    self.in_flight.sent(fds.len());
                    *used = used.saturating_add(from_pool(after).saturating_sub(from_pool(known)));
                    out.sent = out.sent.saturating_add(sent);
                    self.last_sent = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.raw_os_error() == Some(Errno::ETOOMANYREFS as i32) => {
                    return Ok(Flushed::Crowded);
                }
                Err(error) if is_transient(&error) => return Ok(Flushed::Retry),
                Err(error) if is_closed(&error) => {
                    self.drop_outgoing();
                    break;
                }
                Err(error) => return Err(error.into()),
            }
            if out.sent >= out.frame.len() {
                if out.is_answer {
                    self.answers = self.answers.saturating_sub(1);
                    self.answer_bytes = self.answer_bytes.saturating_sub(out.frame.len());
                }
                if let Some(reading) = out.ring_reader.and_then(|id| self.readings.get_mut(&id)) {
                    self.unread.ring_sent(reading);
                    reading.sent = true;
                }
                self.unread.sent(&out.item);
                self.outgoing.pop_front();
            }
        }
        Ok(Flushed::Waits)
    }

    /// Drops all queued messages.
    fn drop_outgoing(&mut self) {
        self.outgoing.clear();
        self.unread.clear_unsent();
        (self.answers, self.answer_bytes) = (0, 0);
    }

    /// Returns the tickets that its registrations and waiting pulls hold.
    pub(crate) fn tickets(&self) -> impl Iterator<Item = Ticket> {
        let registered = self.registrations.values().filter_map(|registration| registration.ticket);
        registered.chain(self.waiting.keys().copied())
    }

    /// Returns what the engine must know about this tool when it ends.
    pub(crate) fn last_activity(&self) -> LastActivity {
        let last_asked = (!self.own).then_some(self.last_request);
        LastActivity { has_unsent: !self.outgoing.is_empty(), last_taken: self.last_sent, last_asked }
    }
}

#[cfg(test)]
mod tests;
