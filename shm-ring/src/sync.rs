//! The one door to atomics, so that loom can check the code that ships.
//!
//! Everything in this crate that orders memory goes through these names; under `--cfg loom` they
//! are loom's. Each place whose order or check the protocols rest on has a name, a [`Point`]:
//! `docs/src/memory-model.md` has the table, and the model checker breaks them one by one to see
//! that its models notice.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};

macro_rules! points {
    ($($name:ident: $what:literal,)*) => {
        /// The places that the protocols rest on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Point { $(#[doc = $what] $name,)* }

        #[cfg(loom)]
        impl Point {
            /// All of them.
            pub const ALL: &[Point] = &[$(Point::$name,)*];
        }
    };
}

points! {
    ClaimFence: "between the claim and the look at the holds, `Writer::reserve`",
    ClaimCheck: "the look at the holds after the claim, `Writer::reserve`",
    Tail: "the store of `tail`, `Writer::commit`",
    Sealed: "the store of `sealed`, `Writer::seal`",
    Complete: "the store of `complete`, `Writer::complete`",
    WantedFence: "between the wish for room and the look at the holds, `Writer::wait_for`",
    WantedCheck: "the look at the holds after the wish for room, `Stream::must_wait`",
    HoldSeen: "the load of `hold`, `stream::effective_hold`",
    DueCheck: "whether a reader is still to come along to the newest generation, `Stream::may_become`",
    EntryFence: "before an entry is overwritten, `Marks::put`",
    EntryPublished: "the store of the entries' `tail`, `Marks::put`",
    IndexFence: "after the load of the entries' `tail`, `Marks::published`",
    EntryLookFence: "after the loads of an entry, `Marks::look`",
    EntryLookCheck: "whether the entry was overwritten meanwhile, `Marks::look`",
    BaseFence: "between the load of `dropped` and that of `index_tail`, `index::dropped_at`",
    LookFence: "between the loads of `tail`, `sealed` and `complete` and that of `dropped`, `Reader::look`",
    HoldTaken: "the store of `hold`, `Reader::hold_here`",
    HoldFence: "between the hold and the look at the claim, `Reader::hold_here`",
    HoldCheck: "the look at the claim after the hold, `Reader::hold_here`",
    HoldConsumed: "the store of `hold`, `Reader::consume`",
    HoldReleased: "the store of `hold`, `Reader::release`",
    HoldDropped: "the store of `hold` when a reader is dropped",
    RoomFence: "between the hold and the look at the wish for room, `Reader::consume`",
    AskFence: "between the threshold and the next look, `Reader::ask_for`",
    CopyFence: "between the copied bytes and the look at the claim, `Reader::is_still_here`",
    CopyCheck: "the look at the claim after the copy, `Reader::copy`",
    NewsFence: "between the news and the ready bits, `notify`",
    BitsFence: "between the ready bits and the look at `armed`, `notify`",
    TakeFence: "between the taken ready bits and the look at the rings, `ReaderPage::take_ready`",
    ReuseFence: "between the generation that is no more and the words of the next, `Ring::reuse`",
    Reused: "the store of `generation`, `Ring::initialise`",
    GenerationFence: "after the load of `generation`, `inspect::generation`",
    SnapshotFence: "between the words and the second look at the generation, `inspect::look`",
    SnapshotCheck: "the second look at the generation, `inspect::look`",
    ArmFence: "between `armed` and the look at the ready bits, `ReaderPage::arm`",
}

/// A fence, unless the model checker broke it.
#[inline(always)]
pub(crate) fn fence_at(point: Point, ordering: Ordering) {
    if !broken(point) {
        fence(ordering);
    }
}

/// The ordering of a store or load, `Relaxed` if the model checker broke it.
#[inline(always)]
pub(crate) fn order_at(point: Point, ordering: Ordering) -> Ordering {
    if broken(point) { Ordering::Relaxed } else { ordering }
}

/// Whether the model checker broke this point, so that a check here is to be left out.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn broken(_: Point) -> bool {
    false
}

#[cfg(loom)]
pub(crate) use known_bad::broken;

/// Known-bad variants of the code, for the models to find.
#[cfg(loom)]
pub mod known_bad {
    use super::Point;
    use std::cell::Cell;

    thread_local! {
        // The threads of a model all run on the thread that checks it.
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
