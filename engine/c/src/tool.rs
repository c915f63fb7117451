//! The functions of tools. A server may call them as well: the output on its own terminal is an
//! ordinary registration.

use std::ffi::{c_int, c_void};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use iof_proto::log::key::PMIX_LOG_SOURCE;
use iof_proto::rendezvous::Search;
use iof_proto::{Info, InfoValue, Log};
use iof_tool::{AttachError, Push, Pusher, own_proc};

use crate::call::{self, CbData};
use crate::callbacks::{
    iof_hdlr_reg_cbfunc_t, iof_info_cbfunc_t, iof_iof_cbfunc_t, iof_notification_fn_t, iof_op_cbfunc_t,
};
use crate::command::{Command, Done, Payload, gone};
use crate::constants::*;
use crate::events::{Events, MAX_CODES};
use crate::guard::{OrStatus, Outcome, guard, guard_or, may_wait, or_failure};
use crate::init::{Infos, ToolInfos, pull};
use crate::keys::*;
use crate::library::{Library, Tool, library, library_to_begin, session, session_so_far, with_events};
use crate::local_answers::LocalAnswers;
use crate::session::{Session, attach_status};
use crate::types::{iof_byte_object_t, iof_info_t, iof_iof_channel_t, iof_proc_t, iof_query_t, iof_status_t};
use crate::{memory, read};

/// Connects to an engine. proc, which may be NULL, receives the name and rank of the tool. If the
/// process is a tool already, the call is only counted, and its infos are ignored.
///
/// Without infos, the tool connects to the engine that started this process (IOF_SERVER in the
/// environment). If the variable is not set, the tool tries the system-level engine of the node,
/// then the user's only session-level engine. If infos select several engines, the first of these
/// applies: IOF_SERVER_URI, IOF_SERVER_PIDINFO, IOF_SERVER_NSPACE, IOF_CONNECT_TO_SYSTEM,
/// IOF_CONNECT_SYSTEM_FIRST.
///
/// Infos: IOF_SERVER_URI, IOF_SERVER_PIDINFO, IOF_SERVER_NSPACE, IOF_CONNECT_TO_SYSTEM,
/// IOF_CONNECT_SYSTEM_FIRST, IOF_SERVER_TMPDIR, IOF_SYSTEM_TMPDIR, IOF_TOOL_NSPACE, IOF_TOOL_RANK,
/// IOF_TOOL_DO_NOT_CONNECT, IOF_TOOL_CONNECT_OPTIONAL, IOF_EXTERNAL_PROGRESS.
///
/// Blocks until an engine has accepted the tool. It waits at most five seconds to be connected to
/// each engine that it tries, and at most five seconds for its answer. Returns IOF_ERR_WOULD_BLOCK
/// in a callback.
///
/// Errors: IOF_ERR_UNREACH if no engine is found, or several session-level engines are;
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
            Library::Server(_) => return Err(IOF_ERR_INIT),
            Library::Tool(tool) => {
                tool.count = tool.count.saturating_add(1);
                tool.proc.clone()
            }
            Library::Nothing => {
                let tool = begin(ToolInfos::read(infos)?)?;
                let name = tool.proc.clone();
                *library = Library::Tool(tool);
                name
            }
        };
        if let Some(place) = place {
            *place = memory::proc(&name);
        }
        Ok(IOF_SUCCESS)
    })
}

fn begin(infos: ToolInfos) -> Outcome<Tool> {
    let ToolInfos { proc, connects, may_fail, own_thread, search } = infos;
    let session = if connects {
        match connect(&search, proc.to_string(), own_thread) {
            Ok(session) => Some(Arc::new(session)),
            Err(_) if may_fail => None,
            Err(status) => return Err(status),
        }
    } else {
        None
    };
    Ok(Tool { count: 1, proc, session, events: Events::default() })
}

/// Connects to the first engine of `search` that accepts the tool.
pub(crate) fn connect(search: &Search, name: String, own_thread: bool) -> Outcome<Session> {
    let mut failed = Err(IOF_ERR_UNREACH);
    for socket in search.sockets() {
        let connected = socket.map_err(AttachError::from).and_then(|path| {
            let tool = iof_tool::Tool::connect(&path, &name)?;
            Ok((tool, path))
        });
        match connected {
            Ok((tool, path)) => {
                let socket = Some(path.clone());
                let connect = Box::new(move || iof_tool::Tool::connect(&path, &name));
                return Session::begin(tool, connect, socket, own_thread).or_status(IOF_ERR_OUT_OF_RESOURCE);
            }
            Err(error) => {
                let status = attach_status(&error);
                failed = Err(error).or_status(status);
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
        let Library::Tool(tool) = &mut *library else { return Err(IOF_ERR_INIT) };
        tool.count = tool.count.saturating_sub(1);
        if tool.count > 0 {
            return Ok(IOF_SUCCESS);
        }
        let session = tool.session.take();
        *library = Library::Nothing;
        // Callbacks that run until the session has ended may use the library.
        drop(library);
        session.map_or(Ok(()), |session| session.end())?;
        Ok(IOF_SUCCESS)
    })
}

/// Returns 1 if the process is a tool or a server, otherwise 0. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn iof_Initialized() -> c_int {
    guard_or(0, || c_int::from(library().is_ok_and(|library| !matches!(*library, Library::Nothing))))
}

/// Registers for the output of processes, which need not exist yet, on the channels that the set
/// channel contains. Cached output from before the registration is delivered first. If jobs of the
/// same name follow each other, the registration receives the output of all. It lasts until
/// iof_IOF_deregister is called or the library is finalized.
///
/// cbfunc receives the output, see iof_iof_cbfunc_t. If it is NULL, the library writes stdout to
/// the program's own stdout, and stderr and stddiag to its stderr, and reports missing bytes on
/// stderr. It writes whole lines, except lines that are longer than 64 KiB or are not complete
/// after 100 ms.
///
/// If regcbfunc is NULL, the function blocks until the engine has answered and returns the
/// handler's number, 1 or more; in a callback it returns IOF_ERR_WOULD_BLOCK. Otherwise it returns
/// IOF_SUCCESS without blocking, and regcbfunc is called with the number or the error before cbfunc
/// is called for the first time.
///
/// Directives: IOF_IOF_CACHE_SIZE, IOF_IOF_DROP_OLDEST, IOF_IOF_DROP_NEWEST,
/// IOF_IOF_BUFFERING_SIZE, IOF_IOF_BUFFERING_TIME, IOF_BUFFERING_TIME_US, IOF_NO_BACKLOG. Errors:
/// IOF_ERR_NOT_SUPPORTED if channel contains stdin, as IOF_FWD_ALL_CHANNELS does;
/// IOF_ERR_NO_PERMISSIONS or another error if the launcher denies the output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_IOF_pull(
    procs: *const iof_proc_t,
    nprocs: usize,
    directives: *const iof_info_t,
    ndirs: usize,
    channel: iof_iof_channel_t,
    cbfunc: iof_iof_cbfunc_t,
    regcbfunc: iof_hdlr_reg_cbfunc_t,
    regcbdata: *mut c_void,
) -> iof_status_t {
    guard(|| {
        // Like PMIx's library, it checks for stdin and for a connection before all other arguments.
        if channel & IOF_FWD_STDIN_CHANNEL != 0 {
            return Err(IOF_ERR_NOT_SUPPORTED);
        }
        let session = session()?;
        // SAFETY: the contract in the header.
        let (procs, infos) = unsafe { (read::procs(procs, nprocs)?, read::infos(directives, ndirs)?) };
        let pull = pull(procs, read::channels(channel)?, infos);
        if regcbfunc.is_none() {
            let id = session.blocking(|done| Command::Pull(pull, cbfunc, done))?;
            return iof_status_t::try_from(id).or_status(IOF_ERR_OUT_OF_RESOURCE);
        }
        let cbdata = CbData(regcbdata);
        let done = Box::new(move |result| call::registered(regcbfunc, &result, cbdata));
        session.submit(Command::Pull(pull, cbfunc, done))?;
        Ok(IOF_SUCCESS)
    })
}

/// Ends a registration. Output from before the call is still delivered. Then cbfunc is called, and
/// the callback of the registration is not called any more. If cbfunc is NULL, the function blocks
/// until then instead; in a callback it returns IOF_ERR_WOULD_BLOCK. No directives are supported.
/// Errors: IOF_ERR_NOT_FOUND if the registration does not exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_IOF_deregister(
    iofhdlr: usize,
    directives: *const iof_info_t,
    ndirs: usize,
    cbfunc: iof_op_cbfunc_t,
    cbdata: *mut c_void,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the contract in the header.
        Infos(unsafe { read::infos(directives, ndirs) }?).done()?;
        operate(cbfunc, cbdata, |done| Command::Deregister(iofhdlr, done))
    })
}

/// Pushes bytes to the stdin of processes. Each target receives the bytes of one push in one piece,
/// after those of earlier pushes. With IOF_IOF_COMPLETE the stdin of the targets is closed after
/// the bytes; bo may then be NULL or empty. Without bo and these directives, the function has no
/// effect and returns IOF_OPERATION_SUCCEEDED, and cbfunc is not called.
///
/// The push is done when all bytes are in the pipes of the targets, which may not have read them
/// yet. For targets on other nodes, it is done when the launcher has accepted the bytes. If cbfunc
/// is NULL, the function blocks until then, and bo is not copied; in a callback it returns
/// IOF_ERR_WOULD_BLOCK. Otherwise the function copies bo and returns without blocking, and cbfunc
/// is called when the push is done.
///
/// With IOF_IOF_PUSH_STDIN, and NULL as bo, a thread of the library reads the program's own stdin
/// until its end, pushes it, and closes the stdin of the targets. If the value is a process and
/// ntargets is 0, that process is the target. The thread continues after the
/// library is finalized. The function blocks until the push has begun, even with cbfunc, which is
/// then called. The end of the push is not reported. In a callback the function returns
/// IOF_ERR_WOULD_BLOCK. A later call with NULL as bo, and with IOF_IOF_PUSH_STDIN false or with
/// IOF_IOF_COMPLETE, stops the thread, whatever its targets are, without waiting for that: the
/// thread pushes what it has read, and closes the stdin of its targets.
///
/// Directives: IOF_IOF_COMPLETE, IOF_IOF_PUSH_STDIN, IOF_IOF_DROP_NEWEST, IOF_PARTIAL,
/// IOF_IOF_CACHE_SIZE. A target that does not read delays the push, unless IOF_IOF_DROP_NEWEST is
/// given. Errors after which nothing was pushed: IOF_ERR_NOT_FOUND if a job or process does not
/// exist; IOF_ERR_IOF_COMPLETE if the stdin of a target is closed; IOF_ERR_NOT_SUPPORTED if it is
/// not a pipe of the library. Other errors: IOF_ERR_PARTIAL_SUCCESS if some targets did not receive
/// all bytes; IOF_ERR_IOF_FAILURE if none did.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_IOF_push(
    targets: *const iof_proc_t,
    ntargets: usize,
    bo: *mut iof_byte_object_t,
    directives: *const iof_info_t,
    ndirs: usize,
    cbfunc: iof_op_cbfunc_t,
    cbdata: *mut c_void,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the contract in the header.
        let mut infos = Infos(unsafe { read::infos(directives, ndirs) }?);
        let stdin = infos.push_stdin()?;
        let targets = match &stdin {
            Some((true, Some(target))) if ntargets == 0 => vec![target.clone()],
            // SAFETY: the contract in the header.
            _ if bo.is_null() && ntargets == 0 => Vec::new(),
            // SAFETY: the contract in the header.
            _ => unsafe { read::procs(targets, ntargets) }?,
        };
        let mut push = Push { directives: infos.0, ..Push::new(targets) };
        let completes = push
            .directives
            .iter()
            .any(|info| info.key == IOF_IOF_COMPLETE && info.value == InfoValue::Bool(true));
        if bo.is_null() {
            let is_ended = match stdin {
                Some((true, _)) => {
                    push.directives.push(Info::new(IOF_IOF_COMPLETE, true));
                    push_stdin(&push)?;
                    true
                }
                Some((false, _)) => {
                    session()?.stop_stdin();
                    true
                }
                // The push that is stopped closes the stdin of its targets.
                None if completes => session()?.stop_stdin(),
                // As in PMIx, there is nothing to do.
                None => return Ok(IOF_OPERATION_SUCCEEDED),
            };
            if is_ended {
                return call_back(cbfunc, CbData(cbdata));
            }
        }
        // SAFETY: the contract in the header.
        let bytes = unsafe { read::payload(bo, isize::MAX.cast_unsigned()) }?;
        let payload = if cbfunc.is_some() {
            Payload::Copied(memory::owned(bytes)?)
        } else {
            Payload::Lent(bytes.as_ptr(), bytes.len())
        };
        operate(cbfunc, cbdata, |done| Command::Push(push, payload, done))
    })
}

/// Pushes the program's own stdin, on its own thread and its own connection.
fn push_stdin(push: &Push) -> Outcome<()> {
    may_wait()?;
    let session = session()?;
    let tool = (session.connect)();
    let status = tool.as_ref().err().map_or(IOF_SUCCESS, attach_status);
    let pusher = Pusher::start(tool.or_status(status)?, push, io::stdin(), |_| {});
    // The pusher's thread runs until stdin ends, all targets are closed, or it is stopped.
    session.keep_pusher(pusher.or_status(IOF_ERR_IOF_FAILURE)?);
    Ok(())
}

/// Calls `cbfunc`, if there is one, on the thread of the callbacks.
fn call_back(cbfunc: iof_op_cbfunc_t, cbdata: CbData) -> Outcome<iof_status_t> {
    if cbfunc.is_some() {
        let done = Box::new(move |result| call::op(cbfunc, call::status_of(&result), cbdata));
        session()?.submit(Command::Call(done))?;
    }
    Ok(IOF_SUCCESS)
}

/// Submits a command that ends with a status, and waits for that if there is no callback.
fn operate(
    cbfunc: iof_op_cbfunc_t,
    cbdata: *mut c_void,
    command: impl FnOnce(Done<()>) -> Command,
) -> Outcome<iof_status_t> {
    let session = session()?;
    if cbfunc.is_none() {
        session.blocking(command)?;
        return Ok(IOF_SUCCESS);
    }
    let cbdata = CbData(cbdata);
    session.submit(command(Box::new(move |result| call::op(cbfunc, call::status_of(&result), cbdata))))?;
    Ok(IOF_SUCCESS)
}

/// Asks the engine and its launcher, and blocks until the answer arrives. On IOF_SUCCESS, and on
/// IOF_ERR_PARTIAL_SUCCESS if only some keys are known, *results receives an array of *nresults
/// infos, one for each known key in the order of the queries; those of keys that the library answers
/// without the engine follow. The program frees it with iof_Info_free. On other errors *results is NULL and *nresults 0. Returns IOF_ERR_WOULD_BLOCK in
/// a callback. Errors: IOF_ERR_NOT_FOUND if no key is known; IOF_ERR_BAD_PARAM if the qualifiers
/// are invalid, or if a key concerns one job and there are several.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Query_info(
    queries: *mut iof_query_t,
    nqueries: usize,
    results: *mut *mut iof_info_t,
    nresults: *mut usize,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the contract in the header.
        let (results, nresults) = unsafe { (read::place(results)?, read::place(nresults)?) };
        (*results, *nresults) = (std::ptr::null_mut(), 0);
        // SAFETY: the contract in the header.
        let mut queries = unsafe { read::queries(queries, nqueries) }?;
        let local = LocalAnswers::take_from(&mut queries, socket());
        let asked = match session() {
            _ if queries.is_empty() => None,
            Err(_) if !local.is_empty() => Some(Err(gone("the process is not connected"))),
            Err(status) => return Err(status),
            Ok(session) => Some(session.ask(|done| Command::Query(queries, done))?),
        };
        if let (true, Some(Err(failure))) = (local.is_empty(), &asked) {
            return or_failure(Err(failure.clone()));
        }
        let (status, infos) = local.join(asked);
        let given = memory::give(&infos);
        if given.is_null() && !infos.is_empty() {
            return Err(IOF_ERR_NOMEM);
        }
        (*results, *nresults) = (given, infos.len());
        Ok(status.0)
    })
}

/// Returns the socket of the engine to which this process is connected, or which it is.
fn socket() -> Option<PathBuf> {
    session_so_far().and_then(|session| session.socket.clone())
}

/// The same as iof_Query_info, without blocking: cbfunc, which may be NULL, is called with the
/// answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Query_info_nb(
    queries: *mut iof_query_t,
    nqueries: usize,
    cbfunc: iof_info_cbfunc_t,
    cbdata: *mut c_void,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the contract in the header.
        let mut queries = unsafe { read::queries(queries, nqueries) }?;
        let session = session()?;
        let local = LocalAnswers::take_from(&mut queries, session.socket.clone());
        let cbdata = CbData(cbdata);
        let command = if queries.is_empty() {
            Command::Call(Box::new(move |_| call::answered(cbfunc, local.join(None), cbdata)))
        } else {
            let done = move |result| call::answered(cbfunc, local.join(Some(result)), cbdata);
            Command::Query(queries, Box::new(done))
        };
        session.submit(command)?;
        Ok(IOF_SUCCESS)
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
        session.blocking(|done| Command::Log(log, done))?;
        Ok(IOF_SUCCESS)
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
        let cbdata = CbData(cbdata);
        let done = Box::new(move |result| call::op(cbfunc, call::status_of(&result), cbdata));
        session.submit(Command::Log(log, done))?;
        Ok(IOF_SUCCESS)
    })
}

/// Returns the session for a log request. Like PMIx's library, it checks the number of data first, and
/// then the connection.
fn with_data(ndata: usize) -> Outcome<Arc<Session>> {
    if ndata == 0 { Err(IOF_ERR_BAD_PARAM) } else { session() }
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
        return Err(IOF_ERR_BAD_PARAM);
    }
    if !directives.iter().any(|info| info.key == PMIX_LOG_SOURCE) {
        let source =
            |proc| Info { key: PMIX_LOG_SOURCE.into(), value: InfoValue::Proc(proc), required: false };
        directives.extend(own_proc().map(source));
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
/// without a connection can register handlers, too: cbfunc is then called before the function returns,
/// and the handlers receive events after iof_tool_attach_to_server. Errors: IOF_ERR_OUT_OF_RESOURCE if
/// 64 handlers exist.
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
    guard(|| {
        // SAFETY: the contract in the header.
        let codes = unsafe { read::slice(codes.cast_const(), ncodes, MAX_CODES) }?.to_vec();
        // SAFETY: the contract in the header.
        Infos(unsafe { read::infos(info, ninfo) }?).done()?;
        if evhdlr.is_none() {
            return Err(IOF_ERR_BAD_PARAM);
        }
        let (id, session) = with_events(|events| events.register(codes, evhdlr))?;
        let id = id?;
        if cbfunc.is_none() {
            return iof_status_t::try_from(id).or_status(IOF_ERR_OUT_OF_RESOURCE);
        }
        let cbdata = CbData(cbdata);
        let done = move |result: Result<(), _>| call::registered(cbfunc, &result.map(|()| id), cbdata);
        match session {
            Some(session) => session.submit(Command::Call(Box::new(done)))?,
            None => done(Ok(())),
        }
        Ok(IOF_SUCCESS)
    })
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
        if cbfunc.is_some() {
            let cbdata = CbData(cbdata);
            let done = move |result: Result<(), _>| call::op(cbfunc, call::status_of(&result), cbdata);
            match session {
                Some(session) => session.submit(Command::Call(Box::new(done)))?,
                None => done(Ok(())),
            }
        }
        Ok(IOF_SUCCESS)
    })
}
