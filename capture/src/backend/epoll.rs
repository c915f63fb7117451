//! The backend over epoll(7), for machines that refuse io_uring. When epoll reports a file as
//! readable or writable, this backend reads or writes it.
//!
//! The events are edge-triggered. The kernel reports each arrival once, and a file counts as ready
//! until a read finds it empty or a write finds it full. Interest is therefore never switched on
//! and off, and idle files cost nothing.
//!
//! A read or write must never block. O_NONBLOCK is left unchanged, because it belongs to the open
//! file description, which other processes may share. Sockets, and pipes since Linux 6.4, accept a
//! single non-blocking call (`RWF_NOWAIT`, see preadv2(2)). Any other file is checked by poll(2)
//! first. That check suffices for a read, because the capture is the only reader of the file. A
//! write is then limited to `PIPE_BUF` bytes, for which a writable pipe has room, see pipe(7).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use iof_shm_ring::{Lent, Span};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll};
use nix::poll::{PollFd, PollFlags, PollTimeout};

use super::{Answer, Backend, BackendKind, DiscardSink, NO_OFFSET, Pause, Token, count, is_transient};
use crate::start::StartError;

/// Most events that one call to epoll returns. Further events wait in the kernel, in order.
const EVENTS: usize = 1024;
/// Most files that are served, each with one read or write, before epoll is asked for new events.
const ROUND: usize = 256;

/// An operation that the owner of a file has requested.
enum Request {
    Poll,
    Read(Span),
    Write(Lent),
}

/// A registered file.
struct File {
    /// Open until the file is deregistered, as the caller of [`Backend::register`] promises.
    fd: RawFd,
    request: Option<Request>,
    /// The poll(2) flag of the operation: readable or writable.
    wanted: PollFlags,
    /// No read or write has found the file empty or full since the last event.
    ready: bool,
    /// The kernel has no non-blocking call for this file, so poll(2) must be called first.
    poll_first: bool,
    /// The errno with which epoll refused to watch the file.
    refused: Option<i32>,
}

/// One epoll instance with its files and their pending requests.
pub(crate) struct Epoll {
    poll: Poll,
    events: Events,
    /// Indexed by the token's word.
    files: Vec<Option<File>>,
    /// Ready files that had a request when they were queued. The request may be cancelled since.
    runnable: VecDeque<Token>,
    /// Files that the kernel has reported since `runnable` was extended by them, in that order.
    arrived: Vec<Token>,
    /// Pauses with their deadlines, the earliest deadline in front.
    pauses: VecDeque<(Instant, Token)>,
    answers: Vec<Answer>,
    /// The number of files that have a request.
    requests: usize,
    discard: DiscardSink,
}

impl Epoll {
    pub(crate) fn new() -> Result<Epoll, StartError> {
        Ok(Epoll {
            poll: Poll::new().map_err(|source| StartError::Epoll { source })?,
            events: Events::with_capacity(EVENTS),
            files: Vec::new(),
            runnable: VecDeque::new(),
            arrived: Vec::new(),
            pauses: VecDeque::new(),
            answers: Vec::new(),
            requests: 0,
            discard: DiscardSink::new(),
        })
    }

    fn request(&mut self, token: Token, request: Request) {
        let file = self.files.get_mut(token.index()).and_then(Option::as_mut);
        match file {
            Some(file) if file.refused.is_none() => {
                file.request = Some(request);
                self.requests = self.requests.saturating_add(1);
                if file.ready {
                    self.runnable.push_back(token);
                }
            }
            other => {
                let errno = other.and_then(|file| file.refused).unwrap_or(libc::EBADF);
                self.answers.push((token, Err(io::Error::from_raw_os_error(errno))));
            }
        }
    }

    /// Attempts the requests of ready files, at most [`ROUND`] of them.
    fn serve(&mut self) {
        for _ in 0..self.runnable.len().min(ROUND) {
            let Some(token) = self.runnable.pop_front() else { return };
            let Some(file) = self.files.get_mut(token.index()).and_then(Option::as_mut) else { continue };
            let Some(request) = file.request.take() else { continue };
            match file.attempt(&request) {
                Some(result) => {
                    self.requests = self.requests.saturating_sub(1);
                    self.answers.push((token, result));
                }
                None => {
                    file.request = Some(request);
                    file.ready = false;
                }
            }
        }
    }

    /// Takes new events from the kernel. Blocks for one if there is nothing else to do.
    fn wait(&mut self) -> io::Result<()> {
        let timeout = if self.answers.is_empty() && self.runnable.is_empty() {
            self.pauses.front().map(|(deadline, _)| deadline.saturating_duration_since(Instant::now()))
        } else {
            Some(Duration::ZERO)
        };
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            other => other?,
        }
        for event in &self.events {
            let word = event.token().0;
            let Some(file) = self.files.get_mut(word).and_then(Option::as_mut) else { continue };
            if file.ready {
                continue;
            }
            file.ready = true;
            self.arrived.push(Token::from(word as u64));
        }
        Ok(())
    }

    /// Answers the pauses whose deadline has passed.
    fn end_pauses(&mut self) {
        if self.pauses.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(&(deadline, token)) = self.pauses.front()
            && deadline <= now
        {
            self.pauses.pop_front();
            self.answers.push((token, Ok(0)));
        }
    }
}

impl Backend for Epoll {
    const KIND: BackendKind = BackendKind::Epoll;

    // epoll counts milliseconds: a rank that writes fast would have to wait.
    const HAS_SHORT_PAUSES: bool = false;

    unsafe fn register(&mut self, token: Token, file: BorrowedFd<'_>) {
        let (word, fd) = (token.index(), file.as_raw_fd());
        let (interest, wanted) = match token {
            Token::Target(_) => (Interest::WRITABLE, PollFlags::POLLOUT),
            _ => (Interest::READABLE, PollFlags::POLLIN),
        };
        let mut file = File { fd, request: None, wanted, ready: false, poll_first: false, refused: None };
        if let Err(error) = self.poll.registry().register(&mut SourceFd(&fd), mio::Token(word), interest) {
            match error.raw_os_error() {
                // epoll does not support this kind of file, such as a regular file. poll(2) always
                // reports it as readable and writable.
                Some(libc::EPERM) => (file.ready, file.poll_first) = (true, true),
                errno => file.refused = Some(errno.unwrap_or(libc::EIO)),
            }
        }
        if self.files.len() <= word {
            self.files.resize_with(word.saturating_add(1), || None);
        }
        let Some(entry) = self.files.get_mut(word) else { absent!("file", return) };
        *entry = Some(file);
    }

    fn deregister(&mut self, token: Token) {
        let Some(file) = self.files.get_mut(token.index()).and_then(Option::take) else {
            absent!("file", return)
        };
        debug_assert!(file.request.is_none(), "{token:?} is in flight");
        // Closing the file is not enough: the kernel watches the open file description, which other
        // processes may share.
        if let Err(error) = self.poll.registry().deregister(&mut SourceFd(&file.fd)) {
            // Expected for a file that epoll never watched.
            tracing::debug!(?token, %error, "cannot remove a file from epoll");
        }
    }

    unsafe fn read(&mut self, token: Token, _: BorrowedFd<'_>, span: Span) {
        self.request(token, Request::Read(span));
    }

    unsafe fn write(&mut self, token: Token, _: BorrowedFd<'_>, bytes: Lent) {
        self.request(token, Request::Write(bytes));
    }

    fn poll(&mut self, token: Token, _: BorrowedFd<'_>) {
        self.request(token, Request::Poll);
    }

    fn pause(&mut self, token: Token, pause: Pause) {
        let deadline = Instant::now() + pause.length();
        let index = self.pauses.partition_point(|(earlier, _)| *earlier <= deadline);
        self.pauses.insert(index, (deadline, token));
    }

    fn cancel(&mut self, token: Token) {
        let file = self.files.get_mut(token.index()).and_then(Option::as_mut);
        if file.and_then(|file| file.request.take()).is_some() {
            self.requests = self.requests.saturating_sub(1);
        } else if let Some(index) = self.pauses.iter().position(|(_, paused)| *paused == token) {
            self.pauses.remove(index);
        } else {
            return;
        }
        self.answers.push((token, Err(io::Error::from_raw_os_error(libc::ECANCELED))));
    }

    fn discard(&mut self, pipe: BorrowedFd<'_>) -> io::Result<usize> {
        self.discard.discard(pipe)
    }

    fn turn(&mut self, coalescing_delay: Duration) -> io::Result<()> {
        if !coalescing_delay.is_zero() {
            std::thread::sleep(coalescing_delay);
        }
        // Files that count as ready come first. An attempt often finds one empty after all, and
        // then `wait` waits for that file, too.
        self.runnable.extend(self.arrived.drain(..));
        self.serve();
        self.wait()?;
        self.end_pauses();
        // What has just been answered may have older bytes than what arrived. The next request for
        // it comes first.
        if self.answers.is_empty() {
            self.runnable.extend(self.arrived.drain(..));
            self.serve();
        }
        Ok(())
    }

    fn take(&mut self, answers: &mut Vec<Answer>) {
        answers.append(&mut self.answers);
    }

    fn is_quiet(&self) -> bool {
        self.requests == 0 && self.pauses.is_empty() && self.answers.is_empty()
    }
}

impl File {
    /// Carries `request` out and returns its result. Returns `None` if the call would block.
    fn attempt(&mut self, request: &Request) -> Option<io::Result<usize>> {
        let result = match request {
            Request::Poll => return self.is_ready().map(|ready| ready.then_some(1)).transpose(),
            Request::Read(span) => self.read(span),
            Request::Write(bytes) => self.write(bytes),
        };
        match result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            result => Some(result),
        }
    }

    fn read(&mut self, span: &Span) -> io::Result<usize> {
        if !self.poll_first {
            let part = libc::iovec { iov_base: span.ptr.cast(), iov_len: span.len };
            // SAFETY: by the contract of `Backend::read` the span belongs to the backend until its
            // answer was taken, and the answer has not been given yet.
            let read = unsafe { libc::preadv2(self.fd, &raw const part, 1, NO_OFFSET, libc::RWF_NOWAIT) };
            match count(read) {
                // The file may not support RWF_NOWAIT, so the result of read(2) decides.
                Err(error) if !is_transient(&error) => self.poll_first = true,
                result => return result,
            }
        }
        if !self.is_ready()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // SAFETY: as above.
        count(unsafe { libc::read(self.fd, span.ptr.cast(), span.len) })
    }

    fn write(&mut self, bytes: &Lent) -> io::Result<usize> {
        if !self.poll_first {
            let part = libc::iovec { iov_base: bytes.ptr.cast_mut().cast(), iov_len: bytes.len };
            // SAFETY: by the contract of `Backend::write` the bytes stay mapped until their answer
            // was taken, and the answer has not been given yet. The call only reads them.
            let written = unsafe { libc::pwritev2(self.fd, &raw const part, 1, NO_OFFSET, libc::RWF_NOWAIT) };
            match count(written) {
                // The file may not support RWF_NOWAIT, so the result of write(2) decides.
                Err(error) if !is_transient(&error) => self.poll_first = true,
                result => return result,
            }
        }
        if !self.is_ready()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // SAFETY: as above.
        count(unsafe { libc::write(self.fd, bytes.ptr.cast(), bytes.len.min(libc::PIPE_BUF)) })
    }

    /// Returns whether a read, or a write of `PIPE_BUF` bytes, would not block: bytes or room are
    /// available, or the call returns end of file or an error at once.
    fn is_ready(&self) -> io::Result<bool> {
        // SAFETY: the file is open until it is deregistered, by the contract of
        // `Backend::register`.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        let mut polled = [PollFd::new(fd, self.wanted)];
        Ok(nix::poll::poll(&mut polled, PollTimeout::ZERO)? > 0)
    }
}

#[cfg(test)]
mod tests;
