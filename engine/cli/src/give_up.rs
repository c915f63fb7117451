//! `--give-up`: ends the wait for an output that accepts nothing.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam::channel::Sender;
use iof_engine::{Job, Signal};

use crate::args::values::show_duration;
use crate::error::Failure;
use crate::follow::{GRACE, JobEvent};
use crate::printers::WatchedOutput;
use crate::threads::start_thread;

/// The number of checks in a row that must find the same write blocked. Time during which this
/// process is stopped adds at most one.
const CHECKS: u32 = 10;

/// Starts a thread that reports an output as failed if it accepts nothing for `limit`.
///
/// Messages on stderr may be blocked as well, and with them the main thread. If the command has not
/// ended some time after the report, the thread kills the ranks and ends the process.
pub fn give_up_after(
    limit: Duration,
    outputs: Vec<WatchedOutput>,
    job: Job,
    events: Sender<JobEvent>,
) -> Result<(), Failure> {
    let interval = limit.checked_div(CHECKS).unwrap_or(limit).max(Duration::from_millis(1));
    start_thread("iof-give-up", move || {
        let mut blocked: Vec<Blocked> = outputs.into_iter().map(Blocked::new).collect();
        let name = loop {
            thread::sleep(interval);
            if let Some(found) = blocked.iter_mut().find_map(Blocked::check) {
                break found;
            }
        };
        let message = format!("{name} has accepted nothing for {}", show_duration(limit));
        // Fails only if the job is over.
        let _ = events.send(JobEvent::Output(Err(Failure::Running(message))));
        thread::sleep(GRACE.saturating_mul(2));
        job.signal(Signal::KILL);
        std::process::exit(1);
    })
}

/// An output, and for how many checks its present write has been blocked.
struct Blocked {
    output: WatchedOutput,
    since: Option<Instant>,
    checks: u32,
}

impl Blocked {
    fn new(output: WatchedOutput) -> Blocked {
        Blocked { output, since: None, checks: 0 }
    }

    /// Returns the name of the output if its present write was blocked in enough checks.
    fn check(&mut self) -> Option<&'static str> {
        let since = self.output.watch.blocked_since();
        self.checks = if since.is_some() && since == self.since { self.checks.saturating_add(1) } else { 0 };
        self.since = since;
        (self.checks >= CHECKS).then_some(self.output.name)
    }
}
