//! How long a line takes from its write(2) until it can be had, be it by nobody: until it is in the ring, beside until a
//! read(2) that waits for it has it in its buffer.
//!
//! The writer itself looks, time and again, so that nobody has to be woken for it. *Taken* is when the reading thread
//! had the line, by its own clock: right behind read(2), and, as the ring's index has it, when the batch of which it is
//! part was taken from the kernel. *Visible* is when the writer sees it: what follows upon the one or the other is in
//! it, and the writer's own part as well.

use std::fs::File;
use std::io::{Read, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use iof_shm_ring::{Area, Peek, Reader, doorbell};
use nix::fcntl::OFlag;
use nix::unistd::pipe2;

use super::{Args, EVERY, LINE, captured, percentiles, print};
use crate::table::Figures;

/// Bytes of ring for each line, so that its index has room for all their times.
const RING_PER_LINE: u64 = 4096;

/// Measures and prints what it saw.
pub fn run(args: &Args) {
    let (mut taken, mut visible): ([Figures; 4], [Figures; 4]) = Default::default();
    for _ in 0..args.rounds {
        let (bare, ours) = (bare(args.lines), ours(args.lines));
        for (figures, bare, ours) in [(&mut taken, bare.0, ours.0), (&mut visible, bare.1, ours.1)] {
            for (figures, figure) in figures.iter_mut().zip([bare[0], ours[0], bare[1], ours[1]]) {
                figures.add(figure);
            }
        }
    }
    print("a line each ms, taken", &taken);
    print("a line each ms, visible", &visible);
}

/// Percentiles of the times until lines are taken, and until they are visible.
type Spent = ([f64; 2], [f64; 2]);

/// When a line was taken, and when it was visible.
struct Seen {
    taken: Duration,
    visible: Duration,
}

/// Writes the lines, each a while after `look` saw the one before.
fn write_lines(lines: u32, mut pipe: File, mut look: impl FnMut() -> Option<Seen>) -> Spent {
    let spent = (0..lines).map(|_| {
        std::thread::sleep(EVERY);
        let written = now();
        pipe.write_all(&[b'x'; LINE]).unwrap();
        let Seen { taken, visible } = loop {
            match look() {
                Some(seen) => break seen,
                // On one processor nobody else would get on.
                None => std::thread::yield_now(),
            }
        };
        (taken.checked_sub(written).expect("it was taken before it was written"), visible - written)
    });
    let (taken, visible) = spent.unzip();
    (percentiles(taken), percentiles(visible))
}

fn bare(lines: u32) -> Spent {
    let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
    // Nanoseconds since 1970; 0 while there is none.
    let taken = Arc::new(AtomicU64::new(0));
    let tell = Arc::clone(&taken);
    let reading = std::thread::spawn(move || {
        let mut pipe = File::from(read);
        while pipe.read(&mut [0; LINE]).unwrap() > 0 {
            tell.store(now().as_nanos().try_into().unwrap(), Ordering::Release);
        }
    });
    let spent = write_lines(lines, write.into(), || match taken.swap(0, Ordering::Acquire) {
        0 => None,
        taken => Some(Seen { visible: now(), taken: Duration::from_nanos(taken) }),
    });
    reading.join().unwrap();
    spent
}

fn ours(lines: u32) -> Spent {
    let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
    let area = Arc::new(Area::create(doorbell().unwrap().0).unwrap());
    let capacity = u64::from(lines).next_multiple_of(64) * RING_PER_LINE;
    let (_capture, mut reader) = captured(read, &area, capacity);
    let mut write = File::from(write);
    fill(&mut write, &mut reader, capacity);
    write_lines(lines, write, || match reader.peek() {
        Peek::Bytes => {
            let visible = now();
            let taken = Duration::from_nanos(reader.time().expect("the index has room"));
            reader.consume(LINE);
            Some(Seen { taken, visible })
        }
        _ => None,
    })
}

/// Once around, so that every page of the ring is there: its first touch is another question.
fn fill(write: &mut File, reader: &mut Reader, capacity: u64) {
    while reader.delivered() < capacity {
        write.write_all(&[b'x'; LINE * 800]).unwrap();
        let mut left = LINE * 800;
        while left > 0 {
            if reader.peek() == Peek::Bytes {
                let n = reader.bytes().len();
                reader.consume(n);
                left -= n;
            }
        }
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}
