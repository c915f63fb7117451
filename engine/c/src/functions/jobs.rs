//! The functions of launchers for the jobs of their engine: start, adopt, wait, signal and remove.

use std::collections::BTreeSet;
use std::ffi::{OsString, c_char, c_int};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{self, ExitStatus};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use iof_engine::{
    AdoptError, AdoptSpec, AdoptedRank, App, Exit, Job, JobStatus, LaunchError, MAX_RANKS, Process, Signal,
};
use iof_proto::{Nspace, Proc, Rank, Status};

use crate::ffi::guard::{OrStatus, Outcome, guard, guard_number, lock, may_wait};
use crate::ffi::types::{
    iof_adopted_t, iof_app_t, iof_info_t, iof_iof_channel_t, iof_nspace_t, iof_proc_t, iof_status_t,
};
use crate::ffi::{memory, read};
use crate::functions::job_output::JobOutput;
use crate::infos::spec::{self, Adoption, ProgramSpec};
use crate::library::{ServerState, server};

/// The maximum number of programs of a job.
pub(crate) const MAX_APPS: usize = 4096;
/// The maximum number of arguments, of variables and of adopted ranks.
pub(crate) const MAX_ARGS: usize = 1 << 16;
/// The maximum length of an argument, in bytes: the kernel's MAX_ARG_STRLEN.
pub(crate) const MAX_ARG: usize = 128 << 10;

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
/// Infos of the job: those of `Place::ServerSpawn` and `Place::Spawn`. Without IOF_NSPACE the library
/// chooses a name.
/// With files or IOF_IOF_LOCAL_OUTPUT, the library writes the output of the job although the program
/// has not called iof_IOF_pull, and the function returns IOF_ERR_WOULD_BLOCK in a callback.
///
/// Infos of a program (iof_app_t), in which ranks are counted within the program: those of
/// `Place::Program`. Those of the job take precedence.
///
/// Errors, after which no process of the job runs: IOF_ERR_BAD_PARAM if a program has no ranks, if
/// an info selects a rank that does not exist, if several ranks are to inherit stdin, or if a rank
/// with a pty has a pipe or a file as stdin; IOF_ERR_EXISTS if a job has the name already;
/// IOF_ERR_OUT_OF_RESOURCE if files or memory are exhausted; IOF_ERR_IOF_FAILURE if a file of its
/// output cannot be written, such as a FIFO that no process reads, or another job writes it;
/// IOF_ERR_JOB_FAILED_TO_LAUNCH if a program cannot be started.
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
        // SAFETY: the contract in the header.
        let programs = apps.iter().map(|from| unsafe { program(from) }).collect::<Outcome<Vec<_>>>()?;
        let default_name =
            || format!("iof-{}@{}", process::id(), server.spawned.fetch_add(1, Relaxed).wrapping_add(1));
        let (spec, format) = spec::job_spec(infos, programs, default_name)?;
        let _reserved = ReservedName::reserve(&server, &spec.nspace)?;
        let nprocs = spec.apps.iter().fold(0, |sum: u32, app| sum.saturating_add(app.nprocs));
        let output = JobOutput::prepare(&server, &spec.nspace, nprocs, format)?;
        let job = server.engine.spawn(&spec);
        let status = job.as_ref().err().map_or(Status::SUCCESS, launch_status);
        lock(&server.jobs).insert(spec.nspace.clone(), job.or_status(status)?);
        output.keep();
        // SAFETY: the contract in the header: it is an iof_nspace_t.
        unsafe { read::store::<iof_nspace_t>(nspace.cast(), memory::characters(spec.nspace.as_str())) }
    })
}

/// The name of a job that is being started. No other job can be started with it meanwhile.
struct ReservedName<'a> {
    server: &'a ServerState,
    nspace: &'a Nspace,
}

impl<'a> ReservedName<'a> {
    /// Reserves a name, unless a job has it, whose output the new job must not change.
    fn reserve(server: &'a ServerState, nspace: &'a Nspace) -> Outcome<ReservedName<'a>> {
        let jobs = lock(&server.jobs);
        if jobs.contains_key(nspace) || !lock(&server.starting).insert(nspace.clone()) {
            return Err(LaunchError::NameTaken(nspace.clone())).or_status(Status::ERR_EXISTS);
        }
        Ok(ReservedName { server, nspace })
    }
}

impl Drop for ReservedName<'_> {
    fn drop(&mut self) {
        lock(&self.server.starting).remove(self.nspace);
    }
}

fn launch_status(error: &LaunchError) -> Status {
    match error {
        LaunchError::NameTaken(_) => Status::ERR_EXISTS,
        LaunchError::Files { .. }
        | LaunchError::RankFiles { .. }
        | LaunchError::Maps { .. }
        | LaunchError::Pmi { .. } => Status::ERR_OUT_OF_RESOURCE,
        LaunchError::Ranks { .. }
        | LaunchError::EmptyApp { .. }
        | LaunchError::UnknownStdinRank { .. }
        | LaunchError::UnknownPtyRank { .. }
        | LaunchError::StdinOfPty { .. }
        | LaunchError::SharedStdin { .. } => Status::ERR_BAD_PARAM,
        _ => Status::ERR_JOB_FAILED_TO_LAUNCH,
    }
}

/// Reads a program.
///
/// # Safety
/// The contract of [`read`].
pub(crate) unsafe fn program(from: &iof_app_t) -> Outcome<ProgramSpec> {
    // SAFETY: the caller's promise.
    unsafe {
        let infos = read::infos(from.info, from.ninfo)?;
        let text = |text: Vec<u8>| OsString::from_vec(text);
        let program = text(read::bytes(from.cmd, MAX_ARG)?.to_vec());
        let args = read::texts(from.argv, MAX_ARGS, MAX_ARG)?.into_iter().skip(1).map(text);
        let mut app = App::new(program, args);
        let variable = |pair: Vec<u8>| {
            let end = pair
                .iter()
                .position(|byte| *byte == b'=')
                .ok_or_else(|| format!("invalid variable '{}': expected NAME=VALUE", pair.escape_ascii()));
            let end = end.or_status(Status::ERR_BAD_PARAM)?;
            let (name, value) = pair.split_at(end);
            Ok((text(name.to_vec()), text(value.get(1..).unwrap_or_default().to_vec())))
        };
        app.env =
            read::texts(from.env, MAX_ARGS, MAX_ARG)?.into_iter().map(variable).collect::<Outcome<_>>()?;
        if !from.cwd.is_null() {
            app.cwd = Some(PathBuf::from(text(read::bytes(from.cwd, MAX_ARG)?.to_vec())));
        }
        let invalid = |_| format!("invalid maxprocs {}: expected 1 or more", from.maxprocs);
        app.nprocs = u32::try_from(from.maxprocs).map_err(invalid).or_status(Status::ERR_BAD_PARAM)?;
        ProgramSpec::new(app, infos)
    }
}

/// Forwards the output of processes that the launcher started itself, as one job. Does not wait for
/// the processes. Infos: those of iof_server_spawn, except the name and those of stdin.
///
/// The library owns the descriptors from this call on, even if it fails, except with
/// IOF_ERR_BAD_PARAM or IOF_ERR_INIT: then the launcher still owns them all. Otherwise the library
/// closes them when the call fails or their streams are complete.
///
/// Errors: IOF_ERR_BAD_PARAM if the list of ranks is empty, if a rank is out of range or appears
/// twice, if a descriptor is not open or appears twice, or if an info is refused, such as one of
/// files that cannot be written; IOF_ERR_EXISTS if a job has the name already;
/// IOF_ERR_OUT_OF_RESOURCE if files or memory are exhausted; IOF_ERR_NOT_SUPPORTED if a descriptor
/// is not of a kind that iof_adopted_t lists, or if a process does not exist or was waited for. If
/// a process is not a child of the launcher, its exit is detected, but its exit code is unknown and
/// counts as 1.
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
            let name = read::job_name(nspace)?;
            (name, read::slice(ranks, nranks, MAX_ARGS)?)
        };
        // SAFETY: the contract in the header.
        let options = unsafe { read::infos(info, ninfo) }.and_then(spec::adoption);
        // This status tells the launcher that it still owns the descriptors.
        let Adoption { elsewhere, directives, format } = options.map_err(|_| Status::ERR_BAD_PARAM)?;
        // SAFETY: the contract in the header.
        let names = all
            .iter()
            .map(|rank| unsafe { read::optional_text(rank.executable, MAX_ARG) })
            .collect::<Outcome<Vec<String>>>()?;
        // All arguments are checked before the library takes any descriptor.
        let numbers: BTreeSet<u32> =
            all.iter().map(|entry| entry.rank).filter(|rank| *rank < MAX_RANKS).collect();
        if all.is_empty() || numbers.len() < all.len() {
            return Err(Status::ERR_BAD_PARAM);
        }
        let of_rank = |rank: &iof_adopted_t| rank.files().into_iter().map(|(_, fd)| fd).chain([rank.pidfd]);
        let fds: Vec<c_int> = all.iter().flat_map(of_rank).filter(|fd| *fd >= 0).collect();
        if BTreeSet::from_iter(&fds).len() < fds.len() || !fds.iter().all(|fd| is_open(*fd)) {
            return Err(Status::ERR_BAD_PARAM);
        }
        let take = || all.iter().zip(names).map(|(rank, executable)| adopted(rank, executable)).collect();
        let _reserved = match ReservedName::reserve(&server, &name) {
            Ok(reserved) => reserved,
            Err(status) => {
                // The library owns the descriptors.
                drop::<Vec<AdoptedRank>>(take());
                return Err(status);
            }
        };
        let nprocs = u32::try_from(all.len()).or_status(Status::ERR_BAD_PARAM)?;
        let output = JobOutput::prepare(&server, &name, nprocs, format).map_err(|_| Status::ERR_BAD_PARAM)?;
        let ranks = take();
        let spec = AdoptSpec { directives, elsewhere, ..AdoptSpec::new(name.clone(), ranks) };
        let job = server.engine.adopt(spec);
        let status = match &job {
            Err(AdoptError::NameTaken(_)) => Status::ERR_EXISTS,
            Err(AdoptError::Files { .. } | AdoptError::Maps { .. } | AdoptError::Rings { .. }) => {
                Status::ERR_OUT_OF_RESOURCE
            }
            _ => Status::ERR_NOT_SUPPORTED,
        };
        lock(&server.jobs).insert(name.clone(), job.or_status(status)?);
        output.keep();
        Ok(())
    })
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
        files: entry.files().into_iter().filter_map(|(channel, fd)| Some((channel, file(fd)?))).collect(),
        process,
    }
}

/// Reports the exit of a process that was adopted without pidfd and pid, with its status from
/// wait(2). Does not block. Errors: IOF_ERR_NOT_FOUND if the process does not exist, or if its exit
/// was reported before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_server_report_exit(proc: *const iof_proc_t, wait_status: c_int) -> iof_status_t {
    guard(|| {
        // SAFETY: the contract in the header.
        let Proc { nspace, rank } = read::proc(unsafe { read::one(proc) }?)?;
        let exit = Exit::Status(ExitStatus::from_raw(wait_status));
        if server()?.job(&nspace)?.report_exit(rank, exit) { Ok(()) } else { Err(Status::ERR_NOT_FOUND) }
    })
}

/// Blocks until all processes of a job on this node have ended, their output is read to its end,
/// and the server's own registrations have received it. Output ends when no process has the pipe
/// open any more, such as a process that a rank has started and left behind. exit_code, which may
/// be NULL, receives the exit code of the process that failed first (128 + n if signal n ended it,
/// 1 if its status is unknown), or 0 if none failed. Returns IOF_ERR_WOULD_BLOCK in a callback.
/// Errors: IOF_ERR_NOT_FOUND if no job of this name was spawned or adopted; IOF_ERR_UNREACH if the
/// library is finalized meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_server_wait(nspace: *const c_char, exit_code: *mut c_int) -> iof_status_t {
    guard(|| {
        may_wait()?;
        let server = server()?;
        // SAFETY: the contract in the header.
        let job = server.job(&unsafe { read::job_name(nspace) }?)?;
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
            Some(session) => {
                let status = session.wait_while(None, wait)?;
                session.finish_printing(None);
                status
            }
            None => wait(),
        };
        let status = status.ok_or("the exit status of the job is unknown").or_status(Status::ERR_UNREACH)?;
        // SAFETY: the contract in the header.
        unsafe { read::store(exit_code, status.code()) }
    })
}

/// Returns the handle of the job and rank that `proc` names.
///
/// # Safety
/// The contract of [`read`].
unsafe fn named(proc: *const iof_proc_t) -> Outcome<(Job, Rank)> {
    // SAFETY: the caller's promise.
    let Proc { nspace, rank } = read::proc(unsafe { read::one(proc) }?)?;
    Ok((server()?.job(&nspace)?, rank))
}

/// Completes output streams of a process on this node with the bytes that were written so far, as
/// many as channel contains. The process receives SIGPIPE when it writes more. Registrations
/// receive the bytes and then the end. Does not block. Errors: IOF_ERR_NOT_FOUND if the process
/// does not exist, or if none of these streams is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_server_close(
    proc: *const iof_proc_t,
    channel: iof_iof_channel_t,
) -> iof_status_t {
    guard(|| {
        let channels = read::channels(channel)?;
        // SAFETY: the contract in the header.
        let (job, rank) = unsafe { named(proc) }?;
        let closed = channels.outputs().filter(|channel| job.close(rank, *channel)).count();
        if closed > 0 { Ok(()) } else { Err(Status::ERR_NOT_FOUND) }
    })
}

/// Blocks until all bytes that a process on this node, or with IOF_RANK_WILDCARD all of its job,
/// has written before the call are read, and the server's own registrations have received them; if
/// the library writes them, after they were written. Tools can then receive them from the caches. A
/// process that does not exist has written nothing. timeout is in milliseconds, -1 means without
/// limit. With IOF_EXTERNAL_PROGRESS, a callback that is running when the time has passed is waited
/// for. Returns IOF_ERR_WOULD_BLOCK in a callback. Errors: IOF_ERR_NOT_FOUND if no job of this name
/// was spawned or adopted; IOF_ERR_TIMEOUT if the time has passed, or the library is finalized.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_server_flush(proc: *const iof_proc_t, timeout: c_int) -> iof_status_t {
    guard(|| {
        may_wait()?;
        // SAFETY: the contract in the header.
        let (job, rank) = unsafe { named(proc) }?;
        let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let flush = move || match rank {
            Rank::WILDCARD => job.flush(timeout),
            rank => job.flush_rank(rank, timeout),
        };
        // iof_server_finalize waits for uses of the server, and must not wait for this call.
        let session = server()?.session_so_far();
        let is_flushed = match session {
            Some(session) => session.wait_while(deadline, flush)? && session.finish_printing(deadline),
            None => flush(),
        };
        if is_flushed { Ok(()) } else { Err(Status::ERR_TIMEOUT) }
    })
}

/// Returns a descriptor of the pseudo-terminal of a process (IOF_PTY), which the caller closes.
/// Bytes written to it are typed at the terminal; TIOCSWINSZ (ioctl_tty(2)) changes its size. It
/// must not be read: the engine reads the output. It is non-blocking. The terminal is hung up when
/// the engine has ended and all such descriptors are closed. Does not block. Errors:
/// IOF_ERR_NOT_FOUND if the process does not exist, has no pseudo-terminal or has ended;
/// IOF_ERR_OUT_OF_RESOURCE if the process can open no further descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_server_pty(proc: *const iof_proc_t) -> c_int {
    guard_number(|| {
        // SAFETY: the contract in the header.
        let (job, rank) = unsafe { named(proc) }?;
        let pty = job.pty(rank).or_status(Status::ERR_OUT_OF_RESOURCE)?.ok_or(Status::ERR_NOT_FOUND)?;
        Ok(OwnedFd::from(pty).into_raw_fd())
    })
}

/// Sends a signal to all processes of a job on this node, each with its process group if it leads
/// one, otherwise with its descendants in the launcher's group. Processes whose exit the launcher
/// reports (iof_server_report_exit) receive none. Does not block. Errors: IOF_ERR_NOT_FOUND if no
/// job of this name was spawned or adopted; IOF_ERR_BAD_PARAM if signal is not a signal, is 0, or
/// is a real-time signal.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_server_signal(nspace: *const c_char, signal: c_int) -> iof_status_t {
    guard(|| {
        // SAFETY: the contract in the header.
        let name = unsafe { read::job_name(nspace) }?;
        let signal = Signal::try_from(signal).or_status(Status::ERR_BAD_PARAM)?;
        server()?.job(&name)?.signal(signal);
        Ok(())
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
        let name = unsafe { read::job_name(nspace) }?;
        // The lock is held throughout: otherwise a new job of this name could be removed in its
        // place.
        let mut jobs = lock(&server.jobs);
        if !jobs.contains_key(&name) {
            return Err(Status::ERR_NOT_FOUND);
        }
        if !server.engine.remove(&name) {
            return Err(Status::ERR_RESOURCE_BUSY);
        }
        jobs.remove(&name);
        server.formats.forget(&name);
        Ok(())
    })
}
