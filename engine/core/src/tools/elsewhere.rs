//! Registrations for streams of ranks on other nodes whose output has no rings here.

use std::collections::BTreeSet;

use iof_proto::{Channel, Failure, NodeStream, Nspace, Proc, Rank, Status};
use iof_shm_ring::Start;

use crate::Core;
use crate::ids::{PeerId, StreamName};
use crate::jobs::job::{JobState, NodePull, RemoteRanks};
use crate::tools::registration::Registration;

/// Largest number of streams of ranks on other nodes of one job that tools of the front end may read
/// at a time. Each has a ring. The ends of as many that have ended without one may wait to be sent to a tool.
pub const MAX_PULLED_STREAMS: usize = 8192;

/// The streams that registrations cover.
pub(crate) type Wanted = BTreeSet<(Rank, Channel)>;

impl Core {
    /// Adds the streams of `nspace` on other nodes that `registration` covers to `wanted`.
    pub(crate) fn add_wanted(&self, nspace: &Nspace, registration: &Registration, wanted: &mut Wanted) {
        let Some(job) = self.jobs.get(nspace).filter(|_| registration.includes(nspace)) else { return };
        let mut source = Proc::new(nspace.clone(), Rank(0));
        for rank in job.ranks_to_pull() {
            source.rank = rank;
            if registration.covers(&source) {
                wanted.extend(registration.channels().outputs().map(|channel| (rank, channel)));
            }
        }
    }

    /// Checks that a tool may read the streams of `registration`.
    ///
    /// # Errors
    /// Too many streams of a job would have rings.
    pub(crate) fn check_pulled(&self, registration: &Registration) -> Result<(), Failure> {
        for nspace in registration.jobs() {
            let mut wanted = Wanted::new();
            self.add_wanted(nspace, registration, &mut wanted);
            let pulled = self.jobs.get(nspace).map(JobState::pulled);
            wanted.extend(pulled.into_iter().flatten().map(|(stream, _)| *stream));
            if wanted.len() > MAX_PULLED_STREAMS {
                let reason = format!(
                    "tools can read {MAX_PULLED_STREAMS} streams of job {nspace} on its other nodes at a time, and this would be \
                     {}: name fewer ranks or channels (MAX_PULLED_STREAMS)",
                    wanted.len()
                );
                return Err(Failure::new(Status::ERR_OUT_OF_RESOURCE, reason));
            }
        }
        Ok(())
    }

    /// Lets a tool know that it misses streams that have ended without a ring, when it was answered: of a job
    /// that has ended on its nodes, and those that could not have a ring. The tool receives the known ends of at
    /// most [`MAX_PULLED_STREAMS`] streams, because it may begin anywhere in a stream.
    pub(crate) fn miss_ended(&mut self, peer_id: PeerId, handler: u32) {
        let Some(peer) = self.tools.get_mut(&peer_id).filter(|peer| peer.may_lose()) else { return };
        let from_oldest = |registration: &&Registration| registration.start() == Start::Oldest;
        let Some(registration) = peer.registration(handler).filter(from_oldest) else { return };
        let mut missed = Vec::new();
        for nspace in registration.jobs() {
            // The job may have ended while the registration waited for its readers.
            let is_told = |job: &&JobState| job.is_direct() && registration.includes_run(nspace, job.run());
            let Some(job) = self.jobs.get(nspace).filter(is_told) else { continue };
            let of_pull = |(stream, pull): (&_, &NodePull)| Some((*stream, pull.missed?, false));
            let of_node = |node: NodeStream| ((node.rank, node.channel), node.produced, node.ended);
            let ended: Vec<_> = match job.remote() {
                // What is missed of others is told when their pulls end.
                RemoteRanks::Running => job.pulled().iter().filter_map(of_pull).collect(),
                _ => job.node_streams().map(of_node).collect(),
            };
            for ((rank, channel), produced, has_ended) in ended {
                let source = Proc::new(nspace.clone(), rank);
                let is_covered = registration.covers_stream(&source, channel);
                if is_covered && produced > 0 && job.delivered_stream(rank, channel).is_none() {
                    let name = StreamName { source, channel, logged: false, run: job.run() };
                    missed.push((name, produced, has_ended));
                }
            }
        }
        let untold = peer.unread().untold();
        for ((name, produced, has_ended), index) in missed.into_iter().zip(untold..) {
            let end = Some(produced).filter(|_| has_ended && index < MAX_PULLED_STREAMS);
            peer.add_missed(handler, &name, produced, end);
        }
    }
}
