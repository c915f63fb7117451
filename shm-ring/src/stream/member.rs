//! The readers of a stream, as the writer's side knows them.

use std::cell::Cell;
use std::sync::Arc;

use crate::layout::NONE;
use crate::reader_page::ReaderPage;
use crate::ring::Ring;
use crate::sync::{Ordering::Acquire, Point, order_at};

/// One reader.
pub(super) struct Member {
    pub page: Arc<ReaderPage>,
    pub slot: u32,
    /// The generation that the slot's words speak of.
    pub ring: Arc<Ring>,
    pub may_block: bool,
    /// It holds only what it borrows.
    pub non_gating: bool,
    /// Still in an older generation, but holds the newest from its first byte on.
    pub due: bool,
    /// The batch that is being told of has news for it, and it had none before.
    pub has_ready: Cell<bool>,
}

/// The newest generation, as far as holds depend on it.
#[derive(Clone, Copy)]
pub(super) struct Newest {
    pub generation: u64,
    pub base: u64,
    pub overwrite: bool,
}

/// The lowest position at or above `floor` that one of `members` holds in the newest generation,
/// else [`NONE`].
pub(super) fn lowest_hold(members: &[Member], newest: Newest, floor: u64) -> u64 {
    members.iter().map(|member| effective_hold(member, newest, floor)).min().unwrap_or(NONE)
}

/// The position that `member` holds in the newest generation, as far as it protects anything, else
/// [`NONE`].
pub(super) fn effective_hold(member: &Member, newest: Newest, floor: u64) -> u64 {
    if member.ring.generation() != newest.generation {
        let held = member.due && !newest.overwrite && !member.non_gating;
        return if held { newest.base } else { NONE };
    }
    let Some(slot) = member.page.slot(member.slot) else { return NONE };
    // Loaded once, from a page that the tool can write. Partner: the Release stores in
    // `Reader::consume`, `Reader::hold_here` and `Reader::release`: what the reader read is read
    // before we reuse it.
    let hold = slot.hold.load(order_at(Point::HoldSeen, Acquire));
    // Below the oldest byte it protects nothing: the reader will find out itself.
    if hold < floor { NONE } else { hold }
}
