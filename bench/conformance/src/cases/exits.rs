//! Exit codes, and starts that fail.

use crate::case::{Case, Size};
use crate::launcher::Capability::{ExitCode, Ranks};
use crate::text::show;

const FOUR: Size = Size { ranks: 4, count: 1 };

macro_rules! exits {
    ($name:literal, $promise:literal, $action:literal, $code:literal) => {
        Case {
            name: $name,
            promise: $promise,
            needs: &[ExitCode, Ranks],
            size: FOUR,
            run: |trial| {
                trial.run(trial.job(&["touch:FOLDER/ran", $action]))?.with_code($code)?;
                trial.wait_for_files("ran")
            },
        }
    };
}

/// A program that cannot be started.
macro_rules! refused {
    ($name:literal, $promise:literal, $program:expr) => {
        Case {
            name: $name,
            promise: $promise,
            needs: &[],
            size: Size { ranks: 1, count: 1 },
            run: |trial| {
                let program: String = $program;
                let mut job = trial.job(&[]);
                job.program = Some(vec![program.clone()]);
                let ended = trial.run(job)?.with_failure()?;
                let text = [ended.stderr, ended.stdout].concat();
                let is_named = text.windows(program.len()).any(|window| window == program.as_bytes());
                if is_named {
                    Ok(())
                } else {
                    Err(format!("the message does not name {program}: {}", show(&text)))
                }
            },
        }
    };
}

pub const CASES: &[Case] = &[
    exits!("exits-0", "The exit code is 0 if that of each rank is.", "exit:0", 0),
    exits!("exits-all", "The exit code of ranks that all fail alike is theirs.", "exit:7", 7),
    exits!("exits-one", "The exit code of the one rank that fails is the launcher's.", "on:2:exit:42", 42),
    exits!("exits-255", "Exit code 255 is not changed.", "on:0:exit:255", 255),
    Case {
        name: "exits-one-fails-somehow",
        promise: "One rank that fails makes the launcher's exit code other than 0.",
        needs: &[Ranks],
        size: FOUR,
        run: |trial| trial.run(trial.job(&["on:3:exit:5"]))?.with_failure().map(drop),
    },
    Case {
        name: "exits-killed",
        promise: "A rank that a signal ends makes the launcher's exit code other than 0.",
        needs: &[Ranks],
        size: FOUR,
        run: |trial| trial.run(trial.job(&["on:1:kill:KILL"]))?.with_failure().map(drop),
    },
    refused!(
        "exits-no-program",
        "A program that does not exist is named.",
        "/nonexistent/program-of-no-name".to_owned()
    ),
    refused!("exits-no-executable", "A file that can't be executed is named.", "/etc/hostname".to_owned()),
];
