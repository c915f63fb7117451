//! The state of the library in this process: nothing, a tool or a server. PMIx's functions name no
//! connection, so a process has at most one.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::process;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use iof_engine::{Engine, Grant, Job};
use iof_proto::rendezvous::Search;
use iof_proto::{Nspace, Proc, Status};
use iof_tool::LostError;

use crate::ffi::guard::{OrStatus, Outcome, lock, may_wait};
use crate::infos::format::{Format, Formats};
use crate::session::events::Events;
use crate::session::stdio;
use crate::session::{EngineSession, attach_status};

/// The state of the library in this process.
#[derive(Default)]
pub(crate) enum LibraryState {
    #[default]
    Nothing,
    Tool(ToolState),
    Server(Arc<ServerState>),
}

/// A tool.
pub(crate) struct ToolState {
    /// The number of calls of `iof_tool_init` that are not yet matched by `iof_tool_finalize`.
    pub count: usize,
    pub proc: Proc,
    /// `None` if the tool chose to run without a connection.
    pub session: Option<Arc<EngineSession>>,
    /// Set if its sessions have a thread, and the program does not progress them.
    pub own_thread: bool,
    /// The event handlers of a tool without a session.
    pub events: Events,
    /// The formats of output without a callback.
    pub formats: Arc<Formats>,
    /// The directories in which it looks for engines, without a selection.
    pub directories: Search,
}

/// A launcher: the engine of this process.
pub(crate) struct ServerState {
    pub engine: Engine,
    pub jobs: Mutex<BTreeMap<Nspace, Job>>,
    /// The names of jobs that are being started. Locked while `jobs` is, or alone.
    pub starting: Mutex<BTreeSet<Nspace>>,
    pub session: Mutex<Option<Arc<EngineSession>>>,
    /// Locked by the thread that begins the session.
    pub beginning: Mutex<()>,
    pub own_thread: bool,
    /// The path of the engine's socket, if it has one.
    pub socket: Option<CString>,
    pub spawned: AtomicU32,
    /// The attributes for the output of each job that the library writes.
    pub format: Format,
    /// The formats of the output of registrations without a callback.
    pub formats: Arc<Formats>,
}

impl ServerState {
    /// Returns the launcher's own session, and begins it if necessary. Its registrations may hold
    /// ranks back.
    pub(crate) fn session(&self) -> Outcome<Arc<EngineSession>> {
        if let Some(session) = self.session_so_far() {
            return Ok(session);
        }
        // Attaching needs the engine's control thread, on which upcalls run. An upcall must
        // therefore not wait for the lock below.
        may_wait()?;
        let _beginning = lock(&self.beginning);
        if let Some(session) = self.session_so_far() {
            return Ok(session);
        }
        let tool = self.engine.attach("launcher", Grant::Block);
        let status = tool.as_ref().err().map_or(Status::SUCCESS, attach_status);
        let connect = || match server() {
            Ok(server) => server.engine.attach("launcher", Grant::Block),
            Err(_) => Err(LostError::Closed.into()),
        };
        let socket = self.engine.socket().map(Into::into);
        let (tool, formats) = (tool.or_status(status)?, Arc::clone(&self.formats));
        let begun = EngineSession::begin(tool, Box::new(connect), socket, self.own_thread, formats);
        let begun = Arc::new(begun.or_status(Status::ERR_OUT_OF_RESOURCE)?);
        *lock(&self.session) = Some(Arc::clone(&begun));
        Ok(begun)
    }

    pub(crate) fn session_so_far(&self) -> Option<Arc<EngineSession>> {
        lock(&self.session).clone()
    }

    pub(crate) fn job(&self, nspace: &Nspace) -> Outcome<Job> {
        lock(&self.jobs).get(nspace).cloned().ok_or(Status::ERR_NOT_FOUND)
    }
}

static LIBRARY: Mutex<LibraryState> = Mutex::new(LibraryState::Nothing);

/// The process that initialized the library, or 0.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Locks and returns the state of this process.
///
/// # Errors
/// Fails in a child of fork(2): the library's threads do not exist there, and a lock that one of
/// them held is never released.
pub(crate) fn library() -> Outcome<MutexGuard<'static, LibraryState>> {
    let owner = OWNER.load(Relaxed);
    if owner != 0 && owner != process::id() {
        let reason = format!(
            "the library was initialized by process {owner}, of which this is a forked child: call exec(3) first"
        );
        return Err(reason).or_status(Status::ERR_INIT);
    }
    Ok(lock(&LIBRARY))
}

/// Like [`library`], for initialization: makes this process the owner, and reserves the numbers of
/// its standard files.
pub(crate) fn library_to_begin() -> Outcome<MutexGuard<'static, LibraryState>> {
    let library = library()?;
    OWNER.store(process::id(), Relaxed);
    stdio::reserve_numbers();
    Ok(library)
}

/// Fails if the process is neither a tool nor a server. As in PMIx's library, functions check it
/// before their arguments.
pub(crate) fn initialized() -> Outcome<()> {
    if matches!(*library()?, LibraryState::Nothing) { Err(Status::ERR_INIT) } else { Ok(()) }
}

/// Returns the session of this process. A server's session begins when it is first needed.
pub(crate) fn session() -> Outcome<Arc<EngineSession>> {
    if let LibraryState::Tool(ToolState { session, .. }) = &*library()? {
        return session.clone().ok_or(Status::ERR_UNREACH);
    }
    server()?.session()
}

/// Calls `body` with the event handlers of this process. Also returns the session that calls them;
/// `None` for a tool without a connection, which has no events.
pub(crate) fn with_events<T>(
    body: impl FnOnce(&mut Events) -> T,
) -> Outcome<(T, Option<Arc<EngineSession>>)> {
    if let LibraryState::Tool(ToolState { session: None, events, .. }) = &mut *library()? {
        return Ok((body(events), None));
    }
    let session = session()?;
    let result = body(&mut session.events());
    Ok((result, Some(session)))
}

/// Returns the session of this process, if it has begun.
pub(crate) fn session_so_far() -> Option<Arc<EngineSession>> {
    match &*library().ok()? {
        LibraryState::Nothing => None,
        LibraryState::Tool(ToolState { session, .. }) => session.clone(),
        LibraryState::Server(server) => server.session_so_far(),
    }
}

/// Returns where this process looks for engines.
pub(crate) fn directories() -> Search {
    match library().as_deref() {
        Ok(LibraryState::Tool(tool)) => tool.directories.clone(),
        _ => Search::default(),
    }
}

/// A use of the server of this process. The server does not end before it is dropped.
pub(crate) struct InUse(ManuallyDrop<Arc<ServerState>>);

/// Locked while a use ends, and while a thread waits for the last one.
static USES: Mutex<()> = Mutex::new(());
static UNUSED: Condvar = Condvar::new();

/// Returns a use of the server of this process.
pub(crate) fn server() -> Outcome<InUse> {
    match &*library()? {
        LibraryState::Server(server) => Ok(InUse(ManuallyDrop::new(Arc::clone(server)))),
        _ => Err(Status::ERR_INIT),
    }
}

impl Deref for InUse {
    type Target = ServerState;

    fn deref(&self) -> &ServerState {
        &self.0
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let uses = lock(&USES);
        // SAFETY: it is dropped only here, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.0) };
        drop(uses);
        UNUSED.notify_all();
    }
}

/// Waits for the last use of a server, and returns it. The server must no longer be in the state of
/// the library, so that no use can begin. Uses that exist end soon, because none of them blocks for
/// long.
pub(crate) fn unused(mut server: Arc<ServerState>) -> ServerState {
    let mut uses = lock(&USES);
    loop {
        match Arc::try_unwrap(server) {
            Ok(server) => return server,
            Err(used) => server = used,
        }
        uses = UNUSED.wait(uses).unwrap_or_else(PoisonError::into_inner);
    }
}
