//! A tool: one connection to an engine, its requests and its registrations.
//!
//! `Tool` is one type, whose methods are in several modules of this folder. Each uses the fields
//! below, and the methods of the others.
//!
//! | module | methods |
//! |---|---|
//! | `attach` | connecting to an engine |
//! | `submit` | the core of all requests: sending one, passing on its answer, waiting for the answer |
//! | `pull`, `query`, `log`, `push`, `signal`, `spawn` | the requests, non-blocking (`submit_`) and blocking |
//! | `poll` | receiving messages, the doorbell and timers |
//! | `receive` | returning one delivery after the other |

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use iof_shm_ring::Stepper;

use crate::adaptive_polling::AdaptivePolling;
use crate::link::Link;
use crate::session::Session;
use crate::session::event::Next;
use crate::session::feeds::FeedId;
use crate::session::registration::RegistrationState;
use crate::wakeup::{Sleeper, Wakeup};

mod attach;
mod log;
pub(crate) mod poll;
mod pull;
mod push;
mod query;
mod receive;
mod signal;
mod spawn;
mod submit;

/// A connection to an engine.
///
/// # Threads
/// A tool is used by one thread at a time and may move between threads. To wait in one thread and
/// send requests from another, use two tools.
///
/// # When the engine disconnects
/// The bytes that are in memory are still delivered. Then each stream that was not complete ends
/// with [`Delivery::Gone`](crate::Delivery::Gone). Requests fail with
/// [`LostError::Closed`](crate::LostError::Closed). A tool does not reconnect, because another
/// engine has other jobs.
pub struct Tool {
    link: Link,
    pub(crate) session: Session,
    wakeup: Wakeup,
    polling: AdaptivePolling,
    /// When the socket was last checked for messages.
    messages_checked: Instant,
    engine_pid: u32,
    /// The feeds that have not been read yet in the current round.
    turn: Vec<FeedId>,
    /// The item that was found but not delivered yet.
    put_back: Option<Next>,
    /// The feed whose bytes were delivered and are not consumed yet.
    lent: Option<FeedId>,
    /// See [`Tool::wait_for_job_ends`].
    waits_for_ends: bool,
}

impl Tool {
    /// Returns the pid of the engine's process.
    pub fn engine_pid(&self) -> u32 {
        self.engine_pid
    }

    /// Returns whether the connection has ended: the engine ended or closed it. Bytes that are in
    /// memory are still delivered.
    pub fn is_gone(&self) -> bool {
        self.session.gone
    }

    /// Returns whether the engine has closed the connection, even if [`Tool::is_gone`] does not
    /// return `true` yet, because what the engine sent before has not been received. Receives
    /// nothing and does not block.
    pub fn has_hung_up(&self) -> bool {
        self.session.gone || self.link.has_hung_up()
    }

    /// Returns whether the engine disconnected before it had announced every stream of every
    /// registration, so that streams may be missing. [Persistent](crate::Pull::persistent)
    /// registrations do not count: they have no last stream.
    pub fn misses_streams(&self) -> bool {
        self.session.gone && self.session.registrations.values().any(RegistrationState::misses_streams)
    }

    /// Returns whether nothing more will be delivered. This is the case when everything received
    /// was delivered, no reply is outstanding, and every registration has ended or the connection
    /// has. A registration ends when the end of every job that it names was delivered. A
    /// [persistent](crate::Pull::persistent) one ends only when it is deregistered.
    pub fn is_done(&self) -> bool {
        let over = self.session.gone || self.session.registrations.values().all(RegistrationState::is_over);
        let delivered =
            self.session.events.is_empty() && self.put_back.is_none() && self.session.requests.is_empty();
        over && delivered && self.session.feeds.is_empty()
    }

    /// Lets a [`BatchReader`](crate::BatchReader), and so a printer, report the end of all streams only
    /// once the jobs have ended, so that their exit codes are known. Otherwise it does so after the last
    /// stream: a job may close its output before it ends.
    pub fn wait_for_job_ends(&mut self) {
        self.waits_for_ends = true;
    }

    /// Returns the place of the tool's step, if the engine is in this process.
    pub(crate) fn stepper(&self) -> Option<&Stepper> {
        self.link.stepper()
    }

    /// Returns what the tool's owner sleeps on.
    pub(crate) fn sleeper(&self) -> Sleeper {
        self.wakeup.sleeper(self.link.socket())
    }

    /// Returns the longest time for which an event loop may wait until the tool's descriptor is
    /// readable. After this time it must call [`Tool::try_recv`] or [`Tool::dispatch`] even if the
    /// descriptor is not readable. `None` means without limit. The result is zero if the last such
    /// call returned a delivery, or if messages arrived together with the answer to a request.
    pub fn timeout(&self) -> Option<Duration> {
        let pending = !self.wakeup.is_armed() || self.has_ready();
        // Messages may belong to pushes, which matter even when all registrations are done.
        if self.link.has_received() || (pending && !self.is_done()) {
            return Some(Duration::ZERO);
        }
        self.session.next_due().map(|due| due.saturating_duration_since(Instant::now()))
    }
}

/// A descriptor for event loops, readable when there is something to deliver.
///
/// Wait until it is readable, for [`Tool::timeout`] at most. Then call [`Tool::try_recv`] until it
/// returns `None` (or [`Tool::dispatch`] with a timeout of zero until it returns `false`).
/// Level-triggered and edge-triggered loops both work. The descriptor stays readable after the
/// connection has ended, so stop when [`Tool::is_done`] returns `true`.
impl AsFd for Tool {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Tool");
        shown.field("engine_pid", &self.engine_pid).field("gone", &self.session.gone);
        shown
            .field("registrations", &self.session.registrations.keys())
            .field("streams", &self.session.feeds.len());
        shown.field("pushes", &self.session.pushes.keys()).finish_non_exhaustive()
    }
}
