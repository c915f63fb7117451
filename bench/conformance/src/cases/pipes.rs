//! Uses by ranks of the descriptors that they get.

use crate::case::{Case, Size};
use crate::launcher::Capability::Ranks;
use crate::text::{expect_bytes, expect_lines, noise};

macro_rules! lines_after {
    ($name:literal, $promise:literal, $first:literal) => {
        Case {
            name: $name,
            promise: $promise,
            needs: &[Ranks],
            size: Size { ranks: 4, count: 4000 },
            run: |trial| {
                let ended = trial.pass(trial.job(&[$first, "lines:COUNT:64"]))?;
                expect_lines(&ended.stdout, trial.size.ranks, "out", trial.size.count, 64)
            },
        }
    };
}

pub const CASES: &[Case] = &[
    lines_after!(
        "pipes-nonblocking",
        "A rank that makes its stdout non-blocking loses nothing.",
        "flag:nonblocking"
    ),
    lines_after!(
        "pipes-packets",
        "A rank that turns its pipe to packets (O_DIRECT) loses nothing.",
        "flag:packets"
    ),
    lines_after!("pipes-larger", "A rank that makes its pipe larger loses nothing.", "pipe-size:262144"),
    lines_after!("pipes-reopened", "A rank can open /dev/stdout again.", "reopen"),
    Case {
        name: "pipes-writev",
        promise: "Lines that are written by writev(2) are whole.",
        needs: &[Ranks],
        size: Size { ranks: 4, count: 2000 },
        run: |trial| {
            let ended = trial.pass(trial.job(&["pieces:COUNT:90"]))?;
            expect_lines(&ended.stdout, trial.size.ranks, "out", trial.size.count, 90)
        },
    },
    Case {
        name: "pipes-sendfile",
        promise: "Pages of a file that are spliced into stdout arrive.",
        needs: &[],
        size: Size { ranks: 1, count: 4 << 20 },
        run: |trial| {
            let ended = trial.pass(trial.job(&["sendfile:COUNT"]))?;
            expect_bytes(&ended.stdout, &noise(0, trial.size.count as usize))
        },
    },
];
