//! The handle of the capture thread.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crossbeam::channel::{Receiver, Sender, bounded, unbounded};
use iof_shm_ring::{Bell, Inlet, Ringer, Stream, bell};
use nix::sys::signal::{SigSet, Signal};

use crate::backend::{Backend, BackendKind, Epoll, Uring};
use crate::child::Child;
use crate::driver::{Command, Driver, Inbox};
use crate::event::{Event, ProcessId, PushId, SourceId, TargetId};
use crate::fills::{Fill, Fills};
use crate::remote_call::call_remotely;
use crate::room_bells::{RoomBell, RoomBells};
use crate::sources::OnEvent;
use crate::spawn;
use crate::start::StartError;
use crate::streams::Streams;
use crate::watchdog::{Watchdog, Watched};

/// The capture thread has ended: `on_event` panicked, or the kernel stopped serving it, which is
/// logged.
///
/// Whatever was asked of it and not done by then is not done. When the kernel stops serving, all
/// sources and targets that the thread had are reported with the kernel's error, and processes are
/// not watched any more. Only if the kernel does not even give back the memory of reads and writes
/// in flight is nothing reported, and all of it stays mapped for good. After a panic nothing more
/// is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the capture thread has ended; start a new Capture")]
pub struct Stopped;

/// Why a source was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddError {
    /// There is a source of this name.
    #[error("source {} was added already; remove it first, or use another id", source_id.0)]
    Taken {
        /// The name.
        source_id: SourceId,
    },
    /// The capture thread has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why a target was not added, or is not fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// There is a target of this name.
    #[error("target {} was added already; wait for its end, or use another id", target_id.0)]
    TargetTaken {
        /// The name.
        target_id: TargetId,
    },
    /// There is a push of this name.
    #[error("push {} was begun already; wait for its end, or use another id", push_id.0)]
    PushTaken {
        /// The name.
        push_id: PushId,
    },
    /// The capture thread has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Names in use, which the capture thread frees.
#[derive(Default)]
struct Names {
    targets: HashSet<TargetId>,
    pushes: HashSet<PushId>,
}

/// One thread that drains pipes into streams, fills pipes from inlets and watches processes.
///
/// All methods may be called from any thread, and none but [`Capture::with_streams`] and dropping
/// waits for the capture thread. Dropping it completes all sources with what they have, closes all
/// targets, reports that, and joins the thread; processes that still run are not watched any more
/// and stay.
pub struct Capture {
    commands: Sender<Command>,
    ringer: Ringer,
    /// Once there was one.
    room_bells: Mutex<Option<Arc<RoomBells>>>,
    /// Names of sources in use.
    taken: Mutex<HashSet<SourceId>>,
    fed: Arc<Mutex<Names>>,
    fills: Arc<Fills>,
    backend: BackendKind,
    fallback: Option<StartError>,
    thread: Option<JoinHandle<()>>,
    /// Dropped, so ended, after the capture thread has ended.
    _watchdog: Watchdog,
}

impl Capture {
    /// Starts the capture thread, on io_uring if the kernel gives one, else on epoll. In the latter
    /// case the reason is logged, and [`Capture::fallback`] has it.
    ///
    /// `on_event` runs on that thread, so it must not block, nor call [`Capture::with_streams`] or
    /// anything else that waits for this capture. If it panics the capture ends, see
    /// [`Stopped`]. [`Event::Stalled`] alone comes on another thread, possibly at the same
    /// time.
    ///
    /// # Errors
    /// [`StartError`]: no file descriptor or thread to be had.
    pub fn start(on_event: impl Fn(Event) + Send + Sync + 'static) -> Result<Capture, StartError> {
        Capture::launch(None, on_event)
    }

    /// The same, on `backend` and no other.
    ///
    /// # Errors
    /// [`StartError`]; [`StartError::Refused`] if the kernel gives no io_uring, with the likely
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
        // Now, while low numbers are free.
        spawn::reserve_stddiag_fd();
        let (ringer, listen) = bell().map_err(|source| StartError::Bell { source })?;
        let fed = Arc::<Mutex<Names>>::default();
        let names = Arc::clone(&fed);
        let on_event = Arc::new(on_event);
        let watched = Arc::<Watched>::default();
        let on_stall = Arc::clone(&on_event);
        let watchdog = Watchdog::start(Arc::clone(&watched), move |event| on_stall(event))
            .map_err(|source| StartError::Thread { source })?;
        let on_event: OnEvent = Box::new(move |event| {
            match &event {
                Event::Shut { target } => drop(lock(&names).targets.remove(target)),
                Event::PushOver { push } => drop(lock(&names).pushes.remove(push)),
                _ => {}
            }
            on_event(event);
        });
        let (commands, receive) = unbounded();
        let (tell, started) = bounded(1);
        let own = ringer.try_clone().map_err(|source| StartError::Bell { source })?;
        let inbox = Inbox { commands: Sender::clone(&commands), ringer: own };
        let body = Thread { bell: listen, commands: receive, inbox, watched, on_event, tell };
        let thread = thread::Builder::new()
            .name("iof-capture".into())
            .spawn(move || body.run(wanted))
            .map_err(|source| StartError::Thread { source })?;
        // It died before it could say why.
        let died = |_| Err(StartError::Thread { source: io::ErrorKind::Other.into() });
        let Started { backend, fallback } = started.recv().unwrap_or_else(died)?;
        if let Some(reason) = &fallback {
            tracing::warn!(%reason, "capture falls back on epoll, which costs more");
        }
        let taken = Mutex::default();
        Ok(Capture {
            commands,
            ringer,
            room_bells: Mutex::default(),
            taken,
            fed,
            fills: Arc::default(),
            backend,
            fallback,
            thread: Some(thread),
            _watchdog: watchdog,
        })
    }

    /// What it works with.
    pub fn backend(&self) -> BackendKind {
        self.backend
    }

    /// Why it does not work with io_uring, if nobody asked for another backend.
    pub fn fallback(&self) -> Option<&StartError> {
        self.fallback.as_ref()
    }

    fn send(&self, command: Command) -> Result<(), Stopped> {
        self.commands.send(command).map_err(|_| Stopped)?;
        self.ringer.ring();
        Ok(())
    }

    /// Reads `pipe` into `stream` from now on, under the name `id`.
    ///
    /// `pipe` is the read end of a pipe(7) that nobody else reads, blocking or not (blocking is
    /// cheaper on kernels before 6.3). It is closed after its last byte; the stream stays until
    /// [`Capture::remove`].
    ///
    /// Of a pipe in packet mode (O_DIRECT, which whoever writes can switch on, see pipe(2)) nothing
    /// is lost unseen if `stream` has a capacity of 16 KiB at least, for a read takes a quarter
    /// of it, and a packet has 4 KiB.
    ///
    /// [`Event::Complete`] follows, unless `on_event` panics before: then nothing does, see
    /// [`Stopped`].
    ///
    /// # Errors
    /// [`AddError::Taken`] if `id` is in use, [`AddError::Stopped`]. The pipe is closed then.
    pub fn add(&self, id: SourceId, pipe: OwnedFd, stream: Stream) -> Result<(), AddError> {
        self.enter(id, Command::Add { id, pipe, stream: Box::new(stream), leader: None })
    }

    /// The same as [`Capture::add`] for the master of a pty, and as [`Capture::watch`] for the
    /// leader of the session whose terminal that is: while it lives, that nobody has the
    /// terminal open is not its end, because any process of the session may open it again as
    /// /dev/tty. Meanwhile it is looked at every 20 ms.
    ///
    /// # Errors
    /// [`AddError::Taken`] if `id` is in use, [`AddError::Stopped`]. The master is closed then, the
    /// child stays unreaped.
    pub fn add_session(
        &self,
        id: SourceId,
        master: OwnedFd,
        stream: Stream,
        process: ProcessId,
        leader: Child,
    ) -> Result<(), AddError> {
        let leader = Some((process, leader));
        self.enter(id, Command::Add { id, pipe: master, stream: Box::new(stream), leader })
    }

    /// Adds a source without a pipe, under the name `id`: its bytes come with [`Capture::deliver`],
    /// and its end with [`Capture::finish`].
    ///
    /// # Errors
    /// [`AddError::Taken`] if `id` is in use, [`AddError::Stopped`].
    pub fn open(&self, id: SourceId, stream: Stream) -> Result<(), AddError> {
        self.enter(id, Command::Open { id, stream: Box::new(stream) })
    }

    /// Puts `bytes`, which were read from their source at `time` (nanoseconds since 1970, now if
    /// `None`), behind what was delivered before to a source that was [opened](Capture::open).
    /// They go into its stream in order; where a full stream waits for its readers, they wait
    /// here, in any number: [`Event::Delivered`] tells when they are no longer required, so
    /// whoever delivers knows how much waits.
    ///
    /// If there is no such source, or it has a pipe, or it was finished, the bytes are lost,
    /// uncounted, and the event comes at once. What waits when a source is
    /// [closed](Capture::close) or removed, or the capture ends, counts as dropped; of deliveries
    /// that come too late for that there is no event.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn deliver(&self, id: SourceId, bytes: Vec<u8>, time: Option<u64>) -> Result<(), Stopped> {
        self.send(Command::Deliver { id, bytes, time })
    }

    /// Sends what adds a source, if its name is free.
    fn enter(&self, id: SourceId, add: Command) -> Result<(), AddError> {
        // Held until it is sent: the commands for one name keep their order.
        let mut taken = lock(&self.taken);
        if !taken.insert(id) {
            return Err(AddError::Taken { source_id: id });
        }
        Ok(self.send(add)?)
    }

    /// Stops reading a source now, and completes its stream with what it has: for pipes that a
    /// grandchild holds open. Unread bytes are lost with the pipe, and whoever writes to it
    /// gets SIGPIPE, see pipe(7). [`Event::Complete`] follows, unless it came already or there
    /// is no such source.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn close(&self, id: SourceId) -> Result<(), Stopped> {
        self.send(Command::Close(id))
    }

    /// Reads what was written to a source up to now, as far as its stream takes it, and then closes
    /// it: for pipes that somebody holds open of whom nothing more is wanted. Where a full
    /// stream has the source wait for its readers, this waits as well. Of a source without a
    /// pipe: no delivery will follow. [`Event::Complete`] follows, unless it came already or
    /// there is no such source.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn finish(&self, id: SourceId) -> Result<(), Stopped> {
        self.send(Command::Finish(id))
    }

    /// Has a source's pipe read by a thread of its own from now on, so that what blocks it blocks
    /// no other: see [`Event::Stalled`]. Its bytes are copied once more then. A thread that is
    /// stuck when the source is closed or removed keeps the pipe open until the kernel lets it
    /// go, and nothing waits for it. Sources without a pipe and terminals stay as they are.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn isolate(&self, id: SourceId) -> Result<(), Stopped> {
        self.send(Command::Isolate(id))
    }

    /// Drops a source's stream and frees its name; closes the source first if it is not complete.
    /// Readers keep what they have mapped.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn remove(&self, id: SourceId) -> Result<(), Stopped> {
        let mut taken = lock(&self.taken);
        self.send(Command::Remove(id))?;
        taken.remove(&id);
        Ok(())
    }

    /// Reports the end of `child`, at once if it ended already, by [`Event::Exited`] with the name
    /// `id`, and reaps it, see waitpid(2). The name is only handed back: it need not be unique.
    ///
    /// # Errors
    /// [`Stopped`]; the child stays unreaped.
    pub fn watch(&self, id: ProcessId, child: Child) -> Result<(), Stopped> {
        self.send(Command::Watch { id, child })
    }

    /// Takes `pipe`, the write end of a pipe(7) that nobody else writes, as a target under the name
    /// `id`, to be fed. It stays open, and whoever reads it waits, until it is
    /// [shut](Capture::shut), a push that closes it is over, or it is found out that nobody
    /// reads it: [`Event::Shut`].
    ///
    /// # Errors
    /// [`PushError::TargetTaken`] if `id` is the name of a target for which [`Event::Shut`] is
    /// still to come, [`PushError::Stopped`]. The pipe is closed then.
    pub fn add_target(&self, id: TargetId, pipe: OwnedFd) -> Result<(), PushError> {
        if !lock(&self.fed).targets.insert(id) {
            return Err(PushError::TargetTaken { target_id: id });
        }
        Ok(self.send(Command::AddTarget { id, pipe })?)
    }

    /// Writes to each of `targets` what `inlet` is filled with from now on, all of it in one piece:
    /// pushes that came to a target before are over there first. The bytes are in memory once,
    /// for any number of targets. Where the push `closes`, a target's pipe is closed after the
    /// last byte.
    ///
    /// 1. `begin_push`;
    /// 2. [`fill`](Capture::fill) for what was put into the inlet, never more than there is room.
    ///    Room is what it holds, less what was filled behind the position of the last
    ///    [`Event::Freed`];
    /// 3. say that it is `over` with the last `fill`. A push whose targets are all gone is over
    ///    before: [`Event::PushOver`].
    ///
    /// [`Event::Fed`] follows for each target, with what it got; of one that is not there, at once.
    /// If `on_event` panics it does not, see [`Stopped`].
    ///
    /// # Errors
    /// [`PushError::PushTaken`] if `id` is the name of a push for which [`Event::PushOver`] is
    /// still to come, [`PushError::Stopped`].
    pub fn begin_push(
        &self,
        id: PushId,
        inlet: Arc<Inlet>,
        targets: Vec<TargetId>,
        closes: bool,
    ) -> Result<(), PushError> {
        if !lock(&self.fed).pushes.insert(id) {
            return Err(PushError::PushTaken { push_id: id });
        }
        Ok(self.send(Command::Push { id, inlet, targets, closes })?)
    }

    /// There are `bytes` more in a push's inlet, and these were the last, if it is `over`. Of a
    /// push that is over nothing happens.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn fill(&self, id: PushId, bytes: u64, over: bool) -> Result<(), Stopped> {
        // In between it was told already.
        if self.fills.add(id, Fill { bytes, over }) {
            self.send(Command::Fill { id, fills: Arc::clone(&self.fills) })?;
        }
        Ok(())
    }

    /// Closes the targets that have taken no more of a push than what lies before `position`,
    /// though it was their turn and there is more: [`PushEnd::CutOff`](crate::PushEnd). Those
    /// for which the push waits behind another stay. [`Streams::lagging`] says who they are.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn cut_off(&self, id: PushId, position: u64) -> Result<(), Stopped> {
        self.send(Command::CutOff { id, position })
    }

    /// Stops writing to a target and closes its pipe; what was written to it stays. [`Event::Shut`]
    /// follows, unless it came already or there is no such target.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn shut(&self, id: TargetId) -> Result<(), Stopped> {
        self.send(Command::Shut(id))
    }

    /// Runs `f` on the capture thread, between two batches, and waits for what it returns.
    /// Meanwhile no pipe is read, so `f` should be short. If `f` panics, this panics, and the
    /// capture goes on.
    ///
    /// Never call this from `on_event`, nor from `f`: it would wait for itself, for ever.
    ///
    /// # Errors
    /// [`Stopped`]; `f` did not run.
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
        // A job that can't be sent is dropped.
        call_remotely(f, |call| self.send(Command::Call(call))).ok_or(Stopped)
    }

    /// Makes a bell like [`Capture::room_bell`] for readers in another process, which need not be
    /// trusted: whatever that does to its descriptor blocks nothing here. The capture listens
    /// to it until the [`RoomBell`] is dropped.
    ///
    /// # Errors
    /// When the process has no file descriptor left, or the capture thread has ended.
    pub fn peer_room_bell(&self) -> io::Result<(Ringer, RoomBell)> {
        let mut rooms = lock(&self.room_bells);
        let rooms = match &*rooms {
            Some(rooms) => rooms,
            None => {
                let new = Arc::new(RoomBells::new()?);
                self.send(Command::Listen(Arc::clone(&new))).map_err(io::Error::other)?;
                rooms.insert(new)
            }
        };
        rooms.bell()
    }

    /// The bell that readers in this process which may hold a source back ring when they made room,
    /// see [`Reader::tell_room`](iof_shm_ring::Reader::tell_room).
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn room_bell(&self) -> io::Result<Ringer> {
        self.ringer.try_clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.send(Command::Stop);
        if let Some(thread) = self.thread.take()
            // Dropped in `on_event`: the thread ends by itself.
            && thread.thread().id() != thread::current().id()
        {
            // It panicked only if `on_event` did, which was reported where panics are.
            let _ = thread.join();
        }
    }
}

/// What the capture thread begins with.
struct Thread {
    bell: Bell,
    commands: Receiver<Command>,
    inbox: Inbox,
    watched: Arc<Watched>,
    on_event: OnEvent,
    tell: Sender<Result<Started, StartError>>,
}

/// What it says once it has a backend.
struct Started {
    backend: BackendKind,
    fallback: Option<StartError>,
}

impl Thread {
    fn run(self, wanted: Option<BackendKind>) {
        leave_signals_to_others();
        let mut fallback = None;
        if wanted != Some(BackendKind::Epoll) {
            // Here, because an io_uring belongs to the thread that makes it.
            match Uring::new() {
                Ok(uring) => return self.drive(uring, None),
                Err(refused) if wanted.is_none() => fallback = Some(refused),
                Err(refused) => return drop(self.tell.send(Err(refused))),
            }
        }
        match Epoll::new() {
            Ok(epoll) => self.drive(epoll, fallback),
            Err(error) => drop(self.tell.send(Err(error))),
        }
    }

    fn drive<B: Backend>(self, backend: B, fallback: Option<StartError>) {
        let _ = self.tell.send(Ok(Started { backend: B::KIND, fallback }));
        Driver::new(backend, self.bell, self.commands, self.inbox, self.watched, self.on_event).run();
    }
}

/// Blocks all signals on this thread, so that the process's own threads get them; except those that
/// a fault of this thread raises, which the process's handlers must see. See signal(7).
///
/// SIGPIPE as well: the kernel sends it to the thread that wrote to a pipe without readers (see
/// write(2)), not to the process, so here it stays pending, unseen, and goes with the thread. The
/// same with io_uring, where the writer is this thread, or one of the kernel's own, which blocks
/// all but SIGKILL and SIGSTOP.
pub(crate) fn leave_signals_to_others() {
    let mut signals = SigSet::all();
    for fault in [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGTRAP] {
        signals.remove(fault);
    }
    // Fails for bad arguments only.
    let _ = signals.thread_block();
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn however_often_a_push_is_filled_the_capture_thread_has_one_word_of_it_to_hear() {
        let capture = Capture::start(|_| {}).unwrap();
        let ((tell, busy), (go_on, wait)) = (bounded(0), bounded::<()>(0));
        thread::scope(|threads| {
            let capture = &capture;
            threads.spawn(move || {
                capture.with_streams(|_| {
                    tell.send(()).unwrap();
                    // Until the other end is dropped.
                    let _ = wait.recv();
                })
            });
            busy.recv().unwrap();
            for push in [1, 2] {
                (0..1000).for_each(|_| capture.fill(PushId(push), 1, false).unwrap());
            }
            let words = capture.commands.len();
            drop(go_on);
            assert_eq!(words, 2);
        });
    }
}
