//! The functions that libpmix calls on its own thread, and the events of ranks that it reports by them.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{self, ManuallyDrop};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use iof_proto::limits::MAX_LOG_TEXT;
use iof_proto::{Exchange, FromTool, Proc};

use crate::library::info::{self, characters};
use crate::library::read::{self, ExchangeDirectives, Read};
use crate::library::types::{
    Info, InfoCallback, LookupCallback, Module, OPERATION_SUCCEEDED, OpCallback, RawApp, RawProc, RawQuery,
    SUCCESS, SpawnCallback, Status, ToolCallback,
};
use crate::limits::MAX_START_WAIT;
use crate::requests::request::{
    AnswerReply, LookupReply, NspaceReply, Post, RankCallback, RankReply, RankRequest, StatusReply,
};
use crate::requests::spawn;

/// A report of libpmix about a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The job.
    pub nspace: String,
    /// The rank.
    pub rank: u32,
    /// The event itself.
    pub kind: EventKind,
}

/// An event of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The rank has called `PMIx_Init`, as MPI libraries do in `MPI_Init`.
    Connected,
    /// The rank has called `PMIx_Finalize`.
    Finalized,
    /// The rank has called `PMIx_Abort`, and wants this exit code for the job.
    Aborted {
        /// The exit code.
        code: i32,
    },
}

/// Adds data of the ranks to those of a job.
type Extend = dyn Fn(&str, Vec<info::Info>) + Send;

/// The receiver of events. One server exists in a process, and libpmix passes no pointer of ours to
/// all upcalls.
pub(crate) struct EventReceiver {
    pub receive: Box<dyn Fn(Event) + Send>,
    pub request: Box<dyn Fn(RankRequest) + Send>,
    pub post: Post,
    pub extend: Box<Extend>,
}
static RECEIVER: Mutex<Option<EventReceiver>> = Mutex::new(None);

/// The status of a request that is refused because it is too large.
const LIMITED: iof_proto::Status = iof_proto::Status::ERR_OUT_OF_RESOURCE;
/// Sets or removes the receiver of events.
pub(crate) fn set_receiver(receiver: Option<EventReceiver>) {
    let previous = mem::replace(&mut *RECEIVER.lock().unwrap_or_else(PoisonError::into_inner), receiver);
    // It may own the last reference to an engine, whose end must not wait for this lock.
    drop(previous);
}

/// Returns the name of the server itself.
pub(crate) fn server_name() -> String {
    format!("iof-{}", std::process::id())
}

/// A job that the server knows.
pub(super) struct ServedJob {
    /// The number of its ranks on all nodes.
    pub(super) size: u32,
    /// Its ranks on this node.
    pub(super) ranks: Vec<u32>,
    /// Once they have all started: the infos of them that libpmix does not have yet.
    started: Option<Vec<info::Info>>,
}

/// The jobs by their names.
pub(super) static JOBS: Mutex<BTreeMap<String, ServedJob>> = Mutex::new(BTreeMap::new());
static STARTED: Condvar = Condvar::new();

/// Approves tools that know the name of this job of `size` ranks, which is secret. If it `waits`, its
/// `ranks` on this node do until all of them have started.
pub(crate) fn add_job(name: &str, size: u32, ranks: Vec<u32>, waits: bool) {
    let job = ServedJob { size, ranks, started: (!waits).then(Vec::new) };
    JOBS.lock().unwrap_or_else(PoisonError::into_inner).insert(name.into(), job);
}

/// Approves them no more.
pub(crate) fn remove_job(name: &str) {
    JOBS.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    STARTED.notify_all();
}

/// Sets the infos of the ranks of a job. All ranks have started.
pub(crate) fn set_started(name: &str, ranks: Vec<info::Info>) {
    if let Some(job) = JOBS.lock().unwrap_or_else(PoisonError::into_inner).get_mut(name) {
        job.started = Some(ranks);
    }
    STARTED.notify_all();
}

/// Blocks until all ranks of a job have started, at most once for [`MAX_START_WAIT`]. Returns the infos of
/// the ranks that libpmix does not have yet: it next gives the rank that has connected all data of its
/// job, and no others later.
fn await_start(name: &str) -> Vec<info::Info> {
    let jobs = JOBS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_starting =
        |jobs: &mut BTreeMap<_, ServedJob>| jobs.get(name).is_some_and(|job| job.started.is_none());
    let awaited = STARTED.wait_timeout_while(jobs, MAX_START_WAIT, is_starting);
    let mut jobs = awaited.unwrap_or_else(PoisonError::into_inner).0;
    jobs.get_mut(name).and_then(|job| job.started.replace(Vec::new())).unwrap_or_default()
}

/// Returns the upcalls of this host about one rank each.
pub(super) fn module() -> Module {
    Module {
        client_finalized: Some(client_finalized),
        abort: Some(abort),
        publish: Some(publish),
        lookup: Some(lookup),
        unpublish: Some(unpublish),
        spawn: Some(spawn),
        query: Some(query),
        tool_connected: Some(tool_connected),
        log: Some(log),
        job_control: Some(job_control),
        client_connected2: Some(client_connected2),
        ..Module::default()
    }
}

/// Passes an event to the receiver. The rank waits for the end of the upcall. No panic of the
/// receiver crosses the border to C, where it would end the process.
///
/// # Safety
/// `proc` is null or points to a rank.
unsafe fn report(proc: *const RawProc, kind: EventKind) -> Status {
    // SAFETY: the contract.
    let Some((nspace, rank)) = (unsafe { name(proc) }) else { return iof_proto::Status::ERR_BAD_PARAM.0 };
    let is_passed = pass(|receiver| (receiver.receive)(Event { nspace, rank, kind }));
    if is_passed { OPERATION_SUCCEEDED } else { NO_RECEIVER }
}

/// Returns the names of a job and a rank.
///
/// # Safety
/// `proc` is null or points to a rank.
unsafe fn name(proc: *const RawProc) -> Option<(String, u32)> {
    // SAFETY: the contract.
    let proc = unsafe { proc.as_ref() }?;
    // The signedness of c_char depends on the machine.
    let bytes = proc.nspace.map(|character| u8::from_ne_bytes(character.to_ne_bytes()));
    let nspace = CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned();
    Some((nspace, proc.rank))
}

/// The result of an upcall without a receiver, which is there as long as the server runs.
const NO_RECEIVER: Status = iof_proto::Status::ERR_NOT_AVAILABLE.0;

/// Calls a function with the receiver. Returns `false` if there is none.
fn pass(call: impl FnOnce(&EventReceiver)) -> bool {
    let pass = || RECEIVER.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(call);
    // The panic hook has reported it, and what the function had was dropped.
    catch_unwind(AssertUnwindSafe(pass)).map_or(true, |passed| passed.is_some())
}

/// Passes a request to the receiver, or refuses it for the status with which it was read. Returns the
/// result of the upcall: success, after which the reply follows, or the reason why none does.
///
/// # Safety
/// `proc` is null or points to a rank.
pub(super) unsafe fn request(proc: *const RawProc, message: Read<FromTool>, reply: RankCallback) -> Status {
    // SAFETY: the contract.
    let name = unsafe { name(proc) };
    // libpmix takes no reply after a result that is an error, nor on the thread of the upcall.
    let mut reply = ManuallyDrop::new(Some(reply));
    let is_passed = pass(|receiver| {
        let Some(reply) = reply.take() else { return };
        let reply = RankReply::new(reply, Arc::clone(&receiver.post));
        match message {
            Ok(message) => {
                // libpmix passes its own name with queries.
                let from = name.filter(|(nspace, _)| *nspace != server_name());
                (receiver.request)(RankRequest { from, message, reply });
            }
            Err(status) => {
                if status == LIMITED && spawn::warns() {
                    let rank = name.map(|(nspace, rank)| format!("{nspace}.{rank}")).unwrap_or_default();
                    tracing::warn!(
                        rank,
                        "a request of PMIx is refused: it exceeds a limit of one request, such as \
                         MAX_LOG_TEXT ({MAX_LOG_TEXT} bytes of a message)"
                    );
                }
                reply.refuse(status);
            }
        }
    });
    if is_passed { SUCCESS } else { NO_RECEIVER }
}

unsafe extern "C" fn client_connected2(
    proc: *const RawProc,
    _object: *mut c_void,
    _infos: *mut Info,
    _count: usize,
    _done: OpCallback,
    _data: *mut c_void,
) -> Status {
    // SAFETY: libpmix passes the rank that has connected.
    let (reported, name) = unsafe { (report(proc, EventKind::Connected), name(proc)) };
    if let Some((nspace, _)) = name {
        let ranks = await_start(&nspace);
        if !ranks.is_empty() {
            pass(|receiver| (receiver.extend)(&nspace, ranks));
        }
    }
    reported
}

unsafe extern "C" fn client_finalized(
    proc: *const RawProc,
    _object: *mut c_void,
    _done: OpCallback,
    _data: *mut c_void,
) -> Status {
    // SAFETY: libpmix passes the rank that has called PMIx_Finalize.
    unsafe { report(proc, EventKind::Finalized) }
}

unsafe extern "C" fn abort(
    proc: *const RawProc,
    _object: *mut c_void,
    code: c_int,
    _message: *const c_char,
    _procs: *mut RawProc,
    _count: usize,
    _done: OpCallback,
    _data: *mut c_void,
) -> Status {
    // SAFETY: libpmix passes the rank that has called PMIx_Abort.
    unsafe { report(proc, EventKind::Aborted { code }) }
}

/// Approves a tool that a rank has started, which has the name of the job. Others, also those of
/// other users, get no answer: libpmix 4 releases memory that it uses later if they are refused.
unsafe extern "C" fn tool_connected(infos: *mut Info, count: usize, done: ToolCallback, data: *mut c_void) {
    // SAFETY: libpmix passes this number of infos.
    let Ok((nspace, rank)) = (unsafe { read::tool_name(infos, count) }) else { return };
    let is_known = JOBS.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&nspace);
    if let Some(done) = done.filter(|_| is_known) {
        let mut proc = RawProc { nspace: characters(&nspace), rank };
        // SAFETY: libpmix copies the name.
        unsafe { done(SUCCESS, &raw mut proc, data) }
    }
}

/// Sends a signal to ranks. With this upcall, libpmix carries out requests that ask it to remove
/// files when a rank has ended, such as Open MPI's shared memory.
unsafe extern "C" fn job_control(
    requester: *const RawProc,
    targets: *const RawProc,
    target_count: usize,
    infos: *const Info,
    count: usize,
    done: InfoCallback,
    data: *mut c_void,
) -> Status {
    // SAFETY: libpmix passes a rank and these numbers of targets and infos. Without targets, all ranks
    // of the job are meant.
    unsafe {
        let signal = match read::control_signal(infos, count) {
            Ok(signal) => signal,
            Err(status) => return status.0,
        };
        let all = || read::procs(requester, 1).map(|own| own.into_iter().map(|own| Proc::all(own.nspace)));
        let procs =
            if target_count == 0 { all().map(Iterator::collect) } else { read::procs(targets, target_count) };
        let message = procs.map(|procs| FromTool::Signal { request: 0, procs, signal });
        request(requester, message, RankCallback::Answer(AnswerReply::new(done, data)))
    }
}

unsafe extern "C" fn publish(
    proc: *const RawProc,
    infos: *const Info,
    count: usize,
    done: OpCallback,
    data: *mut c_void,
) -> Status {
    // SAFETY: libpmix passes this number of infos of a rank.
    unsafe {
        let message = read::publish(proc, infos, count).map(FromTool::Exchange);
        request(proc, message, RankCallback::Status(StatusReply::new(done, data)))
    }
}

unsafe extern "C" fn lookup(
    proc: *const RawProc,
    keys: *mut *mut c_char,
    infos: *const Info,
    count: usize,
    done: LookupCallback,
    data: *mut c_void,
) -> Status {
    // SAFETY: libpmix passes a list of keys and this number of infos of a rank.
    unsafe {
        let message = read::exchange(keys, infos, count).map(|(keys, directives)| {
            let ExchangeDirectives { range, wait, limit, .. } = directives;
            FromTool::Exchange(Exchange::Lookup { keys, range, wait, limit })
        });
        request(proc, message, RankCallback::Lookup(LookupReply::new(done, data)))
    }
}

unsafe extern "C" fn unpublish(
    proc: *const RawProc,
    keys: *mut *mut c_char,
    infos: *const Info,
    count: usize,
    done: OpCallback,
    data: *mut c_void,
) -> Status {
    // SAFETY: libpmix passes a list of keys, or null, and this number of infos of a rank.
    unsafe {
        let message = read::exchange(keys, infos, count).map(|(keys, directives)| {
            FromTool::Exchange(Exchange::Unpublish { keys, range: directives.range })
        });
        request(proc, message, RankCallback::Status(StatusReply::new(done, data)))
    }
}

unsafe extern "C" fn spawn(
    proc: *const RawProc,
    infos: *const Info,
    count: usize,
    apps: *const RawApp,
    app_count: usize,
    done: SpawnCallback,
    data: *mut c_void,
) -> Status {
    // SAFETY: libpmix passes these numbers of infos and programs of a rank.
    unsafe {
        let spawn = read::procs(proc, 1).and_then(|own| {
            let own = own.into_iter().next().ok_or(iof_proto::Status::ERR_BAD_PARAM)?;
            spawn::spawn(own.nspace, (infos, count), (apps, app_count))
        });
        let message = spawn.map(|spawn| FromTool::Spawn { request: 0, spawn: Box::new(spawn) });
        request(proc, message, RankCallback::Spawn(NspaceReply::new(done, data)))
    }
}

unsafe extern "C" fn query(
    requester: *mut RawProc,
    queries: *mut RawQuery,
    count: usize,
    done: InfoCallback,
    data: *mut c_void,
) -> Status {
    // SAFETY: libpmix passes this number of queries of a rank.
    unsafe {
        let queries = read::queries(queries, count);
        let message = queries.map(|queries| FromTool::Query { request: 0, queries });
        request(requester, message, RankCallback::Answer(AnswerReply::new(done, data)))
    }
}

/// Logs a message. Without this upcall, libpmix drops it and reports success.
unsafe extern "C" fn log(
    client: *const RawProc,
    entries: *const Info,
    entry_count: usize,
    directives: *const Info,
    count: usize,
    done: OpCallback,
    data: *mut c_void,
) {
    // SAFETY: libpmix passes these numbers of infos of a rank.
    unsafe {
        let log = read::log(client, (entries, entry_count), (directives, count));
        let message = log.map(|log| FromTool::Log { request: 0, log });
        request(client, message, RankCallback::Status(StatusReply::new(done, data)));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::ptr;
    use std::sync::mpsc;

    use super::*;

    /// One receiver exists in a process.
    static RECEIVERS: Mutex<()> = Mutex::new(());

    #[test]
    fn a_report_or_a_request_without_a_receiver_is_refused_and_its_callback_is_not_called() {
        unsafe extern "C" fn done(_status: Status, called: *mut c_void) {
            // SAFETY: the test passes a flag.
            unsafe { *called.cast::<bool>() = true }
        }
        let _alone = RECEIVERS.lock().unwrap_or_else(PoisonError::into_inner);
        let proc = RawProc { nspace: characters("demo"), rank: 0 };
        let (proc, mut called) = (&raw const proc, false);
        let flag = (&raw mut called).cast();
        // SAFETY: as libpmix calls them.
        let results = unsafe {
            [
                client_finalized(proc, ptr::null_mut(), None, ptr::null_mut()),
                abort(proc, ptr::null_mut(), 0, ptr::null(), ptr::null_mut(), 0, None, ptr::null_mut()),
                publish(proc, ptr::null(), 0, Some(done), flag),
            ]
        };
        assert_eq!((results, called), ([NO_RECEIVER; 3], false));
    }

    #[test]
    fn a_receiver_that_panics_ends_neither_the_process_nor_the_reports() {
        let _alone = RECEIVERS.lock().unwrap_or_else(PoisonError::into_inner);
        let (sender, events) = mpsc::channel();
        let receive = Box::new(move |event: Event| {
            let is_first = event.rank == 0;
            sender.send(event).unwrap();
            assert!(!is_first, "a test of panics");
        });
        let extend = Box::new(|_: &str, _| ());
        set_receiver(Some(EventReceiver { receive, request: Box::new(drop), post: Arc::new(drop), extend }));
        for rank in 0..2 {
            let proc = RawProc { nspace: characters("demo"), rank };
            // SAFETY: as libpmix calls it.
            let status = unsafe { client_finalized(&raw const proc, ptr::null_mut(), None, ptr::null_mut()) };
            assert_eq!(status, OPERATION_SUCCEEDED);
        }
        set_receiver(None);
        let event = |rank| Event { nspace: "demo".into(), rank, kind: EventKind::Finalized };
        assert_eq!(events.into_iter().collect::<Vec<_>>(), [event(0), event(1)]);
    }
}
