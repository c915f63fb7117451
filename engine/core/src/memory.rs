//! The memory that the engine shares with tools: reader pages, rings, inlets, and streams that wait
//! for the capture thread. The core names them by ids, the driver holds them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iof_capture::{self as capture, CommandMemory, PushId, RequestId, SourceId, StreamAnswer, StreamRequest};
use iof_proto::Failure;
use iof_shm_ring::{
    Bell, CreateError, Inlet, Interaction, ReaderId, ReaderPage, Ring, Ringer, Stream, StreamConfig,
};

use crate::effects::Command;
use crate::ids::{PageId, PeerId, RingId};
use crate::resources::Resources;
use crate::tools::outgoing::Attachment;
use crate::upcall::{Piece, TakenCallback, Upcall};

/// The origin of the memory: the kernel, or the heap of a simulator.
pub trait MemorySource: Send + Sync {
    /// Creates an inlet.
    ///
    /// # Errors
    /// Too little memory or too few files are left.
    fn inlet(&self, capacity: u64) -> Result<Inlet, Failure>;

    /// Creates a stream of logged messages.
    ///
    /// # Errors
    /// Too little memory or too few files are left.
    fn log_stream(&self, config: StreamConfig, label: &str) -> Result<Stream, Failure>;

    /// Creates a stream of a remote rank's output.
    ///
    /// # Errors
    /// Too little memory or too few files are left.
    fn delivered_stream(&self, config: StreamConfig, label: &str) -> Result<Stream, CreateError>;

    /// Allocates the memory of a slot of a reader page.
    ///
    /// # Errors
    /// Too little memory is left.
    fn prepare_slot(&self, page: &ReaderPage, slot: ReaderId) -> Result<(), CreateError>;

    /// Returns whether this node has a syslog now.
    fn has_syslog(&self) -> bool;
}

/// The objects that a tool receives with a message: descriptors, or in this process the objects
/// themselves.
#[derive(Clone)]
pub enum Shared {
    /// A ring.
    Ring(Arc<Ring>),
    /// An inlet.
    Inlet(Arc<Inlet>),
    /// The memory that a new tool receives.
    Welcome(Arc<Welcome>),
}

/// The objects that a tool receives when it attaches.
pub struct Welcome {
    /// Its reader page.
    pub page: Arc<ReaderPage>,
    /// The bell that is rung for it.
    pub bell: Bell,
    /// The bell by which it signals room, if it may hold back sources.
    pub room: Option<Ringer>,
}

impl Shared {
    /// Returns the descriptors to send. A simulator's rings have none.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Shared::Ring(ring) => ring.as_fd().into_iter().collect(),
            Shared::Inlet(inlet) => vec![inlet.as_fd()],
            Shared::Welcome(welcome) => {
                let Welcome { page, bell, room } = &**welcome;
                page.as_fd().into_iter().chain([bell.as_fd()]).chain(room.as_ref().map(AsFd::as_fd)).collect()
            }
        }
    }
}

/// Removed objects, to be dropped once the tables are unlocked.
#[allow(dead_code, reason = "they are only dropped")]
#[derive(Default)]
pub struct Released {
    page: Option<Arc<ReaderPage>>,
    inlet: Option<Arc<Inlet>>,
    unsent: BTreeMap<(PeerId, Attachment), Shared>,
    streams: HashMap<SourceId, Box<Stream>>,
}

/// All shared memory that the driver holds. Used only while the tables are locked, so its own lock
/// is always free.
pub struct SharedMemory {
    source: Box<dyn MemorySource>,
    objects: Mutex<Objects>,
}

#[derive(Default)]
struct Objects {
    pages: HashMap<PageId, Arc<ReaderPage>>,
    /// The inlets of pushes under way.
    inlets: HashMap<PushId, Arc<Inlet>>,
    /// The streams whose commands were not sent yet.
    streams: HashMap<SourceId, Box<Stream>>,
    /// The objects that tools will receive with queued messages.
    unsent: BTreeMap<(PeerId, Attachment), Shared>,
}

impl SharedMemory {
    /// Returns a table with the reader page of the backlog holder alone.
    pub fn new(source: Box<dyn MemorySource>, backlog_holder: ReaderPage) -> SharedMemory {
        let pages = [(PageId::BacklogHolder, Arc::new(backlog_holder))].into();
        SharedMemory { source, objects: Mutex::new(Objects { pages, ..Objects::default() }) }
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what a new tool receives.
    pub fn add_tool(&self, tool: PeerId, page: ReaderPage, bell: Bell, room: Option<Ringer>) {
        let (page, may_block) = (Arc::new(page), room.is_some());
        let mut objects = self.objects();
        objects.pages.insert(PageId::Tool(tool), Arc::clone(&page));
        let welcome = Shared::Welcome(Arc::new(Welcome { page, bell, room }));
        objects.unsent.insert((tool, Attachment::Welcome { may_block }), welcome);
    }

    /// Removes the reader page of a tool, and what it has not received.
    pub fn remove_tool(&self, tool: PeerId) -> Released {
        let mut objects = self.objects();
        let page = objects.pages.remove(&PageId::Tool(tool));
        let unsent = objects
            .unsent
            .extract_if((tool, Attachment::None)..(tool.saturating_add(1), Attachment::None), |_, _| true);
        Released { page, unsent: unsent.collect(), ..Released::default() }
    }

    /// Removes everything, because the engine ends.
    pub fn remove_all(&self) -> Vec<Released> {
        let Objects { pages, inlets, streams, unsent } = std::mem::take(&mut *self.objects());
        let pages = pages.into_values().map(|page| Released { page: Some(page), ..Released::default() });
        let inlets = inlets.into_values().map(|inlet| Released { inlet: Some(inlet), ..Released::default() });
        let rest = Released { streams, unsent, ..Released::default() };
        pages.chain(inlets).chain([rest]).collect()
    }

    /// Removes the inlet of a push that has ended.
    pub fn remove_inlet(&self, push: PushId) -> Released {
        Released { inlet: self.objects().inlets.remove(&push), ..Released::default() }
    }

    /// Returns a reader page.
    pub fn page(&self, page: PageId) -> Option<Arc<ReaderPage>> {
        self.objects().pages.get(&page).cloned()
    }

    /// Returns commands with the memory that they name.
    pub fn with_memory(&self, commands: Vec<Command>) -> Vec<capture::Command> {
        let mut objects = self.objects();
        let with_memory = |command: Command| {
            let command = command.with_memory(&mut *objects);
            // The operation that drops a page or an inlet follows all commands that name it.
            debug_assert!(command.is_some(), "a command names memory that does not exist");
            command
        };
        commands.into_iter().filter_map(with_memory).collect()
    }

    /// Returns a request with its reader pages; `None` if one of them does not exist any more.
    pub fn with_pages(&self, request: StreamRequest<PageId>) -> Option<StreamRequest> {
        let objects = self.objects();
        request.with_pages(|page| objects.page(page))
    }

    /// Copies a piece of a push.
    pub fn copy(&self, push: PushId, piece: Piece) -> Vec<u8> {
        let mut bytes = vec![0; piece.len];
        let copied = self.objects().inlet(push).map_or(0, |inlet| inlet.copy(piece.position, &mut bytes));
        bytes.truncate(copied);
        bytes
    }

    /// Keeps the rings of the answers to `request` for `tools`. One answer for each tool may
    /// have a ring. Returns the answers without rings.
    pub fn keep_rings(
        &self,
        tools: &[PeerId],
        request: RequestId,
        answers: Vec<StreamAnswer>,
    ) -> Vec<StreamAnswer<()>> {
        let mut objects = self.objects();
        let keep = |(index, answer): (usize, StreamAnswer)| {
            let (answer, ring) = answer.without_ring();
            // A tool that has disconnected has no page any more.
            if let Some((tool, ring)) = tools.get(index).copied().zip(ring)
                && objects.pages.contains_key(&PageId::Tool(tool))
            {
                let attachment = Attachment::Ring(RingId { request, index });
                objects.unsent.insert((tool, attachment), Shared::Ring(ring));
            }
            answer
        };
        answers.into_iter().enumerate().map(keep).collect()
    }

    /// Returns the names of what is kept.
    pub fn kept(&self) -> KeptMemory {
        let objects = self.objects();
        KeptMemory {
            pages: objects.pages.keys().copied().collect(),
            inlets: objects.inlets.keys().copied().collect(),
            unsent: objects.unsent.keys().copied().collect(),
            streams: objects.streams.len(),
        }
    }

    /// Returns what `tool` is to receive with a message.
    pub fn unsent(&self, tool: PeerId, attachment: Attachment) -> Option<Shared> {
        self.objects().unsent.get(&(tool, attachment)).cloned()
    }

    /// Drops what `tool` has received, or will not receive.
    pub fn remove_unsent(&self, tool: PeerId, attachments: impl IntoIterator<Item = Attachment>) {
        let mut attachments = attachments.into_iter().peekable();
        if attachments.peek().is_some() {
            let mut objects = self.objects();
            attachments.for_each(|attachment| drop(objects.unsent.remove(&(tool, attachment))));
        }
    }
}

impl CommandMemory<PageId> for Objects {
    fn page(&self, page: PageId) -> Option<Arc<ReaderPage>> {
        self.pages.get(&page).cloned()
    }

    fn take_stream(&mut self, source: SourceId) -> Option<Box<Stream>> {
        self.streams.remove(&source)
    }

    fn inlet(&self, push: PushId) -> Option<Arc<Inlet>> {
        self.inlets.get(&push).cloned()
    }
}

impl Resources for Arc<SharedMemory> {
    fn prepare_slot(&self, page: PageId, slot: ReaderId) -> Result<(), CreateError> {
        let objects = self.objects();
        self.source.prepare_slot(objects.pages.get(&page).ok_or(CreateError::Slots)?, slot)
    }

    fn create_inlet(&self, push: PushId, tool: PeerId, capacity: u64) -> Result<u64, Failure> {
        let inlet = Arc::new(self.source.inlet(capacity)?);
        let capacity = inlet.capacity();
        let mut objects = self.objects();
        objects.unsent.insert((tool, Attachment::Inlet(push)), Shared::Inlet(Arc::clone(&inlet)));
        objects.inlets.insert(push, inlet);
        Ok(capacity)
    }

    fn create_log_stream(&self, source: SourceId, config: StreamConfig, label: &str) -> Result<(), Failure> {
        let mut stream = self.source.log_stream(config, label)?;
        stream.set_interaction(Interaction::Unbuffered);
        self.objects().streams.insert(source, Box::new(stream));
        Ok(())
    }

    fn create_delivered_stream(
        &self,
        source: SourceId,
        config: StreamConfig,
        label: &str,
    ) -> Result<(), CreateError> {
        let mut stream = self.source.delivered_stream(config, label)?;
        stream.set_interaction(Interaction::Unbuffered);
        self.objects().streams.insert(source, Box::new(stream));
        Ok(())
    }

    fn has_syslog(&self) -> bool {
        self.source.has_syslog()
    }
}

/// The contents of a [`SharedMemory`].
#[derive(Debug)]
pub struct KeptMemory {
    /// The reader pages.
    pub pages: BTreeSet<PageId>,
    /// The inlets.
    pub inlets: BTreeSet<PushId>,
    /// The memory that tools will receive.
    pub unsent: BTreeSet<(PeerId, Attachment)>,
    /// The number of streams that were not handed over.
    pub streams: usize,
}

/// An upcall that is to be made.
pub struct DueUpcall {
    /// The upcall.
    pub upcall: Upcall,
    /// The bytes of a piece of stdin.
    pub bytes: Vec<u8>,
}

impl DueUpcall {
    /// Copies the bytes that the upcall names.
    pub fn new(upcall: Upcall, memory: &SharedMemory) -> DueUpcall {
        let bytes = match &upcall {
            Upcall::Stdin { push, piece, .. } => memory.copy(*push, *piece),
            _ => Vec::new(),
        };
        DueUpcall { upcall, bytes }
    }

    /// Returns the callback of a delivery, if this is one.
    pub fn into_callback(self) -> Option<TakenCallback> {
        self.upcall.into_callback()
    }
}
