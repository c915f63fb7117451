//! The readers of each stream: they attach with registrations and sources, follow the stream
//! through its generations, and detach.

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;

use iof_capture::{Capture, SourceId, Tap};
use iof_proto::limits::MAX_READERS_PER_TOOL;
use iof_proto::{Failure, Status, ToTool};
use iof_shm_ring::{Attached, CreateError, Policy, ReaderId, ReaderPage, Start, Stream};

use crate::peer::{Peer, Reading};
use crate::state::{PeerId, State, StreamName};
use crate::stream_options::StreamOptions;
use crate::stream_state::{Change, StreamState};

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
