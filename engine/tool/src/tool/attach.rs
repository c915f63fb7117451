//! Attaching to an engine.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process;
use std::sync::Arc;
use std::time::Instant;

use iof_proto::limits::HANDSHAKE_LIMIT;
use iof_proto::rendezvous::{self, FindError, Search};
use iof_proto::{FromTool, PROTOCOL_VERSION, Status, ToTool, socket};
use iof_shm_ring::{Bell, ReaderPage, Ringer};
use nix::unistd::geteuid;

use super::Tool;
use crate::adaptive_polling::AdaptivePolling;
use crate::error::{AttachError, LostError, RequestError};
use crate::link::{Link, Received};
use crate::local_rings::LocalRings;
use crate::session::Session;
use crate::wakeup::Wakeup;

impl Tool {
    /// Attaches to the engine that listens at `path`. `name` is shown in the engine's list of
    /// readers and need not be unique. Blocks for at most [`rendezvous::CONNECT_LIMIT`] while the
    /// engine's queue of connections is full, and for at most [`HANDSHAKE_LIMIT`] until the engine
    /// answers.
    ///
    /// # Errors
    /// Returns [`AttachError`] if no engine listens at `path`, if the engine does not answer,
    /// refuses this tool or has another protocol version, or if its process belongs neither to the
    /// user of this process nor to root.
    pub fn connect(path: &Path, name: &str) -> Result<Tool, AttachError> {
        let (socket, _) = connect(path)?;
        // SAFETY: the socket was created by `connect` and is passed to nothing but this tool.
        unsafe { Tool::over(socket, name) }
    }

    /// Attaches to the engine that `search` finds, as [`Tool::connect`] does. A search may have
    /// several steps (see [`Target`](rendezvous::Target)); the first engine that accepts is used.
    ///
    /// # Errors
    /// Returns [`AttachError`] if the search finds no engine, if it finds several engines, so that
    /// the caller must choose one, or if attaching failed.
    pub fn find(search: &Search, name: &str) -> Result<Tool, AttachError> {
        find(search, |path| Tool::connect(path, name))
    }

    /// Attaches `count` times to the engine that [`Tool::find`] finds, for example for separate
    /// readers of stdout and stderr. All connections are made before the first is used. So if
    /// the engine ends meanwhile, it has accepted either all of the tools or none.
    ///
    /// # Errors
    /// Returns the errors of [`Tool::find`], and [`AttachError::Replaced`] if another engine
    /// replaced the first between two connections.
    pub fn find_several(search: &Search, name: &str, count: usize) -> Result<Vec<Tool>, AttachError> {
        find(search, |path| {
            let connected = (0..count).map(|_| connect(path)).collect::<Result<Vec<_>, _>>()?;
            let (sockets, pids): (Vec<UnixStream>, Vec<u32>) = connected.into_iter().unzip();
            if pids.iter().any(|pid| Some(pid) != pids.first()) {
                return Err(AttachError::Replaced { path: path.to_owned() });
            }
            // SAFETY: each socket was created by `connect` and is passed to nothing but its tool.
            sockets.into_iter().map(|socket| unsafe { Tool::over(socket, name) }).collect()
        })
    }

    /// Attaches over a connected socket. Blocks for at most [`HANDSHAKE_LIMIT`] until the engine
    /// answers.
    ///
    /// # Errors
    /// The same as [`Tool::connect`].
    ///
    /// # Safety
    /// The engine does not overwrite the bytes that a tool borrows, but only while the tool is
    /// connected and follows the protocol. Therefore nothing else may write to this socket or shut
    /// it down until the tool is dropped.
    pub unsafe fn over(socket: UnixStream, name: &str) -> Result<Tool, AttachError> {
        Tool::with_link(Link::new(socket, None), name)
    }

    /// Attaches to an engine in this process over a connected socket, as [`Tool::over`] does. The
    /// engine hands its rings over by `rings`.
    ///
    /// # Errors
    /// The same as [`Tool::connect`].
    ///
    /// # Safety
    /// As for [`Tool::over`]. In addition, `rings` must belong to this connection only, and only
    /// the engine may put rings into it.
    pub unsafe fn local(socket: UnixStream, rings: LocalRings, name: &str) -> Result<Tool, AttachError> {
        Tool::with_link(Link::new(socket, Some(rings)), name)
    }

    fn with_link(mut link: Link, name: &str) -> Result<Tool, AttachError> {
        // A deadline that the clock can't represent counts as passed.
        let now = Instant::now();
        let deadline = now.checked_add(HANDSHAKE_LIMIT).unwrap_or(now);
        let hello = FromTool::Hello { version: PROTOCOL_VERSION, pid: process::id(), name: name.to_owned() };
        // A name too long for a message is an error: shortening it is up to the caller.
        match link.send(&hello) {
            Ok(()) | Err(RequestError::Lost(LostError::Closed)) => {}
            Err(RequestError::Lost(lost)) => return Err(lost.into()),
            Err(other) => return Err(LostError::Socket(io::Error::other(other)).into()),
        }
        let Some(Received { message, fds, .. }) = link.receive_until(Some(deadline))? else {
            let pid = socket::peer(&link).map_or(0, |engine| engine.pid);
            return Err(AttachError::Silent { pid });
        };
        let (engine_pid, may_block, mut fds) = match message {
            ToTool::Welcome { version, .. } if version != PROTOCOL_VERSION => {
                let reason = format!(
                    "protocol version {version} of the engine differs from version {PROTOCOL_VERSION} of the tool: update the \
                     older one"
                );
                return Err(AttachError::Refused { status: Status::ERR_NOT_SUPPORTED, reason });
            }
            ToTool::Welcome { engine_pid, may_block, .. } => (engine_pid, may_block, fds.into_iter()),
            ToTool::Refused { status, reason } => return Err(AttachError::Refused { status, reason }),
            _ => return Err(LostError::Unexpected { what: "a message other than a welcome" }.into()),
        };
        let (Some(page), Some(bell), room) = (fds.next(), fds.next(), fds.next()) else {
            return Err(LostError::Unexpected { what: "a welcome without its descriptors" }.into());
        };
        let wakeup = Wakeup::new(Bell::from(bell), &link).map_err(LostError::Socket)?;
        let room = room.map(|room| Arc::new(Ringer::from(room)));
        Ok(Tool {
            link,
            session: Session::new(Arc::new(ReaderPage::open(page)?), room),
            wakeup,
            polling: AdaptivePolling::new(may_block && engine_pid == process::id()),
            messages_checked: now,
            engine_pid,
            turn: Vec::new(),
            put_back: None,
            lent: None,
            waits_for_ends: false,
        })
    }
}

/// Connects to `path` and returns the socket and the listener's pid. The listener must be a process
/// of this user or of root.
fn connect(path: &Path) -> Result<(UnixStream, u32), AttachError> {
    let socket = rendezvous::connect(path)?;
    let engine = socket::peer(&socket).map_err(LostError::Socket)?;
    if engine.uid != 0 && engine.uid != geteuid().as_raw() {
        return Err(AttachError::Foreign { path: path.to_owned(), uid: engine.uid });
    }
    Ok((socket, engine.pid))
}

/// Calls `attach` with each path of `search` until it succeeds.
fn find<T>(search: &Search, attach: impl Fn(&Path) -> Result<T, AttachError>) -> Result<T, AttachError> {
    let mut failure = None;
    for socket in search.sockets() {
        match socket.map_err(AttachError::from).and_then(|path| attach(&path)) {
            Ok(attached) => return Ok(attached),
            // If an engine was found, its failure helps the user more than the lack of another
            // engine.
            Err(error) if failure.as_ref().is_some_and(|first| !finds_none(first)) && finds_none(&error) => {}
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| LostError::Closed.into()))
}

/// Returns whether a step of a search failed because it found no engine.
fn finds_none(error: &AttachError) -> bool {
    matches!(
        error,
        AttachError::Find(FindError::NotFound(_) | FindError::NoSystem(_) | FindError::FromEnvironment(_))
    )
}
