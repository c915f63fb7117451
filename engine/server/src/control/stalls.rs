//! Accounting of pipes that stall the capture thread, and with it all other ranks: see
//! [`Event::Stalled`](iof_capture::Event::Stalled).
//!
//! While the capture thread is stuck, an upcall that waits for it may keep the control thread from
//! its work. So this state has its own lock, and the watchdog thread does all of the work.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use iof_capture::{Capture, Command, PipeId};
use iof_proto::limits::MAX_ISOLATED_STREAMS;
use iof_proto::{Channel, Proc};

use crate::host::{Host, Remedy};

/// The pipes of the local ranks, and the remedy when one of them stalls the capture thread.
pub(crate) struct StallReports {
    host: Arc<dyn Host>,
    capture: OnceLock<Weak<Capture>>,
    pipes: Mutex<HashMap<PipeId, Pipe>>,
}

struct Pipe {
    source: Proc,
    channel: Channel,
    /// The stream could be read by a thread of its own: it is output and not from a terminal.
    isolable: bool,
    isolated: bool,
    /// The host was informed about this pipe.
    host_informed: bool,
}

impl StallReports {
    pub(crate) fn new(host: Arc<dyn Host>) -> StallReports {
        StallReports { host, capture: OnceLock::new(), pipes: Mutex::default() }
    }

    /// Sets the capture thread that the pipes belong to.
    pub(crate) fn watch(&self, capture: &Arc<Capture>) {
        // Called only once, when the engine starts.
        let _ = self.capture.set(Arc::downgrade(capture));
    }

    fn pipes(&self) -> MutexGuard<'_, HashMap<PipeId, Pipe>> {
        self.pipes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a pipe, or the terminal in its place, with the rank that it belongs to.
    pub(crate) fn add(&self, pipe: PipeId, source: &Proc, channel: Channel, is_terminal: bool) {
        let (source, isolable) = (source.clone(), channel != Channel::Stdin && !is_terminal);
        self.pipes().insert(pipe, Pipe { source, channel, isolable, isolated: false, host_informed: false });
    }

    /// Removes a closed pipe.
    pub(crate) fn forget(&self, pipe: PipeId) {
        self.pipes().remove(&pipe);
    }

    /// Handles a pipe that stalls the capture thread: moves the output of its rank to isolated
    /// threads, and informs the host the first time.
    pub(crate) fn stalled(&self, pipe: PipeId) {
        let mut pipes = self.pipes();
        let mut used = pipes.values().filter(|pipe| pipe.isolated).count();
        let Some(Pipe { source, channel, host_informed, .. }) = pipes.get_mut(&pipe) else { return };
        let (source, channel, first) = (source.clone(), *channel, !std::mem::replace(host_informed, true));
        let mut isolate = Vec::new();
        let isolable =
            pipes.iter_mut().filter(|(_, other)| other.source == source && other.isolable && !other.isolated);
        for (id, other) in isolable {
            if let PipeId::Source(stream) = *id
                && used < MAX_ISOLATED_STREAMS
            {
                other.isolated = true;
                used = used.saturating_add(1);
                isolate.push(stream);
            }
        }
        let remedy = match pipes.get(&pipe) {
            Some(Pipe { isolated: true, .. }) => Remedy::Isolated,
            Some(Pipe { isolable: false, .. }) => Remedy::None,
            _ => Remedy::TooMany { limit: MAX_ISOLATED_STREAMS },
        };
        drop(pipes);
        if let Some(capture) = self.capture.get().and_then(Weak::upgrade) {
            // The call fails only if the capture thread has ended, and with it all its sources.
            let _ = capture.send(isolate.into_iter().map(Command::Isolate));
        }
        if first {
            self.host.stalled(&source, channel, remedy);
        }
    }
}
