//! The backend over io_uring(7): the kernel reads into the rings by itself, and many requests go in
//! with one call.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use io_uring::types::{SubmitArgs, TimeoutFlags, Timespec};
use io_uring::{Builder, IoUring, opcode, squeue};
use iof_shm_ring::{Lent, Span};
use nix::time::{ClockId, clock_gettime};

use super::{Answer, Backend, BackendKind, Discard, PAUSE, Token};
use crate::start::StartError;

mod files;

use files::{Files, Name};

/// Requests that are submitted together at most.
const SUBMISSIONS: u32 = 256;
/// Answers that find room: four for each of 2048 pipes. Beyond that the kernel keeps them, at some
/// cost.
const COMPLETIONS: u32 = 8192;
/// "At the file's own position": pipes have no other, see io_uring_enter(2).
const NO_OFFSET: u64 = u64::MAX;

/// One io_uring, for the thread that made it.
pub(crate) struct Uring {
    ring: IoUring,
    files: Files,
    /// Requests that found no room in the submission queue.
    backlog: VecDeque<squeue::Entry>,
    /// Requests without an answer yet, cancellations aside.
    in_flight: usize,
    /// When the newest pause ends, for the kernel to read when it takes the request.
    pause_end: Box<Timespec>,
    discard: Discard,
}

impl Uring {
    /// Makes one, with the cheapest way of being told of completions that the kernel has.
    pub(crate) fn new() -> Result<Uring, StartError> {
        Uring::with(|best| {
            // Linux 6.1: completions are handled when we ask for them, not by interrupting us.
            best.setup_single_issuer().setup_defer_taskrun().setup_submit_all();
        })
    }

    /// Makes one with what `ask` asks for, or without if the kernel does not know it.
    fn with(ask: impl Fn(&mut Builder)) -> Result<Uring, StartError> {
        let mut best = IoUring::builder();
        best.setup_cqsize(COMPLETIONS).setup_clamp().dontfork();
        let plain = best.clone();
        ask(&mut best);
        let ring = match best.build(SUBMISSIONS) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => plain.build(SUBMISSIONS),
            other => other,
        };
        let ring = ring.map_err(StartError::refused)?;
        // Linux 5.7. Without it each idle pipe would cost a kernel thread. The older promises we need (no
        // lost completions, arguments read at submission, positionless reads) come with it.
        if !ring.params().is_feature_fast_poll() {
            return Err(StartError::too_old());
        }
        tracing::debug!(deferred = ring.params().is_setup_single_issuer(), "io_uring is ready");
        let files = Files::new(&ring);
        let (backlog, pause_end) = (VecDeque::new(), Box::default());
        Ok(Uring { ring, files, backlog, in_flight: 0, pause_end, discard: Discard::new() })
    }

    /// # Safety
    /// What `entry` points to must live until the answer for `token` was taken.
    unsafe fn request(&mut self, token: Token, entry: squeue::Entry) {
        self.in_flight = self.in_flight.saturating_add(1);
        // SAFETY: as promised by the caller.
        unsafe { self.push(entry.user_data(token.into())) }
    }

    /// # Safety
    /// As for [`Uring::request`].
    unsafe fn push(&mut self, entry: squeue::Entry) {
        // Requests stay in order: a cancellation must not overtake what it cancels, nor meet what comes
        // after. SAFETY: as promised by the caller.
        if self.backlog.is_empty() && unsafe { self.ring.submission().push(&entry) }.is_ok() {
            return;
        }
        self.backlog.push_back(entry);
        // A refusal leaves the backlog for the next turn, which reports it.
        let _ = self.flush();
    }

    /// Hands in what was asked for and sleeps for `patience`, whatever is answered meanwhile.
    fn pile_up(&mut self, patience: Duration) -> io::Result<()> {
        // Linux 5.11. Before, answers come one by one.
        if patience.is_zero() || !self.ring.params().is_feature_ext_arg() {
            return Ok(());
        }
        let time = Timespec::from(patience);
        let args = SubmitArgs::new().timespec(&time);
        // More than can come, so that the kernel wakes us, and does the reads, when the time is over.
        match self.ring.submitter().submit_with_args(COMPLETIONS as usize, &args) {
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Moves the backlog to the kernel, as far as it takes it.
    fn flush(&mut self) -> io::Result<()> {
        while let Some(entry) = self.backlog.front() {
            // SAFETY: `push` was promised that this entry's memory lives until its answer, which it has not
            // had.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                self.backlog.pop_front();
            } else if self.ring.submit()? == 0 {
                break;
            }
        }
        Ok(())
    }
}

/// The next of the moments, each [`PAUSE`] after another, at which all pauses end, by the clock of
/// timeouts.
fn next_pause_end() -> Timespec {
    // Linux has this clock.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    let since = now.as_nanos().checked_rem(PAUSE.as_nanos()).unwrap_or(0);
    let left = PAUSE.saturating_sub(Duration::from_nanos(u64::try_from(since).unwrap_or(0)));
    Timespec::from(now.saturating_add(left))
}

impl Backend for Uring {
    const KIND: BackendKind = BackendKind::IoUring;

    unsafe fn register(&mut self, token: Token, file: BorrowedFd<'_>) {
        self.files.hold(&self.ring, token, file);
    }

    fn deregister(&mut self, token: Token) {
        self.files.unregister(&self.ring, token);
    }

    unsafe fn read(&mut self, token: Token, pipe: BorrowedFd<'_>, span: Span) {
        let len = u32::try_from(span.len).unwrap_or(u32::MAX);
        let read = match self.files.name(token, pipe) {
            Name::Held(file) => opcode::Read::new(file, span.ptr, len).offset(NO_OFFSET).build(),
            Name::LookedUp(file) => opcode::Read::new(file, span.ptr, len).offset(NO_OFFSET).build(),
        };
        // SAFETY: the kernel may write to the span until the answer comes; the caller keeps it until then.
        unsafe { self.request(token, read) }
    }

    unsafe fn write(&mut self, token: Token, pipe: BorrowedFd<'_>, bytes: Lent) {
        let (start, len) = (bytes.ptr, u32::try_from(bytes.len).unwrap_or(u32::MAX));
        let write = match self.files.name(token, pipe) {
            Name::Held(file) => opcode::Write::new(file, start, len).offset(NO_OFFSET).build(),
            Name::LookedUp(file) => opcode::Write::new(file, start, len).offset(NO_OFFSET).build(),
        };
        // SAFETY: the kernel may read the bytes until the answer comes; the caller keeps them until then.
        unsafe { self.request(token, write) }
    }

    fn poll(&mut self, token: Token, file: BorrowedFd<'_>) {
        let flags = if matches!(token, Token::Target(_)) { libc::POLLOUT } else { libc::POLLIN } as u32;
        let poll = match self.files.name(token, file) {
            Name::Held(file) => opcode::PollAdd::new(file, flags).build(),
            Name::LookedUp(file) => opcode::PollAdd::new(file, flags).build(),
        };
        // SAFETY: a poll has no memory.
        unsafe { self.request(token, poll) }
    }

    fn pause(&mut self, token: Token) {
        *self.pause_end = next_pause_end();
        let pause = opcode::Timeout::new(&raw const *self.pause_end).flags(TimeoutFlags::ABS);
        // SAFETY: the kernel reads the time when it takes the request, so while `self` is there. If it has
        // become a later one by then, this pause is longer.
        unsafe { self.request(token, pause.build()) }
    }

    fn cancel(&mut self, token: Token) {
        let cancel = opcode::AsyncCancel::new(token.into()).build().user_data(Token::Cancel.into());
        // SAFETY: a cancellation has no memory.
        unsafe { self.push(cancel) }
    }

    fn discard(&mut self, pipe: BorrowedFd<'_>) -> io::Result<usize> {
        self.discard.discard(pipe)
    }

    fn turn(&mut self, patience: Duration) -> io::Result<()> {
        let entered = self.flush().and_then(|()| self.pile_up(patience)).and_then(|()| {
            if self.ring.submission().is_empty() && !self.ring.completion().is_empty() {
                return Ok(());
            }
            self.ring.submit_and_wait(1).map(drop)
        });
        match entered.as_ref().err().and_then(io::Error::raw_os_error) {
            // A signal; or answers that found no room are to be taken first.
            Some(libc::EINTR | libc::EBUSY) => Ok(()),
            // No memory for a request just now.
            Some(libc::EAGAIN) => {
                std::thread::yield_now();
                Ok(())
            }
            _ => entered,
        }
    }

    fn take(&mut self, into: &mut Vec<Answer>) {
        for completion in self.ring.completion() {
            let token = Token::from(completion.user_data());
            if token == Token::Cancel {
                continue;
            }
            self.in_flight = self.in_flight.saturating_sub(1);
            let result = completion.result();
            let error = || io::Error::from_raw_os_error(result.saturating_neg());
            into.push((token, usize::try_from(result).map_err(|_| error())));
        }
    }

    fn is_quiet(&self) -> bool {
        self.in_flight == 0
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Instant;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    fn answers_all(mut uring: Uring) {
        let (read, write) = nix::unistd::pipe().unwrap();
        drop(write);
        let requests = COMPLETIONS as usize * 2 + 1;
        for at in 0..requests {
            uring.poll(Token::Source(at), read.as_fd());
        }
        let mut answers = Vec::new();
        while !uring.is_quiet() {
            uring.turn(Duration::ZERO).unwrap();
            uring.take(&mut answers);
        }
        let mut numbers: Vec<_> = answers.into_iter().map(|(token, _)| u64::from(token)).collect();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq((0..requests).map(|at| Token::Source(at).into())));
    }

    #[test]
    fn more_requests_than_the_queues_hold_are_all_answered() {
        answers_all(Uring::new().unwrap());
    }

    #[test]
    fn the_same_on_a_kernel_without_deferred_completions() {
        let uring = Uring::with(|_| {}).unwrap();
        assert!(!uring.ring.params().is_setup_single_issuer());
        answers_all(uring);
    }

    #[test]
    fn flags_that_the_kernel_refuses_are_left_out() {
        // Deferring needs a single issuer.
        let uring = Uring::with(|ask| {
            ask.setup_defer_taskrun();
        })
        .unwrap();
        answers_all(uring);
    }

    #[test]
    fn a_pipe_that_is_closed_has_no_reader_though_others_are_idle() {
        let mut uring = Uring::new().unwrap();
        let (idle, _write) = nix::unistd::pipe().unwrap();
        let (read, write) = nix::unistd::pipe().unwrap();
        // SAFETY: both are open until they are deregistered, or until the backend has gone.
        unsafe {
            uring.register(Token::Source(0), idle.as_fd());
            uring.register(Token::Source(1), read.as_fd());
        }
        uring.poll(Token::Source(0), idle.as_fd());
        uring.poll(Token::Source(1), read.as_fd());
        uring.cancel(Token::Source(1));
        let mut answers = Vec::new();
        while answers.is_empty() {
            uring.turn(Duration::ZERO).unwrap();
            uring.take(&mut answers);
        }
        uring.deregister(Token::Source(1));
        drop(read);
        // It may take the kernel a moment.
        let mut look = [PollFd::new(write.as_fd(), PollFlags::empty())];
        assert_eq!(poll(&mut look, PollTimeout::from(60_000u16)), Ok(1), "it still has a reader");
        assert_eq!(look[0].revents(), Some(PollFlags::POLLERR));
        drop(uring);
    }

    #[test]
    fn pauses_that_begin_one_after_another_end_together() {
        const PAUSES: usize = 100;
        let mut uring = Uring::new().unwrap();
        let begin = Instant::now();
        for at in 0..PAUSES {
            uring.pause(Token::Source(at));
            uring.ring.submit().unwrap();
            let submitted = Instant::now();
            while submitted.elapsed() < Duration::from_micros(200) {}
        }
        // As many moments as may have passed meanwhile. The kernel may tell of 20 ends at a time.
        let moments = (begin.elapsed().as_nanos() / PAUSE.as_nanos()) as usize + 2;
        let (mut turns, mut answers) = (0, Vec::new());
        while !uring.is_quiet() {
            uring.turn(Duration::ZERO).unwrap();
            uring.take(&mut answers);
            turns += 1;
        }
        assert_eq!(answers.len(), PAUSES);
        assert!(turns <= PAUSES / 10 + 2 * moments, "{turns} turns for {moments} moments");
    }

    #[test]
    fn what_is_cancelled_is_answered() {
        let mut uring = Uring::new().unwrap();
        let (read, _write) = nix::unistd::pipe().unwrap();
        uring.poll(Token::Bell, read.as_fd());
        uring.cancel(Token::Bell);
        let mut answers = Vec::new();
        while !uring.is_quiet() {
            uring.turn(Duration::ZERO).unwrap();
            uring.take(&mut answers);
        }
        let [(Token::Bell, Err(error))] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
    }
}
