//! The wait for the readers of FIFOs to which output goes.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::error::Failure;
use crate::message::print_message;
use crate::printers::AttachedOutputs;
use crate::signals::{Signals, stop_by};

/// How long the wait is silent: a reader is often started together with the command.
const QUIET_WAIT: Duration = Duration::from_secs(1);

/// The time between two attempts to open a FIFO.
const INTERVAL: Duration = Duration::from_millis(20);

/// Blocks until each FIFO has a reader, as a shell does for `cmd > fifo`.
///
/// # Errors
/// Fails if a signal asks the command to end, or a FIFO can't be opened.
pub fn wait_for_readers(outputs: &mut AttachedOutputs, signals: &Signals) -> Result<(), Failure> {
    let mut tells_at = Some(Instant::now() + QUIET_WAIT);
    while let Some(path) = outputs.open_fifos()? {
        if tells_at.is_some_and(|time| time <= Instant::now()) {
            let path = path.display();
            print_message(format_args!("waiting for a process that reads the FIFO {path}, to start the job"));
            tells_at = None;
        }
        match signals.wait_for(INTERVAL).map(|received| received.signal) {
            Some(Signal::SIGTSTP) => stop_by(Signal::SIGTSTP),
            None | Some(Signal::SIGCHLD | Signal::SIGWINCH) => {}
            Some(signal) => return Err(Failure::Signal(signal)),
        }
    }
    Ok(())
}
