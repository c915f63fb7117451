//! The backend over epoll(7), for machines that refuse io_uring: told that a file is readable, it
//! reads by itself.
//!
//! Edge-triggered: the kernel tells once each time that something comes, and a file counts as ready
//! until it is found empty (or full, if it is written). So nothing is ever switched on and off, and
//! idle files cost nothing.
//!
//! A read or write must never block, but O_NONBLOCK belongs to the open file description, which
//! others may share: it is left as it is. Pipes since Linux 6.4, and sockets, can be asked not to
//! wait for just one call (`RWF_NOWAIT`, see preadv2(2)). Of anything else poll(2) is asked first.
//! For a read that suffices because nobody else reads it; a write is then cut to `PIPE_BUF` bytes,
//! for which a writable pipe has room, see pipe(7).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use iof_shm_ring::{Lent, Span};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll};
use nix::poll::{PollFd, PollFlags, PollTimeout};

use super::{Answer, Backend, BackendKind, Discard, PAUSE, Token};
use crate::start::StartError;

/// Edges that are told by one call; more of them wait in the kernel, in order.
const EVENTS: usize = 1024;
/// Files that are served in a row at most, each with one read, before it is asked who else is
/// ready.
const ROUND: usize = 256;
/// "At the file's own position", see preadv2(2).
const NO_OFFSET: libc::off_t = -1;

/// What a file's owner waits for.
enum Request {
    Poll,
    Read(Span),
    Write(Lent),
}

/// A registered file.
struct File {
    /// Stays open until it is deregistered, as [`Backend::register`] was promised.
    fd: RawFd,
    request: Option<Request>,
    /// What it is asked for: to be readable, or writable.
    wanted: PollFlags,
    /// Not found empty, or full, since the last edge.
    ready: bool,
    /// The kernel can't read or write it without waiting: poll(2) must be asked first.
    poll_first: bool,
    /// Why the kernel does not watch it (an errno), if it does not though it could.
    refused: Option<i32>,
}

/// One epoll instance, and what was asked of it.
pub(crate) struct Epoll {
    poll: Poll,
    events: Events,
    /// By the token's word.
    files: Vec<Option<File>>,
    /// Files that are ready and have a request; some were cancelled since.
    runnable: VecDeque<Token>,
    /// All equally long, so in the order of their ends.
    pauses: VecDeque<(Instant, Token)>,
    answers: Vec<Answer>,
    /// Files that have a request.
    requests: usize,
    discard: Discard,
}

impl Epoll {
    pub(crate) fn new() -> Result<Epoll, StartError> {
        Ok(Epoll {
            poll: Poll::new().map_err(|source| StartError::Epoll { source })?,
            events: Events::with_capacity(EVENTS),
            files: Vec::new(),
            runnable: VecDeque::new(),
            pauses: VecDeque::new(),
            answers: Vec::new(),
            requests: 0,
            discard: Discard::new(),
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

    /// Does for files that are ready what they ask for: one round.
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

    /// Lets the kernel tell what became ready; waits for that if there is nothing else to do.
    fn wait(&mut self) -> io::Result<()> {
        let patience = if self.answers.is_empty() && self.runnable.is_empty() {
            self.pauses.front().map(|(end, _)| end.saturating_duration_since(Instant::now()))
        } else {
            Some(Duration::ZERO)
        };
        match self.poll.poll(&mut self.events, patience) {
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
            let token = Token::from(word as u64);
            match file.request {
                Some(Request::Poll) => {
                    file.request = None;
                    self.requests = self.requests.saturating_sub(1);
                    self.answers.push((token, Ok(1)));
                }
                Some(Request::Read(_) | Request::Write(_)) => self.runnable.push_back(token),
                None => {}
            }
        }
        Ok(())
    }

    fn end_pauses(&mut self) {
        if self.pauses.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(&(end, token)) = self.pauses.front()
            && end <= now
        {
            self.pauses.pop_front();
            self.answers.push((token, Ok(0)));
        }
    }
}

impl Backend for Epoll {
    const KIND: BackendKind = BackendKind::Epoll;

    unsafe fn register(&mut self, token: Token, file: BorrowedFd<'_>) {
        let (word, fd) = (token.index(), file.as_raw_fd());
        let (interest, wanted) = match token {
            Token::Target(_) => (Interest::WRITABLE, PollFlags::POLLOUT),
            _ => (Interest::READABLE, PollFlags::POLLIN),
        };
        let mut file = File { fd, request: None, wanted, ready: false, poll_first: false, refused: None };
        if let Err(error) = self.poll.registry().register(&mut SourceFd(&fd), mio::Token(word), interest) {
            match error.raw_os_error() {
                // No file to wait for, such as a regular one, which poll(2) always calls readable and
                // writable.
                Some(libc::EPERM) => (file.ready, file.poll_first) = (true, true),
                errno => file.refused = Some(errno.unwrap_or(libc::EIO)),
            }
        }
        if self.files.len() <= word {
            self.files.resize_with(word.saturating_add(1), || None);
        }
        if let Some(place) = self.files.get_mut(word) {
            *place = Some(file);
        }
    }

    fn deregister(&mut self, token: Token) {
        let Some(file) = self.files.get_mut(token.index()).and_then(Option::take) else { return };
        debug_assert!(file.request.is_none(), "{token:?} is in flight");
        // Closing it would not do: the kernel watches open file descriptions, which others may share.
        if let Err(error) = self.poll.registry().deregister(&mut SourceFd(&file.fd)) {
            // As it should be for those that it never watched.
            tracing::debug!(?token, %error, "epoll does not let go of a file");
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

    fn pause(&mut self, token: Token) {
        self.pauses.push_back((Instant::now() + PAUSE, token));
    }

    fn cancel(&mut self, token: Token) {
        let file = self.files.get_mut(token.index()).and_then(Option::as_mut);
        if file.and_then(|file| file.request.take()).is_some() {
            self.requests = self.requests.saturating_sub(1);
        } else if let Some(at) = self.pauses.iter().position(|(_, of)| *of == token) {
            self.pauses.remove(at);
        } else {
            return;
        }
        self.answers.push((token, Err(io::Error::from_raw_os_error(libc::ECANCELED))));
    }

    fn discard(&mut self, pipe: BorrowedFd<'_>) -> io::Result<usize> {
        self.discard.discard(pipe)
    }

    fn turn(&mut self, patience: Duration) -> io::Result<()> {
        if !patience.is_zero() {
            std::thread::sleep(patience);
        }
        // First who was ready already. It often turns out that he is not any more: then he is waited for as
        // well.
        self.serve();
        self.wait()?;
        self.end_pauses();
        self.serve();
        Ok(())
    }

    fn take(&mut self, into: &mut Vec<Answer>) {
        into.append(&mut self.answers);
    }

    fn is_quiet(&self) -> bool {
        self.requests == 0 && self.pauses.is_empty() && self.answers.is_empty()
    }
}

impl File {
    /// Does what is asked for; `None` if that is not possible without waiting.
    fn attempt(&mut self, request: &Request) -> Option<io::Result<usize>> {
        let done = match request {
            Request::Poll => return self.is_ready().map(|ready| ready.then_some(1)).transpose(),
            Request::Read(span) => self.read(span),
            Request::Write(bytes) => self.write(bytes),
        };
        match done {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            done => Some(done),
        }
    }

    fn read(&mut self, span: &Span) -> io::Result<usize> {
        if !self.poll_first {
            let part = libc::iovec { iov_base: span.ptr.cast(), iov_len: span.len };
            // SAFETY: the span is ours until its answer, which has not been given, by `Backend::read`.
            let done = unsafe { libc::preadv2(self.fd, &raw const part, 1, NO_OFFSET, libc::RWF_NOWAIT) };
            match count(done) {
                // The way of asking may be to blame, so read(2) has the last word.
                Err(error) if !is_passing(&error) => self.poll_first = true,
                done => return done,
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
            // SAFETY: the bytes are lent to us until their answer, which has not been given, by
            // `Backend::write`; they are only read.
            let done = unsafe { libc::pwritev2(self.fd, &raw const part, 1, NO_OFFSET, libc::RWF_NOWAIT) };
            match count(done) {
                // The way of asking may be to blame, so write(2) has the last word.
                Err(error) if !is_passing(&error) => self.poll_first = true,
                done => return done,
            }
        }
        if !self.is_ready()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // SAFETY: as above.
        count(unsafe { libc::write(self.fd, bytes.ptr.cast(), bytes.len.min(libc::PIPE_BUF)) })
    }

    /// Whether a read would not wait, or a write of `PIPE_BUF` bytes: it can be done, or there is
    /// an end or an error.
    fn is_ready(&self) -> io::Result<bool> {
        // SAFETY: open until it is deregistered, as `Backend::register` was promised.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        let mut look = [PollFd::new(fd, self.wanted)];
        Ok(nix::poll::poll(&mut look, PollTimeout::ZERO)? > 0)
    }
}

fn count(done: isize) -> io::Result<usize> {
    usize::try_from(done).map_err(|_| io::Error::last_os_error())
}

/// Whether a call failed so for no reason that lies in the file.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        || matches!(error.raw_os_error(), Some(libc::EFAULT | libc::ENOMEM))
}

#[cfg(test)]
mod tests;
