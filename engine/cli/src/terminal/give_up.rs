//! Outputs that accept nothing: how long the command waits for them.
//!
//! A job that ends on its own waits for its reader without limit, as a program with a pipe does.
//! `--give-up` limits the wait, and so does an end of the ranks by iof.

use std::fmt;
use std::time::{Duration, Instant};

use iof_output::WriteWatch;

use crate::options::values::show_duration;

/// The number of checks in a row that must find the same write blocked. Time during which this
/// process is stopped adds at most one.
const CHECKS: u32 = 10;

/// The time between two looks at outputs that finish their last lines.
const BUSY_CHECK: Duration = Duration::from_millis(10);

/// An output whose writes are watched.
#[derive(Clone)]
pub struct WatchedOutput {
    pub name: &'static str,
    pub watch: WriteWatch,
}

/// The wait for outputs, which ends when they accept nothing for a time.
pub struct WriteWait {
    outputs: Vec<Checked>,
    limit: Option<Duration>,
    next_check: Option<Instant>,
    /// No output was written to for the whole limit, as the last check found.
    pub is_quiet: bool,
}

/// Outputs that have accepted nothing for the whole limit.
pub struct Blocked {
    /// The name of one of them.
    pub name: String,
    pub limit: Duration,
    /// The bytes that they accepted of the writes that are blocked.
    pub accepted: u64,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has accepted nothing for {}", self.name, show_duration(self.limit))
    }
}

/// An output, and for how many checks its steps have been the same.
struct Checked {
    output: WatchedOutput,
    steps: u64,
    was_busy: bool,
    checks: u32,
}

impl WriteWait {
    /// Creates a wait with this limit, if any.
    pub fn new(outputs: impl IntoIterator<Item = WatchedOutput>, limit: Option<Duration>) -> WriteWait {
        let outputs = outputs.into_iter().map(Checked::new).collect();
        let mut write_wait = WriteWait { outputs, limit: None, next_check: None, is_quiet: false };
        limit.into_iter().for_each(|limit| write_wait.limit(limit));
        write_wait
    }

    /// Limits the wait from now on, unless it is limited already.
    pub fn limit(&mut self, limit: Duration) {
        if self.limit.is_none() {
            self.limit = Some(limit);
            self.next_check = Some(Instant::now());
            self.outputs.iter().for_each(|checked| checked.output.watch.watch_closely());
        }
    }

    /// Begins the time of the limit anew for all outputs.
    pub fn restart(&mut self) {
        self.outputs.iter_mut().for_each(|checked| checked.checks = 0);
        self.is_quiet = false;
    }

    /// Returns when the next call of [`WriteWait::check`] is due.
    pub fn next_check(&self) -> Option<Instant> {
        self.next_check
    }

    /// Lets the outputs write nothing more than the lines that they are writing, and waits for these
    /// until `limit` has passed, or until `is_interrupted`, which may block until a time, returns `true`.
    pub fn finish_lines(&mut self, limit: Duration, mut is_interrupted: impl FnMut(Instant) -> bool) {
        self.add_files();
        self.outputs.iter().for_each(|checked| checked.output.watch.stop());
        let began = Instant::now();
        let is_busy = || self.outputs.iter().any(|checked| checked.output.watch.progress().is_busy);
        while is_busy() && began.elapsed() < limit && !is_interrupted(Instant::now() + BUSY_CHECK) {}
    }

    /// Checks the outputs if that is due. Returns those that have accepted nothing for the whole
    /// limit.
    pub fn check(&mut self, now: Instant) -> Option<Blocked> {
        let limit = self.limit?;
        self.next_check.filter(|time| *time <= now)?;
        let interval = limit.checked_div(CHECKS).unwrap_or(limit).max(Duration::from_millis(1));
        self.next_check = now.checked_add(interval);
        self.add_files();
        let states: Vec<State> = self.outputs.iter_mut().map(Checked::check).collect();
        self.is_quiet = !states.iter().any(|state| matches!(state, State::Active));
        let blocked =
            || states.iter().filter_map(|state| if let State::Blocked(it) = state { Some(it) } else { None });
        let (name, _) = blocked().next()?;
        let accepted = blocked().fold(0u64, |sum, (_, accepted)| sum.saturating_add(*accepted));
        Some(Blocked { name: name.clone(), limit, accepted })
    }

    /// Adds the files that have a watch of their own by now.
    fn add_files(&mut self) {
        let files = self.outputs.iter().flat_map(|Checked { output, .. }| {
            let watches = output.watch.take_files().into_iter();
            watches.map(|watch| WatchedOutput { name: output.name, watch })
        });
        let files: Vec<Checked> = files.map(Checked::new).collect();
        files.iter().for_each(|checked| checked.output.watch.watch_closely());
        self.outputs.extend(files);
    }
}

/// The state of one output.
enum State {
    /// Nothing has been written for the whole limit.
    Idle,
    /// Some bytes were accepted during that time.
    Active,
    /// Its name, and the bytes that it accepted of the present write.
    Blocked((String, u64)),
}

impl Checked {
    fn new(output: WatchedOutput) -> Checked {
        Checked { output, steps: 0, was_busy: false, checks: 0 }
    }

    fn check(&mut self) -> State {
        let progress = self.output.watch.progress();
        let is_same = progress.steps == self.steps && progress.is_busy == self.was_busy;
        self.checks = if is_same { self.checks.saturating_add(1) } else { 0 };
        (self.steps, self.was_busy) = (progress.steps, progress.is_busy);
        match (self.checks >= CHECKS, progress.is_busy) {
            (false, _) => State::Active,
            (true, false) => State::Idle,
            (true, true) => {
                let name = progress.path.map(|path| path.display().to_string());
                State::Blocked((name.unwrap_or_else(|| self.output.name.to_owned()), progress.accepted))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write, pipe};
    use std::thread;

    use iof_output::Output;

    use super::*;

    /// More bytes than a pipe holds.
    const LENGTH: usize = 1 << 20;

    #[test]
    fn a_slow_reader_is_waited_for_and_one_that_reads_nothing_is_not() {
        let (mut reader, writer) = pipe().unwrap();
        let mut output = Output::new(&writer).unwrap();
        let watch = output.watch_writes();
        let limit = Duration::from_secs(1);
        let mut write_wait =
            WriteWait::new(vec![WatchedOutput { name: "stdout", watch: watch.clone() }], Some(limit));
        let mut notes = output.notes();
        let writing = thread::spawn(move || notes.write_all(&vec![b'x'; LENGTH]));
        let mut now = Instant::now();
        // The checks that follow take no time: only their number counts.
        let check = |write_wait: &mut WriteWait, now: &mut Instant| {
            *now += limit;
            write_wait.check(*now)
        };
        let mut bytes = [0; 8192];
        for _ in 0..3 * CHECKS {
            let steps = watch.progress().steps;
            reader.read_exact(&mut bytes).unwrap();
            while watch.progress().steps == steps {
                thread::yield_now();
            }
            assert!(check(&mut write_wait, &mut now).is_none());
        }
        let blocked = (0..).find_map(|_| check(&mut write_wait, &mut now)).unwrap();
        assert!(write_wait.is_quiet && blocked.name == "stdout" && blocked.limit == limit);
        drop(reader);
        assert!(writing.join().unwrap().is_err());
        // An output that writes nothing is not blocked.
        assert!((0..3 * CHECKS).all(|_| check(&mut write_wait, &mut now).is_none()));
    }
}
