//! One connected tool: its requests, its outgoing messages and the rings that it reads.
//!
//! Every byte from a tool is treated as hostile. A tool costs the engine one [`Peer`] with bounded
//! buffers. A tool that breaks the protocol loses its connection, and nothing else is affected.

mod pushes;
mod readers;
mod registrations;
mod shed;
pub(crate) mod unread;

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use iof_capture::{PushId, SourceId};
use iof_proto::{
    Decoder, EncodeError, Failure, FromTool, Nspace, Proc, Rank, SlowTargets, Status, ToTool, encode,
};
use iof_shm_ring::ReaderId;

use crate::clients::client::{Client, Payer, ReplyTo, Requester};
use crate::clients::quotas::Charge;
use crate::count::Count;
use crate::disconnect::DisconnectReason;
use crate::ids::{PageId, PeerId};
use crate::limits::Limits;
use crate::notice::Notice;
use crate::resources::PageSlots;
use crate::streams::reading::Reading;
use crate::tools::demand::Ticket;
use crate::tools::grant::Grant;
use crate::tools::linger::LastActivity;
use crate::tools::outgoing::{Attachment, Outgoing};
use crate::tools::peer::unread::Unread;
use crate::tools::pull::Pull;
use crate::tools::registration::Registration;

/// Returns whether a tool expects an answer to `message`.
pub fn is_request(message: &FromTool) -> bool {
    match message {
        FromTool::Pull { .. }
        | FromTool::Deregister { .. }
        | FromTool::Barrier { .. }
        | FromTool::Query { .. }
        | FromTool::Push { .. }
        | FromTool::SlowTargets { .. }
        | FromTool::Log { .. }
        | FromTool::Signal { .. }
        | FromTool::Spawn { .. } => true,
        FromTool::Hello { .. }
        | FromTool::Follow { .. }
        | FromTool::Drained { .. }
        | FromTool::Fill { .. }
        | FromTool::Exchange(_) => false,
    }
}

/// One connected tool.
pub struct Peer {
    /// Requests, encoded, that wait until the tool has read the answers to earlier requests.
    deferred: VecDeque<Vec<u8>>,
    /// The size of the deferred requests, in bytes.
    deferred_bytes: usize,
    outgoing: VecDeque<Outgoing>,
    /// The attachments of messages that will not be sent.
    discarded: Vec<Attachment>,
    /// The events that are worth a line of the log.
    notices: Vec<Notice>,
    /// The bytes of removed jobs that the tool has not read.
    unread: Unread,
    /// The number of outgoing answers, and their size in bytes.
    answers: usize,
    answer_bytes: usize,
    /// When the socket last accepted outgoing bytes.
    last_sent: Instant,
    /// When the tool connected or last sent a request.
    last_request: Instant,
    client: Client,
    /// The charge of its connection; `None` for the embedder's own.
    pub(crate) place: Option<Charge>,
    /// The sources that the tool may hold back under the block policy.
    grant: Grant,
    /// Set if messages can be sent to the tool.
    receives: bool,
    /// The tool has ceased to receive, which the core has not been told.
    has_stopped: bool,
    slots: PageSlots,
    limits: Limits,
    /// The number of its requests that wait for the capture thread. Further ones are not read.
    awaited: usize,
    registrations: BTreeMap<u32, Registration>,
    /// Pulls that wait for the host's answer.
    waiting: BTreeMap<Ticket, Pull>,
    last_handler: u32,
    /// The tool's pushes under way, by the tool's numbers for them.
    pushes: BTreeMap<u32, PushId>,
    last_push: u32,
    /// The rings that the tool reads.
    readings: BTreeMap<ReaderId, Reading>,
    /// The ids of the readings, by stream and registration.
    reader_ids: BTreeMap<(SourceId, u32), ReaderId>,
    /// Alive while the tool is connected. Work for this tool alone need not begin after it has
    /// disconnected.
    alive: Arc<()>,
}

impl Peer {
    pub(crate) fn new(
        client: Client,
        place: Option<Charge>,
        grant: Grant,
        slots: PageSlots,
        limits: Limits,
        now: Instant,
    ) -> Peer {
        Peer {
            deferred: VecDeque::new(),
            deferred_bytes: 0,
            outgoing: VecDeque::new(),
            discarded: Vec::new(),
            notices: Vec::new(),
            unread: Unread::default(),
            answers: 0,
            answer_bytes: 0,
            last_sent: now,
            last_request: now,
            client,
            place,
            grant,
            receives: true,
            has_stopped: false,
            slots,
            limits,
            awaited: 0,
            registrations: BTreeMap::new(),
            waiting: BTreeMap::new(),
            last_handler: 0,
            pushes: BTreeMap::new(),
            last_push: 0,
            readings: BTreeMap::new(),
            reader_ids: BTreeMap::new(),
            alive: Arc::new(()),
        }
    }

    /// Returns the name that the tool has given.
    pub fn name(&self) -> &str {
        &self.client.name
    }

    /// Returns the tool's name as that of a process, see
    /// `StdinPush::source`.
    pub(crate) fn proc(&self) -> Proc {
        let named = self
            .name()
            .rsplit_once('.')
            .and_then(|(name, rank)| Some(Proc::new(Nspace::new(name).ok()?, Rank(rank.parse().ok()?))));
        named.unwrap_or_else(|| {
            let nspace = Nspace::new(self.name());
            Proc::new(nspace.unwrap_or_else(|_| Nspace::of_tool(self.client.process.pid)), Rank(0))
        })
    }

    /// Returns the tool as a client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the tool as its holdings are counted.
    pub(crate) fn payer(&self) -> Payer {
        self.client.payer()
    }

    /// Returns the tool `id` as the one that waits for the answer to its request number `request`.
    pub(crate) fn requester(&self, id: PeerId, request: u32) -> Requester {
        let connection = Some(Arc::downgrade(&self.alive));
        Requester { client: self.client.clone(), reply_to: ReplyTo::Tool(id, request), connection }
    }

    /// Returns the charges of its connection and registrations.
    pub(crate) fn charges(&self) -> impl Iterator<Item = &Charge> {
        let waiting = self.waiting.values().map(|pull| &pull.registration);
        let registered = self
            .registrations
            .values()
            .chain(waiting)
            .filter_map(|registration| registration.charge.as_ref());
        self.place.iter().chain(registered)
    }

    /// Removes and returns the charges of its registrations, which end.
    pub(crate) fn take_charges(&mut self) -> impl Iterator<Item = Charge> {
        let waiting = self.waiting.values_mut().map(|pull| &mut pull.registration);
        self.registrations.values_mut().chain(waiting).filter_map(|registration| registration.charge.take())
    }

    /// Returns whether the tool belongs to the embedder.
    pub fn is_own(&self) -> bool {
        self.client.own
    }

    pub(crate) fn page(&self) -> PageId {
        self.slots.page()
    }

    /// Notes that a request waits for the capture thread. Further ones are not read.
    pub(crate) fn request_begun(&mut self) {
        self.awaited.raise(1);
    }

    /// Notes that a request does not wait for the capture thread any more.
    pub(crate) fn request_done(&mut self) {
        self.awaited.lower(1);
    }

    /// Returns the number of requests that wait for the capture thread.
    pub fn awaited(&self) -> usize {
        self.awaited
    }

    /// Returns the messages that wait to be sent, in order.
    pub fn outgoing(&self) -> impl Iterator<Item = &Outgoing> + Clone {
        self.outgoing.iter()
    }

    /// Returns the number of outgoing answers, and their size in bytes.
    pub fn answers(&self) -> (usize, usize) {
        (self.answers, self.answer_bytes)
    }

    /// Returns the deferred requests, encoded, and the size that is counted for them, in bytes.
    pub fn deferred(&self) -> (impl DoubleEndedIterator<Item = &[u8]>, usize) {
        (self.deferred.iter().map(Vec::as_slice), self.deferred_bytes)
    }

    /// Returns the attachments of messages that will not be sent, and which the driver still has.
    pub fn discarded(&self) -> &[Attachment] {
        &self.discarded
    }

    /// Returns whether messages can be sent to the tool.
    pub fn receives(&self) -> bool {
        self.receives
    }

    /// Returns the pulls that wait for the host's answer.
    pub fn waiting(&self) -> impl Iterator<Item = &Pull> {
        self.waiting.values()
    }

    /// Returns the number of rings that the tool reads, by the index of readers.
    pub fn indexed_readers(&self) -> usize {
        self.reader_ids.len()
    }

    /// Returns the next of the deferred requests, unless one waits for the capture thread or the
    /// tool has left many answers unread.
    pub(crate) fn next_deferred(&mut self) -> Result<Option<FromTool>, DisconnectReason> {
        if self.awaited > 0 || self.has_unread() {
            return Ok(None);
        }
        let Some(frame) = self.deferred.pop_front() else { return Ok(None) };
        self.deferred_bytes.lower(frame.len());
        Ok(Decoder::new().decode(&mut frame.as_slice())?)
    }

    /// Returns whether messages of the tool may be received: none while a request waits for the
    /// capture thread, or too many are deferred.
    pub(crate) fn wants_messages(&self) -> bool {
        self.awaited == 0 && self.deferred_bytes < self.limits.deferred_bytes
    }

    /// Returns whether requests are deferred.
    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Takes a message that has arrived. Returns it if it can be served now. While many answers
    /// wait for the tool, its requests are deferred, but not messages without an answer.
    pub(crate) fn defer(
        &mut self,
        message: FromTool,
        now: Instant,
    ) -> Result<Option<FromTool>, DisconnectReason> {
        if !is_request(&message) {
            return Ok(Some(message));
        }
        self.last_request = now;
        if !self.has_unread() {
            return Ok(Some(message));
        }
        let frame =
            encode(&message).map_err(|_| DisconnectReason::Unexpected("a message that breaks its limits"))?;
        self.deferred_bytes.raise(frame.len());
        self.deferred.push_back(frame);
        Ok(None)
    }

    /// Returns the next message to serve: the next deferred one, or one that `arrive` returns.
    pub fn next_message(
        &mut self,
        now: Instant,
        mut arrive: impl FnMut() -> Result<Option<FromTool>, DisconnectReason>,
    ) -> Result<Option<FromTool>, DisconnectReason> {
        loop {
            if let Some(message) = self.next_deferred()? {
                return Ok(Some(message));
            }
            if !self.wants_messages() {
                return Ok(None);
            }
            let arrived = match arrive() {
                // The tool no longer reads answers, but its earlier requests are still served.
                Err(DisconnectReason::Closed) if self.has_deferred() => {
                    self.stop_sending();
                    continue;
                }
                arrived => arrived?,
            };
            let Some(message) = arrived else { return Ok(None) };
            if let Some(message) = self.defer(message, now)? {
                return Ok(Some(message));
            }
        }
    }

    fn has_unread(&self) -> bool {
        self.answers >= self.limits.answers_waiting || self.answer_bytes >= self.limits.bytes_waiting
    }

    /// Queues a message without descriptors.
    pub(crate) fn answer(&mut self, message: &ToTool) {
        self.send_with(message, Attachment::None);
    }

    /// Returns credit for a push up to `position`. Replaces a queued credit message of this push
    /// that was not sent.
    pub(crate) fn return_credit(&mut self, push: u32, position: u64) {
        self.outgoing.retain(|out| !out.returns_credit_of(push) || out.is_begun());
        self.answer(&ToTool::Room { push, position });
    }

    /// Queues a message with its descriptors.
    pub(crate) fn send_with(&mut self, message: &ToTool, attachment: Attachment) {
        match Outgoing::new(message, attachment) {
            Ok(out) => self.queue(out),
            Err(error) => {
                self.discarded.push(attachment);
                self.queue_replacement(message, error);
            }
        }
    }

    /// Queues a message, unless the tool receives nothing any more.
    fn queue(&mut self, out: Outgoing) {
        if out.is_answer() {
            self.answers.raise(1);
            self.answer_bytes.raise(out.frame().len());
        }
        self.unread.queued(out.item());
        self.outgoing.push_back(out);
        if !self.receives {
            self.drop_queue();
        }
    }

    /// Removes and returns the attachments of messages that will not be sent.
    pub fn take_discarded(&mut self) -> Vec<Attachment> {
        mem::take(&mut self.discarded)
    }

    /// Removes and returns what is worth a line of the log.
    pub(crate) fn take_notices(&mut self) -> Vec<Notice> {
        mem::take(&mut self.notices)
    }

    /// Queues a shorter answer, or an error, in place of an answer that exceeds the limit of its
    /// message.
    fn queue_replacement(&mut self, message: &ToTool, error: EncodeError) {
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
        self.notices.push(Notice::TooLong { tool: self.name().to_owned(), error });
        self.send_with(&replacement, Attachment::None);
    }

    /// Returns the message that is to be sent next.
    pub fn front(&mut self) -> Option<&Outgoing> {
        let out = self.outgoing.front_mut()?;
        out.encode_missed(&mut self.unread);
        Some(out)
    }

    /// Notes that the socket has accepted `bytes` more bytes of the first message.
    pub fn sent(&mut self, bytes: usize, now: Instant) {
        self.last_sent = now;
        let Some(first) = self.outgoing.front_mut() else { absent!("message", return) };
        if !first.sent(bytes) {
            return;
        }
        let Some(out) = self.outgoing.pop_front() else { absent!("message", return) };
        self.left_queue(&out);
    }

    /// Updates the counters for a message that was sent, or is dropped because the tool receives
    /// nothing any more.
    fn left_queue(&mut self, out: &Outgoing) {
        if out.is_answer() {
            self.answers.lower(1);
            self.answer_bytes.lower(out.frame().len());
        }
        if let Some(reading) = out.ring_reader().and_then(|id| self.readings.get_mut(&id)) {
            self.unread.ring_sent(reading);
            reading.ring_sent();
        }
        self.unread.sent(out.item());
    }

    /// Removes and returns all queued messages.
    #[cfg(test)]
    pub(crate) fn take_outgoing(&mut self) -> VecDeque<Outgoing> {
        std::mem::take(&mut self.outgoing)
    }

    /// Drops all queued messages and all later ones, because the tool receives nothing any more.
    /// Nothing is counted for it from then on.
    pub fn stop_sending(&mut self) {
        self.receives = false;
        self.drop_queue();
        self.end_forgotten();
        self.has_stopped = true;
    }

    /// Returns whether [`Peer::stop_sending`] was called since the last call. Readers of kept streams
    /// may have ended then.
    pub fn take_stopped(&mut self) -> bool {
        mem::take(&mut self.has_stopped)
    }

    fn drop_queue(&mut self) {
        for out in mem::take(&mut self.outgoing) {
            self.discarded.extend((!out.is_begun()).then_some(out.attachment()));
            self.left_queue(&out);
        }
        self.unread.clear_missed();
    }

    /// Returns what the engine must know about this tool when it ends.
    pub(crate) fn last_activity(&self) -> LastActivity {
        let last_asked = (!self.client.own).then_some(self.last_request);
        let joins = || self.readings.values().any(|reading| reading.joining().is_some());
        let has_unsent = !self.outgoing.is_empty() || self.awaited > 0 || joins();
        LastActivity { has_unsent, last_taken: self.last_sent, last_asked }
    }
}

#[cfg(test)]
mod tests;
