//! The steps that continue with the answers of the capture thread.

use std::collections::BTreeSet;
use std::time::Instant;

use iof_capture::{RequestId, StreamAnswer, TargetId};

use crate::Core;
use crate::streams::awaited::Awaited;

impl Core {
    /// Continues with the answers of the capture thread: none if that thread has ended.
    pub(crate) fn stream_answered(
        &mut self,
        request: RequestId,
        answers: Vec<StreamAnswer<()>>,
        now: Instant,
    ) {
        match self.awaited.take(request) {
            Some(Awaited::Join { pull, readers }) => {
                let pulled = pull.as_ref().map(|(peer_id, pull)| (*peer_id, pull.handler));
                if let Some((peer_id, pull)) = pull {
                    self.request_done(peer_id);
                    self.answer_pull(peer_id, pull);
                }
                self.readers_joined(request, &readers, answers);
                if let Some((peer_id, handler)) = pulled {
                    self.report_ends(peer_id, handler);
                }
            }
            Some(Awaited::Push { peer_id, request, targets }) => {
                self.request_done(peer_id);
                let takes = |answer: &StreamAnswer<()>| matches!(answer, StreamAnswer::Takes(true));
                let takes = answers.iter().map(takes).chain(std::iter::repeat(false));
                let open = |(target, takes): (&TargetId, bool)| takes.then_some(*target);
                let open: BTreeSet<TargetId> = targets.iter().zip(takes).filter_map(open).collect();
                self.begin_push(peer_id, request, &targets, &open);
            }
            Some(Awaited::SlowTargets(request)) => {
                self.request_done(request.peer_id);
                let lagging = answers.into_iter().find_map(|answer| match answer {
                    StreamAnswer::Lagging(lagging) => lagging,
                    _ => None,
                });
                self.slow_targets_known(request, lagging);
            }
            Some(Awaited::Counters(streams)) => self.counted(request, &streams, answers, now),
            Some(Awaited::LogStep { step, stream }) => {
                let result = self.output_logged(stream, &answers);
                self.log_answered(step, result);
            }
            None => {}
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests;
