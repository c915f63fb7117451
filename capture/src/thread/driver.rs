//! The capture thread: submits the requests that the sources and targets need, and passes the
//! answers back to them.
//!
//! One turn submits the pending requests, waits for answers, handles each of them (which makes new
//! requests), then notifies the readers once and reports the events. When the bell rings, a turn
//! also runs the commands of the handle. Readers that have made room ring the same bell.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use crossbeam::channel::Receiver;
use iof_shm_ring::{Bell, Inlet, Stream, Utilization, current_thread_cpu};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::backend::{Answer, Backend, Pause, Token};
use crate::messages::command::{Command, NewSource};
use crate::messages::event::{End, Event, PipeId, PushEnd, PushId, SourceId, TargetId};
use crate::process::limit::check_files;
use crate::slots::Slab;
use crate::source::source_table::EndedStreams;
use crate::source::{Close, PACKET_MAX, Ready, Source, SourceAction, Step};
use crate::spawn::first_writes::WatchedPipes;
use crate::thread::coalescing::{Coalescing, Yield};
use crate::thread::fills::Fill;
use crate::thread::inbox::{Inbox, InboxItem};
use crate::thread::room_bells::RoomBells;
use crate::thread::sources::{OnEvent, Sources};
use crate::thread::streams::Streams;
use crate::thread::targets::Targets;
use crate::thread::watchdog::WatchState;

mod commands;
mod deliver;
mod endings;
mod isolate;
mod processes;
mod push;
mod teardown;

use processes::WatchedProcess;

/// Number of streams that may grow at one check because their sources have waited. Each needs a
/// ring in the same turn.
const GROWTHS_PER_CHECK: u64 = 16;
/// Number of files that such streams leave to ranks, connections and logs, besides those that other
/// streams need with their first bytes.
const RESERVED_FILES: u64 = 64;

/// The capture thread's state. It is created, used and dropped on that thread.
pub(crate) struct Driver<B: Backend> {
    /// Declared, and so dropped, before the streams, the inlets and all files.
    backend: B,
    sources: Sources,
    targets: Targets,
    processes: Slab<WatchedProcess>,
    /// Sources that wait for their readers.
    waiting: Vec<usize>,
    /// Sources whose pipes collect bytes, after the [orders](Stream::order) of their streams.
    collecting: BTreeSet<(usize, usize)>,
    /// Set if a pause is in flight after which the sources that wait are checked for growth.
    checks_growth: bool,
    bell: Bell,
    /// `None` until [`InboxItem::Listen`].
    room_bells: Option<Arc<RoomBells>>,
    inbox_items: Receiver<InboxItem>,
    /// The commands of a batch that were not performed yet.
    batch: VecDeque<Command>,
    /// For threads of isolated sources, which send what they have read.
    inbox: Inbox,
    watched: Arc<WatchState>,
    /// When this turn's answers were taken, in nanoseconds since 1970, plus one nanosecond for each
    /// answer or delivery handled since, so that the times of reads show their order.
    time: u64,
    /// The pipes that were added since the last turn in the order of their first writes.
    added: Vec<WatchedPipes>,
    coalescing: Coalescing,
    utilization: Utilization,
    /// When the last turn's answers were taken.
    last_turn: Instant,
    /// The answers of a turn, empty between turns.
    answers: Vec<Answer>,
    stopping: bool,
}

impl<B: Backend> Driver<B> {
    pub(crate) fn new(
        backend: B,
        bell: Bell,
        inbox_items: Receiver<InboxItem>,
        inbox: Inbox,
        watched: Arc<WatchState>,
        on_event: OnEvent,
    ) -> Driver<B> {
        Driver {
            backend,
            sources: Sources::new(on_event),
            targets: Targets::default(),
            processes: Slab::default(),
            waiting: Vec::new(),
            collecting: BTreeSet::new(),
            checks_growth: false,
            bell,
            room_bells: None,
            inbox_items,
            batch: VecDeque::new(),
            inbox,
            watched,
            time: 0,
            added: Vec::new(),
            coalescing: Coalescing::new(),
            utilization: Utilization::new(Instant::now(), current_thread_cpu()),
            last_turn: Instant::now(),
            answers: Vec::new(),
            stopping: false,
        }
    }

    /// Runs turns until [`InboxItem::Stop`] was received and everything has ended. After a panic,
    /// everything is ended as after a failure of the kernel facility. Returns the streams, and the
    /// panic.
    pub(crate) fn run(mut self) -> (EndedStreams, thread::Result<()>) {
        let turns = || {
            self.begin();
            while self.turn() {}
        };
        let ran = catch_unwind(AssertUnwindSafe(turns));
        if ran.is_err() {
            let error = io::Error::other("the capture thread has panicked");
            // If `on_event` panics again, the rest is not reported.
            let _ = catch_unwind(AssertUnwindSafe(|| self.fail(&error)));
        }
        (self.into_streams(), ran)
    }

    /// Prepares the first turn: commands are received from then on.
    pub(crate) fn begin(&mut self) {
        self.watched.begin();
        // SAFETY: the bell is dropped after the backend.
        unsafe { self.backend.register(Token::Bell, self.bell.as_fd()) };
        self.backend.poll(Token::Bell, self.bell.as_fd());
        self.last_turn = Instant::now();
    }

    /// Runs one turn. Returns `false` if everything has ended, so that no turn follows.
    pub(crate) fn turn(&mut self) -> bool {
        if self.stopping && self.backend.is_quiet() {
            return false;
        }
        if let Err(error) = self.backend.turn(self.coalescing.delay(self.inbox.mass_starts().delay())) {
            self.fail(&error);
            return false;
        }
        self.watched.turn();
        let mut answers = mem::take(&mut self.answers);
        self.backend.take(&mut answers);
        let turned = Instant::now();
        let elapsed = turned.duration_since(mem::replace(&mut self.last_turn, turned));
        let (bytes, largest) = sizes(&answers);
        let waited = self.coalescing.is_waiting();
        let busy = self.utilization.is_busy(turned, bytes, waited, current_thread_cpu);
        self.coalescing.record_turn(Yield { bytes, largest, elapsed, busy });
        // One reading of the clock serves all answers of the turn. Times never run backwards,
        // though the clock may, because they are also the order of the reads.
        self.time = self.backend.now().max(self.time);
        self.added.drain(..).for_each(|added| added.sort(&mut answers));
        self.catch_up(&answers);
        let mut bell_error = None;
        for answer in answers.drain(..) {
            self.tick();
            match answer {
                (Token::Bell, Err(error)) => bell_error = Some(error),
                answer => self.handle(answer),
            }
        }
        self.answers = answers;
        if let Some(error) = bell_error {
            // Without the bell no command would arrive any more.
            self.fail(&error);
            return false;
        }
        self.sources.flush_notifications();
        true
    }

    /// Returns access to the streams and targets.
    pub(crate) fn streams(&mut self) -> Streams<'_> {
        Streams::new(&mut self.sources.table, &self.targets)
    }

    #[cfg(feature = "test-utils")]
    pub(crate) fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    /// Makes what is read from now on later than what was read before.
    fn tick(&mut self) {
        self.time = self.time.saturating_add(1);
    }

    /// Reads pipes that collect bytes, if `answers` have bytes of streams in the same order: the
    /// collected ones are older. Later than this, a pause that ends in this turn would let the
    /// others overtake.
    fn catch_up(&mut self, answers: &[Answer]) {
        if self.collecting.is_empty() {
            return;
        }
        for (token, result) in answers {
            let (Token::Source(index), Ok(1..)) = (token, result) else { continue };
            let order = self.sources.table.source(*index).and_then(|source| source.stream().order());
            let Some(order) = order else { continue };
            for (_, older) in self.collecting.range((order, 0)..=(order, usize::MAX)) {
                // As in `tick`, which would borrow the set.
                self.time = self.time.saturating_add(1);
                let Some(source) = self.sources.mark_ready(*older) else { continue };
                let Some((pipe, span)) = source.catch_up() else { continue };
                // SAFETY: the span lies in the source's stream, which only this thread changes, and
                // no request of the source uses it. As with a read in flight, readers of older bytes
                // there copy them by atomic loads.
                let result = unsafe { self.backend.read_now(pipe, &span) };
                source.caught_up(result, self.time);
            }
        }
    }

    fn handle(&mut self, (token, result): Answer) {
        match token {
            Token::Source(index) => {
                let Some(source) = self.sources.mark_ready(index) else { absent!("source", return) };
                if let Some(order) = source.stream().order() {
                    self.collecting.remove(&(order, index));
                }
                let step = source.done(result, self.time);
                self.advance(index, step);
            }
            Token::Process(index) => self.check_exit(index),
            Token::Bell => {
                self.bell.silence();
                self.inbox.take_wake();
                self.take_inbox();
                self.retry_waiting();
                if !self.stopping {
                    self.backend.poll(Token::Bell, self.bell.as_fd());
                }
            }
            Token::RoomBells => {
                if let Some(room_bells) = &self.room_bells
                    && !self.stopping
                {
                    room_bells.silence();
                    self.backend.poll(Token::RoomBells, room_bells.0.0.as_fd());
                }
                self.retry_waiting();
            }
            Token::Growth => self.check_growth(),
            Token::Target(index) => self.wrote(index, result),
            Token::Cancel => {}
        }
    }

    /// Lets a source wait until its readers may have made room.
    fn wait(&mut self, index: usize) {
        self.waiting.push(index);
        let grows = self.sources.table.source_mut(index).is_some_and(|source| source.waits_to_grow());
        if grows && !self.checks_growth && !self.stopping {
            self.checks_growth = true;
            self.backend.pause(Token::Growth, Pause::Long);
        }
    }

    /// Lets streams grow that have waited for many checks.
    fn check_growth(&mut self) {
        self.checks_growth = false;
        let sources = self.waiting.iter().filter_map(|index| self.sources.table.source(*index));
        let owed = sources.map(|source| source.stream().owed_rings()).max().unwrap_or(0);
        // Until its reader follows, a stream that grows has one more file.
        let spare = check_files(RESERVED_FILES.saturating_add(owed)).unwrap_or(0);
        let mut allowed = spare.min(GROWTHS_PER_CHECK);
        for index in &self.waiting {
            if let Some(source) = self.sources.table.source_mut(*index) {
                source.check_growth(&mut allowed);
            }
        }
        // Those that still wait begin the next check.
        self.retry_waiting();
    }

    /// Advances the sources that wait for their readers: a reader may have made room or detached.
    fn retry_waiting(&mut self) {
        for index in mem::take(&mut self.waiting) {
            self.advance(index, Step::Go { readable: false });
        }
    }

    /// Starts to listen to the bells of readers in other processes.
    fn listen(&mut self, room_bells: Arc<RoomBells>) {
        let room_bells = self.room_bells.get_or_insert(room_bells);
        // SAFETY: the epoll instance stays open until the driver is dropped, which drops the
        // backend first.
        unsafe { self.backend.register(Token::RoomBells, room_bells.0.0.as_fd()) };
        self.backend.poll(Token::RoomBells, room_bells.0.0.as_fd());
    }

    /// Performs `step` for a source, and the steps that follow, until a request is in flight, or
    /// the source waits or has ended.
    fn advance(&mut self, index: usize, step: Step) {
        let readable = match step {
            Step::End(end) => return self.end(index, end),
            _ if self.sources.table.source_mut(index).is_some_and(|source| source.can_be_isolated()) => {
                return self.hand_over(index);
            }
            Step::Go { readable } => readable,
            Step::Measure => return self.measure(index),
        };
        let Some(source) = self.sources.mark_ready(index) else { return };
        if source.has_queue() {
            return self.pour(index);
        }
        match source.next(readable) {
            // SAFETY: the span lies in the source's stream. `Sources` drops a source only when it
            // has ended. A source with a read in flight neither ends nor writes its stream
            // (`Source::next`, `Source::close`) before `Source::done`, which `handle` calls with
            // the answer. If this thread unwinds or the kernel fails, `into_streams` or `drop`
            // below collects the answers first, or the streams are leaked, at the latest by
            // `EndedStreams`. `Streams`, the only other access to a stream, neither writes nor
            // drops it, and `Stream::allocate` leaves a ring alone that can have given a span. The
            // source itself may move; the span does not.
            SourceAction::Read(pipe, span) => unsafe { self.backend.read(Token::Source(index), pipe, span) },
            SourceAction::Poll(pipe) => self.backend.poll(Token::Source(index), pipe),
            SourceAction::Drain(pipe) => {
                // One call a turn, so that a source without readers cannot starve the others.
                let result = self.backend.discard(pipe);
                let step = source.drained(result, self.time);
                self.advance(index, step);
            }
            SourceAction::Probe(pipe) => {
                let is_at_end = is_hung_up(pipe);
                let step = source.probed(is_at_end);
                self.advance(index, step);
            }
            SourceAction::ReadNow(pipe, span) => {
                // SAFETY: the span lies in the source's stream, which only this thread changes. It
                // is the first of its ring, so no reader copies older bytes from there meanwhile.
                let result = unsafe { self.backend.read_now(pipe, &span) };
                let step = source.done(result, self.time);
                self.advance(index, step);
            }
            SourceAction::Fetch(pipe) => {
                let mut packet = [0; PACKET_MAX];
                let result = self.backend.fetch(pipe, &mut packet);
                let result = result.map(|n| packet.get(..n).unwrap_or_default());
                let step = source.fetched(result, self.time);
                self.advance(index, step);
            }
            SourceAction::Wait => self.wait(index),
            SourceAction::Pause(Pause::Short) if !B::HAS_SHORT_PAUSES => {
                let step = source.done(Ok(0), self.time);
                self.advance(index, step);
            }
            SourceAction::Pause(pause) => {
                if let (Pause::Short, Some(order)) = (pause, source.stream().order()) {
                    self.collecting.insert((order, index));
                }
                self.backend.pause(Token::Source(index), pause);
            }
            SourceAction::Nothing => {}
        }
    }

    /// Adds a source with a pipe, and starts to read it. Returns its index. `reopenable` specifies
    /// that the pipe is a terminal that a process may open again.
    fn add(&mut self, NewSource { id, pipe, mut stream, first }: NewSource, reopenable: bool) -> usize {
        commands::prepare(&mut stream, first.as_ref());
        let index = self.sources.table.add(Source::new(id, pipe, stream));
        let Some(source) = self.sources.table.source_mut(index) else { absent!("source", return index) };
        source.set_reopenable(reopenable);
        let Some(pipe) = source.shared_pipe() else { absent!("pipe", return index) };
        // SAFETY: a source closes its pipe when it ends. Only `Driver::end` ends a source, and it
        // deregisters the pipe first. The sources that have not ended are dropped after the backend.
        unsafe { self.backend.register(Token::Source(index), pipe.as_fd()) };
        self.watched.add(Token::Source(index), PipeId::Source(id), &pipe);
        first.into_iter().for_each(|request| self.perform(request));
        self.advance(index, Step::Go { readable: false });
        index
    }
}

/// Returns whether `pipe` has no bytes, and no process has it open for writing. A file that does
/// not show that by poll(2), such as a socket, counts as open.
pub fn is_hung_up(pipe: BorrowedFd<'_>) -> bool {
    let shows_end = || {
        let mut polled = [PollFd::new(pipe, PollFlags::POLLIN)];
        let found = poll(&mut polled, PollTimeout::ZERO).ok().and_then(|_| polled[0].revents());
        found.is_some_and(|found| found.contains(PollFlags::POLLHUP) && !found.contains(PollFlags::POLLIN))
    };
    // The kernel looks for bytes before it looks for writers. A process may write and close the
    // pipe in between; the second call then finds its bytes.
    shows_end() && shows_end()
}

/// Returns the bytes of all reads and writes, and of the largest one.
fn sizes(answers: &[Answer]) -> (u64, usize) {
    let sizes = answers.iter().filter_map(|(token, result)| match token {
        Token::Source(_) | Token::Target(_) => result.as_ref().ok().copied(),
        _ => None,
    });
    sizes.fold((0, 0), |(sum, largest): (u64, usize), bytes| {
        (sum.saturating_add(bytes as u64), largest.max(bytes))
    })
}

#[cfg(test)]
mod tests;
