//! Streams of what is logged to stdout and stderr. Each source and channel has one, separate from
//! the source's own output. The stream is created for the first message and completed when the job
//! can log no more.

use std::sync::Arc;

use iof_capture::{Capture, SourceId, check_files};
use iof_log::{LogOptions, output};
use iof_proto::{Channel, Failure, Nspace, Proc, Rank, Status};
use iof_shm_ring::Stream;

use crate::deliver::{DeliverError, Delivery};
use crate::host::{Call, HostReply};
use crate::log::LogStep;
use crate::register::TRANSIENT_FDS;
use crate::state::{State, StreamName};
use crate::stream_state::StreamState;

fn unavailable(reason: String) -> Failure {
    Failure::new(Status::ERR_NOT_AVAILABLE, reason)
}

impl State {
    /// Returns the process whose stdout or stderr a message goes to: its source, or the job as a
    /// whole if the source has no rank.
    pub(super) fn log_target(&self, options: &LogOptions) -> Result<Proc, Failure> {
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

    /// Logs to the stdout or stderr of a process. Success is reported as the result of `step`, and
    /// therefore after the ring if the ring is new. So a requester that receives the result knows
    /// that readers have received the ring.
    pub(super) fn log_output(
        &mut self,
        capture: &Capture,
        step: LogStep,
        channel: Channel,
        text: &str,
        options: &LogOptions,
    ) -> Option<Result<(), Failure>> {
        match self.put_output(capture, channel, text, options) {
            Ok(()) => {
                HostReply::new(Call::Log(step), Arc::clone(&self.logs.reports)).grant();
                None
            }
            failed => Some(failed),
        }
    }

    fn put_output(
        &mut self,
        capture: &Capture,
        channel: Channel,
        text: &str,
        options: &LogOptions,
    ) -> Result<(), Failure> {
        let target = self.log_target(options)?;
        let bytes = output(text, &target, channel, options)?;
        let stream = self.log_stream(capture, &target, channel)?;
        let Some(delivery) = self.deliveries.get_mut(&stream) else {
            return Err(unavailable(format!("the output of {target} is complete")));
        };
        let put = delivery.put(capture, stream, bytes, None, false, Box::new(|| {}));
        put.map_err(|error| match error {
            DeliverError::Full { waiting } => {
                let reason = format!("{waiting} logged bytes wait for a reader: try again later");
                Failure::new(Status::ERR_RESOURCE_BUSY, reason)
            }
            error => unavailable(error.to_string()),
        })
    }

    /// Returns the stream of what is logged to `channel` of `target`. Creates it for the first
    /// message.
    fn log_stream(
        &mut self,
        capture: &Capture,
        target: &Proc,
        channel: Channel,
    ) -> Result<SourceId, Failure> {
        let Some(job) = self.jobs.get(&target.nspace) else {
            return Err(unavailable(format!("job {} does not exist", target.nspace)));
        };
        if let Some(stream) = job.logged.get(&(target.rank, channel)) {
            return Ok(*stream);
        }
        let no_resources =
            |error: &dyn ToString| Failure { status: Status::ERR_OUT_OF_RESOURCE, reason: error.to_string() };
        check_files(TRANSIENT_FDS.saturating_add(1)).map_err(|error| no_resources(&error))?;
        let label = format!("{target} {channel} log");
        let mut stream =
            Stream::create(job.options.config(), &label).map_err(|error| no_resources(&error))?;
        let name = StreamName { source: target.clone(), channel, logged: true, run: job.run };
        let mut new = StreamState::new(name, job.options, job.forward);
        new.release_backlog = job.release_backlog;
        let id = self.add_stream(new, &mut stream);
        if let Some(job) = self.jobs.get_mut(&target.nspace) {
            job.logged.insert((target.rank, channel), id);
            job.open_logs = job.open_logs.saturating_add(1);
            self.logged_jobs.insert(target.nspace.clone());
        }
        self.deliveries.insert(id, Delivery::default());
        capture.open(id, stream).map_err(|error| unavailable(error.to_string()))?;
        Ok(id)
    }

    /// Completes the logged streams of jobs that can log no more.
    pub(crate) fn close_logs(&mut self, capture: &Capture) {
        let logged = self.logged_jobs.iter().filter_map(|nspace| self.jobs.get(nspace));
        for job in logged.filter(|job| job.is_output_complete()) {
            for stream in job.logged.values() {
                // The call fails only if the stream is complete already or the capture thread has
                // ended.
                let _ = capture.finish(*stream);
            }
        }
    }

    /// Records that the logged stream `stream` of `nspace` is complete.
    pub(crate) fn logged_all(&mut self, stream: SourceId, nspace: &Nspace) {
        self.deliveries.remove(&stream);
        if let Some(job) = self.jobs.get_mut(nspace) {
            job.open_logs = job.open_logs.saturating_sub(1);
            if job.open_logs == 0 {
                self.logged_jobs.remove(nspace);
            }
        }
    }
}
