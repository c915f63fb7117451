//! The failure of a request.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::status::Status;

/// Characters of a wrong text that a message shows.
const MAX_SHOWN: usize = 100;

/// Returns the beginning of a wrong text, for a message.
pub fn shown(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(MAX_SHOWN) {
        None => text.into(),
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()).into(),
    }
}

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
