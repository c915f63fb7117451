//! The functions of tools that have an engine start jobs.

use std::ffi::{c_char, c_void};

use iof_proto::attribute::Place;
use iof_proto::limits::MAX_DIRECTIVES;
use iof_proto::{Info, Spawn};

use crate::ffi::callbacks::iof_spawn_cbfunc_t;
use crate::ffi::constants::PMIX_INFO_REQD;
use crate::ffi::guard::{Outcome, guard};
use crate::ffi::types::{iof_app_t, iof_info_t, iof_nspace_t, iof_status_t};
use crate::ffi::{memory, read};
use crate::functions::jobs::{MAX_APPS, program};
use crate::infos::Infos;
use crate::infos::format::Format;
use crate::infos::spec;
use crate::library::{initialized, session};
use crate::session::command::Command;
use crate::session::{EngineSession, call};

/// Has the engine start the processes of a job (iof_server_spawn), and stores its name in nspace, which
/// may be NULL and otherwise points to an iof_nspace_t. Blocks until all processes are started, or
/// none is. The launcher of the engine decides whether tools of its own user may start jobs; iof run
/// permits it, and so does the callback spawn of iof_server_module_t. The environment is that of the engine's
/// process and what the programs add.
///
/// The engine keeps the output from its first byte on until the caller registers for it
/// (iof_IOF_pull), as the infos about its cache specify. The job then ends with its parent: the job of
/// the rank that the caller descends from, otherwise the caller.
///
/// The attributes of output apply to what the library of the caller writes: registrations for the job
/// without a callback, until its end was reported to all registrations. If output goes to files, or
/// IOF_IOF_LOCAL_OUTPUT is true, the library registers for all of it as soon as the job is started.
///
/// Infos of the job: those of `Place::ToolSpawn` and `Place::Spawn`. Without IOF_NSPACE it has a name of
/// its own. Those of a program are as for iof_server_spawn. Any other info is refused, also if it is not
/// required.
///
/// Errors, after which no process of the job runs; iof_last_error returns the reason, with the rank and
/// the error of the system: IOF_ERR_NOT_SUPPORTED if an info or the launcher refuses it;
/// IOF_ERR_NO_PERMISSIONS if the engine belongs to another user; IOF_ERR_EXISTS if a job has the name
/// already; IOF_ERR_OUT_OF_RESOURCE if tools have started too many jobs, or the caller has given too many
/// attributes of output;
/// IOF_ERR_JOB_FAILED_TO_LAUNCH if a program cannot be started; IOF_ERR_WOULD_BLOCK in a callback.
/// After IOF_ERR_IOF_FAILURE, the job runs, but the library cannot register for its output; the reason
/// names the job.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Spawn(
    job_info: *const iof_info_t,
    ninfo: usize,
    apps: *const iof_app_t,
    napps: usize,
    nspace: *mut c_char,
) -> iof_status_t {
    guard(|| {
        initialized()?;
        let session = session()?;
        // SAFETY: the contract in the header.
        let (spawn, format) = unsafe { tool_spawn(&session, job_info, ninfo, apps, napps) }?;
        let name = session.blocking(|done| Command::Spawn(spawn, format, done))?;
        // SAFETY: the contract in the header: it is an iof_nspace_t.
        unsafe { read::store::<iof_nspace_t>(nspace.cast(), memory::characters(name.as_str())) }
    })
}

/// The same as iof_Spawn, without blocking: cbfunc, which may be NULL, is called with the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Spawn_nb(
    job_info: *const iof_info_t,
    ninfo: usize,
    apps: *const iof_app_t,
    napps: usize,
    cbfunc: iof_spawn_cbfunc_t,
    cbdata: *mut c_void,
) -> iof_status_t {
    guard(|| {
        initialized()?;
        let session = session()?;
        // SAFETY: the contract in the header.
        let (spawn, format) = unsafe { tool_spawn(&session, job_info, ninfo, apps, napps) }?;
        session.submit(Command::Spawn(spawn, format, call::spawned(cbfunc, cbdata)))
    })
}

/// Reads infos, each as a required one.
///
/// # Safety
/// The contract of [`read`].
unsafe fn required(start: *const iof_info_t, count: usize) -> Outcome<Vec<Info>> {
    let mut infos = Vec::new();
    // SAFETY: the caller's promise.
    for from in unsafe { read::slice(start, count, MAX_DIRECTIVES) }? {
        let from = iof_info_t { flags: PMIX_INFO_REQD, ..*from };
        // SAFETY: the caller's promise.
        infos.extend(unsafe { read::infos(&raw const from, 1) }?);
    }
    Ok(infos)
}

/// Reads the arguments of `iof_Spawn`.
///
/// # Safety
/// The contract of [`read`].
unsafe fn tool_spawn(
    session: &EngineSession,
    job_info: *const iof_info_t,
    ninfo: usize,
    apps: *const iof_app_t,
    napps: usize,
) -> Outcome<(Box<Spawn>, Format)> {
    // SAFETY: the caller's promise.
    let (infos, apps) = unsafe { (required(job_info, ninfo)?, read::slice(apps, napps, MAX_APPS)?) };
    let program = |from: &iof_app_t| {
        // SAFETY: the caller's promise.
        unsafe {
            Infos(required(from.info, from.ninfo)?).only(&[Place::Program])?;
            program(from)
        }
    };
    let programs = apps.iter().map(program).collect::<Outcome<Vec<_>>>()?;
    let (spawn, format) = spec::tool_spawn(infos, programs)?;
    session.formats().registration(format.clone())?;
    Ok((Box::new(spawn), format))
}
