//! The functions that libpmix calls on its own thread for requests of a tool.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_void};
use std::mem::{self, ManuallyDrop};
use std::net::{SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::os::fd::{FromRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, PoisonError, mpsc};
use std::time::Duration;

use iof_proto::attribute::library::PMIX_IOF_STOP;
use iof_proto::directive::{DirectiveLevel, Directives};
use iof_proto::{Channels, InfoValue, Proc, Status};
use nix::sys::socket::{getsockopt, sockopt};

use crate::library::end_process;
use crate::library::info::characters;
use crate::library::read::{self, Read};
use crate::library::types::{
    self, ByteObject, Info, InfoCallback, Module, OPERATION_SUCCEEDED, OpCallback, RawApp, RawQuery, SUCCESS,
    SpawnCallback, ToolCallback,
};
use crate::limits::MAX_PMIX_PULL_WAIT;
use crate::requests::request::{AnswerReply, NspaceReply, PullReply, PullRequest, StatusReply, ToolRequest};
use crate::requests::spawn::tool_spawn;

/// The most bytes of one push. libpmix does not receive longer messages.
const MAX_PUSH_BYTES: usize = 32 << 20;

/// The receiver of requests, and the name of a tool that has chosen none. One server exists in a
/// process, and libpmix passes no pointer of ours to upcalls.
struct Receiver {
    receive: Box<dyn Fn(ToolRequest) + Send>,
    name: String,
}
static RECEIVER: Mutex<Option<Receiver>> = Mutex::new(None);

/// Sets the receiver of requests, and the name of a tool that has chosen none.
pub(crate) fn set_receiver(receive: impl Fn(ToolRequest) + Send + 'static, name: String) {
    let receiver = Receiver { receive: Box::new(receive), name };
    *RECEIVER.lock().unwrap_or_else(PoisonError::into_inner) = Some(receiver);
}

/// Returns the upcalls of the server of a tool.
pub(crate) fn module() -> Module {
    Module {
        abort: Some(abort),
        spawn: Some(spawn),
        register_events: Some(register_events),
        deregister_events: Some(deregister_events),
        query: Some(query),
        tool_connected: Some(tool_connected),
        log: Some(log),
        job_control: Some(job_control),
        iof_pull: Some(iof_pull),
        push_stdin: Some(push_stdin),
        ..Module::default()
    }
}

/// Passes a request to the receiver. `read` reads its arguments. Returns the status with which the
/// upcall ends: success, after which the reply follows, or the reason of a refusal. No panic
/// crosses the border to C.
fn receive(read: impl FnOnce() -> Read<ToolRequest>) -> types::Status {
    let request = match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(request)) => request,
        Ok(Err(status)) => return status.0,
        Err(_) => return Status::ERR_BAD_PARAM.0,
    };
    let receiver = RECEIVER.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(receiver) = &*receiver else {
        // libpmix takes no reply after a result that is an error, nor on the thread of the upcall.
        mem::forget(request);
        return Status::ERR_NOT_AVAILABLE.0;
    };
    // A receiver that panics drops the request, which refuses it.
    let _ = catch_unwind(AssertUnwindSafe(|| (receiver.receive)(request)));
    SUCCESS
}

/// The port of the server and the address of the relay's socket.
static RELAY: Mutex<Option<(u16, SocketAddr)>> = Mutex::new(None);

/// Names the only socket that may connect to the server.
pub(crate) fn set_relay(server: SocketAddr, relay: SocketAddr) {
    *RELAY.lock().unwrap_or_else(PoisonError::into_inner) = Some((server.port(), relay));
}

/// Returns whether every socket that is connected to the server is that of the relay. A socket
/// whose tool introduces itself is open in this process by then, even if it was reset.
fn has_only_the_relay() -> bool {
    let Some((port, relay)) = *RELAY.lock().unwrap_or_else(PoisonError::into_inner) else { return false };
    let Ok(files) = std::fs::read_dir("/proc/self/fd") else { return false };
    let numbers = files.filter_map(|file| file.ok()?.file_name().to_str()?.parse::<RawFd>().ok());
    let mut sockets = numbers.map(|fd| {
        // SAFETY: the calls below fail for other files, and the descriptor is not closed here.
        ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(fd) })
    });
    sockets.all(|socket| {
        let is_ours = socket.local_addr().is_ok_and(|local| local.port() == port);
        let listens = || getsockopt(&*socket, sockopt::AcceptConn).unwrap_or_default();
        !is_ours || socket.peer_addr().map_or_else(|_| listens(), |peer| peer == relay)
    })
}

/// Set if the tool has introduced itself.
static INTRODUCED: Mutex<bool> = Mutex::new(false);
static INTRODUCTION: Condvar = Condvar::new();

/// Blocks until the tool has introduced itself, at most until `limit` has elapsed. Returns whether
/// it has.
pub(crate) fn await_introduction(limit: Duration) -> bool {
    let introduced = INTRODUCED.lock().unwrap_or_else(PoisonError::into_inner);
    let awaited = INTRODUCTION.wait_timeout_while(introduced, limit, |introduced| !*introduced);
    *awaited.unwrap_or_else(PoisonError::into_inner).0
}

/// The name and the rank of the tool, once it has introduced itself.
static TOOL: Mutex<Option<(String, u32)>> = Mutex::new(None);

/// Returns the name and the rank of the tool, if it has introduced itself.
pub(crate) fn tool_proc() -> Option<(String, u32)> {
    TOOL.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Approves the tool, if only the relay has connected to the server. Otherwise the process ends,
/// because libpmix 4 cannot refuse every tool without harm. A tool that has a name keeps it.
unsafe extern "C" fn tool_connected(infos: *mut Info, count: usize, done: ToolCallback, data: *mut c_void) {
    if !has_only_the_relay() {
        end_process(1);
    }
    *INTRODUCED.lock().unwrap_or_else(PoisonError::into_inner) = true;
    INTRODUCTION.notify_all();
    // SAFETY: the contract of the server module.
    let (name, rank) = unsafe { read::tool_name(infos, count) }.unwrap_or_else(|_| {
        let receiver = RECEIVER.lock().unwrap_or_else(PoisonError::into_inner);
        (receiver.as_ref().map(|receiver| receiver.name.clone()).unwrap_or_default(), 0)
    });
    let mut proc = types::RawProc { nspace: characters(&name), rank };
    *TOOL.lock().unwrap_or_else(PoisonError::into_inner) = Some((name, rank));
    if let Some(done) = done {
        // SAFETY: libpmix copies the name.
        unsafe { done(SUCCESS, &raw mut proc, data) }
    }
}

/// The events of the system, such as those of nodes, which the engine does not have.
const SYSTEM_EVENTS: RangeInclusive<types::Status> = -330..=-230;

/// Takes note of nothing: libpmix knows the handlers of the tool, and passes it each event. Handlers that
/// only events of the system would reach are refused.
unsafe extern "C" fn register_events(
    codes: *mut types::Status,
    code_count: usize,
    _infos: *const Info,
    _count: usize,
    _done: OpCallback,
    _data: *mut c_void,
) -> types::Status {
    // SAFETY: the contract of the server module.
    match unsafe { read::slice(codes.cast_const(), code_count, usize::MAX) } {
        Ok(codes) if !codes.is_empty() && codes.iter().all(|code| SYSTEM_EVENTS.contains(code)) => {
            Status::ERR_NOT_SUPPORTED.0
        }
        Ok(_) => OPERATION_SUCCEEDED,
        Err(status) => status.0,
    }
}

unsafe extern "C" fn deregister_events(
    _codes: *mut types::Status,
    _code_count: usize,
    _done: OpCallback,
    _data: *mut c_void,
) -> types::Status {
    OPERATION_SUCCEEDED
}

unsafe extern "C" fn abort(
    _client: *const types::RawProc,
    _object: *mut c_void,
    _code: c_int,
    _message: *const c_char,
    procs: *mut types::RawProc,
    count: usize,
    done: OpCallback,
    data: *mut c_void,
) -> types::Status {
    receive(|| {
        // SAFETY: the contract of the server module.
        let procs = unsafe { read::procs(procs, count) }?;
        Ok(ToolRequest::Abort { procs, reply: StatusReply::new(done, data) })
    })
}

unsafe extern "C" fn spawn(
    _requester: *const types::RawProc,
    infos: *const Info,
    count: usize,
    apps: *const RawApp,
    app_count: usize,
    done: SpawnCallback,
    data: *mut c_void,
) -> types::Status {
    receive(|| {
        // The name of this process, as that of other tools.
        let name = format!("iof-{}", std::process::id());
        // SAFETY: the contract of the server module.
        let spawn = unsafe { tool_spawn(&name, (infos, count), (apps, app_count)) };
        Ok(ToolRequest::Spawn { spawn, reply: NspaceReply::new(done, data) })
    })
}

unsafe extern "C" fn query(
    _proc: *mut types::RawProc,
    queries: *mut RawQuery,
    count: usize,
    done: InfoCallback,
    data: *mut c_void,
) -> types::Status {
    receive(|| {
        // SAFETY: the contract of the server module.
        let queries = unsafe { read::queries(queries, count) }?;
        Ok(ToolRequest::Query { queries, reply: AnswerReply::new(done, data) })
    })
}

unsafe extern "C" fn job_control(
    _requester: *const types::RawProc,
    targets: *const types::RawProc,
    target_count: usize,
    infos: *const Info,
    count: usize,
    done: InfoCallback,
    data: *mut c_void,
) -> types::Status {
    receive(|| {
        // SAFETY: the contract of the server module.
        let (procs, signal) =
            unsafe { (read::procs(targets, target_count)?, read::control_signal(infos, count)) };
        Ok(ToolRequest::Signal { procs, signal, reply: AnswerReply::new(done, data) })
    })
}

unsafe extern "C" fn log(
    client: *const types::RawProc,
    entries: *const Info,
    entry_count: usize,
    directives: *const Info,
    count: usize,
    done: OpCallback,
    data: *mut c_void,
) {
    receive(|| {
        // SAFETY: the contract of the server module.
        let log = unsafe { read::log(client, (entries, entry_count), (directives, count)) };
        Ok(ToolRequest::Log { log, reply: StatusReply::new(done, data) })
    });
}

unsafe extern "C" fn iof_pull(
    procs: *const types::RawProc,
    proc_count: usize,
    directives: *const Info,
    count: usize,
    channels: u16,
    _done: OpCallback,
    _data: *mut c_void,
) -> types::Status {
    // SAFETY: the contract of the server module.
    if unsafe { is_end_of_pull(proc_count, directives, count) } {
        return OPERATION_SUCCEEDED;
    }
    let number = number_pull();
    let (reply, status) = mpsc::sync_channel(1);
    let refused = receive(|| {
        let read = || {
            // SAFETY: the contract of the server module.
            let (procs, directives) =
                unsafe { (read::procs(procs, proc_count)?, read::infos(directives, count)?) };
            let channels = Channels::try_from(channels).map_err(|_| Status::ERR_BAD_PARAM)?;
            check(&procs, channels, &directives)?;
            Ok(PullRequest { procs, channels, directives })
        };
        Ok(ToolRequest::Pull { number, pull: read(), reply: PullReply(reply) })
    });
    if refused != SUCCESS {
        return refused;
    }
    match status.recv_timeout(MAX_PMIX_PULL_WAIT) {
        // libpmix 4 frees its request after any other result, and then uses it for the answer.
        Ok(Status::SUCCESS) => OPERATION_SUCCEEDED,
        Ok(status) => status.0,
        Err(mpsc::RecvTimeoutError::Timeout) => Status::ERR_TIMEOUT.0,
        Err(mpsc::RecvTimeoutError::Disconnected) => Status::ERR_NOT_AVAILABLE.0,
    }
}

/// Returns whether a pull is its end, which the relay has reported ([`crate::HeldRequest::EndOfPull`]):
/// libpmix adds a directive, and names no process.
///
/// # Safety
/// The contract of the server module.
unsafe fn is_end_of_pull(proc_count: usize, directives: *const Info, count: usize) -> bool {
    // SAFETY: the contract.
    let last = unsafe { read::slice(directives, count, usize::MAX) }.ok().and_then(<[Info]>::last);
    proc_count == 0
        && last.is_some_and(|last| read::text_within(&last.key).is_ok_and(|key| key == PMIX_IOF_STOP))
}

/// The numbers of pulls in use. libpmix gives the lowest free one from 1 on to each, and keeps those
/// of pulls that were refused.
static PULLS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Returns the number of a pull that begins.
pub(crate) fn number_pull() -> u32 {
    let mut pulls = PULLS.lock().unwrap_or_else(PoisonError::into_inner);
    let number = (1..u32::MAX).find(|number| !pulls.contains(number)).unwrap_or(u32::MAX);
    pulls.insert(number);
    number
}

/// Makes the number of a pull free that is about to end. Returns whether libpmix has such a pull.
pub(crate) fn forget_pull(number: u32) -> bool {
    PULLS.lock().unwrap_or_else(PoisonError::into_inner).remove(&number)
}

/// Checks what an engine need not be asked.
fn check(procs: &[Proc], channels: Channels, directives: &[iof_proto::Info]) -> Read<()> {
    if procs.is_empty() {
        return Err(Status::ERR_BAD_PARAM);
    }
    if channels.is_empty() || channels.contains(Channels::STDIN) {
        return Err(Status::ERR_NOT_SUPPORTED);
    }
    // A pull is ended by `PMIx_IOF_deregister`.
    if directives.iter().any(|info| info.key == PMIX_IOF_STOP && info.value != InfoValue::Bool(false)) {
        return Err(Status::ERR_NOT_SUPPORTED);
    }
    let read = Directives::read(directives, DirectiveLevel::Registration);
    read.map(drop).map_err(|failure| failure.status)
}

unsafe extern "C" fn push_stdin(
    _source: *const types::RawProc,
    targets: *const types::RawProc,
    target_count: usize,
    directives: *const Info,
    count: usize,
    bytes: *const ByteObject,
    done: OpCallback,
    data: *mut c_void,
) -> types::Status {
    receive(|| {
        // SAFETY: the contract of the server module.
        let (targets, directives, bytes) = unsafe {
            let bytes: &[u8] = match bytes.as_ref() {
                Some(object) => read::slice(object.bytes.cast(), object.size, MAX_PUSH_BYTES)?,
                None => &[],
            };
            (read::procs(targets, target_count)?, read::infos(directives, count)?, bytes.to_vec())
        };
        Ok(ToolRequest::Push { targets, directives, bytes, reply: StatusReply::new(done, data) })
    })
}
