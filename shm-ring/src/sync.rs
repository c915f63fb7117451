//! The one door to atomics, through which loom can check the shipping code.
//!
//! Everything in this crate that orders memory uses the names of this module; under `--cfg loom`
//! they are loom's. Each ordering or check on which the protocols rest has a name, a [`Point`].
//! `docs/src/memory-model.md` lists them. The loom tests break them one at a time and require that
//! a model fails.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};

macro_rules! points {
    ($($name:ident: $what:literal,)*) => {
        /// A fence, ordering or check on which the protocols rest.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Point { $(#[doc = $what] $name,)* }

        #[cfg(loom)]
        impl Point {
            /// All points.
            pub const ALL: &[Point] = &[$(Point::$name,)*];
        }
    };
}

points! {
    ClaimFence: "between the claimed position and the loads of the pinned positions, `Writer::reserve`",
    ClaimCheck: "the loads of the pinned positions after the claim, `Writer::reserve`",
    Tail: "the store of `tail`, `Writer::commit`",
    Sealed: "the store of `sealed`, `Writer::seal`",
    Complete: "the store of `complete`, `Writer::end`",
    WantedFence: "between the request for room and the loads of the pinned positions, `Writer::wait_for`",
    WantedCheck: "the loads of the pinned positions after the request for room, `Stream::must_wait`",
    PinSeen: "the load of `pinned`, `stream::effective_pin`",
    DueCheck: "the check for readers that are due in the newest generation, `Stream::can_apply`",
    LargeSpan: "the check for a read into most of a small ring, `Stream::has_large_span`",
    Allocated: "the store of the pointer to the memory, `LateMemory::set`",
    AllocatedLoad: "the load of the pointer to the memory, `LateMemory::get`",
    EntryFence: "before an entry is overwritten, `Marks::put`",
    EntryPublished: "the store of the entries' `tail`, `Marks::put`",
    IndexFence: "after the load of the entries' `tail`, `Marks::published`",
    EntryLoadFence: "after the loads of an entry, `Marks::load`",
    EntryLoadCheck: "the check whether the entry was retired meanwhile, `Marks::load`",
    BaseFence: "between the load of `dropped` and that of `index_tail`, `index::dropped_at`",
    ObserveFence: "between the loads of `tail`, `sealed` and `complete` and that of `dropped`, `Reader::observe`",
    PinTaken: "the store of `pinned`, `Reader::pin_cursor`",
    PinFence: "between the pinned position and the load of the claimed position, `Reader::pin_cursor`",
    PinCheck: "the check of the claimed position after the pin, `Reader::pin_cursor`",
    PinConsumed: "the store of `pinned`, `Reader::consume`",
    PinReleased: "the store of `pinned`, `Reader::release`",
    PinDropped: "the store of `pinned` when a reader is dropped",
    RoomFence: "between the pinned position and the load of the request for room, `Reader::notify_of_room`",
    ThresholdFence: "between the threshold and the next load from the ring, `Reader::set_threshold`",
    CopyFence: "between the copied bytes and the load of the claimed position, `Reader::is_cursor_unclaimed`",
    CopyCheck: "the check of the claimed position after the copy, `Reader::copy_with`",
    UpdateFence: "between the updates and the loads of the ready bits, `notify`",
    BitsFence: "between the ready bits and the load of `armed`, `notify`",
    TakeFence: "between the taken ready bits and the loads from the rings, `ReaderPage::take_ready`",
    ReuseFence: "between \"no generation\" and the words of the next one, `Ring::reuse`",
    Reused: "the store of `generation`, `Ring::initialise`",
    GenerationFence: "after the load of `generation`, `inspect::generation`",
    SnapshotFence: "between the words and the second load of the generation, `inspect::load_words`",
    SnapshotCheck: "the second check of the generation, `inspect::load_words`",
    ArmFence: "between `armed` and the loads of the ready bits, `ReaderPage::arm`",
}

/// Executes a fence, unless the model checker broke this point.
#[inline(always)]
pub(crate) fn fence_at(point: Point, ordering: Ordering) {
    if !broken(point) {
        fence(ordering);
    }
}

/// Returns the ordering of a store or load: `Relaxed` if the model checker broke this point.
#[inline(always)]
pub(crate) fn order_at(point: Point, ordering: Ordering) -> Ordering {
    if broken(point) { Ordering::Relaxed } else { ordering }
}

/// Returns whether the model checker broke this point, so that its check must be omitted.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn broken(_: Point) -> bool {
    false
}

#[cfg(loom)]
pub(crate) use known_bad::broken;

/// Known-bad variants of the code, which the models must detect.
#[cfg(loom)]
pub mod known_bad {
    use super::Point;
    use std::cell::Cell;

    thread_local! {
        // All threads of a model run on the thread that checks it.
        static BROKEN: Cell<Option<Point>> = const { Cell::new(None) };
    }

    pub(crate) fn broken(point: Point) -> bool {
        BROKEN.get() == Some(point)
    }

    /// Breaks the code at `point`, or nowhere, for the models that this thread checks from now on.
    pub fn break_at(point: Option<Point>) {
        BROKEN.set(point);
    }
}
