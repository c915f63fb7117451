//! The wait for the readers of FIFOs to which output goes.

use std::time::{Duration, Instant};

use iof_output::NewFiles;
use nix::sys::signal::Signal;

use crate::error::Failure;
use crate::events::signal_watch::SignalWatch;
use crate::options::values::show_duration;
use crate::outputs::printers::AttachedOutputs;
use crate::processes::signals::stop_by;
use crate::terminal::message::print_message;

/// The time for which the wait is silent: a reader is often started together with the command.
const QUIET_WAIT: Duration = Duration::from_secs(1);

/// The time between two attempts to open a FIFO.
const INTERVAL: Duration = Duration::from_millis(20);

/// Blocks until each FIFO has a reader, as a shell does for `cmd > fifo`, at most for the time of
/// `--give-up`. Adds to `new` what this creates.
///
/// # Errors
/// Fails if a FIFO has no reader in time or can't be opened, or a signal asks the command to end.
pub fn wait_for_readers(
    outputs: &mut AttachedOutputs<'_>,
    new: &mut NewFiles,
    signals: &SignalWatch,
    give_up: Option<Duration>,
) -> Result<(), Failure> {
    let started = Instant::now();
    let mut tells_at = Some(started + QUIET_WAIT);
    while let Some(path) = outputs.open_fifos(new)? {
        if let Some(limit) = give_up.filter(|limit| started.elapsed() >= *limit) {
            let (path, limit) = (path.display(), show_duration(limit));
            return Err(Failure::Running(format!(
                "no process has read the FIFO {path} for {limit}: the job was not started"
            )));
        }
        if tells_at.is_some_and(|time| time <= Instant::now()) {
            let path = path.display();
            print_message(format_args!("waiting for a process that reads the FIFO {path}, to start the job"));
            tells_at = None;
        }
        match signals.wait_for(INTERVAL).map(|received| received.signal) {
            Some(Signal::SIGTSTP) => stop_by(Signal::SIGTSTP),
            None | Some(Signal::SIGCONT | Signal::SIGCHLD | Signal::SIGWINCH) => {}
            Some(signal) => return Err(Failure::Signal(signal)),
        }
    }
    Ok(())
}
