//! The line about an engine that is stopped while a command waits for it.

use std::thread;
use std::time::Duration;

use iof_proto::rendezvous::Search;

use crate::commands::inspect::process_state;
use crate::error::Failure;
use crate::processes::threads::start_thread;
use crate::terminal::message::print_message;

/// The interval at which the state of the engine is looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// The number of looks, one after the other, that find the engine stopped.
const LOOKS: u32 = 4;

/// Starts a thread that prints one line if the engine that `search` finds first stays stopped. Such an engine does
/// not answer, and its ranks' output waits.
pub fn watch_for_stop(search: Search) -> Result<(), Failure> {
    start_thread("iof-stopped", move || {
        let pid = loop {
            let path = search.sockets().find_map(Result::ok);
            // The name of a socket ends with the pid.
            match path.as_deref().map(|path| path.extension()?.to_str()?.parse::<u32>().ok()) {
                Some(Some(pid)) => break pid,
                Some(None) => return,
                None => thread::sleep(INTERVAL),
            }
        };
        let mut stopped = 0u32;
        while stopped < LOOKS {
            thread::sleep(INTERVAL);
            stopped = match process_state(pid.into()) {
                "stopped" => stopped.saturating_add(1),
                "dead" => return,
                _ => 0,
            };
        }
        print_message(format_args!(
            "the engine (pid {pid}) is stopped: its output is written when it continues, such as by kill -CONT {pid}"
        ));
    })
}
