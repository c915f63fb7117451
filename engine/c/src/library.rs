//! What the process has: nothing, a tool or a server. PMIx's functions name none of them, so there is one of each at most.

use std::sync::{Arc, Mutex};

use iof_proto::Proc;

use crate::constants::*;
use crate::guard::Outcome;
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

pub(crate) static LIBRARY: Mutex<Library> = Mutex::new(Library::Nothing);

/// The session of this process; a server's begins when it is first needed.
pub(crate) fn session() -> Outcome<Arc<Session>> {
    let server = match &*lock(&LIBRARY) {
        Library::Nothing => return Err(IOF_ERR_INIT),
        Library::Tool(Tool { session, .. }) => return session.clone().ok_or(IOF_ERR_UNREACH),
        Library::Server(server) => Arc::clone(server),
    };
    server.session()
}

/// The session, if there is one already.
pub(crate) fn session_so_far() -> Option<Arc<Session>> {
    match &*lock(&LIBRARY) {
        Library::Nothing => None,
        Library::Tool(Tool { session, .. }) => session.clone(),
        Library::Server(server) => server.session_so_far(),
    }
}

/// The server of this process.
pub(crate) fn server() -> Outcome<Arc<Server>> {
    match &*lock(&LIBRARY) {
        Library::Server(server) => Ok(Arc::clone(server)),
        _ => Err(IOF_ERR_INIT),
    }
}
