//! Who has news and who sleeps: told once for all streams that moved, at the end of each batch.

use crate::stream::Stream;
use crate::sync::{Ordering::SeqCst, Point, fence_at};

/// Tells the readers of `streams`, which moved since the last call, and rings the doorbell of each
/// tool that sleeps, once.
///
/// The thread that writes the streams calls it. Streams of one tool may be told of by several
/// threads.
pub fn notify<'a>(streams: impl IntoIterator<Item = &'a Stream, IntoIter: Clone>) {
    let streams = streams.into_iter();
    // The news (tails, drops, ends) come before the look at the ready bits. Partner: the fence in
    // `ReaderPage::take_ready`.
    fence_at(Point::NewsFence, SeqCst);
    streams.clone().for_each(Stream::mark_ready);
    // The ready bits come before the look at `armed`. Partner: the fence in `ReaderPage::arm`.
    fence_at(Point::BitsFence, SeqCst);
    streams.for_each(Stream::wake);
}
