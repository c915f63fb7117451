//! Stdout and stderr.

use crate::case::{Case, Size};
use crate::job::Target;
use crate::launcher::Capability::{Channels, Ranks};
use crate::text::{expect_bytes, expect_lines};

pub const CASES: &[Case] = &[
    Case {
        name: "channels-apart",
        promise: "Stdout and stderr of ranks are stdout and stderr of the launcher.",
        needs: &[Channels, Ranks],
        size: Size { ranks: 4, count: 1000 },
        run: |trial| {
            let ended = trial.pass(trial.job(&["lines:COUNT:64", "to:stderr", "lines:COUNT:32"]))?;
            expect_lines(&ended.stdout, trial.size.ranks, "out", trial.size.count, 64)?;
            expect_lines(&ended.stderr, trial.size.ranks, "err", trial.size.count, 32)
        },
    },
    Case {
        name: "channels-lines-in-one-pipe",
        promise: "Lines of stdout and stderr are whole where both are one pipe.",
        needs: &[Channels, Ranks],
        size: Size { ranks: 4, count: 400 },
        run: |trial| {
            let mut job = trial.job(&[
                "lines:COUNT:64:1000",
                "to:stderr",
                "lines:COUNT:32:700",
                "to:stdout",
                "lines:COUNT:64:1000",
            ]);
            job.target = Target::Joined;
            let ended = trial.pass(job)?;
            let of = |mark: &[u8]| {
                let lines = ended.stdout.split_inclusive(|byte| *byte == b'\n');
                lines
                    .filter(|line| line.windows(mark.len()).any(|window| window == mark))
                    .collect::<Vec<_>>()
                    .concat()
            };
            let (out, err) = (of(b".out."), of(b".err."));
            expect_lines(&out, trial.size.ranks, "out", 2 * trial.size.count, 64)?;
            expect_lines(&err, trial.size.ranks, "err", trial.size.count, 32)?;
            if out.len() + err.len() == ended.stdout.len() {
                Ok(())
            } else {
                Err("there is more than the ranks wrote".to_owned())
            }
        },
    },
    Case {
        name: "channels-order",
        promise: "What a rank writes to stdout and, 20 ms later, to stderr comes in this order.",
        needs: &[Channels],
        size: Size { ranks: 1, count: 10 },
        run: |trial| {
            let turn = ["to:stdout", "text:o\\n", "pause:20", "to:stderr", "text:e\\n", "pause:20"];
            let mut job = trial.job(&turn.repeat(trial.size.count as usize));
            job.target = Target::Joined;
            expect_bytes(&trial.pass(job)?.stdout, &b"o\ne\n".repeat(trial.size.count as usize))
        },
    },
    Case {
        name: "channels-stdout-closed",
        promise: "A rank that closes its stdout goes on with stderr.",
        needs: &[Channels],
        size: Size { ranks: 1, count: 100 },
        run: |trial| {
            let ended = trial.pass(trial.job(&[
                "text:out\\n",
                "close:stdout",
                "pause:100",
                "to:stderr",
                "lines:COUNT:64",
            ]))?;
            expect_bytes(&ended.stdout, b"out\n")?;
            expect_lines(&ended.stderr, 1, "err", trial.size.count, 64)
        },
    },
    Case {
        name: "channels-closed-while-running",
        promise: "A rank that closes stdout and stderr is waited for, and its exit code counts.",
        needs: &[Channels],
        size: Size { ranks: 1, count: 1 },
        run: |trial| {
            let job = trial.job(&["close:stdout", "close:stderr", "pause:300", "touch:FOLDER/ran", "exit:3"]);
            let ended = trial.run(job)?.with_failure()?;
            if trial.file("ran", 0).exists() {
                Ok(())
            } else {
                Err(format!("the launcher ended before the rank, with {}", ended.code))
            }
        },
    },
    Case {
        name: "channels-stderr-while-stdout-waits",
        promise: "Stderr arrives while the reader of stdout reads nothing.",
        needs: &[Channels],
        size: Size { ranks: 1, count: 20_000 },
        run: |trial| {
            let mut job = trial.job(&["lines:COUNT:100:4096", "to:stderr", "text:done writing\\n"]);
            job.reader = crate::job::Reader::Held;
            job.actions.splice(0..0, ["to:stderr", "text:an early word\\n", "to:stdout"].map(str::to_owned));
            let running = trial.start(job)?;
            running.wait_for_stderr(b"an early word\n")?;
            running.read_on();
            let ended = running.end()?.with_code(0)?;
            expect_lines(&ended.stdout, 1, "out", trial.size.count, 100)?;
            expect_bytes(&ended.stderr, b"an early word\ndone writing\n")
        },
    },
];
