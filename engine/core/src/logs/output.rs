//! Streams of what is logged to stdout and stderr. Each source and channel has one, separate from
//! the source's own output. The stream is created for the first message and completed when the job
//! can log no more.

use iof_capture::{Counted, SourceId, StreamAnswer, StreamStep};
use iof_log::{LogOptions, output};
use iof_proto::{Channel, Failure, Nspace, Proc, Rank, Status};

use crate::Core;
use crate::effects::Command;
use crate::ids::LogStep;
use crate::streams::awaited::Awaited;
use crate::streams::delivery::DeliveryState;
use crate::streams::state::StreamState;

fn capture_ended() -> Failure {
    unavailable("the capture thread of the engine has ended: log to another channel".into())
}

fn unavailable(reason: String) -> Failure {
    Failure::new(Status::ERR_NOT_AVAILABLE, reason)
}

impl Core {
    /// Returns the process whose stdout or stderr a message goes to: its source, or the job as a
    /// whole if the source has no rank.
    pub(crate) fn log_target(&self, options: &LogOptions) -> Result<Proc, Failure> {
        let target = match &options.source {
            Some(source) if source.rank == Rank::WILDCARD => Proc { rank: Rank::UNDEF, ..source.clone() },
            Some(source) => source.clone(),
            None => {
                let reason = "the message has no source: name a process or a job as its source";
                return Err(Failure::new(Status::ERR_BAD_PARAM, reason));
            }
        };
        let job = self.jobs.get(&target.nspace);
        let Some(job) = job.filter(|job| target.rank == Rank::UNDEF || job.has_rank(target.rank)) else {
            let reason = format!("{target} does not exist here: name another source");
            return Err(Failure::new(Status::ERR_NOT_FOUND, reason));
        };
        if job.is_output_complete() {
            return Err(unavailable(format!("job {} has ended: nothing can be logged to it", target.nspace)));
        }
        Ok(target)
    }

    /// Logs to the stdout or stderr of a process. Success is reported as the result of `step` when
    /// the capture thread has the message, and therefore after the ring if the ring is new. So a
    /// requester that receives the result knows that readers have received the ring.
    pub(crate) fn log_output(
        &mut self,
        step: LogStep,
        channel: Channel,
        text: &str,
        options: &LogOptions,
    ) -> Option<Result<(), Failure>> {
        match self.put_output(channel, text, options) {
            Ok(stream) => {
                // The answer, which follows the delivery, tells whether the stream has taken it.
                let steps = vec![StreamStep::Count { source: stream, readers: Vec::new() }];
                self.request(Awaited::LogStep { step, stream }, steps);
                None
            }
            Err(failure) => Some(Err(failure)),
        }
    }

    /// Returns the result of a message to `stream`, whose request has these `answers`. The capture
    /// thread takes no message after it has failed: the stream is complete then or does not exist,
    /// or the request was not performed.
    pub(crate) fn output_logged(
        &mut self,
        stream: SourceId,
        answers: &[StreamAnswer<()>],
    ) -> Result<(), Failure> {
        let is_open = |answer: &StreamAnswer<()>| match answer {
            StreamAnswer::Counted(Some(Counted { stats, .. })) => !stats.complete,
            _ => false,
        };
        if answers.iter().any(is_open) {
            return Ok(());
        }
        self.streams.delivery(stream).map(DeliveryState::withdraw);
        Err(capture_ended())
    }

    fn put_output(
        &mut self,
        channel: Channel,
        text: &str,
        options: &LogOptions,
    ) -> Result<SourceId, Failure> {
        if !self.has_capture {
            return Err(capture_ended());
        }
        let target = self.log_target(options)?;
        let bytes = output(text, &target, channel, options)?;
        let stream = self.log_stream(&target, channel)?;
        let Some(delivery) = self.streams.delivery(stream) else {
            return Err(unavailable(format!("the output of {target} is complete")));
        };
        delivery.queue(bytes.len(), false, Box::new(|| {})).map_err(|waiting| {
            let reason = format!("{waiting} logged bytes wait for a reader: try again later");
            Failure::new(Status::ERR_RESOURCE_BUSY, reason)
        })?;
        self.effects.commands.push(Command::Deliver { source: stream, delivery: bytes.into() });
        Ok(stream)
    }

    /// Returns the stream of what is logged to `channel` of `target`. Creates it for the first
    /// message.
    fn log_stream(&mut self, target: &Proc, channel: Channel) -> Result<SourceId, Failure> {
        let Some(job) = self.jobs.get(&target.nspace) else {
            return Err(unavailable(format!("job {} does not exist", target.nspace)));
        };
        if let Some(stream) = job.logged_stream(target.rank, channel) {
            return Ok(stream);
        }
        let new = StreamState::of_job(job, target.clone(), channel, true);
        let (config, label) = (job.options().config(), format!("{target} {channel} log"));
        let id = self.streams.next_id();
        let reserved = self
            .reserve_readers(&new)
            .map_err(|error| Failure::new(Status::ERR_OUT_OF_RESOURCE, error.to_string()))?;
        self.resources
            .create_log_stream(id, config, &label)
            .inspect_err(|_| self.cancel_reservations(&target.nspace, &reserved))?;
        self.open_stream(id, new, 0);
        let Some(job) = self.jobs.get_mut(&target.nspace) else { absent!("job", return Ok(id)) };
        job.add_logged(target.rank, channel, id);
        self.jobs.note_logged(&target.nspace);
        Ok(id)
    }

    /// Completes the logged streams of jobs that can log no more.
    pub(crate) fn close_logs(&mut self) {
        self.effects.commands.extend(self.jobs.take_finished_logs().into_iter().map(Command::Finish));
    }

    /// Records that the logged stream `stream` of `nspace` is complete.
    pub(crate) fn logged_all(&mut self, stream: SourceId, nspace: &Nspace) {
        self.streams.close_delivery(stream);
        let Some(job) = self.jobs.get_mut(nspace) else { absent!("job", return) };
        job.log_completed();
    }
}
