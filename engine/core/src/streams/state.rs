//! One stream in the engine's tables: its options, its readers, and whether a backlog is kept.
//!
//! A stream that no registration reads is kept for later ones: the engine's own reader, the
//! backlog holder, holds the bytes until the first registration takes its place. So under drop
//! newest the first bytes remain, as RFC0025 requires, and under block a source that was spawned
//! with forwarding waits.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use iof_capture::{Gating, SourceId, StreamStep};
use iof_proto::{Channel, Channels, Proc};
use iof_shm_ring::{Policy, ReaderId, Start, StreamConfig};

use crate::count::Count;
use crate::ids::{PageId, PeerId, StreamName};
use crate::jobs::job::JobState;
use crate::resources::Resources;
use crate::streams::backlog_holder::BacklogHolder;
use crate::streams::completion::Completion;
use crate::streams::options::StreamOptions;
use crate::tools::peer::Peer;
use crate::tools::registration::Registration;

/// The engine's state of one stream.
pub struct StreamState {
    name: Arc<StreamName>,
    /// The options that its job sets.
    options: StreamOptions,
    /// `true` if its spawner requested forwarding, `false` if the spawner ruled it out; `None` if
    /// the spawner did not specify it.
    forward: Option<bool>,
    /// The options of the registrations that read it.
    readers: BTreeMap<(PeerId, u32), StreamOptions>,
    /// The number of these that differ from the options of its job.
    differing: usize,
    /// The backlog holder's reader while it reads the stream.
    backlog_reader: Option<ReaderId>,
    /// No backlog is kept: the host does not wait for further registrations, or the stream is
    /// complete.
    release_backlog: bool,
    /// The registrations that could not be attached, because their tools read too many streams or
    /// there was no memory. They are to receive the number of bytes that they miss.
    missing: BTreeSet<(PeerId, u32)>,
    /// The embedder's gating readers have it in another way.
    is_direct: bool,
    /// Its final counters, once it is complete.
    completion: Option<Completion>,
    /// Its job failed to start, so it is forgotten when it is complete.
    withdrawn: bool,
    /// The configuration differs from the one of its job, because of its readers.
    adjusted: bool,
    /// The number of its newest generation, as last reported.
    generation: u64,
}

impl StreamState {
    pub(crate) fn new(name: StreamName, options: StreamOptions, forward: Option<Channels>) -> StreamState {
        let forward = forward.map(|channels| channels.contains(name.channel.into()));
        StreamState {
            name: Arc::new(name),
            options,
            forward,
            readers: BTreeMap::new(),
            differing: 0,
            backlog_reader: None,
            release_backlog: false,
            missing: BTreeSet::new(),
            is_direct: false,
            completion: None,
            withdrawn: false,
            adjusted: false,
            generation: 0,
        }
    }

    /// Returns a stream of `source` that is added while its job runs.
    pub(crate) fn of_job(job: &JobState, source: Proc, channel: Channel, logged: bool) -> StreamState {
        let name = StreamName { source, channel, logged, run: job.run() };
        let new = StreamState::new(name, job.options(), job.forward());
        let is_direct = !logged && job.is_direct();
        StreamState { release_backlog: job.has_released_backlog(), is_direct, ..new }
    }

    /// Returns the source and the channel of the stream.
    pub fn name(&self) -> &Arc<StreamName> {
        &self.name
    }

    /// Returns whether the stream was withdrawn because its job failed to start. It is forgotten
    /// when it is complete.
    pub fn is_withdrawn(&self) -> bool {
        self.withdrawn
    }

    /// Withdraws the stream. Returns whether it is complete.
    pub(crate) fn withdraw(&mut self) -> bool {
        self.withdrawn = true;
        self.is_complete()
    }

    /// Returns the final counters of the stream; `None` if it is not complete.
    pub(crate) fn completion(&self) -> Option<Completion> {
        self.completion
    }

    /// Returns whether the stream is complete.
    pub(crate) fn is_complete(&self) -> bool {
        self.completion.is_some()
    }

    /// Notes that the stream is complete. Returns the registrations that miss it.
    pub(crate) fn complete(&mut self, completion: Completion) -> BTreeSet<(PeerId, u32)> {
        self.completion = Some(completion);
        mem::take(&mut self.missing)
    }

    /// Notes that a registration misses the stream. Returns the bytes that it misses if they are
    /// known, because the stream is complete. Otherwise [`StreamState::complete`] returns the
    /// registration.
    pub(crate) fn miss(&mut self, peer_id: PeerId, handler: u32) -> Option<u64> {
        if self.completion.is_none() {
            self.missing.insert((peer_id, handler));
        }
        self.completion.map(|completion| completion.produced)
    }

    /// Returns whether a registration misses the stream and has not received the number of bytes.
    pub(crate) fn is_missed_by(&self, peer_id: PeerId, handler: u32) -> bool {
        self.missing.contains(&(peer_id, handler))
    }

    /// Notes that registration `handler` of `peer_id` (all, if `None`) has ended, so it need not
    /// receive what it misses.
    pub(crate) fn registration_ended(&mut self, peer_id: PeerId, handler: Option<u32>) {
        match handler {
            Some(handler) => drop(self.missing.remove(&(peer_id, handler))),
            None => self.missing.extract_if((peer_id, 0)..=(peer_id, u32::MAX), |_| true).for_each(drop),
        }
    }

    /// Returns the registrations that miss the stream and have not received the number of bytes.
    pub fn missing(&self) -> impl Iterator<Item = (PeerId, u32)> {
        self.missing.iter().copied()
    }

    /// Notes that the stream continues in a generation.
    pub(crate) fn moved(&mut self, generation: u64) {
        self.generation = generation;
    }

    /// Returns the number of the newest generation, as far as it was reported.
    pub(crate) fn generation(&self) -> u64 {
        self.completion.map_or(self.generation, |completion| completion.generation)
    }

    /// Notes that no backlog is kept any more.
    pub(crate) fn release_backlog(&mut self) {
        self.release_backlog = true;
    }

    /// Returns the tools that read the stream, with their registrations.
    pub fn readers(&self) -> impl Iterator<Item = (PeerId, u32)> {
        self.readers.keys().copied()
    }

    /// Returns the options with which `registration` of `peer` reads this stream; `None` if the
    /// registration does not cover it.
    pub(crate) fn options_for(&self, peer: &Peer, registration: &Registration) -> Option<StreamOptions> {
        let covered = !self.withdrawn
            && registration.covers_stream(&self.name.source, self.name.channel)
            && registration.includes(&self.name.source.nspace)
            // A stream without forwarding is only for tools that ask for it, not for the launcher's
            // own readers.
            && !(peer.is_own() && self.forward == Some(false))
            && (peer.may_lose() || !self.is_direct);
        covered.then(|| self.options.under(registration.directives()))
    }

    /// Returns whether a reader with these options needs another configuration of the stream than
    /// its job sets.
    fn differs(&self, options: &StreamOptions) -> bool {
        (options.cache_size, options.policy) != (self.options.cache_size, self.options.policy)
    }

    /// Returns whether `peer`, which may have `limit` readers of this stream, may have another one.
    pub(crate) fn may_join(&self, peer_id: PeerId, peer: &Peer, limit: usize) -> bool {
        let reads = self.readers.range((peer_id, 0)..=(peer_id, u32::MAX));
        peer.is_own() || reads.take(limit).count() < limit
    }

    /// Records a reader.
    pub(crate) fn add_reader(&mut self, peer_id: PeerId, handler: u32, options: StreamOptions) {
        self.differing.raise(usize::from(self.differs(&options)));
        let known = self.readers.insert((peer_id, handler), options);
        debug_assert!(known.is_none(), "a registration has two readers of {:?}", self.name);
    }

    /// Removes a reader.
    pub(crate) fn remove_reader(&mut self, peer_id: PeerId, handler: u32) {
        let Some(options) = self.readers.remove(&(peer_id, handler)) else { absent!("reader", return) };
        self.differing.lower(usize::from(self.differs(&options)));
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

    /// Returns the steps that follow after readers have joined or left. The steps that attach or
    /// detach these come before.
    pub(crate) fn change(
        &mut self,
        source: SourceId,
        (backlog_holder, resources): (&mut BacklogHolder, &dyn Resources),
        start: Start,
    ) -> Vec<StreamStep<PageId>> {
        // The configuration comes first: a cache that no registration reads any more is made
        // smaller at once.
        let config = self.adjust();
        let mut steps: Vec<_> =
            config.map(|config| StreamStep::Reconfigure { source, config }).into_iter().collect();
        let page = backlog_holder.page();
        match (self.backlog_may_block(), self.backlog_reader) {
            (Some(may_block), None) => {
                // Without a slot, the stream keeps its last bytes, as one without a backlog.
                self.backlog_reader = backlog_holder.take(resources);
                let gating = if may_block { Gating::Hold } else { Gating::Keep };
                let hold = |reader| StreamStep::Attach {
                    source,
                    page,
                    reader,
                    start,
                    gating,
                    group: 0,
                    remote: false,
                };
                steps.extend(self.backlog_reader.map(hold));
            }
            (None, Some(reader)) => {
                self.backlog_reader = None;
                steps.push(StreamStep::Detach { source, page, reader });
                // A later use of the slot is ordered after this step.
                backlog_holder.put_back(reader);
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
        steps
    }

    /// Returns the configuration that the readers need, if it may differ from the current one.
    fn adjust(&mut self) -> Option<StreamConfig> {
        let differs = self.differing > 0;
        let was = mem::replace(&mut self.adjusted, differs);
        (differs || was).then(|| self.options.shared(self.readers.values().copied()))
    }
}
