//! A kernel that answers as told.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use iof_shm_ring::{Lent, Span};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::pipe::Session;
use super::target::Loan;
use super::world::World;
use super::{Fails, How};
use crate::backend::BackendKind;
use crate::driver::*;

/// A registered file.
pub(super) struct File {
    fd: RawFd,
    /// What may be asked next.
    next: Ask,
}

/// What may be asked of a file, so that nobody is busy with nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ask {
    Anything,
    /// It said that it can't now: no read or write.
    Poll,
    /// Nobody has the terminal open.
    Pause,
    /// What was asked was cancelled.
    Nothing,
}

#[derive(Debug)]
pub(super) enum Asked {
    Read(Span),
    Write(Loan),
    Poll,
    Pause,
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) token: Token,
    asked: Asked,
    pub(super) cancelled: bool,
}

impl Request {
    /// What the kernel does with the memory before it answers.
    pub(super) fn use_memory(&self) {
        match &self.asked {
            // SAFETY: as the kernel may. Nobody reads it any more.
            Asked::Read(span) => unsafe { span.ptr.write_bytes(1, span.len) },
            Asked::Write(loan) => loan.check(),
            Asked::Poll | Asked::Pause => {}
        }
    }
}

impl World {
    /// The number of a source's or a target's pipe.
    fn number(&self, token: Token) -> usize {
        let fd = |token: Token| self.files[&u64::from(token)].fd;
        match token {
            // The last one: the others were closed.
            Token::Source(_) => self.pipes.iter().rposition(|pipe| pipe.fd == fd(token)).unwrap(),
            Token::Target(_) => self.targets.iter().rposition(|target| target.fd == fd(token)).unwrap(),
            other => panic!("{other:?} has no pipe"),
        }
    }

    /// Answers the request at `at`, if it can be answered so.
    pub(super) fn answer(&mut self, at: usize, how: How, late: bool) {
        let Request { token, ref asked, cancelled } = self.requests[at];
        let fails = |errno| Err(io::Error::from_raw_os_error(errno));
        let result = match (asked, how) {
            _ if cancelled && !late => fails(libc::ECANCELED),
            (Asked::Pause, How::Well) => fails(libc::ETIME),
            (Asked::Pause, _) => Ok(0),
            // No memory for what was read ends nothing.
            (Asked::Read(_), How::Not(errno @ (libc::EFAULT | libc::ENOMEM))) => fails(errno),
            (_, How::Not(errno)) => {
                self.fail(token, errno);
                fails(errno)
            }
            // Also when it is not true: the kernel may be wrong by the time that it is heard.
            (Asked::Poll, How::Short(_)) => Ok(1),
            (Asked::Poll | Asked::Read(_), _)
                if matches!(token, Token::Source(_)) && !self.pipes[self.number(token)].is_readable() =>
            {
                return;
            }
            (Asked::Poll, How::Well) => Ok(1),
            (Asked::Read(_), _) if self.pipes[self.number(token)].is_left() => {
                self.fail(token, libc::EIO);
                fails(libc::EIO)
            }
            (Asked::Read(span), _) => {
                let (number, (ptr, len)) = (self.number(token), (span.ptr, span.len));
                Ok(self.pipes[number].give(number, how.of(len), Some(ptr)))
            }
            (Asked::Write(loan), _) => {
                let (number, loan) = (self.number(token), loan.clone());
                Ok(self.targets[number].take(&loan, how.of(loan.len)))
            }
        };
        if let Token::Process(_) = token {
            let fd = Some(self.files[&token.into()].fd);
            let mut led = self.pipes.iter_mut().rev();
            led.find(|pipe| pipe.leader == fd).unwrap().session = Some(Session::Over);
        }
        self.requests.remove(at);
        self.say(token, &result);
        self.answers.push((token, result));
    }

    /// An error is about to be given.
    fn fail(&mut self, token: Token, errno: i32) {
        match token {
            Token::Source(_) => {
                let number = self.number(token);
                self.pipes[number].fail(errno);
            }
            Token::Target(_) => {
                let number = self.number(token);
                self.targets[number].fail(errno);
            }
            _ => {}
        }
    }

    /// What a file says decides what may be asked of it next.
    fn say(&mut self, token: Token, result: &io::Result<usize>) {
        let terminal = matches!(token, Token::Source(_)) && self.pipes[self.number(token)].session.is_some();
        let file = self.files.get_mut(&token.into()).unwrap();
        if file.next == Ask::Nothing {
            return;
        }
        file.next = match result.as_ref().err().and_then(io::Error::raw_os_error) {
            Some(libc::EAGAIN) => Ask::Poll,
            Some(libc::EIO) if terminal => Ask::Pause,
            _ => Ask::Anything,
        };
    }

    /// Something is asked of a file, which is the registered one.
    fn ask_of(&mut self, token: Token, file: BorrowedFd<'_>, asked: Asked) {
        let known = self.files.get(&token.into()).map(|known| known.fd);
        assert_eq!(known, Some(file.as_raw_fd()), "{token:?} is another file");
        self.ask(token, asked);
    }

    fn ask(&mut self, token: Token, asked: Asked) {
        assert!(self.requests.iter().all(|request| request.token != token), "{token:?} asks twice");
        let next = self.files.get(&token.into()).expect("it is not registered").next;
        let fine = match next {
            Ask::Anything => true,
            Ask::Poll => !matches!(asked, Asked::Read(_) | Asked::Write(_)),
            Ask::Pause => matches!(asked, Asked::Pause),
            Ask::Nothing => false,
        };
        assert!(fine, "{token:?} asks for {asked:?} instead of {next:?}");
        self.requests.push(Request { token, asked, cancelled: false });
    }

    /// Tells of the bell only that it can't be told of.
    fn silence(&mut self) {
        if let Some(at) = self.requests.iter().position(|request| request.token == Token::Bell) {
            self.requests.remove(at);
            self.answers.push((Token::Bell, Err(io::Error::from_raw_os_error(libc::EBADF))));
        }
    }

    /// Answers for the bell, which is a real one.
    fn listen(&mut self) {
        let Some(at) = self.requests.iter().position(|request| request.token == Token::Bell) else { return };
        // SAFETY: the driver's, which has it as long as it asks.
        let fd = unsafe { BorrowedFd::borrow_raw(self.files[&Token::Bell.into()].fd) };
        let mut look = [PollFd::new(fd, PollFlags::POLLIN)];
        if self.requests[at].cancelled {
            self.requests.remove(at);
            self.answers.push((Token::Bell, Err(io::Error::from_raw_os_error(libc::ECANCELED))));
        } else if poll(&mut look, PollTimeout::ZERO).unwrap() == 1 {
            self.requests.remove(at);
            self.answers.push((Token::Bell, Ok(1)));
        }
    }
}

/// The driver's side of the world.
pub(super) struct Played {
    pub(super) world: Rc<RefCell<World>>,
    /// `on_event` has, as it was to.
    pub(super) panicked: Arc<AtomicBool>,
}

impl Played {
    /// A pipe is read at once, for at most `most` bytes.
    fn take_at_once(&mut self, pipe: BorrowedFd<'_>, most: usize, to: Option<*mut u8>) -> io::Result<usize> {
        let mut world = self.world.borrow_mut();
        let mut files = world.files.iter();
        let token = Token::from(*files.find(|(_, file)| file.fd == pipe.as_raw_fd()).unwrap().0);
        let number = world.number(token);
        let how = world.discards.pop_front().unwrap_or(How::Well);
        let pipe = &mut world.pipes[number];
        let result = match how {
            How::Not(errno) => {
                pipe.fail(errno);
                Err(io::Error::from_raw_os_error(errno))
            }
            _ if !pipe.is_readable() => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
            _ if pipe.is_left() => {
                pipe.fail(libc::EIO);
                Err(io::Error::from_raw_os_error(libc::EIO))
            }
            _ => Ok(pipe.give(number, how.of(most), to)),
        };
        world.say(token, &result);
        result
    }
}

impl Backend for Played {
    const KIND: BackendKind = BackendKind::Epoll;

    unsafe fn register(&mut self, token: Token, file: BorrowedFd<'_>) {
        let mut world = self.world.borrow_mut();
        let file = File { fd: file.as_raw_fd(), next: Ask::Anything };
        assert!(world.files.insert(token.into(), file).is_none(), "{token:?} was registered already");
        if let Token::Target(_) = token {
            let number = world.number(token);
            world.targets[number].registered = true;
        }
    }

    fn deregister(&mut self, token: Token) {
        let mut world = self.world.borrow_mut();
        assert!(world.requests.iter().all(|request| request.token != token), "{token:?} still waits");
        let file = world.files.remove(&token.into()).unwrap();
        // SAFETY: if it is not open, this fails.
        let open = unsafe { libc::fcntl(file.fd, libc::F_GETFD) };
        assert!(open >= 0, "{token:?} was closed before");
    }

    unsafe fn read(&mut self, token: Token, pipe: BorrowedFd<'_>, span: Span) {
        self.world.borrow_mut().ask_of(token, pipe, Asked::Read(span));
    }

    unsafe fn write(&mut self, token: Token, pipe: BorrowedFd<'_>, bytes: Lent) {
        let mut world = self.world.borrow_mut();
        let loan = world.targets[world.number(token)].borrow(bytes, &world.pushes);
        world.ask_of(token, pipe, Asked::Write(loan));
    }

    fn poll(&mut self, token: Token, file: BorrowedFd<'_>) {
        self.world.borrow_mut().ask_of(token, file, Asked::Poll);
    }

    fn pause(&mut self, token: Token) {
        self.world.borrow_mut().ask(token, Asked::Pause);
    }

    fn cancel(&mut self, token: Token) {
        let mut world = self.world.borrow_mut();
        // A source that is finished goes on when it knows how much there is.
        let finishes = matches!(token, Token::Source(_)) && {
            let pipe = &world.pipes[world.number(token)];
            pipe.enough.is_some() && !pipe.closed
        };
        // The driver looks after everything when it fails.
        let broken = world.broken;
        if let Some(request) = world.requests.iter_mut().find(|request| request.token == token) {
            request.cancelled = true;
            let file = world.files.get_mut(&token.into()).unwrap();
            file.next = if finishes && !broken { Ask::Anything } else { Ask::Nothing };
        }
    }

    fn discard(&mut self, pipe: BorrowedFd<'_>) -> io::Result<usize> {
        self.take_at_once(pipe, usize::MAX, None)
    }

    fn fetch(&mut self, pipe: BorrowedFd<'_>, memory: &mut [u8]) -> io::Result<usize> {
        self.take_at_once(pipe, memory.len(), Some(memory.as_mut_ptr()))
    }

    fn turn(&mut self, _: Duration) -> io::Result<()> {
        if std::thread::panicking() && !self.panicked.load(Relaxed) {
            // What went wrong is known.
            return Err(io::ErrorKind::Other.into());
        }
        let mut world = self.world.borrow_mut();
        let breaks = world.breaks();
        if matches!(breaks, Some(Fails::Once | Fails::ForGood)) {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        if breaks == Some(Fails::Bell) {
            world.silence();
        }
        world.go_on();
        world.listen();
        Ok(())
    }

    fn take(&mut self, answers: &mut Vec<Answer>) {
        answers.append(&mut self.world.borrow_mut().answers);
    }

    fn is_quiet(&self) -> bool {
        let world = self.world.borrow();
        world.requests.is_empty() && world.answers.is_empty()
    }
}
