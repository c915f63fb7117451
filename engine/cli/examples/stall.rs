//! A rank for the integration tests that writes from memory whose page faults are resolved late.
//!
//! ```text
//! stall DIR
//! ```
//!
//! For N of 1 and 2, the rank waits until the fifo `DIR/goN` is opened for writing, writes
//! `before N`, begins to write `after N` from a missing page, creates the file `DIR/stalledN`, and
//! resolves the page when `DIR/resolveN` is opened.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a broken test program should fail loudly")]

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::{env, io, thread};

use iof_testing::stalled::StalledPage;

fn main() {
    let directory = PathBuf::from(env::args_os().nth(1).unwrap());
    for round in 1..=2 {
        let path = |name: &str| directory.join(format!("{name}{round}"));
        let (page, text) = (StalledPage::new().unwrap(), format!("after {round}\n"));
        File::open(path("go")).unwrap();
        io::stdout().write_all(format!("before {round}\n").as_bytes()).unwrap();
        thread::scope(|threads| {
            let writer = threads.spawn(|| page.write_to(io::stdout(), text.len()).unwrap());
            page.wait_for_use().unwrap();
            File::create(path("stalled")).unwrap();
            File::open(path("resolve")).unwrap();
            page.resolve(text.as_bytes()).unwrap();
            assert_eq!(writer.join().unwrap(), text.len());
        });
    }
}
