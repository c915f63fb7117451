//! The readers of each stream: they attach with registrations and sources, follow the stream
//! through its generations, and detach.
//!
//! A stream that no registration reads is kept for later ones: the engine's own reader, the
//! backlog holder, holds the bytes until the first registration takes its place. So under drop
//! newest the first bytes remain, as RFC0025 requires, and under block a source that was spawned
//! with forwarding waits.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use iof_capture::{Capture, SourceId, Tap};
use iof_proto::limits::MAX_READERS_PER_TOOL;
use iof_proto::{Channels, Failure, Status, ToTool};
use iof_shm_ring::{Attached, CreateError, Policy, ReaderId, ReaderPage, Start, Stream, StreamConfig};

use crate::peer::{Peer, Reading};
use crate::registrations::Registration;
use crate::state::{PeerId, State, StreamName};
use crate::stream_options::StreamOptions;

/// The engine's state of one stream.
pub(crate) struct StreamState {
    pub name: StreamName,
    /// The options that its job sets.
    options: StreamOptions,
    /// Whether its spawner requested or ruled out forwarding; `None` if the spawner did not specify
    /// it.
    forward: Option<bool>,
    /// The options of the registrations that read it.
    readers: BTreeMap<(PeerId, u32), StreamOptions>,
    /// How many of these differ from the options of its job.
    differing: usize,
    /// The backlog holder's reader while it reads the stream.
    backlog_reader: Option<ReaderId>,
    /// No backlog is kept: the host does not wait for further registrations, or the stream is
    /// complete.
    pub release_backlog: bool,
    /// The registrations that were not attached because their tools read too many streams.
    missing: Vec<(PeerId, u32)>,
    /// How many bytes its source has produced, once it is complete.
    pub produced: u64,
    /// The configuration differs from the one of its job, because of its readers.
    adjusted: bool,
}

/// What must be done to a stream after its readers have changed.
#[derive(Default)]
struct Change {
    /// The backlog holder attaches.
    hold_backlog: Option<HoldBacklog>,
    /// The backlog holder detaches this reader and returns its slot.
    release_backlog: Option<ReaderId>,
    config: Option<StreamConfig>,
}

struct HoldBacklog {
    reader_id: ReaderId,
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
            differing: 0,
            backlog_reader: None,
            release_backlog: false,
            missing: Vec::new(),
            produced: 0,
            adjusted: false,
        }
    }

    /// Returns the tools that read the stream, with their registrations.
    pub(crate) fn readers(&self) -> impl Iterator<Item = (PeerId, u32)> {
        self.readers.keys().copied()
    }

    /// Returns the options with which `registration` of `peer` reads this stream; `None` if the
    /// registration does not cover it.
    fn options_for(&self, peer: &Peer, registration: &Registration) -> Option<StreamOptions> {
        let covered = registration.channels.contains(Channels::from(self.name.channel))
            && registration.covers(&self.name.source)
            && registration.includes(&self.name.source.nspace)
            // A stream without forwarding is only for tools that ask for it, not for the launcher's
            // own readers.
            && !(peer.own && self.forward == Some(false));
        covered.then(|| self.options.under(&registration.directives))
    }

    /// Returns whether a reader with these options needs another configuration of the stream than
    /// its job sets.
    fn differs(&self, options: &StreamOptions) -> bool {
        (options.cache_size, options.policy) != (self.options.cache_size, self.options.policy)
    }

    /// Returns whether `peer` may have another reader of this stream.
    fn may_join(&self, peer_id: PeerId, peer: &Peer) -> bool {
        let reads = self.readers.range((peer_id, 0)..=(peer_id, u32::MAX));
        peer.own || reads.take(MAX_READERS_PER_TOOL).count() < MAX_READERS_PER_TOOL
    }

    /// Records a reader.
    fn add_reader(&mut self, peer_id: PeerId, handler: u32, options: StreamOptions) {
        self.remove_reader(peer_id, handler);
        self.differing = self.differing.saturating_add(usize::from(self.differs(&options)));
        self.readers.insert((peer_id, handler), options);
    }

    /// Removes a reader.
    fn remove_reader(&mut self, peer_id: PeerId, handler: u32) {
        if let Some(options) = self.readers.remove(&(peer_id, handler)) {
            self.differing = self.differing.saturating_sub(usize::from(self.differs(&options)));
        }
    }

    /// Returns whether the backlog holder should read the stream, and then whether it may hold back
    /// the source.
    fn backlog_may_block(&self) -> Option<bool> {
        match self.options.policy {
            _ if self.release_backlog || !self.readers.is_empty() => None,
            Policy::DropNewest => Some(false),
            Policy::Block if self.forward == Some(true) => Some(true),
            Policy::Block | Policy::DropOldest => None,
        }
    }

    /// Returns what must be done after readers have joined or left.
    fn change(&mut self, backlog_holder: &ReaderPage, start: Start) -> Change {
        let mut change = Change { config: self.adjust(), ..Change::default() };
        match (self.backlog_may_block(), self.backlog_reader) {
            (Some(may_block), None) => {
                // Without a slot, the stream keeps its last bytes, as one without a backlog.
                self.backlog_reader = backlog_holder
                    .take_slot()
                    .inspect_err(|error| tracing::warn!(%error, "no backlog is kept"))
                    .ok();
                change.hold_backlog =
                    self.backlog_reader.map(|reader_id| HoldBacklog { reader_id, start, may_block });
            }
            (None, Some(reader_id)) => {
                self.backlog_reader = None;
                change.release_backlog = Some(reader_id);
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
        change
    }

    /// Returns the configuration that the readers need, if it may differ from the current one.
    fn adjust(&mut self) -> Option<StreamConfig> {
        let differs = self.differing > 0;
        let was = mem::replace(&mut self.adjusted, differs);
        (differs || was).then(|| self.options.shared(self.readers.values().copied()))
    }
}

impl Change {
    fn is_nothing(&self) -> bool {
        self.hold_backlog.is_none() && self.release_backlog.is_none() && self.config.is_none()
    }

    /// Applies the change. Joining readers must be attached and leaving ones detached before.
    fn apply(&self, tap: &mut Tap<'_>, backlog_holder: &Arc<ReaderPage>) {
        // The configuration comes first: a cache that no registration reads any more is made
        // smaller at once.
        if let Some(config) = self.config
            && let Err(error) = tap.reconfigure(config)
        {
            // Sizes were checked when they were requested.
            tracing::error!(%error, "a stream keeps its configuration");
        }
        if let Some(HoldBacklog { reader_id, start, may_block }) = self.hold_backlog {
            // Fails only for slots that do not exist.
            let _ = tap.attach(backlog_holder, reader_id, start, may_block);
        }
        if let Some(reader_id) = self.release_backlog
            && tap.detach(backlog_holder, reader_id)
        {
            backlog_holder.return_slot(reader_id);
        }
    }
}

impl State {
    /// Adds a new stream, and attaches every tool that registered for it before its first byte.
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
            match slot.and_then(|reader_id| peer.attach_reader(&mut tap, reader_id, start, options)) {
                Ok(attached) => {
                    new.add_reader(peer_id, handler, options);
                    peer.announce_ring(handler, id, &new.name, None, attached, options);
                }
                // The tool is informed when the number of missed bytes is known.
                Err(error) => {
                    tracing::debug!(tool = peer_id, %error, "a tool misses a new source");
                    new.missing.push((peer_id, handler));
                }
            }
        }
        new.change(&self.backlog_holder, Start::Oldest).apply(&mut tap, &self.backlog_holder);
        self.streams.insert(id, new);
        self.queries.streams_changed();
        id
    }

    /// Attaches `peer_id` to the existing streams that its registration `handler` covers. They must
    /// be [announced](State::announce) afterwards.
    ///
    /// # Errors
    /// Fails if the tool has no slots left or too many readers of one stream. Nothing was attached
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
        let mut wanted: Vec<(SourceId, ReaderId, StreamOptions)> = Vec::new();
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
                Ok(reader_id) => wanted.push((*source, reader_id, options)),
                Err(reason) => {
                    wanted.iter().for_each(|(_, reader_id, _)| peer.page.return_slot(*reader_id));
                    return Err(Failure::new(Status::ERR_OUT_OF_RESOURCE, reason));
                }
            }
        }
        let mut changes = Vec::with_capacity(wanted.len());
        for (source, reader_id, options) in wanted {
            let Some(stream) = self.streams.get_mut(&source) else { continue };
            stream.add_reader(peer_id, handler, options);
            changes.push((source, reader_id, options, stream.change(&self.backlog_holder, Start::Now)));
        }
        let attached = capture.with_streams(|streams| {
            let attach_stream =
                |(source, reader_id, options, change): &(SourceId, ReaderId, StreamOptions, Change)| {
                    let mut tap = streams.get_mut(*source)?;
                    let attached =
                        peer.attach_reader(&mut tap, *reader_id, registration.start, *options).ok()?;
                    change.apply(&mut tap, &self.backlog_holder);
                    Some((*source, *options, attached))
                };
            changes.iter().filter_map(attach_stream).collect()
        });
        // A capture thread that has ended has no streams either.
        Ok(attached.unwrap_or_default())
    }

    /// Sends `peer_id` the rings that [`State::attach_existing`] has attached it to.
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

    /// Moves the reader `reader_id` of `peer_id` to the newest generation, at its tool's request.
    ///
    /// Requests that come before the ring was sent or sealed are ignored. Otherwise each request
    /// before the ring was sent would queue another ring, and each request before the ring is
    /// sealed would wake the capture thread.
    pub(crate) fn follow(&mut self, capture: &Capture, peer_id: PeerId, reader_id: ReaderId) {
        let reading = self.peers.get(&peer_id).and_then(|peer| peer.readings.get(&reader_id));
        if reading.is_some_and(Reading::may_follow) {
            self.move_reader(capture, peer_id, reader_id, reader_id);
        }
    }

    /// Moves the reader `reader_id` of `peer_id` to the newest generation, in which it is `new_id`.
    /// Returns `false` if the reader is there already.
    fn move_reader(
        &mut self,
        capture: &Capture,
        peer_id: PeerId,
        reader_id: ReaderId,
        new_id: ReaderId,
    ) -> bool {
        let Some(peer) = self.peers.get_mut(&peer_id) else { return false };
        let Some(&Reading { source, handler, options, begin, .. }) = peer.readings.get(&reader_id) else {
            return false;
        };
        let Some(stream) = self.streams.get(&source) else { return false };
        let page = Arc::clone(&peer.page);
        let followed = capture
            .with_streams(|streams| streams.get_mut(source)?.follow(&page, reader_id, new_id))
            .ok()
            .flatten();
        let Some(attached) = followed else { return false };
        peer.readings.remove(&reader_id);
        peer.announce_ring(handler, source, &stream.name, Some(reader_id), attached, options);
        if let Some(reading) = peer.readings.get_mut(&new_id) {
            reading.begin = begin;
        }
        true
    }

    /// Sends the last generation of a complete stream to the readers that are not in it yet. They
    /// need not request it, so they receive it even if the engine has ended by the time they have
    /// drained their own generation.
    pub(crate) fn send_last_generation(&mut self, capture: &Capture, source: SourceId) {
        let left_behind = capture.with_streams(|streams| Some(streams.get_mut(source)?.left_behind()));
        for (page, reader_id) in left_behind.ok().flatten().unwrap_or_default() {
            let peer = self.peers.iter().find(|(_, peer)| Arc::ptr_eq(&peer.page, &page));
            // A tool without a free slot sends a request when it has drained its generation.
            if let Some((&peer_id, _)) = peer
                && let Ok(new_id) = page.take_slot()
            {
                let moved = self.move_reader(capture, peer_id, reader_id, new_id);
                let reading = self.peers.get_mut(&peer_id).and_then(|peer| peer.readings.get_mut(&new_id));
                match reading.filter(|_| moved) {
                    // The tool may still borrow bytes through its old slot.
                    Some(reading) => reading.old_id = Some(reader_id),
                    None => page.return_slot(new_id),
                }
            }
        }
    }

    /// Detaches `peer_id`'s readers of registration `handler` (all, if `None`) from their streams.
    pub(crate) fn detach(&mut self, capture: &Capture, peer_id: PeerId, handler: Option<u32>) {
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        let detached: Vec<(ReaderId, Reading)> = peer
            .readings
            .extract_if(|_, reading| handler.is_none_or(|handler| reading.handler == handler))
            .collect();
        self.detach_readings(capture, peer_id, detached);
    }

    /// Detaches `peer_id`'s readers `ids`, which have drained their streams. An id without a reader
    /// is skipped: the tool has reported it twice.
    pub(crate) fn drained(
        &mut self,
        capture: &Capture,
        peer_id: PeerId,
        ids: impl Iterator<Item = ReaderId>,
    ) {
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        let detached = ids.filter_map(|id| Some((id, peer.readings.remove(&id)?))).collect();
        self.detach_readings(capture, peer_id, detached);
    }

    /// Detaches readers of `peer_id`, which no longer uses their rings, from their streams, and
    /// returns their slots.
    fn detach_readings(&mut self, capture: &Capture, peer_id: PeerId, detached: Vec<(ReaderId, Reading)>) {
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        // A reader that was moved to the last generation may have two slots.
        let unsent = |(id, reading): &(ReaderId, Reading)| [(!reading.sent).then_some(*id), reading.old_id];
        peer.drop_rings(&detached.iter().flat_map(unsent).flatten().collect());
        let mut sources = BTreeSet::new();
        for (_, reading) in &detached {
            // A removed job has no streams.
            if let Some(stream) = self.streams.get_mut(&reading.source) {
                stream.remove_reader(peer_id, reading.handler);
                sources.insert(reading.source);
            }
        }
        // One change for each stream, regardless of the number of readers that are detached.
        let mut changes = Vec::with_capacity(sources.len());
        for source in sources {
            if let Some(stream) = self.streams.get_mut(&source) {
                changes.push((source, stream.change(&self.backlog_holder, Start::Now)));
            }
        }
        let page: &Arc<ReaderPage> = &peer.page;
        let _ = (!changes.is_empty()).then(|| {
            capture.with_streams(|streams| {
                for (id, reading) in &detached {
                    if let Some(mut tap) = streams.get_mut(reading.source) {
                        tap.detach(page, *id);
                    }
                }
                for (source, change) in &changes {
                    if let Some(mut tap) = streams.get_mut(*source) {
                        change.apply(&mut tap, &self.backlog_holder);
                    }
                }
            })
        });
        // The tool has dropped its readers before it deregistered.
        for (id, reading) in &detached {
            page.return_slot(*id);
            reading.old_id.inspect(|old| page.return_slot(*old));
        }
        detached.iter().for_each(|(_, reading)| peer.remove_reading(reading));
    }

    /// Records how many bytes a complete stream has, and informs the tools that could not be
    /// attached to it.
    pub(crate) fn stream_completed(&mut self, source: SourceId, produced: u64) {
        let Some(stream) = self.streams.get_mut(&source) else { return };
        stream.produced = produced;
        for (peer_id, handler) in mem::take(&mut stream.missing) {
            if let Some(peer) = self.peers.get_mut(&peer_id) {
                peer.add_missed(handler, &stream.name, produced);
            }
        }
    }

    /// Removes from `wanted` (streams, each with a number of bytes) the streams from which that
    /// many bytes were captured and read by the embedder's own readers. Returns `false` if the
    /// capture thread has ended.
    pub(crate) fn retain_unflushed(&self, capture: &Capture, wanted: &mut Vec<(SourceId, u64)>) -> bool {
        let own = self.peers.values().filter(|peer| peer.own);
        let mut readers: Vec<(SourceId, ReaderId, &Arc<ReaderPage>)> = own
            .flat_map(|peer| {
                peer.readings.iter().map(move |(reader_id, reading)| (reading.source, *reader_id, &peer.page))
            })
            .collect();
        readers.sort_by_key(|(source, ..)| *source);
        let flushed = capture.with_streams(|streams| {
            wanted.retain(|(id, written)| {
                let Some(tap) = streams.get_mut(*id) else { return false };
                let stats = tap.stats();
                // The bytes produced since then; a reader may be this far behind.
                let Some(since) = stats.produced.checked_sub(*written) else { return !stats.complete };
                let from = readers.partition_point(|(source, ..)| source < id);
                let on_stream = readers.iter().skip(from).take_while(|(source, ..)| source == id);
                on_stream.filter_map(|(_, reader_id, page)| tap.lag(page, *reader_id)).any(|lag| lag > since)
            });
        });
        flushed.is_ok()
    }

    /// Ends the backlog of `sources`: from now on no bytes are kept for later registrations.
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
                    change.apply(&mut tap, &self.backlog_holder);
                }
            }
        });
    }
}

impl Peer {
    /// Attaches a reader with `options` to a stream.
    fn attach_reader(
        &self,
        tap: &mut Tap<'_>,
        reader_id: ReaderId,
        start: Start,
        options: StreamOptions,
    ) -> Result<Attached, CreateError> {
        match options.policy {
            Policy::DropOldest => tap.attach_non_gating(&self.page, reader_id, start),
            Policy::DropNewest => tap.attach(&self.page, reader_id, start, false),
            Policy::Block => tap.attach(&self.page, reader_id, start, self.may_block),
        }
    }

    /// Records that the tool reads `attached`, and queues the ring for it.
    fn announce_ring(
        &mut self,
        handler: u32,
        source: SourceId,
        name: &StreamName,
        follows: Option<ReaderId>,
        attached: Attached,
        options: StreamOptions,
    ) {
        let Attached { ring, id, start, dropped, non_gating } = attached;
        let from_start =
            self.registrations.get(&handler).is_none_or(|registration| registration.start == Start::Oldest);
        let reading = Reading {
            source,
            handler,
            options,
            old_id: None,
            ring: Arc::downgrade(&ring),
            sent: false,
            begin: if from_start { 0 } else { start.saturating_add(dropped) },
            unread: None,
        };
        self.readings.insert(id, reading);
        self.reader_ids.insert((source, handler), id);
        let message = ToTool::Ring {
            handler,
            source: name.source.clone(),
            channel: name.channel,
            logged: name.logged,
            run: name.run,
            slot: id.into(),
            follows: follows.map(u32::from),
            start,
            dropped,
            non_gating,
            options: options.effective(),
        };
        self.announce(&message, ring);
    }
}
