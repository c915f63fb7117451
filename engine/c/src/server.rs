//! The launcher's functions: an engine, its jobs, and what it is brought from other nodes.

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

/// Programs of one job, and arguments and variables of one program.
const MAX_APPS: usize = 4096;
const MAX_ARGS: usize = 1 << 16;
/// Bytes of one argument, as the kernel has it (MAX_ARG_STRLEN).
const MAX_ARG: usize = 128 << 10;
/// Bytes of one delivery.
const MAX_DELIVERY: usize = 1 << 30;

/// The engine of this process.
pub(crate) struct Server {
    engine: Engine,
    jobs: Mutex<BTreeMap<Nspace, Job>>,
    session: Mutex<Option<Arc<Session>>>,
    /// Held by who begins the session.
    beginning: Mutex<()>,
    own_thread: bool,
    /// The path of its socket, if it has one.
    socket: Option<CString>,
    spawned: AtomicU32,
}

impl Server {
    /// The launcher's own session, in which its registrations may hold ranks back.
    pub(crate) fn session(&self) -> Outcome<Arc<Session>> {
        if let Some(session) = self.session_so_far() {
            return Ok(session);
        }
        // The engine's own thread, on which upcalls come, has a part in what follows: so nobody asks there
        // for what is locked meanwhile.
        may_wait()?;
        let _one = lock(&self.beginning);
        if let Some(session) = self.session_so_far() {
            return Ok(session);
        }
        let tool = self.engine.attach("launcher", Grant::Block);
        let status = tool.as_ref().err().map_or(IOF_SUCCESS, attach_status);
        let again = || match server() {
            Ok(server) => server.engine.attach("launcher", Grant::Block),
            Err(_) => Err(iof_tool::LostError::Closed.into()),
        };
        let begun = Session::begin(tool.or_status(status)?, Box::new(again), self.own_thread);
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

/// Starts the engine: there is one in a process, which is no tool then. Tools of the same user find
/// it (iof_tool_init), unless the module or the infos say otherwise. The module may be NULL: a
/// launcher that forwards what its own ranks write has no part to play.
///
/// Infos: IOF_SERVER_TOOL_SUPPORT, IOF_SERVER_SYSTEM_SUPPORT, IOF_SERVER_TMPDIR, IOF_SYSTEM_TMPDIR,
/// IOF_SERVER_GATEWAY, IOF_IOF_CACHE_SIZE, IOF_IOF_DROP_OLDEST, IOF_IOF_DROP_NEWEST, IOF_DROP_NONE,
/// IOF_IOF_BUFFERING_SIZE, IOF_IOF_BUFFERING_TIME, IOF_BUFFERING_TIME_US, IOF_EXTERNAL_PROGRESS,
/// IOF_BACKEND.
///
/// It installs no signal handlers, and raises the limit on open files. IOF_ERR_EXISTS: there is one
/// already; IOF_ERR_INIT: the process is a tool; IOF_ERR_OUT_OF_RESOURCE: threads or files are
/// short, or the directory of the sockets will not do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_server_init(
    module: *mut iof_server_module_t,
    info: *mut iof_info_t,
    ninfo: usize,
) -> iof_status_t {
    guard(|| {
        may_wait()?;
        // SAFETY: the header's promise.
        let mut infos = Infos(unsafe { read::infos(info, ninfo) }?);
        // SAFETY: the header's promise.
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
    // It is so anyway.
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

/// Ends the engine. Ranks that still run lose their pipes, so wait for the jobs first. Tools get
/// what they are due, for half a second at most; the launcher's own callbacks are called with all
/// that there is before it returns. Not in a callback.
#[unsafe(no_mangle)]
pub extern "C" fn iof_server_finalize() -> iof_status_t {
    guard(|| {
        may_wait()?;
        let mut library = library()?;
        if !matches!(*library, Library::Server(_)) {
            return Err(IOF_ERR_INIT);
        }
        let found = std::mem::take(&mut *library);
        // Callbacks that come meanwhile may want it.
        drop(library);
        let Library::Server(server) = found else { return Err(IOF_ERR_INIT) };
        let Server { engine, session, .. } = unused(server);
        drop(engine);
        let session = session.into_inner().unwrap_or_else(PoisonError::into_inner);
        session.map_or(Ok(()), |session| session.end_after_all())?;
        Ok(IOF_SUCCESS)
    })
}

/// The path of the socket that tools connect to (IOF_SERVER_URI); NULL if there is none. Valid
/// until iof_server_finalize.
#[unsafe(no_mangle)]
pub extern "C" fn iof_server_uri() -> *const c_char {
    guard_or(std::ptr::null(), || match library().as_deref() {
        Ok(Library::Server(server)) => server.socket.as_ref().map_or(std::ptr::null(), |path| path.as_ptr()),
        _ => std::ptr::null(),
    })
}

/// Starts the processes of a job, as PMIx_Spawn has it done by a host: ranks are numbered on from
/// one program to the next, and have in their environment IOF_NSPACE, IOF_RANK, IOF_NPROCS,
/// IOF_APPNUM, IOF_SERVER and IOF_STDDIAG_FD. nspace, which may be NULL, gets the job's name. Each
/// rank has a process group of its own. Until it returns, the other functions for launchers give
/// IOF_ERR_NOT_FOUND for the job, in callbacks as well.
///
/// Infos of the job: IOF_NSPACE (its name; else one is made), IOF_STDIN_TGT, IOF_STDIN_INHERIT,
/// IOF_ELSEWHERE, IOF_FWD_STDIN, IOF_FWD_STDOUT, IOF_FWD_STDERR, IOF_FWD_STDDIAG,
/// IOF_IOF_CACHE_SIZE, IOF_IOF_DROP_OLDEST, IOF_IOF_DROP_NEWEST, IOF_IOF_BUFFERING_SIZE,
/// IOF_IOF_BUFFERING_TIME, IOF_BUFFERING_TIME_US.
///
/// IOF_ERR_EXISTS: there is a job of that name; IOF_ERR_OUT_OF_RESOURCE: files, memory or processes
/// are short; IOF_ERR_JOB_FAILED_TO_LAUNCH: a program can't be started; nothing runs then.
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
        // SAFETY: the header's promise.
        let (infos, apps) = unsafe { (read::infos(job_info, ninfo)?, read::slice(apps, napps, MAX_APPS)?) };
        let mut infos = Infos(infos);
        // SAFETY: the header's promise.
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
            // SAFETY: the header's promise: it is an iof_nspace_t.
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

/// # Safety
/// That of [`read`].
unsafe fn app(from: &iof_app_t) -> Outcome<App> {
    // SAFETY: as promised to us.
    unsafe {
        Infos(read::infos(from.info, from.ninfo)?).done()?;
        let text = |text: Vec<u8>| OsString::from_vec(text);
        let program = text(read::bytes(from.cmd, MAX_ARG)?.to_vec());
        let args = read::texts(from.argv, MAX_ARGS, MAX_ARG)?.into_iter().skip(1).map(text).collect();
        let variable = |pair: Vec<u8>| {
            let at = pair.iter().position(|byte| *byte == b'=').ok_or(IOF_ERR_BAD_PARAM)?;
            let (name, value) = pair.split_at(at);
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

/// Forwards what processes write that the launcher has started itself, as one job. The descriptors
/// are the library's from this call on, and closed if it fails, unless that is with
/// IOF_ERR_BAD_PARAM or IOF_ERR_INIT. Infos: as iof_server_spawn, those of stdin and the name
/// excepted.
///
/// IOF_ERR_BAD_PARAM: there is no rank, or a number that no rank can have or that two have; or a
/// descriptor is not open, or named twice; IOF_ERR_EXISTS: there is a job of that name;
/// IOF_ERR_NOT_SUPPORTED: a descriptor is of a kind that can't be read, or a process is not the
/// launcher's child.
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
        // SAFETY: the header's promise.
        let (name, all, infos) = unsafe {
            let name = read::nspace(read::text(nspace, IOF_MAX_NSLEN)?)?;
            (name, read::slice(ranks, nranks, MAX_ARGS)?, read::infos(info, ninfo)?)
        };
        let mut infos = Infos(infos);
        let elsewhere = infos.flag(IOF_ELSEWHERE)? == Some(true);
        let directives = or_failure(Directives::read(&infos.0, DirectiveLevel::Spawn))?.0;
        // SAFETY: the header's promise.
        let names = all.iter().map(|of| unsafe { executable(of) }).collect::<Outcome<Vec<String>>>()?;
        // Nothing is taken before all was looked at.
        let numbers: BTreeSet<u32> = all.iter().map(|of| of.rank).filter(|rank| *rank < MAX_RANKS).collect();
        if all.is_empty() || numbers.len() < all.len() {
            return Err(IOF_ERR_BAD_PARAM);
        }
        for (at, of) in all.iter().enumerate() {
            let same = |fd| all.iter().take(at).any(|other| descriptors(other).contains(&fd));
            let own = descriptors(of);
            let twice = |(at, fd): (usize, &c_int)| own.iter().take(at).any(|other| other == fd) || same(*fd);
            if own.iter().enumerate().any(|(at, fd)| *fd >= 0 && (!is_open(*fd) || twice((at, fd)))) {
                return Err(IOF_ERR_BAD_PARAM);
            }
        }
        let ranks = all.iter().zip(names).map(|(of, executable)| adopted(of, executable)).collect();
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

/// # Safety
/// That of [`read`].
unsafe fn executable(of: &iof_adopted_t) -> Outcome<String> {
    if of.executable.is_null() {
        return Ok(String::new());
    }
    // SAFETY: as promised to us.
    Ok(unsafe { read::text(of.executable, MAX_ARG) }?.to_owned())
}

fn descriptors(of: &iof_adopted_t) -> [c_int; 5] {
    [of.stdin_fd, of.stdout_fd, of.stderr_fd, of.stddiag_fd, of.pidfd]
}

fn is_open(fd: c_int) -> bool {
    // SAFETY: asks for the flags of a descriptor, whatever it is.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

fn adopted(of: &iof_adopted_t, executable: String) -> AdoptedRank {
    // SAFETY: it is open, and the launcher has given it to us, once.
    let file = |fd: c_int| (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) });
    let process = match (file(of.pidfd), u32::try_from(of.pid)) {
        (Some(pidfd), _) => Process::Pidfd(pidfd),
        (None, Ok(pid)) if pid > 0 => Process::Pid(pid),
        _ => Process::Reported { pid: 0 },
    };
    AdoptedRank {
        rank: Rank(of.rank),
        executable,
        stdin: file(of.stdin_fd),
        stdout: file(of.stdout_fd),
        stderr: file(of.stderr_fd),
        stddiag: file(of.stddiag_fd),
        process,
    }
}

/// Says how an adopted process ended that the launcher waits for itself, with the status of
/// wait(2). IOF_ERR_NOT_FOUND: it is none of these, or that was said before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_server_report_exit(proc: *const iof_proc_t, wait_status: c_int) -> iof_status_t {
    guard(|| {
        // SAFETY: the header's promise.
        let Proc { nspace, rank } = read::proc(unsafe { read::one(proc) }?)?;
        let exit = Exit::Status(ExitStatus::from_raw(wait_status));
        if server()?.job(&nspace)?.report_exit(rank, exit) { Ok(IOF_SUCCESS) } else { Err(IOF_ERR_NOT_FOUND) }
    })
}

/// Waits until every process of a job that runs here has ended, all that they wrote was read, and
/// the launcher's own registrations have it. exit_code, which may be NULL, gets the exit code of
/// the process that failed first, 128 + n if signal n ended it, or 0. Not in a callback.
/// IOF_ERR_UNREACH: the library was finalized meanwhile, or the job forgotten.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_server_wait(nspace: *const c_char, exit_code: *mut c_int) -> iof_status_t {
    guard(|| {
        may_wait()?;
        let server = server()?;
        // SAFETY: the header's promise.
        let job = server.job(&read::nspace(unsafe { read::text(nspace, IOF_MAX_NSLEN) }?)?)?;
        let session = server.session_so_far();
        // It must not keep the engine from ending.
        drop(server);
        let wait = move || -> Option<JobStatus> {
            job.wait();
            // It fails when the engine ends.
            job.flush(None);
            job.try_wait_exit()
        };
        let status = match session {
            Some(session) => session.wait_while(wait)?,
            None => wait(),
        };
        let status = status.ok_or("nobody knows how the job ended").or_status(IOF_ERR_UNREACH)?;
        if !exit_code.is_null() {
            // SAFETY: the header's promise.
            *unsafe { read::place(exit_code) }? = status.code();
        }
        Ok(IOF_SUCCESS)
    })
}

/// Sends a signal to every process of a job, with the children that they have in their process
/// groups. IOF_ERR_BAD_PARAM: it is no signal, or 0, or a real-time one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_server_signal(nspace: *const c_char, signal: c_int) -> iof_status_t {
    guard(|| {
        // SAFETY: the header's promise.
        let name = read::nspace(unsafe { read::text(nspace, IOF_MAX_NSLEN) }?)?;
        let signal = Signal::try_from(signal).or_status(IOF_ERR_BAD_PARAM)?;
        server()?.job(&name)?.signal(signal);
        Ok(IOF_SUCCESS)
    })
}

/// Forgets a job that has ended, with what is cached of it; its name is free again.
/// IOF_ERR_NOT_FOUND: there is no such job; IOF_ERR_RESOURCE_BUSY: it has not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_server_forget(nspace: *const c_char) -> iof_status_t {
    guard(|| {
        let server = server()?;
        // SAFETY: the header's promise.
        let name = read::nspace(unsafe { read::text(nspace, IOF_MAX_NSLEN) }?)?;
        // Held, or one that is started meanwhile by this name would be taken for it.
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

/// Takes output that the launcher has received from another node, of one process and one channel;
/// with IOF_IOF_COMPLETE it is the last of the stream, and bo may be NULL or empty. cbfunc, which
/// may be NULL, is called when the bytes are in the ring or were dropped; they were copied before
/// this returns, which does not wait. Infos: IOF_IOF_COMPLETE, IOF_READ_TIME.
///
/// IOF_ERR_IOF_XOFF: a registration of the launcher's own holds the stream back, deliver again when
/// cbfunc was called for what was delivered before; IOF_ERR_IOF_COMPLETE: the stream is complete;
/// IOF_ERR_BAD_PARAM: the process runs here, or the channel is no output.
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
        // SAFETY: the header's promise.
        let (source, infos) = unsafe { (read::proc(read::one(source)?)?, read::infos(info, ninfo)?) };
        let channel = match channel {
            IOF_FWD_STDOUT_CHANNEL => Channel::Stdout,
            IOF_FWD_STDERR_CHANNEL => Channel::Stderr,
            IOF_FWD_STDDIAG_CHANNEL => Channel::Stddiag,
            _ => return Err(IOF_ERR_BAD_PARAM),
        };
        // SAFETY: the header's promise.
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

/// Says that the processes of a job that run elsewhere have ended and all that they wrote was
/// delivered. exit_code: that of the job, as far as it is known there; below zero if it is not.
/// IOF_ERR_NOT_FOUND: it was said before, or all of them run here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_server_end_job(nspace: *const c_char, exit_code: c_int) -> iof_status_t {
    guard(|| {
        // SAFETY: the header's promise.
        let name = read::nspace(unsafe { read::text(nspace, IOF_MAX_NSLEN) }?)?;
        let ended = server()?.engine.end_job(&name, (exit_code >= 0).then_some(exit_code));
        if ended { Ok(IOF_SUCCESS) } else { Err(IOF_ERR_NOT_FOUND) }
    })
}
