//! The functions of launchers for their engine: its start and end, and output from other nodes.

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError};

use iof_engine::{DeliverError, Engine};
use iof_proto::{Channel, Channels, Status};

use crate::ffi::callbacks::{iof_op_cbfunc_t, iof_server_module_t};
use crate::ffi::constants::*;
use crate::ffi::guard::{OrStatus, guard, guard_or, may_wait};
use crate::ffi::types::{iof_byte_object_t, iof_info_t, iof_iof_channel_t, iof_proc_t, iof_status_t};
use crate::ffi::{memory, read};
use crate::functions::host::CHost;
use crate::infos::Infos;
use crate::infos::format::Formats;
use crate::infos::init::ServerInfos;
use crate::library::{LibraryState, ServerState, library, library_to_begin, server, unused};
use crate::session::call::{self, CbData};

/// The maximum size of a delivery, in bytes.
const MAX_DELIVERY: usize = 1 << 30;

/// Starts the engine and makes the process a server. A process has at most one engine, and a tool
/// cannot have one. Tools of the same user find the engine (iof_tool_init), unless the module or
/// the infos specify otherwise. The module is copied; NULL is the same as a module without
/// callbacks.
///
/// Infos: those of `Place::ServerInit` and `Place::Server`. Those of output apply to all jobs, and to
/// registrations without a callback.
///
/// If stdin, stdout or stderr is closed, the library reserves its descriptor, which cannot be read
/// or written, for the rest of the process.
///
/// The engine installs no signal handlers, and raises the soft limit on open files. Returns
/// IOF_ERR_WOULD_BLOCK in a callback. Errors: IOF_ERR_EXISTS if the process is a server already;
/// IOF_ERR_INIT if the process is a tool; IOF_ERR_OUT_OF_RESOURCE if the engine cannot be started,
/// such as for lack of files or because the directory of the sockets cannot be used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_server_init(
    module: *mut iof_server_module_t,
    info: *mut iof_info_t,
    ninfo: usize,
) -> iof_status_t {
    guard(|| {
        may_wait()?;
        // SAFETY: the contract in the header.
        let infos = unsafe { read::infos(info, ninfo) }?;
        // SAFETY: the contract in the header.
        let module = if module.is_null() { Default::default() } else { *unsafe { read::one(module) }? };
        let mut library = library_to_begin()?;
        match *library {
            LibraryState::Nothing => {}
            LibraryState::Server(_) => return Err(Status::ERR_EXISTS),
            LibraryState::Tool(_) => return Err(Status::ERR_INIT),
        }
        let ServerInfos { config, own_thread, format, host } = ServerInfos::read(infos)?;
        let engine = Engine::start_with(config, Arc::new(CHost { module, infos: host }));
        let engine = engine.or_status(Status::ERR_OUT_OF_RESOURCE)?;
        let socket = engine.socket().and_then(|path| CString::new(path.as_os_str().as_bytes()).ok());
        *library = LibraryState::Server(Arc::new(ServerState {
            engine,
            jobs: Mutex::default(),
            starting: Mutex::default(),
            session: Mutex::default(),
            beginning: Mutex::default(),
            own_thread,
            socket,
            spawned: AtomicU32::default(),
            formats: Arc::new(Formats::new(format.clone().look())),
            format,
        }));
        Ok(())
    })
}

/// Ends the engine. Ranks that still run receive SIGPIPE when they write output, so wait for the
/// jobs first (iof_server_wait). Blocks until the server's own registrations have received all
/// output that is cached, and until tools have received what is sent to them: for at most five
/// seconds, or half a second for a tool that reads nothing. Returns IOF_ERR_WOULD_BLOCK in a
/// callback.
#[unsafe(no_mangle)]
pub extern "C" fn iof_server_finalize() -> iof_status_t {
    guard(|| {
        may_wait()?;
        let mut library = library()?;
        if !matches!(*library, LibraryState::Server(_)) {
            return Err(Status::ERR_INIT);
        }
        let found = std::mem::take(&mut *library);
        // Callbacks that run until the session has ended may use the library.
        drop(library);
        let LibraryState::Server(server) = found else { return Err(Status::ERR_INIT) };
        let ServerState { engine, session, .. } = unused(server);
        let session = session.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = &session {
            session.finish_printing(None);
        }
        drop(engine);
        session.map_or(Ok(()), |session| session.drain_and_end())
    })
}

/// Returns the path of the socket that tools connect to (IOF_SERVER_URI), or NULL if there is none.
/// The text is valid until iof_server_finalize is called.
#[unsafe(no_mangle)]
pub extern "C" fn iof_server_uri() -> *const c_char {
    guard_or(std::ptr::null(), || match library().as_deref() {
        Ok(LibraryState::Server(server)) => {
            server.socket.as_ref().map_or(std::ptr::null(), |path| path.as_ptr())
        }
        _ => std::ptr::null(),
    })
}

/// Passes output of one process on another node to the engine, as one of the channels
/// IOF_FWD_STDOUT_CHANNEL, IOF_FWD_STDERR_CHANNEL and IOF_FWD_STDDIAG_CHANNEL. A job that the
/// engine does not know is added to its tables. With IOF_IOF_COMPLETE the stream ends after the
/// bytes, and bo may be NULL or empty. The bytes are copied before the function returns. cbfunc,
/// which may be NULL, is called on the engine's thread when the bytes are in the cache or were
/// dropped. Does not block.
///
/// Infos: those of `Place::Deliver`.
///
/// Errors, after which the engine has none of the bytes: IOF_ERR_IOF_XOFF if more than 4 MiB of the
/// stream wait for a registration of the server itself: deliver the bytes again after cbfunc was
/// called for earlier ones; IOF_ERR_IOF_COMPLETE if the stream is complete; IOF_ERR_BAD_PARAM if
/// the process runs on this node, if its job has no ranks on other nodes (IOF_ELSEWHERE), if
/// IOF_OFFSET lies before the end of the last delivery, or if source or channel is not a single
/// one; IOF_ERR_OUT_OF_RESOURCE if memory is exhausted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_server_IOF_deliver(
    source: *const iof_proc_t,
    channel: iof_iof_channel_t,
    bo: *const iof_byte_object_t,
    info: *const iof_info_t,
    ninfo: usize,
    cbfunc: iof_op_cbfunc_t,
    cbdata: *mut c_void,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the contract in the header.
        let (source, infos) = unsafe { (read::proc(read::one(source)?)?, read::infos(info, ninfo)?) };
        let mut outputs = Channel::OUTPUTS.into_iter();
        let named = outputs.find(|output| Channels::from(*output).bits() == channel);
        let channel = named.ok_or(Status::ERR_BAD_PARAM)?;
        // SAFETY: the contract in the header.
        let bytes = unsafe { read::payload(bo, MAX_DELIVERY) }?;
        let cbdata = CbData(cbdata);
        let taken = move || {
            let cbdata = cbdata;
            call::op(cbfunc, Status::SUCCESS, cbdata);
        };
        let server = server()?;
        let delivered = server.engine.deliver(&source, channel, memory::owned(bytes)?, &infos, taken);
        let status = delivered.as_ref().err().map_or(Status::SUCCESS, DeliverError::status);
        delivered.or_status(status)
    })
}

/// Suspends (xoff) or resumes the stdin that tools push to processes on other nodes, which the
/// callback push_stdin receives. source is the tool. NULL, an empty name of a job or
/// IOF_RANK_WILDCARD means all tools. Each IOF_ERR_IOF_XOFF of that callback needs a later call
/// with xoff false. cbfunc, which may be NULL, is called on the engine's thread once this has taken
/// effect; the function does not wait for it in either case. The call that runs in another thread
/// at that moment is not affected. Does not block. No directives are supported. Errors:
/// IOF_ERR_NOT_SUPPORTED if channel does not contain IOF_FWD_STDIN_CHANNEL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_server_IOF_flow_control(
    source: *const iof_proc_t,
    channel: iof_iof_channel_t,
    xoff: bool,
    directives: *const iof_info_t,
    ndirs: usize,
    cbfunc: iof_op_cbfunc_t,
    cbdata: *mut c_void,
) -> iof_status_t {
    guard(|| {
        if channel & Channels::STDIN.bits() == 0 {
            return Err(Status::ERR_NOT_SUPPORTED);
        }
        // SAFETY: the contract in the header.
        Infos(unsafe { read::infos(directives, ndirs) }?).done()?;
        // SAFETY: the contract in the header.
        let source = if source.is_null() { None } else { Some(unsafe { read::one(source) }?) };
        let is_one = |source: &&iof_proc_t| source.nspace[0] != 0 && source.rank != PMIX_RANK_WILDCARD;
        let source = source.filter(is_one).map(read::proc).transpose()?;
        let server = server()?;
        let done = DoneOnDrop { cbfunc, cbdata: CbData(cbdata), status: Status::ERR_UNREACH };
        let done = move || done.succeed();
        if xoff {
            server.engine.pause_stdin(source.as_ref(), done);
        } else {
            server.engine.resume_stdin(source.as_ref(), done);
        }
        Ok(())
    })
}

/// Calls a callback when it is dropped: with success, or with the error if the request was not
/// performed.
struct DoneOnDrop {
    cbfunc: iof_op_cbfunc_t,
    cbdata: CbData,
    status: Status,
}

impl DoneOnDrop {
    fn succeed(mut self) {
        self.status = Status::SUCCESS;
    }
}

impl Drop for DoneOnDrop {
    fn drop(&mut self) {
        call::op(self.cbfunc, self.status, self.cbdata);
    }
}

/// Reports that the processes of a job on other nodes have ended and that all their output was
/// delivered. Completes their streams. exit_code becomes the exit code of the whole job. If it is
/// below zero, the exit code is that of the processes on this node, if there are any. Does not
/// block. Errors: IOF_ERR_NOT_FOUND if this was reported before, or if the job has no ranks on
/// other nodes (IOF_ELSEWHERE).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_server_end_job(nspace: *const c_char, exit_code: c_int) -> iof_status_t {
    guard(|| {
        // SAFETY: the contract in the header.
        let name = unsafe { read::job_name(nspace) }?;
        let ended = server()?.engine.end_job(&name, (exit_code >= 0).then_some(exit_code));
        if ended { Ok(()) } else { Err(Status::ERR_NOT_FOUND) }
    })
}
