//! Ready bits and doorbells: readers are notified once for all streams that changed, at the end of
//! each batch.

use crate::stream::Stream;
use crate::sync::{Ordering::SeqCst, Point, fence_at};

/// Sets the ready bits of the readers of `streams`, which changed since the last call, and rings
/// the doorbell of each sleeping tool once.
///
/// The thread that writes the streams must call it. Several threads may notify the same tool, each
/// for its own streams.
pub fn notify<'a>(streams: impl IntoIterator<Item = &'a Stream, IntoIter: Clone>) {
    let streams = streams.into_iter();
    // Orders the updates (tails, drops, ends) before the loads of the ready bits, thresholds and
    // cursors. Partner: the fences in `ReaderPage::take_ready` and `Reader::set_threshold`.
    fence_at(Point::UpdateFence, SeqCst);
    streams.clone().for_each(Stream::mark_ready);
    // Orders the ready bits before the load of `armed`. Partner: the fence in `ReaderPage::arm`.
    fence_at(Point::BitsFence, SeqCst);
    streams.for_each(Stream::wake);
}
