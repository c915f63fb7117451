//! The test is the writer; the readers are processes, some of which are killed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::yield_now;

use iof_shm_ring::{
    Attached, Bell, Policy, ReaderId, ReaderPage, Ringer, Start, Stream, StreamConfig, bell, doorbell, notify,
};

use crate::CAPACITY;
use crate::accounting::{Accounting, Dice, Next, pattern};
use crate::link::{Link, Message, Process, Received, sleep, start};

/// Number of slots that a tool may use.
const SLOTS: u32 = 64;
/// The first word of a reader's message.
const FOLLOW: u64 = 1;
const DONE: u64 = 2;

/// Runs a reader to its end, in a process of its own.
pub fn process() {
    let link = Link::inherited();
    let Some(Message { words, fds }) = link.wait() else { return };
    let [id, first, dropped, now, began, dice] = words[..] else { panic!("{words:?}") };
    let mut fds = fds.into_iter();
    let mut next = || fds.next().unwrap();
    let (page, ring, bell): (_, OwnedFd, _) =
        (Arc::new(ReaderPage::open(next()).unwrap()), next(), Bell::from(next()));
    let start = if now == 1 { Start::Now } else { Start::Oldest };
    let mut accounting = Accounting::new(ring, [id, first, dropped], &page, start, began);
    if let Some(room) = fds.next() {
        accounting.reader.set_room_bell(Ringer::from(room));
    }
    let mut dice = Dice(dice);
    loop {
        match accounting.step(&mut dice) {
            Next::Step => {}
            Next::Sleep => {
                page.take_ready(SLOTS, |_| {});
                // After taking the ready bits, the reader peeks once more before it sleeps.
                if let Next::Sleep = accounting.step(&mut dice)
                    && page.arm(SLOTS)
                {
                    sleep(&[bell.as_fd(), link.as_fd()]);
                    page.disarm();
                    bell.silence();
                    if let Received::Gone = link.try_receive() {
                        return;
                    }
                }
            }
            Next::Follow => {
                link.send(&[FOLLOW, u32::from(accounting.reader.id()).into()], &[]);
                let Some(Message { words, mut fds }) = link.wait() else { return };
                accounting.follow(fds.remove(0), words.try_into().unwrap());
            }
            Next::Ended => return link.send(&[DONE, accounting.delivered, accounting.lost], &[]),
            Next::Gone => panic!("the writer is not gone"),
        }
    }
}

/// The writer's state of a reader.
struct Tool {
    process: Process,
    link: Link,
    page: Arc<ReaderPage>,
    id: ReaderId,
    began: u64,
    /// The reader is killed when it has consumed up to the first position, or when the stream has
    /// reached the second.
    doom: (u64, u64),
    /// Delivered and lost bytes, once the reader has reached the end.
    done: Option<(u64, u64)>,
}

struct Engine {
    stream: Stream,
    policy: Policy,
    room: (Ringer, Bell),
    tools: Vec<Tool>,
    victims: Vec<Tool>,
}

/// Runs a stream under `policy` with two surviving readers and `kills` readers that are killed.
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
    fn attach(&mut self, start_kind: Start, may_block: bool, dice: &mut Dice) -> Tool {
        let (ringer, bell) = doorbell().unwrap();
        let page = Arc::new(ReaderPage::create(ringer).unwrap());
        let id = page.take_slot().unwrap();
        let Attached { ring, start: first, dropped, .. } =
            self.stream.attach(&page, id, start_kind, may_block).unwrap();
        let now = start_kind == Start::Now;
        let began = if now { self.stream.stats().produced } else { 0 };
        let (process, link) = start("reader");
        let mut fds = vec![page.as_fd().unwrap(), ring.as_fd().unwrap(), bell.as_fd()];
        if may_block {
            fds.push(self.room.0.as_fd());
        }
        link.send(&[u32::from(id).into(), first, dropped, u64::from(now), began, dice.next()], &fds);
        // Some are killed before they have begun, and all in the end, even if they have stopped.
        let life = if dice.below(4) == 0 { 0 } else { 1 + dice.below(4 * CAPACITY) };
        let doom = (first + life, first + life + dice.below(1000) * CAPACITY);
        Tool { process, link, page, id, began, doom, done: None }
    }

    /// Pushes some bytes, and sleeps if the source has to wait.
    fn push(&mut self, dice: &mut Dice) {
        let n = 1 + dice.below(CAPACITY / 3) as usize;
        let taken = self.stream.push(pattern(self.stream.stats().produced, n), 1);
        notify([&self.stream]);
        // A victim that is in the way may be due to be killed, which needs no sleep.
        if taken < n && self.victims.iter().all(|victim| !self.is_due_to_die(victim)) {
            assert_eq!(self.policy, Policy::Block);
            let tools = self.tools.iter().chain(&self.victims);
            let links = tools.map(|tool| tool.link.as_fd());

            let fds: Vec<BorrowedFd<'_>> = links.chain([self.room.1.as_fd()]).collect();
            sleep(&fds);
            self.room.1.silence();
        }
    }

    /// Answers the readers' requests, and records their final counters.
    fn serve(&mut self) {
        let tools = self.tools.iter_mut().chain(&mut self.victims);
        for tool in tools.filter(|tool| tool.done.is_none()) {
            let message = match tool.link.try_receive() {
                Received::Message(message) => message,
                Received::Nothing => continue,
                Received::Gone => panic!("a reader has failed"),
            };
            match message.words[..] {
                [FOLLOW, old] => {
                    let (old, new) = (ReaderId::from(old as u32), tool.page.take_slot().unwrap());
                    let given = self.stream.follow(&tool.page, old, new).unwrap();
                    tool.page.return_slot(old);
                    tool.id = new;
                    let words = [u32::from(new).into(), given.start, given.dropped];
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
        let consumed = tail - self.stream.lag(&victim.page, victim.id).unwrap();
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
        assert!(self.stream.detach(&victim.page, victim.id));
    }

    /// Completes the stream and checks the counters of the surviving readers.
    fn end(&mut self) {
        self.stream.complete();
        notify([&self.stream]);
        while self.tools.iter().any(|tool| tool.done.is_none()) {
            let waiting = self.tools.iter().filter(|tool| tool.done.is_none());
            let fds: Vec<BorrowedFd<'_>> = waiting.map(|tool| tool.link.as_fd()).collect();
            sleep(&fds);
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
