//! The shipping code broken at each of its points, one at a time: a model must notice. So no model
//! is trusted that checks nothing, and no fence, order or check stays that nobody needs.
#![cfg(loom)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use iof_loom_tests::{check, for_each_model, models};
use iof_shm_ring::{Point, break_at};

/// Loom saw an access to a byte that is not ordered after or before another thread's.
const RACE: &str = "Causality violation";
const BYTE: &str = "a byte is not the one that belongs here";
const END: &str = "came before the last byte and gap";
const WAKE: &str = "a wake-up was lost";
const DUE: &str = "a reader that was due lost a byte";
const TWO: &str = "a snapshot of two generations";
const ROOM: &str = "a writer waits in vain";

/// Each point with the model that notices when it is broken, and what that says then.
const CAUGHT: &[(Point, fn(), &str)] = &[
    (Point::ClaimFence, models::overwriting, RACE),
    (Point::ClaimCheck, models::overwriting, RACE),
    (Point::Tail, models::unnoted, RACE),
    (Point::Sealed, models::reconfigured, END),
    (Point::Complete, models::ended, END),
    (Point::WantedFence, models::room, ROOM),
    (Point::WantedCheck, models::room, ROOM),
    (Point::HoldSeen, models::overwriting, RACE),
    (Point::DueCheck, models::reconfigured_twice, DUE),
    (Point::EntryFence, models::reused_entry, BYTE),
    (Point::EntryPublished, models::early, BYTE),
    (Point::IndexFence, models::early, BYTE),
    (Point::EntryLookFence, models::reused_entry, BYTE),
    (Point::EntryLookCheck, models::reused_entry, BYTE),
    (Point::BaseFence, models::early, BYTE),
    (Point::LookFence, models::gated, RACE),
    (Point::HoldTaken, models::released, RACE),
    (Point::HoldFence, models::overwriting, RACE),
    (Point::HoldCheck, models::lapped, BYTE),
    (Point::HoldConsumed, models::gated, RACE),
    (Point::HoldReleased, models::released, RACE),
    (Point::HoldDropped, models::dropped, RACE),
    (Point::RoomFence, models::room, ROOM),
    (Point::AskFence, models::woken_for_a_group, WAKE),
    (Point::CopyFence, models::copied, BYTE),
    (Point::CopyCheck, models::copied, BYTE),
    (Point::NewsFence, models::woken, WAKE),
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
fn a_model_notices_whatever_is_broken() {
    let mut unnoticed = Vec::new();
    for &(point, model, says) in CAUGHT {
        break_at(Some(point));
        let outcome = catch_unwind(AssertUnwindSafe(|| check(model)));
        break_at(None);
        let Err(panic) = outcome else {
            unnoticed.push(point);
            continue;
        };
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
        assert!(said.contains(says), "{point:?} was noticed for another reason: {said}");
    }
    assert!(unnoticed.is_empty(), "no model noticed that {unnoticed:?} are broken");
}

#[test]
fn every_point_is_broken_once_and_has_its_line_in_the_table() {
    let doc = include_str!("../../docs/src/memory-model.md");
    let rows = |name: &str| doc.lines().filter(|line| line.starts_with(&format!("| `{name}` |"))).count();
    for &point in Point::ALL {
        assert_eq!(CAUGHT.iter().filter(|(broken, ..)| *broken == point).count(), 1, "{point:?}");
        assert_eq!(rows(&format!("{point:?}")), 1, "{point:?}");
    }
    macro_rules! names {
        ($($name:ident)*) => { [$(stringify!($name)),*] };
    }
    for name in for_each_model!(names) {
        assert_eq!(rows(name), 1, "{name}");
    }
}
