//! What a launcher does: it starts jobs, delivers output of remote ranks, and removes jobs.

use std::time::Duration;

use iof_capture::{NewStream, ProcessId, SourceId, TargetId};
use iof_proto::{Channel, Directives, Nspace, Proc, Rank, StdinUnavailable};
use iof_shm_ring::Stream;

use super::SimulatedEngine;
use crate::KillOnBadExit;
use crate::core::calls::{self, DeliveredBytes, DeliveredEnd, NewRank};
use crate::core::ids::JobId;
use crate::core::job::{CHANNELS, JobState, Launching, SignalReach};
use crate::early_end::EarlyEndPolicy;

/// A job that begins.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// Its name.
    pub nspace: Nspace,
    /// The number of its local ranks.
    pub ranks: u32,
    /// Whether it has remote ranks, too.
    pub elsewhere: bool,
    /// How long streams may stay open after the exit of their rank.
    pub grace: Option<Duration>,
    /// The time that it may take.
    pub timeout: Option<Duration>,
    /// Whether the failure of a rank ends it.
    pub kill_on_bad_exit: KillOnBadExit,
    /// The options of its streams.
    pub directives: Directives,
}

/// Whether a rank's stdin can be pushed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankStdin {
    /// It can.
    Open,
    /// Only the embedder's own tools can.
    Own,
    /// It is not open.
    Closed,
}

/// A rank that was added, as the capture is to know it.
#[derive(Debug)]
pub struct AddedRank {
    /// Its process.
    pub process: ProcessId,
    /// Its stdin.
    pub target: TargetId,
    /// Its streams: stdout, stderr and stddiag.
    pub sources: Vec<(SourceId, NewStream)>,
}

impl SimulatedEngine {
    /// Reserves the name of a job. Returns the number of its run, unless the name is taken.
    pub fn begin(&mut self, new: &NewJob) -> Option<u64> {
        let NewJob { nspace, ranks, elsewhere, grace, timeout, kill_on_bad_exit, directives } = new;
        let kill_wait = Duration::from_secs(1);
        let new = calls::NewJob {
            nspace,
            grace: *grace,
            early_end_policy: EarlyEndPolicy::new(*kill_on_bad_exit, kill_wait, *timeout, self.now),
            directives,
            elsewhere: *elsewhere,
            launching: (0..*ranks).map(|rank| (Rank(rank), Launching::default())).collect(),
        };
        Some(self.core.begin_job(new)?.run)
    }

    /// Adds a rank that runs.
    pub fn add_rank(
        &mut self,
        proc: &Proc,
        stdin: RankStdin,
        streams: [Stream; CHANNELS.len()],
    ) -> Option<AddedRank> {
        let new = NewRank {
            rank: proc.rank,
            signals: SignalReach::Process,
            stdin_unavailable: (stdin == RankStdin::Closed).then_some(StdinUnavailable::NotOpen),
            own_stdin: stdin == RankStdin::Own,
        };
        let added = self.core.register_rank(&proc.nspace, new).ok()?;
        let sources = added.streams.into_iter().zip(streams);
        let sources = sources.map(|((id, first), stream)| {
            let first = self.memory.with_pages(first)?;
            Some((id, NewStream::new(stream, first)))
        });
        let sources: Option<Vec<_>> = sources.collect();
        Some(AddedRank { process: added.process, target: added.target, sources: sources? })
    }

    /// Records that all local ranks of a job were added.
    pub fn all_registered(&mut self, nspace: &Nspace) {
        self.core.all_registered(nspace, self.now);
    }

    /// Delivers output of a remote rank. Returns whether it was accepted.
    pub fn deliver(&mut self, from: &Proc, channel: Channel, bytes: Vec<u8>, complete: bool) -> bool {
        let end = complete.then_some(DeliveredEnd::Complete);
        let bytes = DeliveredBytes { from, channel, bytes, offset: None, time: None, end };
        self.core.deliver(bytes, Box::new(|| {})).is_ok()
    }

    /// Ends the remote part of a job.
    pub fn end_job(&mut self, nspace: &Nspace) {
        if self.core.job_named(nspace).is_some() {
            self.core.end_job(nspace, None);
        }
    }

    /// Releases the backlog of a job.
    pub fn release_backlog(&mut self, nspace: &Nspace) {
        let Some(run) = self.core.job_named(nspace).map(JobState::run) else { return };
        self.core.release_backlog_of(&JobId { nspace: nspace.clone(), run });
    }

    /// Removes a job that has ended. Returns whether it was removed.
    pub fn remove(&mut self, nspace: &Nspace) -> bool {
        self.core.remove_job(nspace).is_some()
    }

    /// Returns whether a job has ended; `None` if it is not in the tables.
    pub fn job(&self, nspace: &Nspace) -> Option<bool> {
        self.core.job_named(nspace).map(JobState::has_ended)
    }
}
