//! The reports of ranks about MPI, in any protocol.

use std::time::Instant;

use iof_capture::ProcessId;
use iof_proto::{MpiEvent, Rank};

use crate::Core;
use crate::ids::JobId;
use crate::jobs::job::MpiPhase;

impl Core {
    /// Returns the job and the rank of a process that has not exited.
    pub fn rank_of(&self, process: ProcessId) -> Option<(JobId, Rank)> {
        self.jobs.rank_of(process)
    }

    /// Notes a report of a rank. An abort ends the job at once, before the exit of its rank can
    /// complete the job.
    pub(crate) fn mpi_event(&mut self, job: &JobId, rank: Rank, event: MpiEvent, now: Instant) {
        let Some(state) = self.job_mut(job) else { return };
        if state.pass_on(rank, event) {
            return;
        }
        let phase = match event {
            MpiEvent::Initialized => MpiPhase::Inside,
            MpiEvent::Finalized => MpiPhase::Finalized,
            MpiEvent::Aborted { code } => {
                state.aborted(rank, code);
                self.jobs.schedule_early_end(&job.nspace, now);
                return self.time_passed(now);
            }
        };
        state.note_mpi(rank, phase);
        // A rank may have exited that this one waits for in MPI_Init.
        self.jobs.schedule_early_end(&job.nspace, now);
    }
}
