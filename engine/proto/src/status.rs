//! Status codes, with the numbers of PMIx.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::numbers::Number;

/// The status of an operation: a `pmix_status_t`.
///
/// A number that has no name in this build is passed on unchanged, so that a host can answer with
/// any present or future status of PMIx.
///
/// ```
/// use iof_proto::Status;
/// assert_eq!(Status::ERR_NOT_FOUND.to_string(), "PMIX_ERR_NOT_FOUND (-46)");
/// assert_eq!(Status(-9999).to_string(), "PMIx status -9999");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Status(pub i32);

/// Defines the constants, and the table of all statuses, see [`numbers!`](crate::numbers!).
macro_rules! statuses {
    (
        $($(#[doc = $doc:literal])+ $name:ident = $code:literal;)+
        declared: $($declared:ident = $declared_code:literal),+;
        named: $($named:ident = $named_code:literal),+;
    ) => {
        impl Status {
            $($(#[doc = $doc])+ pub const $name: Status = Status($code);)+
        }

        /// The statuses that have a name in this build. Their texts are the names in PMIx.
        pub static STATUSES: &[Number] = &[
            $(statuses!(@row $name = $code, Some(concat!($($doc),+))),)+
            $(statuses!(@row $declared = $declared_code, Some("")),)+
            $(statuses!(@row $named = $named_code, None),)+
        ];
    };
    (@row $name:ident = $code:literal, $doc:expr) => {
        crate::numbers!(@row $name = $code, $doc, concat!("PMIX_", stringify!($name)))
    };
}

statuses! {
    /// The operation succeeded.
    SUCCESS = 0;
    /// An internal error of the library.
    ERROR = -1;
    /// A job of this name, or an engine in this process, exists already.
    ERR_EXISTS = -11;
    /// The function would block, and was called in a callback.
    ERR_WOULD_BLOCK = -15;
    /// The library does not support the data type.
    ERR_UNKNOWN_DATA_TYPE = -16;
    /// A value has the wrong type.
    ERR_TYPE_MISMATCH = -18;
    /// The engine or its launcher does not permit the request.
    ERR_NO_PERMISSIONS = -23;
    /// The request was not answered in time.
    ERR_TIMEOUT = -24;
    /// No engine can be reached, the connection is closed, the engine has ended, or the library was
    /// finalized meanwhile.
    ERR_UNREACH = -25;
    /// A parameter of the request is invalid.
    ERR_BAD_PARAM = -27;
    /// A resource is busy: too many requests are pending, or the job still runs. The request may
    /// succeed later.
    ERR_RESOURCE_BUSY = -28;
    /// A limit is reached, or memory or descriptors are exhausted.
    ERR_OUT_OF_RESOURCE = -29;
    /// The library is not initialized for this function, or the process is a forked child.
    ERR_INIT = -31;
    /// Out of memory.
    ERR_NOMEM = -32;
    /// The job, process, handler or key does not exist.
    ERR_NOT_FOUND = -46;
    /// The request is well-formed but not supported, such as a pull of stdin.
    ERR_NOT_SUPPORTED = -47;
    /// Only a part of the request succeeded, or only some of the requested items were found.
    ERR_PARTIAL_SUCCESS = -52;
    /// Another process has published a value under the key.
    ERR_DUPLICATE_KEY = -53;
    /// There is nothing to convert.
    ERR_EMPTY = -60;
    /// Event: the connection to the engine was lost.
    ERR_LOST_CONNECTION = -61;
    /// Not available in this state.
    ERR_NOT_AVAILABLE = -64;
    /// Event: a job has ended. As the status of a job: it has ended, and no process of it failed.
    EVENT_JOB_END = -145;
    /// The operation succeeded immediately. As the result of a callback of iof_server_module_t: the
    /// request is granted, and the callback does not call cbfunc.
    OPERATION_SUCCEEDED = -157;
    /// I/O forwarding failed. As the result of a push: no target has received all bytes.
    ERR_IOF_FAILURE = -172;
    /// The stream is complete, or the stdin of the target is closed.
    ERR_IOF_COMPLETE = -173;
    /// A job could not be started.
    ERR_JOB_FAILED_TO_LAUNCH = -181;
    /// Status of a job: it has ended, and a signal ended the process that failed first.
    ERR_JOB_ABORTED_BY_SIG = -184;
    /// Status of a job: it has ended, and the process that failed first ended with a non-zero or
    /// unknown exit code.
    ERR_JOB_NON_ZERO_TERM = -187;
    /// Event: a job has started. As the status of a job: it has not ended yet.
    EVENT_JOB_START = -191;
    /// The engine accepts no bytes of this stream now, because too many are waiting. Deliver the
    /// same bytes again later. An extension of iof.
    ERR_IOF_XOFF = -405;
    /// Every attempt failed, such as that to log a message to each channel (RFC0032). An extension
    /// of iof: PMIx does not define a number for this status, and this number is outside PMIx's
    /// range.
    ERR_OPERATION_FAILED = -3331;

    declared:
        ERR_SILENT = -2, DEBUGGER_RELEASE = -3, ERR_PROC_RESTART = -4, ERR_PROC_CHECKPOINT = -5,
        ERR_PROC_MIGRATE = -6, ERR_PROC_ABORTED = -7, ERR_PROC_REQUESTED_ABORT = -8, ERR_PROC_ABORTING = -9,
        ERR_SERVER_FAILED_REQUEST = -10, ERR_INVALID_CRED = -12, ERR_HANDSHAKE_FAILED = -13,
        ERR_READY_FOR_HANDSHAKE = -14, ERR_PROC_ENTRY_NOT_FOUND = -17, ERR_UNPACK_INADEQUATE_SPACE = -19,
        ERR_UNPACK_FAILURE = -20, ERR_PACK_FAILURE = -21, ERR_PACK_MISMATCH = -22, ERR_IN_ERRNO = -26,
        ERR_DATA_VALUE_NOT_FOUND = -30, ERR_INVALID_ARG = -33, ERR_INVALID_KEY = -34,
        ERR_INVALID_KEY_LENGTH = -35, ERR_INVALID_VAL = -36, ERR_INVALID_VAL_LENGTH = -37,
        ERR_INVALID_LENGTH = -38, ERR_INVALID_NUM_ARGS = -39, ERR_INVALID_ARGS = -40,
        ERR_INVALID_NUM_PARSED = -41, ERR_INVALID_KEYVALP = -42, ERR_INVALID_SIZE = -43,
        ERR_INVALID_NAMESPACE = -44, ERR_SERVER_NOT_AVAIL = -45, ERR_NOT_IMPLEMENTED = -48,
        ERR_COMM_FAILURE = -49, ERR_UNPACK_READ_PAST_END_OF_BUFFER = -50,
        ERR_CONFLICTING_CLEANUP_DIRECTIVES = -51, PROCESS_SET_DEFINE = -55,
        PROCESS_SET_DELETE = -56, READY_FOR_DEBUG = -58, ERR_PARAM_VALUE_NOT_SUPPORTED = -59,
        ERR_EXISTS_OUTSIDE_SCOPE = -62, ERR_FATAL = -63, ERR_VALUE_OUT_OF_BOUNDS = -65,
        ERR_FILE_OPEN_FAILURE = -67, ERR_FILE_READ_FAILURE = -68, ERR_FILE_WRITE_FAILURE = -69,
        ERR_SYS_LIMITS_PIPES = -70, ERR_SYS_LIMITS_CHILDREN = -71, ERR_PIPE_SETUP_FAILURE = -72,
        ERR_EXE_NOT_ACCESSIBLE = -73, ERR_JOB_WDIR_NOT_ACCESSIBLE = -74, ERR_SYS_LIMITS_FILES = -75,
        ERR_LOST_CONNECTION_TO_SERVER = -101, ERR_LOST_PEER_CONNECTION = -102,
        ERR_LOST_CONNECTION_TO_CLIENT = -103, QUERY_PARTIAL_SUCCESS = -104, NOTIFY_ALLOC_COMPLETE = -105,
        JCTRL_CHECKPOINT = -106, JCTRL_CHECKPOINT_COMPLETE = -107, JCTRL_PREEMPT_ALERT = -108,
        MONITOR_HEARTBEAT_ALERT = -109, MONITOR_FILE_ALERT = -110, PROC_TERMINATED = -111,
        ERR_INVALID_TERMINATION = -112, ERR_EVENT_REGISTRATION = -144, ERR_UPDATE_ENDPOINTS = -146,
        PROC_HAS_CONNECTED = -149, CONNECT_REQUESTED = -150, LAUNCHER_READY = -155,
        OPERATION_IN_PROGRESS = -156, ERR_INVALID_OPERATION = -158, ERR_REPEAT_ATTR_REGISTRATION = -171,
        LAUNCH_COMPLETE = -174, ERR_JOB_APP_NOT_EXECUTABLE = -177, ERR_JOB_NO_EXE_SPECIFIED = -178,
        ERR_JOB_FAILED_TO_MAP = -179, ERR_JOB_CANCELED = -180, ERR_JOB_ABORTED = -182,
        ERR_JOB_KILLED_BY_CMD = -183, ERR_JOB_TERM_WO_SYNC = -185, ERR_JOB_SENSOR_BOUND_EXCEEDED = -186,
        ERR_JOB_ALLOC_FAILED = -188, ERR_JOB_ABORTED_BY_SYS_EVENT = -189, ERR_JOB_EXE_NOT_FOUND = -190,
        EVENT_SESSION_START = -192, EVENT_SESSION_END = -193, ERR_PROC_TERM_WO_SYNC = -200,
        EVENT_PROC_TERMINATED = -201, EVENT_SYS_BASE = -230, EVENT_NODE_DOWN = -231,
        EVENT_NODE_OFFLINE = -232, ERR_JOB_WDIR_NOT_FOUND = -233, ERR_JOB_INSUFFICIENT_RESOURCES = -234,
        ERR_JOB_SYS_OP_FAILED = -235, EVENT_SYS_OTHER = -330, EVENT_NO_ACTION_TAKEN = -331,
        EVENT_PARTIAL_ACTION_TAKEN = -332, EVENT_ACTION_DEFERRED = -333, EVENT_ACTION_COMPLETE = -334,
        ERR_PROC_KILLED_BY_CMD = -400, ERR_PROC_FAILED_TO_START = -401, ERR_PROC_ABORTED_BY_SIG = -402,
        ERR_PROC_SENSOR_BOUND_EXCEEDED = -403, ERR_EXIT_NONZERO_TERM = -404;

    named:
        FABRIC_UPDATE_ENDPOINTS = -113, MODEL_DECLARED = -147, GDS_ACTION_COMPLETE = -148,
        MODEL_RESOURCES = -151, OPENMP_PARALLEL_ENTERED = -152, OPENMP_PARALLEL_EXITED = -153,
        GROUP_INVITED = -159, GROUP_LEFT = -160, GROUP_INVITE_ACCEPTED = -161, GROUP_INVITE_DECLINED = -162,
        GROUP_INVITE_FAILED = -163, GROUP_MEMBERSHIP_UPDATE = -164, GROUP_CONSTRUCT_ABORT = -165,
        GROUP_CONSTRUCT_COMPLETE = -166, GROUP_LEADER_SELECTED = -167, GROUP_LEADER_FAILED = -168,
        GROUP_CONTEXT_ID_ASSIGNED = -169, GROUP_MEMBER_FAILED = -170, FABRIC_UPDATED = -175,
        FABRIC_UPDATE_PENDING = -176;
}

impl Status {
    /// Some attempts failed (RFC0032). PMIx does not define a number of its own for this status.
    pub const ERR_PARTIAL_COMPLETION: Status = Status::ERR_PARTIAL_SUCCESS;

    /// Returns PMIx's name for the status, or `None` if it has no name in this build.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        STATUSES.iter().find(|row| row.value == self.0.into())?.text.to_str().ok()
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "PMIx status {}", self.0),
        }
    }
}
