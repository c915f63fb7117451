//! Everything around the driver: pipes, their readers, those who push, and whoever sends commands.
//! What the kernel does is in `kernel`.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io::Write as _;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};

use crossbeam::channel::Sender;
use iof_shm_ring::{Policy, Reader, ReaderPage, Ringer, Start, StreamConfig, bell, doorbell};

use super::kernel::{File, Played, Request};
use super::pipe::{Pipe, Queue, Session};
use super::target::{Push, Target};
use super::{Break, End, Fails, How, Kind, Step};
use crate::driver::*;
use crate::pty::{self, Pty, WindowSize};

/// Pipes of one play, of each kind.
pub(super) const PIPES: usize = 5;
/// Pushes of one play.
pub(super) const PUSHES: usize = 6;
/// Bytes that are pushed by each push in the end: more than its inlet holds.
const PUSHED: u64 = 10_000;
/// Bytes that a pipe has for whoever asks it itself how much there is to finish with.
const UNREAD: usize = 3000;
/// Turns in which everything must have ended once nothing goes wrong any more. Reads are of a KiB
/// at least.
const PATIENCE: usize = 10_000;

/// How `on_event` fails when it is to.
pub(super) struct Panicked;

/// Everything around the driver.
pub(super) struct World {
    pub(super) steps: VecDeque<Step>,
    /// How the next discards go; well, once this is empty.
    pub(super) discards: VecDeque<How>,
    /// When and how the kernel stops serving.
    pub(super) breaks: Option<Break>,
    /// It did.
    pub(super) broken: bool,
    /// Turns since the steps ended.
    settling: usize,
    stopped: bool,
    commands: Sender<Command>,
    events: Receiver<Event>,
    ringer: Ringer,
    pub(super) pipes: Vec<Pipe>,
    fills: Arc<Fills>,
    pub(super) pushes: Vec<Push>,
    pub(super) targets: Vec<Target>,
    /// What the driver has registered.
    pub(super) files: HashMap<u64, File>,
    pub(super) requests: Vec<Request>,
    pub(super) answers: Vec<Answer>,
}

impl World {
    /// A world, and the driver in it. `on_event` panics when `panics` events were reported.
    pub(super) fn new(
        steps: Vec<Step>,
        discards: Vec<How>,
        breaks: Option<Break>,
        panics: Option<usize>,
    ) -> (Rc<RefCell<World>>, Driver<Played>) {
        let (ringer, listen) = bell().unwrap();
        let (commands, receive) = crossbeam::channel::unbounded();
        let (tell, events) = channel();
        let world = Rc::new(RefCell::new(World {
            steps: steps.into(),
            discards: discards.into(),
            breaks,
            broken: false,
            settling: 0,
            stopped: false,
            commands,
            events,
            ringer,
            pipes: Vec::new(),
            fills: Arc::default(),
            pushes: Vec::new(),
            targets: Vec::new(),
            files: HashMap::new(),
            requests: Vec::new(),
            answers: Vec::new(),
        }));
        let (left, panicked) = (Cell::new(panics), Arc::new(AtomicBool::new(false)));
        let panics = Arc::clone(&panicked);
        let on_event: OnEvent = Box::new(move |event| {
            tell.send(event).unwrap();
            left.set(left.get().map(|left| left.saturating_sub(1)));
            if left.get() == Some(0) {
                panics.store(true, Relaxed);
                // Without a word on stderr.
                std::panic::resume_unwind(Box::new(Panicked));
            }
        });
        let inbox = {
            let world = world.borrow();
            Inbox { commands: world.commands.clone(), ringer: world.ringer.try_clone().unwrap() }
        };
        let played = Played { world: Rc::clone(&world), panicked };
        (world, Driver::new(played, listen, receive, inbox, Arc::default(), on_event))
    }

    fn send(&mut self, command: Command) {
        // Nobody listens any more once the driver has ended.
        let _ = self.commands.send(command);
        self.ringer.ring();
    }

    fn add(&mut self, policy: Policy, pages: u64, kind: Kind) {
        let id = SourceId(self.pipes.len() as u64);
        let mut stream = Stream::create(StreamConfig { capacity: pages * 4096, policy }, "test").unwrap();
        let page = Arc::new(ReaderPage::create(doorbell().unwrap().0).unwrap());
        let slot = page.take_slot().unwrap();
        let at = stream.attach(&page, slot, Start::Oldest, policy == Policy::Block).unwrap();
        // SAFETY: nobody detaches or moves it.
        let mut reader = unsafe { Reader::new(at, page, Start::Oldest) }.unwrap();
        reader.tell_room(self.ringer.try_clone().unwrap());
        // Nobody reads them: only their numbers count, what they are, and how much they have when asked for
        // that.
        let (pipe, leader): (Option<OwnedFd>, _) = match kind {
            Kind::Queue => (None, None),
            Kind::Pipe => {
                let (read, write) = nix::unistd::pipe().unwrap();
                std::fs::File::from(write).write_all(&[0; UNREAD]).unwrap();
                (Some(read), None)
            }
            Kind::Terminal => {
                let (master, _) = pty::open(Pty { size: WindowSize::default(), echo: false }).unwrap();
                // No child of ours, so that its status is nobody's to take; the kernel tells when it ends.
                let leader = Child::adopt(std::process::id()).unwrap();
                (Some(master.into()), Some((ProcessId(id.0), leader)))
            }
        };
        self.pipes.push(Pipe {
            fd: pipe.as_ref().map_or(-1, |pipe| pipe.as_raw_fd()),
            buffered: 0,
            hung_up: false,
            given: 0,
            failed: false,
            closed: false,
            enough: None,
            session: leader.is_some().then_some(Session::Led),
            leader: leader.as_ref().map(|(_, child): &(ProcessId, Child)| child.as_fd().as_raw_fd()),
            queue: pipe.is_none().then(Queue::default),
            reader,
            read: 0,
            end: None,
        });
        let stream = Box::new(stream);
        self.send(match pipe {
            Some(pipe) => Command::Add { id, pipe, stream, leader },
            None => Command::Open { id, stream },
        });
    }

    fn add_target(&mut self) {
        let id = TargetId(self.targets.len() as u64);
        // Nobody writes it: only its number counts.
        let pipe: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        self.targets.push(Target::new(pipe.as_raw_fd()));
        self.send(Command::AddTarget { id, pipe });
    }

    fn begin_push(&mut self, targets: &[usize], pages: u64, closes: bool) {
        let (number, known) = (self.pushes.len(), self.targets.len());
        let (push, inlet) = Push::new(number, pages, closes, targets, known);
        for at in (0..known).filter(|at| targets.contains(at)) {
            self.targets[at].enqueue(number);
        }
        self.pushes.push(push);
        let targets = targets.iter().map(|at| TargetId(*at as u64)).collect();
        self.send(Command::Push { id: PushId(number as u64), inlet, targets, closes });
    }

    fn fill(&mut self, number: usize, bytes: usize, over: bool) {
        if let Some(push) = self.pushes.get_mut(number).filter(|push| push.goes_on()) {
            let bytes = push.fill(bytes, over);
            let (id, fills) = (PushId(number as u64), Arc::clone(&self.fills));
            if fills.add(id, Fill { bytes, over }) {
                self.send(Command::Fill { id, fills });
            }
        }
    }

    fn cut_off(&mut self, number: usize, position: u64) {
        if let Some(push) = self.pushes.get_mut(number) {
            push.cut_off(position);
        }
        self.send(Command::CutOff { id: PushId(number as u64), position });
    }

    fn shut(&mut self, number: usize) {
        if let Some(target) = self.targets.get_mut(number) {
            target.stopped = true;
        }
        self.send(Command::Shut(TargetId(number as u64)));
    }

    fn pipe(&mut self, number: usize) -> Option<&mut Pipe> {
        self.pipes.get_mut(number)
    }

    fn play(&mut self, step: Step) {
        match step {
            Step::Add { policy, pages, kind } if self.pipes.len() < PIPES && !self.stopped => {
                self.add(policy, pages, kind);
            }
            Step::AddTarget if self.targets.len() < PIPES && !self.stopped => self.add_target(),
            Step::BeginPush { targets, pages, closes } if self.pushes.len() < PUSHES && !self.stopped => {
                self.begin_push(&targets, pages, closes);
            }
            Step::Add { .. } | Step::AddTarget | Step::BeginPush { .. } => {}
            Step::Write { pipe, bytes } => self.write(pipe, bytes),
            Step::HangUp { pipe } => self.hang_up(pipe),
            Step::Fill { push, bytes, over } => self.fill(push, bytes, over),
            Step::CutOff { push, position } => self.cut_off(push, position),
            Step::Shut { target } => self.shut(target),
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
            Step::Finish { pipe } if self.pipes.get(pipe).is_some_and(|pipe| pipe.fd < 0) => {
                self.hang_up(pipe);
            }
            Step::Finish { pipe } => {
                if let Some(found) = self.pipe(pipe) {
                    let enough = found.given + UNREAD as u64;
                    found.enough.get_or_insert(enough);
                }
                self.send(Command::Finish(SourceId(pipe as u64)));
            }
            Step::Ring => self.ringer.ring(),
            Step::Stop => {
                self.stopped = true;
                self.pipes.iter_mut().for_each(|pipe| pipe.closed = true);
                self.targets.iter_mut().for_each(|target| target.stopped = true);
                self.send(Command::Stop);
            }
        }
    }

    fn write(&mut self, number: usize, bytes: usize) {
        let Some(pipe) = self.pipes.get_mut(number).filter(|pipe| !pipe.hung_up) else { return };
        if pipe.fd >= 0 {
            pipe.buffered += bytes;
        } else if let Some(bytes) = pipe.deliver(number, bytes) {
            self.send(Command::Deliver { id: SourceId(number as u64), bytes, time: None });
        }
    }

    fn hang_up(&mut self, number: usize) {
        let Some(pipe) = self.pipes.get_mut(number).filter(|pipe| !pipe.hung_up) else { return };
        pipe.hung_up = true;
        if pipe.fd < 0 {
            self.send(Command::Finish(SourceId(number as u64)));
        }
    }

    /// Takes note of what the driver reports.
    pub(super) fn hear(&mut self) {
        for event in self.events.try_iter() {
            match event {
                Event::Complete { source, produced, dropped, end } => {
                    assert!(dropped <= produced);
                    let end = End { produced, error: matches!(end, crate::End::Error(_)) };
                    self.pipes[source.0 as usize].end(end, self.broken);
                }
                Event::Delivered { source, deliveries, bytes } => {
                    self.pipes[source.0 as usize].taken(deliveries, bytes);
                }
                Event::Exited { process, .. } => {
                    let session = self.pipes[process.0 as usize].session.replace(Session::Reported);
                    assert!(session != Some(Session::Reported), "{process:?} exited twice");
                }
                Event::Freed { push, position } => self.pushes[push.0 as usize].freed(position),
                Event::Fed { push, target, delivered, end } => {
                    let (push, number) = (&mut self.pushes[push.0 as usize], target.0 as usize);
                    if push.reaches(number) {
                        self.targets[number].fed(push, number, delivered, &end, self.broken);
                    } else {
                        push.miss(number, delivered, &end);
                    }
                }
                Event::PushOver { push } => self.pushes[push.0 as usize].end(),
                Event::Shut { target } => self.targets[target.0 as usize].end(self.broken),
                Event::Stalled { pipe } => panic!("{pipe:?} is watched"),
            }
        }
    }

    /// Nothing goes wrong any more: pushes and pipes end, readers read, requests are answered.
    fn settle(&mut self) {
        self.settling += 1;
        assert!(self.settling < PATIENCE, "it hangs: {:?}", self.requests);
        for number in 0..self.pipes.len() {
            self.hang_up(number);
            self.pipes[number].consume(number, usize::MAX);
        }
        for number in 0..self.pushes.len() {
            // For these there must come room, time and again.
            let over = self.pushes[number].filled >= PUSHED;
            self.fill(number, PUSHED as usize / 4, over);
        }
        for number in 0..self.targets.len() {
            // Once it has had what it is to have.
            if self.targets[number].is_idle() && !self.targets[number].stopped {
                self.shut(number);
            }
        }
        for at in (0..self.requests.len()).rev() {
            // One that failed waits for nothing: it has all cancelled.
            if self.requests[at].token != Token::Bell && (!self.broken || self.requests[at].cancelled) {
                self.answer(at, How::Well, (at + self.settling).is_multiple_of(2));
            }
        }
        let busy = self.files.keys().any(|word| Token::from(*word) != Token::Bell);
        let queued = self.pipes.iter().any(|pipe| pipe.queue.is_some());
        if !busy && !queued && !self.stopped {
            self.stopped = true;
            self.send(Command::Stop);
        }
    }

    /// One turn, before the kernel looks at the bell.
    pub(super) fn go_on(&mut self) {
        self.hear();
        match self.steps.pop_front() {
            Some(step) => self.play(step),
            None => self.settle(),
        }
    }

    /// How the kernel stops serving now, if it does.
    pub(super) fn breaks(&mut self) -> Option<Fails> {
        let Break { after, how } = self.breaks.as_mut()?;
        if *after > 0 {
            *after -= 1;
            return None;
        }
        let how = *how;
        if how != Fails::ForGood {
            self.breaks = None;
        }
        self.broken = true;
        Some(how)
    }

    /// What the kernel may do as long as it has not answered: it reads what it was lent, and writes
    /// into spans. All others who have the memory let go of it before.
    pub(super) fn use_what_is_lent(&mut self) {
        self.pipes.clear();
        self.pushes.iter_mut().for_each(Push::release);
        for request in &self.requests {
            request.use_memory();
        }
    }
}
