//! The streams of ranks on other nodes that tools here read, although the output of their job goes
//! directly to the embedder's printers ([`NewJob::is_direct`](crate::NewJob::is_direct)). The node
//! sends such a stream separately while a registration covers it, beginning with the oldest byte that
//! it has, and only then the stream has a ring here.

use std::collections::BTreeMap;

use iof_capture::SourceId;
use iof_proto::{Channel, NodeStream, Nspace, Proc, Rank, StreamPull};

use crate::Core;
use crate::calls::{DeliveredBytes, DeliveredEnd};
use crate::effects::{Command, HandleOp};
use crate::ids::{JobId, StreamName};
use crate::jobs::job::{JobState, RemoteRanks};
use crate::streams::deliver_error::DeliverError;
use crate::streams::state::StreamState;
use crate::tools::elsewhere::Wanted;
use crate::upcall::TakenCallback;

impl Core {
    /// Begins and ends the pulls of nodes that follow from changes of registrations.
    pub(crate) fn registrations_changed(&mut self) {
        let changed = self.tools.take_changed();
        for nspace in &changed {
            self.update_pulled(nspace);
            self.announce_cached_of(nspace);
        }
    }

    /// Begins and ends the pulls of a job's nodes, so that the nodes send the streams that registrations
    /// cover. The embedder's gating readers have the output in another way.
    pub(crate) fn update_pulled(&mut self, nspace: &Nspace) {
        if !self.jobs.get(nspace).is_some_and(|job| job.is_direct() && job.remote() == RemoteRanks::Running) {
            return;
        }
        let mut wanted = Wanted::new();
        for (peer_id, handler) in self.tools.naming(nspace) {
            let peer = self.tools.get(&peer_id).filter(|peer| peer.may_lose());
            if let Some(registration) = peer.and_then(|peer| peer.registration(handler)) {
                self.add_wanted(nspace, registration, &mut wanted);
            }
        }
        let Some(job) = self.jobs.get_mut(nspace) else { return };
        let (run, ended, begun) = (job.run(), job.end_pulls(&wanted), job.begin_pulls(wanted));
        let dropped: Vec<SourceId> = ended.iter().filter_map(|(_, _, stream)| *stream).collect();
        let mut ends = BTreeMap::<_, Vec<u32>>::new();
        for (node, number, _) in ended {
            ends.entry(node).or_default().push(number);
        }
        let mut begins = BTreeMap::<_, Vec<StreamPull>>::new();
        for (node, pull) in begun {
            begins.entry(node).or_default().push(pull);
        }
        let ends = ends.into_iter().map(|(node, pulls)| HandleOp::EndPulls { node: (run, node), pulls });
        self.effects.handles.extend(ends);
        for (node, pulls) in begins {
            let lost = self.jobs.get(nspace).is_some_and(|job| job.is_lost(node));
            match lost {
                true => pulls.iter().for_each(|pull| self.end_pulled(nspace, pull)),
                false => self.effects.handles.push(HandleOp::Pull { node: (run, node), pulls }),
            }
        }
        for stream in dropped {
            self.drop_pulled(nspace, stream);
        }
    }

    /// Removes the ring of a stream that no registration covers now.
    fn drop_pulled(&mut self, nspace: &Nspace, stream: SourceId) {
        match self.streams.get_mut(&stream).map(StreamState::withdraw) {
            Some(true) => self.forget_withdrawn(stream),
            Some(false) => {
                self.jobs.get_mut(nspace).into_iter().for_each(JobState::delivery_completed);
                self.effects.commands.push(Command::Finish(stream));
            }
            None => {}
        }
    }

    /// Ends the pulled streams of a job whose nodes have ended that have no ring, because the request came
    /// when its node had ended: tools miss all that is known of them. Of a job that was not started they miss
    /// nothing.
    pub(crate) fn end_unanswered_pulls(&mut self, nspace: &Nspace) {
        let Some(job) = self.jobs.get(nspace).filter(|job| !job.is_starting()) else { return };
        let mut pulls = Vec::new();
        for (&(rank, channel), pull) in job.pulled().iter().filter(|(_, pull)| !pull.is_missed) {
            if job.delivered_stream(rank, channel).is_none() {
                pulls.push(StreamPull { number: pull.number, rank, channel });
            }
        }
        pulls.iter().for_each(|pull| self.end_pulled(nspace, pull));
    }

    /// Ends a stream that its node does not send, because it is lost or has ended.
    fn end_pulled(&mut self, nspace: &Nspace, pull: &StreamPull) {
        let Some(job) = self.jobs.get(nspace) else { return };
        let NodeStream { produced, ended, .. } = job.node_stream(pull.rank, pull.channel);
        let (offset, end) =
            if ended { (produced, DeliveredEnd::Complete) } else { (0, DeliveredEnd::Broken(produced)) };
        let (id, from) =
            (JobId { nspace: nspace.clone(), run: job.run() }, Proc::new(nspace.clone(), pull.rank));
        let bytes = DeliveredBytes {
            from: &from,
            channel: pull.channel,
            bytes: Vec::new(),
            offset: Some(offset),
            time: None,
            input: None,
            end: Some(end),
        };
        // Fails only if the engine ends.
        drop(self.deliver_pulled(&id, pull.number, bytes, Box::new(|| {})));
    }

    /// Adds bytes to a stream as [`Core::deliver`] does, or if `number` is not 0, to one that this pull has
    /// begun, with their offset. Returns the stream,
    /// or the callback if no tool reads it now or it can't have a ring: tools then miss it.
    ///
    /// # Errors
    /// As [`Core::deliver`].
    pub fn deliver_pulled(
        &mut self,
        id: &JobId,
        number: u32,
        bytes: DeliveredBytes<'_>,
        taken: TakenCallback,
    ) -> Result<Result<SourceId, TakenCallback>, DeliverError> {
        if number == 0 {
            return self.deliver(bytes, taken).map(Ok);
        }
        let (rank, channel) = (bytes.from.rank, bytes.channel);
        let pull = self.job(id).and_then(|job| job.pull_of(rank, channel));
        let Some(pull) = pull.filter(|pull| pull.number == number) else { return Ok(Err(taken)) };
        let offset = bytes.offset.unwrap_or_default();
        let is_missed = pull.is_missed
            || match self.delivered_stream(bytes.from, channel, offset) {
                Ok(_) => false,
                Err(DeliverError::Ring(_)) => true,
                Err(error) => return Err(error),
            };
        if is_missed {
            let end = offset.saturating_add(bytes.bytes.len() as u64);
            self.miss_pulled(id, (rank, channel), (end, bytes.end));
            return Ok(Err(taken));
        }
        self.deliver(bytes, taken).map(Ok)
    }

    /// Notes that tools miss a stream, which has come to this position. They are told at its end.
    fn miss_pulled(
        &mut self,
        id: &JobId,
        (rank, channel): (Rank, Channel),
        (position, end): (u64, Option<DeliveredEnd>),
    ) {
        let produced = end.map(|end| match end {
            DeliveredEnd::Complete => position,
            DeliveredEnd::Broken(missing) => position.saturating_add(missing),
        });
        self.job_mut(id).into_iter().for_each(|job| job.miss_pull(rank, channel, produced));
        self.announce_cached_of(&id.nspace);
        let Some(produced) = produced else { return };
        let source = Proc::new(id.nspace.clone(), rank);
        let name = StreamName { source, channel, logged: false, run: id.run };
        for (peer_id, handler) in self.tools.naming(&id.nspace) {
            let Some(peer) = self.tools.get_mut(&peer_id).filter(|peer| peer.may_lose()) else { continue };
            // Others are told when they are answered.
            let told = peer.registration(handler).filter(|registration| registration.answered);
            if told.is_some_and(|told| told.covers_stream(&name.source, channel)) {
                peer.add_missed(handler, &name, produced, None);
            }
        }
    }
}
