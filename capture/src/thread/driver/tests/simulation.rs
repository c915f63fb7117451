//! The simulated surroundings of the driver: pipes, readers, pushes and the sender of commands. The
//! kernel's part is in `kernel`.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io::Write as _;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};

use iof_proto::{Pty, WindowSize};
use iof_shm_ring::{Policy, Reader, ReaderPage, Start, StreamConfig, bell, doorbell};

use super::kernel::{PendingRequest, RegisteredFile, SimulatedBackend};
use super::pipe::{Leader, PIPES, PipeModel, SourceEnd, Untaken};
use super::script::{Action, Breakdown, BreakdownKind, Outcome, SourceKind};
use super::target::{PUSHES, PushModel, TargetModel};
use crate::ids::ProcessId;
use crate::messages::command::NewProcess;
use crate::process::child::Child;
use crate::spawn::pty;
use crate::thread::driver::*;

/// Least number of bytes of each push: more than its inlet holds.
const PUSHED: u64 = 10_000;
/// Bytes in each real pipe. A driver that finishes a source asks the real pipe how many bytes are
/// left.
pub(super) const UNREAD: usize = 3000;
/// Turns within which everything must end when nothing fails any more. Each read is of at least a
/// KiB.
const SETTLE_TURNS: usize = 10_000;

/// The payload of a planned panic in `on_event`.
pub(super) struct InjectedPanic;

/// The state of the simulation.
pub(super) struct Simulation {
    /// The rest of the script.
    pub(super) actions: VecDeque<Action>,
    /// Outcomes of the next discards and fetches. When it is empty, they succeed.
    pub(super) discards: VecDeque<Outcome>,
    /// The planned failure of the kernel.
    pub(super) breakdown: Option<Breakdown>,
    /// The kernel has failed.
    pub(super) broken: bool,
    /// The number of turns since the script ended.
    settle_turns: usize,
    stopped: bool,
    inbox: Inbox,
    events: Receiver<Event>,
    pub(super) pipes: Vec<PipeModel>,
    pub(super) pushes: Vec<PushModel>,
    pub(super) targets: Vec<TargetModel>,
    /// The files that the driver has registered, by the token's word.
    pub(super) files: HashMap<u64, RegisteredFile>,
    pub(super) requests: Vec<PendingRequest>,
    pub(super) answers: Vec<Answer>,
}

impl Simulation {
    /// Creates a simulation and its driver. `on_event` panics at event number `panic_after`.
    pub(super) fn new(
        actions: Vec<Action>,
        discards: Vec<Outcome>,
        breakdown: Option<Breakdown>,
        panic_after: Option<usize>,
    ) -> (Rc<RefCell<Simulation>>, Driver<SimulatedBackend>) {
        let (ringer, driver_bell) = bell().unwrap();
        let (inbox, receiver) = Inbox::new(ringer);
        let (event_sender, events) = channel();
        let simulation = Rc::new(RefCell::new(Simulation {
            actions: actions.into(),
            discards: discards.into(),
            breakdown,
            broken: false,
            settle_turns: 0,
            stopped: false,
            inbox: inbox.clone(),
            events,
            pipes: Vec::new(),
            pushes: Vec::new(),
            targets: Vec::new(),
            files: HashMap::new(),
            requests: Vec::new(),
            answers: Vec::new(),
        }));
        let left = AtomicUsize::new(panic_after.unwrap_or(usize::MAX));
        let panicked = Arc::new(AtomicBool::new(false));
        let panicking = Arc::clone(&panicked);
        let on_event: OnEvent = Arc::new(move |event| {
            // What follows the panic depends on where it struck, so it is not checked.
            if panicking.load(Relaxed) {
                return;
            }
            event_sender.send(event).unwrap();
            if left.fetch_sub(1, Relaxed) == 1 {
                panicking.store(true, Relaxed);
                // Unlike panic!, this prints nothing on stderr.
                std::panic::resume_unwind(Box::new(InjectedPanic));
            }
        });
        let backend = SimulatedBackend { simulation: Rc::clone(&simulation), panicked };
        (simulation, Driver::new(backend, driver_bell, receiver, inbox, Arc::default(), on_event))
    }

    fn send(&mut self, command: Command) {
        // This fails once the driver has ended.
        let _ = self.inbox.send_batch(vec![command]);
    }

    fn stop(&mut self) {
        // This fails once the driver has ended.
        let _ = self.inbox.send(InboxItem::Stop);
    }

    fn add(&mut self, policy: Policy, pages: u64, kind: SourceKind) {
        let id = SourceId(self.pipes.len() as u64);
        let mut stream = Stream::create(StreamConfig { capacity: pages * 4096, policy }, "test").unwrap();
        let page = Arc::new(ReaderPage::create(doorbell().unwrap().0).unwrap());
        let reader_id = page.take_slot().unwrap();
        let attached = stream.attach(&page, reader_id, Start::Oldest, policy == Policy::Block).unwrap();
        // SAFETY: the reader is neither detached nor moved to another generation.
        let mut reader = unsafe { Reader::new(attached, page, Start::Oldest) }.unwrap();
        reader.set_room_bell(self.inbox.ringer().try_clone().unwrap());
        // The simulation reads nothing from these files. It uses their descriptors only; the driver
        // also asks for their kind and for the number of unread bytes.
        let (pipe, leader): (Option<OwnedFd>, _) = match kind {
            SourceKind::Queue => (None, None),
            SourceKind::Pipe => {
                let (read, write) = nix::unistd::pipe().unwrap();
                std::fs::File::from(write).write_all(&[0; UNREAD]).unwrap();
                (Some(read), None)
            }
            SourceKind::Terminal => {
                let (master, _) =
                    pty::open(Pty { size: WindowSize::default(), echo: false, data: false }).unwrap();
                // This process stands in for the leader. It is not a child, so its status cannot be
                // taken. The simulation decides when it counts as exited.
                let leader = Child::adopt(std::process::id()).unwrap();
                (Some(master.into()), Some((ProcessId(id.0), leader)))
            }
        };
        self.pipes.push(PipeModel {
            fd: pipe.as_ref().map_or(-1, |pipe| pipe.as_raw_fd()),
            buffered: 0,
            hung_up: false,
            given: 0,
            failed: false,
            closed: false,
            finish_at: None,
            leader: leader.is_some().then_some(Leader::Running),
            leader_fd: leader.as_ref().map(|(_, child): &(ProcessId, Child)| child.as_fd().as_raw_fd()),
            untaken: pipe.is_none().then(Untaken::default),
            reader,
            read: 0,
            missing: None,
            end: None,
        });
        self.send(match pipe {
            Some(pipe) => {
                let sources = vec![NewSource { id, pipe, stream, first: None }];
                Command::Add(NewProcess { process: leader, sources, first_writes: None })
            }
            None => Command::Open { source: id, stream: Box::new(stream), first: None },
        });
    }

    fn add_target(&mut self) {
        let id = TargetId(self.targets.len() as u64);
        // The simulation writes nothing to it. Only the descriptor counts.
        let pipe: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        self.targets.push(TargetModel::new(pipe.as_raw_fd()));
        self.send(Command::AddTarget { target: id, pipe });
    }

    fn begin_push(&mut self, targets: &[usize], pages: u64, closes: bool) {
        let (number, known_targets) = (self.pushes.len(), self.targets.len());
        let (push, inlet) = PushModel::new(number, pages, closes, targets, known_targets);
        for target in (0..known_targets).filter(|target| targets.contains(target)) {
            self.targets[target].enqueue(number);
        }
        self.pushes.push(push);
        let targets = targets.iter().map(|target| TargetId(*target as u64)).collect();
        self.send(Command::BeginPush { push: PushId(number as u64), inlet, targets, closes });
    }

    fn fill(&mut self, number: usize, bytes: usize, over: bool) {
        if let Some(push) = self.pushes.get_mut(number).filter(|push| push.is_open()) {
            let bytes = push.fill(bytes, over);
            self.send(Command::Fill { push: PushId(number as u64), bytes, last: over });
        }
    }

    fn cut_off(&mut self, number: usize, position: u64) {
        if let Some(push) = self.pushes.get_mut(number) {
            push.cut_off(position);
        }
        self.send(Command::CutOff { push: PushId(number as u64), position });
    }

    fn shut(&mut self, number: usize) {
        if let Some(target) = self.targets.get_mut(number) {
            target.stopped = true;
        }
        self.send(Command::Shut(TargetId(number as u64)));
    }

    fn pipe(&mut self, number: usize) -> Option<&mut PipeModel> {
        self.pipes.get_mut(number)
    }

    /// Carries out one action of the script, where the state of the simulation allows it.
    fn apply(&mut self, action: Action) {
        match action {
            Action::Add { policy, pages, kind } if self.pipes.len() < PIPES && !self.stopped => {
                self.add(policy, pages, kind);
            }
            Action::AddTarget if self.targets.len() < PIPES && !self.stopped => self.add_target(),
            Action::BeginPush { targets, pages, closes } if self.pushes.len() < PUSHES && !self.stopped => {
                self.begin_push(&targets, pages, closes);
            }
            Action::Add { .. } | Action::AddTarget | Action::BeginPush { .. } => {}
            Action::Write { pipe, bytes } => self.write(pipe, bytes),
            Action::HangUp { pipe } => self.hang_up(pipe),
            Action::Fill { push, bytes, over } => self.fill(push, bytes, over),
            Action::CutOff { push, position } => self.cut_off(push, position),
            Action::Shut { target } => self.shut(target),
            Action::Answer { request, outcome, late } => {
                let waiting = self.requests.iter().filter(|request| request.token != Token::Bell).count();
                if waiting > 0 {
                    let requests = self.requests.iter().enumerate();
                    let mut requests = requests.filter(|(_, request)| request.token != Token::Bell);
                    let (index, _) = requests.nth(request % waiting).unwrap();
                    self.answer(index, outcome, late);
                }
            }
            Action::Consume { pipe: number, bytes } => {
                if let Some(pipe) = self.pipe(number) {
                    pipe.consume(number, bytes);
                }
            }
            Action::Close { pipe: number } | Action::Remove { pipe: number } => {
                if let Some(pipe) = self.pipe(number) {
                    pipe.closed = true;
                }
                let id = SourceId(number as u64);
                self.send(if matches!(action, Action::Close { .. }) {
                    Command::Close(id)
                } else {
                    Command::Remove(id)
                });
            }
            Action::Finish { pipe } if self.pipes.get(pipe).is_some_and(|pipe| pipe.fd < 0) => {
                self.hang_up(pipe);
            }
            Action::Finish { pipe: number } => {
                if let Some(pipe) = self.pipe(number) {
                    let finish_at = pipe.given + UNREAD as u64;
                    pipe.finish_at.get_or_insert(finish_at);
                }
                self.send(Command::Finish(SourceId(number as u64)));
            }
            Action::Ring => self.inbox.ringer().ring(),
            Action::Stop => {
                self.stopped = true;
                self.pipes.iter_mut().for_each(|pipe| pipe.closed = true);
                self.targets.iter_mut().for_each(|target| target.stopped = true);
                self.stop();
            }
        }
    }

    fn write(&mut self, number: usize, bytes: usize) {
        let Some(pipe) = self.pipes.get_mut(number).filter(|pipe| !pipe.hung_up) else { return };
        if pipe.fd >= 0 {
            pipe.buffered += bytes;
        } else if let Some(bytes) = pipe.deliver(number, bytes) {
            self.send(Command::Deliver { source: SourceId(number as u64), delivery: bytes.into() });
        }
    }

    fn hang_up(&mut self, number: usize) {
        let Some(pipe) = self.pipes.get_mut(number).filter(|pipe| !pipe.hung_up) else { return };
        pipe.hung_up = true;
        if pipe.fd < 0 {
            self.send(Command::Finish(SourceId(number as u64)));
        }
    }

    /// Checks the events that the driver has reported.
    pub(super) fn check_events(&mut self) {
        for event in self.events.try_iter() {
            match event {
                Event::Complete { source, produced, dropped, end, .. } => {
                    assert!(dropped <= produced);
                    let end = SourceEnd {
                        produced,
                        error: matches!(end, End::Error(_)),
                        closed: matches!(end, End::Closed),
                    };
                    self.pipes[source.0 as usize].ended(end, self.broken);
                }
                Event::Delivered { source, deliveries, bytes } => {
                    self.pipes[source.0 as usize].taken(deliveries, bytes);
                }
                // `PipeModel::consume` follows a ring that it finds sealed.
                Event::Moved { .. } => {}
                Event::Exited { process, .. } => {
                    let before = self.pipes[process.0 as usize].leader.replace(Leader::Reported);
                    assert!(before != Some(Leader::Reported), "{process:?} exited twice");
                }
                Event::Freed { push, position } => self.pushes[push.0 as usize].freed(position),
                Event::Fed { push, target, delivered, end } => {
                    let (push, number) = (&mut self.pushes[push.0 as usize], target.0 as usize);
                    if push.reaches(number) {
                        self.targets[number].turn_ended(push, number, delivered, &end, self.broken);
                    } else {
                        push.report_missing(number, delivered, &end);
                    }
                }
                Event::PushOver { push } => self.pushes[push.0 as usize].report_over(),
                Event::Shut { target } => self.targets[target.0 as usize].report_shut(self.broken),
                Event::Answered { request, .. } => panic!("{request:?} was not made"),
                Event::Stalled { pipe } => panic!("{pipe:?} cannot stall: no watchdog runs"),
                Event::Ended { .. } => panic!("only the thread around the driver reports its end"),
            }
        }
    }

    /// Brings everything to its end: pushes and pipes end, readers read, requests succeed.
    fn settle(&mut self) {
        self.settle_turns += 1;
        assert!(self.settle_turns < SETTLE_TURNS, "the driver hangs: {:?}", self.requests);
        for number in 0..self.pipes.len() {
            self.hang_up(number);
            self.pipes[number].consume(number, usize::MAX);
        }
        for number in 0..self.pushes.len() {
            // The inlet is smaller, so room must become free again and again.
            let over = self.pushes[number].filled >= PUSHED;
            self.fill(number, PUSHED as usize / 4, over);
        }
        for number in 0..self.targets.len() {
            // A target is shut when all its turns have ended.
            if self.targets[number].is_idle() && !self.targets[number].stopped {
                self.shut(number);
            }
        }
        for index in (0..self.requests.len()).rev() {
            // A driver that has failed has cancelled everything, so only cancelled requests are
            // answered.
            let request = &self.requests[index];
            if request.token != Token::Bell && (!self.broken || request.cancelled) {
                self.answer(index, Outcome::All, (index + self.settle_turns).is_multiple_of(2));
            }
        }
        let busy = self.files.keys().any(|word| Token::from(*word) != Token::Bell);
        let queued = self.pipes.iter().any(|pipe| pipe.untaken.is_some());
        if !busy && !queued && !self.stopped {
            self.stopped = true;
            self.stop();
        }
    }

    /// Checks the driver's events and carries out the next action. The caller answers for the bell
    /// afterwards.
    pub(super) fn run_turn(&mut self) {
        self.check_events();
        match self.actions.pop_front() {
            Some(action) => self.apply(action),
            None => self.settle(),
        }
    }

    /// Returns how the kernel fails in this turn, if it does.
    pub(super) fn next_breakdown(&mut self) -> Option<BreakdownKind> {
        let Breakdown { after, kind } = self.breakdown.as_mut()?;
        if *after > 0 {
            *after -= 1;
            return None;
        }
        let kind = *kind;
        if kind != BreakdownKind::AllTurns {
            self.breakdown = None;
        }
        self.broken = true;
        Some(kind)
    }

    /// Uses the memory of all requests in flight, as the kernel may until it has answered: reads
    /// lent bytes, and writes into spans. First drops all other owners of that memory.
    pub(super) fn use_lent_memory(&mut self) {
        self.pipes.clear();
        self.pushes.iter_mut().for_each(PushModel::release);
        for request in &self.requests {
            request.use_memory();
        }
    }
}
