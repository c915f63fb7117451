//! Stdin of the launcher and of ranks.

use crate::case::{Case, Size, Trial};
use crate::job::Input;
use crate::launcher::Capability::{self, Ranks, StdinAll, StdinFirst, StdinOne, StdinSome};
use crate::rank::received;
use crate::text::{expect_bytes, expect_texts, noise};

/// Pushes bytes. Each rank reports their count and sum. Ranks that `reads` names get all, others none.
fn pushed(trial: &Trial<'_>, option: Capability, reads: fn(u32) -> bool) -> Result<(), String> {
    let bytes = noise(7, trial.size.count as usize);
    let mut job = trial.job(&["sum"]);
    job.options.push(option);
    job.input = Input::Bytes(bytes.clone());
    let got = |rank| received(rank, if reads(rank) { &bytes } else { b"" }).into_bytes();
    let expected: Vec<Vec<u8>> = (0..trial.size.ranks).map(got).collect();
    expect_texts(&trial.pass(job)?.stdout, expected)
}

macro_rules! pushed {
    ($name:literal, $promise:literal, $option:ident, $size:expr, $reads:expr) => {
        Case {
            name: $name,
            promise: $promise,
            needs: &[$option, Ranks],
            size: $size,
            run: |trial| pushed(trial, $option, $reads),
        }
    };
}

const MIB: Size = Size { ranks: 4, count: 1 << 20 };
const ONE: Size = Size { ranks: 1, count: 1 };

pub const CASES: &[Case] = &[
    pushed!(
        "stdin-first",
        "Rank 0 gets all of stdin, and other ranks its end.",
        StdinFirst,
        MIB,
        |rank| rank == 0
    ),
    pushed!("stdin-all", "Each rank gets all of stdin.", StdinAll, MIB, |_| true),
    pushed!("stdin-one", "Rank 1 alone gets stdin.", StdinOne, MIB, |rank| rank == 1),
    pushed!("stdin-some", "Ranks 0 and 2 alone get stdin.", StdinSome, MIB, |rank| rank == 0 || rank == 2),
    pushed!(
        "stdin-16m",
        "16 MiB of stdin arrive as written.",
        StdinFirst,
        Size { ranks: 2, count: 16 << 20 },
        |rank| rank == 0
    ),
    pushed!(
        "stdin-empty",
        "An empty stdin has an end for each rank.",
        StdinAll,
        Size { ranks: 4, count: 0 },
        |_| true
    ),
    Case {
        name: "stdin-through",
        promise: "What a rank copies from stdin to stdout is not changed.",
        needs: &[StdinFirst],
        size: Size { ranks: 1, count: 4 << 20 },
        run: |trial| {
            let mut job = trial.job(&["cat"]);
            let bytes = noise(3, trial.size.count as usize);
            job.options.push(StdinFirst);
            job.input = Input::Bytes(bytes.clone());
            expect_bytes(&trial.pass(job)?.stdout, &bytes)
        },
    },
    Case {
        name: "stdin-prompts",
        promise: "A prompt without a newline is shown before its answer is typed, and each answer before the next.",
        needs: &[StdinFirst],
        size: Size { ranks: 1, count: 20 },
        run: |trial| {
            let mut job = trial.job(&["answer"]);
            job.options.push(StdinFirst);
            job.input = Input::Pipe;
            let mut running = trial.start(job)?;
            for at in 0..trial.size.count as usize {
                running.wait_for_each(b"? ", at + 1)?;
                running.write(format!("line {at}\n").as_bytes())?;
                running.wait_for_stdout(format!("! line {at}\n").as_bytes())?;
            }
            running.end()?.with_code(0).map(drop)
        },
    },
    Case {
        name: "stdin-not-read",
        promise: "Ranks that read no stdin end, although there is more of it than fits anywhere.",
        needs: &[StdinFirst],
        size: ONE,
        run: |trial| {
            let mut job = trial.job(&["pause:50", "text:done\\n"]);
            job.options.push(StdinFirst);
            job.input = Input::Endless;
            expect_bytes(&trial.pass(job)?.stdout, b"done\n")
        },
    },
    Case {
        name: "stdin-closed-early",
        promise: "A rank that closes its stdin early ends as it would without.",
        needs: &[StdinFirst],
        size: ONE,
        run: |trial| {
            let mut job = trial.job(&["read-line", "close:stdin", "pause:200", "text:done\\n"]);
            job.options.push(StdinFirst);
            job.input = Input::Endless;
            expect_bytes(&trial.pass(job)?.stdout, b"done\n")
        },
    },
    Case {
        name: "stdin-one-does-not-read",
        promise: "A rank that does not read its stdin keeps the first 32 KiB from none of the others.",
        needs: &[StdinAll, Ranks],
        size: Size { ranks: 4, count: 32 << 10 },
        run: |trial| {
            let bytes = noise(5, trial.size.count as usize);
            let mut job = trial.job(&["on:1:await-file:FOLDER/go", "on:0,2,3:sum"]);
            job.options.push(StdinAll);
            job.input = Input::Bytes(bytes.clone());
            let running = trial.start(job)?;
            for rank in [0, 2, 3].into_iter().filter(|rank| *rank < trial.size.ranks) {
                running.wait_for_stdout(received(rank, &bytes).as_bytes())?;
            }
            std::fs::write(trial.folder().join("go"), "").map_err(|error| error.to_string())?;
            running.end()?.with_code(0).map(drop)
        },
    },
    Case {
        name: "stdin-of-a-closed-launcher",
        promise: "A launcher whose stdin is closed gives ranks an empty one.",
        needs: &[],
        size: ONE,
        run: |trial| {
            let mut job = trial.job(&["sum"]);
            job.input = Input::Closed;
            expect_bytes(&trial.pass(job)?.stdout, received(0, b"").as_bytes())
        },
    },
    Case {
        name: "stdin-kept-open",
        promise: "A job ends although its launcher's stdin stays open and silent.",
        needs: &[StdinFirst],
        size: ONE,
        run: |trial| {
            let mut job = trial.job(&["text:done\\n"]);
            job.options.push(StdinFirst);
            job.input = Input::Pipe;
            let mut running = trial.start(job)?;
            running.wait_for_end()?;
            expect_bytes(&running.end()?.with_code(0)?.stdout, b"done\n")
        },
    },
];
