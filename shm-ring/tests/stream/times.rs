//! Every byte has the time at which it was read: exactly as long as its reader keeps up, and never
//! a later one.

use iof_shm_ring::{Peek, Policy, Reader, Start, Stream, StreamConfig};
use proptest::prelude::*;

use crate::tool::{Tool, bytes, stream};

const MICRO: u64 = 1000;
const MILLI: u64 = 1000 * MICRO;
/// When the first read of a test was.
const BEGIN: u64 = 1_700_000_000_000 * MILLI;
/// Reads less than this apart may share one time.
const GRAIN: u64 = 100 * MICRO;
/// As many reads as a reader may be behind, at least, and still find the time of each.
const RECENT: usize = 112;

/// What is borrowed now, all of which is consumed: from which byte of the source on it was when.
fn times(reader: &mut Reader) -> Vec<(u64, u64)> {
    let mut times = Vec::new();
    assert_eq!(reader.peek(), Peek::Bytes);
    reader.times(&mut times);
    assert_eq!(times.first().map(|(_, time)| *time), reader.time());
    reader.consume(usize::MAX);
    times
}

#[test]
fn a_reader_that_keeps_up_finds_the_time_of_every_read_however_few_bytes_they_bring() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    for i in 0..5000 {
        let (at, time) = (reader.produced(), BEGIN + i * MILLI);
        stream.push(b"x\n", time);
        assert_eq!(times(&mut reader), [(at, time)]);
    }
}

#[test]
fn so_does_one_that_is_some_reads_behind() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    for round in 0..50 {
        let at = reader.produced();
        let reads: Vec<_> =
            (0..RECENT as u64).map(|i| (at + i * 80, BEGIN + (round * 1000 + i) * GRAIN)).collect();
        for (_, time) in &reads {
            stream.push(&bytes(80), *time);
        }
        let mut found = times(&mut reader);
        if found.len() < reads.len() {
            // The seam of the ring or a claim may have cut what is borrowed.
            found.extend(times(&mut reader));
        }
        assert_eq!(found, reads);
    }
}

#[test]
fn reads_in_a_burst_have_times_that_are_hardly_older() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    for i in 0..20_000 {
        let time = BEGIN + i * 7 * MICRO;
        stream.push(b"line\n", time);
        let found = times(&mut reader)[0].1;
        assert!(found <= time && time - found < GRAIN, "{found} for {time}");
    }
}

#[test]
fn a_clock_that_is_set_back_does_not_stop_time() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    for i in 0..2000 {
        let time = BEGIN - i * MILLI;
        stream.push(b"line\n", time);
        assert_eq!(times(&mut reader)[0].1, time);
    }
}

#[test]
fn another_generation_tells_nothing_of_the_times_of_the_one_before() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    for generation in 1..20 {
        for i in 0..300 {
            let time = BEGIN + (generation * 1000 + i) * MILLI;
            stream.push(b"line\n", time);
            if reader.peek() == Peek::Sealed {
                tool.follow(&mut stream, &mut reader);
            }
            assert_eq!(times(&mut reader)[0].1, time);
        }
        let capacity = stream.stats().cached.max(4096) + generation % 2 * (1 << 20);
        stream.reconfigure(StreamConfig { capacity, policy: Policy::DropNewest }).unwrap();
    }
}

#[test]
fn a_late_reader_finds_times_that_are_coarser_where_they_are_old() {
    let (mut stream, tool) = (stream(Policy::DropOldest), Tool::new());
    let reads = 100_000;
    let time_of = |position: u64| BEGIN + position / 80 * MILLI;
    for i in 0..reads {
        stream.push(&bytes(80), time_of(i * 80));
    }
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    while !matches!(reader.peek(), Peek::Bytes) {}
    let (position, capacity) = (reader.position(), reader.ring().capacity());
    let found = times(&mut reader);
    assert!(found[0].0 == position && found.is_sorted());
    for (i, (offset, time)) in found.iter().enumerate() {
        let next = found.get(i + 1).map_or(reader.produced(), |(offset, _)| *offset);
        assert!(*time <= time_of(*offset), "a time of later");
        // Half of the index keeps its distance, and an index has 32 entries at least.
        assert!(next - offset <= capacity / 16 + 80, "one time for {} bytes", next - offset);
    }
    let newest: Vec<_> = found.iter().rev().take(RECENT).map(|(offset, time)| (*offset, *time)).collect();
    let wanted: Vec<_> = (0..reads).rev().take(RECENT).map(|i| (i * 80, time_of(i * 80))).collect();
    assert_eq!(newest, wanted);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A read of so many bytes, so long after the one before, in nanoseconds.
    Push(usize, u64),
    /// A loss of so many bytes.
    Drop(u64),
    /// The reader looks and consumes so many.
    Read(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let pause = prop_oneof![0..2 * GRAIN, Just(0), Just(3 * MILLI), Just(3_600_000 * MILLI)];
    prop_oneof![
        8 => (1usize..200, pause).prop_map(|(n, pause)| Step::Push(n, pause)),
        1 => (1u64..100).prop_map(Step::Drop),
        2 => prop_oneof![1usize..500, Just(usize::MAX)].prop_map(Step::Read),
    ]
}

/// All reads, by the positions where their bytes begin.
#[derive(Default)]
struct Reads(Vec<(u64, u64)>);

impl Reads {
    /// When the byte at `position` was read, and how many reads came behind it.
    fn of(&self, position: u64) -> (u64, usize) {
        let behind = self.0.partition_point(|(offset, _)| *offset <= position);
        (self.0[behind - 1].1, self.0.len() - behind)
    }

    /// `time` is what is said of the byte at `position`.
    fn check(&self, position: u64, time: u64) {
        let (read, behind) = self.of(position);
        assert!(time <= read, "at {position} a time {} ns later than the read", time - read);
        if behind < RECENT {
            assert!(read - time < GRAIN, "at {position}, {behind} reads behind, {} ns old", read - time);
        }
    }

    fn look(&self, reader: &mut Reader) -> bool {
        if reader.peek() != Peek::Bytes {
            return false;
        }
        let (position, dropped) = (reader.position(), reader.produced() - reader.position());
        self.check(position, reader.time().unwrap());
        let mut times = Vec::new();
        reader.times(&mut times);
        assert!(times.is_sorted() && times.is_sorted_by_key(|(_, time)| *time), "{times:?}");
        assert_eq!(times[0], (reader.produced(), reader.time().unwrap()));
        for at in position..position + reader.bytes().len() as u64 {
            let marks = times.partition_point(|(offset, _)| *offset <= at + dropped);
            self.check(at, times[marks - 1].1);
        }
        true
    }
}

fn run(mut stream: Stream, steps: &[Step]) {
    let tool = Tool::new();
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    let (mut reads, mut time) = (Reads::default(), BEGIN);
    for step in steps {
        match *step {
            Step::Push(n, pause) => {
                time += pause;
                let stats = stream.stats();
                reads.0.push((stats.produced - stats.dropped, time));
                stream.push(&bytes(n), time);
            }
            Step::Drop(n) => stream.discard(n, time),
            Step::Read(n) => {
                if reads.look(&mut reader) {
                    reader.consume(n);
                } else if reader.peek() == Peek::Sealed {
                    tool.follow(&mut stream, &mut reader);
                }
            }
        }
    }
    let mut late = tool.attach(&mut stream, Start::Oldest, false);
    while !matches!(late.peek(), Peek::Empty | Peek::Sealed) {
        if reads.look(&mut late) {
            late.consume(usize::MAX);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn times_are_in_order_never_later_than_the_read_and_right_where_they_are_new(
        steps in proptest::collection::vec(step(), 1..1500),
        oldest in any::<bool>(),
    ) {
        run(stream(if oldest { Policy::DropOldest } else { Policy::DropNewest }), &steps);
    }
}
