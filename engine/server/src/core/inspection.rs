//! What a simulator compares with its own model.

use iof_capture::SourceId;
use iof_proto::Directives;
use iof_shm_ring::{ReaderId, Start};

use crate::core::Core;
use crate::core::effects::Command;
use crate::core::ids::PeerId;

impl Core {
    /// Returns the commands that were not taken.
    pub(crate) fn queued_commands(&self) -> &[Command] {
        &self.effects.commands
    }

    /// Returns the streams, each with the registrations that read it.
    pub(crate) fn streams(&self) -> impl Iterator<Item = (SourceId, impl Iterator<Item = (PeerId, u32)>)> {
        self.streams.iter().map(|(source, stream)| (*source, stream.readers()))
    }

    /// Returns the registration for which a tool has the reader `id`.
    pub(crate) fn handler_of(&self, peer_id: PeerId, id: ReaderId) -> Option<u32> {
        Some(self.tools.get(&peer_id)?.reading(id)?.handler)
    }

    /// Returns the directives of a registration and where its readers start.
    pub(crate) fn registered(&self, peer_id: PeerId, handler: u32) -> Option<(&Directives, Start)> {
        let registration = self.tools.get(&peer_id)?.registration(handler)?;
        Some((registration.directives(), registration.start()))
    }
}
