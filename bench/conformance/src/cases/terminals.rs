//! Terminals of the launcher and of ranks.

use crate::case::{Case, Size};
use crate::job::Target;
use crate::launcher::Capability::{Ranks, StdinFirst, Terminal};
use crate::text::{expect_bytes, expect_lines};

pub const CASES: &[Case] = &[
    Case {
        name: "terminals-lines",
        promise: "Lines of ranks are whole on a terminal, each ended by CR LF.",
        needs: &[Ranks],
        size: Size { ranks: 4, count: 500 },
        run: |trial| {
            let mut job = trial.job(&["lines:COUNT:64"]);
            job.target = Target::Terminal;
            let shown = trial.pass(job)?.stdout;
            let lines: Vec<u8> = shown.into_iter().filter(|byte| *byte != b'\r').collect();
            expect_lines(&lines, trial.size.ranks, "out", trial.size.count, 64)
        },
    },
    Case {
        name: "terminals-prompts",
        promise: "A rank's prompt is shown on the terminal, and the line that is typed there reaches the rank.",
        needs: &[StdinFirst],
        size: Size { ranks: 1, count: 1 },
        run: |trial| {
            let mut job = trial.job(&["text:name? ", "read-line", "text:thanks\\n"]);
            job.options.push(StdinFirst);
            job.target = Target::Terminal;
            let mut running = trial.start(job)?;
            running.wait_for_stdout(b"name? ")?;
            running.write(b"me\n")?;
            running.wait_for_stdout(b"thanks")?;
            running.end()?.with_code(0).map(drop)
        },
    },
    Case {
        name: "terminals-restored",
        promise: "The settings of the terminal are after the job as they were before.",
        needs: &[],
        size: Size { ranks: 1, count: 1 },
        run: |trial| {
            let mut job = trial.job(&["text:hello\\n", "read-line"]);
            job.target = Target::Terminal;
            let mut running = trial.start(job)?;
            let before = running.settings()?;
            running.wait_for_stdout(b"hello")?;
            running.write(b"\n")?;
            running.wait_for_end()?;
            let after = running.settings()?;
            running.end()?;
            if before == after { Ok(()) } else { Err(format!("{after:?} in place of {before:?}")) }
        },
    },
    Case {
        name: "terminals-of-ranks",
        promise: "A rank with a terminal of its own sees one on stdin and stdout.",
        needs: &[Terminal],
        size: Size { ranks: 1, count: 1 },
        run: |trial| {
            let mut job = trial.job(&["tty"]);
            job.options.push(Terminal);
            job.target = Target::Terminal;
            let shown = trial.pass(job)?.stdout;
            if shown.starts_with(b"tty tty") {
                Ok(())
            } else {
                Err(format!("stdin, stdout and stderr are {}", crate::text::show(&shown)))
            }
        },
    },
    Case {
        name: "terminals-none",
        promise: "A rank without a terminal of its own has pipes.",
        needs: &[],
        size: Size { ranks: 1, count: 1 },
        run: |trial| {
            let ended = trial.pass(trial.job(&["tty"]))?;
            expect_bytes(&ended.stdout, b"no-tty no-tty no-tty\n")
        },
    },
];
