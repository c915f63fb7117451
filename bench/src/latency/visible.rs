//! The time from the write(2) of a line until it is visible in the ring, beside the time until a
//! waiting read(2) has it in its buffer.
//!
//! The writer itself polls for the line, so no thread has to be woken up for it. *Taken* is the
//! time at which the reading thread had the line, by its own clock: after read(2) for the bare
//! pipe, and for iof the time in the ring's index, at which the line's batch was taken from the
//! kernel. *Visible* is the time at which the writer sees the line, which includes the steps after
//! *taken* and the writer's own polling.

use std::fs::File;
use std::io::{Read, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use iof_shm_ring::{Peek, Reader, ReaderPage, doorbell};
use nix::fcntl::OFlag;
use nix::unistd::pipe2;

use super::{Args, EVERY, LINE, captured, percentiles, print};
use iof_bench::table::Figures;

/// The bytes of ring for each line. This much gives the index room for the times of all lines.
const RING_PER_LINE: u64 = 4096;

/// Measures the times and prints them.
pub fn run(args: &Args) {
    let (mut taken, mut visible): ([Figures; 4], [Figures; 4]) = Default::default();
    for _ in 0..args.rounds {
        let (bare, iof) = (bare(args.lines), iof(args.lines));
        for (figures, bare, iof) in [(&mut taken, bare.0, iof.0), (&mut visible, bare.1, iof.1)] {
            for (figures, figure) in figures.iter_mut().zip([bare[0], iof[0], bare[1], iof[1]]) {
                figures.add(figure);
            }
        }
    }
    print("a line each ms, taken", &taken);
    print("a line each ms, visible", &visible);
}

/// The percentiles of the times until lines are taken, and until they are visible.
type Spent = ([f64; 2], [f64; 2]);

/// The times at which a line was taken and became visible.
struct Seen {
    taken: Duration,
    visible: Duration,
}

/// Writes the lines, each some time after `poll` has returned the previous one.
fn write_lines(lines: u32, mut pipe: File, mut poll: impl FnMut() -> Option<Seen>) -> Spent {
    let spent = (0..lines).map(|_| {
        std::thread::sleep(EVERY);
        let written = now();
        pipe.write_all(&[b'x'; LINE]).unwrap();
        let Seen { taken, visible } = loop {
            match poll() {
                Some(seen) => break seen,
                // On a single processor the reading thread needs this one's time.
                None => std::thread::yield_now(),
            }
        };
        (taken.checked_sub(written).expect("the line was taken before it was written"), visible - written)
    });
    let (taken, visible) = spent.unzip();
    (percentiles(taken), percentiles(visible))
}

fn bare(lines: u32) -> Spent {
    let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
    // The time of the last read, in nanoseconds since 1970. 0: no new read.
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

fn iof(lines: u32) -> Spent {
    let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
    let page = Arc::new(ReaderPage::create(doorbell().unwrap().0).unwrap());
    let capacity = u64::from(lines).next_multiple_of(64) * RING_PER_LINE;
    let (_capture, mut reader) = captured(read, &page, capacity);
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

/// Fills the ring once, so that all its pages are allocated before the measurement.
fn fill(write: &mut File, reader: &mut Reader, capacity: u64) {
    while reader.delivered() < capacity {
        write.write_all(&[b'x'; LINE * 800]).unwrap();
        let mut remaining = LINE * 800;
        while remaining > 0 {
            if reader.peek() == Peek::Bytes {
                let n = reader.bytes().len();
                reader.consume(n);
                remaining -= n;
            }
        }
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}
