//! The test is the writer; readers are processes, some of which are killed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::yield_now;

use iof_shm_ring::{
    Attached, Bell, Policy, ReaderPage, Ringer, Start, Stream, StreamConfig, bell, doorbell, notify,
};

use crate::CAPACITY;
use crate::accounting::{Accounting, Dice, Next, pattern};
use crate::link::{Heard, Link, Message, Process, sleep, start};

/// Slots that a tool's reader page may use.
const SLOTS: u32 = 64;
/// What a reader says first in a message.
const FOLLOW: u64 = 1;
const DONE: u64 = 2;

/// A reader to its end, in a process of its own.
pub fn process() {
    let link = Link::inherited();
    let Some(Message { words, fds }) = link.wait() else { return };
    let [slot, at, dropped, now, began, dice] = words[..] else { panic!("{words:?}") };
    let mut fds = fds.into_iter();
    let mut next = || fds.next().unwrap();
    let (page, ring, bell): (_, OwnedFd, _) =
        (Arc::new(ReaderPage::open(next()).unwrap()), next(), Bell::from(next()));
    let start = if now == 1 { Start::Now } else { Start::Oldest };
    let mut accounting = Accounting::new(ring, [slot, at, dropped], &page, start, began);
    if let Some(room) = fds.next() {
        accounting.reader.set_room_bell(Ringer::from(room));
    }
    let mut dice = Dice(dice);
    loop {
        match accounting.step(&mut dice) {
            Next::Step => {}
            Next::Sleep => {
                page.take_ready(SLOTS, |_| {});
                // Whoever took the ready bits looks once more before it sleeps.
                if let Next::Sleep = accounting.step(&mut dice)
                    && page.arm(SLOTS)
                {
                    sleep(&[bell.as_fd(), link.as_fd()]);
                    page.disarm();
                    bell.silence();
                    if let Heard::Gone = link.hear() {
                        return;
                    }
                }
            }
            Next::Follow => {
                link.send(&[FOLLOW, u64::from(accounting.reader.slot())], &[]);
                let Some(Message { words, mut fds }) = link.wait() else { return };
                accounting.follow(fds.remove(0), words.try_into().unwrap());
            }
            Next::Ended => return link.send(&[DONE, accounting.delivered, accounting.lost], &[]),
            Next::Gone => panic!("nobody said that the writer is gone"),
        }
    }
}

/// A reader as the writer knows it.
struct Tool {
    process: Process,
    link: Link,
    page: Arc<ReaderPage>,
    slot: u32,
    began: u64,
    /// It is killed when it has consumed up to here, or the stream has come this much further.
    doom: (u64, u64),
    /// Delivered and lost, when it has come to the end.
    done: Option<(u64, u64)>,
}

struct Engine {
    stream: Stream,
    policy: Policy,
    room: (Ringer, Bell),
    tools: Vec<Tool>,
    victims: Vec<Tool>,
}

/// A stream under `policy`, two readers that live, and so many that do not.
pub fn killed(policy: Policy, kills: u32, dice: &mut Dice) {
    let stream = Stream::create(StreamConfig { capacity: CAPACITY, policy }, "kill").unwrap();
    let mut engine = Engine { stream, policy, room: bell().unwrap(), tools: Vec::new(), victims: Vec::new() };
    let first = engine.attach(Start::Oldest, true, dice);
    engine.tools.push(first);
    engine.push(dice);
    let second = engine.attach(Start::Now, false, dice);
    engine.tools.push(second);
    let mut killed = 0;
    while killed < kills {
        engine.push(dice);
        engine.serve();
        killed += engine.kill_the_doomed();
        while engine.victims.len() < 4 {
            let (start, may_block) =
                if dice.below(2) == 0 { (Start::Now, true) } else { (Start::Oldest, false) };
            let victim = engine.attach(start, may_block, dice);
            engine.victims.push(victim);
        }
        yield_now();
    }
    for victim in std::mem::take(&mut engine.victims) {
        engine.kill(victim);
    }
    engine.end();
}

impl Engine {
    fn attach(&mut self, start_at: Start, may_block: bool, dice: &mut Dice) -> Tool {
        let (ringer, bell) = doorbell().unwrap();
        let page = Arc::new(ReaderPage::create(ringer).unwrap());
        let slot = page.take_slot().unwrap();
        let Attached { ring, start: at, dropped, .. } =
            self.stream.attach(&page, slot, start_at, may_block).unwrap();
        let now = start_at == Start::Now;
        let began = if now { self.stream.stats().produced } else { 0 };
        let (process, link) = start("reader");
        let mut fds = vec![page.as_fd().unwrap(), ring.as_fd().unwrap(), bell.as_fd()];
        if may_block {
            fds.push(self.room.0.as_fd());
        }
        link.send(&[u64::from(slot), at, dropped, u64::from(now), began, dice.next()], &fds);
        // Some die before they have begun, and all in the end, though they may have stopped.
        let life = if dice.below(4) == 0 { 0 } else { 1 + dice.below(4 * CAPACITY) };
        let doom = (at + life, at + life + dice.below(1000) * CAPACITY);
        Tool { process, link, page, slot, began, doom, done: None }
    }

    /// Pushes some, and sleeps if the source is to wait.
    fn push(&mut self, dice: &mut Dice) {
        let n = 1 + dice.below(CAPACITY / 3) as usize;
        let taken = self.stream.push(pattern(self.stream.stats().produced, n), 1);
        notify([&self.stream]);
        // A victim that is in the way may be doomed as well, so there is something to do.
        if taken < n && self.victims.iter().all(|victim| !self.is_due_to_die(victim)) {
            assert_eq!(self.policy, Policy::Block);
            let tools = self.tools.iter().chain(&self.victims);
            let links = tools.map(|tool| tool.link.as_fd());
            let on: Vec<BorrowedFd<'_>> = links.chain([self.room.1.as_fd()]).collect();
            sleep(&on);
            self.room.1.silence();
        }
    }

    /// Answers what readers ask, and hears what they say at their end.
    fn serve(&mut self) {
        let tools = self.tools.iter_mut().chain(&mut self.victims);
        for tool in tools.filter(|tool| tool.done.is_none()) {
            let message = match tool.link.hear() {
                Heard::Message(message) => message,
                Heard::Nothing => continue,
                Heard::Gone => panic!("a reader has failed"),
            };
            match message.words[..] {
                [FOLLOW, old] => {
                    let new = tool.page.take_slot().unwrap();
                    let given = self.stream.follow(&tool.page, old as u32, new).unwrap();
                    tool.page.return_slot(old as u32);
                    tool.slot = new;
                    let words = [u64::from(new), given.start, given.dropped];
                    tool.link.send(&words, &[given.ring.as_fd().unwrap()]);
                }
                [DONE, delivered, lost] => tool.done = Some((delivered, lost)),
                ref other => panic!("{other:?}"),
            }
        }
    }

    fn is_due_to_die(&self, victim: &Tool) -> bool {
        let stats = self.stream.stats();
        let tail = stats.produced - stats.dropped;
        let consumed = tail - self.stream.lag(&victim.page, victim.slot).unwrap();
        consumed >= victim.doom.0 || tail >= victim.doom.1
    }

    fn kill_the_doomed(&mut self) -> u32 {
        let (doomed, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.victims).into_iter().partition(|victim| self.is_due_to_die(victim));
        self.victims = others;
        let killed = doomed.len();
        for victim in doomed {
            self.kill(victim);
        }
        killed as u32
    }

    fn kill(&mut self, victim: Tool) {
        victim.process.kill();
        assert!(self.stream.detach(&victim.page, victim.slot));
    }

    /// Completes the stream and checks the books of those who lived.
    fn end(&mut self) {
        self.stream.complete();
        notify([&self.stream]);
        while self.tools.iter().any(|tool| tool.done.is_none()) {
            let waiting = self.tools.iter().filter(|tool| tool.done.is_none());
            let on: Vec<BorrowedFd<'_>> = waiting.map(|tool| tool.link.as_fd()).collect();
            sleep(&on);
            self.serve();
        }
        let produced = self.stream.stats().produced;
        for (i, tool) in std::mem::take(&mut self.tools).into_iter().enumerate() {
            let (delivered, lost) = tool.done.unwrap();
            assert_eq!(delivered + lost, produced - tool.began, "delivered + lost == produced");
            if i == 0 && self.policy == Policy::Block {
                assert_eq!(lost, 0);
            }
            assert!(delivered > 0);
            tool.process.join();
        }
    }
}
