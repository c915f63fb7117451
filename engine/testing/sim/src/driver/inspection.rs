//! The tables that a simulator compares with its own model.

use iof_capture::SourceId;
use iof_core::{Core, PeerId};
use iof_proto::Directives;
use iof_shm_ring::{ReaderId, Start};

/// Returns the streams, each with the registrations that read it.
pub(super) fn streams(core: &Core) -> impl Iterator<Item = (SourceId, impl Iterator<Item = (PeerId, u32)>)> {
    core.streams.iter().map(|(source, stream)| (*source, stream.readers()))
}

/// Returns the registration for which a tool has the reader `id`.
pub(super) fn handler_of(core: &Core, peer_id: PeerId, id: ReaderId) -> Option<u32> {
    Some(core.tools.get(&peer_id)?.reading(id)?.handler)
}

/// Returns the directives of a registration and where its readers start.
pub(super) fn registered(core: &Core, peer_id: PeerId, handler: u32) -> Option<(&Directives, Start)> {
    let registration = core.tools.get(&peer_id)?.registration(handler)?;
    Some((registration.directives(), registration.start()))
}
