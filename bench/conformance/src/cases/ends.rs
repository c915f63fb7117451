//! The last bytes of ranks.

use crate::case::{Case, Size};
use crate::launcher::Capability::{Channels, Ranks};
use crate::text::{expect_bytes, expect_lines, expect_texts};

/// A rank writes lines and ends at once.
macro_rules! last_lines {
    ($name:literal, $promise:literal, $end:literal) => {
        Case {
            name: $name,
            promise: $promise,
            needs: &[],
            size: Size { ranks: 1, count: 600 },
            run: |trial| {
                let ended = trial.run(trial.job(&["lines:COUNT:100:60000", $end]))?.with_failure()?;
                // A launcher may say there what happened.
                let lines =
                    ended.stdout.split_inclusive(|byte| *byte == b'\n').filter(|line| line.starts_with(b"<"));
                expect_lines(&lines.collect::<Vec<_>>().concat(), 1, "out", trial.size.count, 100)
            },
        }
    };
}

pub const CASES: &[Case] = &[
    last_lines!("ends-exit", "The last 60 KB of a rank that exits with an error arrive.", "exit:9"),
    last_lines!("ends-sigkill", "The last 60 KB of a rank that is killed arrive.", "kill:KILL"),
    last_lines!("ends-abort", "The last 60 KB of a rank that aborts arrive.", "abort"),
    last_lines!("ends-segv", "The last 60 KB of a rank that crashes arrive.", "kill:SEGV"),
    Case {
        name: "ends-cut-line",
        promise: "Half a line of a rank that is killed arrives.",
        needs: &[],
        size: Size { ranks: 1, count: 1 },
        run: |trial| {
            let ended = trial.run(trial.job(&["text:one\\nhalf of tw", "kill:KILL"]))?.with_failure()?;
            let expected = b"one\nhalf of tw";
            expect_bytes(ended.stdout.get(..expected.len()).unwrap_or(&ended.stdout), expected)
        },
    },
    Case {
        name: "ends-last-words-on-stderr",
        promise: "What a rank writes to stderr before it fails arrives.",
        needs: &[Channels],
        size: Size { ranks: 1, count: 1 },
        run: |trial| {
            let ended = trial
                .run(trial.job(&["to:stderr", "text:fatal\\c disk on fire\\n", "exit:1"]))?
                .with_failure()?;
            let has = ended
                .stderr
                .split_inclusive(|byte| *byte == b'\n')
                .any(|line| line.ends_with(b"fatal: disk on fire\n"));
            if has { Ok(()) } else { Err(format!("stderr has {}", crate::text::show(&ended.stderr))) }
        },
    },
    Case {
        name: "ends-64-short-ranks",
        promise: "One line of each of 64 ranks that end at once arrives.",
        needs: &[Ranks],
        size: Size { ranks: 64, count: 1 },
        run: |trial| {
            let ended = trial.pass(trial.job(&["text:%.\\n"]))?;
            expect_texts(
                &ended.stdout,
                (0..trial.size.ranks).rev().map(|rank| format!("{rank}.\n").into_bytes()),
            )
        },
    },
    Case {
        name: "ends-at-different-times",
        promise: "Ranks that end early and late both have all their lines.",
        needs: &[Ranks],
        size: Size { ranks: 8, count: 500 },
        run: |trial| {
            let ended = trial.pass(trial.job(&["on:0,3,5:pause:400", "lines:COUNT:64"]))?;
            expect_lines(&ended.stdout, trial.size.ranks, "out", trial.size.count, 64)
        },
    },
    Case {
        name: "ends-child",
        promise: "Output of a rank's child that outlives the rank by 300 ms arrives.",
        needs: &[],
        size: Size { ranks: 1, count: 100 },
        run: |trial| {
            let ended = trial.pass(trial.job(&["text:parent\\n", "child", "pause:300", "lines:COUNT:64"]))?;
            let rest = ended.stdout.strip_prefix(b"parent\n").unwrap_or(&ended.stdout);
            expect_lines(rest, 1, "out", trial.size.count, 64)
        },
    },
    Case {
        name: "ends-child-in-a-session",
        promise: "Output of a rank's child in a session of its own arrives, 300 ms after the end of the rank.",
        needs: &[],
        size: Size { ranks: 1, count: 100 },
        run: |trial| {
            let ended = trial.pass(trial.job(&["session", "pause:300", "lines:COUNT:64"]))?;
            expect_lines(&ended.stdout, 1, "out", trial.size.count, 64)
        },
    },
];
