//! The removal of ranks whose job failed to start.

use iof_capture::SourceId;
use iof_proto::Nspace;

use crate::Core;
use crate::effects::{Command, HandleOp};
use crate::jobs::job::RankState;

impl Core {
    /// Removes all ranks from a job that failed to start, so that its name is free. Their streams
    /// are closed at once, and forgotten when they are complete. The capture thread reaps the
    /// processes, whose exits are not used.
    pub fn withdraw_ranks(&mut self, nspace: &Nspace) {
        let ranks = self.jobs.take_ranks(nspace);
        self.graces.remove(&ranks.iter().flat_map(RankState::streams).copied().collect());
        for rank in ranks {
            self.remove_rank(&rank);
            for &source in rank.streams() {
                let Some(stream) = self.streams.get_mut(&source) else { absent!("stream", continue) };
                if stream.withdraw() {
                    self.forget_withdrawn(source);
                } else {
                    self.effects.commands.push(Command::Close(source));
                }
            }
        }
    }

    /// Forgets the process and the stdin of a rank, if it is local.
    pub(crate) fn remove_rank(&mut self, rank: &RankState) {
        self.effects.handles.extend(rank.process().map(HandleOp::RemoveRank));
        let target = rank.target().filter(|_| rank.stdin_unavailable(true).is_none());
        self.effects.commands.extend(target.map(Command::Shut));
    }

    /// Forgets a complete stream of a rank that was removed.
    pub(crate) fn forget_withdrawn(&mut self, source: SourceId) {
        self.release_backlog(&[source]);
        self.forget_stream(source);
        self.shed_unread();
        self.queries.streams_changed();
    }
}
