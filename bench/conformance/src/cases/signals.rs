//! Signals to the launcher.

use nix::sys::signal::Signal::{SIGCONT, SIGINT, SIGKILL, SIGSTOP, SIGTERM, SIGUSR1};
use nix::unistd::Pid;

use crate::case::{Case, Size, Trial, wait_until};
use crate::launcher::Capability::{Ranks, Signals};
use crate::text::expect_lines;

/// Sends a signal to a launcher whose ranks wait for it and write its name.
macro_rules! passed_on {
    ($name:literal, $promise:literal, $signal:ident, $of:literal) => {
        Case {
            name: $name,
            promise: $promise,
            needs: &[Signals, Ranks],
            size: Size { ranks: 4, count: 1 },
            run: |trial| {
                let running = trial.start(trial.job(&[concat!("await:", $of), "text:last words of %\\n"]))?;
                running.wait_for_each(b"ready\n", trial.size.ranks as usize)?;
                running.signal($signal)?;
                for rank in 0..trial.size.ranks {
                    running.wait_for_stdout(format!("{rank} {}\n", $signal).as_bytes())?;
                    running.wait_for_stdout(format!("last words of {rank}\n").as_bytes())?;
                }
                running.end().map(drop)
            },
        }
    };
}

pub const CASES: &[Case] = &[
    passed_on!("signals-term", "SIGTERM reaches all ranks, and their last words arrive.", SIGTERM, "TERM"),
    passed_on!("signals-int", "SIGINT reaches all ranks, and their last words arrive.", SIGINT, "INT"),
    passed_on!("signals-usr1", "SIGUSR1 reaches all ranks.", SIGUSR1, "USR1"),
    Case {
        name: "signals-term-code",
        promise: "A launcher that SIGTERM ends does not have exit code 0.",
        needs: &[],
        size: Size { ranks: 1, count: 1 },
        run: |trial| {
            let running = trial.start(trial.job(&["text:ready\\n", "pause:30000"]))?;
            running.wait_for_each(b"ready\n", trial.size.ranks as usize)?;
            running.signal(SIGTERM)?;
            running.end()?.with_failure().map(drop)
        },
    },
    Case {
        name: "signals-stop",
        promise: "A launcher that is stopped for a while loses nothing.",
        needs: &[Ranks],
        size: Size { ranks: 4, count: 20_000 },
        run: |trial| {
            let running = trial.start(trial.job(&["lines:COUNT:64"]))?;
            running.wait_for_stdout(b"<")?;
            running.signal(SIGSTOP)?;
            std::thread::sleep(std::time::Duration::from_millis(300));
            running.signal(SIGCONT)?;
            expect_lines(&running.end()?.with_code(0)?.stdout, trial.size.ranks, "out", trial.size.count, 64)
        },
    },
    Case {
        name: "signals-killed-launcher",
        promise: "Ranks of a launcher that is killed end.",
        needs: &[],
        size: Size { ranks: 1, count: 1 },
        run: killed_launcher,
    },
];

fn killed_launcher(trial: &Trial<'_>) -> Result<(), String> {
    let running = trial.start(trial.job(&["pid:FOLDER/pid", "text:ready\\n", "pause:30000"]))?;
    running.wait_for_each(b"ready\n", trial.size.ranks as usize)?;
    let pid = |rank| std::fs::read_to_string(trial.file("pid", rank)).ok()?.parse().ok().map(Pid::from_raw);
    let pids: Vec<Pid> = (0..trial.size.ranks).filter_map(pid).collect();
    running.signal(SIGKILL)?;
    // A process that has ended and waits for its new parent has a stat without an executable.
    let has_ended = |pid: &Pid| std::fs::read_link(format!("/proc/{pid}/exe")).is_err();
    let ended = wait_until("all ranks ended", || pids.iter().all(has_ended));
    for pid in pids {
        let _ = nix::sys::signal::kill(pid, SIGKILL);
    }
    ended
}
