//! Simulated stdin: pushes, the pipes that they are written to, and the ranks that read these.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};

use iof_capture::test_utils::SimulatedCapture;
use iof_capture::{Command, Event, PushEnd, PushId, TargetId};
use iof_shm_ring::{Filler, Inlet};

use crate::bytes;
use crate::kernel::{Kernel, send};
use crate::rng::Rng;
use crate::source;

/// Most targets that are open at a time.
const MAX_TARGETS: usize = 5;
/// Most pushes that are not over.
const MAX_PUSHES: usize = 5;
/// The bytes of pushes follow from numbers that no source has.
const FIRST_PUSH: u64 = 1 << 40;

/// The stdin of one rank.
#[derive(Debug)]
struct Target {
    /// The rank's end; `None` once it is closed.
    reader: Option<File>,
    /// The pushes in the order of their turns, each with the bytes that it delivered once that was
    /// reported.
    turns: VecDeque<(usize, Option<u64>)>,
    /// Bytes of the first of them that the rank has read.
    read: u64,
    /// Set if it was asked to be shut.
    stopped: bool,
    /// Set if that was reported.
    shut: bool,
}

/// One push.
#[derive(Debug)]
struct Push {
    inlet: Weak<Inlet>,
    filler: Filler,
    filled: u64,
    over: bool,
    /// Set if the pusher claims more than it has filled in.
    lies: bool,
    /// The targets whose turns have not been reported as ended.
    unreported: BTreeMap<usize, ()>,
    ended: bool,
}

/// All pushes and targets.
#[derive(Debug, Default)]
pub struct Stdins {
    targets: Vec<Target>,
    pushes: Vec<Push>,
}

type Capture = SimulatedCapture<Kernel>;

impl Stdins {
    /// Does something about stdin.
    pub fn act(&mut self, capture: &mut Capture, actor: usize, rng: &mut Rng) {
        match rng.below(32) {
            0..3 => self.add_target(capture, rng),
            3..6 => self.begin(capture, rng),
            6..16 => self.fill(capture, actor, rng),
            16..28 => self.read(actor, rng.size(20_000) as usize),
            28 => self.cut_off(capture, actor, rng),
            29 => self.shut(capture, actor),
            30 if rng.chance(64) => {
                if let Some(target) = self.open_target(actor) {
                    self.targets[target].reader = None;
                }
            }
            _ => self.lie(capture, actor, rng),
        }
    }

    fn open_target(&self, actor: usize) -> Option<usize> {
        let open: Vec<usize> = (0..self.targets.len()).filter(|target| !self.targets[*target].shut).collect();
        open.get(actor.checked_rem(open.len())?).copied()
    }

    fn open_push(&self, actor: usize) -> Option<usize> {
        let open: Vec<usize> = (0..self.pushes.len()).filter(|push| !self.pushes[*push].ended).collect();
        open.get(actor.checked_rem(open.len())?).copied()
    }

    fn add_target(&mut self, capture: &mut Capture, rng: &mut Rng) {
        if self.targets.iter().filter(|target| !target.shut).count() >= MAX_TARGETS {
            return;
        }
        let Ok((reader, writer)) = source::pipe(rng.pick(&[4096, 65536]), false) else { return };
        send(
            capture,
            Command::AddTarget { target: TargetId(self.targets.len() as u64), pipe: writer.into() },
        );
        let reader = Some(reader.into());
        self.targets.push(Target { reader, turns: VecDeque::new(), read: 0, stopped: false, shut: false });
    }

    fn begin(&mut self, capture: &mut Capture, rng: &mut Rng) {
        if self.pushes.iter().filter(|push| !push.ended).count() >= MAX_PUSHES {
            return;
        }
        let Ok(inlet) = Inlet::create(4096 * (1 + rng.below(3)), "sim") else { return };
        let inlet = Arc::new(inlet);
        let file = inlet.as_fd().try_clone_to_owned().expect("a descriptor");
        // SAFETY: this is the only filler, and `freed` gets the capture's positions.
        let filler = unsafe { Filler::open(file) }.expect("an inlet");
        // Some targets may be shut already, or shut before the capture learns of the push.
        let targets: Vec<usize> = (0..self.targets.len())
            .rev()
            .take(2 * MAX_TARGETS)
            .filter(|target| rng.chance(if self.targets[*target].shut { 16 } else { 96 }))
            .collect();
        let number = self.pushes.len();
        for target in &targets {
            self.targets[*target].turns.push_back((number, None));
        }
        let closes = rng.chance(48);
        self.pushes.push(Push {
            inlet: Arc::downgrade(&inlet),
            filler,
            filled: 0,
            over: false,
            lies: false,
            unreported: targets.iter().map(|target| (*target, ())).collect(),
            ended: false,
        });
        let targets = targets.iter().map(|target| TargetId(*target as u64)).collect();
        send(capture, Command::BeginPush { push: PushId(number as u64), inlet, targets, closes });
    }

    fn fill(&mut self, capture: &mut Capture, actor: usize, rng: &mut Rng) {
        let Some(number) = self.open_push(actor).filter(|push| !self.pushes[*push].over) else { return };
        let most = rng.size(16384) as usize;
        self.fill_push(capture, number, most, rng.chance(24));
    }

    fn fill_push(&mut self, capture: &mut Capture, number: usize, most: usize, over: bool) {
        let push = &mut self.pushes[number];
        let room = push.filler.room();
        let len = room.len().min(most);
        bytes::fill(FIRST_PUSH + number as u64, push.filled, &mut room[..len]);
        let filled = push.filler.fill(len) as u64;
        push.filled += filled;
        push.over = over;
        send(capture, Command::Fill { push: PushId(number as u64), bytes: filled, last: over });
    }

    /// Claims bytes that were not filled in.
    fn lie(&mut self, capture: &mut Capture, actor: usize, rng: &mut Rng) {
        if let Some(number) = self.open_push(actor).filter(|push| !self.pushes[*push].over) {
            self.pushes[number].lies = true;
            send(
                capture,
                Command::Fill {
                    push: PushId(number as u64),
                    bytes: rng.word() >> rng.below(60),
                    last: false,
                },
            );
        }
    }

    fn cut_off(&mut self, capture: &mut Capture, actor: usize, rng: &mut Rng) {
        if let Some(number) = self.open_push(actor) {
            let position = rng.below(self.pushes[number].filled + 2);
            send(capture, Command::CutOff { push: PushId(number as u64), position });
        }
    }

    fn shut(&mut self, capture: &mut Capture, actor: usize) {
        if let Some(target) = self.open_target(actor) {
            self.targets[target].stopped = true;
            send(capture, Command::Shut(TargetId(target as u64)));
        }
    }

    /// Lets a rank read up to `most` bytes of its stdin, and checks them. Returns how many.
    fn read_target(&mut self, number: usize, most: usize) -> usize {
        let target = &mut self.targets[number];
        let Some(reader) = &mut target.reader else { return 0 };
        let mut buffer = vec![0; most];
        let n = match reader.read(&mut buffer) {
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => panic!("reading stdin: {error}"),
        };
        let mut rest = &buffer[..n];
        while !rest.is_empty() {
            let (push, delivered) = *target.turns.front().expect("bytes of no push");
            let left = delivered.map_or(rest.len() as u64, |delivered| delivered - target.read);
            if left == 0 {
                target.turns.pop_front();
                target.read = 0;
                continue;
            }
            let (now, later) = rest.split_at(rest.len().min(left as usize));
            let right = bytes::are_of(FIRST_PUSH + push as u64, target.read, now);
            assert!(right || self.pushes[push].lies, "target {number} got wrong bytes of push {push}");
            target.read += now.len() as u64;
            rest = later;
        }
        n
    }

    fn read(&mut self, actor: usize, most: usize) {
        if let Some(target) = actor.checked_rem(self.targets.len()) {
            self.read_target(target, most);
        }
    }

    /// Checks an event of the capture.
    pub fn handle(&mut self, event: Event, faults: bool) {
        match event {
            Event::Freed { push, position } => {
                let push = &mut self.pushes[push.0 as usize];
                assert!(!push.ended, "room in a push that is over");
                let known = push.filler.freed(position);
                assert!(known || push.lies, "room for bytes that were not filled in");
                // Whatever is free may change at once.
                push.filler.room().iter_mut().for_each(|byte| *byte = !*byte);
            }
            Event::Fed { push, target, delivered, end } => {
                self.fed(push.0 as usize, target.0 as usize, delivered, &end, faults);
            }
            Event::PushOver { push } => {
                let push = &mut self.pushes[push.0 as usize];
                assert!(!push.ended && push.unreported.is_empty(), "a push was over too early");
                assert_eq!(push.inlet.strong_count(), 0, "an inlet is kept after its push");
                push.ended = true;
            }
            Event::Shut { target } => {
                let target = &mut self.targets[target.0 as usize];
                assert!(!target.shut, "a target was shut twice");
                // Pushes that the capture has not learned of yet are reported later.
                target.shut = true;
            }
            other => panic!("unexpected event: {other:?}"),
        }
    }

    fn fed(&mut self, number: usize, target_number: usize, delivered: u64, end: &PushEnd, faults: bool) {
        let push = &mut self.pushes[number];
        assert!(push.unreported.remove(&target_number).is_some(), "a turn ended twice");
        let target = &mut self.targets[target_number];
        let is_first = target.turns.iter().find(|(_, delivered)| delivered.is_none());
        assert_eq!(is_first.map(|turn| turn.0), Some(number), "turns end out of order");
        let read = if target.turns[0].0 == number { target.read } else { 0 };
        assert!(read <= delivered, "target {target_number} has read more than was delivered");
        assert!(delivered <= push.filled || push.lies, "more was delivered than was filled in");
        match end {
            PushEnd::Complete => assert!(push.over && (delivered == push.filled || push.lies)),
            PushEnd::Closed => {
                let closed = target.reader.is_none() || target.stopped || delivered == 0;
                assert!(closed, "target {target_number} was closed for no reason");
            }
            PushEnd::CutOff => {}
            PushEnd::Stopped => assert!(target.stopped),
            PushEnd::Error(error) => assert!(faults, "{error}"),
        }
        for turn in target.turns.iter_mut().filter(|turn| turn.0 == number) {
            turn.1 = Some(delivered);
        }
    }

    /// Lets everything end: pushes are filled up, ranks read, and targets are shut. Returns whether
    /// everything has ended.
    pub fn settle(&mut self, capture: &mut Capture) -> bool {
        for number in 0..self.pushes.len() {
            let push = &self.pushes[number];
            if !push.ended && !push.over {
                // The inlet is smaller, so room must become free again and again.
                let over = push.filled > 20_000 || push.lies;
                self.fill_push(capture, number, 8192, over);
            }
        }
        for number in 0..self.targets.len() {
            while self.read_target(number, 65536) > 0 {}
            let target = &self.targets[number];
            let idle = target.turns.iter().all(|(_, delivered)| delivered.is_some());
            if idle && !target.stopped && !target.shut {
                self.targets[number].stopped = true;
                send(capture, Command::Shut(TargetId(number as u64)));
            }
        }
        let done = self.pushes.iter().all(|push| push.ended) && self.targets.iter().all(|target| target.shut);
        if done {
            self.check_end();
        }
        done
    }

    /// Checks that each rank that has not closed its stdin has read what was delivered.
    fn check_end(&mut self) {
        for number in 0..self.targets.len() {
            while self.read_target(number, 65536) > 0 {}
            let target = &self.targets[number];
            let mut turns = target.turns.iter();
            let first = turns.next().and_then(|turn| turn.1).unwrap_or(0);
            let unread = first - target.read + turns.filter_map(|turn| turn.1).sum::<u64>();
            assert!(unread == 0 || target.reader.is_none(), "target {number} lacks {unread} bytes");
        }
    }
}
