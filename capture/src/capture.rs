//! The handle to the capture thread.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam::channel::bounded;
use iof_shm_ring::{Ringer, bell};

use crate::backend::BackendKind;
use crate::error::{IdInUse, Refused, Stopped};
use crate::messages::command::{Command, NewProcess};
use crate::messages::event::Event;
use crate::spawn;
use crate::spawn::seats;
use crate::start::StartError;
use crate::thread::capture_thread::{CaptureThread, Started};
use crate::thread::inbox::{Inbox, InboxItem};
use crate::thread::mass_start::MassStart;
use crate::thread::remote_call::call_remotely;
use crate::thread::room_bells::{RoomBell, RoomBells};
use crate::thread::sources::OnEvent;
use crate::thread::streams::Streams;
use crate::thread::watchdog::{WatchState, Watchdog};

/// A handle to the capture thread, which drains pipes into streams, fills pipes from inlets and
/// watches processes.
///
/// All methods may be called from any thread. Only [`Capture::with_streams`] and dropping the
/// handle wait for the capture thread. Dropping it completes all sources with the bytes that were
/// read, closes all targets, reports both, and joins the thread. Processes that still run continue
/// to run, unwatched.
pub struct Capture {
    inbox: Inbox,
    /// `None` until the first call of [`Capture::peer_room_bell`].
    room_bells: Mutex<Option<Arc<RoomBells>>>,
    /// The ids in use. The capture thread frees those of targets and pushes.
    ids: Arc<Mutex<HashSet<IdInUse>>>,
    backend: BackendKind,
    fallback: Option<StartError>,
    thread: Option<JoinHandle<()>>,
    /// Dropped, and so ended, after the capture thread has ended.
    _watchdog: Watchdog,
}

impl Capture {
    /// Starts the capture thread, on io_uring if the kernel offers it, otherwise on epoll. In the
    /// latter case the reason is logged, and [`Capture::fallback`] returns it.
    ///
    /// `on_event` runs on that thread. It must not block, and must not call
    /// [`Capture::with_streams`] or anything else that waits for this capture. If it panics, the
    /// capture ends, see [`Stopped`]. Only [`Event::Stalled`] is reported on another thread,
    /// possibly at the same time.
    ///
    /// # Errors
    /// [`StartError`] if there is no file descriptor or thread left.
    pub fn start(on_event: impl Fn(Event) + Send + Sync + 'static) -> Result<Capture, StartError> {
        Capture::launch(None, on_event)
    }

    /// Starts the capture thread on `backend`, without a fallback. Otherwise the same as
    /// [`Capture::start`].
    ///
    /// # Errors
    /// [`StartError`]. [`StartError::Refused`] if the kernel refuses io_uring, with the likely
    /// cause.
    pub fn start_on(
        backend: BackendKind,
        on_event: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<Capture, StartError> {
        Capture::launch(Some(backend), on_event)
    }

    fn launch(
        wanted: Option<BackendKind>,
        on_event: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<Capture, StartError> {
        // Early, while low descriptor numbers are free.
        spawn::reserve_channel_fds();
        seats::reserve();
        let (ringer, bell) = bell().map_err(|source| StartError::Bell { source })?;
        let ids = Arc::<Mutex<HashSet<IdInUse>>>::default();
        let ids_of_thread = Arc::clone(&ids);
        let on_event = Arc::new(on_event);
        let watched = Arc::<WatchState>::default();
        let on_stall = Arc::clone(&on_event);
        let watchdog = Watchdog::start(Arc::clone(&watched), move |event| on_stall(event))
            .map_err(|source| StartError::Thread { source })?;
        let on_event: OnEvent = Arc::new(move |event| {
            let freed = match &event {
                Event::Shut { target } => Some(IdInUse::Target(*target)),
                Event::PushOver { push } => Some(IdInUse::Push(*push)),
                _ => None,
            };
            freed.into_iter().for_each(|id| _ = lock(&ids_of_thread).remove(&id));
            on_event(event);
        });
        let (started, receive_started) = bounded(1);
        let (inbox, inbox_items) = Inbox::new(ringer);
        let capture_thread =
            CaptureThread { bell, inbox_items, inbox: inbox.clone(), watched, on_event, started };
        let thread = thread::Builder::new()
            .name("iof-capture".into())
            .spawn(move || capture_thread.run(wanted))
            .map_err(|source| StartError::Thread { source })?;
        // The thread ended before it could report why.
        let died = |_| Err(StartError::Thread { source: io::ErrorKind::Other.into() });
        let Started { backend, fallback } = receive_started.recv().unwrap_or_else(died)?;
        if let Some(reason) = &fallback {
            tracing::info!(%reason, "capture falls back on epoll, which costs more");
        }
        Ok(Capture {
            inbox,
            room_bells: Mutex::default(),
            ids,
            backend,
            fallback,
            thread: Some(thread),
            _watchdog: watchdog,
        })
    }

    /// Returns the kernel facility that this capture uses.
    pub fn backend(&self) -> BackendKind {
        self.backend
    }

    /// Returns why io_uring is not in use. Returns `None` if it is, or if the backend was chosen
    /// with [`Capture::start_on`].
    pub fn fallback(&self) -> Option<&StartError> {
        self.fallback.as_ref()
    }

    /// Begins a start of `processes` processes. Until the result is dropped, the capture thread
    /// waits for 1 ms before each turn, so that one turn handles the changes of several processes.
    /// It does not while large reads show that a delay would make a writer wait.
    ///
    /// Returns `None` if there are fewer than 64 of them.
    ///
    /// ```
    /// # let capture = iof_capture::Capture::start(|_| {})?;
    /// let start = capture.begin_mass_start(1024);
    /// // Starts the processes and adds them.
    /// drop(start);
    /// # Ok::<(), iof_capture::StartError>(())
    /// ```
    pub fn begin_mass_start(&self, processes: usize) -> Option<MassStart> {
        self.inbox.mass_starts().begin(processes)
    }

    /// Returns for how long another thread that follows each process may wait before its next turn,
    /// too: 1 ms during a [start of many processes](Capture::begin_mass_start), otherwise zero.
    pub fn mass_start_delay(&self) -> Duration {
        self.inbox.mass_starts().delay()
    }

    /// Sends a batch of commands to the capture thread, and wakes it once. Never waits.
    ///
    /// The thread performs the commands of a batch one after the other, and those of no other batch
    /// between them. Batches of one thread keep their order, as do batches of several threads that
    /// send one after the other. [`Streams`] and later batches show the effects of all earlier ones.
    /// The fills of a push take effect together: at its first [`Command::Fill`] that the thread has
    /// not performed.
    ///
    /// # Errors
    /// [`Refused`], if an id is in use or the capture thread has ended. Then no command of the batch
    /// is performed, except that fills may be counted. A batch that was accepted just before the
    /// thread ends may be discarded, see [`Event::Ended`].
    pub fn send(&self, batch: impl IntoIterator<Item = Command>) -> Result<(), Refused> {
        let commands: Vec<Command> = batch.into_iter().collect();
        let added: Vec<IdInUse> = commands.iter().flat_map(added_ids).collect();
        let removed = commands.iter().filter_map(|command| match command {
            Command::Remove(source) => Some(IdInUse::Source(*source)),
            _ => None,
        });
        let removed: Vec<IdInUse> = removed.collect();
        let mut ids = lock(&self.ids);
        if let Some(taken) = added.iter().find(|id| ids.contains(id)) {
            return Err(Refused { reason: (*taken).into(), commands });
        }
        ids.extend(added);
        drop(ids);
        let stopped = |commands| Refused { reason: Stopped.into(), commands };
        self.inbox.send_batch(commands).map_err(stopped)?;
        // Not before: another thread may use the ids then.
        let mut ids = lock(&self.ids);
        removed.iter().for_each(|id| _ = ids.remove(id));
        Ok(())
    }

    /// Runs `f` on the capture thread and returns its result. Blocks until the thread has finished
    /// its current turn and `f`. No pipe is read while `f` runs, so `f` should be short. If `f`
    /// panics, this method panics, and the capture continues.
    ///
    /// Calling this from `on_event` or from `f` deadlocks.
    ///
    /// # Errors
    /// [`Stopped`]. `f` did not run then.
    ///
    /// # Example
    /// ```
    /// # use iof_capture::{Capture, SourceId};
    /// # let capture = Capture::start(|_| {})?;
    /// let complete = capture.with_streams(|streams| {
    ///     streams.get(SourceId(1)).map(|stream| stream.stats().complete)
    /// })?;
    /// assert_eq!(complete, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_streams<R: Send>(&self, f: impl FnOnce(&mut Streams<'_>) -> R + Send) -> Result<R, Stopped> {
        // A call that cannot be sent is dropped.
        call_remotely(f, |call| self.inbox.send(InboxItem::Call(call))).ok_or(Stopped)
    }

    /// Creates a bell like [`Capture::room_bell`] for readers in another process. That process need
    /// not be trusted: nothing that it does to its descriptor blocks the capture. The capture
    /// listens to the bell until the [`RoomBell`] is dropped.
    ///
    /// # Errors
    /// An error of the kernel if the process has no file descriptor left, or [`Stopped`], wrapped
    /// in an [`io::Error`].
    pub fn peer_room_bell(&self) -> io::Result<(Ringer, RoomBell)> {
        let mut room_bells = lock(&self.room_bells);
        let room_bells = match &*room_bells {
            Some(room_bells) => room_bells,
            None => {
                let new = Arc::new(RoomBells::new()?);
                let sent = self.inbox.send(InboxItem::Listen(Arc::clone(&new)));
                sent.map_err(|_| io::Error::other(Stopped))?;
                room_bells.insert(new)
            }
        };
        room_bells.bell()
    }

    /// Returns a ringer of the capture's bell. Gating readers in this process ring it when they
    /// have made room, see [`Reader::set_room_bell`](iof_shm_ring::Reader::set_room_bell).
    ///
    /// # Errors
    /// An error of the kernel if the process has no file descriptor left.
    pub fn room_bell(&self) -> io::Result<Ringer> {
        self.inbox.ringer().try_clone()
    }
}

/// Returns the ids that a command takes into use.
fn added_ids(command: &Command) -> Vec<IdInUse> {
    match command {
        Command::Add(NewProcess { sources, .. }) => {
            sources.iter().map(|source| IdInUse::Source(source.id)).collect()
        }
        Command::Open { source, .. } => vec![IdInUse::Source(*source)],
        Command::AddTarget { target, .. } => vec![IdInUse::Target(*target)],
        Command::BeginPush { push, .. } => vec![IdInUse::Push(*push)],
        _ => Vec::new(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.inbox.send(InboxItem::Stop);
        if let Some(thread) = self.thread.take()
            // When dropped in `on_event`, the thread ends later, without being joined.
            && thread.thread().id() != thread::current().id()
        {
            // The thread panics only if `on_event` does. The panic hook has reported that.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture")
            .field("backend", &self.backend)
            .field("fallback", &self.fallback)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::ids::PushId;

    #[test]
    fn many_fills_of_a_push_send_the_capture_thread_one_command() {
        let capture = Capture::start(|_| {}).unwrap();
        let ((announce, busy), (resume, wait)) = (bounded(0), bounded::<()>(0));
        thread::scope(|threads| {
            let capture = &capture;
            threads.spawn(move || {
                capture.with_streams(|_| {
                    announce.send(()).unwrap();
                    // Blocks until the other end is dropped.
                    let _ = wait.recv();
                })
            });
            busy.recv().unwrap();
            for push in [1, 2] {
                let fill = || Command::Fill { push: PushId(push), bytes: 1, last: false };
                (0..1000).for_each(|_| capture.send([fill()]).unwrap());
            }
            let commands = capture.inbox.len();
            drop(resume);
            assert_eq!(commands, 2);
        });
    }
}
