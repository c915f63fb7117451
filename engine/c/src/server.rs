//! The functions of launchers: the engine, its jobs, and output from other nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsString, c_char, c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{self, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use iof_engine::{
    AdoptSpec, AdoptedRank, App, BackendKind, Config, DeliverError, Engine, Exit, Grant, Job, JobSpec,
    JobStatus, LaunchError, MAX_RANKS, Policy, Process, Rendezvous, Signal, Stdin,
};
use iof_proto::directive::DirectiveLevel;
use iof_proto::{Channel, Directives, Nspace, Proc, Rank};

use crate::call::{self, CbData};
use crate::callbacks::{iof_op_cbfunc_t, iof_server_module_t};
use crate::constants::*;
use crate::guard::{OrStatus, Outcome, guard, guard_or, may_wait, or_failure};
use crate::host::CHost;
use crate::init::Infos;
use crate::keys::*;
use crate::library::{Library, library, library_to_begin, server, unused};
use crate::session::{Session, lock};
use crate::tool::attach_status;
use crate::types::{
    iof_adopted_t, iof_app_t, iof_byte_object_t, iof_info_t, iof_iof_channel_t, iof_proc_t, iof_status_t,
};
use crate::{memory, read};

/// The maximum number of programs of a job.
const MAX_APPS: usize = 4096;
/// The maximum number of arguments, of variables and of adopted ranks.
const MAX_ARGS: usize = 1 << 16;
/// The maximum length of an argument, in bytes: the kernel's MAX_ARG_STRLEN.
const MAX_ARG: usize = 128 << 10;
/// The maximum size of a delivery, in bytes.
const MAX_DELIVERY: usize = 1 << 30;

/// The engine of this process.
pub(crate) struct Server {
    engine: Engine,
    jobs: Mutex<BTreeMap<Nspace, Job>>,
    session: Mutex<Option<Arc<Session>>>,
    /// Locked by the thread that begins the session.
    beginning: Mutex<()>,
    own_thread: bool,
    /// The path of the engine's socket, if it has one.
    socket: Option<CString>,
    spawned: AtomicU32,
}

impl Server {
    /// Returns the launcher's own session, and begins it if necessary. Its registrations may hold
    /// ranks back.
    pub(crate) fn session(&self) -> Outcome<Arc<Session>> {
        if let Some(session) = self.session_so_far() {
            return Ok(session);
        }
        // Attaching needs the engine's control thread, on which upcalls run. An upcall must
        // therefore not wait for the lock below.
        may_wait()?;
        let _beginning = lock(&self.beginning);
        if let Some(session) = self.session_so_far() {
            return Ok(session);
        }
        let tool = self.engine.attach("launcher", Grant::Block);
        let status = tool.as_ref().err().map_or(IOF_SUCCESS, attach_status);
        let connect = || match server() {
            Ok(server) => server.engine.attach("launcher", Grant::Block),
            Err(_) => Err(iof_tool::LostError::Closed.into()),
        };
        let begun = Session::begin(tool.or_status(status)?, Box::new(connect), self.own_thread);
        let begun = Arc::new(begun.or_status(IOF_ERR_OUT_OF_RESOURCE)?);
        *lock(&self.session) = Some(Arc::clone(&begun));
        Ok(begun)
    }

    pub(crate) fn session_so_far(&self) -> Option<Arc<Session>> {
        lock(&self.session).clone()
    }

    fn job(&self, nspace: &Nspace) -> Outcome<Job> {
        lock(&self.jobs).get(nspace).cloned().ok_or(IOF_ERR_NOT_FOUND)
    }
}

/// Starts the engine and makes the process a server. A process has at most one engine, and a tool
/// cannot have one. Tools of the same user find the engine (iof_tool_init), unless the module or
/// the infos specify otherwise. The module is copied; NULL is the same as a module without
/// callbacks.
///
/// Infos: IOF_SERVER_TOOL_SUPPORT, IOF_SERVER_SYSTEM_SUPPORT, IOF_SERVER_TMPDIR, IOF_SYSTEM_TMPDIR,
/// IOF_SERVER_GATEWAY, IOF_IOF_CACHE_SIZE, IOF_IOF_DROP_OLDEST, IOF_IOF_DROP_NEWEST, IOF_DROP_NONE,
/// IOF_IOF_BUFFERING_SIZE, IOF_IOF_BUFFERING_TIME, IOF_BUFFERING_TIME_US, IOF_EXTERNAL_PROGRESS,
/// IOF_BACKEND.
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
        let mut infos = Infos(unsafe { read::infos(info, ninfo) }?);
        // SAFETY: the contract in the header.
        let module = if module.is_null() { None } else { Some(*unsafe { read::one(module) }?) };
        let mut library = library_to_begin()?;
        match *library {
            Library::Nothing => {}
            Library::Server(_) => return Err(IOF_ERR_EXISTS),
            Library::Tool(_) => return Err(IOF_ERR_INIT),
        }
        let own_thread = infos.flag(IOF_EXTERNAL_PROGRESS)? != Some(true);
        let config = config(&mut infos)?;
        let engine = match module {
            Some(module) => Engine::start_with(config, Arc::new(CHost(module))),
            None => Engine::start(config),
        };
        let engine = engine.or_status(IOF_ERR_OUT_OF_RESOURCE)?;
        let socket = engine.socket().and_then(|path| CString::new(path.as_os_str().as_bytes()).ok());
        *library = Library::Server(Arc::new(Server {
            engine,
            jobs: Mutex::default(),
            session: Mutex::default(),
            beginning: Mutex::default(),
            own_thread,
            socket,
            spawned: AtomicU32::default(),
        }));
        Ok(IOF_SUCCESS)
    })
}

fn config(infos: &mut Infos) -> Outcome<Config> {
    let mut config = Config::default();
    let tools = infos.flag(IOF_SERVER_TOOL_SUPPORT)? != Some(false);
    // Accepted without effect: a session's engine is the default.
    infos.flag(IOF_SERVER_SESSION_SUPPORT)?;
    let system = infos.flag(IOF_SERVER_SYSTEM_SUPPORT)? == Some(true);
    let directory = infos.directory()?;
    config.rendezvous = match (tools, system) {
        (false, _) => Rendezvous::None,
        (true, true) => Rendezvous::System(directory),
        (true, false) => Rendezvous::Session(directory),
    };
    let block = infos.flag(IOF_DROP_NONE)?;
    config.backend = match infos.text(IOF_BACKEND)?.as_deref() {
        None => None,
        Some("io-uring") => Some(BackendKind::IoUring),
        Some("epoll") => Some(BackendKind::Epoll),
        Some(_) => return Err(IOF_ERR_BAD_PARAM),
    };
    or_failure(config.direct(&infos.0))?;
    match block {
        Some(true) => config.policy = Policy::Block,
        Some(false) if config.policy == Policy::Block => config.policy = Policy::DropNewest,
        _ => {}
    }
    Ok(config)
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
        if !matches!(*library, Library::Server(_)) {
            return Err(IOF_ERR_INIT);
        }
        let found = std::mem::take(&mut *library);
        // Callbacks that run until the session has ended may use the library.
        drop(library);
        let Library::Server(server) = found else { return Err(IOF_ERR_INIT) };
        let Server { engine, session, .. } = unused(server);
        drop(engine);
        let session = session.into_inner().unwrap_or_else(PoisonError::into_inner);
        session.map_or(Ok(()), |session| session.drain_and_end())?;
        Ok(IOF_SUCCESS)
    })
}

/// Returns the path of the socket that tools connect to (IOF_SERVER_URI), or NULL if there is none.
/// The text is valid until iof_server_finalize is called.
#[unsafe(no_mangle)]
pub extern "C" fn iof_server_uri() -> *const c_char {
    guard_or(std::ptr::null(), || match library().as_deref() {
        Ok(Library::Server(server)) => server.socket.as_ref().map_or(std::ptr::null(), |path| path.as_ptr()),
        _ => std::ptr::null(),
    })
}

/// Starts the processes of a job. Ranks are numbered consecutively over the programs. The
/// environment of each rank contains IOF_NSPACE, IOF_RANK, IOF_NPROCS (the number of ranks),
/// IOF_APPNUM (the index of its program), IOF_SERVER (the path of the engine's socket) and
/// IOF_STDDIAG_FD. Each rank has its own process group, except a rank of IOF_STDIN_INHERIT whose
/// stdin is the controlling terminal. nspace, which may be NULL, points to an iof_nspace_t that
/// receives the name of the job.
///
/// Blocks until the processes are started. A callback may call it nevertheless, but delays other
/// callbacks. Until it returns, the other functions for servers return IOF_ERR_NOT_FOUND for the
/// job.
///
/// Infos of the job: IOF_NSPACE (by default the library chooses a name), IOF_STDIN_TGT,
/// IOF_STDIN_INHERIT, IOF_ELSEWHERE, IOF_FWD_STDIN, IOF_FWD_STDOUT, IOF_FWD_STDERR,
/// IOF_FWD_STDDIAG, IOF_IOF_CACHE_SIZE, IOF_IOF_DROP_OLDEST, IOF_IOF_DROP_NEWEST,
/// IOF_IOF_BUFFERING_SIZE, IOF_IOF_BUFFERING_TIME, IOF_BUFFERING_TIME_US.
///
/// Errors, after which no process of the job runs: IOF_ERR_BAD_PARAM if a program has no ranks, if
/// IOF_STDIN_TGT or IOF_STDIN_INHERIT selects a rank that does not exist, or if several ranks are
/// to inherit stdin; IOF_ERR_EXISTS if a job has the name already; IOF_ERR_OUT_OF_RESOURCE if files
/// or memory are exhausted; IOF_ERR_JOB_FAILED_TO_LAUNCH if a program cannot be started.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_server_spawn(
    job_info: *const iof_info_t,
    ninfo: usize,
    apps: *const iof_app_t,
    napps: usize,
    nspace: *mut c_char,
) -> iof_status_t {
    guard(|| {
        let server = server()?;
        // SAFETY: the contract in the header.
        let (infos, apps) = unsafe { (read::infos(job_info, ninfo)?, read::slice(apps, napps, MAX_APPS)?) };
        let mut infos = Infos(infos);
        // SAFETY: the contract in the header.
        let apps = apps.iter().map(|from| unsafe { app(from) }).collect::<Outcome<Vec<App>>>()?;
        let name = match infos.text(IOF_NSPACE)? {
            Some(name) => name,
            None => format!("iof-{}@{}", process::id(), server.spawned.fetch_add(1, Relaxed).wrapping_add(1)),
        };
        let mut spec = JobSpec::new(read::nspace(&name)?, apps);
        spec.stdin.extend(infos.rank(IOF_STDIN_TGT)?.map(|rank| (rank, Stdin::Pipe)));
        spec.stdin.extend(infos.rank(IOF_STDIN_INHERIT)?.map(|rank| (rank, Stdin::Inherit)));
        spec.elsewhere = infos.flag(IOF_ELSEWHERE)? == Some(true);
        spec.directives = or_failure(Directives::read(&infos.0, DirectiveLevel::Spawn))?.0;
        let job = server.engine.spawn(&spec);
        let status = job.as_ref().err().map_or(IOF_SUCCESS, launch_status);
        lock(&server.jobs).insert(spec.nspace.clone(), job.or_status(status)?);
        if !nspace.is_null() {
            // SAFETY: the contract in the header: it is an iof_nspace_t.
            *unsafe { read::place(nspace.cast()) }? = memory::nspace(spec.nspace.as_str());
        }
        Ok(IOF_SUCCESS)
    })
}

fn launch_status(error: &LaunchError) -> iof_status_t {
    match error {
        LaunchError::NameTaken(_) => IOF_ERR_EXISTS,
        LaunchError::Files { .. } | LaunchError::Maps { .. } => IOF_ERR_OUT_OF_RESOURCE,
        LaunchError::Ranks { .. }
        | LaunchError::EmptyApp { .. }
        | LaunchError::NoStdin { .. }
        | LaunchError::SharedStdin { .. } => IOF_ERR_BAD_PARAM,
        _ => IOF_ERR_JOB_FAILED_TO_LAUNCH,
    }
}

/// Reads a program.
///
/// # Safety
/// The contract of [`read`].
unsafe fn app(from: &iof_app_t) -> Outcome<App> {
    // SAFETY: the caller's promise.
    unsafe {
        Infos(read::infos(from.info, from.ninfo)?).done()?;
        let text = |text: Vec<u8>| OsString::from_vec(text);
        let program = text(read::bytes(from.cmd, MAX_ARG)?.to_vec());
        let args = read::texts(from.argv, MAX_ARGS, MAX_ARG)?.into_iter().skip(1).map(text).collect();
        let variable = |pair: Vec<u8>| {
            let end = pair.iter().position(|byte| *byte == b'=').ok_or(IOF_ERR_BAD_PARAM)?;
            let (name, value) = pair.split_at(end);
            Ok((text(name.to_vec()), text(value.get(1..).unwrap_or_default().to_vec())))
        };
        let env =
            read::texts(from.env, MAX_ARGS, MAX_ARG)?.into_iter().map(variable).collect::<Outcome<_>>()?;
        let cwd = if from.cwd.is_null() {
            None
        } else {
            Some(PathBuf::from(text(read::bytes(from.cwd, MAX_ARG)?.to_vec())))
        };
        let nprocs = u32::try_from(from.maxprocs).or_status(IOF_ERR_BAD_PARAM)?;
        Ok(App { nprocs, program, args, env, cwd })
    }
}

/// Forwards the output of processes that the launcher started itself, as one job. Does not wait for
/// the processes. Infos: those of iof_server_spawn, except the name and those of stdin.
///
/// The library owns the descriptors from this call on, even if it fails, except with
/// IOF_ERR_BAD_PARAM or IOF_ERR_INIT: then the launcher still owns them all. Otherwise the library
/// closes them when the call fails or their streams are complete.
///
/// Errors: IOF_ERR_BAD_PARAM if there are no ranks, if a rank is out of range or appears twice, if
/// a descriptor is not open or appears twice, or if an info is refused; IOF_ERR_EXISTS if a job has
/// the name already; IOF_ERR_OUT_OF_RESOURCE if files or memory are exhausted;
/// IOF_ERR_NOT_SUPPORTED if a descriptor is not of a kind that iof_adopted_t lists, or if a process
/// does not exist or was waited for. If a process is not a child of the launcher, its exit is
/// detected, but its exit code is unknown and counts as 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_server_adopt(
    nspace: *const c_char,
    ranks: *const iof_adopted_t,
    nranks: usize,
    info: *const iof_info_t,
    ninfo: usize,
) -> iof_status_t {
    guard(|| {
        let server = server()?;
        // SAFETY: the contract in the header.
        let (name, all) = unsafe {
            let name = read::nspace(read::text(nspace, IOF_MAX_NSLEN)?)?;
            (name, read::slice(ranks, nranks, MAX_ARGS)?)
        };
        let options = || -> Outcome<(bool, Directives)> {
            // SAFETY: the contract in the header.
            let mut infos = Infos(unsafe { read::infos(info, ninfo) }?);
            let elsewhere = infos.flag(IOF_ELSEWHERE)? == Some(true);
            Ok((elsewhere, or_failure(Directives::read(&infos.0, DirectiveLevel::Spawn))?.0))
        };
        // This status tells the launcher that it still owns the descriptors.
        let (elsewhere, directives) = options().map_err(|_| IOF_ERR_BAD_PARAM)?;
        // SAFETY: the contract in the header.
        let names = all.iter().map(|rank| unsafe { executable(rank) }).collect::<Outcome<Vec<String>>>()?;
        // All arguments are checked before the library takes any descriptor.
        let numbers: BTreeSet<u32> =
            all.iter().map(|entry| entry.rank).filter(|rank| *rank < MAX_RANKS).collect();
        if all.is_empty() || numbers.len() < all.len() {
            return Err(IOF_ERR_BAD_PARAM);
        }
        for (index, rank) in all.iter().enumerate() {
            let in_earlier_rank = |fd| all.iter().take(index).any(|other| descriptors(other).contains(&fd));
            let own = descriptors(rank);
            let repeated = |(slot, fd): (usize, &c_int)| {
                own.iter().take(slot).any(|other| other == fd) || in_earlier_rank(*fd)
            };
            if own.iter().enumerate().any(|(slot, fd)| *fd >= 0 && (!is_open(*fd) || repeated((slot, fd)))) {
                return Err(IOF_ERR_BAD_PARAM);
            }
        }
        let ranks = all.iter().zip(names).map(|(rank, executable)| adopted(rank, executable)).collect();
        let spec = AdoptSpec { directives, elsewhere, ..AdoptSpec::new(name.clone(), ranks) };
        let job = server.engine.adopt(spec);
        let status = match &job {
            Err(iof_engine::AdoptError::NameTaken(_)) => IOF_ERR_EXISTS,
            Err(
                iof_engine::AdoptError::Files { .. }
                | iof_engine::AdoptError::Maps { .. }
                | iof_engine::AdoptError::Rings { .. },
            ) => IOF_ERR_OUT_OF_RESOURCE,
            _ => IOF_ERR_NOT_SUPPORTED,
        };
        lock(&server.jobs).insert(name, job.or_status(status)?);
        Ok(IOF_SUCCESS)
    })
}

/// Reads the name of a rank's program, which may be absent.
///
/// # Safety
/// The contract of [`read`].
unsafe fn executable(rank: &iof_adopted_t) -> Outcome<String> {
    if rank.executable.is_null() {
        return Ok(String::new());
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { read::text(rank.executable, MAX_ARG) }?.to_owned())
}

fn descriptors(rank: &iof_adopted_t) -> [c_int; 5] {
    [rank.stdin_fd, rank.stdout_fd, rank.stderr_fd, rank.stddiag_fd, rank.pidfd]
}

fn is_open(fd: c_int) -> bool {
    // SAFETY: F_GETFD reads the flags of a descriptor and accepts any number.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

fn adopted(entry: &iof_adopted_t, executable: String) -> AdoptedRank {
    // SAFETY: it is open, and the launcher has passed its ownership to the library, once.
    let file = |fd: c_int| (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) });
    let process = match (file(entry.pidfd), u32::try_from(entry.pid)) {
        (Some(pidfd), _) => Process::Pidfd(pidfd),
        (None, Ok(pid)) if pid > 0 => Process::Pid(pid),
        _ => Process::Reported { pid: 0 },
    };
    AdoptedRank {
        rank: Rank(entry.rank),
        executable,
        stdin: file(entry.stdin_fd),
        stdout: file(entry.stdout_fd),
        stderr: file(entry.stderr_fd),
        stddiag: file(entry.stddiag_fd),
        process,
    }
}

/// Reports the exit of a process that was adopted without pidfd and pid, with its status from
/// wait(2). Does not block. Errors: IOF_ERR_NOT_FOUND if there is no such process, or if its exit
/// was reported before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_server_report_exit(proc: *const iof_proc_t, wait_status: c_int) -> iof_status_t {
    guard(|| {
        // SAFETY: the contract in the header.
        let Proc { nspace, rank } = read::proc(unsafe { read::one(proc) }?)?;
        let exit = Exit::Status(ExitStatus::from_raw(wait_status));
        if server()?.job(&nspace)?.report_exit(rank, exit) { Ok(IOF_SUCCESS) } else { Err(IOF_ERR_NOT_FOUND) }
    })
}

/// Blocks until all processes of a job on this node have ended, their output is read to its end,
/// and the server's own registrations have received it. Output ends when no process has the pipe
/// open any more, such as a process that a rank has started and left behind. exit_code, which may
/// be NULL, receives the exit code of the process that failed first (128 + n if signal n ended it,
/// 1 if its status is unknown), or 0 if none failed. Returns IOF_ERR_WOULD_BLOCK in a callback.
/// Errors: IOF_ERR_NOT_FOUND if no job of this name was spawned or adopted; IOF_ERR_UNREACH if the
/// library is finalized or the job is forgotten meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_server_wait(nspace: *const c_char, exit_code: *mut c_int) -> iof_status_t {
    guard(|| {
        may_wait()?;
        let server = server()?;
        // SAFETY: the contract in the header.
        let job = server.job(&read::nspace(unsafe { read::text(nspace, IOF_MAX_NSLEN) }?)?)?;
        let session = server.session_so_far();
        // iof_server_finalize waits for uses of the server, and must not wait for this one.
        drop(server);
        let wait = move || -> Option<JobStatus> {
            job.wait();
            // Returns early if the engine ends.
            job.flush(None);
            job.try_wait_exit()
        };
        let status = match session {
            Some(session) => session.wait_while(wait)?,
            None => wait(),
        };
        let status = status.ok_or("the exit status of the job is unknown").or_status(IOF_ERR_UNREACH)?;
        if !exit_code.is_null() {
            // SAFETY: the contract in the header.
            *unsafe { read::place(exit_code) }? = status.code();
        }
        Ok(IOF_SUCCESS)
    })
}

/// Sends a signal to all processes of a job on this node, each with its process group if it leads
/// one. Processes whose exit the launcher reports (iof_server_report_exit) receive none. Does not
/// block. Errors: IOF_ERR_NOT_FOUND if no job of this name was spawned or adopted;
/// IOF_ERR_BAD_PARAM if signal is not a signal, is 0, or is a real-time signal.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_server_signal(nspace: *const c_char, signal: c_int) -> iof_status_t {
    guard(|| {
        // SAFETY: the contract in the header.
        let name = read::nspace(unsafe { read::text(nspace, IOF_MAX_NSLEN) }?)?;
        let signal = Signal::try_from(signal).or_status(IOF_ERR_BAD_PARAM)?;
        server()?.job(&name)?.signal(signal);
        Ok(IOF_SUCCESS)
    })
}

/// Removes a job that has ended, and its cached output. Its name can then be used again. Tools that
/// read the job keep the output that they have not received yet. Does not block. Errors:
/// IOF_ERR_NOT_FOUND if no job of this name was spawned or adopted; IOF_ERR_RESOURCE_BUSY if it has
/// not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_server_forget(nspace: *const c_char) -> iof_status_t {
    guard(|| {
        let server = server()?;
        // SAFETY: the contract in the header.
        let name = read::nspace(unsafe { read::text(nspace, IOF_MAX_NSLEN) }?)?;
        // The lock is held throughout: otherwise a new job of this name could be removed in its
        // place.
        let mut jobs = lock(&server.jobs);
        if !jobs.contains_key(&name) {
            return Err(IOF_ERR_NOT_FOUND);
        }
        if !server.engine.remove(&name) {
            return Err(IOF_ERR_RESOURCE_BUSY);
        }
        jobs.remove(&name);
        Ok(IOF_SUCCESS)
    })
}

/// Passes output of one process on another node to the engine, as one of the channels
/// IOF_FWD_STDOUT_CHANNEL, IOF_FWD_STDERR_CHANNEL and IOF_FWD_STDDIAG_CHANNEL. A job that the
/// engine does not know is added to its tables. With IOF_IOF_COMPLETE the stream ends after the
/// bytes, and bo may be NULL or empty. The bytes are copied before the function returns. cbfunc,
/// which may be NULL, is called on the engine's thread when the bytes are in the cache or were
/// dropped. Does not block. Infos: IOF_IOF_COMPLETE, IOF_READ_TIME.
///
/// Errors, after which the engine has none of the bytes: IOF_ERR_IOF_XOFF if more than 4 MiB of the
/// stream wait for a registration of the server itself: deliver the bytes again after cbfunc was
/// called for earlier ones; IOF_ERR_IOF_COMPLETE if the stream is complete; IOF_ERR_BAD_PARAM if
/// the process runs on this node, if its job has no ranks on other nodes (IOF_ELSEWHERE), or if
/// source or channel is not a single one; IOF_ERR_OUT_OF_RESOURCE if memory is exhausted.
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
        let channel = match channel {
            IOF_FWD_STDOUT_CHANNEL => Channel::Stdout,
            IOF_FWD_STDERR_CHANNEL => Channel::Stderr,
            IOF_FWD_STDDIAG_CHANNEL => Channel::Stddiag,
            _ => return Err(IOF_ERR_BAD_PARAM),
        };
        // SAFETY: the contract in the header.
        let bytes = unsafe { read::payload(bo, MAX_DELIVERY) }?;
        let cbdata = CbData(cbdata);
        let taken = move || {
            let cbdata = cbdata;
            call::op(cbfunc, IOF_SUCCESS, cbdata);
        };
        let server = server()?;
        let delivered = server.engine.deliver(&source, channel, memory::owned(bytes)?, &infos, taken);
        let status = delivered.as_ref().err().map_or(IOF_SUCCESS, |error: &DeliverError| error.status().0);
        delivered.or_status(status)?;
        Ok(IOF_SUCCESS)
    })
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
        let name = read::nspace(unsafe { read::text(nspace, IOF_MAX_NSLEN) }?)?;
        let ended = server()?.engine.end_job(&name, (exit_code >= 0).then_some(exit_code));
        if ended { Ok(IOF_SUCCESS) } else { Err(IOF_ERR_NOT_FOUND) }
    })
}
