//! Tools learn when their rings have all that was cached at their registration: of other nodes when that
//! has arrived.

use iof_capture::SourceId;
use iof_proto::{Nspace, ToTool};

use crate::Core;
use crate::ids::PeerId;
use crate::streams::state::StreamState;
use crate::tools::registration::Registration;

impl Core {
    /// Notes that all that a node had cached of a stream when it was pulled is in the stream's ring.
    pub(crate) fn pull_is_current(&mut self, stream: SourceId) {
        let Some(name) = self.streams.get(&stream).map(StreamState::name) else { absent!("stream", return) };
        let (nspace, rank, channel) = (name.source.nspace.clone(), name.source.rank, name.channel);
        self.jobs.get_mut(&nspace).into_iter().for_each(|job| job.pull_is_current(rank, channel));
        self.announce_cached_of(&nspace);
    }

    /// Informs the tools whose registrations name `nspace` if they have all that was cached.
    pub(crate) fn announce_cached_of(&mut self, nspace: &Nspace) {
        for (peer_id, handler) in self.tools.naming(nspace) {
            self.announce_cached(peer_id, handler);
        }
    }

    /// Informs `peer_id`, once, if its registration `handler` has all that was cached when it was made.
    pub(crate) fn announce_cached(&mut self, peer_id: PeerId, handler: u32) {
        let Some(registration) = self.tools.get(&peer_id).and_then(|peer| peer.registration(handler)) else {
            return;
        };
        // The pulls that nodes are asked for follow from the changes of registrations.
        let is_current = |nspace: &Nspace| {
            let arrived = |job| registration.pulls_are((nspace, job), |pull| pull.is_current);
            !self.tools.is_changed(nspace) && self.jobs.get(nspace).is_none_or(arrived)
        };
        if registration.awaits_cached()
            && registration.jobs().all(is_current)
            && let Some(peer) = self.tools.get_mut(&peer_id)
        {
            peer.registration_mut(handler).into_iter().for_each(Registration::has_cached);
            peer.answer(&ToTool::Cached { handler });
        }
    }
}
