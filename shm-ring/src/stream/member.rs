//! The readers of a stream, as the writer's side knows them.

use std::cell::Cell;
use std::sync::Arc;

use crate::layout::NONE;
use crate::reader_id::ReaderId;
use crate::reader_page::ReaderPage;
use crate::ring::Ring;
use crate::sync::{Ordering::Acquire, Point, order_at};

/// One reader.
pub(super) struct Member {
    pub page: Arc<ReaderPage>,
    pub id: ReaderId,
    /// The generation to which the slot's words refer.
    pub ring: Arc<Ring>,
    pub may_block: bool,
    /// Set if it pins only what it borrows.
    pub non_gating: bool,
    /// Set if the stream stays in its generation until this reader is detached.
    pub holds: bool,
    /// Set if it is still in an older generation, but pins the newest one from its first byte on.
    pub due: bool,
    /// Set if this batch set its ready bit.
    pub has_ready: Cell<bool>,
}

/// The properties of the newest generation on which pins depend.
#[derive(Clone, Copy)]
pub(super) struct Newest {
    pub generation: u64,
    pub base: u64,
    pub overwrite: bool,
}

/// Returns the lowest position at or above `floor` that one of `members` pins in the newest
/// generation, else [`NONE`].
pub(super) fn lowest_pin(members: &[Member], newest: Newest, floor: u64) -> u64 {
    members.iter().map(|member| effective_pin(member, newest, floor)).min().unwrap_or(NONE)
}

/// Returns the position that `member` pins in the newest generation, as far as it protects
/// anything, else [`NONE`].
pub(super) fn effective_pin(member: &Member, newest: Newest, floor: u64) -> u64 {
    if member.ring.generation() != newest.generation {
        let pins = member.due && !newest.overwrite && !member.non_gating;
        return if pins { newest.base } else { NONE };
    }
    let Some(slot) = member.page.slot(member.id) else { return NONE };
    // Loaded once, from a page that the tool can write. Partner: the Release stores in
    // `Reader::pin_cursor`, `Reader::consume`, `Reader::release` and `Reader::drop`, which order
    // the reader's loads before the writer's reuse of the memory.
    let pinned = slot.pinned.load(order_at(Point::PinSeen, Acquire));
    // A position below the oldest byte protects nothing; the reader detects that itself.
    if pinned < floor { NONE } else { pinned }
}
