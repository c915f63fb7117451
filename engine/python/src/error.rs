//! The exception of engine errors.

use iof::RunError;
use iof::engine::{AdoptError, LaunchError, StartError};
use iof::nodes::RemoteStartError;
use iof::proto::rendezvous::{FindError, SearchNames};
use iof::proto::{Failure, Status};
use iof::tool::{AttachError, LostError, RequestError};
use pyo3::prelude::*;

pyo3::create_exception!(
    iof,
    Error,
    pyo3::exceptions::PyException,
    "The engine refused a request, ended, or could not be found. `status` is the number of PMIx."
);

/// Creates the exception. Needs no GIL.
pub fn error(status: Status, text: impl ToString) -> PyErr {
    let error = Error::new_err(text.to_string());
    // A failure here is a lack of memory; the exception then has its text only.
    let _ = Python::attach(|py| error.value(py).setattr("status", status.0));
    error
}

/// The exception of an error of a library.
pub struct Raised(PyErr);

impl From<Raised> for PyErr {
    fn from(Raised(error): Raised) -> PyErr {
        error
    }
}

impl From<PyErr> for Raised {
    fn from(error: PyErr) -> Raised {
        Raised(error)
    }
}

impl From<std::io::Error> for Raised {
    fn from(error: std::io::Error) -> Raised {
        Raised(error.into())
    }
}

impl From<Failure> for Raised {
    fn from(failure: Failure) -> Raised {
        Raised(error(failure.status, failure.reason))
    }
}

impl From<RequestError> for Raised {
    fn from(failed: RequestError) -> Raised {
        match failed {
            RequestError::Denied(failure) => failure.into(),
            RequestError::Lost(lost) => lost.into(),
            other => Raised(error(Status::ERR_BAD_PARAM, other)),
        }
    }
}

/// The arguments of `iof.attach` that select an engine.
const ARGUMENTS: SearchNames =
    SearchNames { pid: "pid", nspace: "job", server: "socket", directory: "directory" };

impl From<FindError> for Raised {
    fn from(failed: FindError) -> Raised {
        Raised(error(Status::ERR_NOT_FOUND, failed.message(&ARGUMENTS)))
    }
}

impl From<AttachError> for Raised {
    fn from(failed: AttachError) -> Raised {
        let status = match failed {
            AttachError::Find(failed) => return failed.into(),
            AttachError::Refused { status, .. } => status,
            AttachError::Silent { .. } => Status::ERR_TIMEOUT,
            AttachError::Foreign { .. } => Status::ERR_NO_PERMISSIONS,
            AttachError::Lost(_) => Status::ERR_LOST_CONNECTION,
            _ => Status::ERR_UNREACH,
        };
        Raised(error(status, failed))
    }
}

/// Makes errors of one status exceptions.
macro_rules! raised {
    ($($error:ty => $status:ident),+) => { $(
        impl From<$error> for Raised {
            fn from(failed: $error) -> Raised {
                Raised(error(Status::$status, failed))
            }
        }
    )+ };
}
raised!(
    LostError => ERR_LOST_CONNECTION,
    StartError => ERR_INIT,
    LaunchError => ERR_JOB_FAILED_TO_LAUNCH,
    AdoptError => ERR_JOB_FAILED_TO_LAUNCH,
    RemoteStartError => ERR_JOB_FAILED_TO_LAUNCH,
    RunError => ERROR
);
