//! Events of the capture thread.

use std::io;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Instant;

use iof_capture::{End, ProcessId, SourceId};
use iof_proto::{Proc, UsedResources};

use crate::Core;
use crate::effects::{Command, HandleOp};
use crate::ids::{JobId, StreamName};
use crate::jobs::exit::Exit;
use crate::notice::Notice;

impl Core {
    /// Notes that a stream is complete, and the reason if it did not reach its end of file.
    pub(crate) fn completed(&mut self, stream: SourceId, end: &End) {
        let Some(state) = self.streams.get(&stream) else { absent!("stream", return) };
        if state.is_withdrawn() {
            return self.forget_withdrawn(stream);
        }
        let name = Arc::clone(state.name());
        let StreamName { source, channel, logged, .. } = &*name;
        self.queries.streams_changed();
        // A complete stream keeps its bytes without the backlog holder, so the slot is free for
        // others.
        self.release_backlog(&[stream]);
        if *logged {
            self.logged_all(stream, &source.nspace);
            return self.announce_end(&source.nspace);
        }
        if self.delivery_completed(stream, &source.nspace) {
            return self.announce_end(&source.nspace);
        }
        let Some(job) = self.jobs.get_mut(&source.nspace) else { absent!("job", return) };
        let was_cut_off = job.stream_completed(source.rank, *channel, matches!(end, End::Closed));
        match end {
            End::Closed if was_cut_off => {
                self.effects.notices.push(Notice::CutOff(Arc::clone(&name)));
            }
            End::EndOfFile | End::Closed => {}
            End::Error(error) => {
                let (stream, error) = (Arc::clone(&name), error.to_string());
                self.effects.notices.push(Notice::StreamFailed { stream, error });
            }
        }
        self.finish_further(source);
        self.announce_end(&source.nspace);
    }

    /// Completes the further streams of a rank that has exited, with what was written to them, once its
    /// stdout and stderr are complete. A daemon may hold them open for ever without knowing.
    fn finish_further(&mut self, proc: &Proc) {
        if let Some(rank) = self.jobs.rank(proc) {
            self.effects.commands.extend(rank.left_open().map(Command::Finish));
        }
    }

    /// Notes that the process of a local rank has exited, and what it has used.
    pub(crate) fn exited(
        &mut self,
        process: ProcessId,
        (status, used): (io::Result<ExitStatus>, Option<UsedResources>),
        now: Instant,
    ) {
        let Some(proc) = self.jobs.take_exited(process) else { return };
        let Some(job) = self.jobs.get_mut(&proc.nspace) else { absent!("job", return) };
        let exit = status.map(Exit::Status).unwrap_or_else(|error| {
            self.effects.notices.push(Notice::ExitUnknown { source: proc.clone(), error });
            Exit::Unknown
        });
        let id = JobId { nspace: proc.nspace.clone(), run: job.run() };
        job.exited(proc.rank, (exit, used), now);
        self.effects.handles.push(HandleOp::HangUp(process));
        if let (Some(grace), Some(rank)) = (job.grace(), job.rank(proc.rank)) {
            self.graces.begin(now, grace, rank.streams().to_vec());
        }
        self.finish_further(&proc);
        self.jobs.schedule_early_end(&proc.nspace, now);
        self.announce_ranks(&proc.nspace);
        self.announce_end(&proc.nspace);
        self.shut_if_unread(&proc);
        self.withdraw_published_by(&id, proc.rank);
    }
}
