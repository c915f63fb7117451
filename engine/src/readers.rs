//! Who reads which stream: readers come with registrations and sources, follow, and go.
//!
//! A stream that nobody reads is kept for who will: a reader of the engine's own, the backlog
//! holder, holds what comes until the first registration takes its place. So under drop newest the
//! first bytes stay, as RFC0025 has it, and under block a source that was spawned to be forwarded
//! waits.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use iof_capture::{Capture, SourceId, Tap};
use iof_proto::limits::MAX_READERS_PER_TOOL;
use iof_proto::{Channels, Failure, Status, ToTool};
use iof_shm_ring::{Attached, CreateError, Policy, ReaderPage, Start, Stream, StreamConfig};

use crate::peer::{Peer, Reading};
use crate::registrations::Registration;
use crate::state::{PeerId, State, StreamName};
use crate::stream_options::StreamOptions;

/// What the engine knows of one stream.
pub(crate) struct StreamState {
    pub name: StreamName,
    /// What its job wants of it.
    options: StreamOptions,
    /// Whether its spawner asked for it to be forwarded, if it said anything.
    forward: Option<bool>,
    /// What the registrations that read it want of it.
    readers: BTreeMap<(PeerId, u32), StreamOptions>,
    /// How many of them want something else than its job does.
    unusual: usize,
    /// The backlog holder's slot while it holds.
    kept: Option<u32>,
    /// The host waits no longer for somebody to register, or there is nothing more to be kept.
    pub release_backlog: bool,
    /// The registrations of tools that read too many streams to be attached to it.
    missing: Vec<(PeerId, u32)>,
    /// How many bytes its source has produced, once it is complete.
    pub produced: u64,
    /// It is not as its job wants it, for the sake of its readers.
    adjusted: bool,
}

/// What is to be done at a stream when its readers have changed.
#[derive(Default)]
struct Change {
    /// The backlog holder begins here.
    keep: Option<Keep>,
    /// The backlog holder's slot, which it gives back.
    release_backlog: Option<u32>,
    config: Option<StreamConfig>,
}

struct Keep {
    slot: u32,
    start: Start,
    may_block: bool,
}

impl StreamState {
    pub(crate) fn new(name: StreamName, options: StreamOptions, forward: Option<Channels>) -> StreamState {
        let forward = forward.map(|channels| channels.contains(name.channel.into()));
        StreamState {
            name,
            options,
            forward,
            readers: BTreeMap::new(),
            unusual: 0,
            kept: None,
            release_backlog: false,
            missing: Vec::new(),
            produced: 0,
            adjusted: false,
        }
    }

    /// The tools that read it, with their registrations.
    pub(crate) fn readers(&self) -> impl Iterator<Item = (PeerId, u32)> {
        self.readers.keys().copied()
    }

    /// What `registration` of `peer` wants of this stream, if it is for it.
    fn options_for(&self, peer: &Peer, registration: &Registration) -> Option<StreamOptions> {
        let for_it = registration.channels.contains(Channels::from(self.name.channel))
            && registration.covers(&self.name.source)
            && registration.goes_on(&self.name.source.nspace)
            // What is not to be forwarded is for tools that ask for it, not for the launcher's own readers.
            && !(peer.own && self.forward == Some(false));
        for_it.then(|| self.options.under(&registration.directives))
    }

    /// Whether the stream has to be something else for a reader with this wish than its job wants.
    fn is_unusual(&self, options: &StreamOptions) -> bool {
        (options.cache_size, options.policy) != (self.options.cache_size, self.options.policy)
    }

    /// Whether `peer` may read it once more.
    fn may_join(&self, peer_id: PeerId, peer: &Peer) -> bool {
        let reads = self.readers.range((peer_id, 0)..=(peer_id, u32::MAX));
        peer.own || reads.take(MAX_READERS_PER_TOOL).count() < MAX_READERS_PER_TOOL
    }

    /// Notes a reader.
    fn joined(&mut self, peer_id: PeerId, handler: u32, options: StreamOptions) {
        self.left(peer_id, handler);
        self.unusual = self.unusual.saturating_add(usize::from(self.is_unusual(&options)));
        self.readers.insert((peer_id, handler), options);
    }

    /// Forgets a reader.
    fn left(&mut self, peer_id: PeerId, handler: u32) {
        if let Some(options) = self.readers.remove(&(peer_id, handler)) {
            self.unusual = self.unusual.saturating_sub(usize::from(self.is_unusual(&options)));
        }
    }

    /// Whether the backlog holder is to hold, and then whether it may hold the source back.
    fn keeper_may_block(&self) -> Option<bool> {
        match self.options.policy {
            _ if self.release_backlog || !self.readers.is_empty() => None,
            Policy::DropNewest => Some(false),
            Policy::Block if self.forward == Some(true) => Some(true),
            Policy::Block | Policy::DropOldest => None,
        }
    }

    /// What follows from readers having come or gone.
    fn change(&mut self, backlog_holder: &ReaderPage, start: Start) -> Change {
        let mut change = Change { config: self.adjust(), ..Change::default() };
        match (self.keeper_may_block(), self.kept) {
            (Some(may_block), None) => {
                // Without a slot the stream is kept as one that nobody waits for: its last bytes.
                self.kept = backlog_holder
                    .take_slot()
                    .inspect_err(|error| tracing::warn!(%error, "nothing is kept"))
                    .ok();
                change.keep = self.kept.map(|slot| Keep { slot, start, may_block });
            }
            (None, Some(slot)) => {
                self.kept = None;
                change.release_backlog = Some(slot);
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
        change
    }

    /// What the stream has to be for its readers, if that may be something else than before.
    fn adjust(&mut self) -> Option<StreamConfig> {
        let unusual = self.unusual > 0;
        let was = mem::replace(&mut self.adjusted, unusual);
        (unusual || was).then(|| self.options.shared(self.readers.values().copied()))
    }
}

impl Change {
    fn is_nothing(&self) -> bool {
        self.keep.is_none() && self.release_backlog.is_none() && self.config.is_none()
    }

    /// Does it, after who came has come and who went has gone.
    fn make(&self, tap: &mut Tap<'_>, backlog_holder: &Arc<ReaderPage>) {
        // Before the backlog holder comes: a cache that nobody reads any more is made smaller at once.
        if let Some(config) = self.config
            && let Err(error) = tap.reconfigure(config)
        {
            // Sizes were checked when they were asked for.
            tracing::error!(%error, "a stream stays as it is");
        }
        if let Some(Keep { slot, start, may_block }) = self.keep {
            // Fails for slots that do not exist only.
            let _ = tap.attach(backlog_holder, slot, start, may_block);
        }
        if let Some(slot) = self.release_backlog
            && tap.detach(backlog_holder, slot)
        {
            backlog_holder.return_slot(slot);
        }
    }
}

impl State {
    /// Names a new stream, and attaches everybody who registered for it before its first byte.
    pub(crate) fn add_stream(&mut self, mut new: StreamState, stream: &mut Stream) -> SourceId {
        let id = self.next_source();
        let mut tap = Tap::of(stream);
        for (peer_id, handler) in self.by_job.naming(&new.name.source.nspace) {
            let Some(peer) = self.peers.get_mut(&peer_id) else { continue };
            let Some(registration) = peer.registrations.get(&handler) else { continue };
            let Some(options) = new.options_for(peer, registration) else { continue };
            let start = registration.start;
            let may_join = !peer.is_behind() && new.may_join(peer_id, peer);
            let slot = if may_join { peer.page.take_slot() } else { Err(CreateError::Slots) };
            match slot.and_then(|slot| peer.attach(&mut tap, slot, start, options)) {
                Ok(attached) => {
                    new.joined(peer_id, handler, options);
                    peer.announce_ring(handler, id, &new.name, None, attached, options);
                }
                // The tool is told when it is known how much it misses.
                Err(error) => {
                    tracing::debug!(tool = peer_id, %error, "a tool misses a new source");
                    new.missing.push((peer_id, handler));
                }
            }
        }
        new.change(&self.backlog_holder, Start::Oldest).make(&mut tap, &self.backlog_holder);
        self.streams.insert(id, new);
        self.queries.streams_changed();
        id
    }

    /// Attaches `peer` to the existing streams that its registration `handler` covers; they are to
    /// be announced.
    ///
    /// # Errors
    /// The tool has no slots left, or reads one of the streams too often; nothing was attached
    /// then.
    pub(crate) fn attach_existing(
        &mut self,
        capture: &Capture,
        peer_id: PeerId,
        handler: u32,
    ) -> Result<Vec<(SourceId, StreamOptions, Attached)>, Failure> {
        let registered =
            self.peers.get(&peer_id).and_then(|peer| Some((peer, peer.registrations.get(&handler)?)));
        let Some((peer, registration)) = registered else { return Ok(Vec::new()) };
        let mut wanted: Vec<(SourceId, u32, StreamOptions)> = Vec::new();
        for (source, stream) in &self.streams {
            let Some(options) = stream.options_for(peer, registration) else { continue };
            let slot = if stream.may_join(peer_id, peer) {
                peer.page.take_slot().map_err(|error| error.to_string())
            } else {
                let StreamName { source, channel, .. } = &stream.name;
                Err(format!(
                    "a tool may have {MAX_READERS_PER_TOOL} registrations for {channel} of {source}: end one first"
                ))
            };
            match slot {
                Ok(slot) => wanted.push((*source, slot, options)),
                Err(reason) => {
                    wanted.iter().for_each(|(_, slot, _)| peer.page.return_slot(*slot));
                    return Err(Failure { status: Status::ERR_OUT_OF_RESOURCE, reason });
                }
            }
        }
        let mut changes = Vec::with_capacity(wanted.len());
        for (source, slot, options) in wanted {
            let Some(stream) = self.streams.get_mut(&source) else { continue };
            stream.joined(peer_id, handler, options);
            changes.push((source, slot, options, stream.change(&self.backlog_holder, Start::Now)));
        }
        let attached = capture.with_streams(|streams| {
            let attach = |(source, slot, options, change): &(SourceId, u32, StreamOptions, Change)| {
                let mut tap = streams.get_mut(*source)?;
                let attached = peer.attach(&mut tap, *slot, registration.start, *options).ok()?;
                change.make(&mut tap, &self.backlog_holder);
                Some((*source, *options, attached))
            };
            changes.iter().filter_map(attach).collect()
        });
        // A capture thread that has ended has no streams either.
        Ok(attached.unwrap_or_default())
    }

    /// Sends `peer_id` the rings that [`State::attach_existing`] attached it to.
    pub(crate) fn announce(
        &mut self,
        peer_id: PeerId,
        handler: u32,
        attached: Vec<(SourceId, StreamOptions, Attached)>,
    ) {
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        for (source, options, attached) in attached {
            if let Some(stream) = self.streams.get(&source) {
                peer.announce_ring(handler, source, &stream.name, None, attached, options);
            }
        }
    }

    /// Moves the reader at `slot` of `peer_id` to the newest generation, as its tool asks. What it
    /// asks without reason is ignored: the queue would have another ring for each request that
    /// comes before the ring was sent, and the capture thread would be woken by each that comes
    /// before the ring is sealed.
    pub(crate) fn follow(&mut self, capture: &Capture, peer_id: PeerId, slot: u32) {
        let reading = self.peers.get(&peer_id).and_then(|peer| peer.readings.get(&slot));
        if reading.is_some_and(Reading::may_follow) {
            self.move_reader(capture, peer_id, slot, slot);
        }
    }

    /// Moves the reader at `slot` of `peer_id` to `new_slot` in the newest generation, if it is not
    /// there yet; whether it was moved.
    fn move_reader(&mut self, capture: &Capture, peer_id: PeerId, slot: u32, new_slot: u32) -> bool {
        let Some(peer) = self.peers.get_mut(&peer_id) else { return false };
        let Some(&Reading { source, handler, options, begin, .. }) = peer.readings.get(&slot) else {
            return false;
        };
        let Some(stream) = self.streams.get(&source) else { return false };
        let page = Arc::clone(&peer.page);
        let followed = capture
            .with_streams(|streams| streams.get_mut(source)?.follow(&page, slot, new_slot))
            .ok()
            .flatten();
        let Some(attached) = followed else { return false };
        peer.readings.remove(&slot);
        peer.announce_ring(handler, source, &stream.name, Some(slot), attached, options);
        if let Some(reading) = peer.readings.get_mut(&new_slot) {
            reading.begin = begin;
        }
        true
    }

    /// Sends the last generation of a completed stream to the readers that are not in it yet: they
    /// need not ask, so they get it even if the engine is gone by the time they have drained
    /// theirs.
    pub(crate) fn bring_along(&mut self, capture: &Capture, source: SourceId) {
        let behind = capture.with_streams(|streams| Some(streams.get_mut(source)?.left_behind()));
        for (page, slot) in behind.ok().flatten().unwrap_or_default() {
            let peer = self.peers.iter().find(|(_, peer)| Arc::ptr_eq(&peer.page, &page));
            // A tool that has no slot left asks when it has drained its generation.
            if let Some((&peer_id, _)) = peer
                && let Ok(new_slot) = page.take_slot()
            {
                let moved = self.move_reader(capture, peer_id, slot, new_slot);
                let reading = self.peers.get_mut(&peer_id).and_then(|peer| peer.readings.get_mut(&new_slot));
                match reading.filter(|_| moved) {
                    // The tool may be borrowing bytes by its old slot.
                    Some(reading) => reading.old_slot = Some(slot),
                    None => page.return_slot(new_slot),
                }
            }
        }
    }

    /// Takes `peer_id`'s readers of `handler` (all, if `None`) off their streams.
    pub(crate) fn detach(&mut self, capture: &Capture, peer_id: PeerId, handler: Option<u32>) {
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        let of = |reading: &Reading| handler.is_none_or(|handler| reading.handler == handler);
        let gone: Vec<(u32, Reading)> = peer.readings.extract_if(|_, reading| of(reading)).collect();
        self.take_off(capture, peer_id, gone);
    }

    /// Takes `peer_id`'s readers at `slots`, which it has read to the ends of their streams, off
    /// those. A slot without a reader is passed over: the tool has said the same twice.
    pub(crate) fn drained(&mut self, capture: &Capture, peer_id: PeerId, slots: &[u32]) {
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        let gone = slots.iter().filter_map(|slot| Some((*slot, peer.readings.remove(slot)?))).collect();
        self.take_off(capture, peer_id, gone);
    }

    /// Takes readers of `peer_id`, which does not touch their rings any more, off their streams,
    /// and returns their slots.
    fn take_off(&mut self, capture: &Capture, peer_id: PeerId, gone: Vec<(u32, Reading)>) {
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        // One that was brought along may have two.
        let unsent = |(slot, reading): &(u32, Reading)| [(!reading.sent).then_some(*slot), reading.old_slot];
        peer.drop_rings(&gone.iter().flat_map(unsent).flatten().collect());
        let mut sources = BTreeSet::new();
        for (_, reading) in &gone {
            // A job that was forgotten has no streams.
            if let Some(stream) = self.streams.get_mut(&reading.source) {
                stream.left(peer_id, reading.handler);
                sources.insert(reading.source);
            }
        }
        // Once for each stream, however many readers of it have gone.
        let mut changes = Vec::with_capacity(sources.len());
        for source in sources {
            if let Some(stream) = self.streams.get_mut(&source) {
                changes.push((source, stream.change(&self.backlog_holder, Start::Now)));
            }
        }
        let page: &Arc<ReaderPage> = &peer.page;
        let _ = (!changes.is_empty()).then(|| {
            capture.with_streams(|streams| {
                for (slot, reading) in &gone {
                    if let Some(mut tap) = streams.get_mut(reading.source) {
                        tap.detach(page, *slot);
                    }
                }
                for (source, change) in &changes {
                    if let Some(mut tap) = streams.get_mut(*source) {
                        change.make(&mut tap, &self.backlog_holder);
                    }
                }
            })
        });
        // A tool drops its readers before it deregisters.
        for (slot, reading) in &gone {
            page.return_slot(*slot);
            reading.old_slot.inspect(|old| page.return_slot(*old));
        }
        gone.iter().for_each(|(_, reading)| peer.left(reading));
    }

    /// Notes how many bytes a complete stream has, and tells tools that were not sent it.
    pub(crate) fn stream_completed(&mut self, source: SourceId, produced: u64) {
        let Some(stream) = self.streams.get_mut(&source) else { return };
        stream.produced = produced;
        for (peer_id, handler) in mem::take(&mut stream.missing) {
            if let Some(peer) = self.peers.get_mut(&peer_id) {
                peer.misses(handler, &stream.name, produced);
            }
        }
    }

    /// Forgets those of `wanted`, streams and how many bytes of them, that were read and that the
    /// embedder's own readers have; `false` if the capture has ended.
    pub(crate) fn forget_flushed(&self, capture: &Capture, wanted: &mut Vec<(SourceId, u64)>) -> bool {
        let own = self.peers.values().filter(|peer| peer.own);
        let mut readers: Vec<(SourceId, u32, &Arc<ReaderPage>)> = own
            .flat_map(|peer| peer.readings.iter().map(move |(slot, of)| (of.source, *slot, &peer.page)))
            .collect();
        readers.sort_by_key(|(source, ..)| *source);
        let flushed = capture.with_streams(|streams| {
            wanted.retain(|(id, written)| {
                let Some(tap) = streams.get_mut(*id) else { return false };
                let stats = tap.stats();
                // What came since, at least as much as a reader may be behind.
                let Some(since) = stats.produced.checked_sub(*written) else { return !stats.complete };
                let from = readers.partition_point(|(source, ..)| source < id);
                let of = readers.iter().skip(from).take_while(|(source, ..)| source == id);
                of.filter_map(|(_, slot, page)| tap.lag(page, *slot)).any(|lag| lag > since)
            });
        });
        flushed.is_ok()
    }

    /// Keeps nothing of `sources` for who has not registered yet, from now on.
    pub(crate) fn release_backlog(&mut self, capture: &Capture, sources: &[SourceId]) {
        let mut changes = Vec::new();
        for source in sources {
            let Some(stream) = self.streams.get_mut(source) else { continue };
            stream.release_backlog = true;
            let change = stream.change(&self.backlog_holder, Start::Now);
            if !change.is_nothing() {
                changes.push((*source, change));
            }
        }
        if changes.is_empty() {
            return;
        }
        let _ = capture.with_streams(|streams| {
            for (source, change) in &changes {
                if let Some(mut tap) = streams.get_mut(*source) {
                    change.make(&mut tap, &self.backlog_holder);
                }
            }
        });
    }
}

impl Peer {
    /// Attaches it to a stream, of which it wants `wish`.
    fn attach(
        &self,
        tap: &mut Tap<'_>,
        slot: u32,
        start: Start,
        options: StreamOptions,
    ) -> Result<Attached, CreateError> {
        match options.policy {
            Policy::DropOldest => tap.attach_non_gating(&self.page, slot, start),
            Policy::DropNewest => tap.attach(&self.page, slot, start, false),
            Policy::Block => tap.attach(&self.page, slot, start, self.may_block),
        }
    }

    /// Notes that the tool reads `attached`, and sends it.
    fn announce_ring(
        &mut self,
        handler: u32,
        source: SourceId,
        name: &StreamName,
        follows: Option<u32>,
        attached: Attached,
        options: StreamOptions,
    ) {
        let Attached { ring, slot, start, dropped, non_gating } = attached;
        let from_start = self.registrations.get(&handler).is_none_or(|of| of.start == Start::Oldest);
        let reading = Reading {
            source,
            handler,
            options,
            old_slot: None,
            ring: Arc::downgrade(&ring),
            sent: false,
            begin: if from_start { 0 } else { start.saturating_add(dropped) },
            unread: None,
        };
        self.readings.insert(slot, reading);
        self.slots.insert((source, handler), slot);
        let message = ToTool::Ring {
            handler,
            source: name.source.clone(),
            channel: name.channel,
            logged: name.logged,
            run: name.run,
            slot,
            follows,
            start,
            dropped,
            non_gating,
            options: options.effective(),
        };
        self.announce(&message, ring);
    }
}
