//! The numbers, with PMIx's names and values. In C, their names begin with `IOF_`. The comment of a
//! number that PMIx lacks calls it an extension of iof.
//!
//! The constants of the header and the texts of the `_string` functions come from these tables.

pub use iof_proto::attribute::data_type::*;
pub use iof_proto::names::CHANNELS;
use iof_proto::numbers;
pub use iof_proto::numbers::Number;

use crate::ffi::types::{
    iof_data_range_t, iof_info_directives_t, iof_persistence_t, iof_proc_state_t, iof_rank_t, iof_scope_t,
};

/// All tables, in the order of the header.
pub static NUMBERS: [&[Number]; 8] =
    [RANKS, DATA_TYPES, INFO_FLAGS, CHANNELS, PROC_STATES, SCOPES, PERSISTENCES, DATA_RANGES];

numbers! {
    /// The special ranks.
    RANKS: iof_rank_t;

    /// No rank. As the source of output: messages that were logged for a job as a whole.
    PMIX_RANK_UNDEF = 4294967295;
    /// All ranks of a job.
    PMIX_RANK_WILDCARD = 4294967294;
}

numbers! {
    /// The flags of infos.
    INFO_FLAGS: iof_info_directives_t;

    /// Flag: the receiver must honour the info, or refuse the request.
    PMIX_INFO_REQD = 0x1;
    /// Flag: the last info of an array. The library ignores it.
    PMIX_INFO_ARRAY_END = 0x2;
    /// Flag: a required info was honoured. The library ignores it.
    PMIX_INFO_REQD_PROCESSED = 0x4;
    /// Flag: the info qualifies another one. The library ignores it.
    PMIX_INFO_QUALIFIER = 0x8;
    /// Flag: the library does not free the value when it frees the info.
    PMIX_INFO_PERSISTENT = 0x10;
}

numbers! {
    /// The states of processes.
    PROC_STATES: iof_proc_state_t;

    /// Unknown, because the process runs on another node.
    PMIX_PROC_STATE_UNDEF = 0;
    /// Being started.
    PMIX_PROC_STATE_LAUNCH_UNDERWAY = 2;
    /// Running.
    PMIX_PROC_STATE_RUNNING = 5;
    /// Ended with exit code 0.
    PMIX_PROC_STATE_TERMINATED = 20;
    /// Could not be started.
    PMIX_PROC_STATE_FAILED_TO_START = 53;
    /// Ended by a signal.
    PMIX_PROC_STATE_ABORTED_BY_SIG = 54;
    /// Ended with a non-zero exit code.
    PMIX_PROC_STATE_TERM_NON_ZERO = 62;

    declared:
        PMIX_PROC_STATE_PREPPED = 1, PMIX_PROC_STATE_RESTART = 3, PMIX_PROC_STATE_TERMINATE = 4,
        PMIX_PROC_STATE_CONNECTED = 6, PMIX_PROC_STATE_UNTERMINATED = 15, PMIX_PROC_STATE_ERROR = 50,
        PMIX_PROC_STATE_KILLED_BY_CMD = 51, PMIX_PROC_STATE_ABORTED = 52, PMIX_PROC_STATE_TERM_WO_SYNC = 55,
        PMIX_PROC_STATE_COMM_FAILED = 56, PMIX_PROC_STATE_SENSOR_BOUND_EXCEEDED = 57,
        PMIX_PROC_STATE_CALLED_ABORT = 58, PMIX_PROC_STATE_HEARTBEAT_FAILED = 59,
        PMIX_PROC_STATE_MIGRATING = 60, PMIX_PROC_STATE_CANNOT_RESTART = 61,
        PMIX_PROC_STATE_FAILED_TO_LAUNCH = 63;
}

numbers! {
    /// The scopes, with PMIx's descriptions.
    SCOPES: iof_scope_t;

    /// Scope: not defined.
    PMIX_SCOPE_UNDEF = 0 => "UNDEFINED";
    /// Scope: processes on the same node.
    PMIX_LOCAL = 1 => "SHARE ON LOCAL NODE ONLY";
    /// Scope: processes on other nodes.
    PMIX_REMOTE = 2 => "SHARE ON REMOTE NODES ONLY";
    /// Scope: all processes.
    PMIX_GLOBAL = 3 => "SHARE ACROSS ALL NODES";
    /// Scope: the process itself.
    PMIX_INTERNAL = 4 => "STORE INTERNALLY";
}

numbers! {
    /// The persistences, with PMIx's descriptions.
    PERSISTENCES: iof_persistence_t;

    /// Persistence: until it is deleted.
    PMIX_PERSIST_INDEF = 0 => "INDEFINITE";
    /// Persistence: until it is read.
    PMIX_PERSIST_FIRST_READ = 1 => "DELETE ON FIRST ACCESS";
    /// Persistence: until the process ends.
    PMIX_PERSIST_PROC = 2 => "RETAIN UNTIL PUBLISHING PROCESS TERMINATES";
    /// Persistence: until the application ends.
    PMIX_PERSIST_APP = 3 => "RETAIN UNTIL APPLICATION OF PUBLISHING PROCESS TERMINATES";
    /// Persistence: until the session ends.
    PMIX_PERSIST_SESSION = 4 => "RETAIN UNTIL ALLOCATION OF PUBLISHING PROCESS TERMINATES";
    /// Persistence: invalid.
    PMIX_PERSIST_INVALID = 255 => "INVALID";
}

numbers! {
    /// The data ranges, with PMIx's descriptions.
    DATA_RANGES: iof_data_range_t;

    /// Range: not defined.
    PMIX_RANGE_UNDEF = 0 => "UNDEFINED";
    /// Range: the resource manager.
    PMIX_RANGE_RM = 1 => "INTENDED FOR HOST RESOURCE MANAGER ONLY";
    /// Range: the node.
    PMIX_RANGE_LOCAL = 2 => "AVAIL ON LOCAL NODE ONLY";
    /// Range: the job.
    PMIX_RANGE_NAMESPACE = 3 => "AVAIL TO PROCESSES IN SAME JOB ONLY";
    /// Range: the session.
    PMIX_RANGE_SESSION = 4 => "AVAIL TO PROCESSES IN SAME ALLOCATION ONLY";
    /// Range: all processes.
    PMIX_RANGE_GLOBAL = 5 => "AVAIL TO ANYONE WITH AUTHORIZATION";
    /// Range: the processes that a directive names.
    PMIX_RANGE_CUSTOM = 6 => "AVAIL AS SPECIFIED IN DIRECTIVES";
    /// Range: the process itself.
    PMIX_RANGE_PROC_LOCAL = 7 => "AVAIL ON LOCAL PROC ONLY";
    /// Range: invalid.
    PMIX_RANGE_INVALID = 255 => "INVALID";
}
