//! What is logged to stdout and stderr: a stream of its own for each source and channel, beside
//! what that writes itself. It is made for the first message and completed when the job has nothing
//! more to say.

use std::sync::Arc;

use iof_capture::{Capture, SourceId, check_files};
use iof_log::{LogOptions, output};
use iof_proto::{Channel, Failure, Nspace, Proc, Rank, Status};
use iof_shm_ring::Stream;

use crate::deliver::{DeliverError, Delivery};
use crate::host::{Call, Reply};
use crate::log::LogStep;
use crate::readers::StreamState;
use crate::register::TRANSIENT_FDS;
use crate::state::{State, StreamName};

fn unavailable(reason: String) -> Failure {
    Failure { status: Status::ERR_NOT_AVAILABLE, reason }
}

impl State {
    /// Whose stdout and stderr are meant: the process that is the source; of no rank, the job as a
    /// whole.
    pub(super) fn log_target(&self, how: &LogOptions) -> Result<Proc, Failure> {
        let target = match &how.source {
            Some(source) if source.rank == Rank::WILDCARD => Proc { rank: Rank::UNDEF, ..source.clone() },
            Some(source) => source.clone(),
            None => {
                let reason = "it is not clear whose output is meant: name a process or a job as the source";
                return Err(Failure { status: Status::ERR_BAD_PARAM, reason: reason.into() });
            }
        };
        let job = self.jobs.get(&target.nspace);
        let Some(job) = job.filter(|job| target.rank == Rank::UNDEF || job.has_rank(target.rank)) else {
            let reason = format!("there is no {target} here, to whose output it could be logged");
            return Err(Failure { status: Status::ERR_NOT_FOUND, reason });
        };
        if job.is_silent() {
            return Err(unavailable(format!("the job {} is over: nothing is logged there", target.nspace)));
        }
        Ok(target)
    }

    /// Logs to the stdout or stderr of a process. That it worked comes back as the result of
    /// `step`, and so behind the ring, if it is a new one: whoever was told of it can count on
    /// its having been seen.
    pub(super) fn log_output(
        &mut self,
        capture: &Capture,
        step: LogStep,
        channel: Channel,
        text: &str,
        how: &LogOptions,
    ) -> Option<Result<(), Failure>> {
        match self.put_output(capture, channel, text, how) {
            Ok(()) => {
                Reply::new(Call::Log(step), Arc::clone(&self.logs.reports)).grant();
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
        how: &LogOptions,
    ) -> Result<(), Failure> {
        let target = self.log_target(how)?;
        let bytes = output(text, &target, channel, how)?;
        let stream = self.log_stream(capture, &target, channel)?;
        let Some(delivery) = self.deliveries.get_mut(&stream) else {
            return Err(unavailable(format!("the output of {target} is complete")));
        };
        let put = delivery.put(capture, stream, bytes, None, false, Box::new(|| {}));
        put.map_err(|error| match error {
            DeliverError::Full { waiting } => {
                let reason =
                    format!("{waiting} bytes that were logged there wait for a reader: try again later");
                Failure { status: Status::ERR_RESOURCE_BUSY, reason }
            }
            error => unavailable(error.to_string()),
        })
    }

    /// The stream of what is logged there, made for the first message.
    fn log_stream(
        &mut self,
        capture: &Capture,
        target: &Proc,
        channel: Channel,
    ) -> Result<SourceId, Failure> {
        let Some(job) = self.jobs.get(&target.nspace) else {
            return Err(unavailable(format!("there is no job {}", target.nspace)));
        };
        if let Some(stream) = job.logged.get(&(target.rank, channel)) {
            return Ok(*stream);
        }
        let out_of =
            |error: &dyn ToString| Failure { status: Status::ERR_OUT_OF_RESOURCE, reason: error.to_string() };
        check_files(TRANSIENT_FDS.saturating_add(1)).map_err(|error| out_of(&error))?;
        let label = format!("{target} {channel} log");
        let mut stream = Stream::create(job.options.config(), &label).map_err(|error| out_of(&error))?;
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

    /// Completes what was logged to jobs that have nothing more to say.
    pub(crate) fn close_logs(&mut self, capture: &Capture) {
        let logged = self.logged_jobs.iter().filter_map(|nspace| self.jobs.get(nspace));
        for job in logged.filter(|job| job.is_silent()) {
            for stream in job.logged.values() {
                // One that is complete stays as it is, and so do all if the capture has ended.
                let _ = capture.finish(*stream);
            }
        }
    }

    /// A stream of what was logged is complete.
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
