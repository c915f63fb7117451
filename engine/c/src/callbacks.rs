//! The callbacks, with PMIx's arguments.

use std::ffi::{c_int, c_void};

use crate::types::{iof_byte_object_t, iof_info_t, iof_iof_channel_t, iof_proc_t, iof_query_t, iof_status_t};

/// Called when an operation is done, with its status.
pub type iof_op_cbfunc_t = Option<unsafe extern "C" fn(status: iof_status_t, cbdata: *mut c_void)>;

/// Called when a handler is registered, with its number in refid, or with the error.
pub type iof_hdlr_reg_cbfunc_t =
    Option<unsafe extern "C" fn(status: iof_status_t, refid: usize, cbdata: *mut c_void)>;

/// Called when the receiver no longer needs the data of a callback.
pub type iof_release_cbfunc_t = Option<unsafe extern "C" fn(cbdata: *mut c_void)>;

/// Called with the answer to a query. The infos belong to the caller of the callback. The receiver
/// must call release_fn with release_cbdata once, in the callback or later on any thread, unless
/// release_fn is NULL; until then the infos are valid.
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

/// Called with output of one channel of source, for the registration iofhdlr.
///
/// The payload lies in the engine's shared memory and is read in place. It is mapped for reading
/// only, is valid until the callback returns, and is not overwritten until then. The other
/// arguments are valid until the callback returns, too. A payload without bytes is delivered once
/// for each stream, at its end: with IOF_IOF_COMPLETE, or with IOF_GONE if the engine ended before
/// the stream was complete. The infos contain:
///
///   IOF_OFFSET         the number of bytes that the source had produced before these; always
///   IOF_READ_TIME      the time at which they were read from the source, if known
///   IOF_LOST           the number of bytes that are missing before these, if any
///   IOF_LOGGED         the bytes were logged on behalf of the source, which did not write them
///   IOF_IOF_COMPLETE   the stream is complete
///   IOF_GONE           the engine has ended; whether the source wrote more is unknown
///
/// Bytes that this tool was too slow to receive are reported by a payload without bytes whose
/// source has the wildcard rank, with IOF_LOST alone.
///
/// The end of a job is reported to event handlers, after the end of its last stream: see
/// iof_Register_event_handler.
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

/// Called by an event handler when it is done. Only cbfunc and thiscbdata are used: cbfunc, which
/// may be NULL, is called with thiscbdata.
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

/// Called for an event: see iof_Register_event_handler. The arguments are valid until it returns.
/// It may call cbfunc with cbdata, but need not.
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

/// Called by the launcher to approve a tool (IOF_SUCCESS) or to refuse it (an error). proc may be
/// NULL.
pub type iof_tool_connection_cbfunc_t =
    Option<unsafe extern "C" fn(status: iof_status_t, proc: *mut iof_proc_t, cbdata: *mut c_void)>;

/// Asks the launcher to approve a tool that has connected. The infos identify it: IOF_USERID,
/// IOF_GRPID, IOF_PROC_PID. They are valid until this returns. The tool waits until cbfunc is
/// called with cbdata, during the call or later, on any thread. Other tools are served meanwhile.
/// Without an answer within four seconds the tool is refused.
pub type iof_server_tool_connection_fn_t = Option<
    unsafe extern "C" fn(
        info: *mut iof_info_t,
        ninfo: usize,
        cbfunc: iof_tool_connection_cbfunc_t,
        cbdata: *mut c_void,
    ),
>;

/// Asks the launcher for what the engine does not know. If it returns IOF_SUCCESS, the launcher
/// must call cbfunc with cbdata, during the call or later, on any thread. Any other status means
/// that nothing is known and that cbfunc is not called. The arguments are valid until cbfunc is
/// called. cbfunc copies the infos that it receives before it returns.
pub type iof_server_query_fn_t = Option<
    unsafe extern "C" fn(
        proct: *mut iof_proc_t,
        queries: *mut iof_query_t,
        nqueries: usize,
        cbfunc: iof_info_cbfunc_t,
        cbdata: *mut c_void,
    ) -> iof_status_t,
>;

/// Asks the launcher to log data on a channel that the engine does not know. The launcher must call
/// cbfunc with cbdata, during the call or later, on any thread. The arguments are valid until then.
/// The launcher must not pass the request to iof_Log.
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

/// Asks the launcher for output of processes that was not granted before. The launcher either
/// grants it, and calls iof_server_IOF_deliver for processes on other nodes, or denies it. With the
/// directive IOF_IOF_STOP: no tool wants this output any more. The arguments are valid until this
/// returns. The result is IOF_SUCCESS if cbfunc is called with cbdata, during the call or later, on
/// any thread; IOF_OPERATION_SUCCEEDED if the output is granted and cbfunc is not called; any other
/// status denies it.
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

/// Passes bytes to the launcher for the stdin of processes on other nodes. No bytes: the stdin is
/// to be closed. The next bytes follow when cbfunc was called. The result is that of
/// iof_server_iof_fn_t. The arguments, including the bytes, are valid until this returns.
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

/// A callback of PMIx that this library never calls.
pub type iof_server_unused_fn_t = Option<unsafe extern "C" fn() -> c_int>;

/// The callbacks of a launcher. Each may be NULL. The library calls them one at a time on the
/// thread of the engine that serves tools, so they must return soon. They may call any function
/// that does not block.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
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
    /// Answers queries. If NULL, queries about what the engine does not know are answered with
    /// IOF_ERR_NOT_FOUND.
    pub query: iof_server_query_fn_t,
    /// Approves tools. If NULL, tools of the same user and of root are approved.
    pub tool_connected: iof_server_tool_connection_fn_t,
    /// Logs data. If NULL, only the channels of the engine exist.
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
    /// Grants output. If NULL, all output is granted.
    pub iof_pull: iof_server_iof_fn_t,
    /// Pushes bytes to processes on other nodes. If NULL, their stdin cannot be pushed to.
    pub push_stdin: iof_server_stdin_fn_t,
    /// Not called.
    pub group: iof_server_unused_fn_t,
    /// Not called.
    pub fabric: iof_server_unused_fn_t,
    /// Not called.
    pub client_connected2: iof_server_unused_fn_t,
}
