//! What the core answers to requests to push, and reports at the ends of pushes.

use iof_capture::PushId;
use iof_proto::{Failure, PushGranted, PushReport};

use super::{ConnectionId, SimulatedEngine};

/// The answer to a request to push.
#[derive(Debug)]
pub struct PushAnswer {
    /// The tool.
    pub tool: ConnectionId,
    /// The tool's number for its request.
    pub request: u32,
    /// The push, if it begins.
    pub result: Result<(PushId, PushGranted), Failure>,
}

impl PushAnswer {
    /// Returns the push that begins.
    pub fn push(&self) -> Option<PushId> {
        self.result.as_ref().ok().map(|(push, _)| *push)
    }
}

impl SimulatedEngine {
    /// Returns the answers to requests to push, and the reports of the pushes that have ended, since
    /// the last call. Tools may receive them much later.
    pub fn take_push_record(&mut self) -> (Vec<PushAnswer>, Vec<(PushId, PushReport)>) {
        let record = self.core.take_push_record();
        let answer = |(tool, request, result)| PushAnswer { tool, request, result };
        (record.answers.into_iter().map(answer).collect(), record.reports)
    }

    /// Returns whether files have run out at present.
    pub fn lacks_files(&self) -> bool {
        self.shortages.check_files().is_err()
    }
}
