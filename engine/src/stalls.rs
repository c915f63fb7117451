//! Ranks that keep the capture thread from all others: see
//! [`Event::Stalled`](iof_capture::Event::Stalled).
//!
//! While the capture thread is stuck, the control thread may wait for it with the tables locked. So
//! what is needed here has a lock of its own, and the watchdog's thread does all of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use iof_capture::{Capture, PipeId};
use iof_proto::limits::MAX_ISOLATED_STREAMS;
use iof_proto::{Channel, Proc};

use crate::host::{Host, Remedy};

/// The pipes of the ranks here, and what to do when one of them stalls the capture thread.
pub(crate) struct Stalls {
    host: Arc<dyn Host>,
    capture: OnceLock<Weak<Capture>>,
    pipes: Mutex<HashMap<PipeId, Pipe>>,
}

struct Pipe {
    source: Proc,
    channel: Channel,
    /// A thread of its own could read it: it is output, and not a terminal's.
    isolable: bool,
    isolated: bool,
    /// The host was told.
    told: bool,
}

impl Stalls {
    pub(crate) fn new(host: Arc<dyn Host>) -> Stalls {
        Stalls { host, capture: OnceLock::new(), pipes: Mutex::default() }
    }

    /// Notes whose thread it is.
    pub(crate) fn watch(&self, capture: &Arc<Capture>) {
        // Once, when the engine starts.
        let _ = self.capture.set(Arc::downgrade(capture));
    }

    fn pipes(&self) -> MutexGuard<'_, HashMap<PipeId, Pipe>> {
        self.pipes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes whose pipe it is, and whether it is a terminal instead.
    pub(crate) fn add(&self, pipe: PipeId, source: &Proc, channel: Channel, is_terminal: bool) {
        let (source, isolable) = (source.clone(), channel != Channel::Stdin && !is_terminal);
        self.pipes().insert(pipe, Pipe { source, channel, isolable, isolated: false, told: false });
    }

    /// Forgets a pipe that is closed.
    pub(crate) fn forget(&self, pipe: PipeId) {
        self.pipes().remove(&pipe);
    }

    /// A pipe stalls the capture thread: has its rank's output read by threads of their own, and
    /// tells the host once.
    pub(crate) fn stalled(&self, pipe: PipeId) {
        let mut pipes = self.pipes();
        let mut used = pipes.values().filter(|pipe| pipe.isolated).count();
        let Some(Pipe { source, channel, told, .. }) = pipes.get_mut(&pipe) else { return };
        let (source, channel, first) = (source.clone(), *channel, !std::mem::replace(told, true));
        let mut isolate = Vec::new();
        for (id, of_rank) in
            pipes.iter_mut().filter(|(_, of)| of.source == source && of.isolable && !of.isolated)
        {
            if let PipeId::Source(stream) = *id
                && used < MAX_ISOLATED_STREAMS
            {
                of_rank.isolated = true;
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
            // A capture that has ended has ended all its sources.
            for stream in isolate {
                let _ = capture.isolate(stream);
            }
        }
        if first {
            self.host.stalled(&source, channel, remedy);
        }
    }
}
