//! Tools that read the output of a running job.

use crate::case::{Case, Size, Trial, wait_until};
use crate::job::Running;
use crate::launcher::Capability::{Cached, Job, Offsets, Ranks, SmallCache};
use crate::text::{expect_lines, line, lines};
use crate::tool::{Record, account};

const EIGHT: Size = Size { ranks: 8, count: 200 };
const ONE: Size = Size { ranks: 1, count: 2000 };

pub const CASES: &[Case] = &[
    Case {
        name: "tools-late",
        promise: "A tool that attaches late gets what ranks wrote before and what they write after.",
        needs: &[Job, Ranks],
        size: EIGHT,
        run: |trial| {
            let running = begun(trial)?;
            let tool = trial.tool("follow")?;
            tool.wait_for(b"<0.out.0>")?;
            go(trial, running)?;
            expect_lines(&tool.output()?, trial.size.ranks, "out", 2 * trial.size.count, 64)
        },
    },
    Case {
        name: "tools-cached",
        promise: "A tool gets what is there, and ends while the job goes on.",
        needs: &[Job, Ranks, Cached],
        size: EIGHT,
        run: |trial| {
            let running = begun(trial)?;
            expect_lines(&trial.tool("cached")?.output()?, trial.size.ranks, "out", trial.size.count, 64)?;
            go(trial, running)
        },
    },
    Case {
        name: "tools-several",
        promise: "Each of four tools gets all.",
        needs: &[Job, Ranks],
        size: EIGHT,
        run: |trial| {
            let running = begun(trial)?;
            let tools = (0..4).map(|_| trial.tool("follow")).collect::<Result<Vec<_>, _>>()?;
            tools.iter().try_for_each(|tool| tool.wait_for(b"<0.out.0>"))?;
            go(trial, running)?;
            tools.iter().try_for_each(|tool| {
                expect_lines(&tool.output()?, trial.size.ranks, "out", 2 * trial.size.count, 64)
            })
        },
    },
    Case {
        name: "tools-killed-or-stopped",
        promise: "A tool that is killed or stands still costs the job and its output nothing.",
        needs: &[Job, Ranks],
        size: Size { ranks: 4, count: 10_000 },
        run: |trial| {
            let running = begun(trial)?;
            let (killed, stopped) = (trial.tool("follow")?, trial.tool("follow")?);
            [&killed, &stopped].into_iter().try_for_each(|tool| tool.wait_for(b"<0.out.0>"))?;
            killed.kill();
            stopped.stop();
            go(trial, running)
        },
    },
    Case {
        name: "tools-accounting",
        promise: "Each byte is delivered to a tool as written, and counted at the end.",
        needs: &[Job, Offsets],
        size: ONE,
        run: |trial| match accounted(trial, false)? {
            0 => Ok(()),
            lost => Err(format!("{lost} bytes lost that fit into the cache")),
        },
    },
    Case {
        name: "tools-gaps",
        promise: "What is no longer cached when a tool attaches is a gap of exactly as many bytes.",
        needs: &[Job, SmallCache, Offsets],
        size: Size { ranks: 1, count: 20_000 },
        run: |trial| match accounted(trial, true)? {
            0 => Err("1.6 MB came out of a cache of 64 KiB".to_owned()),
            _ => Ok(()),
        },
    },
    Case {
        name: "tools-resume",
        promise: "A tool that was killed goes on where its file ends: file and continuation are the stream.",
        needs: &[Job, Offsets],
        size: ONE,
        run: resumed,
    },
];

/// Starts a job that writes, says that it has, and waits for [`go`] before it writes as much again.
fn begun(trial: &Trial<'_>) -> Result<Running, String> {
    let last = trial.size.count - 1;
    let mut job = trial.job(&["lines:COUNT:64", "await-file:FOLDER/go", "lines:COUNT:64"]);
    job.options.push(Job);
    let running = trial.start(job)?;
    // What a rank has written may not have been read: its last line is awaited.
    for rank in 0..trial.size.ranks {
        running.wait_for_stdout(format!("<{rank}.out.{last}>").as_bytes())?;
    }
    Ok(running)
}

/// Lets ranks write on, and waits for the end of the job.
fn go(trial: &Trial<'_>, running: Running) -> Result<(), String> {
    std::fs::write(trial.folder().join("go"), "").map_err(|error| error.to_string())?;
    running.end()?.with_code(0).map(drop)
}

/// Returns the number of bytes of rank 0 that a tool lost, which attaches after the rank has written.
fn accounted(trial: &Trial<'_>, small: bool) -> Result<u64, String> {
    let mut job = trial.job(&["lines:COUNT:64", "touch:FOLDER/written", "await-file:FOLDER/go"]);
    job.options.push(Job);
    if small {
        job.options.push(SmallCache);
    }
    let running = trial.start(job)?;
    trial.wait_for_files("written")?;
    let tool = trial.tool("records")?;
    tool.wait_for(b"data")?;
    go(trial, running)?;
    account(&tool.records()?, &lines(0, "out", trial.size.count, 64))
}

/// Kills a tool in the middle of a stream, and continues its file while the job runs.
fn resumed(trial: &Trial<'_>) -> Result<(), String> {
    let mut job =
        trial.job(&["lines:COUNT:64", "await-file:FOLDER/go", "lines:COUNT:64", "await-file:FOLDER/end"]);
    job.options.push(Job);
    let running = trial.start(job)?;
    let file = trial.folder().join("continued");
    let written =
        |name: &str| std::fs::write(trial.folder().join(name), "").map_err(|error| error.to_string());
    running.wait_for_stdout(b"<0.out.0>")?;
    let first = trial.tool("continue")?;
    wait_until("the tool wrote", || std::fs::metadata(&file).is_ok_and(|file| file.len() > 0))?;
    first.kill();
    written("go")?;
    running.wait_for_stdout(&line(0, "out", 2 * trial.size.count - 1, 64))?;
    let second = trial.tool("continue")?;
    let stream = lines(0, "out", 2 * trial.size.count, 64);
    let last = |record: &Record| matches!(record, Record::Data(at, data) if at + data.len() as u64 == stream.len() as u64);
    let has_all =
        || trial.tool("read").and_then(|tool| tool.records()).is_ok_and(|records| records.iter().any(last));
    wait_until("the file had all", has_all)?;
    written("end")?;
    running.end()?.with_code(0)?;
    second.output()?;
    match account(&trial.tool("read")?.records()?, &stream)? {
        0 => Ok(()),
        lost => Err(format!("{lost} bytes lost that fit into the cache")),
    }
}
