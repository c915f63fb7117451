//! The tool's functions, which a server may call as well: what its own terminal shows is an
//! ordinary registration.

use std::ffi::{c_int, c_void};
use std::io;
use std::process;
use std::sync::Arc;

use iof_proto::log::key::PMIX_LOG_SOURCE;
use iof_proto::rendezvous::Search;
use iof_proto::{Info, InfoValue, Log, Proc, Rank, Status};
use iof_tool::{AttachError, Push, Pusher, own_proc};

use crate::call::{self, CbData};
use crate::callbacks::{
    iof_hdlr_reg_cbfunc_t, iof_info_cbfunc_t, iof_iof_cbfunc_t, iof_notification_fn_t, iof_op_cbfunc_t,
};
use crate::constants::*;
use crate::core::pull;
use crate::events::MAX_CODES;
use crate::guard::{OrStatus, Outcome, guard, guard_or, may_wait};
use crate::init::Infos;
use crate::keys::*;
use crate::library::{Library, Tool, library, library_to_begin, session};
use crate::pushes::Payload;
use crate::session::{Command, Session};
use crate::types::{iof_byte_object_t, iof_info_t, iof_iof_channel_t, iof_proc_t, iof_query_t, iof_status_t};
use crate::{make, memory, read};

/// Connects to an engine, as PMIx_tool_init does; proc, which may be NULL, gets what the tool is
/// called. Without infos it looks for the engine that has started the process (IOF_SERVER in the
/// environment), else for the node's system-level one, else for the only one of the user's session.
/// Each further call is counted, and changes nothing.
///
/// Infos: IOF_SERVER_URI, IOF_SERVER_PIDINFO, IOF_SERVER_NSPACE, IOF_CONNECT_TO_SYSTEM,
/// IOF_CONNECT_SYSTEM_FIRST, IOF_SERVER_TMPDIR, IOF_SYSTEM_TMPDIR, IOF_TOOL_NSPACE, IOF_TOOL_RANK,
/// IOF_TOOL_DO_NOT_CONNECT, IOF_TOOL_CONNECT_OPTIONAL, IOF_EXTERNAL_PROGRESS.
///
/// IOF_ERR_UNREACH: there is no engine, or more than one; IOF_ERR_TIMEOUT: it does not answer;
/// IOF_ERR_INIT: this process is a server. Waits for the engine's welcome, five seconds at most;
/// not in a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_tool_init(
    proc: *mut iof_proc_t,
    info: *mut iof_info_t,
    ninfo: usize,
) -> iof_status_t {
    guard(|| {
        may_wait()?;
        // SAFETY: the header's promise.
        let mut infos = Infos(unsafe { read::infos(info, ninfo) }?);
        // SAFETY: the header's promise.
        let place = if proc.is_null() { None } else { Some(unsafe { read::place(proc) }?) };
        let mut library = library_to_begin()?;
        let name = match &mut *library {
            Library::Server(_) => return Err(IOF_ERR_INIT),
            Library::Tool(tool) => {
                tool.count = tool.count.saturating_add(1);
                tool.proc.clone()
            }
            Library::Nothing => {
                let tool = begin(&mut infos)?;
                infos.done()?;
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

fn begin(infos: &mut Infos) -> Outcome<Tool> {
    let name = infos.text(IOF_TOOL_NSPACE)?.unwrap_or_else(|| format!("iof-tool-{}", process::id()));
    let rank = infos.rank(IOF_TOOL_RANK)?.unwrap_or(Rank(0));
    let proc = Proc::new(read::nspace(&name)?, rank);
    let stays_alone = infos.flag(IOF_TOOL_DO_NOT_CONNECT)? == Some(true);
    let may_fail = infos.flag(IOF_TOOL_CONNECT_OPTIONAL)? == Some(true);
    let own_thread = infos.flag(IOF_EXTERNAL_PROGRESS)? != Some(true);
    let search = infos.search()?;
    let session = if stays_alone {
        None
    } else {
        match connect(&search, name, own_thread) {
            Ok(session) => Some(Arc::new(session)),
            Err(_) if may_fail => None,
            Err(status) => return Err(status),
        }
    };
    Ok(Tool { count: 1, proc, session })
}

/// Connects to the first engine that accepts, of those that are to be tried.
fn connect(search: &Search, name: String, own_thread: bool) -> Outcome<Session> {
    let mut why = Err(IOF_ERR_UNREACH);
    for socket in search.sockets() {
        let connected = socket.map_err(AttachError::from).and_then(|path| {
            let tool = iof_tool::Tool::connect(&path, &name)?;
            Ok((tool, path))
        });
        match connected {
            Ok((tool, path)) => {
                let again = Box::new(move || iof_tool::Tool::connect(&path, &name));
                return Session::begin(tool, again, own_thread).or_status(IOF_ERR_OUT_OF_RESOURCE);
            }
            Err(error) => {
                let status = attach_status(&error);
                why = Err(error).or_status(status);
            }
        }
    }
    why
}

/// What C is told of an engine that could not be attached to.
pub(crate) fn attach_status(error: &AttachError) -> iof_status_t {
    match error {
        AttachError::Refused { status: Status(status), .. } => (*status).min(IOF_ERROR),
        AttachError::Silent { .. } => IOF_ERR_TIMEOUT,
        _ => IOF_ERR_UNREACH,
    }
}

/// Ends the connection, when it was called as often as iof_tool_init. What is under way is answered
/// with IOF_ERR_UNREACH before it returns; no callback comes afterwards. What was pushed stays
/// pushed. Not in a callback.
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
        // Callbacks that come meanwhile may want it.
        drop(library);
        session.map_or(Ok(()), |session| session.end())?;
        Ok(IOF_SUCCESS)
    })
}

/// 1 if the process is a tool or a server, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn iof_Initialized() -> c_int {
    guard_or(0, || c_int::from(library().is_ok_and(|library| !matches!(*library, Library::Nothing))))
}

/// Registers for the output of processes, which need not exist yet. What they wrote before and is
/// still cached comes first. For the callback see iof_iof_cbfunc_t; without one, output goes to the
/// program's own stdout and stderr, in whole lines, and what is missing is told on stderr.
///
/// Without regcbfunc it waits, and gives the handler's number, 1 or more. With one it gives
/// IOF_SUCCESS, and regcbfunc is called with the number or the error, before anything comes of the
/// registration.
///
/// Directives: IOF_IOF_CACHE_SIZE, IOF_IOF_DROP_OLDEST, IOF_IOF_DROP_NEWEST,
/// IOF_IOF_BUFFERING_SIZE, IOF_IOF_BUFFERING_TIME, IOF_BUFFERING_TIME_US, IOF_NO_BACKLOG.
/// IOF_ERR_NOT_SUPPORTED: stdin, or a directive that is required and can't be honoured.
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
        // SAFETY: the header's promise.
        let (procs, infos) = unsafe { (read::procs(procs, nprocs)?, read::infos(directives, ndirs)?) };
        let pull = pull(procs, read::channels(channel)?, infos);
        let session = session()?;
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

/// Ends a registration. What was written before and is not handed out yet still comes, and then
/// cbfunc is called, after which nothing does; without cbfunc this waits for that. There are no
/// directives. IOF_ERR_NOT_FOUND: there is no such registration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_IOF_deregister(
    iofhdlr: usize,
    directives: *const iof_info_t,
    ndirs: usize,
    cbfunc: iof_op_cbfunc_t,
    cbdata: *mut c_void,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the header's promise.
        Infos(unsafe { read::infos(directives, ndirs) }?).done()?;
        operate(cbfunc, cbdata, |done| Command::Deregister(iofhdlr, done))
    })
}

/// Pushes bytes into the stdin of processes, and closes it behind them with IOF_IOF_COMPLETE (bo
/// may be NULL or empty then). When all targets have them, cbfunc is called, for which they are
/// copied; without it this waits, and nothing is copied. At a target the bytes of one push come in
/// one piece, behind those of pushes that came before.
///
/// With IOF_IOF_PUSH_STDIN and without bo, the library reads the program's own stdin until its end
/// and pushes that; it answers when it has begun. A thread of its own goes on reading until then,
/// also when the library is finalized.
///
/// Directives: IOF_IOF_COMPLETE, IOF_IOF_PUSH_STDIN, IOF_IOF_DROP_NEWEST, IOF_PARTIAL,
/// IOF_IOF_CACHE_SIZE. IOF_ERR_PARTIAL_SUCCESS: some targets did not get all; IOF_ERR_IOF_FAILURE:
/// none did. While a target does not read, this waits, unless IOF_IOF_DROP_NEWEST says that it is
/// to be cut off after a second.
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
        // SAFETY: the header's promise.
        let (targets, infos) = unsafe { (read::procs(targets, ntargets)?, read::infos(directives, ndirs)?) };
        let mut infos = Infos(infos);
        let stdin = infos.flag(IOF_IOF_PUSH_STDIN)? == Some(true);
        let mut push = Push { directives: infos.0, ..Push::new(targets) };
        if stdin && bo.is_null() {
            push.directives.push(Info::new(IOF_IOF_COMPLETE, true));
            return push_stdin(&push, cbfunc, CbData(cbdata));
        }
        let ends = push
            .directives
            .iter()
            .any(|info| info.key == IOF_IOF_COMPLETE && info.value == InfoValue::Bool(true));
        if bo.is_null() && !ends {
            return Err(IOF_ERR_BAD_PARAM);
        }
        // SAFETY: the header's promise.
        let bytes = unsafe { read::payload(bo, isize::MAX.cast_unsigned()) }?;
        let payload = if cbfunc.is_some() {
            Payload::Copied(memory::owned(bytes)?)
        } else {
            Payload::Lent(bytes.as_ptr(), bytes.len())
        };
        operate(cbfunc, cbdata, |done| Command::Push(push, payload, done))
    })
}

/// Has our own stdin pushed, on a thread and a connection for that.
fn push_stdin(push: &Push, cbfunc: iof_op_cbfunc_t, cbdata: CbData) -> Outcome<iof_status_t> {
    may_wait()?;
    let session = session()?;
    let tool = (session.connect)();
    let status = tool.as_ref().err().map_or(IOF_SUCCESS, attach_status);
    let pusher = Pusher::start(tool.or_status(status)?, push, io::stdin(), |_| {});
    // It goes on until the end of our stdin, or of its targets.
    drop(pusher.or_status(IOF_ERR_IOF_FAILURE)?);
    if cbfunc.is_some() {
        let done = Box::new(move |result| call::op(cbfunc, call::status_of(&result), cbdata));
        session.submit(Command::Call(done))?;
    }
    Ok(IOF_SUCCESS)
}

/// Submits a command whose end is a status; waits for it if there is nobody to call.
fn operate(
    cbfunc: iof_op_cbfunc_t,
    cbdata: *mut c_void,
    command: impl FnOnce(crate::session::Done<()>) -> Command,
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

/// Asks what the engine and its host know, and waits for the answer: an array of infos, one for
/// each key of which something is known, to be freed by iof_Info_free. On any status but
/// IOF_SUCCESS and IOF_ERR_PARTIAL_SUCCESS, *results is NULL. IOF_ERR_NOT_FOUND: nothing is known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Query_info(
    queries: *mut iof_query_t,
    nqueries: usize,
    results: *mut *mut iof_info_t,
    nresults: *mut usize,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the header's promise.
        let (results, nresults) = unsafe { (read::place(results)?, read::place(nresults)?) };
        (*results, *nresults) = (std::ptr::null_mut(), 0);
        // SAFETY: the header's promise.
        let queries = unsafe { read::queries(queries, nqueries) }?;
        let answer = session()?.blocking(|done| Command::Query(queries, done))?;
        let infos = make::answer(&answer);
        let given = memory::give(&infos);
        if given.is_null() && !infos.is_empty() {
            return Err(IOF_ERR_NOMEM);
        }
        (*results, *nresults) = (given, infos.len());
        Ok(answer.status.0)
    })
}

/// The same, without a wait: cbfunc is called with the answer, and must not be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Query_info_nb(
    queries: *mut iof_query_t,
    nqueries: usize,
    cbfunc: iof_info_cbfunc_t,
    cbdata: *mut c_void,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the header's promise.
        let queries = unsafe { read::queries(queries, nqueries) }?;
        if cbfunc.is_none() {
            return Err(IOF_ERR_BAD_PARAM);
        }
        let cbdata = CbData(cbdata);
        let done = Box::new(move |result| call::answered(cbfunc, &result, cbdata));
        session()?.submit(Command::Query(queries, done))?;
        Ok(IOF_SUCCESS)
    })
}

/// Has something logged, and waits until that is done: data name channels and have texts,
/// directives say how. Without IOF_LOG_SOURCE the source is the process of a job that we are, if we
/// are one. IOF_ERR_PARTIAL_SUCCESS: some channels have it; IOF_ERR_OPERATION_FAILED: none has, or
/// a required one has not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Log(
    data: *const iof_info_t,
    ndata: usize,
    directives: *const iof_info_t,
    ndirs: usize,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the header's promise.
        let log = unsafe { log(data, ndata, directives, ndirs) }?;
        session()?.blocking(|done| Command::Log(log, done))?;
        Ok(IOF_SUCCESS)
    })
}

/// The same, without a wait: cbfunc is called when it is done, and may be NULL.
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
        // SAFETY: the header's promise.
        let log = unsafe { log(data, ndata, directives, ndirs) }?;
        let cbdata = CbData(cbdata);
        let done = Box::new(move |result| call::op(cbfunc, call::status_of(&result), cbdata));
        session()?.submit(Command::Log(log, done))?;
        Ok(IOF_SUCCESS)
    })
}

/// # Safety
/// That of [`read`].
unsafe fn log(
    data: *const iof_info_t,
    ndata: usize,
    directives: *const iof_info_t,
    ndirs: usize,
) -> Outcome<Log> {
    // SAFETY: as promised to us.
    let (data, mut directives) =
        unsafe { (read::log_entries(data, ndata)?, read::infos(directives, ndirs)?) };
    if !directives.iter().any(|info| info.key == PMIX_LOG_SOURCE) {
        let source =
            |proc| Info { key: PMIX_LOG_SOURCE.into(), value: InfoValue::Proc(proc), required: false };
        directives.extend(own_proc().map(source));
    }
    Ok(Log { data, directives })
}

/// Registers a callback for events: IOF_EVENT_JOB_END, when a job that something was pulled from
/// has ended, behind the last bytes of its last stream, with IOF_EVENT_AFFECTED_PROC,
/// IOF_JOB_TERM_STATUS and, if it is known, IOF_EXIT_CODE (as a shell would show it);
/// IOF_ERR_LOST_CONNECTION, when the engine has gone. No codes: all of them. Infos are not
/// understood.
///
/// Without cbfunc it gives the handler's number, 1 or more, and does not wait; with one it gives
/// IOF_SUCCESS, and cbfunc is called with it.
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
        // SAFETY: the header's promise.
        let codes = unsafe { read::slice(codes.cast_const(), ncodes, MAX_CODES) }?.to_vec();
        // SAFETY: the header's promise.
        Infos(unsafe { read::infos(info, ninfo) }?).done()?;
        if evhdlr.is_none() {
            return Err(IOF_ERR_BAD_PARAM);
        }
        let session = session()?;
        let id = session.events().register(codes, evhdlr)?;
        if cbfunc.is_none() {
            return iof_status_t::try_from(id).or_status(IOF_ERR_OUT_OF_RESOURCE);
        }
        let cbdata = CbData(cbdata);
        let done = move |result: Result<(), _>| call::registered(cbfunc, &result.map(|()| id), cbdata);
        session.submit(Command::Call(Box::new(done)))?;
        Ok(IOF_SUCCESS)
    })
}

/// Takes an event handler away; it may still be called once. cbfunc, which may be NULL, is called
/// then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Deregister_event_handler(
    evhdlr_ref: usize,
    cbfunc: iof_op_cbfunc_t,
    cbdata: *mut c_void,
) -> iof_status_t {
    guard(|| {
        let session = session()?;
        session.events().deregister(evhdlr_ref)?;
        if cbfunc.is_some() {
            let cbdata = CbData(cbdata);
            let done = Box::new(move |result| call::op(cbfunc, call::status_of(&result), cbdata));
            session.submit(Command::Call(done))?;
        }
        Ok(IOF_SUCCESS)
    })
}
