//! Readers of the launcher's output.

use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::thread::sleep;
use std::time::Duration;

use nix::unistd::Pid;

use crate::case::{Case, Size, Trial};
use crate::job::{Reader, Target};
use crate::launcher::Capability::Ranks;
use crate::text::{expect_bytes, expect_lines, noise};

/// The memory that a launcher may use while its output is not read, in KiB.
const MAX_MEMORY: u64 = 192 << 10;

macro_rules! paced {
    ($name:literal, $promise:literal, $size:expr, $target:expr, $reader:expr) => {
        Case {
            name: $name,
            promise: $promise,
            needs: &[Ranks],
            size: $size,
            run: |trial| {
                let mut job = trial.job(&["lines:COUNT:64"]);
                (job.target, job.reader) = ($target, $reader);
                expect_lines(&trial.pass(job)?.stdout, trial.size.ranks, "out", trial.size.count, 64)
            },
        }
    };
}

const MIB: Size = Size { ranks: 4, count: 13_000 };

pub const CASES: &[Case] = &[
    paced!(
        "readers-slow",
        "A reader that pauses after each 64 KiB gets all.",
        MIB,
        Target::Pipe,
        Reader::Slow(65_536, Duration::from_millis(10))
    ),
    paced!(
        "readers-by-bytes",
        "A reader that reads byte by byte gets all.",
        Size { ranks: 4, count: 300 },
        Target::Pipe,
        Reader::Slow(1, Duration::ZERO)
    ),
    paced!(
        "readers-of-a-small-pipe",
        "A pipe of one page loses nothing.",
        MIB,
        Target::SmallPipe,
        Reader::Fast
    ),
    paced!(
        "readers-of-a-nonblocking-pipe",
        "A pipe that does not block loses nothing.",
        MIB,
        Target::Nonblocking,
        Reader::Slow(30_000, Duration::from_millis(5))
    ),
    paced!(
        "readers-of-a-socket",
        "A socket loses nothing.",
        MIB,
        Target::Socket,
        Reader::Slow(65_536, Duration::from_millis(2))
    ),
    Case {
        name: "readers-late",
        promise: "A reader that begins after ranks have written 2 MB, or wait to, gets all.",
        needs: &[Ranks],
        size: Size { ranks: 4, count: 6000 },
        run: |trial| {
            let mut job = trial.job(&["lines:COUNT:64"]);
            job.reader = Reader::Held;
            let running = trial.start(job)?;
            sleep(Duration::from_millis(500));
            running.read_on();
            expect_lines(&running.end()?.with_code(0)?.stdout, trial.size.ranks, "out", trial.size.count, 64)
        },
    },
    Case {
        name: "readers-that-leave",
        promise: "A launcher whose reader has left ends, although its ranks would write on.",
        needs: &[],
        size: Size { ranks: 1, count: 200 },
        run: |trial| {
            let mut job = trial.job(&["flood:COUNT:FOLDER/progress", "flood:COUNT:FOLDER/progress"]);
            job.reader = Reader::Leaves(100_000);
            trial.run(job)?;
            trial.wait_for_files("progress")
        },
    },
    Case {
        name: "readers-memory",
        promise: "A launcher whose output is not read uses at most 192 MiB, and loses nothing.",
        needs: &[],
        size: Size { ranks: 1, count: 256 },
        run: memory,
    },
    Case {
        name: "readers-noise",
        promise: "A slow reader gets 4 MiB of all byte values as written.",
        needs: &[],
        size: Size { ranks: 1, count: 4 << 20 },
        run: |trial| {
            let mut job = trial.job(&["noise:COUNT"]);
            job.reader = Reader::Slow(40_000, Duration::from_millis(3));
            expect_bytes(&trial.pass(job)?.stdout, &noise(0, trial.size.count as usize))
        },
    },
];

/// A rank writes 256 MiB while nothing is read. Once it makes no progress, the memory is measured, and all is read.
fn memory(trial: &Trial<'_>) -> Result<(), String> {
    let mut job = trial.job(&["pid:FOLDER/pid", "flood:COUNT:FOLDER/progress"]);
    job.reader = Reader::Held;
    let running = trial.start(job)?;
    trial.wait_for_files("progress")?;
    let progress = || read_to_string(trial.file("progress", 0)).unwrap_or_default();
    // A rank that can't write the first MiB has no progress at all.
    let mut written = progress();
    loop {
        sleep(Duration::from_millis(500));
        let now = progress();
        if now == written {
            break;
        }
        written = now;
    }
    let rank = read_to_string(trial.file("pid", 0)).unwrap_or_default();
    let used = resident(running.pid(), rank.trim());
    running.read_on();
    let ended = running.end()?.with_code(0)?;
    if used > MAX_MEMORY {
        return Err(format!("{} MiB resident after {} MiB of output", used >> 10, written.trim()));
    }
    let mut line = [b'0'; 1024];
    line[1023] = b'\n';
    let is_whole = ended.stdout.len() == (trial.size.count as usize) << 20
        && ended.stdout.chunks(1024).all(|chunk| chunk == line);
    if is_whole {
        Ok(())
    } else {
        Err(format!("{} bytes, or other ones, of {} MiB", ended.stdout.len(), trial.size.count))
    }
}

/// Returns the resident memory of a process and its descendants without a rank, in KiB.
fn resident(of: Pid, rank: &str) -> u64 {
    let mut parents = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().display().to_string();
        let status = read_to_string(entry.path().join("status")).unwrap_or_default();
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .map(|rest| rest.trim().trim_end_matches(" kB").to_owned())
        };
        if let (Some(parent), Some(memory)) = (field("PPid:"), field("VmRSS:")) {
            parents.insert(pid, (parent, memory.parse::<u64>().unwrap_or(0)));
        }
    }
    let root = of.to_string();
    let descends = |pid: &str| {
        let mut at = pid.to_owned();
        for _ in 0..parents.len() {
            if at == root {
                return true;
            }
            let Some((parent, _)) = parents.get(&at) else { return false };
            at.clone_from(parent);
        }
        false
    };
    parents.iter().filter(|(pid, _)| *pid != rank && descends(pid)).map(|(_, (_, memory))| memory).sum()
}
