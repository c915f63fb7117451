//! Status codes, with the numbers of PMIx.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How an operation went: a `pmix_status_t`.
///
/// Numbers that this build has no name for are carried as they are, so that a host may answer
/// with any status PMIx has or will have.
///
/// ```
/// use iof_proto::Status;
/// assert_eq!(Status::ERR_NOT_FOUND.to_string(), "PMIX_ERR_NOT_FOUND (-46)");
/// assert_eq!(Status(-9999).to_string(), "PMIx status -9999");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Status(pub i32);

/// Defines each constant once, and from the same line the name that [`Status::name`] gives back.
macro_rules! statuses {
    ($($(#[$doc:meta])+ $name:ident = $code:literal;)+) => {
        impl Status {
            $($(#[$doc])+ pub const $name: Status = Status($code);)+

            /// The name of the constant as PMIx spells it, or `None` for a number that has none here.
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
    /// It worked.
    SUCCESS = 0;
    /// The peer may not do this.
    ERR_NO_PERMISSIONS = -23;
    /// It was not answered in time.
    ERR_TIMEOUT = -24;
    /// There is nobody to ask: not connected, or the engine is gone.
    ERR_UNREACH = -25;
    /// The request makes no sense.
    ERR_BAD_PARAM = -27;
    /// Something is in the way that may pass: try again.
    ERR_RESOURCE_BUSY = -28;
    /// A limit is reached.
    ERR_OUT_OF_RESOURCE = -29;
    /// None of what was asked for is known.
    ERR_NOT_FOUND = -46;
    /// The request makes sense but is not offered, such as a pull of stdin.
    ERR_NOT_SUPPORTED = -47;
    /// Some of what was asked for is known.
    ERR_PARTIAL_SUCCESS = -52;
    /// It is not to be had now.
    ERR_NOT_AVAILABLE = -64;
    /// A job has ended, with exit code 0.
    EVENT_JOB_END = -145;
    /// It worked at once; no callback will follow.
    OPERATION_SUCCEEDED = -157;
    /// Forwarding itself failed.
    ERR_IOF_FAILURE = -172;
    /// The stream is complete: nothing will follow.
    ERR_IOF_COMPLETE = -173;
    /// A signal ended the process of a job that failed first.
    ERR_JOB_ABORTED_BY_SIG = -184;
    /// A process of a job ended with another exit code than 0, or nobody knows how.
    ERR_JOB_NON_ZERO_TERM = -187;
    /// A job has started.
    EVENT_JOB_START = -191;
    /// Nobody could do it (RFC0032). PMIx has no number for it: this one is ours, outside of PMIx's.
    ERR_OPERATION_FAILED = -3331;
    /// Taken, but send no more until told.
    ERR_IOF_XOFF = -405;
}

impl Status {
    /// Some could do it, others not (RFC0032). PMIx has no number of its own for it.
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
