//! The functions of tools for their connection, queries, logs and events. A server may call the
//! last three as well.

use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::sync::Arc;

use iof_proto::log::key::PMIX_LOG_SOURCE;
use iof_proto::rendezvous::{Search, Target};
use iof_proto::{Failure, Info, InfoValue, Log, Status};
use iof_tool::{AttachError, own_proc};

use crate::ffi::callbacks::{
    iof_hdlr_reg_cbfunc_t, iof_info_cbfunc_t, iof_notification_fn_t, iof_op_cbfunc_t,
};
use crate::ffi::guard::{OrStatus, Outcome, guard, guard_number, guard_or, may_wait, or_failure};
use crate::ffi::types::{iof_info_t, iof_proc_t, iof_query_t, iof_status_t};
use crate::ffi::{memory, read};
use crate::functions::local_answers::LocalAnswers;
use crate::infos::Infos;
use crate::infos::format::Formats;
use crate::infos::init::ToolInfos;
use crate::library::{
    LibraryState, ToolState, initialized, library, library_to_begin, session, session_so_far, with_events,
};
use crate::session::call::{self, CbData};
use crate::session::command::{Command, Done, gone};
use crate::session::events::{Events, MAX_CODES};
use crate::session::{EngineSession, attach_reason, attach_status};

/// Connects to an engine. proc, which may be NULL, receives the name and rank of the tool. If the
/// process is a tool already, the call is only counted, and its infos are ignored.
///
/// Without infos, the tool connects to the engine that started this process (IOF_SERVER in the
/// environment). If the variable is not set, the tool tries the system-level engine of the node,
/// then the user's only session-level engine. If infos select several engines, the first of these
/// applies: IOF_SERVER_URI, IOF_SERVER_PIDINFO, IOF_SERVER_NSPACE, IOF_CONNECT_TO_SYSTEM,
/// IOF_CONNECT_SYSTEM_FIRST.
///
/// Infos: those of `Place::ToolInit`. Those of output apply to registrations without a callback.
///
/// If stdin, stdout or stderr is closed, the library reserves its descriptor, which cannot be read
/// or written, for the rest of the process.
///
/// Blocks until an engine has accepted the tool. It waits at most five seconds to be connected to
/// each engine that it tries, and at most five seconds for its answer. Returns IOF_ERR_WOULD_BLOCK
/// in a callback.
///
/// Errors: IOF_ERR_UNREACH if no engine is found, or several session-level engines are, which
/// iof_last_error then lists with their pids and jobs;
/// IOF_ERR_TIMEOUT if the engine does not answer; IOF_ERR_INIT if this process is a server; the
/// error with which the engine or its launcher refuses the tool, such as IOF_ERR_NO_PERMISSIONS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_tool_init(
    proc: *mut iof_proc_t,
    info: *mut iof_info_t,
    ninfo: usize,
) -> iof_status_t {
    guard(|| {
        may_wait()?;
        // SAFETY: the contract in the header.
        let infos = unsafe { read::infos(info, ninfo) }?;
        // SAFETY: the contract in the header.
        let place = if proc.is_null() { None } else { Some(unsafe { read::place(proc) }?) };
        let mut library = library_to_begin()?;
        let name = match &mut *library {
            LibraryState::Server(_) => return Err(Status::ERR_INIT),
            LibraryState::Tool(tool) => {
                tool.count = tool.count.saturating_add(1);
                tool.proc.clone()
            }
            LibraryState::Nothing => {
                let tool = begin(ToolInfos::read(infos)?)?;
                let name = tool.proc.clone();
                *library = LibraryState::Tool(tool);
                name
            }
        };
        if let Some(place) = place {
            *place = memory::proc(&name);
        }
        Ok(())
    })
}

fn begin(infos: ToolInfos) -> Outcome<ToolState> {
    let ToolInfos { proc, connects, may_fail, own_thread, format, search } = infos;
    let formats = Arc::new(Formats::new(format));
    let session = match connects.then(|| connect(&search, proc.to_string(), own_thread, &formats)) {
        Some(Ok(session)) => Some(Arc::new(session)),
        Some(Err(status)) if !may_fail => return Err(status),
        _ => None,
    };
    let directories = Search { target: Target::default(), ..search };
    Ok(ToolState { count: 1, proc, session, own_thread, events: Events::default(), formats, directories })
}

/// Connects to the first engine of `search` that accepts the tool.
pub(crate) fn connect(
    search: &Search,
    name: String,
    own_thread: bool,
    formats: &Arc<Formats>,
) -> Outcome<EngineSession> {
    let mut failed = Err(Status::ERR_UNREACH);
    for socket in search.sockets() {
        let connected = socket.map_err(AttachError::from).and_then(|path| {
            let tool = iof_tool::Tool::connect(&path, &name)?;
            Ok((tool, path))
        });
        match connected {
            Ok((tool, path)) => {
                let socket = Some(path.clone());
                let connect = Box::new(move || iof_tool::Tool::connect(&path, &name));
                let session = EngineSession::begin(tool, connect, socket, own_thread, Arc::clone(formats));
                return session.or_status(Status::ERR_OUT_OF_RESOURCE);
            }
            Err(error) => {
                let status = attach_status(&error);
                failed = Err(attach_reason(&error)).or_status(status);
            }
        }
    }
    failed
}

/// Reverts one call of iof_tool_init. The last such call closes the connection: pending requests
/// fail with IOF_ERR_UNREACH, and output that is not delivered yet is discarded. Bytes that were
/// pushed remain pushed. Blocks until the running callback and those of pending requests have
/// returned. No callback is called afterwards. Returns IOF_ERR_WOULD_BLOCK in a callback.
#[unsafe(no_mangle)]
pub extern "C" fn iof_tool_finalize() -> iof_status_t {
    guard(|| {
        may_wait()?;
        let mut library = library()?;
        let LibraryState::Tool(tool) = &mut *library else { return Err(Status::ERR_INIT) };
        tool.count = tool.count.saturating_sub(1);
        if tool.count > 0 {
            return Ok(());
        }
        let session = tool.session.take();
        *library = LibraryState::Nothing;
        // Callbacks that run until the session has ended may use the library.
        drop(library);
        session.map_or(Ok(()), |session| session.end())
    })
}

/// Returns 1 if the process is a tool or a server, otherwise 0. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn iof_Initialized() -> c_int {
    guard_or(0, || c_int::from(library().is_ok_and(|library| !matches!(*library, LibraryState::Nothing))))
}

/// Asks the engine and its launcher, and blocks until the answer arrives. On IOF_SUCCESS, and on
/// IOF_ERR_PARTIAL_SUCCESS if only some keys are known, *results receives an array of *nresults
/// infos, one for each known key in the order of the queries; those of keys that the library
/// answers without the engine follow. The program frees it with iof_Info_free. On other errors
/// *results is NULL and *nresults 0. Returns IOF_ERR_WOULD_BLOCK in a callback. Errors:
/// IOF_ERR_NOT_FOUND if no key is known; IOF_ERR_BAD_PARAM if the qualifiers are invalid, or if a
/// key concerns one job and there are several.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Query_info(
    queries: *mut iof_query_t,
    nqueries: usize,
    results: *mut *mut iof_info_t,
    nresults: *mut usize,
) -> iof_status_t {
    guard_number(|| {
        // SAFETY: the contract in the header.
        let (results, nresults) = unsafe { (read::place(results)?, read::place(nresults)?) };
        (*results, *nresults) = (std::ptr::null_mut(), 0);
        // SAFETY: the contract in the header.
        let mut queries = unsafe { read::queries(queries, nqueries) }?;
        let local = LocalAnswers::take_from(&mut queries, socket());
        let asked = match session() {
            _ if queries.is_empty() => None,
            Err(_) if !local.is_empty() => Some(Err(not_connected())),
            Err(status) => return Err(status),
            Ok(session) => Some(session.ask(|done| Command::Query(queries, done))?),
        };
        if let (true, Some(Err(failure))) = (local.is_empty(), &asked) {
            return or_failure(Err(failure.clone()));
        }
        let (status, infos) = local.join(asked);
        if !infos.is_empty() {
            (*results, *nresults) = (memory::checked(memory::give(&infos))?, infos.len());
        }
        Ok(status.0)
    })
}

/// The failure of the keys that the library cannot answer alone.
fn not_connected() -> Failure {
    gone("the process is not connected")
}

/// Returns the socket of the engine to which this process is connected, or which it is.
fn socket() -> Option<PathBuf> {
    session_so_far().and_then(|session| session.socket.clone())
}

/// The same as iof_Query_info, without blocking: cbfunc, which may be NULL, is called with the
/// answer. In a tool without a connection, it is called before the function returns, with
/// IOF_ERR_UNREACH if only an engine could answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Query_info_nb(
    queries: *mut iof_query_t,
    nqueries: usize,
    cbfunc: iof_info_cbfunc_t,
    cbdata: *mut c_void,
) -> iof_status_t {
    guard(|| {
        initialized()?;
        // SAFETY: the contract in the header.
        let mut queries = unsafe { read::queries(queries, nqueries) }?;
        let local = LocalAnswers::take_from(&mut queries, socket());
        let cbdata = CbData(cbdata);
        let session = match session() {
            Err(status) if status == Status::ERR_UNREACH || !local.is_empty() => {
                let asked = (!queries.is_empty()).then(|| Err(not_connected()));
                call::answered(cbfunc, local.join(asked), cbdata);
                return Ok(());
            }
            session => session?,
        };
        let command = if queries.is_empty() {
            Command::Call(Box::new(move |_| call::answered(cbfunc, local.join(None), cbdata)))
        } else {
            let done = move |result| call::answered(cbfunc, local.join(Some(result)), cbdata);
            Command::Query(queries, Box::new(done))
        };
        session.submit(command)
    })
}

/// Logs data, and blocks until each channel has accepted or refused it. The keys of data name the
/// channels, and the values are the messages. The directives have keys such as IOF_LOG_SYSLOG_PRI.
/// Without IOF_LOG_SOURCE, the source is the rank in whose environment this process runs
/// (IOF_NSPACE and IOF_RANK), otherwise the only job of the engine. Returns IOF_ERR_WOULD_BLOCK in
/// a callback. Errors: IOF_ERR_PARTIAL_SUCCESS if only some channels accepted the data;
/// IOF_ERR_OPERATION_FAILED if none did, or if a required one did not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Log(
    data: *const iof_info_t,
    ndata: usize,
    directives: *const iof_info_t,
    ndirs: usize,
) -> iof_status_t {
    guard(|| {
        let session = with_data(ndata)?;
        // SAFETY: the contract in the header.
        let log = unsafe { log(data, ndata, directives, ndirs) }?;
        session.blocking(|done| Command::Log(log, done))
    })
}

/// The same as iof_Log, without blocking: cbfunc, which may be NULL, is called with the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Log_nb(
    data: *const iof_info_t,
    ndata: usize,
    directives: *const iof_info_t,
    ndirs: usize,
    cbfunc: iof_op_cbfunc_t,
    cbdata: *mut c_void,
) -> iof_status_t {
    guard(|| {
        let session = with_data(ndata)?;
        // SAFETY: the contract in the header.
        let log = unsafe { log(data, ndata, directives, ndirs) }?;
        session.submit(Command::Log(log, call::done(cbfunc, cbdata)))
    })
}

/// Returns the session for a log request. Like PMIx's library, it checks the number of data before
/// the connection.
fn with_data(ndata: usize) -> Outcome<Arc<EngineSession>> {
    initialized()?;
    if ndata == 0 { Err(Status::ERR_BAD_PARAM) } else { session() }
}

/// # Safety
/// The contract of [`read`].
unsafe fn log(
    data: *const iof_info_t,
    ndata: usize,
    directives: *const iof_info_t,
    ndirs: usize,
) -> Outcome<Log> {
    // SAFETY: the caller's promise.
    let (data, mut directives) =
        unsafe { (read::log_entries(data, ndata)?, read::infos(directives, ndirs)?) };
    let is_source = |info: &&Info| info.key == PMIX_LOG_SOURCE;
    if directives.iter().find(is_source).is_some_and(|info| !matches!(info.value, InfoValue::Proc(_))) {
        return Err(Status::ERR_BAD_PARAM);
    }
    if !directives.iter().any(|info| info.key == PMIX_LOG_SOURCE) {
        directives.extend(own_proc().map(|proc| Info::new(PMIX_LOG_SOURCE, InfoValue::Proc(proc))));
    }
    Ok(Log { data, directives })
}

/// Registers a callback for the events whose statuses codes contains. If ncodes is 0, it receives
/// all events. No infos are supported. The events are:
///
///   IOF_EVENT_JOB_END          a job that a registration (iof_IOF_pull) names has ended, and its
///                              last output was delivered; infos: IOF_EVENT_AFFECTED_PROC,
///                              IOF_JOB_TERM_STATUS and, if known, IOF_EXIT_CODE
///   IOF_ERR_LOST_CONNECTION    the engine has ended, and all cached output was delivered; no infos
///
/// If cbfunc is NULL, the function returns the handler's number, 1 or more. Otherwise it returns
/// IOF_SUCCESS, and cbfunc is called with the number. It does not block in either case. A tool
/// without a connection can register handlers, too: cbfunc is then called before the function
/// returns, and the handlers receive events after iof_tool_attach_to_server. Errors:
/// IOF_ERR_OUT_OF_RESOURCE if 64 handlers exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Register_event_handler(
    codes: *mut iof_status_t,
    ncodes: usize,
    info: *mut iof_info_t,
    ninfo: usize,
    evhdlr: iof_notification_fn_t,
    cbfunc: iof_hdlr_reg_cbfunc_t,
    cbdata: *mut c_void,
) -> iof_status_t {
    guard_number(|| {
        // SAFETY: the contract in the header.
        let codes = unsafe { read::slice(codes.cast_const(), ncodes, MAX_CODES) }?.to_vec();
        // SAFETY: the contract in the header.
        Infos(unsafe { read::infos(info, ninfo) }?).done()?;
        if evhdlr.is_none() {
            return Err(Status::ERR_BAD_PARAM);
        }
        let (id, session) = with_events(|events| events.register(codes, evhdlr))?;
        let id = id?;
        if cbfunc.is_none() {
            return iof_status_t::try_from(id).or_status(Status::ERR_OUT_OF_RESOURCE);
        }
        let cbdata = CbData(cbdata);
        let done = move |result: Result<(), _>| call::registered(cbfunc, &result.map(|()| id), cbdata);
        call_back(session, Box::new(done)).map(|()| 0)
    })
}

/// Calls `done` on the thread of the session. A tool without a connection has none.
fn call_back(session: Option<Arc<EngineSession>>, done: Done<()>) -> Outcome<()> {
    match session {
        Some(session) => session.submit(Command::Call(done))?,
        None => done(Ok(())),
    }
    Ok(())
}

/// Removes an event handler, without blocking. The handler may be called for one more event, before
/// cbfunc, which may be NULL, is called. A handler that does not exist is ignored, as in PMIx.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Deregister_event_handler(
    evhdlr_ref: usize,
    cbfunc: iof_op_cbfunc_t,
    cbdata: *mut c_void,
) -> iof_status_t {
    guard(|| {
        let ((), session) = with_events(|events| events.deregister(evhdlr_ref))?;
        if cbfunc.is_some() { call_back(session, call::done(cbfunc, cbdata)) } else { Ok(()) }
    })
}
