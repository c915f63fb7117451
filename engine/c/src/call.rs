//! Calling back into C.
//!
//! The promise behind every `unsafe` here is the program's, which the header asks of it: a callback
//! can be called from any thread with the arguments that its type has, as long as it is registered,
//! and returns.

use std::ffi::c_void;
use std::ptr;

use iof_proto::{Answer, Failure, Status};

use crate::callbacks::{
    iof_hdlr_reg_cbfunc_t, iof_info_cbfunc_t, iof_iof_cbfunc_t, iof_notification_fn_t, iof_op_cbfunc_t,
};
use crate::constants::*;
use crate::guard::calling;
use crate::types::{iof_byte_object_t, iof_info_t, iof_proc_t, iof_status_t};
use crate::{make, memory, value};

/// What C wants to have back with a callback. Nothing is done with it here.
#[derive(Clone, Copy)]
pub(crate) struct CbData(pub *mut c_void);

// SAFETY: it is never looked at, only given back; C says by using callbacks that another thread may
// have it.
unsafe impl Send for CbData {}

/// The status of a result.
pub(crate) fn status_of<T>(result: &Result<T, Failure>) -> iof_status_t {
    result.as_ref().err().map_or(IOF_SUCCESS, |failure| failure.status.0)
}

/// An operation is done.
pub(crate) fn op(callback: iof_op_cbfunc_t, status: iof_status_t, CbData(cbdata): CbData) {
    if let Some(callback) = callback {
        // SAFETY: the module's promise.
        calling(|| unsafe { callback(status, cbdata) });
    }
}

/// A handler is registered, or is not.
pub(crate) fn registered(
    callback: iof_hdlr_reg_cbfunc_t,
    result: &Result<usize, Failure>,
    CbData(cbdata): CbData,
) {
    if let Some(callback) = callback {
        let id = result.as_ref().copied().unwrap_or(0);
        // SAFETY: the module's promise.
        calling(|| unsafe { callback(status_of(result), id, cbdata) });
    }
}

/// Infos that C gives back by [`release`].
struct Given {
    infos: *mut iof_info_t,
    count: usize,
}

/// A query is answered.
pub(crate) fn answered(
    callback: iof_info_cbfunc_t,
    result: &Result<Answer, Failure>,
    CbData(cbdata): CbData,
) {
    let Some(callback) = callback else { return };
    let (Status(status), infos) = match result {
        Ok(answer) => (answer.status, make::answer(answer)),
        Err(failure) => (failure.status, Vec::new()),
    };
    let array = memory::give(&infos);
    // Without memory for an answer there is none.
    let (status, count) =
        if array.is_null() && !infos.is_empty() { (IOF_ERR_NOMEM, 0) } else { (status, infos.len()) };
    let given = Box::new(Given { infos: array, count });
    let given = Box::into_raw(given).cast();
    // SAFETY: the module's promise; what is to be released is given back once, as the header asks.
    calling(|| unsafe { callback(status, array, count, cbdata, Some(release), given) });
}

/// What C calls when it needs an answer no more.
unsafe extern "C" fn release(given: *mut c_void) {
    crate::guard::guard_or((), || {
        if given.is_null() {
            return;
        }
        // SAFETY: it is what `answered` gave, and C gives it back once.
        unsafe {
            let Given { infos, count } = *Box::from_raw(given.cast::<Given>());
            value::free_infos(infos, count);
        }
    });
}

/// Something comes of a registration.
pub(crate) fn deliver(
    callback: iof_iof_cbfunc_t,
    handler: u32,
    channel: u16,
    mut source: iof_proc_t,
    bytes: &[u8],
    infos: &mut [iof_info_t],
) {
    let Some(callback) = callback else { return };
    // The bytes lie in memory that is mapped for reading alone: that they are `char *` is PMIx's word.
    let at = if bytes.is_empty() { ptr::null_mut() } else { bytes.as_ptr().cast_mut().cast() };
    let mut payload = iof_byte_object_t { bytes: at, size: bytes.len() };
    // SAFETY: the module's promise; the arguments live until the callback returns.
    calling(|| unsafe {
        callback(handler as usize, channel, &mut source, &mut payload, infos.as_mut_ptr(), infos.len());
    });
}

/// Something has happened.
pub(crate) fn notify(
    callback: iof_notification_fn_t,
    id: usize,
    status: iof_status_t,
    source: &iof_proc_t,
    infos: &mut [iof_info_t],
) {
    let Some(callback) = callback else { return };
    let (none, done) = (ptr::null_mut(), Some(notified as unsafe extern "C" fn(_, _, _, _, _, _)));
    // SAFETY: the module's promise; the arguments live until the callback returns.
    calling(|| unsafe {
        callback(id, status, source, infos.as_mut_ptr(), infos.len(), none, 0, done, ptr::null_mut());
    });
}

/// What an event handler calls when it is done. There is no chain of handlers that would wait for
/// it.
unsafe extern "C" fn notified(
    _status: iof_status_t,
    _results: *mut iof_info_t,
    _nresults: usize,
    cbfunc: iof_op_cbfunc_t,
    thiscbdata: *mut c_void,
    _notification_cbdata: *mut c_void,
) {
    crate::guard::guard_or((), || op(cbfunc, IOF_SUCCESS, CbData(thiscbdata)));
}
