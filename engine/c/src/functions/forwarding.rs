//! The functions of tools for output and stdin. A server may call them as well: the output on its
//! own terminal is an ordinary registration.

use std::ffi::c_void;

use iof_proto::attribute::key::*;
use iof_proto::{Channels, Info, Status};
use iof_tool::Push;

use crate::ffi::callbacks::{iof_hdlr_reg_cbfunc_t, iof_iof_cbfunc_t, iof_op_cbfunc_t};
use crate::ffi::guard::{OrStatus, Outcome, guard, guard_number};
use crate::ffi::types::{iof_byte_object_t, iof_info_t, iof_iof_channel_t, iof_proc_t, iof_status_t};
use crate::ffi::{memory, read};
use crate::functions::own_stdin;
use crate::infos::init::pull;
use crate::infos::{Infos, is_set};
use crate::library::{initialized, session};
use crate::session::call::{self, CbData};
use crate::session::command::{Command, Done, Payload, Sink};

/// Registers for the output of processes, which need not exist yet, on the channels that the set
/// channel contains. Cached output from before the registration is delivered first. If jobs of the
/// same name follow each other, the registration receives the output of all. It lasts until
/// iof_IOF_deregister is called or the library is finalized.
///
/// cbfunc receives the output, see iof_iof_cbfunc_t. If it is NULL, the library writes stdout to
/// the program's own stdout, and stderr and stddiag to its stderr, and reports missing bytes and
/// files that cannot be written on stderr. What is closed, or is closed on exec, is not written. It
/// writes whole lines, except lines that are longer than 64 KiB or are not complete after 100 ms.
/// While a reader of stdout, stderr or a FIFO accepts nothing, the library waits for it: it calls
/// no callback, and functions that wait for output, and iof_Progress, do not return.
///
/// Each registration empties a file before the first job of a name writes it, and later jobs of the
/// name add to it. A FIFO that no process reads is a file that cannot be written. So is a file that
/// another registration, of this program or another one, writes: only the first one writes it. A
/// tag may need an answer of the engine or its launcher (IOF_HOST_QUERIES). All output that the
/// library writes waits for it, for at most five seconds, and is then tagged without it; callbacks
/// do not wait.
///
/// The last directives below, from IOF_IOF_TAG_OUTPUT on, are the attributes of output. They have
/// no effect with cbfunc. Those that the registration does not have are taken from iof_tool_init.
/// For a server they are taken from the job (iof_server_spawn, iof_server_adopt), and otherwise
/// from iof_server_init, except those of files and IOF_IOF_LOCAL_OUTPUT.
///
/// If regcbfunc is NULL, the function blocks until the engine has answered and returns the
/// handler's number, 1 or more; in a callback it returns IOF_ERR_WOULD_BLOCK. Otherwise it returns
/// IOF_SUCCESS without blocking, and regcbfunc is called with the number or the error before cbfunc
/// is called for the first time.
///
/// Directives: those of `Place::Pull` and `Place::LibraryPull`.
///
/// Errors: IOF_ERR_BAD_PARAM if a file and a directory, or two positions, are given, or a pattern has
/// an unknown placeholder; IOF_ERR_NOT_SUPPORTED if channel contains stdin, as IOF_FWD_ALL_CHANNELS
/// does; IOF_ERR_NO_PERMISSIONS or another error if the launcher denies the output.
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
    guard_number(|| {
        // Like PMIx's library, it checks for stdin and for a connection before all other arguments.
        initialized()?;
        if channel & Channels::STDIN.bits() != 0 {
            return Err(Status::ERR_NOT_SUPPORTED);
        }
        let session = session()?;
        // SAFETY: the contract in the header.
        let (procs, infos) = unsafe { (read::procs(procs, nprocs)?, read::infos(directives, ndirs)?) };
        let (pull, format, lines) = pull(procs, read::channels(channel)?, infos)?;
        let sink = match cbfunc {
            Some(_) => Sink::Callback { callback: cbfunc, lines },
            None => Sink::Print(Box::new(session.formats().registration(format)?)),
        };
        if regcbfunc.is_none() {
            let id = session.blocking(|done| Command::Pull(pull, sink, done))?;
            return iof_status_t::try_from(id).or_status(Status::ERR_OUT_OF_RESOURCE);
        }
        let cbdata = CbData(regcbdata);
        let done = Box::new(move |result| call::registered(regcbfunc, &result, cbdata));
        session.submit(Command::Pull(pull, sink, done)).map(|()| 0)
    })
}

/// Ends a registration. Output from before the call is still delivered. Then cbfunc is called, and
/// the callback of the registration is not called any more. If cbfunc is NULL, the function blocks
/// until then instead; in a callback it returns IOF_ERR_WOULD_BLOCK. No directives are supported.
/// Errors: IOF_ERR_BAD_PARAM if the registration does not exist.
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
/// With IOF_IOF_PUSH_STDIN, and bo NULL or empty, a thread of the library reads the program's own
/// stdin until its end or an error, pushes it, and closes the stdin of the targets. If the value is
/// a process and ntargets is 0, that process is the target. The thread continues after the library
/// is finalized. A process has one such push at a time, because several would divide the bytes. The
/// function blocks until the push has begun, even with cbfunc, which is then called. Before, it
/// waits at most one second for the end of an earlier such push, which ends soon after its last
/// target. The end of the push is not reported. In a callback the function returns
/// IOF_ERR_WOULD_BLOCK. A later call with bo NULL or empty, and with IOF_IOF_PUSH_STDIN false or
/// with IOF_IOF_COMPLETE, stops the thread, whatever its targets are, without waiting for that: the
/// thread pushes what it has read, and closes the stdin of its targets.
///
/// Directives: those of `Place::Push`. A target that does not read delays the push, unless
/// IOF_IOF_DROP_NEWEST is given.
///
/// Errors after which nothing was pushed: IOF_ERR_NOT_FOUND if a job or process does not exist;
/// IOF_ERR_IOF_COMPLETE if the stdin of a target is closed; IOF_ERR_NOT_SUPPORTED if it is not a pipe
/// of the library; IOF_ERR_BAD_PARAM if the program's own stdin is to be pushed and is closed or
/// close-on-exec, or if bo contains bytes as well; IOF_ERR_RESOURCE_BUSY if it is being pushed
/// already. Other errors: IOF_ERR_PARTIAL_SUCCESS if some targets did not receive all bytes;
/// IOF_ERR_IOF_FAILURE if none did.
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
    guard_number(|| {
        initialized()?;
        // SAFETY: the contract in the header.
        let mut infos = Infos(unsafe { read::infos(directives, ndirs) }?);
        let stdin = infos.push_stdin()?;
        let is_null = bo.is_null();
        // SAFETY: the contract in the header.
        let bytes = unsafe { read::payload(bo, isize::MAX.cast_unsigned()) }?;
        let targets = match &stdin {
            Some((true, Some(target))) if ntargets == 0 => vec![target.clone()],
            _ if bytes.is_empty() && ntargets == 0 => Vec::new(),
            // SAFETY: the contract in the header.
            _ => unsafe { read::procs(targets, ntargets) }?,
        };
        let mut push = Push { directives: infos.0, ..Push::new(targets) };
        let completes = is_set(&push.directives, PMIX_IOF_COMPLETE);
        let is_done = match stdin {
            Some((true, _)) if !bytes.is_empty() => {
                return Err("IOF_IOF_PUSH_STDIN pushes stdin alone: push the bytes separately")
                    .or_status(Status::ERR_BAD_PARAM);
            }
            Some((true, _)) => {
                push.directives.push(Info::new(PMIX_IOF_COMPLETE, true));
                own_stdin::push(&*session()?, &push)?;
                true
            }
            Some((false, _)) if bytes.is_empty() => {
                session()?;
                own_stdin::stop();
                true
            }
            // The push that is stopped closes the stdin of its targets.
            None if completes && bytes.is_empty() => {
                session()?;
                own_stdin::stop()
            }
            // As in PMIx, there is nothing to do.
            None if is_null => return Ok(Status::OPERATION_SUCCEEDED.0),
            _ => false,
        };
        if is_done {
            if cbfunc.is_some() {
                session()?.submit(Command::Call(call::done(cbfunc, cbdata)))?;
            }
            return Ok(0);
        }
        let payload = if cbfunc.is_some() {
            Payload::Copied(memory::owned(bytes)?)
        } else {
            Payload::Lent(bytes.as_ptr(), bytes.len())
        };
        operate(cbfunc, cbdata, |done| Command::Push(push, payload, done)).map(|()| 0)
    })
}

/// Submits a command that ends with a status. Without a callback, waits for the status.
fn operate(
    cbfunc: iof_op_cbfunc_t,
    cbdata: *mut c_void,
    command: impl FnOnce(Done<()>) -> Command,
) -> Outcome<()> {
    let session = session()?;
    if cbfunc.is_none() {
        return session.blocking(command);
    }
    session.submit(command(call::done(cbfunc, cbdata)))
}
