//! The calls of the embedder. Each is an input of the core that is answered at once; its effects
//! are queued as those of [`Core::handle`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use iof_capture::{ProcessId, PushId, Signal, SourceBytes, SourceId, Stopped, StreamRequest, TargetId};
use iof_proto::{Channel, Directives, Failure, Log, LogReport, Node, Nspace, Proc, Rank, Status, ToTool};
use iof_shm_ring::{CreateError, InputState};

use crate::Core;
use crate::clients::client::{ClientProcess, Requester};
use crate::effects::{Command, HandleOp};
use crate::ids::{JobId, PageId};
use crate::jobs::early_end::{EarlyEndPolicy, EndCause};
use crate::jobs::job::{
    JobState, Launching, Place, RankState, Receivers, RemoteRanks, SignalReach, StdinAccess,
};
use crate::jobs::nodes::{NodeId, NodeReport};
use crate::streams::deliver_error::DeliverError;
use crate::streams::delivery::DeliveryState;
use crate::streams::options::StreamOptions;
use crate::streams::state::StreamState;
use crate::upcall::TakenCallback;

/// A job that begins.
pub struct NewJob<'a> {
    /// The name.
    pub nspace: &'a Nspace,
    /// The time for which streams may stay open after the exit of their rank.
    pub grace: Option<Duration>,
    /// The decision to end it early.
    pub early_end_policy: EarlyEndPolicy,
    /// The directives for its streams.
    pub directives: &'a Directives,
    /// Set if it also has remote ranks.
    pub elsewhere: bool,
    /// Another engine judges what its ranks do in MPI, and exchange: they are a part of its ranks.
    pub is_part: bool,
    /// The local ranks.
    pub launching: BTreeMap<Rank, Launching>,
    /// The other nodes on which all of these ranks are to be started; none if they are local.
    pub nodes: &'a [Node],
    /// The embedder's gating readers have the output of the other nodes in another way than by rings. A
    /// stream then has a ring while another tool reads it.
    pub is_direct: bool,
}

/// The ids of a registered rank at the capture.
pub struct RegisteredRank {
    /// In the order of [`Channel::OUTPUTS`], each with the request that is performed before its first byte.
    pub streams: [(SourceId, StreamRequest<PageId>); Channel::OUTPUTS.len()],
    /// Its process.
    pub process: ProcessId,
    /// Its stdin.
    pub target: TargetId,
}

/// Output of a remote rank.
pub struct DeliveredBytes<'a> {
    /// The rank.
    pub from: &'a Proc,
    /// The channel.
    pub channel: Channel,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Their position in the stream, if the embedder knows it.
    pub offset: Option<u64>,
    /// When they were read from their source, in nanoseconds since 1970.
    pub time: Option<u64>,
    /// The stdin of the rank when they were read, unless an agent has waited for the ends of lines since.
    pub input: Option<InputState>,
    /// The end of the stream after them, if it ends.
    pub end: Option<DeliveredEnd>,
}

/// The end of the stream of a remote rank.
#[derive(Clone, Copy)]
pub enum DeliveredEnd {
    /// Every byte was delivered, or is a gap.
    Complete,
    /// At least this number of further bytes is missing.
    Broken(u64),
}

/// Jobs and their local ranks.
impl Core {
    /// Reserves the name of a job whose local ranks are being launched.
    ///
    /// Returns `None` if the name is taken. A job that is known only through output delivered from
    /// other nodes does not take the name if the new job has ranks elsewhere, provided no rank
    /// occurs in both.
    pub fn begin_job(&mut self, new: NewJob<'_>) -> Option<JobId> {
        let NewJob {
            nspace,
            grace,
            early_end_policy,
            directives,
            elsewhere,
            is_part,
            launching,
            nodes,
            is_direct,
        } = new;
        let options = self.settings.options.under(directives);
        let job = JobState::new(grace, options, directives.forward);
        let job = job.launching_ranks(launching, early_end_policy);
        let job = if is_part { job.into_part() } else { job };
        let job = if elsewhere { job.with_remote_ranks() } else { job };
        let job = if nodes.is_empty() { job } else { job.on_nodes(nodes, is_direct) };
        let run = match self.jobs.get_mut(nspace) {
            Some(known) if known.is_remote_part_of(&job) => {
                known.add_local_part(job);
                known.run()
            }
            Some(_) => return None,
            None => self.add_job(nspace, |_| job).run(),
        };
        Some(JobId { nspace: nspace.clone(), run })
    }

    /// Returns the job `nspace`. If it is unknown, adds the one that `new` returns.
    fn add_job(&mut self, nspace: &Nspace, new: impl FnOnce(StreamOptions) -> JobState) -> &mut JobState {
        let (options, is_new) = (self.settings.options, self.jobs.get(nspace).is_none());
        let job = self.jobs.get_or_add(nspace, || new(options));
        if is_new {
            let id = JobId { nspace: nspace.clone(), run: job.run() };
            self.effects.handles.push(HandleOp::Announce(id));
        }
        job
    }

    /// Records the pid of a rank that is being started, and when it began.
    pub fn note_pid(&mut self, nspace: &Nspace, rank: Rank, pid: u32, began: SystemTime) {
        let Some(job) = self.jobs.get_mut(nspace) else { absent!("job", return) };
        job.note_pid(rank, pid, began);
    }

    /// Reserves the slots of the embedder's own gating readers for the streams of a local rank that
    /// is about to be started. [`Core::all_registered`] frees those that it has not used.
    ///
    /// # Errors
    /// Too little memory or too few slots are left.
    pub fn reserve_readers_of(&mut self, nspace: &Nspace, rank: Rank) -> Result<(), CreateError> {
        let Some(job) = self.jobs.get(nspace) else { absent!("job", return Ok(())) };
        let new = |channel| StreamState::of_job(job, Proc::new(nspace.clone(), rank), channel, false);
        Channel::OUTPUTS.map(new).iter().try_for_each(|new| self.reserve_readers(new).map(drop))
    }

    /// Registers a running rank whose `signals` reach these processes. The caller hands its streams to
    /// the capture thread.
    ///
    /// # Errors
    /// The capture thread has ended.
    pub fn register_rank(
        &mut self,
        nspace: &Nspace,
        rank: Rank,
        signals: SignalReach,
        stdin: StdinAccess,
    ) -> Result<RegisteredRank, Stopped> {
        if !self.has_capture {
            return Err(Stopped);
        }
        let source = Proc::new(nspace.clone(), rank);
        // `begin_job` has added the job and noted this rank.
        let Some(job) = self.jobs.get_mut(nspace) else { absent!("job", return Err(Stopped)) };
        let launching = job.take_launching(rank);
        let new = |channel| StreamState::of_job(job, source.clone(), channel, false);
        let streams = Channel::OUTPUTS.map(new).map(|stream| {
            let id = self.streams.next_id();
            (id, self.add_stream(id, stream))
        });
        let ids = streams.each_ref().map(|(id, _)| *id);
        let launching = Launching { stdin, ..launching.unwrap_or_default() };
        let rank = RankState::new(Place::Here(ids), launching, signals);
        let (process, target) = (ProcessId(ids[0].0), TargetId(ids[0].0));
        self.jobs.add_rank(source, rank);
        Ok(RegisteredRank { streams, process, target })
    }

    /// Records that all local ranks of a job are registered. A job without ranks is removed, unless
    /// something was logged to it or delivered for it.
    pub fn all_registered(&mut self, nspace: &Nspace, now: Instant) {
        self.release_reserved(nspace);
        if self.jobs.get_mut(nspace).is_some_and(JobState::all_registered) {
            self.forget_job(nspace);
        }
        self.jobs.schedule_early_end(nspace, now);
        self.begin_deferred();
        self.announce_complete_registrations(nspace);
        self.announce_ranks(nspace);
        // The ranks may have ended meanwhile.
        self.announce_end(nspace);
    }

    /// Removes a job whose local and remote parts have ended, see
    /// `Engine::remove`. Returns the job.
    pub fn remove_job(&mut self, nspace: &Nspace) -> Option<JobId> {
        if !self.jobs.get(nspace).is_some_and(JobState::has_ended) {
            return None;
        }
        // Registrations whose readers are just being attached receive the end after their rings.
        self.announce_end(nspace);
        let job = self.forget_job(nspace)?;
        let sources = job.streams();
        job.ranks().for_each(|(_, rank)| self.remove_rank(rank));
        self.release_backlog(&sources);
        self.graces.remove(&sources.iter().copied().collect());
        sources.into_iter().for_each(|source| self.forget_stream(source));
        self.queries.streams_changed();
        self.shed_unread();
        Some(JobId { nspace: nspace.clone(), run: job.run() })
    }

    /// Removes a job from the table. Its handles return its exit status and its endings from now on.
    fn forget_job(&mut self, nspace: &Nspace) -> Option<JobState> {
        let job = self.jobs.remove(nspace)?;
        self.withdraw_published(job.run(), None);
        self.forget_fences(job.run());
        let endings = (0..).map_while(|index| job.ending(index)).collect();
        self.effects.handles.push(HandleOp::RemoveJob { run: job.run(), status: job.status(), endings });
        Some(job)
    }

    /// Notes that the embedder has reported the exit of a rank. Returns the rank's process; `None`
    /// if the engine detects the exit of this rank, or it was reported before.
    pub fn report_exit(&mut self, job: &JobId, rank: Rank) -> Option<ProcessId> {
        self.job_mut(job)?.report_exit(rank)
    }

    /// Processes what an edge reports.
    pub(crate) fn node_reported(&mut self, id: &JobId, node: NodeId, report: NodeReport, now: Instant) {
        let Some(job) = self.job_mut(id) else { return };
        match report {
            NodeReport::Started { pids, began } => {
                if job.node_started(node, &pids, began) {
                    self.all_registered(&id.nspace, now);
                }
                self.tools.note_change(&id.nspace);
            }
            NodeReport::Streams(streams) => return job.note_streams(node, streams),
            NodeReport::Exited { rank, exit, requested, used } => {
                job.exited_there(rank, (exit, used), requested, now);
                self.withdraw_published_by(id, rank);
            }
            // An input of its own.
            NodeReport::Mpi { .. } => return,
            NodeReport::Modex { call, values } => self.modex_answered((id.run, node), call, values),
            NodeReport::StdinTaken { call, answer } => {
                self.stdin_answered(PushId(call), Some((id.run, node)), answer);
            }
            NodeReport::Over { cut_off } => {
                job.node_over(node, cut_off);
                self.node_ended(id, node);
            }
            NodeReport::Lost(lost) => {
                let ranks = lost.ranks.clone();
                job.node_lost(node, lost, now);
                ranks.into_iter().for_each(|rank| self.withdraw_published_by(id, rank));
                self.node_ended(id, node);
            }
        }
        self.jobs.schedule_early_end(&id.nspace, now);
        self.announce_ranks(&id.nspace);
        self.announce_end(&id.nspace);
    }

    /// Ends what waits for a node.
    fn node_ended(&mut self, job: &JobId, node: NodeId) {
        self.end_stdin_of((job.run, node));
        self.fail_fences((job.run, node));
    }

    /// Notes that `signal` is sent to the ranks of a job, or with `groups_only`, to those that lead
    /// process groups because the terminal has sent it to the others. Returns those that are to
    /// receive it.
    pub fn signal_job(&mut self, job: &JobId, signal: Signal, groups_only: bool, now: Instant) -> Receivers {
        let (id, Some(job)) = (job, self.job_mut(job)) else { return Receivers::default() };
        job.note_request(signal, now);
        if groups_only {
            job.note_signal_of_terminal(signal, now);
        }
        let receivers = job.signal(signal, now, |_, reach| !groups_only || reach == SignalReach::Group);
        self.jobs.schedule_early_end(&id.nspace, now);
        receivers
    }

    /// Ends a job as one that has failed, see `Job::fail`.
    pub fn fail_job(&mut self, job: &JobId, now: Instant) {
        let (id, Some(job)) = (job, self.job_mut(job)) else { return };
        job.end(EndCause::Embedder);
        self.jobs.schedule_early_end(&id.nspace, now);
    }

    /// Ends the backlog of a job, see `Job::release_backlog`.
    pub fn release_backlog_of(&mut self, job: &JobId) {
        let Some(job) = self.job_mut(job) else { return };
        job.release_backlog();
        let streams = job.streams();
        self.release_backlog(&streams);
    }

    /// Returns a job, unless it was removed.
    pub fn job(&self, job: &JobId) -> Option<&JobState> {
        self.jobs.find(job)
    }

    /// Returns the present job of a name.
    pub fn job_named(&self, nspace: &Nspace) -> Option<&JobState> {
        self.jobs.get(nspace)
    }

    pub(crate) fn job_mut(&mut self, job: &JobId) -> Option<&mut JobState> {
        self.jobs.find_mut(job)
    }
}

/// Output and the end of remote ranks.
impl Core {
    /// Adds bytes to the stream of a remote rank. Returns the stream.
    ///
    /// # Errors
    /// [`DeliverError`]. `taken` is dropped then.
    pub fn deliver(
        &mut self,
        DeliveredBytes { from, channel, bytes, offset, time, input, end }: DeliveredBytes<'_>,
        taken: TakenCallback,
    ) -> Result<SourceId, DeliverError> {
        if !self.has_capture {
            return Err(Stopped.into());
        }
        let stream = self.delivered_stream(from, channel, 0)?;
        let delivery = self.streams.delivery(stream).filter(|delivery| !delivery.complete);
        let Some(delivery) = delivery else {
            return Err(DeliverError::Complete { from: from.clone(), channel });
        };
        let position = delivery.position();
        let lost = offset.unwrap_or(position).checked_sub(position).ok_or_else(|| DeliverError::Offset {
            from: from.clone(),
            channel,
            offset: offset.unwrap_or_default(),
            position,
        })?;
        // An end without bytes is never refused as too much: there is only one for each stream.
        let is_end = end.is_some() && bytes.is_empty();
        delivery.queue(bytes.len(), is_end, taken).map_err(|waiting| DeliverError::Full { waiting })?;
        // A node marks the end of what it had cached by a gap without bytes.
        let is_mark = end.is_some() || bytes.is_empty() && lost == 0;
        if is_mark {
            delivery.note_cached();
        }
        delivery.advance(lost.saturating_add(bytes.len() as u64));
        delivery.complete |= end.is_some();
        let command = Command::Deliver { source: stream, delivery: SourceBytes { bytes, lost, time, input } };
        self.effects.commands.push(command);
        if is_mark && self.jobs.get_mut(&from.nspace).is_some_and(|job| job.mark_pull(from.rank, channel)) {
            self.attach_newest(stream);
        }
        self.effects.commands.extend(end.map(|end| match end {
            DeliveredEnd::Complete => Command::Finish(stream),
            DeliveredEnd::Broken(missing) => Command::BreakOff { source: stream, missing },
        }));
        Ok(stream)
    }

    /// Forgets the last delivery to `stream`, because the capture thread has not taken it.
    pub fn withdraw_delivery(&mut self, stream: SourceId) {
        self.streams.delivery(stream).map(DeliveryState::withdraw);
    }

    /// Ends the remote part of a job, see `Engine::end_job`.
    pub fn end_job(&mut self, nspace: &Nspace, exit_code: Option<i32>) -> bool {
        self.end_unanswered_pulls(nspace);
        let job = self.add_job(nspace, JobState::elsewhere);
        let Some(streams) = job.end_remote_ranks(exit_code) else { return false };
        for stream in streams {
            if let Some(delivery) = self.streams.delivery(stream) {
                delivery.complete = true;
            }
            self.effects.commands.push(Command::Finish(stream));
        }
        self.announce_complete_registrations(nspace);
        self.announce_end(nspace);
        true
    }

    /// Returns the stream of a remote rank, which is created at its first delivery. It then begins with
    /// the byte at `offset`.
    pub(crate) fn delivered_stream(
        &mut self,
        from: &Proc,
        channel: Channel,
        offset: u64,
    ) -> Result<SourceId, DeliverError> {
        let job = self.add_job(&from.nspace, JobState::elsewhere);
        if job.has_local_rank(from.rank) {
            return Err(DeliverError::Captured(from.clone()));
        }
        if let Some(stream) = job.delivered_stream(from.rank, channel) {
            return Ok(stream);
        }
        match job.remote() {
            RemoteRanks::None => return Err(DeliverError::NoRemoteRanks(from.nspace.clone())),
            RemoteRanks::Ended { .. } => return Err(DeliverError::Complete { from: from.clone(), channel }),
            RemoteRanks::Running => {}
        }
        let new = StreamState::of_job(job, from.clone(), channel, false);
        let config = job.options().config();
        let reserved = self.reserve_readers(&new)?;
        let id = self.streams.next_id();
        self.resources
            .create_delivered_stream(id, config, &format!("{from} {channel}"))
            .inspect_err(|_| self.cancel_reservations(&from.nspace, &reserved))?;
        self.open_stream(id, new, offset);
        let Some(job) = self.jobs.get_mut(&from.nspace) else { absent!("job", return Ok(id)) };
        job.add_delivered(from.rank, channel, id);
        Ok(id)
    }
}

/// Messages of the embedder, and the end of the engine.
impl Core {
    /// Logs a message of the embedder. `done` is called with the outcome.
    ///
    /// # Errors
    /// The request is invalid, or too many requests are in progress. `done` is dropped then.
    pub fn log_message(
        &mut self,
        log: &Log,
        done: impl FnOnce(LogReport) + Send + 'static,
    ) -> Result<(), Failure> {
        log.check()
            .map_err(|excess| Failure { status: Status::ERR_BAD_PARAM, reason: excess.to_string() })?;
        let done = Box::new(move |answer| {
            if let ToTool::Logged { result: Ok(report), .. } = answer {
                done(report);
            }
        });
        let process = ClientProcess { pid: self.settings.pid, uid: self.settings.uid };
        let requester = Requester::embedder(process, done);
        let prepared = self.prepare_log(&requester, log)?;
        self.begin_log(requester, prepared);
        Ok(())
    }

    /// Notes that the engine ends: waiting calls return, and tools receive what waits for them.
    pub fn stop_engine(&mut self) {
        self.stopping = true;
    }

    /// Returns whether the engine ends.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Removes all tools and connections, because the control thread has ended. Returns the
    /// callbacks of all deliveries that were not reported as taken.
    pub fn end_control(&mut self) -> Vec<TakenCallback> {
        self.stopping = true;
        self.waive_charges();
        self.tools.remove_all();
        self.pending.clear();
        self.remove_callbacks()
    }
}
