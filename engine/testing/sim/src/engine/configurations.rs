//! The configuration of each stream and its backlog, as its job and the registrations that read it
//! require them. What the core has commanded must be the same after each step.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use iof_capture::{Gating, SourceId};
use iof_core::Grant;
use iof_proto::{Directives, Nspace};
use iof_shm_ring::{Policy, ReaderId, Start, StreamConfig};
use iof_tool::test_utils::StreamInfo;

use super::EngineWorld;
use crate::driver::{ConnectionId, PullOptions, ReaderOwner, SentStep};

/// A registration of a tool, with its handler.
pub type Reader = (ConnectionId, u32);

/// The smallest cache.
pub const LEAST_CACHE: u64 = 16 << 10;

/// The options that the job of a stream specifies for it.
#[derive(Clone, Copy, Debug)]
pub struct JobOptions {
    /// The configuration for which no registration asks.
    pub config: StreamConfig,
    /// `true` if forwarding was requested, `false` if it was ruled out; `None` if it was not
    /// specified.
    pub forward: Option<bool>,
    /// Set if the backlog was released before the stream existed.
    pub released: bool,
}

/// The facts known of a stream.
#[derive(Debug)]
struct Configured {
    info: StreamInfo,
    /// Set if a rank writes it to a pipe.
    is_local: bool,
    options: JobOptions,
    /// The configuration that the core has commanded last.
    config: StreamConfig,
    /// The options of the registrations that have read it. One may have ended before its reader.
    readers: BTreeMap<Reader, PullOptions>,
    /// The reader of the backlog holder.
    holder: Option<ReaderId>,
    /// No reader was attached before the backlog holder.
    is_new: bool,
    /// The backlog holder has held it from its first byte on.
    held_from_first: bool,
    /// The core knows that it is complete.
    complete: bool,
    /// Its job has failed to start.
    withdrawn: bool,
    /// The capture has ended before the core knew that it was complete.
    lost: bool,
}

/// All streams that the core knows.
#[derive(Debug, Default)]
pub struct Configurations {
    streams: BTreeMap<SourceId, Configured>,
    /// The first readers of streams that were held from their first byte on.
    firsts: BTreeSet<(Reader, StreamInfo)>,
    /// The readers that may hold a stream back.
    blocking: BTreeSet<(Reader, StreamInfo)>,
    /// Slots were refused, so that streams may have no backlog.
    pub lacks_slots: bool,
    /// Memory may run out, so that streams may lose their first bytes.
    may_lack_memory: bool,
}

impl JobOptions {
    /// Returns the options with which a registration reads the stream.
    fn under(&self, directives: &Directives) -> StreamConfig {
        let policy = directives.drop.unwrap_or(self.config.policy);
        let requested = directives.cache_size.map_or(self.config.capacity, u64::from);
        // A group fits into half of the cache.
        let groups = 2 * u64::from(directives.buffering_size.unwrap_or(0));
        StreamConfig { capacity: requested.max(groups).max(LEAST_CACHE), policy }
    }

    /// Returns the configuration that the registrations with these options need.
    fn shared(&self, theirs: &[StreamConfig]) -> StreamConfig {
        let capacity = theirs.iter().map(|options| options.capacity).max().unwrap_or(self.config.capacity);
        let drops_oldest = |options: &StreamConfig| options.policy == Policy::DropOldest;
        let policy = match self.config.policy {
            Policy::DropNewest | Policy::DropOldest if !theirs.is_empty() => {
                if theirs.iter().all(drops_oldest) { Policy::DropOldest } else { Policy::DropNewest }
            }
            policy => policy,
        };
        StreamConfig { capacity, policy }
    }
}

impl Configured {
    /// Returns how the backlog holder reads the stream while no registration does, if it does.
    fn held(&self) -> Option<Gating> {
        match self.options.config.policy {
            _ if self.options.released || self.complete => None,
            Policy::DropNewest => Some(Gating::Keep),
            Policy::Block if self.options.forward == Some(true) => Some(Gating::Hold),
            Policy::Block | Policy::DropOldest => None,
        }
    }

    /// Checks and notes that the backlog holder reads the stream.
    fn hold(&mut self, reader: ReaderId, (start, gating): (Start, Gating), reader_leaves: bool) {
        let info = &self.info;
        assert_eq!(self.holder, None, "{info:?} is held twice");
        assert_eq!(self.held(), Some(gating), "how {info:?} is held");
        // After a reader, the bytes that it has read are not held.
        let expected = if reader_leaves { Start::Now } else { Start::Oldest };
        assert_eq!(start, expected, "from where {info:?} is held");
        self.holder = Some(reader);
        self.held_from_first = self.is_new;
    }
}

impl Configurations {
    /// Returns what is known before a run in which memory may run out.
    pub fn new(may_lack_memory: bool) -> Configurations {
        Configurations { may_lack_memory, ..Configurations::default() }
    }

    /// Adds a stream, which was created with this configuration.
    pub fn add(&mut self, source: SourceId, info: StreamInfo, options: JobOptions, config: StreamConfig) {
        assert_eq!(config, options.config, "the first configuration of {info:?}");
        let stream = Configured {
            is_local: false,
            info,
            options,
            config,
            readers: BTreeMap::new(),
            holder: None,
            is_new: true,
            held_from_first: false,
            complete: false,
            withdrawn: false,
            lost: false,
        };
        self.streams.insert(source, stream);
    }

    /// Adds a stream that a rank writes to a pipe.
    pub fn add_local(&mut self, source: SourceId, info: StreamInfo, options: JobOptions) {
        self.add(source, info, options, options.config);
        self.stream(source).is_local = true;
    }

    fn stream(&mut self, source: SourceId) -> &mut Configured {
        self.streams.get_mut(&source).unwrap_or_else(|| panic!("{source:?} was not created"))
    }

    /// Notes that the core learns that a stream is complete.
    pub fn complete(&mut self, source: SourceId) {
        self.streams.get_mut(&source).into_iter().for_each(|stream| stream.complete = true);
    }

    /// Notes that the core learns that the capture has ended.
    pub fn capture_ended(&mut self) {
        self.streams.values_mut().for_each(|stream| stream.lost = !stream.complete);
    }

    /// Notes that the backlog of a job is released.
    pub fn release(&mut self, nspace: &Nspace, run: u64) {
        let of_job = |stream: &&mut Configured| {
            stream.info.source.nspace == *nspace && stream.info.run == run && !stream.withdrawn
        };
        self.streams.values_mut().filter(of_job).for_each(|stream| stream.options.released = true);
    }

    /// Notes that a job has failed to start: its local ranks are removed from it.
    pub fn withdraw(&mut self, nspace: &Nspace, run: u64) {
        for stream in self.streams.values_mut() {
            let of_job = stream.info.source.nspace == *nspace && stream.info.run == run;
            stream.withdrawn |= of_job && stream.is_local;
        }
    }

    /// Notes that a reader of a tool is attached.
    fn note_reader(&mut self, source: SourceId, (reader, options): (Reader, PullOptions), gating: Gating) {
        let stream = self.stream(source);
        stream.readers.insert(reader, options);
        stream.is_new = false;
        let is_first = mem::take(&mut stream.held_from_first) && gating != Gating::Never;
        if is_first && !self.may_lack_memory {
            let info = self.stream(source).info.clone();
            self.firsts.insert((reader, info));
        }
        if gating == Gating::Block {
            let info = self.stream(source).info.clone();
            self.blocking.insert((reader, info));
        }
    }

    /// Returns whether this reader may hold the stream back.
    pub fn may_block(&self, reader: Reader, info: &StreamInfo) -> bool {
        self.blocking.contains(&(reader, info.clone()))
    }

    /// Returns whether a stream was held from its first byte on for this reader.
    pub fn is_first(&self, reader: Reader, info: &StreamInfo) -> bool {
        self.firsts.contains(&(reader, info.clone()))
    }
}

impl EngineWorld {
    /// Notes that the host releases the backlog of a job.
    pub(super) fn note_released(&mut self, index: usize) {
        let job = &mut self.jobs.list[index];
        job.released = true;
        self.truth.configurations.release(&job.nspace, job.run);
    }

    /// Checks and notes the steps of a request.
    pub(super) fn note_steps(&mut self, steps: &[SentStep]) {
        for (index, step) in steps.iter().enumerate() {
            match *step {
                SentStep::Attach {
                    source, owner: ReaderOwner::BacklogHolder, reader, start, gating, ..
                } => {
                    let leaves = |step: &SentStep| {
                        matches!(step, SentStep::Detach { source: left, owner: ReaderOwner::Tool(_), .. }
                            if *left == source)
                    };
                    let reader_leaves = steps[..index].iter().any(leaves);
                    self.truth.configurations.stream(source).hold(reader, (start, gating), reader_leaves);
                }
                SentStep::Attach { source, owner: ReaderOwner::Tool(tool), gating, .. } => {
                    let (handler, options) = self.check_reader(step, tool);
                    let reader = (tool, handler);
                    self.truth.configurations.note_reader(source, (reader, options.clone()), gating);
                }
                SentStep::Detach { source, owner: ReaderOwner::BacklogHolder, reader } => {
                    let stream = self.truth.configurations.stream(source);
                    assert_eq!(stream.holder.take(), Some(reader), "the backlog holder of {:?}", stream.info);
                    stream.held_from_first = false;
                }
                SentStep::Detach { .. } => {}
                SentStep::Reconfigure { source, config } => {
                    self.truth.configurations.stream(source).config = config;
                }
            }
        }
    }

    /// Returns whether a tool may hold back the ranks of a job.
    pub(super) fn may_block(&self, tool: ConnectionId, run: u64) -> bool {
        let process = self.tools.iter().find(|found| found.id == tool).map(|found| found.process);
        match self.engine.grant(tool) {
            Grant::Block => true,
            Grant::Spawned => process.is_some_and(|process| self.truth.spawns.is_of_process(run, process)),
            Grant::Never => false,
        }
    }

    /// Checks how a reader of a tool is attached. Returns its registration with the options.
    fn check_reader<'a>(&self, step: &'a SentStep, tool: ConnectionId) -> (u32, &'a PullOptions) {
        let SentStep::Attach { source, start, gating, group, remote, registration, .. } = step else {
            panic!("a step that attaches no reader");
        };
        let (handler, options) = registration.as_ref().expect("the registration of a reader");
        let PullOptions { directives, start: from } = options;
        let stream = &self.truth.configurations.streams[source];
        let expected = match stream.options.under(directives).policy {
            Policy::DropOldest => Gating::Never,
            Policy::Block if self.may_block(tool, stream.info.run) => Gating::Block,
            Policy::Block | Policy::DropNewest => Gating::Keep,
        };
        let info = &stream.info;
        assert_eq!(*gating, expected, "how registration {handler} of tool {tool} holds {info:?} back");
        assert_eq!(start, from, "where registration {handler} of tool {tool} begins in {info:?}");
        let size = directives.buffering_size.unwrap_or(0);
        assert_eq!(*group, u64::from(size), "the groups of registration {handler} in {info:?}");
        let own = self.engine.is_own(tool);
        assert_eq!(*remote, !own, "whether tool {tool} is in another process");
        (*handler, options)
    }

    /// Returns the options with which a registration reads a stream. Once its pull is answered, they
    /// must be those for which its tool has asked. A hostile tool may have asked for anything.
    fn options_of<'a>(&self, stream: &'a Configured, (tool, handler): Reader) -> &'a Directives {
        let options = stream.readers.get(&(tool, handler)).expect("a reader that was attached");
        let asked = self.tools.iter().find(|found| found.id == tool);
        if let Some(asked) = asked.and_then(|found| found.registrations.get(&handler)) {
            let pull = &asked.pull;
            assert_eq!(options.directives, pull.directives, "registration {handler} of tool {tool}");
            assert_eq!(options.start, pull.start, "registration {handler} of tool {tool}");
        }
        &options.directives
    }

    /// Checks the configurations of all streams, and which are held.
    pub(super) fn check_configurations(&mut self) {
        let mut known = self.truth.configurations.streams.keys().copied().peekable();
        let mut removed = Vec::new();
        for (source, readers) in self.engine.streams() {
            while let Some(gone) = known.next_if(|known| *known < source) {
                removed.push(gone);
            }
            assert_eq!(known.next(), Some(source), "a stream that was not created");
            let stream = &self.truth.configurations.streams[&source];
            let options: Vec<StreamConfig> =
                readers.map(|reader| stream.options.under(self.options_of(stream, reader))).collect();
            let info = &stream.info;
            assert_eq!(stream.config, stream.options.shared(&options), "{info:?} of {options:?}");
            let (is_held, expected) =
                (stream.holder.is_some(), stream.held().is_some() && options.is_empty());
            let lacks_slot = expected && self.truth.configurations.lacks_slots;
            assert!(is_held == expected || lacks_slot || stream.lost, "{info:?} is held: {is_held}");
        }
        removed.extend(known);
        for source in removed {
            let stream = self.truth.configurations.streams.remove(&source).expect("a known stream");
            assert_eq!(stream.holder, None, "{:?} is held, which was removed", stream.info);
        }
    }
}
