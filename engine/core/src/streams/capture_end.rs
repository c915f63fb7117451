//! The end of the capture thread, after a failure of the kernel facility.
//!
//! Commands that were sent while the thread ended are discarded. So everything that waits for it
//! ends here: otherwise tools and threads of the embedder would wait for ever. The driver sends the
//! commands of an input before the next input, so none from before the end is queued here. The
//! streams remain, and tools can read them to their ends: later requests are performed on them.

use std::collections::BTreeSet;
use std::time::Instant;

use iof_capture::{PushEnd, PushId, SourceId, TargetId};
use iof_proto::Nspace;

use crate::Core;
use crate::effects::HandleOp;
use crate::pushes::push::Push;
use crate::streams::completion::Completion;
use crate::upcall::Upcall;

impl Core {
    /// Ends all that the capture thread has not ended: pushes, ranks, streams, deliveries and
    /// requests. It has reported all that it had done before.
    pub(crate) fn capture_ended(&mut self, now: Instant) {
        self.has_capture = false;
        self.end_local_pushes();
        self.effects.upcalls.extend(self.streams.take_callbacks().into_iter().map(Upcall::Taken));
        let running = self.jobs.capture_ended(now);
        self.effects.handles.extend(running.into_iter().map(HandleOp::HangUp));
        self.queries.streams_changed();
        // Before the tools are informed of streams that their registrations miss.
        for (peer_id, pull) in self.awaited.take_pulls() {
            self.request_done(peer_id);
            self.answer_pull(peer_id, pull);
        }
        let streams: Vec<SourceId> = self.streams.iter().map(|(source, _)| *source).collect();
        streams.iter().for_each(|source| self.complete_lost_stream(*source));
        for request in self.awaited.ids() {
            self.stream_answered(request, Vec::new(), now);
        }
        // Again: requests of the time at which the thread ended have failed.
        streams.into_iter().for_each(|source| self.send_last_generation(source));
        self.move_stranded();
        let jobs: Vec<Nspace> = self.jobs.iter().map(|(nspace, _)| nspace.clone()).collect();
        jobs.iter().for_each(|nspace| self.announce_end(nspace));
    }

    /// Returns which streams the driver keeps of those that the capture thread has left: not those
    /// that were removed while the thread ended, except those that a reader has not been moved to
    /// the end of.
    pub fn keeps(&self) -> impl Fn(SourceId) -> bool {
        let stranded: BTreeSet<SourceId> = self.stranded().map(|(_, _, reading)| reading.source).collect();
        move |source| self.streams.get(&source).is_some() || stranded.contains(&source)
    }

    /// Completes a stream that has not reached the capture thread: its readers miss it.
    fn complete_lost_stream(&mut self, source: SourceId) {
        let Some(stream) = self.streams.get(&source).filter(|stream| !stream.is_complete()) else {
            return;
        };
        if stream.is_withdrawn() {
            self.forget_withdrawn(source);
        } else {
            self.stream_completed(source, Completion { produced: 0, generation: 0 });
        }
    }

    /// Returns whether every stream is complete, so that the capture thread has nothing more to do
    /// for them.
    pub fn is_complete(&self) -> bool {
        self.streams.iter().all(|(_, stream)| stream.is_complete())
    }

    /// Ends all pushes at their local targets. How much each target took beyond the last report is
    /// unknown.
    fn end_local_pushes(&mut self) {
        let fed = |(push, state): (PushId, &Push)| {
            state.local_targets().map(|target| (push, target, state.freed())).collect::<Vec<_>>()
        };
        let fed: Vec<(PushId, TargetId, u64)> = self.pushes.iter().flat_map(fed).collect();
        fed.into_iter().for_each(|(push, target, freed)| self.fed(push, target, freed, PushEnd::Stopped));
    }
}
