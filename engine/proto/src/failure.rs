//! The failure of a request.

use serde::{Deserialize, Serialize};

use crate::status::Status;

/// The failure of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{reason} ({status})")]
pub struct Failure {
    /// The kind of failure.
    pub status: Status,
    /// The reason, as text for the tool's user.
    pub reason: String,
}

impl Failure {
    /// Returns a failure of the kind `status`, with the reason as text for the tool's user.
    pub fn new(status: Status, reason: impl Into<String>) -> Failure {
        Failure { status, reason: reason.into() }
    }
}
