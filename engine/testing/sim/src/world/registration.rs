//! The random registrations of tools.

use iof_capture::Gating;
use iof_shm_ring::{Grouping, Start};

use crate::rng::Rng;
use crate::script::Setting;
use crate::server::Server;
use crate::source::Source;
use crate::tool::{Manner, Registration, Tool};

/// Most registrations of one tool at a time.
const MAX_REGISTRATIONS: usize = 8;

/// Returns a registration of a tool for a stream, unless the tool has ended or has too many.
pub(super) fn registration(
    setting: &Setting,
    server: &Server,
    (number, tool): (usize, &Tool),
    source: &Source,
    rng: &mut Rng,
) -> Option<Registration> {
    if tool.gone || tool.killed || source.removed || server.readers_by(number) >= MAX_REGISTRATIONS {
        return None;
    }
    let gating = match rng.below(16) {
        0..3 => Gating::Never,
        3..12 if tool.may_block => Gating::Block,
        _ => Gating::Keep,
    };
    let bytes = rng.size(8192);
    let time = rng.pick(&[None, Some(std::time::Duration::ZERO)]);
    let grouping = (tool.manner == Manner::Slow && rng.chance(64)).then_some(Grouping { bytes, time });
    // A reader that keeps up loses nothing, and one that may hold the source back neither.
    let keeps_up = tool.manner == Manner::Prompt && setting.calm && source.pipe.is_some();
    let registration = Registration {
        source: source.id,
        start: rng.pick(&[Start::Oldest, Start::Oldest, Start::Now]),
        begin: 0,
        produced: 0,
        unavailable: 0,
        next: 0,
        delivered: 0,
        lost: 0,
        strict: gating == Gating::Block && source.always_blocks,
        from_first: false,
        gating,
        keeps_up,
        grouping,
        flush_until: None,
        ended: None,
    };
    Some(registration)
}
