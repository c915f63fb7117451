//! The backend over io_uring(7). The kernel reads directly into the rings, and one system call
//! submits many requests.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, TimeoutFlags, Timespec};
use io_uring::{Builder, IoUring, opcode, squeue};
use iof_shm_ring::{Lent, Span};
use nix::time::{ClockId, clock_gettime};

use super::{Answer, Backend, BackendKind, DiscardSink, Pause, Token};
use crate::start::StartError;

/// Most requests that are submitted together.
const SUBMISSIONS: u32 = 256;
/// Size of the completion queue: four answers for each of 2048 pipes. The kernel keeps further
/// answers in memory of its own, at some cost.
const COMPLETIONS: u32 = 8192;
/// The offset that means "at the file's own position", the only one that a pipe has, see
/// io_uring_enter(2).
const NO_OFFSET: u64 = u64::MAX;

/// One io_uring, used only by the thread that created it.
pub(crate) struct Uring {
    ring: IoUring,
    /// Requests for which the submission queue had no room.
    backlog: VecDeque<squeue::Entry>,
    /// The number of requests without an answer, not counting cancellations.
    in_flight: usize,
    /// The deadlines of the newest short and the newest long pause. The kernel reads them when it
    /// takes the requests.
    pause_deadlines: Box<(Timespec, Timespec)>,
    /// Absolute deadlines, unless [`has_shifted_clock`].
    pause_flags: TimeoutFlags,
    discard: DiscardSink,
}

impl Uring {
    /// Creates an io_uring with the cheapest notification of completions that the kernel supports.
    pub(crate) fn new() -> Result<Uring, StartError> {
        Uring::with_flags(|builder| {
            // From Linux 6.1 on: the kernel handles completions when the thread waits for them, and
            // does not interrupt it.
            builder.setup_single_issuer().setup_defer_taskrun().setup_submit_all();
        })
    }

    /// Creates an io_uring with the flags that `set_flags` sets, or without them if the kernel does
    /// not support them.
    fn with_flags(set_flags: impl Fn(&mut Builder)) -> Result<Uring, StartError> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(COMPLETIONS).setup_clamp().dontfork();
        let plain = builder.clone();
        set_flags(&mut builder);
        let ring = match builder.build(SUBMISSIONS) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => plain.build(SUBMISSIONS),
            other => other,
        };
        let ring = ring.map_err(StartError::refused)?;
        // Linux 5.7. Without this feature each idle pipe would cost a kernel thread. A kernel that
        // has it also has the older features that this backend needs: no lost completions,
        // arguments read at submission, and reads without an offset.
        if !ring.params().is_feature_fast_poll() {
            return Err(StartError::too_old());
        }
        tracing::debug!(deferred = ring.params().is_setup_single_issuer(), "io_uring is ready");
        let (backlog, pause_deadlines) = (VecDeque::new(), Box::default());
        let pause_flags = if has_shifted_clock() { TimeoutFlags::empty() } else { TimeoutFlags::ABS };
        Ok(Uring { ring, backlog, in_flight: 0, pause_deadlines, pause_flags, discard: DiscardSink::new() })
    }

    /// Queues `entry` as the request of `token`.
    ///
    /// # Safety
    /// The memory to which `entry` points must live until the answer for `token` was taken.
    unsafe fn request(&mut self, token: Token, entry: squeue::Entry) {
        self.in_flight = self.in_flight.saturating_add(1);
        // SAFETY: as promised by the caller.
        unsafe { self.push(entry.user_data(token.into())) }
    }

    /// Queues `entry` behind all earlier entries.
    ///
    /// # Safety
    /// As for [`Uring::request`].
    unsafe fn push(&mut self, entry: squeue::Entry) {
        // Entries stay in order: a cancellation must neither overtake the request that it cancels
        // nor cancel a later one. SAFETY: as promised by the caller.
        if self.backlog.is_empty() && unsafe { self.ring.submission().push(&entry) }.is_ok() {
            return;
        }
        self.backlog.push_back(entry);
        // An error leaves the backlog in place. The next turn tries again and reports it.
        let _ = self.flush();
    }

    /// Submits the queued requests and sleeps for `pause`, however many answers arrive meanwhile.
    fn collect_for(&mut self, pause: Duration) -> io::Result<()> {
        // Linux 5.11. Older kernels deliver the answers one by one.
        if pause.is_zero() || !self.ring.params().is_feature_ext_arg() {
            return Ok(());
        }
        let time = Timespec::from(pause);
        let args = SubmitArgs::new().timespec(&time);
        // The thread waits for more answers than can arrive, so the kernel wakes it, and does the
        // reads, when the time is over.
        match self.ring.submitter().submit_with_args(COMPLETIONS as usize, &args) {
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Moves entries from the backlog to the kernel until the kernel takes no more.
    fn flush(&mut self) -> io::Result<()> {
        while let Some(entry) = self.backlog.front() {
            // SAFETY: the caller of `push` promised that this entry's memory lives until its answer
            // was taken. An entry in the backlog has no answer yet.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                self.backlog.pop_front();
            } else if self.ring.submit()? == 0 {
                break;
            }
        }
        Ok(())
    }
}

/// Returns whether a time namespace shifts the monotonic clock of this process. io_uring takes absolute deadlines for
/// times of the machine's clock, so that a pause would last as long as the shift.
fn has_shifted_clock() -> bool {
    let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let mut shifts = offsets.lines().filter_map(|line| line.strip_prefix("monotonic"));
    shifts.any(|shift| shift.split_whitespace().any(|number| number != "0"))
}

/// Returns the deadline of a pause that begins now, on CLOCK_MONOTONIC, the clock of io_uring's
/// timeouts, or the time until then. Deadlines are the multiples of a pause's length, so that pauses which
/// begin at different times end together.
fn deadline_of(pause: Pause, flags: TimeoutFlags) -> Timespec {
    // The call cannot fail: Linux always has this clock.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    let elapsed = now.as_nanos().checked_rem(pause.length().as_nanos()).unwrap_or(0);
    let left = pause.length().saturating_sub(Duration::from_nanos(u64::try_from(elapsed).unwrap_or(0)));
    Timespec::from(if flags.contains(TimeoutFlags::ABS) { now.saturating_add(left) } else { left })
}

impl Backend for Uring {
    const KIND: BackendKind = BackendKind::IoUring;

    // Requests name their files by descriptor. Registering each with the kernel, see
    // io_uring_register(2), takes two calls for each pipe, and saves nothing that could be
    // measured.

    unsafe fn register(&mut self, _: Token, _: BorrowedFd<'_>) {}

    fn deregister(&mut self, _: Token) {}

    unsafe fn read(&mut self, token: Token, pipe: BorrowedFd<'_>, span: Span) {
        let len = u32::try_from(span.len).unwrap_or(u32::MAX);
        let read = opcode::Read::new(Fd(pipe.as_raw_fd()), span.ptr, len).offset(NO_OFFSET).build();
        // SAFETY: the kernel may write to the span until it answers. The caller keeps the span
        // mapped until the answer was taken.
        unsafe { self.request(token, read) }
    }

    unsafe fn write(&mut self, token: Token, pipe: BorrowedFd<'_>, bytes: Lent) {
        let len = u32::try_from(bytes.len).unwrap_or(u32::MAX);
        let write = opcode::Write::new(Fd(pipe.as_raw_fd()), bytes.ptr, len).offset(NO_OFFSET).build();
        // SAFETY: the kernel may read the bytes until it answers. The caller keeps them mapped
        // until the answer was taken.
        unsafe { self.request(token, write) }
    }

    fn poll(&mut self, token: Token, file: BorrowedFd<'_>) {
        let flags = if matches!(token, Token::Target(_)) { libc::POLLOUT } else { libc::POLLIN } as u32;
        let poll = opcode::PollAdd::new(Fd(file.as_raw_fd()), flags).build();
        // SAFETY: a poll request points to no memory.
        unsafe { self.request(token, poll) }
    }

    fn pause(&mut self, token: Token, pause: Pause) {
        let (short, long) = &mut *self.pause_deadlines;
        let deadline = if pause == Pause::Short { short } else { long };
        *deadline = deadline_of(pause, self.pause_flags);
        let request = opcode::Timeout::new(&raw const *deadline).flags(self.pause_flags).build();
        // SAFETY: the kernel reads the deadline when it takes the request, so while `self` exists.
        // If a newer pause has overwritten the deadline by then, this pause lasts longer.
        unsafe { self.request(token, request) }
    }

    fn cancel(&mut self, token: Token) {
        let cancel = opcode::AsyncCancel::new(token.into()).build().user_data(Token::Cancel.into());
        // SAFETY: a cancellation points to no memory.
        unsafe { self.push(cancel) }
    }

    fn discard(&mut self, pipe: BorrowedFd<'_>) -> io::Result<usize> {
        self.discard.discard(pipe)
    }

    fn turn(&mut self, coalescing_delay: Duration) -> io::Result<()> {
        let entered = self.flush().and_then(|()| self.collect_for(coalescing_delay)).and_then(|()| {
            if self.ring.submission().is_empty() && !self.ring.completion().is_empty() {
                return Ok(());
            }
            self.ring.submit_and_wait(1).map(drop)
        });
        match entered.as_ref().err().and_then(io::Error::raw_os_error) {
            // EINTR: a signal. EBUSY: the completion queue overflowed and must be emptied first.
            Some(libc::EINTR | libc::EBUSY) => Ok(()),
            // The kernel has no memory for a request at the moment.
            Some(libc::EAGAIN) => {
                std::thread::yield_now();
                Ok(())
            }
            _ => entered,
        }
    }

    fn take(&mut self, answers: &mut Vec<Answer>) {
        for completion in self.ring.completion() {
            let token = Token::from(completion.user_data());
            if token == Token::Cancel {
                continue;
            }
            debug_assert!(self.in_flight > 0, "an answer to {token:?} without a request");
            self.in_flight = self.in_flight.saturating_sub(1);
            let result = completion.result();
            let error = || io::Error::from_raw_os_error(result.saturating_neg());
            answers.push((token, usize::try_from(result).map_err(|_| error())));
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

    fn assert_answers_all(mut uring: Uring) {
        let (read, write) = nix::unistd::pipe().unwrap();
        drop(write);
        let requests = COMPLETIONS as usize * 2 + 1;
        for number in 0..requests {
            uring.poll(Token::Source(number), read.as_fd());
        }
        let mut answers = Vec::new();
        while !uring.is_quiet() {
            uring.turn(Duration::ZERO).unwrap();
            uring.take(&mut answers);
        }
        let mut words: Vec<_> = answers.into_iter().map(|(token, _)| u64::from(token)).collect();
        words.sort_unstable();
        assert!(words.into_iter().eq((0..requests).map(|number| Token::Source(number).into())));
    }

    #[test]
    fn more_requests_than_the_queues_hold_are_all_answered() {
        assert_answers_all(Uring::new().unwrap());
    }

    #[test]
    fn all_requests_are_answered_on_a_kernel_without_deferred_completions() {
        let uring = Uring::with_flags(|_| {}).unwrap();
        assert!(!uring.ring.params().is_setup_single_issuer());
        assert_answers_all(uring);
    }

    #[test]
    fn flags_that_the_kernel_refuses_are_left_out() {
        // The kernel refuses deferred completions without a single issuer.
        let uring = Uring::with_flags(|builder| {
            builder.setup_defer_taskrun();
        })
        .unwrap();
        assert_answers_all(uring);
    }

    #[test]
    fn a_deregistered_pipe_is_closed_at_once_while_other_pipes_are_idle() {
        let mut uring = Uring::new().unwrap();
        let (idle, _write) = nix::unistd::pipe().unwrap();
        let (read, write) = nix::unistd::pipe().unwrap();
        // SAFETY: both are open until they are deregistered or the backend is dropped.
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
        // The kernel may need a moment to close it.
        let mut polled = [PollFd::new(write.as_fd(), PollFlags::empty())];
        assert_eq!(poll(&mut polled, PollTimeout::from(60_000u16)), Ok(1), "the pipe still has a reader");
        assert_eq!(polled[0].revents(), Some(PollFlags::POLLERR));
        drop(uring);
    }

    #[test]
    fn pauses_that_begin_one_after_another_end_together() {
        const PAUSES: usize = 100;
        let mut uring = Uring::new().unwrap();
        let begin = Instant::now();
        for number in 0..PAUSES {
            uring.pause(Token::Source(number), Pause::Long);
            uring.ring.submit().unwrap();
            let submitted = Instant::now();
            while submitted.elapsed() < Duration::from_micros(200) {}
        }
        // The most deadlines that can have passed meanwhile. The kernel may report only 20 expired
        // timeouts in a turn.
        let deadlines = (begin.elapsed().as_nanos() / Pause::Long.length().as_nanos()) as usize + 2;
        let (mut turns, mut answers) = (0, Vec::new());
        while !uring.is_quiet() {
            uring.turn(Duration::ZERO).unwrap();
            uring.take(&mut answers);
            turns += 1;
        }
        assert_eq!(answers.len(), PAUSES);
        assert!(turns <= PAUSES / 10 + 2 * deadlines, "{turns} turns for {deadlines} deadlines");
    }

    #[test]
    fn a_pause_is_short_also_in_a_time_namespace() {
        const INSIDE: &str = "IOF_TEST_TIME_NAMESPACE";
        if std::env::var_os(INSIDE).is_some() {
            assert!(has_shifted_clock());
            let mut uring = Uring::new().unwrap();
            uring.pause(Token::Source(0), Pause::Long);
            let mut answers = Vec::new();
            while answers.is_empty() {
                uring.turn(Duration::ZERO).unwrap();
                uring.take(&mut answers);
            }
            return;
        }
        // In a process of one thread, by util-linux.
        let inside = |program: &std::path::Path, args: &[&str]| {
            let mut command = std::process::Command::new("timeout");
            command
                .args(["60", "unshare", "--time", "--monotonic", "1000"])
                .arg(program)
                .args(args)
                .env(INSIDE, "1");
            command.status().is_ok_and(|status| status.success())
        };
        if !inside("true".as_ref(), &[]) {
            return eprintln!("skipped: no time namespaces");
        }
        let name = "a_pause_is_short_also_in_a_time_namespace";
        assert!(inside(&std::env::current_exe().unwrap(), &[name]), "the pause does not end");
    }

    #[test]
    fn a_cancelled_request_is_answered() {
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
