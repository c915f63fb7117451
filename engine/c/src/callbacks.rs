//! The callbacks, with PMIx's arguments.

use std::ffi::{c_int, c_void};

use crate::types::{iof_byte_object_t, iof_info_t, iof_iof_channel_t, iof_proc_t, iof_query_t, iof_status_t};

/// An operation is done, with this status.
pub type iof_op_cbfunc_t = Option<unsafe extern "C" fn(status: iof_status_t, cbdata: *mut c_void)>;

/// A handler is registered, with this number, or is not.
pub type iof_hdlr_reg_cbfunc_t =
    Option<unsafe extern "C" fn(status: iof_status_t, refid: usize, cbdata: *mut c_void)>;

/// What was handed out with a callback is no longer needed.
pub type iof_release_cbfunc_t = Option<unsafe extern "C" fn(cbdata: *mut c_void)>;

/// A query is answered. The infos are the library's, until release_fn is called with
/// release_cbdata, which must be done once, in the callback or later on any thread, if it is not
/// NULL.
pub type iof_info_cbfunc_t = Option<
    unsafe extern "C" fn(
        status: iof_status_t,
        info: *mut iof_info_t,
        ninfo: usize,
        cbdata: *mut c_void,
        release_fn: iof_release_cbfunc_t,
        release_cbdata: *mut c_void,
    ),
>;

/// Something comes of the registration iofhdlr, from one channel of source.
///
/// The payload lies in the ring itself, which the engine has mapped as well: it is read in place,
/// is valid until the callback returns, and nobody writes there meanwhile. It can't be written to.
/// Neither can the other arguments be kept. A payload without bytes comes once for each stream, at
/// its end, with IOF_IOF_COMPLETE or, if the engine has gone before that, with IOF_GONE. The infos
/// say more:
///
///   IOF_OFFSET         how many bytes the source had produced before these; always
///   IOF_READ_TIME      when they were read from the source, if that is known
///   IOF_LOST           so many bytes before these are missing, if some are
///   IOF_LOGGED         they were not written by the source, but logged on its behalf
///   IOF_IOF_COMPLETE   there is no more of this stream
///   IOF_GONE           the engine has gone, and what else was written is not known
///
/// That a job has ended is told to event handlers, see iof_Register_event_handler, after the end of
/// its last stream.
pub type iof_iof_cbfunc_t = Option<
    unsafe extern "C" fn(
        iofhdlr: usize,
        channel: iof_iof_channel_t,
        source: *mut iof_proc_t,
        payload: *mut iof_byte_object_t,
        info: *mut iof_info_t,
        ninfo: usize,
    ),
>;

/// To be called by an event handler when it is done; the arguments but the last say nothing here.
pub type iof_event_notification_cbfunc_fn_t = Option<
    unsafe extern "C" fn(
        status: iof_status_t,
        results: *mut iof_info_t,
        nresults: usize,
        cbfunc: iof_op_cbfunc_t,
        thiscbdata: *mut c_void,
        notification_cbdata: *mut c_void,
    ),
>;

/// Something has happened, see iof_Register_event_handler. cbfunc may be called with cbdata, or
/// not.
pub type iof_notification_fn_t = Option<
    unsafe extern "C" fn(
        evhdlr_registration_id: usize,
        status: iof_status_t,
        source: *const iof_proc_t,
        info: *mut iof_info_t,
        ninfo: usize,
        results: *mut iof_info_t,
        nresults: usize,
        cbfunc: iof_event_notification_cbfunc_fn_t,
        cbdata: *mut c_void,
    ),
>;

/// The host's answer to whether a tool may connect: IOF_SUCCESS, or why not. proc may be NULL.
pub type iof_tool_connection_cbfunc_t =
    Option<unsafe extern "C" fn(status: iof_status_t, proc: *mut iof_proc_t, cbdata: *mut c_void)>;

/// A tool has connected. The infos name it: IOF_USERID, IOF_GRPID, IOF_PROC_PID. The tool waits
/// until cbfunc is called with cbdata, in the callback or later, on any thread; others are served
/// meanwhile. After four seconds the tool is refused. The infos are valid until this returns.
pub type iof_server_tool_connection_fn_t = Option<
    unsafe extern "C" fn(
        info: *mut iof_info_t,
        ninfo: usize,
        cbfunc: iof_tool_connection_cbfunc_t,
        cbdata: *mut c_void,
    ),
>;

/// A tool asks what the engine does not know. IOF_SUCCESS: cbfunc will be called with cbdata, now
/// or later, on any thread; anything else: it will not, and nothing is known. The arguments are
/// valid until cbfunc is called, and what that is called with is copied at once.
pub type iof_server_query_fn_t = Option<
    unsafe extern "C" fn(
        proct: *mut iof_proc_t,
        queries: *mut iof_query_t,
        nqueries: usize,
        cbfunc: iof_info_cbfunc_t,
        cbdata: *mut c_void,
    ) -> iof_status_t,
>;

/// Something is to be logged on a channel that the engine does not know. cbfunc must be called with
/// cbdata, now or later, on any thread; until then the arguments are valid. Must not be handed back
/// to iof_Log.
pub type iof_server_log_fn_t = Option<
    unsafe extern "C" fn(
        client: *const iof_proc_t,
        data: *const iof_info_t,
        ndata: usize,
        directives: *const iof_info_t,
        ndirs: usize,
        cbfunc: iof_op_cbfunc_t,
        cbdata: *mut c_void,
    ),
>;

/// Tools want output of processes of which nothing was granted before: the host is to see to it
/// that it arrives, by iof_server_IOF_deliver if they run elsewhere, or to deny it. With
/// IOF_IOF_STOP among the directives: nobody wants it any more. IOF_SUCCESS: cbfunc will be called
/// with cbdata, now or later, on any thread; IOF_OPERATION_SUCCEEDED: it is granted, and cbfunc is
/// not called; anything else: it is denied. The arguments are valid until this returns.
pub type iof_server_iof_fn_t = Option<
    unsafe extern "C" fn(
        procs: *const iof_proc_t,
        nprocs: usize,
        directives: *const iof_info_t,
        ndirs: usize,
        channels: iof_iof_channel_t,
        cbfunc: iof_op_cbfunc_t,
        cbdata: *mut c_void,
    ) -> iof_status_t,
>;

/// Bytes for the stdin of processes that run elsewhere; none: it is to be closed. The next come
/// when cbfunc was called. The status as with iof_server_iof_fn_t. The arguments, the bytes
/// included, are valid until this returns.
pub type iof_server_stdin_fn_t = Option<
    unsafe extern "C" fn(
        source: *const iof_proc_t,
        targets: *const iof_proc_t,
        ntargets: usize,
        directives: *const iof_info_t,
        ndirs: usize,
        bo: *const iof_byte_object_t,
        cbfunc: iof_op_cbfunc_t,
        cbdata: *mut c_void,
    ) -> iof_status_t,
>;

/// A callback that PMIx has and this library never calls.
pub type iof_server_unused_fn_t = Option<unsafe extern "C" fn() -> c_int>;

/// The host's part: callbacks of a launcher, each of which may be NULL. They come one after the
/// other, on a thread of the library's that serves no tool meanwhile, so they must return soon, and
/// must not wait for the library. In them every function may be called that does not wait.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_server_module_t {
    /// Not called.
    pub client_connected: iof_server_unused_fn_t,
    /// Not called.
    pub client_finalized: iof_server_unused_fn_t,
    /// Not called.
    pub abort: iof_server_unused_fn_t,
    /// Not called.
    pub fence_nb: iof_server_unused_fn_t,
    /// Not called.
    pub direct_modex: iof_server_unused_fn_t,
    /// Not called.
    pub publish: iof_server_unused_fn_t,
    /// Not called.
    pub lookup: iof_server_unused_fn_t,
    /// Not called.
    pub unpublish: iof_server_unused_fn_t,
    /// Not called.
    pub spawn: iof_server_unused_fn_t,
    /// Not called.
    pub connect: iof_server_unused_fn_t,
    /// Not called.
    pub disconnect: iof_server_unused_fn_t,
    /// Not called.
    pub register_events: iof_server_unused_fn_t,
    /// Not called.
    pub deregister_events: iof_server_unused_fn_t,
    /// Not called.
    pub listener: iof_server_unused_fn_t,
    /// Not called.
    pub notify_event: iof_server_unused_fn_t,
    /// Without it, what the engine does not know is not found.
    pub query: iof_server_query_fn_t,
    /// Without it, tools of the same user and of root are let in.
    pub tool_connected: iof_server_tool_connection_fn_t,
    /// Without it, there are the engine's own channels only.
    pub log: iof_server_log_fn_t,
    /// Not called.
    pub allocate: iof_server_unused_fn_t,
    /// Not called.
    pub job_control: iof_server_unused_fn_t,
    /// Not called.
    pub monitor: iof_server_unused_fn_t,
    /// Not called.
    pub get_credential: iof_server_unused_fn_t,
    /// Not called.
    pub validate_credential: iof_server_unused_fn_t,
    /// Without it, everything is granted.
    pub iof_pull: iof_server_iof_fn_t,
    /// Without it, nothing can be pushed to processes that run elsewhere.
    pub push_stdin: iof_server_stdin_fn_t,
    /// Not called.
    pub group: iof_server_unused_fn_t,
    /// Not called.
    pub fabric: iof_server_unused_fn_t,
    /// Not called.
    pub client_connected2: iof_server_unused_fn_t,
}
