//! The test is the reader; the writer is a process that is killed.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use iof_shm_ring::{
    Bell, Policy, ReaderId, ReaderPage, Ringer, Start, Stream, StreamConfig, bell, doorbell, notify,
};
use memmap2::MmapRaw;
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::accounting::{Accounting, Dice, Next, pattern};
use crate::link::{Link, Message, Received, sleep, start};
use crate::{CAPACITY, POLICIES};

const SLOTS: u32 = 64;
const READERS: usize = 2;

/// The writer's last report of what it had published: its generation and the number of bytes
/// produced.
struct Report(MmapRaw);

impl Report {
    fn word(&self) -> &AtomicU64 {
        // SAFETY: the map is a page, and both sides use this word only as an atomic.
        unsafe { &*self.0.as_ptr().cast::<AtomicU64>() }
    }

    fn store(&self, stream: &Stream) {
        let stats = stream.stats();
        self.word().store(stats.generation << 40 | stats.produced, Relaxed);
    }

    fn load(&self) -> (u64, u64) {
        let word = self.word().load(Relaxed);
        (word >> 40, word & ((1 << 40) - 1))
    }
}

/// Writes without end, in a process of its own.
pub fn process() {
    let link = Link::inherited();
    let Some(Message { words, fds }) = link.wait() else { return };
    let [policy, dice] = words[..] else { panic!("{words:?}") };
    let (policy, mut dice, report) =
        (POLICIES[policy as usize], Dice(dice), Report(MmapRaw::map_raw(&fds[0]).unwrap()));
    let mut stream = Stream::create(StreamConfig { capacity: CAPACITY, policy }, "kill").unwrap();
    let ((ringer, bell), (room_ringer, room)) = (doorbell().unwrap(), bell().unwrap());
    let page = Arc::new(ReaderPage::create(ringer).unwrap());
    let mut words = Vec::new();
    let mut ring = None;
    for reader in 0..READERS {
        let id = page.take_slot().unwrap();
        let attached = stream.attach(&page, id, Start::Oldest, reader == 0).unwrap();
        words.extend([u32::from(id).into(), attached.start, attached.dropped]);
        ring = Some(attached.ring);
    }
    let fds =
        [page.as_fd().unwrap(), ring.as_ref().unwrap().as_fd().unwrap(), bell.as_fd(), room_ringer.as_fd()];
    link.send(&words, &fds);
    drop(ring);
    loop {
        if dice.below(64) == 0 {
            stream.reconfigure(StreamConfig { capacity: CAPACITY << dice.below(2), policy }).unwrap();
        }
        let n = 1 + dice.below(CAPACITY / 8) as usize;
        let taken = stream.push(pattern(stream.stats().produced, n), 1);
        report.store(&stream);
        notify([&stream]);
        if taken < n {
            sleep(&[room.as_fd(), link.as_fd()]);
            room.silence();
        }
        match link.try_receive() {
            Received::Nothing => {}
            Received::Gone => return,
            Received::Message(message) => {
                let (old, new) = (ReaderId::from(message.words[0] as u32), page.take_slot().unwrap());
                let given = stream.follow(&page, old, new).unwrap();
                page.return_slot(old);
                let words = [u32::from(new).into(), given.start, given.dropped];
                link.send(&words, &[given.ring.as_fd().unwrap()]);
            }
        }
    }
}

/// Runs a writer under `policy`, kills it, and checks what its readers find afterwards.
pub fn killed(policy: Policy, dice: &mut Dice) {
    let (process, link) = start("writer");
    let file = memfd_create(c"report", MFdFlags::MFD_CLOEXEC).unwrap();
    nix::unistd::ftruncate(&file, 4096).unwrap();
    let report = Report(MmapRaw::map_raw(&file).unwrap());
    let number = POLICIES.iter().position(|p| *p == policy).unwrap();
    link.send(&[number as u64, dice.next()], &[file.as_fd()]);
    if dice.below(16) == 0 {
        // Killed before it has any reader.
        return process.kill();
    }
    let Message { words, fds } = link.wait().unwrap();
    let [page, ring, bell, room] = fds.try_into().unwrap();
    let (page, bell) = (Arc::new(ReaderPage::open(page).unwrap()), Bell::from(bell));
    let mut readers: Vec<Accounting> = words
        .as_chunks::<3>()
        .0
        .iter()
        .map(|given| Accounting::new(ring.try_clone().unwrap(), *given, &page, Start::Oldest, 0))
        .collect();
    readers[0].reader.set_room_bell(Ringer::from(room));

    let doom = dice.below(8 * CAPACITY);
    // The second reader peeks rarely, so that it is in the way.
    let lazy = 2 + dice.below(20);
    while readers[0].place() < doom {
        if dice.below(lazy) == 0 {
            match readers[1].step(dice) {
                Next::Follow => follow(&mut readers[1], &link),
                Next::Ended | Next::Gone => panic!("the writer is alive"),
                Next::Step | Next::Sleep => {}
            }
        }
        match readers[0].step(dice) {
            Next::Step => {}
            Next::Follow => follow(&mut readers[0], &link),
            Next::Sleep => {
                page.take_ready(SLOTS, |_| {});
                if let Next::Sleep = readers[0].step(dice)
                    && page.arm(SLOTS)
                {
                    sleep(&[bell.as_fd()]);
                    page.disarm();
                    bell.silence();
                }
            }
            Next::Ended | Next::Gone => panic!("the writer is alive"),
        }
    }
    process.kill();

    let (generation, produced) = report.load();
    for (i, accounting) in readers.iter_mut().enumerate() {
        accounting.reader.set_writer_gone();
        for step in 0.. {
            assert!(step < 100_000, "the reader never reaches the end");
            match accounting.step(dice) {
                Next::Step => {}
                Next::Gone => break,
                Next::Sleep | Next::Follow | Next::Ended => {
                    panic!("the writer is gone and did not complete the stream")
                }
            }
        }
        if accounting.reader.ring().generation() == generation {
            assert!(accounting.place() >= produced, "a published byte is missing");
        }
        if i == 0 && policy == Policy::Block {
            assert_eq!(accounting.lost, 0);
        }
    }
}

fn follow(accounting: &mut Accounting, link: &Link) {
    link.send(&[u32::from(accounting.reader.id()).into()], &[]);
    let Message { words, mut fds } = link.wait().unwrap();
    accounting.follow(fds.remove(0), words.try_into().unwrap());
}
