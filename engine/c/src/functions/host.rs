//! The host's part: upcalls of the engine become calls of the launcher's module, and the launcher's
//! answers become replies.
//!
//! The `cbdata` of an upcall is the number of its request. An answer that arrives twice, or without
//! a request, therefore has an unknown number and no effect. The arguments of an upcall are kept
//! until its answer.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::{Arc, Mutex};

use iof_engine::{
    ApprovalReply, Grant, Host, HostReply, JobSpec, QueryReply, SpawnReply, SpawnRequest, StdinPush,
    same_user,
};
use iof_proto::attribute::key::*;
use iof_proto::log::key::PMIX_LOG_SOURCE;
use iof_proto::{
    Channels, Failure, Found, Info, InfoValue, Log, LogValue, Proc, ProcInfo, ProcState, Query, Status,
    Value, socket,
};

use crate::ffi::callbacks::iof_server_module_t;
use crate::ffi::constants::*;
use crate::ffi::guard::{Outcome, as_error, calling, guard_or, lock};
use crate::ffi::owned::{OwnedApps, OwnedInfos, OwnedQueries};
use crate::ffi::types::{
    iof_byte_object_t, iof_data_array_t, iof_info_t, iof_proc_info_t, iof_proc_t, iof_status_t, iof_value_t,
};
use crate::ffi::{make, memory, read};
use crate::infos::init::HostInfos;

/// The maximum number of infos or processes in an answer.
const MAX_ANSWER: usize = 1 << 16;

const UNKNOWN_KEYS: &str = "the launcher does not know the keys of this query";

/// The requests that wait for the launcher's answer, by number, each with the arguments of its
/// upcall.
struct PendingRequests<T> {
    last: usize,
    all: BTreeMap<usize, (T, Option<Arc<Args>>)>,
}

impl<T> PendingRequests<T> {
    const fn new() -> PendingRequests<T> {
        PendingRequests { last: 0, all: BTreeMap::new() }
    }
}

/// Adds a request, and returns its number as `cbdata`.
fn add<T>(requests: &Mutex<PendingRequests<T>>, request: T, args: Option<Arc<Args>>) -> *mut c_void {
    let mut requests = lock(requests);
    requests.last = requests.last.wrapping_add(1);
    let number = requests.last;
    requests.all.insert(number, (request, args));
    ptr::without_provenance_mut(number)
}

/// Removes and returns the request with this number, if it is pending.
fn take<T>(requests: &Mutex<PendingRequests<T>>, number: *mut c_void) -> Option<T> {
    let taken = lock(requests).all.remove(&number.addr());
    taken.map(|(request, _)| request)
}

static REPLIES: Mutex<PendingRequests<HostReply>> = Mutex::new(PendingRequests::new());
static QUERIES: Mutex<PendingRequests<(QueryReply, Vec<Query>)>> = Mutex::new(PendingRequests::new());
static SPAWNS: Mutex<PendingRequests<(SpawnReply, JobSpec)>> = Mutex::new(PendingRequests::new());
static APPROVALS: Mutex<PendingRequests<ApprovalReply>> = Mutex::new(PendingRequests::new());

/// The arguments of an upcall.
#[derive(Default)]
struct Args {
    /// The process that asks, if known.
    asker: iof_proc_t,
    procs: Vec<iof_proc_t>,
    data: OwnedInfos,
    directives: OwnedInfos,
    queries: OwnedQueries,
    apps: OwnedApps,
    bytes: Vec<u8>,
    bo: Option<iof_byte_object_t>,
}

// SAFETY: it owns all that it points to, and only the launcher reads that until it has answered.
unsafe impl Send for Args {}
// SAFETY: as above; it is not modified after its creation.
unsafe impl Sync for Args {}

/// The launcher as the engine's host.
pub(crate) struct CHost {
    pub module: iof_server_module_t,
    pub infos: HostInfos,
}

impl Host for CHost {
    fn directives(&self) -> Vec<String> {
        self.infos.directives.clone()
    }

    fn queries(&self) -> Vec<String> {
        self.infos.queries.clone()
    }

    fn log_channels(&self) -> Vec<String> {
        self.infos.log_channels.clone()
    }

    fn gateway(&self) -> Option<PathBuf> {
        self.infos.gateway.clone()
    }

    fn approve(&self, tool: &socket::PeerCredentials, reply: ApprovalReply) {
        let Some(tool_connected) = self.module.tool_connected else { return reply.answer(same_user(tool)) };
        let mut infos = [
            make::info(PMIX_USERID, make::uint32(tool.uid)),
            make::info(PMIX_GRPID, make::uint32(tool.gid)),
            make::info(PMIX_PROC_PID, make::pid(tool.pid)),
        ];
        let number = add(&APPROVALS, reply, None);
        // SAFETY: the contract in the header; the infos live until it returns.
        calling(|| unsafe { tool_connected(infos.as_mut_ptr(), infos.len(), Some(approved), number) });
    }

    fn iof_pull(&self, procs: &[Proc], channels: Channels, directives: &[Info], reply: HostReply) {
        let Some(_) = self.module.iof_pull else { return reply.grant() };
        let args = Args { directives: OwnedInfos::new(directives), ..args_for(procs) };
        self.call_pull(args, channels, Some(reply));
    }

    fn iof_stop(&self, procs: &[Proc], channels: Channels) {
        let stop = [Info::new(PMIX_IOF_STOP, true)];
        self.call_pull(Args { directives: OwnedInfos::new(&stop), ..args_for(procs) }, channels, None);
    }

    fn forwards_stdin(&self) -> bool {
        self.module.push_stdin.is_some()
    }

    fn push_stdin(&self, stdin: &StdinPush, bytes: &[u8], reply: HostReply) {
        let Some(push_stdin) = self.module.push_stdin else { return drop(reply) };
        let asker = memory::proc(&stdin.source);
        let directives = OwnedInfos::new(&stdin.directives);
        let mut args = Args { asker, directives, ..args_for(&stdin.targets) };
        args.bytes = bytes.to_vec();
        let start = if bytes.is_empty() { ptr::null_mut() } else { args.bytes.as_mut_ptr().cast() };
        args.bo = Some(iof_byte_object_t { bytes: start, size: bytes.len() });
        let args = Arc::new(args);
        let number = add(&REPLIES, reply, Some(Arc::clone(&args)));
        let (targets, directives) = (&args.procs, args.directives.as_slice());
        let bo = args.bo.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the contract in the header; the arguments live as long as `args`.
        let status = calling(|| unsafe {
            push_stdin(
                &args.asker,
                targets.as_ptr(),
                targets.len(),
                directives.as_ptr(),
                directives.len(),
                bo,
                Some(done),
                number,
            )
        });
        returned(number, status);
    }

    fn spawn(&self, request: SpawnRequest, reply: SpawnReply) {
        let Some(spawn) = self.module.spawn else {
            return reply.deny(Status::ERR_NOT_SUPPORTED, "the launcher does not let tools start jobs");
        };
        let SpawnRequest { spec, tool, parent, detached, .. } = request;
        let mut infos = vec![Info::new(PMIX_NSPACE, spec.nspace.as_str())];
        infos.extend(parent.map(|parent| Info::new(PMIX_PARENT_ID, InfoValue::Proc(Proc::all(parent)))));
        infos.extend(detached.then(|| Info::new(PMIX_NOHUP, true)));
        let (asker, data, apps) = (memory::proc(&tool), OwnedInfos::new(&infos), OwnedApps::new(&spec.apps));
        let args = Arc::new(Args { asker, data, apps, ..Args::default() });
        let number = add(&SPAWNS, (reply, spec), Some(Arc::clone(&args)));
        let (infos, apps) = (args.data.as_slice(), args.apps.as_slice());
        // SAFETY: the contract in the header; the arguments live as long as `args`.
        let status = calling(|| unsafe {
            spawn(&args.asker, infos.as_ptr(), infos.len(), apps.as_ptr(), apps.len(), Some(granted), number)
        });
        if status != Status::SUCCESS.0 {
            grant(status, number);
        }
    }

    fn query(&self, queries: &[Query], reply: QueryReply) {
        let Some(query) = self.module.query else { return drop(reply) };
        let args = Arc::new(Args { queries: OwnedQueries::new(queries), ..Args::default() });
        let number = add(&QUERIES, (reply, queries.to_vec()), Some(Arc::clone(&args)));
        let (asker, asked) = (ptr::from_ref(&args.asker).cast_mut(), args.queries.as_slice());
        // SAFETY: the contract in the header; the arguments live as long as `args`.
        let status = calling(|| unsafe {
            query(asker, asked.as_ptr().cast_mut(), asked.len(), Some(answered), number)
        });
        if status != Status::SUCCESS.0
            && let Some((reply, _)) = take(&QUERIES, number)
        {
            reply.deny(as_error(status), UNKNOWN_KEYS);
        }
    }

    fn log(&self, log: &Log, reply: HostReply) {
        let Some(call) = self.module.log else {
            return reply.deny(Status::ERR_NOT_SUPPORTED, "the launcher does not log messages");
        };
        let source = log.directives.iter().find(|info| info.key == PMIX_LOG_SOURCE);
        let asker = match source.map(|info| &info.value) {
            Some(InfoValue::Proc(proc)) => memory::proc(proc),
            _ => Args::default().asker,
        };
        let data: Vec<Info> = log.data.iter().filter_map(log_entry).collect();
        let (data, directives) = (OwnedInfos::new(&data), OwnedInfos::new(&log.directives));
        let args = Arc::new(Args { asker, data, directives, ..Args::default() });
        let number = add(&REPLIES, reply, Some(Arc::clone(&args)));
        let (data, directives) = (args.data.as_slice(), args.directives.as_slice());
        // SAFETY: the contract in the header; the arguments live as long as `args`.
        calling(|| unsafe {
            call(
                &args.asker,
                data.as_ptr(),
                data.len(),
                directives.as_ptr(),
                directives.len(),
                Some(done),
                number,
            );
        });
    }
}

impl CHost {
    /// Calls the launcher's `iof_pull`. `reply` is `None` if the request needs no answer.
    fn call_pull(&self, args: Args, channels: Channels, reply: Option<HostReply>) {
        let Some(iof_pull) = self.module.iof_pull else { return };
        let args = Arc::new(args);
        let number = match reply {
            Some(reply) => add(&REPLIES, reply, Some(Arc::clone(&args))),
            // The number of no request.
            None => ptr::null_mut(),
        };
        let (procs, directives) = (&args.procs, args.directives.as_slice());
        // SAFETY: the contract in the header; the arguments live as long as `args`.
        let status = calling(|| unsafe {
            iof_pull(
                procs.as_ptr(),
                procs.len(),
                directives.as_ptr(),
                directives.len(),
                channels.bits(),
                Some(done),
                number,
            )
        });
        returned(number, status);
    }
}

fn args_for(procs: &[Proc]) -> Args {
    Args { procs: procs.iter().map(memory::proc).collect(), ..Args::default() }
}

/// Returns an entry of a log request for the launcher. Emails are left out: the engine sends them.
fn log_entry(entry: &iof_proto::LogEntry) -> Option<Info> {
    let LogValue::Text(text) = &entry.value else { return None };
    let value = InfoValue::Text(text.clone());
    Some(Info { key: entry.channel.clone(), value, required: entry.required })
}

/// Handles the return of an upcall: a status other than success is the answer, unless the request
/// is answered already.
fn returned(number: *mut c_void, status: iof_status_t) {
    if status != Status::SUCCESS.0 {
        reply(number, status);
    }
}

fn reply(number: *mut c_void, status: iof_status_t) {
    let Some(reply) = take(&REPLIES, number) else { return };
    match Status(status) {
        Status::SUCCESS | Status::OPERATION_SUCCEEDED => reply.grant(),
        Status::ERR_IOF_XOFF => reply.pause(),
        _ => reply.deny(as_error(status), "the launcher denied the request"),
    }
}

/// Grants or refuses a job.
fn grant(status: iof_status_t, number: *mut c_void) {
    let Some((reply, spec)) = take(&SPAWNS, number) else { return };
    match Status(status) {
        Status::SUCCESS | Status::OPERATION_SUCCEEDED => reply.grant(spec),
        _ => reply.deny(as_error(status), "the launcher refused the job"),
    }
}

unsafe extern "C" fn granted(status: iof_status_t, _nspace: *mut c_char, number: *mut c_void) {
    guard_or((), || grant(status, number));
}

/// The callback for the launcher's answer to a request.
unsafe extern "C" fn done(status: iof_status_t, number: *mut c_void) {
    guard_or((), || reply(number, status));
}

unsafe extern "C" fn approved(status: iof_status_t, _proc: *mut iof_proc_t, number: *mut c_void) {
    guard_or((), || {
        let Some(reply) = take(&APPROVALS, number) else { return };
        reply.answer(match Status(status) {
            Status::SUCCESS | Status::OPERATION_SUCCEEDED => Ok(Grant::Never),
            _ => Err(Failure::new(as_error(status), "the launcher refused this tool".to_owned())),
        });
    });
}

unsafe extern "C" fn answered(
    status: iof_status_t,
    info: *mut iof_info_t,
    ninfo: usize,
    number: *mut c_void,
    release_fn: crate::ffi::callbacks::iof_release_cbfunc_t,
    release_cbdata: *mut c_void,
) {
    guard_or((), || {
        if let Some((reply, queries)) = take(&QUERIES, number) {
            let known = matches!(Status(status), Status::SUCCESS | Status::ERR_PARTIAL_SUCCESS);
            // SAFETY: the contract in the header.
            match unsafe { found(&queries, info, ninfo) } {
                Ok(found) if known => reply.answer(found),
                Ok(_) => reply.deny(as_error(status), UNKNOWN_KEYS),
                Err(status) => reply.deny(status, "the launcher's answer is invalid"),
            }
        }
        if let Some(release) = release_fn {
            // SAFETY: the launcher has passed the function and its argument for this call.
            calling(|| unsafe { release(release_cbdata) });
        }
    });
}

/// Assigns the infos of an answer to queries.
///
/// # Safety
/// The contract of [`read`].
unsafe fn found(queries: &[Query], infos: *const iof_info_t, count: usize) -> Outcome<Vec<Found>> {
    let mut found: Vec<Found> = Vec::new();
    // SAFETY: the caller's promise.
    for info in unsafe { read::slice(infos, count, MAX_ANSWER) }? {
        let key = read::key(info)?;
        // The first query that asks for the key and has no answer yet.
        let asks = |(index, query): &(u32, &Query)| {
            let is_answered = found.iter().any(|found| found.query == *index && found.key == key);
            query.keys.iter().any(|asked| asked == key) && !is_answered
        };
        let Some((query, _)) = (0..).zip(queries).find(asks) else { continue };
        // SAFETY: the caller's promise.
        let value = unsafe { answer(key, &info.value) }?;
        found.push(Found { query, key: key.to_owned(), value });
    }
    Ok(found)
}

/// Reads the value of an answer.
///
/// # Safety
/// The contract of [`read`].
unsafe fn answer(key: &str, from: &iof_value_t) -> Outcome<Value> {
    if from.r#type == PMIX_STATUS {
        let status = read::number(from).and_then(|number| i32::try_from(number).ok());
        return status.map(|status| Value::Status(Status(status))).ok_or(Status::ERR_BAD_PARAM);
    }
    if from.r#type == PMIX_DATA_ARRAY {
        // SAFETY: the type specifies the field.
        let array: &iof_data_array_t = unsafe { read::one(from.data.darray) }?;
        // SAFETY: the array's type specifies its elements.
        return unsafe {
            match array.r#type {
                PMIX_PROC_INFO => {
                    let procs: &[iof_proc_info_t] = read::slice(array.array.cast(), array.size, MAX_ANSWER)?;
                    Ok(Value::Procs(procs.iter().map(|info| proc_info(info)).collect::<Outcome<_>>()?))
                }
                PMIX_PROC => {
                    let procs: &[iof_proc_t] = read::slice(array.array.cast(), array.size, MAX_ANSWER)?;
                    Ok(Value::Procs(procs.iter().map(unknown_proc).collect::<Outcome<_>>()?))
                }
                PMIX_INFO => Ok(Value::Infos(read::infos(array.array.cast(), array.size)?)),
                _ => Err(Status::ERR_UNKNOWN_DATA_TYPE),
            }
        };
    }
    // SAFETY: the caller's promise.
    Ok(match unsafe { read::value(from, iof_proto::limits::MAX_LOG_TEXT) }? {
        InfoValue::Text(text) => Value::Text(text),
        value => Value::Infos(vec![Info { key: key.to_owned(), value, required: false }]),
    })
}

/// Returns the entry of a process if only its name is known.
fn unknown_proc(from: &iof_proc_t) -> Outcome<ProcInfo> {
    Ok(ProcInfo::new(read::proc(from)?, ProcState::Unknown))
}

/// Reads an entry of a process table.
///
/// # Safety
/// The contract of [`read`].
unsafe fn proc_info(from: &iof_proc_info_t) -> Outcome<ProcInfo> {
    // SAFETY: the caller's promise.
    let name = |text: *mut c_char| unsafe { read::optional_text(text, iof_proto::limits::MAX_TEXT) };
    let states = [
        ProcState::Launching,
        ProcState::Running,
        ProcState::Terminated,
        ProcState::Failed,
        ProcState::Killed,
        ProcState::FailedToStart,
    ];
    let state = states.into_iter().find(|state| state.code() == from.state).unwrap_or(ProcState::Unknown);
    let has_ended = !matches!(state, ProcState::Launching | ProcState::Running | ProcState::Unknown);
    Ok(ProcInfo {
        pid: from.pid.cast_unsigned(),
        host: name(from.hostname)?,
        executable: name(from.executable_name)?,
        exit_code: has_ended.then_some(from.exit_code),
        ..ProcInfo::new(read::proc(&from.proc)?, state)
    })
}
