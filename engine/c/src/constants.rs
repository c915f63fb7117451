//! The numbers, with PMIx's values. The comment of a constant that PMIx lacks calls it an extension
//! of iof.

use crate::types::{
    iof_data_range_t, iof_data_type_t, iof_info_directives_t, iof_iof_channel_t, iof_persistence_t,
    iof_proc_state_t, iof_rank_t, iof_scope_t, iof_status_t,
};

/// The longest name of a job, in bytes without the terminator.
pub const IOF_MAX_NSLEN: usize = 255;
/// The longest key, in bytes without the terminator.
pub const IOF_MAX_KEYLEN: usize = 511;

/// No rank. As the source of output: messages that were logged for a job as a whole.
pub const IOF_RANK_UNDEF: iof_rank_t = 4294967295u32;
/// All ranks of a job.
pub const IOF_RANK_WILDCARD: iof_rank_t = 4294967294u32;

/// The function succeeded.
pub const IOF_SUCCESS: iof_status_t = 0;
/// An internal error of the library.
pub const IOF_ERROR: iof_status_t = -1;
/// A job of this name, or an engine in this process, exists already.
pub const IOF_ERR_EXISTS: iof_status_t = -11;
/// The function would block, and was called in a callback.
pub const IOF_ERR_WOULD_BLOCK: iof_status_t = -15;
/// The engine or its launcher does not permit the request.
pub const IOF_ERR_NO_PERMISSIONS: iof_status_t = -23;
/// The engine or its launcher has not answered within the time limit.
pub const IOF_ERR_TIMEOUT: iof_status_t = -24;
/// No engine can be reached, the connection is closed, or the library was finalized meanwhile.
pub const IOF_ERR_UNREACH: iof_status_t = -25;
/// An argument is invalid.
pub const IOF_ERR_BAD_PARAM: iof_status_t = -27;
/// Too many requests are pending, or the job still runs. The call may succeed later.
pub const IOF_ERR_RESOURCE_BUSY: iof_status_t = -28;
/// A limit is reached.
pub const IOF_ERR_OUT_OF_RESOURCE: iof_status_t = -29;
/// The library is not initialized for this function, or the process is a forked child.
pub const IOF_ERR_INIT: iof_status_t = -31;
/// Out of memory.
pub const IOF_ERR_NOMEM: iof_status_t = -32;
/// The job, process, handler or key does not exist.
pub const IOF_ERR_NOT_FOUND: iof_status_t = -46;
/// The request is valid but not supported.
pub const IOF_ERR_NOT_SUPPORTED: iof_status_t = -47;
/// A value has the wrong type.
pub const IOF_ERR_TYPE_MISMATCH: iof_status_t = -18;
/// The library does not support the data type.
pub const IOF_ERR_UNKNOWN_DATA_TYPE: iof_status_t = -16;
/// Only a part of the request succeeded.
pub const IOF_ERR_PARTIAL_SUCCESS: iof_status_t = -52;
/// There is nothing to convert.
pub const IOF_ERR_EMPTY: iof_status_t = -60;
/// Event: the connection to the engine was lost.
pub const IOF_ERR_LOST_CONNECTION: iof_status_t = -61;
/// Not available in this state.
pub const IOF_ERR_NOT_AVAILABLE: iof_status_t = -64;
/// Event: a job has ended. Status of a job: it has ended, and no process failed.
pub const IOF_EVENT_JOB_END: iof_status_t = -145;
/// Result of a callback of iof_server_module_t: the request is granted, and the callback does not
/// call cbfunc.
pub const IOF_OPERATION_SUCCEEDED: iof_status_t = -157;
/// I/O forwarding failed. Result of a push: no target has received all bytes.
pub const IOF_ERR_IOF_FAILURE: iof_status_t = -172;
/// The stream, or the stdin of the target, is closed.
pub const IOF_ERR_IOF_COMPLETE: iof_status_t = -173;
/// Status of a job: a signal ended the process that failed first.
pub const IOF_ERR_JOB_ABORTED_BY_SIG: iof_status_t = -184;
/// Status of a job: the process that failed first ended with a non-zero or unknown exit code.
pub const IOF_ERR_JOB_NON_ZERO_TERM: iof_status_t = -187;
/// A job could not be started.
pub const IOF_ERR_JOB_FAILED_TO_LAUNCH: iof_status_t = -181;
/// Status of a job: it runs.
pub const IOF_EVENT_JOB_START: iof_status_t = -191;
/// The engine accepts no bytes of this stream now. Deliver them again later. An extension of iof.
pub const IOF_ERR_IOF_XOFF: iof_status_t = -405;
/// No channel could log the message (RFC0032). An extension of iof.
pub const IOF_ERR_OPERATION_FAILED: iof_status_t = -3331;

/// Type: no value
pub const IOF_UNDEF: iof_data_type_t = 0;
/// Type: bool
pub const IOF_BOOL: iof_data_type_t = 1;
/// Type: uint8_t
pub const IOF_BYTE: iof_data_type_t = 2;
/// Type: char *
pub const IOF_STRING: iof_data_type_t = 3;
/// Type: size_t
pub const IOF_SIZE: iof_data_type_t = 4;
/// Type: pid_t
pub const IOF_PID: iof_data_type_t = 5;
/// Type: int
pub const IOF_INT: iof_data_type_t = 6;
/// Type: int8_t
pub const IOF_INT8: iof_data_type_t = 7;
/// Type: int16_t
pub const IOF_INT16: iof_data_type_t = 8;
/// Type: int32_t
pub const IOF_INT32: iof_data_type_t = 9;
/// Type: int64_t
pub const IOF_INT64: iof_data_type_t = 10;
/// Type: unsigned int
pub const IOF_UINT: iof_data_type_t = 11;
/// Type: uint8_t
pub const IOF_UINT8: iof_data_type_t = 12;
/// Type: uint16_t
pub const IOF_UINT16: iof_data_type_t = 13;
/// Type: uint32_t
pub const IOF_UINT32: iof_data_type_t = 14;
/// Type: uint64_t
pub const IOF_UINT64: iof_data_type_t = 15;
/// Type: float
pub const IOF_FLOAT: iof_data_type_t = 16;
/// Type: double
pub const IOF_DOUBLE: iof_data_type_t = 17;
/// Type: struct timeval
pub const IOF_TIMEVAL: iof_data_type_t = 18;
/// Type: time_t
pub const IOF_TIME: iof_data_type_t = 19;
/// Type: iof_status_t
pub const IOF_STATUS: iof_data_type_t = 20;
/// Type: iof_value_t
pub const IOF_VALUE: iof_data_type_t = 21;
/// Type: iof_proc_t
pub const IOF_PROC: iof_data_type_t = 22;
/// Type: iof_info_t
pub const IOF_INFO: iof_data_type_t = 24;
/// Type: iof_byte_object_t
pub const IOF_BYTE_OBJECT: iof_data_type_t = 27;
/// Type: void *
pub const IOF_POINTER: iof_data_type_t = 31;
/// Type: iof_proc_state_t
pub const IOF_PROC_STATE: iof_data_type_t = 37;
/// Type: iof_proc_info_t
pub const IOF_PROC_INFO: iof_data_type_t = 38;
/// Type: iof_data_array_t
pub const IOF_DATA_ARRAY: iof_data_type_t = 39;
/// Type: iof_rank_t
pub const IOF_PROC_RANK: iof_data_type_t = 40;
/// Type: iof_query_t
pub const IOF_QUERY: iof_data_type_t = 41;
/// Type: iof_iof_channel_t
pub const IOF_IOF_CHANNEL: iof_data_type_t = 45;
/// Type: iof_envar_t
pub const IOF_ENVAR: iof_data_type_t = 46;
/// Type: iof_regattr_t
pub const IOF_REGATTR: iof_data_type_t = 48;
/// Type: iof_nspace_t
pub const IOF_PROC_NSPACE: iof_data_type_t = 60;

/// Flag: the receiver must honour the info, or refuse the request.
pub const IOF_INFO_REQD: iof_info_directives_t = 0x1;
/// Flag: the last info of an array. The library ignores it.
pub const IOF_INFO_ARRAY_END: iof_info_directives_t = 0x2;
/// Flag: a required info was honoured. The library ignores it.
pub const IOF_INFO_REQD_PROCESSED: iof_info_directives_t = 0x4;
/// Flag: the info qualifies another one. The library ignores it.
pub const IOF_INFO_QUALIFIER: iof_info_directives_t = 0x8;
/// Flag: the library does not free the value when it frees the info.
pub const IOF_INFO_PERSISTENT: iof_info_directives_t = 0x10;

/// No channels.
pub const IOF_FWD_NO_CHANNELS: iof_iof_channel_t = 0x0;
/// Standard input.
pub const IOF_FWD_STDIN_CHANNEL: iof_iof_channel_t = 0x1;
/// Standard output.
pub const IOF_FWD_STDOUT_CHANNEL: iof_iof_channel_t = 0x2;
/// Standard error.
pub const IOF_FWD_STDERR_CHANNEL: iof_iof_channel_t = 0x4;
/// Diagnostics, which a process writes to the descriptor in its environment variable
/// IOF_STDDIAG_FD.
pub const IOF_FWD_STDDIAG_CHANNEL: iof_iof_channel_t = 0x8;
/// All channels, including those of future versions. In iof_IOF_pull: all output channels.
pub const IOF_FWD_ALL_CHANNELS: iof_iof_channel_t = 0xff;

/// Unknown, because the process runs on another node.
pub const IOF_PROC_STATE_UNDEF: iof_proc_state_t = 0;
/// Being started.
pub const IOF_PROC_STATE_LAUNCH_UNDERWAY: iof_proc_state_t = 2;
/// Running.
pub const IOF_PROC_STATE_RUNNING: iof_proc_state_t = 5;
/// Ended with exit code 0.
pub const IOF_PROC_STATE_TERMINATED: iof_proc_state_t = 20;
/// Could not be started.
pub const IOF_PROC_STATE_FAILED_TO_START: iof_proc_state_t = 53;
/// Ended by a signal.
pub const IOF_PROC_STATE_ABORTED_BY_SIG: iof_proc_state_t = 54;
/// Ended with a non-zero exit code.
pub const IOF_PROC_STATE_TERM_NON_ZERO: iof_proc_state_t = 62;

/// Scope: not defined.
pub const IOF_SCOPE_UNDEF: iof_scope_t = 0;
/// Scope: processes on the same node.
pub const IOF_LOCAL: iof_scope_t = 1;
/// Scope: processes on other nodes.
pub const IOF_REMOTE: iof_scope_t = 2;
/// Scope: all processes.
pub const IOF_GLOBAL: iof_scope_t = 3;
/// Scope: the process itself.
pub const IOF_INTERNAL: iof_scope_t = 4;

/// Persistence: until it is deleted.
pub const IOF_PERSIST_INDEF: iof_persistence_t = 0;
/// Persistence: until it is read.
pub const IOF_PERSIST_FIRST_READ: iof_persistence_t = 1;
/// Persistence: until the process ends.
pub const IOF_PERSIST_PROC: iof_persistence_t = 2;
/// Persistence: until the application ends.
pub const IOF_PERSIST_APP: iof_persistence_t = 3;
/// Persistence: until the session ends.
pub const IOF_PERSIST_SESSION: iof_persistence_t = 4;
/// Persistence: invalid.
pub const IOF_PERSIST_INVALID: iof_persistence_t = 255;

/// Range: not defined.
pub const IOF_RANGE_UNDEF: iof_data_range_t = 0;
/// Range: the resource manager.
pub const IOF_RANGE_RM: iof_data_range_t = 1;
/// Range: the node.
pub const IOF_RANGE_LOCAL: iof_data_range_t = 2;
/// Range: the job.
pub const IOF_RANGE_NAMESPACE: iof_data_range_t = 3;
/// Range: the session.
pub const IOF_RANGE_SESSION: iof_data_range_t = 4;
/// Range: all processes.
pub const IOF_RANGE_GLOBAL: iof_data_range_t = 5;
/// Range: the processes that a directive names.
pub const IOF_RANGE_CUSTOM: iof_data_range_t = 6;
/// Range: the process itself.
pub const IOF_RANGE_PROC_LOCAL: iof_data_range_t = 7;
/// Range: invalid.
pub const IOF_RANGE_INVALID: iof_data_range_t = 255;
