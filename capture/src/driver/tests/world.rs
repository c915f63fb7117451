//! Everything around the driver: pipes, their readers, whoever sends commands, and a kernel that answers as told.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;

use crossbeam::channel::Sender;
use iof_shm_ring::{Area, Policy, Reader, Ringer, Span, Start, StreamConfig, doorbell};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::pipe::Pipe;
use super::{Break, How, Step};
use crate::backend::BackendKind;
use crate::driver::*;

/// Pipes of one play.
pub(super) const PIPES: usize = 5;
/// Turns in which everything must have ended once nothing goes wrong any more. Reads are of a KiB at least.
const PATIENCE: usize = 10_000;

#[derive(Debug)]
pub(super) enum Asked {
    Read(Span),
    Poll,
    Pause,
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) token: Token,
    pub(super) asked: Asked,
    pub(super) cancelled: bool,
}

/// Everything around the driver.
pub(super) struct World {
    pub(super) steps: VecDeque<Step>,
    /// How the next discards go; well, once this is empty.
    pub(super) discards: VecDeque<How>,
    /// When and how the kernel stops serving.
    pub(super) breaks: Option<Break>,
    /// Turns since the steps ended.
    pub(super) settling: usize,
    pub(super) stopped: bool,
    pub(super) commands: Sender<Command>,
    pub(super) ringer: Ringer,
    pub(super) pipes: Vec<Pipe>,
    pub(super) files: HashMap<u64, RawFd>,
    pub(super) requests: Vec<Request>,
    pub(super) answers: Vec<Answer>,
}

impl World {
    fn send(&mut self, command: Command) {
        self.commands.send(command).unwrap();
        self.ringer.ring();
    }

    fn add(&mut self, policy: Policy, pages: u64) {
        let id = SourceId(self.pipes.len() as u64);
        let mut stream = Stream::create(StreamConfig { capacity: pages * 4096, policy }, "test").unwrap();
        let area = Arc::new(Area::create(doorbell().unwrap().0).unwrap());
        let slot = area.take_slot().unwrap();
        let at = stream.attach(&area, slot, Start::Oldest, policy == Policy::Block).unwrap();
        // SAFETY: nobody detaches or moves it.
        let mut reader = unsafe { Reader::new(at, area, Start::Oldest) }.unwrap();
        reader.tell_room(self.ringer.try_clone().unwrap());
        // Only its number counts.
        let pipe: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let fd = pipe.as_raw_fd();
        self.pipes.push(Pipe {
            fd,
            buffered: 0,
            hung_up: false,
            given: 0,
            failed: false,
            closed: false,
            not_now: false,
            cancelled: false,
            reader,
            read: 0,
        });
        self.send(Command::Add { id, pipe, stream: Box::new(stream), leader: None });
    }

    fn pipe(&mut self, number: usize) -> Option<&mut Pipe> {
        self.pipes.get_mut(number)
    }

    fn play(&mut self, step: Step) {
        match step {
            Step::Add { policy, pages } if self.pipes.len() < PIPES && !self.stopped => {
                self.add(policy, pages)
            }
            Step::Add { .. } => {}
            Step::Write { pipe, bytes } => {
                if let Some(pipe) = self.pipe(pipe).filter(|pipe| !pipe.hung_up) {
                    pipe.buffered += bytes;
                }
            }
            Step::HangUp { pipe } => {
                if let Some(pipe) = self.pipe(pipe) {
                    pipe.hung_up = true;
                }
            }
            Step::Answer { request, how, late } => {
                let waiting = self.requests.iter().filter(|request| request.token != Token::Bell).count();
                if waiting > 0 {
                    let which = self.requests.iter().enumerate();
                    let mut which = which.filter(|(_, request)| request.token != Token::Bell);
                    let (at, _) = which.nth(request % waiting).unwrap();
                    self.answer(at, how, late);
                }
            }
            Step::Consume { pipe, bytes } => {
                if let Some(found) = self.pipe(pipe) {
                    found.consume(pipe, bytes);
                }
            }
            Step::Close { pipe } | Step::Remove { pipe } => {
                if let Some(found) = self.pipe(pipe) {
                    found.closed = true;
                }
                let id = SourceId(pipe as u64);
                self.send(if matches!(step, Step::Close { .. }) {
                    Command::Close(id)
                } else {
                    Command::Remove(id)
                });
            }
            Step::Ring => self.ringer.ring(),
            Step::Stop => {
                self.stopped = true;
                self.pipes.iter_mut().for_each(|pipe| pipe.closed = true);
                self.send(Command::Stop);
            }
        }
    }

    /// Nothing goes wrong any more: pipes end, readers read, requests are answered.
    fn settle(&mut self) {
        self.settling += 1;
        assert!(self.settling < PATIENCE, "it hangs: {:?}", self.requests);
        for (number, pipe) in self.pipes.iter_mut().enumerate() {
            pipe.hung_up = true;
            pipe.consume(number, usize::MAX);
        }
        for at in (0..self.requests.len()).rev() {
            if self.requests[at].token != Token::Bell {
                self.answer(at, How::Well, false);
            }
        }
        let sources = self.files.keys().any(|word| matches!(Token::from(*word), Token::Source(_)));
        if !sources && !self.stopped {
            self.stopped = true;
            self.send(Command::Stop);
        }
    }

    /// The number of a source's pipe.
    fn number(&self, token: Token) -> usize {
        let fd = self.files[&u64::from(token)];
        // The last one: the others were closed.
        self.pipes.iter().rposition(|pipe| pipe.fd == fd).unwrap()
    }

    /// Answers the request at `at`, if it can be answered so.
    fn answer(&mut self, at: usize, how: How, late: bool) {
        let Request { token, ref asked, cancelled } = self.requests[at];
        let number = self.number(token);
        let pipe = &mut self.pipes[number];
        let fails = |errno| Err(io::Error::from_raw_os_error(errno));
        let result = match (asked, how) {
            _ if cancelled && !late => fails(libc::ECANCELED),
            (Asked::Pause, How::Well) => fails(libc::ETIME),
            (Asked::Pause, _) => Ok(0),
            (Asked::Poll | Asked::Read(_), How::Not(errno)) => {
                pipe.failed |= !matches!(errno, libc::EAGAIN | libc::EINTR);
                fails(errno)
            }
            // Also when it is not true: the kernel may be wrong by the time that it is heard.
            (Asked::Poll, How::Short(_)) => Ok(1),
            _ if !pipe.is_readable() => return,
            (Asked::Poll, How::Well) => Ok(1),
            (Asked::Read(span), How::Well) => Ok(pipe.give(number, span.len, Some(span.ptr))),
            (Asked::Read(span), How::Short(n)) => Ok(pipe.give(number, n.min(span.len), Some(span.ptr))),
        };
        pipe.not_now = result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        self.requests.remove(at);
        self.answers.push((token, result));
    }

    fn ask(&mut self, token: Token, asked: Asked) {
        assert!(self.files.contains_key(&token.into()), "{token:?} is not registered");
        assert!(self.requests.iter().all(|request| request.token != token), "{token:?} asks twice");
        if token != Token::Bell {
            let number = self.number(token);
            let pipe = &self.pipes[number];
            assert!(!pipe.cancelled, "pipe {number} is to end");
            assert!(!pipe.not_now || !matches!(asked, Asked::Read(_)), "pipe {number} had nothing");
        }
        self.requests.push(Request { token, asked, cancelled: false });
    }

    /// Answers for the bell, which is a real one.
    fn listen(&mut self) {
        let Some(at) = self.requests.iter().position(|request| request.token == Token::Bell) else { return };
        // SAFETY: the driver's, which has it as long as it asks.
        let fd = unsafe { BorrowedFd::borrow_raw(self.files[&Token::Bell.into()]) };
        let mut look = [PollFd::new(fd, PollFlags::POLLIN)];
        if self.requests[at].cancelled {
            self.requests.remove(at);
            self.answers.push((Token::Bell, Err(io::Error::from_raw_os_error(libc::ECANCELED))));
        } else if poll(&mut look, PollTimeout::ZERO).unwrap() == 1 {
            self.requests.remove(at);
            self.answers.push((Token::Bell, Ok(1)));
        }
    }

    /// Whether the kernel stops serving now.
    fn breaks(&mut self) -> bool {
        match &mut self.breaks {
            Some(Break { after: 0, for_good: true }) => true,
            Some(Break { after: 0, .. }) => {
                self.breaks = None;
                self.steps.clear();
                true
            }
            Some(Break { after, .. }) => {
                *after -= 1;
                false
            }
            None => false,
        }
    }
}

/// The driver's side of the world.
pub(super) struct Played(pub(super) Rc<RefCell<World>>);

impl Backend for Played {
    const KIND: BackendKind = BackendKind::Epoll;

    fn register(&mut self, token: Token, file: BorrowedFd<'_>) {
        let before = self.0.borrow_mut().files.insert(token.into(), file.as_raw_fd());
        assert_eq!(before, None, "{token:?} was registered already");
    }

    fn deregister(&mut self, token: Token) {
        let mut world = self.0.borrow_mut();
        assert!(world.requests.iter().all(|request| request.token != token), "{token:?} still waits");
        world.files.remove(&token.into()).unwrap();
    }

    unsafe fn read(&mut self, token: Token, _: BorrowedFd<'_>, span: Span) {
        self.0.borrow_mut().ask(token, Asked::Read(span));
    }

    unsafe fn write(&mut self, _: Token, _: BorrowedFd<'_>, _: &[u8]) {
        unreachable!("these plays have no targets");
    }

    fn poll(&mut self, token: Token, _: BorrowedFd<'_>) {
        self.0.borrow_mut().ask(token, Asked::Poll);
    }

    fn pause(&mut self, token: Token) {
        self.0.borrow_mut().ask(token, Asked::Pause);
    }

    fn cancel(&mut self, token: Token) {
        let mut world = self.0.borrow_mut();
        if let Some(request) = world.requests.iter_mut().find(|request| request.token == token) {
            request.cancelled = true;
            if token != Token::Bell {
                let number = world.number(token);
                world.pipes[number].cancelled = true;
            }
        }
    }

    fn discard(&mut self, pipe: BorrowedFd<'_>) -> io::Result<usize> {
        let mut world = self.0.borrow_mut();
        let number = world.pipes.iter().rposition(|known| known.fd == pipe.as_raw_fd()).unwrap();
        let how = world.discards.pop_front().unwrap_or(How::Well);
        let pipe = &mut world.pipes[number];
        let result = match how {
            How::Not(errno) => {
                pipe.failed |= !matches!(errno, libc::EAGAIN | libc::EINTR);
                Err(io::Error::from_raw_os_error(errno))
            }
            _ if !pipe.is_readable() => Err(io::ErrorKind::WouldBlock.into()),
            How::Well => Ok(pipe.give(number, usize::MAX, None)),
            How::Short(n) => Ok(pipe.give(number, n, None)),
        };
        pipe.not_now = result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        result
    }

    fn turn(&mut self, _: Duration) -> io::Result<()> {
        if std::thread::panicking() {
            // What went wrong is known.
            return Err(io::ErrorKind::Other.into());
        }
        let mut world = self.0.borrow_mut();
        if world.breaks() {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        match world.steps.pop_front() {
            Some(step) => world.play(step),
            None => world.settle(),
        }
        world.listen();
        Ok(())
    }

    fn take(&mut self, into: &mut Vec<Answer>) {
        into.append(&mut self.0.borrow_mut().answers);
    }

    fn is_quiet(&self) -> bool {
        let world = self.0.borrow();
        world.requests.is_empty() && world.answers.is_empty()
    }
}
