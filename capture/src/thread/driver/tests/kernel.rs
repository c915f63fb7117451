//! The simulated kernel: which requests are allowed, and how they are answered.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use iof_shm_ring::{Lent, Span};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::pipe::Leader;
use super::script::{BreakdownKind, Outcome};
use super::simulation::Simulation;
use super::target::Loan;
use crate::backend::{BackendKind, Pause};
use crate::thread::driver::*;

/// A file that the driver has registered.
pub(super) struct RegisteredFile {
    fd: RawFd,
    allowed: Allowed,
}

/// The requests that a file allows next. A driver that violates them would be busy-waiting.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Allowed {
    All,
    /// No read or write: the last one was answered with EAGAIN.
    Poll,
    /// Pauses only: no process has the terminal open.
    Pause,
    /// None: the last request was cancelled.
    None,
}

#[derive(Debug)]
pub(super) enum Operation {
    Read(Span),
    Write(Loan),
    Poll,
    Pause,
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) token: Token,
    operation: Operation,
    pub(super) cancelled: bool,
}

impl PendingRequest {
    /// Uses the memory of the request as the kernel may before it answers: writes to a span, or
    /// checks the bytes of a loan.
    pub(super) fn use_memory(&self) {
        match &self.operation {
            // SAFETY: the request is in flight, so its span must still be mapped. All readers were
            // dropped before.
            Operation::Read(span) => unsafe { span.ptr.write_bytes(1, span.len) },
            Operation::Write(loan) => loan.check(),
            Operation::Poll | Operation::Pause => {}
        }
    }
}

impl Simulation {
    /// Returns the number of a source's or a target's pipe.
    fn number(&self, token: Token) -> usize {
        let fd = |token: Token| self.files[&u64::from(token)].fd;
        match token {
            // The newest pipe with this descriptor: older ones were closed.
            Token::Source(_) => self.pipes.iter().rposition(|pipe| pipe.fd == fd(token)).unwrap(),
            Token::Target(_) => self.targets.iter().rposition(|target| target.fd == fd(token)).unwrap(),
            other => panic!("{other:?} has no pipe"),
        }
    }

    /// Answers the request at `index` with `outcome`, unless the state of its file does not allow
    /// that.
    pub(super) fn answer(&mut self, index: usize, outcome: Outcome, late: bool) {
        let PendingRequest { token, ref operation, cancelled } = self.requests[index];
        let fails = |errno| Err(io::Error::from_raw_os_error(errno));
        let result = match (operation, outcome) {
            _ if cancelled && !late => fails(libc::ECANCELED),
            (Operation::Pause, Outcome::All) => fails(libc::ETIME),
            (Operation::Pause, _) => Ok(0),
            // A lack of memory for the bytes does not end a source.
            (Operation::Read(_), Outcome::Error(errno @ (libc::EFAULT | libc::ENOMEM))) => fails(errno),
            (_, Outcome::Error(errno)) => {
                self.fail(token, errno);
                fails(errno)
            }
            // Readable or not: a kernel's answer may be out of date when the driver takes it.
            (Operation::Poll, Outcome::AtMost(_)) => Ok(1),
            (Operation::Poll | Operation::Read(_), _)
                if matches!(token, Token::Source(_)) && !self.pipes[self.number(token)].is_readable() =>
            {
                return;
            }
            (Operation::Poll, Outcome::All) => Ok(1),
            (Operation::Read(_), _) if self.pipes[self.number(token)].is_unopened_terminal() => {
                self.fail(token, libc::EIO);
                fails(libc::EIO)
            }
            (Operation::Read(span), _) => {
                let (number, (ptr, len)) = (self.number(token), (span.ptr, span.len));
                Ok(self.pipes[number].give(number, outcome.bytes(len), Some(ptr)))
            }
            (Operation::Write(loan), _) => {
                let (number, loan) = (self.number(token), loan.clone());
                Ok(self.targets[number].take(&loan, outcome.bytes(loan.len)))
            }
        };
        if let Token::Process(_) = token {
            let fd = Some(self.files[&token.into()].fd);
            let mut pipes = self.pipes.iter_mut().rev();
            pipes.find(|pipe| pipe.leader_fd == fd).unwrap().leader = Some(Leader::Exited);
        }
        self.requests.remove(index);
        self.record_answer(token, &result);
        self.answers.push((token, result));
    }

    /// Records that the file of `token` is about to return an error.
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

    /// Records an answer, which decides the requests that its file allows next.
    fn record_answer(&mut self, token: Token, result: &io::Result<usize>) {
        let terminal = matches!(token, Token::Source(_)) && self.pipes[self.number(token)].leader.is_some();
        let file = self.files.get_mut(&token.into()).unwrap();
        if file.allowed == Allowed::None {
            return;
        }
        file.allowed = match result.as_ref().err().and_then(io::Error::raw_os_error) {
            Some(libc::EAGAIN) => Allowed::Poll,
            Some(libc::EIO) if terminal => Allowed::Pause,
            _ => Allowed::All,
        };
    }

    /// Takes a request that names `file`, which must be the registered one.
    fn request_on(&mut self, token: Token, file: BorrowedFd<'_>, operation: Operation) {
        let registered = self.files.get(&token.into()).map(|registered| registered.fd);
        assert_eq!(registered, Some(file.as_raw_fd()), "{token:?} is registered with another file");
        self.request(token, operation);
    }

    fn request(&mut self, token: Token, operation: Operation) {
        let in_flight = self.requests.iter().any(|request| request.token == token);
        assert!(!in_flight, "{token:?} already has a request in flight");
        let allowed = self.files.get(&token.into()).expect("the token is not registered").allowed;
        let is_allowed = match allowed {
            Allowed::All => true,
            Allowed::Poll => !matches!(operation, Operation::Read(_) | Operation::Write(_)),
            Allowed::Pause => matches!(operation, Operation::Pause),
            Allowed::None => false,
        };
        assert!(is_allowed, "{token:?} requests {operation:?}, allowed: {allowed:?}");
        self.requests.push(PendingRequest { token, operation, cancelled: false });
    }

    /// Answers the request for the bell with an error.
    fn fail_bell(&mut self) {
        if let Some(index) = self.requests.iter().position(|request| request.token == Token::Bell) {
            self.requests.remove(index);
            self.answers.push((Token::Bell, Err(io::Error::from_raw_os_error(libc::EBADF))));
        }
    }

    /// Answers the request for the bell, which is a real file, if it was cancelled or the bell has
    /// rung.
    fn answer_bell(&mut self) {
        let Some(index) = self.requests.iter().position(|request| request.token == Token::Bell) else {
            return;
        };
        // SAFETY: the driver keeps its bell open while it has a request for it.
        let fd = unsafe { BorrowedFd::borrow_raw(self.files[&Token::Bell.into()].fd) };
        let mut polled = [PollFd::new(fd, PollFlags::POLLIN)];
        if self.requests[index].cancelled {
            self.requests.remove(index);
            self.answers.push((Token::Bell, Err(io::Error::from_raw_os_error(libc::ECANCELED))));
        } else if poll(&mut polled, PollTimeout::ZERO).unwrap() == 1 {
            self.requests.remove(index);
            self.answers.push((Token::Bell, Ok(1)));
        }
    }
}

/// The driver's backend in the simulation.
pub(super) struct SimulatedBackend {
    pub(super) simulation: Rc<RefCell<Simulation>>,
    /// `on_event` has panicked as planned.
    pub(super) panicked: Arc<AtomicBool>,
}

impl SimulatedBackend {
    /// Reads at most `most` bytes from a pipe without a request, to `memory` if it is given.
    fn read_at_once(
        &mut self,
        pipe: BorrowedFd<'_>,
        most: usize,
        memory: Option<*mut u8>,
    ) -> io::Result<usize> {
        let mut simulation = self.simulation.borrow_mut();
        let mut files = simulation.files.iter();
        let token = Token::from(*files.find(|(_, file)| file.fd == pipe.as_raw_fd()).unwrap().0);
        let number = simulation.number(token);
        let outcome = simulation.discards.pop_front().unwrap_or(Outcome::All);
        let pipe = &mut simulation.pipes[number];
        let result = match outcome {
            Outcome::Error(errno) => {
                pipe.fail(errno);
                Err(io::Error::from_raw_os_error(errno))
            }
            _ if !pipe.is_readable() => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
            _ if pipe.is_unopened_terminal() => {
                pipe.fail(libc::EIO);
                Err(io::Error::from_raw_os_error(libc::EIO))
            }
            _ => Ok(pipe.give(number, outcome.bytes(most), memory)),
        };
        simulation.record_answer(token, &result);
        result
    }
}

impl Backend for SimulatedBackend {
    const KIND: BackendKind = BackendKind::Epoll;

    unsafe fn register(&mut self, token: Token, file: BorrowedFd<'_>) {
        let mut simulation = self.simulation.borrow_mut();
        let file = RegisteredFile { fd: file.as_raw_fd(), allowed: Allowed::All };
        assert!(simulation.files.insert(token.into(), file).is_none(), "{token:?} is already registered");
        if let Token::Target(_) = token {
            let number = simulation.number(token);
            simulation.targets[number].registered = true;
        }
    }

    fn deregister(&mut self, token: Token) {
        let mut simulation = self.simulation.borrow_mut();
        let in_flight = simulation.requests.iter().any(|request| request.token == token);
        assert!(!in_flight, "{token:?} still has a request in flight");
        let file = simulation.files.remove(&token.into()).unwrap();
        // SAFETY: the call takes plain numbers, and fails if the descriptor is not open.
        let flags = unsafe { libc::fcntl(file.fd, libc::F_GETFD) };
        assert!(flags >= 0, "{token:?} was closed while registered");
    }

    unsafe fn read(&mut self, token: Token, pipe: BorrowedFd<'_>, span: Span) {
        self.simulation.borrow_mut().request_on(token, pipe, Operation::Read(span));
    }

    unsafe fn write(&mut self, token: Token, pipe: BorrowedFd<'_>, bytes: Lent) {
        let mut simulation = self.simulation.borrow_mut();
        let loan = simulation.targets[simulation.number(token)].check_loan(bytes, &simulation.pushes);
        simulation.request_on(token, pipe, Operation::Write(loan));
    }

    fn poll(&mut self, token: Token, file: BorrowedFd<'_>) {
        self.simulation.borrow_mut().request_on(token, file, Operation::Poll);
    }

    fn pause(&mut self, token: Token, _: Pause) {
        self.simulation.borrow_mut().request(token, Operation::Pause);
    }

    fn cancel(&mut self, token: Token) {
        let mut simulation = self.simulation.borrow_mut();
        // A source that is being finished continues after the cancellation, when the driver has
        // measured how many bytes are left.
        let finishes = matches!(token, Token::Source(_)) && {
            let pipe = &simulation.pipes[simulation.number(token)];
            pipe.finish_at.is_some() && !pipe.closed
        };
        // A driver that has failed cancels everything and continues nothing.
        let broken = simulation.broken;
        if let Some(request) = simulation.requests.iter_mut().find(|request| request.token == token) {
            request.cancelled = true;
            let file = simulation.files.get_mut(&token.into()).unwrap();
            file.allowed = if finishes && !broken { Allowed::All } else { Allowed::None };
        }
    }

    fn discard(&mut self, pipe: BorrowedFd<'_>) -> io::Result<usize> {
        self.read_at_once(pipe, usize::MAX, None)
    }

    unsafe fn read_now(&mut self, pipe: BorrowedFd<'_>, span: &Span) -> io::Result<usize> {
        self.read_at_once(pipe, span.len, Some(span.ptr))
    }

    fn turn(&mut self, _: Duration) -> io::Result<()> {
        if std::thread::panicking() && !self.panicked.load(Relaxed) {
            // An assertion has failed. The driver is only to unwind.
            return Err(io::ErrorKind::Other.into());
        }
        let mut simulation = self.simulation.borrow_mut();
        let breakdown = simulation.next_breakdown();
        if matches!(breakdown, Some(BreakdownKind::OneTurn | BreakdownKind::AllTurns)) {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        if breakdown == Some(BreakdownKind::Bell) {
            simulation.fail_bell();
        }
        simulation.run_turn();
        simulation.answer_bell();
        Ok(())
    }

    fn take(&mut self, answers: &mut Vec<Answer>) {
        answers.append(&mut self.simulation.borrow_mut().answers);
    }

    fn is_quiet(&self) -> bool {
        let simulation = self.simulation.borrow();
        simulation.requests.is_empty() && simulation.answers.is_empty()
    }
}
