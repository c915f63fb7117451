//! What the process has: nothing, a tool or a server. PMIx's functions name none of them, so there
//! is one of each at most.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use iof_proto::Proc;

use crate::constants::*;
use crate::guard::{OrStatus, Outcome};
use crate::server::Server;
use crate::session::{Session, lock};

/// What the process has.
#[derive(Default)]
pub(crate) enum Library {
    #[default]
    Nothing,
    Tool(Tool),
    Server(Arc<Server>),
}

/// A tool.
pub(crate) struct Tool {
    /// How often it was initialized: it is finalized as often.
    pub count: usize,
    pub proc: Proc,
    /// None: it has not connected, which it said is all right.
    pub session: Option<Arc<Session>>,
}

static LIBRARY: Mutex<Library> = Mutex::new(Library::Nothing);

/// The process that has initialized the library; 0: none has.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// What this process has. A child that it has forked has nothing: our threads are not there, and
/// what they held is held for ever.
pub(crate) fn library() -> Outcome<MutexGuard<'static, Library>> {
    let owner = OWNER.load(Relaxed);
    if owner != 0 && owner != process::id() {
        let reason = format!(
            "process {owner} has initialized the library, and this is a child of it: call exec first"
        );
        return Err(reason).or_status(IOF_ERR_INIT);
    }
    Ok(lock(&LIBRARY))
}

/// The same, to initialize it.
pub(crate) fn library_to_begin() -> Outcome<MutexGuard<'static, Library>> {
    let library = library()?;
    OWNER.store(process::id(), Relaxed);
    Ok(library)
}

/// The session of this process; a server's begins when it is first needed.
pub(crate) fn session() -> Outcome<Arc<Session>> {
    if let Library::Tool(Tool { session, .. }) = &*library()? {
        return session.clone().ok_or(IOF_ERR_UNREACH);
    }
    server()?.session()
}

/// The session, if there is one already.
pub(crate) fn session_so_far() -> Option<Arc<Session>> {
    match &*library().ok()? {
        Library::Nothing => None,
        Library::Tool(Tool { session, .. }) => session.clone(),
        Library::Server(server) => server.session_so_far(),
    }
}

/// The server of this process, which does not end as long as this is there.
pub(crate) struct InUse(ManuallyDrop<Arc<Server>>);

/// Held while a use ends, and by who waits for that.
static USES: Mutex<()> = Mutex::new(());
static UNUSED: Condvar = Condvar::new();

pub(crate) fn server() -> Outcome<InUse> {
    match &*library()? {
        Library::Server(server) => Ok(InUse(ManuallyDrop::new(Arc::clone(server)))),
        _ => Err(IOF_ERR_INIT),
    }
}

impl Deref for InUse {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let uses = lock(&USES);
        // SAFETY: it is dropped here alone, and nobody looks at it afterwards.
        unsafe { ManuallyDrop::drop(&mut self.0) };
        drop(uses);
        UNUSED.notify_all();
    }
}

/// A server that nobody finds any more, as soon as nobody uses it: calls of other threads are over
/// soon.
pub(crate) fn unused(mut server: Arc<Server>) -> Server {
    let mut uses = lock(&USES);
    loop {
        match Arc::try_unwrap(server) {
            Ok(server) => return server,
            Err(used) => server = used,
        }
        uses = UNUSED.wait(uses).unwrap_or_else(PoisonError::into_inner);
    }
}
