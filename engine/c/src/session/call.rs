//! Calls C's callbacks.
//!
//! The contract behind every `unsafe` block of this module is the program's, as the header states
//! it: a callback can be called from any thread with arguments of its type as long as it is
//! registered, and it returns.

use std::ffi::c_void;
use std::ptr;

use iof_proto::{Failure, Nspace, Status};

use crate::ffi::callbacks::{
    iof_hdlr_reg_cbfunc_t, iof_info_cbfunc_t, iof_iof_cbfunc_t, iof_notification_fn_t, iof_op_cbfunc_t,
    iof_spawn_cbfunc_t,
};
use crate::ffi::guard::calling;
use crate::ffi::types::{iof_byte_object_t, iof_info_t, iof_nspace_t, iof_proc_t, iof_status_t};
use crate::ffi::{memory, value};
use crate::session::command::Done;

/// The pointer that C passes with a callback and receives back. It is never dereferenced here.
#[derive(Clone, Copy)]
pub(crate) struct CbData(pub *mut c_void);

// SAFETY: it is never dereferenced, only given back. By using callbacks, C agrees that another
// thread may receive it.
unsafe impl Send for CbData {}

/// Returns the status of a result.
fn status_of<T>(result: &Result<T, Failure>) -> Status {
    result.as_ref().err().map_or(Status::SUCCESS, |failure| failure.status)
}

/// Returns the call that reports the result of a request.
pub(crate) fn done(callback: iof_op_cbfunc_t, cbdata: *mut c_void) -> Done<()> {
    let cbdata = CbData(cbdata);
    Box::new(move |result| op(callback, status_of(&result), cbdata))
}

/// Reports that an operation is done.
pub(crate) fn op(callback: iof_op_cbfunc_t, Status(status): Status, CbData(cbdata): CbData) {
    if let Some(callback) = callback {
        // SAFETY: the module's contract.
        calling(|| unsafe { callback(status, cbdata) });
    }
}

/// Reports that a handler is registered, or the error.
pub(crate) fn registered(
    callback: iof_hdlr_reg_cbfunc_t,
    result: &Result<usize, Failure>,
    CbData(cbdata): CbData,
) {
    if let Some(callback) = callback {
        let id = result.as_ref().copied().unwrap_or(0);
        // SAFETY: the module's contract.
        calling(|| unsafe { callback(status_of(result).0, id, cbdata) });
    }
}

/// Returns the call that reports the start of a job.
pub(crate) fn spawned(callback: iof_spawn_cbfunc_t, cbdata: *mut c_void) -> Done<Nspace> {
    let cbdata = CbData(cbdata);
    Box::new(move |result| started(callback, &result, cbdata))
}

fn started(callback: iof_spawn_cbfunc_t, result: &Result<Nspace, Failure>, CbData(cbdata): CbData) {
    if let Some(callback) = callback {
        let mut name: iof_nspace_t = memory::characters(result.as_ref().map_or("", Nspace::as_str));
        // SAFETY: the module's contract; the name lives until the callback returns.
        calling(|| unsafe { callback(status_of(result).0, name.as_mut_ptr(), cbdata) });
    }
}

/// Infos that C owns until it calls [`release`].
struct Given {
    infos: *mut iof_info_t,
    count: usize,
}

/// Reports the answer to a query.
pub(crate) fn answered(
    callback: iof_info_cbfunc_t,
    (status, infos): (Status, Vec<iof_info_t>),
    CbData(cbdata): CbData,
) {
    let array = memory::give(&infos);
    // If memory is exhausted, the answer is an error.
    let (status, count) =
        if array.is_null() && !infos.is_empty() { (Status::ERR_NOMEM, 0) } else { (status, infos.len()) };
    let given = Box::into_raw(Box::new(Given { infos: array, count })).cast();
    match callback {
        Some(callback) => {
            // SAFETY: the module's contract; C releases the infos once, as the header requires.
            calling(|| unsafe { callback(status.0, array, count, cbdata, Some(release), given) })
        }
        // SAFETY: nothing else releases them.
        None => unsafe { release(given) },
    }
}

/// Frees an answer. C calls it when it no longer needs the infos.
unsafe extern "C" fn release(given: *mut c_void) {
    crate::ffi::guard::guard_or((), || {
        if given.is_null() {
            return;
        }
        // SAFETY: `answered` has created it, and C gives it back once.
        unsafe {
            let Given { infos, count } = *Box::from_raw(given.cast::<Given>());
            value::free_infos(infos, count);
        }
    });
}

/// Calls the callback of a registration.
pub(crate) fn deliver(
    callback: iof_iof_cbfunc_t,
    handler: u32,
    channel: u16,
    mut source: iof_proc_t,
    bytes: &[u8],
    infos: &mut [iof_info_t],
) {
    let Some(callback) = callback else { return };
    // The bytes are in memory that is mapped for reading only. PMIx declares them as `char *`.
    let start = if bytes.is_empty() { ptr::null_mut() } else { bytes.as_ptr().cast_mut().cast() };
    let mut payload = iof_byte_object_t { bytes: start, size: bytes.len() };
    // SAFETY: the module's contract; the arguments live until the callback returns.
    calling(|| unsafe {
        callback(handler as usize, channel, &mut source, &mut payload, infos.as_mut_ptr(), infos.len());
    });
}

/// Calls an event handler.
pub(crate) fn notify(
    callback: iof_notification_fn_t,
    id: usize,
    Status(status): Status,
    source: &iof_proc_t,
    infos: &mut [iof_info_t],
) {
    let Some(callback) = callback else { return };
    let (none, done) = (ptr::null_mut(), Some(notified as unsafe extern "C" fn(_, _, _, _, _, _)));
    // SAFETY: the module's contract; the arguments live until the callback returns.
    calling(|| unsafe {
        callback(id, status, source, infos.as_mut_ptr(), infos.len(), none, 0, done, ptr::null_mut());
    });
}

/// Called by an event handler when it is done. There is no chain of handlers that would wait for
/// it.
unsafe extern "C" fn notified(
    _status: iof_status_t,
    _results: *mut iof_info_t,
    _nresults: usize,
    cbfunc: iof_op_cbfunc_t,
    thiscbdata: *mut c_void,
    _notification_cbdata: *mut c_void,
) {
    crate::ffi::guard::guard_or((), || op(cbfunc, Status::SUCCESS, CbData(thiscbdata)));
}
