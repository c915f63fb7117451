//! Who has news and who sleeps: one pass over the streams that moved, at the end of each batch.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::area::Area;
use crate::stream::Stream;
use crate::sync::{Ordering::SeqCst, Point, fence_at};

/// Collects the areas that a batch touched, and rings each sleeping tool's bell once.
#[derive(Default)]
pub struct Wakes {
    touched: Vec<Arc<Area>>,
}

impl Wakes {
    /// Nothing touched yet.
    pub fn new() -> Self {
        Wakes::default()
    }

    /// Tells the readers of `streams`, which moved since the last call, and wakes those that sleep.
    pub fn deliver<'a>(&mut self, streams: impl IntoIterator<Item = &'a Stream>) {
        // The news (tails, drops, ends) comes before the look at the ready bits. Partner: the fence in
        // `Area::take_ready`.
        fence_at(Point::NewsFence, SeqCst);
        for stream in streams {
            stream.each_to_tell(|area, slot| {
                area.mark_ready(slot);
                // Private to this side; only the thread that writes the streams uses it.
                if area.touched().is_some_and(|touched| !touched.swap(true, Relaxed)) {
                    self.touched.push(Arc::clone(area));
                }
            });
        }
        // The ready bits come before the look at `armed`. Partner: the fence in `Area::arm`.
        fence_at(Point::BitsFence, SeqCst);
        for area in self.touched.drain(..) {
            if let Some(touched) = area.touched() {
                touched.store(false, Relaxed);
            }
            area.ring_if_armed();
        }
    }
}
