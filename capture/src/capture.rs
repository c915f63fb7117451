//! The handle to the capture thread.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam::channel::bounded;
use iof_shm_ring::{Inlet, Ringer, bell};

use crate::backend::BackendKind;
use crate::capture_thread::{CaptureThread, Started};
use crate::child::Child;
use crate::command::{Command, NewSource};
use crate::error::{AddError, PushError, Stopped};
use crate::event::{Event, ProcessId, PushId, SourceId, TargetId};
use crate::fills::Fill;
use crate::first_writes::FirstWrites;
use crate::inbox::Inbox;
use crate::mass_start::MassStart;
use crate::queue::SourceBytes;
use crate::remote_call::call_remotely;
use crate::request::{NewStream, StreamRequest};
use crate::room_bells::{RoomBell, RoomBells};
use crate::sources::OnEvent;
use crate::start::StartError;
use crate::streams::Streams;
use crate::watchdog::{WatchState, Watchdog};
use crate::{seats, spawn};

/// The ids of targets and pushes in use. The capture thread frees them.
#[derive(Default)]
struct IdsInUse {
    targets: HashSet<TargetId>,
    pushes: HashSet<PushId>,
}

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
    /// The ids of sources in use.
    source_ids: Mutex<HashSet<SourceId>>,
    push_ids: Arc<Mutex<IdsInUse>>,
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
        spawn::reserve_stddiag_fd();
        seats::reserve();
        let (ringer, bell) = bell().map_err(|source| StartError::Bell { source })?;
        let push_ids = Arc::<Mutex<IdsInUse>>::default();
        let ids = Arc::clone(&push_ids);
        let on_event = Arc::new(on_event);
        let watched = Arc::<WatchState>::default();
        let on_stall = Arc::clone(&on_event);
        let watchdog = Watchdog::start(Arc::clone(&watched), move |event| on_stall(event))
            .map_err(|source| StartError::Thread { source })?;
        let on_event: OnEvent = Arc::new(move |event| {
            match &event {
                Event::Shut { target } => drop(lock(&ids).targets.remove(target)),
                Event::PushOver { push } => drop(lock(&ids).pushes.remove(push)),
                _ => {}
            }
            on_event(event);
        });
        let (started, receive_started) = bounded(1);
        let (inbox, commands) = Inbox::new(ringer);
        let capture_thread =
            CaptureThread { bell, commands, inbox: inbox.clone(), watched, on_event, started };
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
            source_ids: Mutex::default(),
            push_ids,
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

    /// Sends a command to the capture thread and wakes it.
    fn send(&self, command: Command) -> Result<(), Stopped> {
        self.inbox.send(command)
    }

    /// Adds the source `id`: reads `pipe` into `stream` from now on.
    ///
    /// `pipe` is the read end of a pipe(7) without another reader. It may be blocking or not;
    /// blocking is cheaper on kernels before Linux 6.3. The pipe is closed after its last byte. The
    /// stream stays until [`Capture::remove`].
    ///
    /// A writer can switch a pipe to packet mode (O_DIRECT, see pipe(2)). Such a pipe loses nothing
    /// uncounted if `stream` has a capacity of at least 16 KiB, because a read takes up to a
    /// quarter of it, and a packet has at most 4 KiB.
    ///
    /// [`Event::Complete`] follows, unless the capture ends first, see [`Event::Ended`].
    ///
    /// # Errors
    /// [`AddError::Taken`] if `id` is in use, or [`AddError::Stopped`]. The pipe is closed then.
    pub fn add(&self, id: SourceId, pipe: OwnedFd, stream: impl Into<NewStream>) -> Result<(), AddError> {
        self.add_source(id, Command::Add(NewSource::new(id, pipe, stream.into())))
    }

    /// Adds the sources of one process, as [`Capture::add`] does, and watches the process, as
    /// [`Capture::watch`] does. The process is `None` if its exit is not to be reported. With
    /// `first_writes`, those of the pipes that have bytes already are read in the order in which
    /// they became readable.
    ///
    /// If the first source is the master of a pty, the process must be the leader of the session
    /// whose terminal it is. As long as the leader runs, that source does not end when no process
    /// has the terminal open, because a process of the session may open it again as /dev/tty. While
    /// no process has it open, the capture checks the terminal every 20 ms.
    ///
    /// # Errors
    /// [`AddError::Taken`] if an id is in use, or [`AddError::Stopped`]. No source is added, the
    /// pipes are closed, and the child stays unreaped.
    pub fn add_process<S: Into<NewStream>>(
        &self,
        process: Option<(ProcessId, Child)>,
        sources: impl IntoIterator<Item = (SourceId, OwnedFd, S)>,
        first_writes: Option<&FirstWrites>,
    ) -> Result<(), AddError> {
        let new = |(id, pipe, stream): (_, _, S)| NewSource::new(id, pipe, stream.into());
        let sources: Vec<NewSource> = sources.into_iter().map(new).collect();
        // Held until the command is sent, so that the commands for one id keep their order.
        let mut source_ids = lock(&self.source_ids);
        if let Some(taken) = sources.iter().find(|source| source_ids.contains(&source.id)) {
            return Err(AddError::Taken { source_id: taken.id });
        }
        source_ids.extend(sources.iter().map(|source| source.id));
        Ok(self.send(Command::AddProcess { process, sources, first_writes: first_writes.cloned() })?)
    }

    /// Adds the source `id` without a pipe: [`Capture::deliver`] adds its bytes, and
    /// [`Capture::finish`] ends it.
    ///
    /// # Errors
    /// [`AddError::Taken`] if `id` is in use, or [`AddError::Stopped`].
    pub fn open(&self, id: SourceId, stream: impl Into<NewStream>) -> Result<(), AddError> {
        let NewStream { stream, first } = stream.into();
        self.add_source(id, Command::Open { id, stream: Box::new(stream), first })
    }

    /// Delivers bytes to a source that was added with [`Capture::open`]. The stream counts bytes
    /// that were lost before them as dropped.
    ///
    /// Deliveries enter the stream in the order of the calls. While a full stream waits for its
    /// readers, they wait in a queue without a limit. [`Event::Delivered`] reports the deliveries
    /// that have left the queue, so the caller can limit how many bytes wait.
    ///
    /// If the source does not exist, has a pipe or was finished, the bytes are lost and not
    /// counted, and the event follows immediately. Bytes that wait when the source is
    /// [closed](Capture::close) or removed, or when the capture ends, count as dropped. A delivery
    /// that has not reached the capture thread when the capture ends is not reported.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn deliver(&self, id: SourceId, delivery: impl Into<SourceBytes>) -> Result<(), Stopped> {
        self.send(Command::Deliver { id, delivery: delivery.into() })
    }

    /// Sends `add`, which adds a source, if the source's id is free.
    fn add_source(&self, id: SourceId, add: Command) -> Result<(), AddError> {
        // Held until the command is sent, so that the commands for one id keep their order.
        let mut source_ids = lock(&self.source_ids);
        if !source_ids.insert(id) {
            return Err(AddError::Taken { source_id: id });
        }
        Ok(self.send(add)?)
    }

    /// Stops reading a source immediately and completes its stream with the bytes that it has.
    /// Meant for pipes that a grandchild holds open. Unread bytes are lost with the pipe, and a
    /// process that writes to it gets SIGPIPE, see pipe(7). [`Event::Complete`] follows, unless it
    /// was reported already or the source does not exist.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn close(&self, id: SourceId) -> Result<(), Stopped> {
        self.send(Command::Close(id))
    }

    /// Reads the bytes that were written to a source up to now, and then closes it. Meant for pipes
    /// that are held open by a process whose further output is not wanted. While a full stream
    /// waits for its readers, the source stays open. For a source without a pipe, this means that
    /// no delivery will follow. [`Event::Complete`] follows, unless it was reported already or the
    /// source does not exist.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn finish(&self, id: SourceId) -> Result<(), Stopped> {
        self.send(Command::Finish { id, missing: None })
    }

    /// Ends a source without a pipe as [`Capture::finish`] does, but its stream is broken: its
    /// source may have produced more bytes, at least `missing`, which will not arrive.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn break_off(&self, id: SourceId, missing: u64) -> Result<(), Stopped> {
        self.send(Command::Finish { id, missing: Some(missing) })
    }

    /// Moves a source's pipe to a separate thread, so that the pipe can no longer block the reading
    /// of other pipes, see [`Event::Stalled`]. The source's bytes are then copied once more. If the
    /// thread is stuck in the kernel when the source is closed or removed, it keeps the pipe open
    /// until the kernel releases it. Nothing waits for that thread. Sources without a pipe and
    /// terminals are not moved.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn isolate(&self, id: SourceId) -> Result<(), Stopped> {
        self.send(Command::Isolate(id))
    }

    /// Drops a source's stream and frees its id. If the source is not complete, closes it first.
    /// Readers keep their mappings.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn remove(&self, id: SourceId) -> Result<(), Stopped> {
        let mut source_ids = lock(&self.source_ids);
        self.send(Command::Remove(id))?;
        source_ids.remove(&id);
        Ok(())
    }

    /// Watches `child`: when it ends, or if it has ended already, reaps it (see waitpid(2)) and
    /// reports [`Event::Exited`] with `id`. The id is only passed back and need not be unique.
    ///
    /// # Errors
    /// [`Stopped`]. The child stays unreaped then.
    pub fn watch(&self, id: ProcessId, child: Child) -> Result<(), Stopped> {
        self.send(Command::Watch { id, child })
    }

    /// Adds `pipe`, the write end of a pipe(7) without another writer, as target `id`. It stays
    /// open, and its reader waits for bytes, until it is [shut](Capture::shut), a push that closes
    /// it is over, or a write finds that it has no reader. [`Event::Shut`] reports that.
    ///
    /// # Errors
    /// [`PushError::TargetTaken`] if [`Event::Shut`] has not been reported for an earlier target
    /// `id`, or [`PushError::Stopped`]. The pipe is closed then.
    pub fn add_target(&self, id: TargetId, pipe: OwnedFd) -> Result<(), PushError> {
        if !lock(&self.push_ids).targets.insert(id) {
            return Err(PushError::TargetTaken { target_id: id });
        }
        Ok(self.send(Command::AddTarget { id, pipe })?)
    }

    /// Begins a push: writes the bytes that are put into `inlet` from now on to each of `targets`.
    /// A push has its turn at a target after all earlier pushes to that target, so the bytes of
    /// pushes never interleave. The bytes are in memory once, for any number of targets. If
    /// `closes` is set, a target's pipe is closed after the last byte.
    ///
    /// 1. Call `begin_push`.
    /// 2. Put bytes into the inlet, never more than there is room, and report their number with
    ///    [`fill`](Capture::fill). The room is the capacity of the inlet less the bytes filled
    ///    after the position of the last [`Event::Freed`].
    /// 3. Pass `over` with the last `fill`. If all targets of a push have ended, the push is over
    ///    earlier, which [`Event::PushOver`] reports.
    ///
    /// [`Event::Fed`] follows for each target, with the number of bytes that it took, and
    /// immediately for a target that does not exist, unless the capture ends first, see
    /// [`Event::Ended`].
    ///
    /// # Errors
    /// [`PushError::PushTaken`] if [`Event::PushOver`] has not been reported for an earlier push
    /// `id`, or [`PushError::Stopped`].
    pub fn begin_push(
        &self,
        id: PushId,
        inlet: Arc<Inlet>,
        targets: Vec<TargetId>,
        closes: bool,
    ) -> Result<(), PushError> {
        if !lock(&self.push_ids).pushes.insert(id) {
            return Err(PushError::PushTaken { push_id: id });
        }
        Ok(self.send(Command::Push { id, inlet, targets, closes })?)
    }

    /// Reports that `bytes` more bytes are in a push's inlet, and whether these were the last
    /// (`over`). Has no effect on a push that is over.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn fill(&self, id: PushId, bytes: u64, over: bool) -> Result<(), Stopped> {
        self.inbox.fill(id, Fill { bytes, over })
    }

    /// Closes the targets of a push that have taken nothing after `position` although the push has
    /// its turn there and has more bytes ([`PushEnd::CutOff`](crate::PushEnd)). Targets where the
    /// push waits for another push stay open. [`Streams::lagging`] lists the slow targets.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn cut_off(&self, id: PushId, position: u64) -> Result<(), Stopped> {
        self.send(Command::CutOff { id, position })
    }

    /// Stops writing to a target and closes its pipe. Bytes that are in the pipe can still be read.
    /// [`Event::Shut`] follows, unless it was reported already or the target does not exist.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn shut(&self, id: TargetId) -> Result<(), Stopped> {
        self.send(Command::Shut(id))
    }

    /// Shuts a target as [`Capture::shut`] does, if no process reads its pipe any more. Otherwise a
    /// target to which nothing is written stays open after its last reader has ended.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn shut_unread(&self, id: TargetId) -> Result<(), Stopped> {
        self.send(Command::ShutUnread(id))
    }

    /// Performs `request` on the capture thread, after all earlier commands and before all later
    /// ones. If it has an id, [`Event::Answered`] follows, unless the capture ends first, see
    /// [`Event::Ended`].
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn request(&self, request: StreamRequest) -> Result<(), Stopped> {
        self.send(Command::Request(request))
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
    ///     streams.get_mut(SourceId(1)).map(|tap| tap.stats().complete)
    /// })?;
    /// assert_eq!(complete, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_streams<R: Send>(&self, f: impl FnOnce(&mut Streams<'_>) -> R + Send) -> Result<R, Stopped> {
        // A call that cannot be sent is dropped.
        call_remotely(f, |call| self.send(Command::Call(call))).ok_or(Stopped)
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
                self.send(Command::Listen(Arc::clone(&new))).map_err(io::Error::other)?;
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.send(Command::Stop);
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
                (0..1000).for_each(|_| capture.fill(PushId(push), 1, false).unwrap());
            }
            let commands = capture.inbox.len();
            drop(resume);
            assert_eq!(commands, 2);
        });
    }
}
