//! Output of remote ranks: the host delivers it, and the engine writes it into rings like those of
//! local ranks (`PMIx_server_IOF_deliver`, RFC0025).

use std::collections::BTreeSet;

use iof_capture::{AddError, SourceId, Stopped};
use iof_proto::attribute::{self, Place};
use iof_proto::directive::key;
use iof_proto::{Channel, Failure, Info, Nspace, Proc, Status};
use iof_shm_ring::{CreateError, Stream};

use crate::core::Core;
use crate::core::commands::Command;
use crate::core::delivery::{Delivery, MAX_DELIVERED};
use crate::core::ids::StreamName;
use crate::core::job::{JobState, RemoteRanks};
use crate::core::stream_options::StreamOptions;
use crate::core::stream_state::StreamState;
use crate::engine::Engine;
use crate::error::MAX_RANKS;

/// The reason why bytes were not delivered. None of the bytes was added to the stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeliverError {
    /// A required attribute does not apply to deliveries, or has a value of the wrong type.
    #[error(transparent)]
    Metadata(Failure),
    /// The source is not one rank below [`MAX_RANKS`], or the channel is stdin.
    #[error(
        "invalid source '{from} {channel}': expected a rank below {MAX_RANKS}, and stdout, stderr or stddiag"
    )]
    NoSource {
        /// The source of the delivery.
        from: Proc,
        /// The channel of the delivery.
        channel: Channel,
    },
    /// The rank is local.
    #[error("{0} is a local rank, whose output the engine captures: deliver output of remote ranks only")]
    Captured(Proc),
    /// The job has no remote ranks: it was started without
    /// [`JobSpec::elsewhere`](crate::JobSpec::elsewhere).
    #[error("all ranks of {0} are local: start the job with `elsewhere` if it has remote ranks")]
    NoRemoteRanks(Nspace),
    /// The stream was completed before, or its job ended.
    #[error("the {channel} of {from} is complete: deliver nothing after {complete}", complete = key::PMIX_IOF_COMPLETE)]
    Complete {
        /// The source of the delivery.
        from: Proc,
        /// The channel of the delivery.
        channel: Channel,
    },
    /// A reader holds the stream back, and [`MAX_DELIVERED`] bytes are waiting for it.
    #[error(
        "{waiting} bytes of the stream already wait for a reader, and the limit is {MAX_DELIVERED}: deliver again when \
         some were taken"
    )]
    Full {
        /// The number of bytes that wait.
        waiting: u64,
    },
    /// There is no memory for a ring.
    #[error(transparent)]
    Ring(#[from] CreateError),
    /// The capture thread has ended.
    #[error(transparent)]
    Capture(#[from] AddError),
}

impl DeliverError {
    /// Returns the PMIx status of the error. [`Status::ERR_IOF_XOFF`] means that the delivery may
    /// succeed later, [`Status::ERR_IOF_COMPLETE`] that the stream takes no more bytes.
    pub fn status(&self) -> Status {
        match self {
            DeliverError::Metadata(failure) => failure.status,
            DeliverError::NoSource { .. } | DeliverError::Captured(_) | DeliverError::NoRemoteRanks(_) => {
                Status::ERR_BAD_PARAM
            }
            DeliverError::Complete { .. } => Status::ERR_IOF_COMPLETE,
            DeliverError::Full { .. } => Status::ERR_IOF_XOFF,
            DeliverError::Ring(_) => Status::ERR_OUT_OF_RESOURCE,
            DeliverError::Capture(_) => Status::ERR_IOF_FAILURE,
        }
    }
}

/// The attributes of a delivery.
#[derive(Default)]
struct DeliveryAttributes {
    complete: bool,
    time: Option<u64>,
}

impl DeliveryAttributes {
    /// Reads the attributes of a delivery.
    ///
    /// # Errors
    /// A required attribute does not apply to deliveries, or has a value of the wrong type.
    fn read(infos: &[Info]) -> Result<DeliveryAttributes, Failure> {
        let mut all = DeliveryAttributes::default();
        attribute::read(infos, Place::Deliver, &BTreeSet::new(), |given| {
            match given.key() {
                key::PMIX_IOF_COMPLETE => all.complete = given.bool()?,
                key::IOF_READ_TIME => all.time = Some(given.number()?),
                _ => return Err(given.unread()),
            }
            Ok(())
        })?;
        Ok(all)
    }
}

impl Engine {
    /// Delivers output that the host has received from another node (`PMIx_server_IOF_deliver`).
    /// Registered tools read it like output of local ranks. For tools that register later it is
    /// cached, with the options of its job. If the engine has not started or adopted ranks of that
    /// job, the options are those of the engine.
    ///
    /// `infos` may contain [`PMIX_IOF_COMPLETE`](key::PMIX_IOF_COMPLETE), which ends the stream
    /// after these bytes (`bytes` may be empty), and [`IOF_READ_TIME`](key::IOF_READ_TIME), the
    /// time at which the bytes were read from their source. Other attributes are ignored unless they
    /// are required.
    ///
    /// Does not block. `taken` is called once: when the bytes are in the ring, when the policy has
    /// dropped them, or when the engine ends. It is called on the engine's control thread, under
    /// the same rules as [upcalls](crate::Host).
    ///
    /// While a reader with [`Grant::Block`](crate::Grant::Block) holds the stream back, at most
    /// [`MAX_DELIVERED`] bytes of it wait. If none wait, a delivery of any size is accepted. An end
    /// of the stream without bytes is always accepted. Deliveries to one stream keep their order.
    ///
    /// # Errors
    /// [`DeliverError`]. `taken` is then dropped without being called.
    ///
    /// # Example
    /// ```
    /// use iof_engine::{Config, Engine, Grant, Rendezvous};
    /// use iof_output::{Options, Output, Printer};
    /// use iof_proto::directive::key;
    /// use iof_proto::{Channel, Channels, Info, Nspace, Proc, Rank};
    /// use iof_tool::Pull;
    ///
    /// let engine = Engine::start(Config { rendezvous: Rendezvous::None, ..Config::default() })?;
    /// let nspace = Nspace::new("far")?;
    /// let rank = Proc::new(nspace.clone(), Rank(7));
    /// engine.deliver(&rank, Channel::Stdout, b"hello\n".to_vec(), &[], || {})?;
    /// engine.deliver(&rank, Channel::Stdout, Vec::new(), &[Info::new(key::PMIX_IOF_COMPLETE, true)], || {})?;
    /// engine.end_job(&nspace, Some(0));
    /// let mut tool = engine.attach("terminal", Grant::Block)?;
    /// tool.pull(&Pull::new(vec![rank], Channels::STDOUT))?;
    /// let output = Output::new(std::io::stdout())?;
    /// let printer = Printer::start(tool, output, Options::default(), |_, _, _| {})?;
    /// assert_eq!(printer.join()?.written, 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn deliver(
        &self,
        from: &Proc,
        channel: Channel,
        bytes: Vec<u8>,
        infos: &[Info],
        taken: impl FnOnce() + Send + 'static,
    ) -> Result<(), DeliverError> {
        let DeliveryAttributes { complete, time } =
            DeliveryAttributes::read(infos).map_err(DeliverError::Metadata)?;
        if channel == Channel::Stdin || from.rank.0 >= MAX_RANKS {
            return Err(DeliverError::NoSource { from: from.clone(), channel });
        }
        let mut state = self.tables.lock();
        if !state.has_capture {
            return Err(AddError::from(Stopped).into());
        }
        let stream = self.delivered_stream(&mut state, from, channel)?;
        let Some(delivery) = state.streams.delivery(stream) else {
            return Err(DeliverError::Complete { from: from.clone(), channel });
        };
        // An end without bytes is never refused as too much: there is only one for each stream.
        let is_end = complete && bytes.is_empty();
        if delivery.complete {
            return Err(DeliverError::Complete { from: from.clone(), channel });
        }
        delivery
            .queue(bytes.len(), is_end, Box::new(taken))
            .map_err(|waiting| DeliverError::Full { waiting })?;
        delivery.complete |= complete;
        state.commands.push(Command::Deliver { source: stream, bytes, time });
        state.commands.extend(complete.then_some(Command::Finish(stream)));
        if let Err(stopped) = state.send_commands() {
            state.streams.delivery(stream).map(Delivery::withdraw);
            return Err(AddError::from(stopped).into());
        }
        Ok(())
    }

    /// Ends the remote part of job `nspace`. Call this when all its remote ranks have ended and
    /// their output was delivered. Completes their streams. When the streams of the job's local
    /// ranks are complete as well, tools receive the end of the job with `exit_code`. If
    /// `exit_code` is `None`, they receive the exit code of the local ranks, if there are any. The
    /// job may be unknown to the engine before this call. Does not block.
    ///
    /// Returns `false` if the remote part was ended before, or all ranks of the job are local.
    pub fn end_job(&self, nspace: &Nspace, exit_code: Option<i32>) -> bool {
        let mut state = self.tables.lock();
        let job = self.job_elsewhere(&mut state, nspace);
        if !matches!(job.remote, RemoteRanks::Running) {
            return false;
        }
        job.remote = RemoteRanks::Ended { exit_code };
        let streams: Vec<SourceId> = job.delivered.values().copied().collect();
        for stream in streams {
            if let Some(delivery) = state.streams.delivery(stream) {
                delivery.complete = true;
            }
            state.commands.push(Command::Finish(stream));
        }
        state.announce_complete_registrations(nspace);
        state.announce_end(nspace);
        drop(state);
        self.tables.reports.wake();
        true
    }

    /// Returns the job `nspace`. If it is unknown, adds it as a job without local ranks.
    fn job_elsewhere<'a>(&self, state: &'a mut Core, nspace: &Nspace) -> &'a mut JobState {
        state.jobs.get_or_add(nspace, || {
            let job = JobState::elsewhere(StreamOptions::of(&self.config));
            JobState { entry: self.announce(nspace), ..job }
        })
    }

    /// Returns the stream of a remote rank, which is created at its first delivery.
    fn delivered_stream(
        &self,
        state: &mut Core,
        from: &Proc,
        channel: Channel,
    ) -> Result<SourceId, DeliverError> {
        let job = self.job_elsewhere(state, &from.nspace);
        if job.has_local_rank(from.rank) {
            return Err(DeliverError::Captured(from.clone()));
        }
        if let Some(stream) = job.delivered.get(&(from.rank, channel)) {
            return Ok(*stream);
        }
        match job.remote {
            RemoteRanks::None => return Err(DeliverError::NoRemoteRanks(from.nspace.clone())),
            RemoteRanks::Ended { .. } => return Err(DeliverError::Complete { from: from.clone(), channel }),
            RemoteRanks::Running => {}
        }
        let stream = Stream::create(job.options.config(), &format!("{from} {channel}"))?;
        let name = StreamName { source: from.clone(), channel, logged: false, run: job.run };
        let mut stream_state = StreamState::new(name, job.options, job.forward);
        stream_state.release_backlog = job.release_backlog;
        let (id, stream) = state.add_stream(stream_state, stream);
        if let Some(job) = state.jobs.get_mut(&from.nspace) {
            job.delivered.insert((from.rank, channel), id);
            job.open_deliveries = job.open_deliveries.saturating_add(1);
        }
        state.streams.open_delivery(id);
        state.commands.push(Command::Open { source: id, stream: Box::new(stream) });
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_honours_exactly_the_attributes_of_the_table() {
        let accepts = |info: &Info| DeliveryAttributes::read(std::slice::from_ref(info)).is_ok();
        assert_eq!(attribute::mismatches(&[Place::Deliver], accepts), []);
    }
}
