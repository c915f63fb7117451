//! Status codes, with the numbers of PMIx.

use std::fmt;

use serde::{Deserialize, Serialize};

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

/// Defines each constant and the name that [`Status::name`] returns for it.
macro_rules! statuses {
    ($($(#[$doc:meta])+ $name:ident = $code:literal;)+) => {
        impl Status {
            $($(#[$doc])+ pub const $name: Status = Status($code);)+

            /// Returns PMIx's name for the status, or `None` if it has no name in this build.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Status::$name => Some(concat!("PMIX_", stringify!($name))),)+
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    /// The operation succeeded.
    SUCCESS = 0;
    /// The requester lacks the permission.
    ERR_NO_PERMISSIONS = -23;
    /// The request was not answered in time.
    ERR_TIMEOUT = -24;
    /// There is no connection, or the engine has ended.
    ERR_UNREACH = -25;
    /// A parameter of the request is invalid.
    ERR_BAD_PARAM = -27;
    /// A resource is busy; the request may succeed later.
    ERR_RESOURCE_BUSY = -28;
    /// A limit is reached (see [`limits`](crate::limits)), or memory or descriptors are exhausted.
    ERR_OUT_OF_RESOURCE = -29;
    /// None of the requested items exists.
    ERR_NOT_FOUND = -46;
    /// The request is well-formed but not supported, such as a pull of stdin.
    ERR_NOT_SUPPORTED = -47;
    /// Only a part of the request succeeded, or only some of the requested items were found.
    ERR_PARTIAL_SUCCESS = -52;
    /// The resource is not available now.
    ERR_NOT_AVAILABLE = -64;
    /// A job has ended, and no process of it failed.
    EVENT_JOB_END = -145;
    /// The operation succeeded immediately; no callback follows.
    OPERATION_SUCCEEDED = -157;
    /// Forwarding failed.
    ERR_IOF_FAILURE = -172;
    /// The stream is complete: no further bytes will follow.
    ERR_IOF_COMPLETE = -173;
    /// A job has ended, and a signal ended the process that failed first.
    ERR_JOB_ABORTED_BY_SIG = -184;
    /// A job has ended with an exit code other than 0, or with an unknown exit status.
    ERR_JOB_NON_ZERO_TERM = -187;
    /// A job has started. As the status of a job: it has not ended yet.
    EVENT_JOB_START = -191;
    /// Every attempt failed (RFC0032). PMIx does not define a number for this status; this number
    /// is outside PMIx's range.
    ERR_OPERATION_FAILED = -3331;
    /// The bytes were refused because too many are waiting. Deliver the same bytes again later.
    ERR_IOF_XOFF = -405;
}

impl Status {
    /// Some attempts failed (RFC0032). PMIx does not define a number of its own for this status.
    pub const ERR_PARTIAL_COMPLETION: Status = Status::ERR_PARTIAL_SUCCESS;
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "PMIx status {}", self.0),
        }
    }
}
