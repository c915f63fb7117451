//! The callbacks, with PMIx's arguments.

use std::ffi::{c_char, c_int, c_void};

use crate::ffi::types::{
    iof_app_t, iof_byte_object_t, iof_info_t, iof_iof_channel_t, iof_proc_t, iof_query_t, iof_status_t,
};

/// Called when an operation is done, with IOF_SUCCESS or an error.
pub type iof_op_cbfunc_t = Option<unsafe extern "C" fn(status: iof_status_t, cbdata: *mut c_void)>;

/// Called when a handler is registered. status is IOF_SUCCESS and refid the number of the handler,
/// or status is an error and refid 0.
pub type iof_hdlr_reg_cbfunc_t =
    Option<unsafe extern "C" fn(status: iof_status_t, refid: usize, cbdata: *mut c_void)>;

/// Called when the ranks of a job are started. status is IOF_SUCCESS and nspace the name of the job,
/// which is valid until the callback returns, or status is an error and nspace is empty.
pub type iof_spawn_cbfunc_t =
    Option<unsafe extern "C" fn(status: iof_status_t, nspace: *mut c_char, cbdata: *mut c_void)>;

/// Called when the receiver of a callback no longer needs the data of that callback.
pub type iof_release_cbfunc_t = Option<unsafe extern "C" fn(cbdata: *mut c_void)>;

/// Called with the answer to a query. status is IOF_SUCCESS, IOF_ERR_PARTIAL_SUCCESS if only some
/// keys are known, or another error, without infos.
///
/// The infos are valid until the receiver of the callback calls release_fn with release_cbdata. It
/// must do so once, during the callback or later, on any thread. A launcher that answers a query
/// (iof_server_query_fn_t) may pass NULL as release_fn: the library copies the infos before its
/// callback returns.
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

/// Called with output of one channel of source, for the registration with the number iofhdlr. All
/// arguments are valid until the callback returns.
///
/// The payload is not a copy: it lies in shared memory, which is mapped for reading only and is not
/// overwritten until the callback returns. The infos contain:
///
///   IOF_OFFSET         the number of bytes of the stream before the payload
///   IOF_READ_TIME      the time at which the payload was read from the source, if known
///   IOF_LOST           the number of bytes that are missing before the payload, if any
///   IOF_LOGGED         the bytes were logged for the source, which did not write them
///   IOF_IOF_COMPLETE   the stream is complete; if its IOF_OFFSET is less than IOF_FROM_OFFSET of the
///                      registration, it has ended before that offset
///   IOF_BROKEN         the node of the source was lost, or its output was not read to its end; the
///                      number of further bytes that it has written, at least
///   IOF_GONE           the engine has ended; whether the source wrote more is unknown
///
/// A payload without bytes has one of two meanings. With IOF_IOF_COMPLETE, IOF_BROKEN or IOF_GONE,
/// it is the end of the stream: a registration receives one for each stream. With IOF_LOST alone,
/// and a source with the wildcard rank, whole streams of that job and channel are missing, because
/// this tool read too little for too long, or they had ended on other nodes before. Bytes before
/// IOF_FROM_OFFSET are then not counted.
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

/// Called by an event handler to report that it is done, as in PMIx. The library calls cbfunc,
/// which may be NULL, with IOF_SUCCESS and thiscbdata, and ignores the other arguments.
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

/// Called for an event: see iof_Register_event_handler. status is the event, and source the job, if
/// the event concerns one. results is NULL. The arguments are valid until the handler returns. It
/// may call cbfunc with cbdata, but need not.
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

/// Called by the launcher to approve a tool (IOF_SUCCESS) or to refuse it with an error, which
/// iof_tool_init then returns. proc is ignored and may be NULL.
pub type iof_tool_connection_cbfunc_t =
    Option<unsafe extern "C" fn(status: iof_status_t, proc: *mut iof_proc_t, cbdata: *mut c_void)>;

/// Asks the launcher to approve a tool that has connected. The infos identify the tool: IOF_USERID,
/// IOF_GRPID, IOF_PROC_PID. They are valid until this callback returns. The launcher calls cbfunc
/// with cbdata once, during this callback or later, on any thread. The tool waits, but other tools
/// are served meanwhile. A tool that is not approved within four seconds is refused.
pub type iof_server_tool_connection_fn_t = Option<
    unsafe extern "C" fn(
        info: *mut iof_info_t,
        ninfo: usize,
        cbfunc: iof_tool_connection_cbfunc_t,
        cbdata: *mut c_void,
    ),
>;

/// Asks the launcher for the keys, jobs and processes of a query that the engine does not know, and
/// for the keys of IOF_HOST_QUERIES.
/// proct names no process. If the callback returns IOF_SUCCESS, the launcher must call cbfunc with
/// cbdata once, during this callback or later, on any thread. If it returns an error, no key is
/// known, and cbfunc must not be called. The arguments are valid until cbfunc is called.
pub type iof_server_query_fn_t = Option<
    unsafe extern "C" fn(
        proct: *mut iof_proc_t,
        queries: *mut iof_query_t,
        nqueries: usize,
        cbfunc: iof_info_cbfunc_t,
        cbdata: *mut c_void,
    ) -> iof_status_t,
>;

/// Asks the launcher to log data to a channel that the engine does not know. The directives are
/// those that the engine honours and those of IOF_HOST_DIRECTIVES. client is the source of the
/// message; its nspace is empty if there is none. The launcher calls cbfunc with cbdata and
/// IOF_SUCCESS or an error once, during this callback or later, on any thread. The arguments are
/// valid until then. The launcher must not pass the request to iof_Log.
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

/// Asks the launcher whether tools may receive output of processes that was not granted before. The
/// rank of a process may be IOF_RANK_WILDCARD. For processes on this node, a grant is only a
/// permission. For processes on other nodes, the launcher then passes their output to
/// iof_server_IOF_deliver. The directives are those of the tool. A tool's required directive that
/// the engine does not honour is refused unless IOF_HOST_DIRECTIVES contains its key. With the
/// directive IOF_IOF_STOP, no tool pulls the output any more; the result is ignored, and cbfunc
/// need not be called.
///
/// Returns IOF_SUCCESS if the launcher calls cbfunc with cbdata once, during this callback or
/// later, on any thread, with IOF_SUCCESS to grant the output or with an error to deny it;
/// IOF_OPERATION_SUCCEEDED to grant it without calling cbfunc; an error to deny it without calling
/// cbfunc. The arguments are valid until this callback returns.
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

/// Passes bytes that a tool pushes to the stdin of processes on other nodes. If bo contains no
/// bytes, their stdin is to be closed. source is the tool that pushes, by the name that it has
/// chosen (iof_tool_init). The next bytes of the push follow after cbfunc was called. The result is
/// that of iof_server_iof_fn_t. Two errors have a meaning of their own, as the result and in
/// cbfunc: IOF_ERR_IOF_XOFF takes the bytes, but the tool may push no more until
/// iof_server_IOF_flow_control resumes it; IOF_ERR_IOF_COMPLETE ends the push, because the stdin of
/// the processes is closed. The arguments, including the bytes, are valid until this callback
/// returns.
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

/// Grants or refuses a job that a tool wants to have started (iof_Spawn), which the engine starts if it
/// is granted. proc is the tool. Infos of the job: IOF_NSPACE, the name that it will have; IOF_PARENT_ID,
/// if it ends with the job of this process (the rank has no meaning); IOF_NOHUP, if it ends with
/// neither that job nor the tool. The programs have no infos. cbfunc grants the job with IOF_SUCCESS, and
/// otherwise refuses it; its nspace is ignored. The result is that of iof_server_iof_fn_t. The arguments
/// are valid until this callback returns.
pub type iof_server_spawn_fn_t = Option<
    unsafe extern "C" fn(
        proc: *const iof_proc_t,
        job_info: *const iof_info_t,
        ninfo: usize,
        apps: *const iof_app_t,
        napps: usize,
        cbfunc: iof_spawn_cbfunc_t,
        cbdata: *mut c_void,
    ) -> iof_status_t,
>;

/// A callback that PMIx defines and this library never calls.
pub type iof_server_unused_fn_t = Option<unsafe extern "C" fn() -> c_int>;

/// The callbacks of a launcher. Each may be NULL. The library calls them one at a time on the
/// thread of the engine that serves tools. No tool is served meanwhile, so they must return soon.
/// They may call any function that does not block.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
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
    /// Grants jobs to tools of the launcher's own user. If NULL, tools start no jobs.
    pub spawn: iof_server_spawn_fn_t,
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
    /// Answers queries about what the engine does not know. If NULL, such queries are answered with
    /// IOF_ERR_NOT_FOUND.
    pub query: iof_server_query_fn_t,
    /// Approves tools. If NULL, tools of the launcher's own user and of root are approved.
    pub tool_connected: iof_server_tool_connection_fn_t,
    /// Logs data to other channels. If NULL, only the channels of the engine exist.
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
    /// Grants output to tools. If NULL, all output is granted.
    pub iof_pull: iof_server_iof_fn_t,
    /// Pushes bytes to processes on other nodes. If NULL, such pushes fail with
    /// IOF_ERR_NOT_SUPPORTED.
    pub push_stdin: iof_server_stdin_fn_t,
    /// Not called.
    pub group: iof_server_unused_fn_t,
    /// Not called.
    pub fabric: iof_server_unused_fn_t,
    /// Not called.
    pub client_connected2: iof_server_unused_fn_t,
}
