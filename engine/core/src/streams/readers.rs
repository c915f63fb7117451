//! The readers of each stream: they attach with registrations and sources, follow the stream
//! through its generations, and detach.
//!
//! The capture thread attaches and moves readers. Its commands keep their order, so a slot can be
//! used again as soon as the command that detaches its reader is queued.

use std::collections::{BTreeMap, BTreeSet};

use iof_capture::{RequestId, SourceId, StreamAnswer, StreamRequest, StreamStep};
use iof_proto::{Failure, Nspace, Status};
use iof_shm_ring::{CreateError, ReaderId, Start};

use crate::Core;
use crate::effects::Command;
use crate::ids::{PageId, PeerId, RingId, StreamName};
use crate::notice::Notice;
use crate::streams::awaited::{Awaited, JoiningReader};
use crate::streams::completion::Completion;
use crate::streams::options::StreamOptions;
use crate::streams::reading::Reading;
use crate::streams::state::StreamState;
use crate::tools::pull::RegisteredPull;

impl Core {
    /// Reserves a slot for each of the embedder's own gating readers that will read `new`, so that
    /// none misses this stream when it is added. Returns the tools of these readers.
    ///
    /// # Errors
    /// The readers of a tool have no slots left, or too little memory is left. Nothing is reserved
    /// for `new` then.
    pub(crate) fn reserve_readers(&mut self, new: &StreamState) -> Result<Vec<PeerId>, CreateError> {
        let nspace = &new.name().source.nspace;
        let mut reserved = Vec::new();
        for (peer_id, handler) in self.tools.naming(nspace) {
            let Some(peer) = self.tools.get_mut(&peer_id).filter(|peer| !peer.may_lose()) else { continue };
            let reads = |registration| new.options_for(peer, registration).is_some();
            if peer.registration(handler).is_some_and(reads) {
                if let Err(error) = peer.slots_mut().reserve(nspace, &*self.resources) {
                    self.cancel_reservations(nspace, &reserved);
                    return Err(error);
                }
                reserved.push(peer_id);
            }
        }
        Ok(reserved)
    }

    /// Frees the slots of a stream of `nspace` that is not added after all. `reserved` is what
    /// [`Core::reserve_readers`] returned last. The slots of ranks that are being started stay.
    pub(crate) fn cancel_reservations(&mut self, nspace: &Nspace, reserved: &[PeerId]) {
        for peer in reserved {
            self.tools.get_mut(peer).into_iter().for_each(|peer| peer.slots_mut().cancel_reservation(nspace));
        }
    }

    /// Frees the slots that are still reserved for streams of `nspace`.
    pub(crate) fn release_reserved(&mut self, nspace: &Nspace) {
        self.tools.iter_mut().for_each(|(_, peer)| peer.slots_mut().release_reserved(nspace));
    }

    /// Adds the new stream `source`. Returns the request that attaches every tool that registered
    /// for it, which the capture thread performs before the first byte of the stream.
    pub(crate) fn add_stream(&mut self, source: SourceId, mut new: StreamState) -> StreamRequest<PageId> {
        let (request, limit) = (self.awaited.next_id(), self.settings.limits.readers_per_tool);
        let (mut steps, mut readers) = (Vec::new(), Vec::new());
        for (peer_id, handler) in self.tools.naming(&new.name().source.nspace) {
            let Some(peer) = self.tools.get_mut(&peer_id) else { absent!("tool", continue) };
            let Some(registration) = peer.registration(handler) else { absent!("registration", continue) };
            let Some(options) = new.options_for(peer, registration) else { continue };
            if registration.start() == Start::Now && self.jobs.is_behind(new.name()) {
                continue;
            }
            let may_join = !peer.is_behind() && new.may_join(peer_id, peer, limit);
            let reserved = peer.slots_mut().take_reserved(&new.name().source.nspace);
            match reserved.map_or_else(|| peer.take_slot(&*self.resources), Ok) {
                Ok(id) if may_join => {
                    new.add_reader(peer_id, handler, options);
                    let reader = JoiningReader { peer_id, handler, id };
                    steps.extend(peer.join(request, source, new.name(), &reader, options, &self.spawns));
                    readers.push(reader);
                }
                // The tool is informed when the number of missed bytes is known.
                missed => {
                    missed.into_iter().for_each(|id| peer.return_slot(id));
                    self.effects.notices.push(Notice::Missed(peer_id));
                    new.miss(peer_id, handler);
                }
            }
        }
        let awaits = !readers.is_empty();
        if awaits {
            self.awaited.add(request, Awaited::Join { pull: None, readers });
        }
        steps.extend(self.streams.add(source, new, &*self.resources));
        self.queries.streams_changed();
        StreamRequest { id: awaits.then_some(request), steps }
    }

    /// Attaches the tools that begin with the newest byte of a stream of another node, behind all that the node
    /// had cached when the stream was pulled.
    pub(crate) fn attach_newest(&mut self, source: SourceId) {
        let (request, limit) = (self.awaited.next_id(), self.settings.limits.readers_per_tool);
        let (mut steps, mut readers) = (Vec::new(), Vec::new());
        let Some(stream) = self.streams.get_mut(&source) else { absent!("stream", return) };
        for (peer_id, handler) in self.tools.naming(&stream.name().source.nspace) {
            let Some(peer) = self.tools.get_mut(&peer_id) else { absent!("tool", continue) };
            let Some(registration) = peer.registration(handler) else { absent!("registration", continue) };
            let options = stream.options_for(peer, registration);
            let Some(options) = options.filter(|_| registration.start() == Start::Now) else { continue };
            let may_join = !peer.is_behind() && stream.may_join(peer_id, peer, limit);
            match may_join.then(|| peer.take_slot(&*self.resources)) {
                Some(Ok(id)) => {
                    stream.add_reader(peer_id, handler, options);
                    let reader = JoiningReader { peer_id, handler, id };
                    steps.extend(peer.join(request, source, stream.name(), &reader, options, &self.spawns));
                    readers.push(reader);
                }
                // The tool is informed when the number of missed bytes is known.
                None | Some(Err(_)) => {
                    self.effects.notices.push(Notice::Missed(peer_id));
                    stream.miss(peer_id, handler);
                }
            }
        }
        if !readers.is_empty() {
            self.awaited.add(request, Awaited::Join { pull: None, readers });
            steps.extend(self.streams.changes(source, &*self.resources));
            self.queue_request(request, steps);
        }
    }

    /// Attaches `peer_id` to the existing streams that its registration covers, and answers its
    /// pull after that.
    ///
    /// # Errors
    /// Fails if the tool has no slots left or too many readers of one stream. Nothing is attached
    /// then, and the pull is not answered.
    pub(crate) fn attach_existing(&mut self, peer_id: PeerId, pull: RegisteredPull) -> Result<(), Failure> {
        let handler = pull.handler;
        let wanted = self.take_slots(peer_id, handler)?;
        if wanted.is_empty() {
            self.answer_pull(peer_id, pull);
            self.readers_settled(peer_id, handler);
            self.report_ends(peer_id, handler);
            return Ok(());
        }
        let request = self.awaited.next_id();
        let (mut steps, mut changes, mut readers) = (Vec::new(), Vec::new(), Vec::new());
        let Some(peer) = self.tools.get_mut(&peer_id) else { absent!("tool", return Ok(())) };
        for (source, id, options) in wanted {
            let Some(stream) = self.streams.get_mut(&source) else { absent!("stream", continue) };
            stream.add_reader(peer_id, handler, options);
            let reader = JoiningReader { peer_id, handler, id };
            steps.extend(peer.join(request, source, stream.name(), &reader, options, &self.spawns));
            changes.extend(self.streams.changes(source, &*self.resources));
            readers.push(reader);
        }
        steps.extend(changes);
        self.request_begun(peer_id);
        self.awaited.add(request, Awaited::Join { pull: Some((peer_id, pull)), readers });
        self.queue_request(request, steps);
        Ok(())
    }

    /// Takes a slot for each existing stream that a registration covers.
    fn take_slots(
        &mut self,
        peer_id: PeerId,
        handler: u32,
    ) -> Result<Vec<(SourceId, ReaderId, StreamOptions)>, Failure> {
        let Some(peer) = self.tools.get_mut(&peer_id) else { absent!("tool", return Ok(Vec::new())) };
        let Some(registration) = peer.registration(handler) else {
            absent!("registration", return Ok(Vec::new()))
        };
        let limit = self.settings.limits.readers_per_tool;
        let full = |name: &StreamName| {
            let StreamName { source, channel, .. } = name;
            format!("a tool may have {limit} registrations for {channel} of {source}: end one first")
        };
        let options = |(source, stream): (&SourceId, &StreamState)| {
            let options = stream.options_for(peer, registration)?;
            if registration.start() == Start::Now && self.jobs.is_behind(stream.name()) {
                return None;
            }
            let may_join = stream.may_join(peer_id, peer, limit);
            Some(if may_join { Ok((*source, options)) } else { Err(full(stream.name())) })
        };
        let covered: Result<Vec<_>, String> = self.streams.iter().filter_map(options).collect();
        let out_of_resource = |reason| Failure::new(Status::ERR_OUT_OF_RESOURCE, reason);
        let mut wanted: Vec<(SourceId, ReaderId, StreamOptions)> = Vec::new();
        for (source, options) in covered.map_err(out_of_resource)? {
            match peer.take_slot(&*self.resources) {
                Ok(id) => wanted.push((source, id, options)),
                Err(error) => {
                    wanted.iter().for_each(|(_, id, _)| peer.return_slot(*id));
                    return Err(out_of_resource(error.to_string()));
                }
            }
        }
        Ok(wanted)
    }

    /// Returns the tools whose readers `request` attaches or moves, in the order of its answers.
    pub fn joining_tools(&self, request: RequestId) -> Vec<PeerId> {
        self.awaited.joining(request).iter().map(|reader| reader.peer_id).collect()
    }

    /// Sends the rings of readers that the capture thread has attached or moved. Readers that were
    /// detached meanwhile are skipped.
    pub(crate) fn readers_joined(
        &mut self,
        request: RequestId,
        readers: &[JoiningReader],
        answers: Vec<StreamAnswer<()>>,
    ) {
        // The answers of the steps that change the streams follow.
        let joined = answers.into_iter().map(|answer| match answer {
            StreamAnswer::Joined(joined) => joined,
            _ => None,
        });
        let mut changes = Vec::new();
        let answers = joined.chain(std::iter::repeat_with(|| None)).enumerate();
        for (reader, (index, joined)) in readers.iter().zip(answers) {
            let JoiningReader { peer_id, handler, id } = *reader;
            let Some(peer) = self.tools.get_mut(&peer_id) else { continue };
            match joined {
                Some(joined) => {
                    peer.reader_joined(RingId { request, index }, id, joined);
                }
                None => {
                    // The capture thread ends or has discarded the stream, or the kernel has no
                    // memory for its ring.
                    if let Some(reading) = peer.join_failed(request, id) {
                        let produced = match self.streams.get_mut(&reading.source) {
                            Some(stream) => {
                                stream.remove_reader(peer_id, handler);
                                let missed = stream.miss(peer_id, handler);
                                let source = reading.source;
                                changes.extend(self.streams.changes_without_join(source, &*self.resources));
                                missed
                            }
                            // Its job was removed meanwhile.
                            None => Some(reading.forgotten().map_or(0, |completion| completion.produced)),
                        };
                        if let Some(produced) = produced {
                            peer.add_missed(handler, &reading.name, produced, None);
                        }
                    }
                }
            }
            let registration = peer.registration_mut(handler);
            if registration.is_some_and(|registration| registration.reader_settled()) {
                self.readers_settled(peer_id, handler);
            }
        }
        self.request_unanswered(changes);
        self.remove_kept_streams();
    }

    /// Moves the reader `id` of `peer_id` to the newest generation, at its tool's request.
    ///
    /// A tool sees the end of its generation before [`Core::stream_moved`] is called, so its
    /// request is remembered until then. A request that comes too early or twice does not wake the
    /// capture thread and queues no ring.
    pub(crate) fn follow(&mut self, peer_id: PeerId, id: ReaderId) {
        let Some(peer) = self.tools.get_mut(&peer_id) else { absent!("tool", return) };
        let Some(reading) = peer.follow_requested(id) else { return };
        let newest = match (self.streams.get(&reading.source), reading.forgotten()) {
            (Some(stream), _) => stream.generation(),
            (None, Some(last)) => last.generation,
            (None, None) => return,
        };
        self.move_left_behind(vec![(peer_id, id)], newest);
    }

    /// Notes that a stream continues in a generation, and moves the readers whose tools have
    /// requested that.
    pub(crate) fn stream_moved(&mut self, source: SourceId, generation: u64) {
        let Some(stream) = self.streams.get_mut(&source) else { absent!("stream", return) };
        stream.moved(generation);
        let waiting = |(peer_id, handler)| {
            let peer = self.tools.get(&peer_id).or_else(|| absent!("tool", None))?;
            let id = peer.reader_of(source, handler).or_else(|| absent!("reader", None))?;
            peer.reading(id)?.waits().then_some((peer_id, id))
        };
        let waiting = stream.readers().filter_map(waiting).collect();
        self.move_left_behind(waiting, generation);
    }

    /// Sends the last generation of a complete stream to the readers that are not in it yet. They
    /// need not request it, so they receive it even if the engine has ended by the time they have
    /// drained their own generation.
    pub(crate) fn send_last_generation(&mut self, source: SourceId) {
        let Some(stream) = self.streams.get(&source) else { return };
        let Some(Completion { generation, .. }) = stream.completion() else { absent!("completion", return) };
        let id = |(peer_id, handler)| {
            let peer = self.tools.get(&peer_id).or_else(|| absent!("tool", None))?;
            Some((peer_id, peer.reader_of(source, handler).or_else(|| absent!("reader", None))?))
        };
        let readers = stream.readers().filter_map(id).collect();
        self.move_left_behind(readers, generation);
    }

    /// Moves those of `readers` to the last generation of their stream, `newest`, that are not in
    /// it yet.
    fn move_left_behind(&mut self, readers: Vec<(PeerId, ReaderId)>, newest: u64) {
        if readers.is_empty() {
            return;
        }
        let request = self.awaited.next_id();
        let (mut steps, mut moved) = (Vec::new(), Vec::new());
        for (peer_id, id) in readers {
            let Some(peer) = self.tools.get_mut(&peer_id) else { absent!("tool", continue) };
            let Some(reading) = peer.reading(id) else { absent!("reader", continue) };
            if !reading.is_left_behind(newest) {
                continue;
            }
            let (handler, asks) = (reading.handler, reading.waits());
            // A tool without a free slot sends a request when it has drained its generation.
            let Ok(new) = (if asks { Ok(id) } else { peer.take_slot(&*self.resources) }) else { continue };
            steps.extend(peer.follow(request, id, new));
            moved.push(JoiningReader { peer_id, handler, id });
        }
        if !moved.is_empty() {
            self.awaited.add(request, Awaited::Join { pull: None, readers: moved });
            self.queue_request(request, steps);
        }
    }

    /// Moves readers whose streams were removed before they were moved to the last generations,
    /// because the capture thread had ended. The streams are removed afterwards.
    pub(crate) fn move_stranded(&mut self) {
        let mut stranded: BTreeMap<SourceId, (u64, Vec<(PeerId, ReaderId)>)> = BTreeMap::new();
        for (peer_id, id, reading) in self.stranded() {
            let newest = reading.forgotten().map_or(0, |completion| completion.generation);
            stranded.entry(reading.source).or_insert((newest, Vec::new())).1.push((peer_id, id));
        }
        for (source, (newest, readers)) in stranded {
            self.remove_stream(source, readers, newest);
        }
    }

    /// Moves the `readers` of a forgotten stream to its last generation, `newest`, and lets the
    /// capture thread remove the stream. It is kept while a reader waits for a free slot of its
    /// tool: the tool sends a request when it has drained its generation.
    pub(crate) fn remove_stream(&mut self, source: SourceId, readers: Vec<(PeerId, ReaderId)>, newest: u64) {
        self.move_left_behind(readers.clone(), newest);
        let remains = |(peer_id, id): (PeerId, ReaderId)| {
            let reading = self.tools.get(&peer_id).and_then(|peer| peer.reading(id));
            reading.is_some_and(|reading| reading.is_left_behind(newest))
        };
        if readers.into_iter().any(remains) {
            self.kept_streams.insert(source);
        } else {
            self.kept_streams.remove(&source);
            self.effects.commands.push(Command::Remove(source));
        }
    }

    /// Lets the capture thread remove the kept streams whose readers have all been moved or have
    /// ended.
    pub fn remove_kept_streams(&mut self) {
        if self.kept_streams.is_empty() {
            return;
        }
        let stranded: BTreeSet<SourceId> = self.stranded().map(|(_, _, reading)| reading.source).collect();
        let removed = self.kept_streams.extract_if(.., |source| !stranded.contains(source));
        self.effects.commands.extend(removed.map(Command::Remove));
    }

    /// Returns the readers that are in an earlier generation of a stream that was removed.
    pub fn stranded(&self) -> impl Iterator<Item = (PeerId, ReaderId, &Reading)> {
        let readings = self.tools.iter().flat_map(|(id, peer)| peer.readings().map(move |found| (id, found)));
        let is_stranded =
            |reading: &Reading| reading.forgotten().is_some_and(|last| reading.is_before(last.generation));
        readings.filter_map(move |(peer_id, (id, reading))| {
            is_stranded(reading).then_some((peer_id, id, reading))
        })
    }

    /// Detaches `peer_id`'s readers of registration `handler` (all, if `None`) from their streams,
    /// because the registration ends.
    pub(crate) fn detach(&mut self, peer_id: PeerId, handler: Option<u32>) {
        self.streams.registration_ended(peer_id, handler);
        let Some(peer) = self.tools.get(&peer_id) else { return };
        let ends = |reading: &Reading| handler.is_none_or(|handler| reading.handler == handler);
        let ids: Vec<ReaderId> =
            peer.readings().filter(|(_, reading)| ends(reading)).map(|(id, _)| id).collect();
        self.drained(peer_id, ids.into_iter());
    }

    /// Detaches `peer_id`'s readers `ids`, whose rings it no longer uses, from their streams, and
    /// returns their slots. An id without a reader is skipped: the tool has reported it twice.
    pub(crate) fn drained(&mut self, peer_id: PeerId, ids: impl Iterator<Item = ReaderId>) {
        let Some(peer) = self.tools.get_mut(&peer_id) else { absent!("tool", return) };
        let detached = peer.take_readings(ids);
        let (mut sources, mut steps) = (BTreeSet::new(), Vec::new());
        for (id, reading) in &detached {
            let stream = self.streams.get_mut(&reading.source);
            // A removed job has no streams.
            if stream.is_some() || self.kept_streams.contains(&reading.source) {
                if let Some(stream) = stream {
                    stream.remove_reader(peer_id, reading.handler);
                    sources.insert(reading.source);
                }
                // It has the second id if it was about to move.
                let moved = reading.moved_id(*id);
                let page = peer.page();
                let detach = |reader| StreamStep::Detach { source: reading.source, page, reader };
                steps.extend([Some(*id), moved].into_iter().flatten().map(detach));
            }
        }
        // One change for each stream, regardless of the number of readers that are detached.
        for source in sources {
            steps.extend(self.streams.changes(source, &*self.resources));
        }
        // The tool has dropped its readers before it deregistered.
        for (id, reading) in &detached {
            peer.release_reading(*id, reading);
        }
        self.request_unanswered(steps);
        self.remove_kept_streams();
    }

    /// Records how many bytes a complete stream has, and informs the tools that could not be
    /// attached to it.
    pub(crate) fn stream_completed(&mut self, source: SourceId, completion: Completion) {
        let Some(stream) = self.streams.get_mut(&source) else { absent!("stream", return) };
        let missing = stream.complete(completion);
        for (peer_id, handler) in &missing {
            let Some(peer) = self.tools.get_mut(peer_id) else { absent!("tool", continue) };
            peer.add_missed(*handler, stream.name(), completion.produced, None);
        }
        missing.into_iter().for_each(|(peer_id, handler)| self.announce_if_complete(peer_id, handler));
    }

    /// Returns the embedder's own readers, sorted by their sources.
    pub fn own_readers(&self) -> Vec<(SourceId, ReaderId, PageId)> {
        let own = self.tools.values().filter(|peer| peer.is_own());
        let mut readers: Vec<_> = own
            .flat_map(|peer| peer.readings().map(|(id, reading)| (reading.source, id, peer.page())))
            .collect();
        readers.sort_by_key(|(source, ..)| *source);
        readers
    }

    /// Ends the backlog of `sources`: from now on no bytes are kept for later registrations.
    pub(crate) fn release_backlog(&mut self, sources: &[SourceId]) {
        let mut steps = Vec::new();
        for source in sources {
            let Some(stream) = self.streams.get_mut(source) else { absent!("stream", continue) };
            stream.release_backlog();
            steps.extend(self.streams.changes(*source, &*self.resources));
        }
        self.request_unanswered(steps);
    }
}
