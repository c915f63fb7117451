//! The shipping code broken at each of its points, one at a time: a model must notice. So no model is trusted that
//! checks nothing, and no fence stays that nobody needs.
#![cfg(loom)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use iof_loom_tests::{check, models};
use iof_shm_ring::{Point, break_at};

#[test]
fn scan() {
    let only = std::env::var("POINT").ok();
    for &point in Point::ALL {
        if only.as_ref().is_some_and(|o| *o != format!("{point:?}")) {
            continue;
        }
        for (name, model) in models::ALL {
            break_at(Some(point));
            let start = std::time::Instant::now();
            let failed = catch_unwind(AssertUnwindSafe(|| check(*model)));
            break_at(None);
            if let Err(e) = failed {
                let m = e
                    .downcast_ref::<String>()
                    .cloned()
                    .or(e.downcast_ref::<&str>().map(|s| s.to_string()))
                    .unwrap_or_default();
                eprintln!("SCAN {point:?} {name} {:?} {}", start.elapsed(), m.replace('\n', " "));
            }
        }
        eprintln!("SCAN {point:?} done");
    }
}
