//! Breaks the shipping code at each of its points, one at a time, and requires that a model detects
//! it. So every model checks something, and every fence, ordering or check is needed.
#![cfg(loom)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use iof_loom_tests::{check, for_each_model, models};
use iof_shm_ring::{Point, break_at};

/// Loom's message for an access to a byte that is not ordered after or before another thread's.
const RACE: &str = "Causality violation";
const BYTE: &str = "a byte has the wrong number";
const END: &str = "came before the last byte and gap";
const WAKE: &str = "a wake-up was lost";
const DUE: &str = "a reader that was due lost a byte";
const TWO: &str = "a snapshot of two generations";
const ROOM: &str = "the writer was not notified of room";

/// Each point with the model that detects its break, and part of that model's message.
const DETECTED: &[(Point, fn(), &str)] = &[
    (Point::ClaimFence, models::overwriting, RACE),
    (Point::ClaimCheck, models::overwriting, RACE),
    (Point::Tail, models::unnoted, RACE),
    (Point::Sealed, models::reconfigured, END),
    (Point::Complete, models::ended, END),
    (Point::WantedFence, models::room, ROOM),
    (Point::WantedCheck, models::room, ROOM),
    (Point::PinSeen, models::overwriting, RACE),
    (Point::DueCheck, models::reconfigured_twice, DUE),
    (Point::LargeSpan, models::growth_refused, DUE),
    (Point::Allocated, models::allocated, RACE),
    (Point::AllocatedLoad, models::allocated, RACE),
    (Point::EntryFence, models::reused_entry, BYTE),
    (Point::EntryPublished, models::early, BYTE),
    (Point::IndexFence, models::early, BYTE),
    (Point::EntryLoadFence, models::reused_entry, BYTE),
    (Point::EntryLoadCheck, models::reused_entry, BYTE),
    (Point::BaseFence, models::early, BYTE),
    (Point::ObserveFence, models::gating, RACE),
    (Point::PinTaken, models::released, RACE),
    (Point::PinFence, models::overwriting, RACE),
    (Point::PinCheck, models::lapped, BYTE),
    (Point::PinConsumed, models::gating, RACE),
    (Point::PinReleased, models::released, RACE),
    (Point::PinDropped, models::dropped, RACE),
    (Point::RoomFence, models::room, ROOM),
    (Point::ThresholdFence, models::woken_for_a_group, WAKE),
    (Point::CopyFence, models::copied, BYTE),
    (Point::CopyCheck, models::copied, BYTE),
    (Point::UpdateFence, models::woken, WAKE),
    (Point::BitsFence, models::woken, WAKE),
    (Point::TakeFence, models::woken, WAKE),
    (Point::ArmFence, models::woken, WAKE),
    (Point::ReuseFence, models::inspected, TWO),
    (Point::Reused, models::inspected, TWO),
    (Point::GenerationFence, models::inspected, TWO),
    (Point::SnapshotFence, models::inspected, TWO),
    (Point::SnapshotCheck, models::inspected, TWO),
];

#[test]
fn every_broken_point_is_detected_by_a_model() {
    let mut undetected = Vec::new();
    for &(point, model, expected) in DETECTED {
        break_at(Some(point));
        let outcome = catch_unwind(AssertUnwindSafe(|| check(model)));
        break_at(None);
        let Err(panic) = outcome else {
            undetected.push(point);
            continue;
        };
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
        assert!(message.contains(expected), "{point:?} was detected for another reason: {message}");
    }
    assert!(undetected.is_empty(), "no model detects these broken points: {undetected:?}");
}

#[test]
fn every_point_and_model_is_listed_once_in_the_memory_model() {
    let doc = [
        include_str!("../../docs/src/memory-model.md"),
        include_str!("../../docs/src/internals/ring-words.md"),
        include_str!("../../docs/src/internals/ring-models.md"),
    ]
    .concat();
    let rows = |name: &str| doc.lines().filter(|line| line.starts_with(&format!("| `{name}` |"))).count();
    for &point in Point::ALL {
        assert_eq!(DETECTED.iter().filter(|(broken, ..)| *broken == point).count(), 1, "{point:?}");
        assert_eq!(rows(&format!("{point:?}")), 1, "{point:?}");
    }
    macro_rules! names {
        ($($name:ident)*) => { [$(stringify!($name)),*] };
    }
    for name in for_each_model!(names) {
        assert_eq!(rows(name), 1, "{name}");
    }
}
