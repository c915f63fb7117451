//! Outputs that take nothing, or not all.

use std::fs::File;

use crate::case::{Case, Size};
use crate::job::Target;
use crate::launcher::Capability::Ranks;
use crate::text::expect_lines;

pub const CASES: &[Case] = &[
    Case {
        name: "outputs-full",
        promise: "A launcher whose output is on a full device does not have exit code 0.",
        needs: &[],
        size: Size { ranks: 1, count: 1000 },
        run: |trial| {
            let mut job = trial.job(&["lines:COUNT:64"]);
            job.target = Target::File(
                File::options().write(true).open("/dev/full").map_err(|error| error.to_string())?,
            );
            trial.run(job)?.with_failure().map(drop)
        },
    },
    Case {
        name: "outputs-closed",
        promise: "A launcher whose stdout is closed does not have exit code 0 if ranks write.",
        needs: &[],
        size: Size { ranks: 1, count: 100 },
        run: |trial| {
            let mut job = trial.job(&["lines:COUNT:64"]);
            job.target = Target::Closed;
            trial.run(job)?.with_failure().map(drop)
        },
    },
    Case {
        name: "outputs-closed-and-silent",
        promise: "A launcher whose stdout is closed runs ranks that write nothing.",
        needs: &[],
        size: Size { ranks: 1, count: 1 },
        run: |trial| {
            let mut job = trial.job(&["touch:FOLDER/ran"]);
            job.target = Target::Closed;
            trial.pass(job)?;
            trial.wait_for_files("ran")
        },
    },
    Case {
        name: "outputs-file",
        promise: "A file gets all output, and what stood in it before stays where it is appended to.",
        needs: &[Ranks],
        size: Size { ranks: 8, count: 5000 },
        run: |trial| {
            let path = trial.folder().join("output");
            std::fs::write(&path, "before\n").map_err(|error| error.to_string())?;
            let mut job = trial.job(&["lines:COUNT:64"]);
            job.target =
                Target::File(File::options().append(true).open(&path).map_err(|error| error.to_string())?);
            trial.pass(job)?;
            let output = std::fs::read(&path).map_err(|error| error.to_string())?;
            let output = output.strip_prefix(b"before\n").ok_or("the file was emptied")?;
            expect_lines(output, trial.size.ranks, "out", trial.size.count, 64)
        },
    },
];
