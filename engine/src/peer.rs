//! One connected tool: its socket, what waits to be sent to it, what it reads.
//!
//! Everything that comes from it is taken for hostile. It costs the engine one [`Peer`] with bounded buffers;
//! when it breaks the protocol it loses its connection, and nobody else notices.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};

use iof_capture::{PushId, SourceId};
use iof_proto::limits::MAX_RINGS_IN_FLIGHT;
use iof_proto::{
    Channels, DecodeError, Decoder, Directives, EncodeError, Failure, FromTool, Lagging, Message, Nspace,
    Proc, Rank, Status, ToTool, encode, socket,
};
use iof_shm_ring::{Area, Bell, Inlet, Ring, Ringer, Start};
use nix::errno::Errno;

use crate::backlog::{Backlog, Item, Key};
use crate::demand::Ticket;
use crate::pulls::Pull;
use crate::terms::Wish;

/// Bytes read from a tool at a time.
const CHUNK: usize = 16 * 1024;
/// Answers that wait for a tool before the engine stops reading what it asks for more. What it is told unasked does not
/// count: of that there is no more than it registered for, and what it says to it must be heard.
const MAX_ANSWERS_WAITING: usize = 64;
/// The same for their bytes.
const MAX_BYTES_WAITING: usize = 256 * 1024;

/// A registration (one pull).
pub(crate) struct Registration {
    pub procs: Vec<Proc>,
    pub channels: Channels,
    pub start: Start,
    pub directives: Directives,
    /// What it holds of the host's; nothing if it is the embedder's own.
    pub ticket: Option<Ticket>,
    /// It goes on when its jobs have ended, with later jobs of the same names.
    pub persistent: bool,
    /// The tool was told that no further source will come.
    pub announced: bool,
    /// The last run of each name of whose end the tool was told.
    pub ends_told: BTreeMap<Nspace, u64>,
}

impl Registration {
    /// Whether this registration is for `source` (on whatever channel).
    pub(crate) fn covers(&self, source: &Proc) -> bool {
        self.procs.iter().any(|proc| {
            proc.nspace == source.nspace && (proc.rank == Rank::WILDCARD || proc.rank == source.rank)
        })
    }

    /// Whether it is for processes of `nspace`.
    pub(crate) fn names(&self, nspace: &Nspace) -> bool {
        self.procs.iter().any(|proc| proc.nspace == *nspace)
    }

    /// Whether a job that has this name now is part of it.
    pub(crate) fn goes_on(&self, nspace: &Nspace) -> bool {
        self.persistent || !self.ends_told.contains_key(nspace)
    }

    /// Whether nothing more will come of it: the first job of each of its names has ended, and no later one is part of it.
    pub(crate) fn is_over(&self) -> bool {
        !self.procs.iter().any(|proc| self.goes_on(&proc.nspace))
    }

    /// Notes that the end of run `run` of `nspace` is told now; `false` if it was told before, or is not part of it.
    pub(crate) fn tell_end(&mut self, nspace: &Nspace, run: u64) -> bool {
        if !self.names(nspace) || !self.goes_on(nspace) || self.ends_told.get(nspace) == Some(&run) {
            return false;
        }
        self.ends_told.insert(nspace.clone(), run);
        true
    }
}

/// A ring that the tool reads.
pub(crate) struct Reading {
    pub source: SourceId,
    pub handler: u32,
    pub wish: Wish,
    /// The slot of the generation before, until the tool has left it for certain.
    pub old_slot: Option<u32>,
    /// As long as the stream knows this reader.
    pub ring: Weak<Ring>,
    /// The ring was sent to the tool.
    pub sent: bool,
    /// How many bytes the source had produced where the registration begins.
    pub begin: u64,
    /// How many bytes the tool misses if it never gets the ring; `None` until the stream is forgotten.
    pub unread: Option<u64>,
}

impl Reading {
    /// Returns whether the tool can have read the ring to its end, and the stream goes on in another.
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
    Welcome { area: Arc<Area>, bell: Bell, room: Option<Ringer> },
}

impl With {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            With::Nothing => Vec::new(),
            With::Ring(ring) => ring.as_fd().into_iter().collect(),
            With::Inlet(inlet) => vec![inlet.as_fd()],
            With::Welcome { area, bell, room } => {
                area.as_fd().into_iter().chain([bell.as_fd()]).chain(room.as_ref().map(AsFd::as_fd)).collect()
            }
        }
    }
}

/// Why a tool is let go.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Dismissed {
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
    /// The kernel has too many descriptors on their way, or no memory: try again in a moment.
    Retry,
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
        | ToTool::Lagging { .. }
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

/// Whether a send that failed so may work in a moment: the kernel has too many descriptors on their way, or no memory.
/// The tool is not to suffer from that: while it is connected, nothing that it borrows is overwritten.
fn is_for_now(error: &io::Error) -> bool {
    let now = [Errno::ETOOMANYREFS, Errno::ENOBUFS, Errno::ENOMEM].map(|errno| Some(errno as i32));
    now.contains(&error.raw_os_error())
}

/// Whether a send failed so because the tool reads no more: it has gone, and what it said before is still to be heard.
fn is_deaf(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// One connected tool.
pub(crate) struct Peer {
    socket: UnixStream,
    decoder: Decoder<FromTool>,
    input: Vec<u8>,
    /// The socket may have more to read.
    readable: bool,
    pub outgoing: VecDeque<Outgoing>,
    /// What it has not read of forgotten jobs.
    pub backlog: Backlog,
    /// Outgoing answers, and their bytes.
    answers: usize,
    answer_bytes: usize,
    rings_in_flight: u32,
    pub name: String,
    /// By the kernel's word.
    pub pid: u32,
    pub greeted: bool,
    /// It belongs to the embedder.
    pub own: bool,
    /// It may hold sources back that wait for who may.
    pub may_block: bool,
    pub area: Arc<Area>,
    /// Until the welcome takes it along.
    pub bell: Option<Bell>,
    pub registrations: BTreeMap<u32, Registration>,
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
        socket: UnixStream,
        pid: u32,
        own: bool,
        may_block: bool,
    ) -> Result<Peer, iof_shm_ring::CreateError> {
        let failed = |source| iof_shm_ring::CreateError::Memory { step: "doorbell", len: 0, source };
        let (ringer, bell) =
            if own { iof_shm_ring::bell() } else { iof_shm_ring::doorbell() }.map_err(failed)?;
        Ok(Peer {
            socket,
            decoder: Decoder::new(),
            input: Vec::new(),
            readable: true,
            outgoing: VecDeque::new(),
            backlog: Backlog::default(),
            answers: 0,
            answer_bytes: 0,
            rings_in_flight: 0,
            name: String::new(),
            pid,
            greeted: false,
            own,
            may_block,
            area: Arc::new(Area::create(ringer)?),
            bell: Some(bell),
            registrations: BTreeMap::new(),
            waiting: BTreeMap::new(),
            last_handler: 0,
            pushes: BTreeMap::new(),
            last_push: 0,
            readings: HashMap::new(),
            slots: HashMap::new(),
            here: Arc::new(()),
        })
    }

    pub(crate) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// The socket became readable (edge-triggered).
    pub(crate) fn now_readable(&mut self) {
        self.readable = true;
    }

    /// The next message of the tool, unless it has not read its answers to the last ones.
    pub(crate) fn receive(&mut self) -> Result<Option<FromTool>, Dismissed> {
        loop {
            if self.answers >= MAX_ANSWERS_WAITING || self.answer_bytes >= MAX_BYTES_WAITING {
                return Ok(None);
            }
            let mut bytes = self.input.as_slice();
            let message = self.decoder.decode(&mut bytes)?;
            let used = self.input.len().saturating_sub(bytes.len());
            self.input.drain(..used);
            if message.is_some() {
                return Ok(message);
            }
            if !self.readable {
                return Ok(None);
            }
            let mut chunk = [0u8; CHUNK];
            // Descriptors from a tool are not accepted, whatever it sends.
            match socket::receive(&self.socket, &mut chunk, &mut VecDeque::new(), false, false) {
                Ok(0) => return Err(Dismissed::Closed),
                Ok(count) => self.input.extend_from_slice(chunk.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The tool says that it took rings, so that more may follow.
    pub(crate) fn taken(&mut self, rings: u32) {
        self.rings_in_flight = self.rings_in_flight.saturating_sub(rings);
    }

    pub(crate) fn welcome(&mut self, message: &ToTool, room: Option<Ringer>) {
        if let Some(bell) = self.bell.take() {
            let with = With::Welcome { area: Arc::clone(&self.area), bell, room };
            self.queue(message, with);
        }
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

    /// Drops the rings at `slots`, whose readings have ended, that were not sent. The tool never maps them.
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
            ToTool::Lagging { request, lagging } => ToTool::Lagging {
                request: *request,
                lagging: Lagging { position: lagging.position, targets: Vec::new() },
            },
            // Half as often as it takes, down to none.
            ToTool::Pushed { push, report } if !report.short.is_empty() => {
                let mut report = report.clone();
                report.short.truncate(report.short.len() / 2);
                ToTool::Pushed { push: *push, report }
            }
            _ => return,
        };
        self.queue(&instead, With::Nothing);
    }

    /// Sends what waits, as far as the socket and the tool take it.
    pub(crate) fn flush(&mut self) -> Result<Flushed, Dismissed> {
        while let Some(out) = self.outgoing.front_mut() {
            if let Item::Missed(key) = &out.item
                && out.frame.is_empty()
            {
                out.frame = self.backlog.tell(key).unwrap_or_default();
            }
            let is_ring = matches!(out.with, With::Ring(_));
            if out.sent == 0 && is_ring && self.rings_in_flight >= MAX_RINGS_IN_FLIGHT {
                break;
            }
            let fds = if out.sent == 0 { out.with.fds() } else { Vec::new() };
            match socket::send(&self.socket, out.frame.get(out.sent..).unwrap_or_default(), &fds) {
                Ok(sent) => {
                    if out.sent == 0 && is_ring {
                        self.rings_in_flight = self.rings_in_flight.saturating_add(1);
                    }
                    out.sent = out.sent.saturating_add(sent);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if is_for_now(&error) => return Ok(Flushed::Retry),
                Err(error) if is_deaf(&error) => {
                    self.outgoing.clear();
                    self.backlog.nothing_is_sent();
                    (self.answers, self.answer_bytes) = (0, 0);
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
                    reading.sent = true;
                }
                self.backlog.sent(&out.item);
                self.outgoing.pop_front();
            }
        }
        Ok(Flushed::Waits)
    }

    /// What its registrations, and its pulls that wait, hold of the host's.
    pub(crate) fn tickets(&self) -> impl Iterator<Item = Ticket> {
        let registered = self.registrations.values().filter_map(|registration| registration.ticket);
        registered.chain(self.waiting.keys().copied())
    }

    /// Whether everything was sent.
    pub(crate) fn is_flushed(&self) -> bool {
        self.outgoing.is_empty()
    }
}

#[cfg(test)]
mod tests;
