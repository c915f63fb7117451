//! Each byte has the time at which it was read: the exact time as long as its reader keeps up, and
//! never a later one.

use iof_shm_ring::{Peek, Policy, Reader, Start, Stream, StreamConfig};
use proptest::prelude::*;

use crate::tool::{Tool, bytes, stream};

const MICRO: u64 = 1000;
const MILLI: u64 = 1000 * MICRO;
/// Time of the first read of a test.
const BEGIN: u64 = 1_700_000_000_000 * MILLI;
/// Reads closer together than this may share one time.
const GRAIN: u64 = 100 * MICRO;
/// Number of reads by which a reader may be behind, at least, and still find the time of each.
const RECENT: usize = 112;

/// Returns the read times of the borrowed bytes, and consumes all of them.
fn times(reader: &mut Reader) -> Vec<(u64, u64)> {
    let mut times = Vec::new();
    assert_eq!(reader.peek(), Peek::Bytes);
    reader.times(&mut times);
    assert_eq!(times.first().map(|(_, time)| *time), reader.time());
    reader.consume(usize::MAX);
    times
}

#[test]
fn a_reader_that_keeps_up_finds_the_time_of_every_small_read() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    for i in 0..5000 {
        let (place, time) = (reader.produced(), BEGIN + i * MILLI);
        stream.push(b"x\n", time);
        assert_eq!(times(&mut reader), [(place, time)]);
    }
}

#[test]
fn a_reader_that_is_some_reads_behind_finds_the_time_of_every_read() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    for round in 0..50 {
        let first = reader.produced();
        let reads: Vec<_> =
            (0..RECENT as u64).map(|i| (first + i * 80, BEGIN + (round * 1000 + i) * GRAIN)).collect();
        for (_, time) in &reads {
            stream.push(&bytes(80), *time);
        }
        let mut found = times(&mut reader);
        if found.len() < reads.len() {
            // The seam of the ring or a claim may have cut the borrowed bytes.
            found.extend(times(&mut reader));
        }
        assert_eq!(found, reads);
    }
}

#[test]
fn reads_in_a_burst_have_times_that_are_less_than_a_grain_too_early() {
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
fn times_continue_after_the_clock_was_set_back() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    for i in 0..2000 {
        let time = BEGIN - i * MILLI;
        stream.push(b"line\n", time);
        assert_eq!(times(&mut reader)[0].1, time);
    }
}

#[test]
fn times_of_a_generation_do_not_appear_in_the_next_one() {
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
fn a_late_reader_finds_coarser_times_of_old_bytes() {
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
        assert!(*time <= time_of(*offset), "a time later than the read");
        // Half of the index is for entries that are evenly spaced, and an index has at least 32
        // entries.
        assert!(next - offset <= capacity / 16 + 80, "one time for {} bytes", next - offset);
    }
    let newest: Vec<_> = found.iter().rev().take(RECENT).map(|(offset, time)| (*offset, *time)).collect();
    let wanted: Vec<_> = (0..reads).rev().take(RECENT).map(|i| (i * 80, time_of(i * 80))).collect();
    assert_eq!(newest, wanted);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A read of this many bytes, this many nanoseconds after the previous one.
    Push(usize, u64),
    /// A loss of this many bytes.
    Drop(u64),
    /// A peek, which consumes this many bytes.
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
    /// Returns the time at which the byte at `position` was read, and the number of later reads.
    fn find(&self, position: u64) -> (u64, usize) {
        let behind = self.0.partition_point(|(offset, _)| *offset <= position);
        (self.0[behind - 1].1, self.0.len() - behind)
    }

    /// Checks `time`, the ring's time of the byte at `position`.
    fn check(&self, position: u64, time: u64) {
        let (read, behind) = self.find(position);
        assert!(time <= read, "at {position} a time {} ns later than the read", time - read);
        if behind < RECENT {
            assert!(read - time < GRAIN, "at {position}, {behind} reads behind, {} ns old", read - time);
        }
    }

    fn peek(&self, reader: &mut Reader) -> bool {
        if reader.peek() != Peek::Bytes {
            return false;
        }
        let (position, dropped) = (reader.position(), reader.produced() - reader.position());
        self.check(position, reader.time().unwrap());
        let mut times = Vec::new();
        reader.times(&mut times);
        assert!(times.is_sorted() && times.is_sorted_by_key(|(_, time)| *time), "{times:?}");
        assert_eq!(times[0], (reader.produced(), reader.time().unwrap()));
        for byte in position..position + reader.bytes().len() as u64 {
            let marks = times.partition_point(|(offset, _)| *offset <= byte + dropped);
            self.check(byte, times[marks - 1].1);
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
                if reads.peek(&mut reader) {
                    reader.consume(n);
                } else if reader.peek() == Peek::Sealed {
                    tool.follow(&mut stream, &mut reader);
                }
            }
        }
    }
    let mut late = tool.attach(&mut stream, Start::Oldest, false);
    while !matches!(late.peek(), Peek::Empty | Peek::Sealed) {
        if reads.peek(&mut late) {
            late.consume(usize::MAX);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn times_are_in_order_never_later_than_the_read_and_exact_for_new_reads(
        steps in proptest::collection::vec(step(), 1..1500),
        oldest in any::<bool>(),
    ) {
        run(stream(if oldest { Policy::DropOldest } else { Policy::DropNewest }), &steps);
    }
}

#[test]
fn streams_that_share_an_order_show_it_however_close_their_reads_are() {
    let mut streams = [stream(Policy::DropNewest), stream(Policy::DropNewest)];
    Stream::share_order(&mut streams);
    let tool = Tool::new();
    let mut readers = streams.each_mut().map(|stream| tool.attach(stream, Start::Oldest, false));
    // After this many reads the index has no room for an entry for each.
    const BEFORE: u64 = 64;
    for (stream, reader) in streams.iter_mut().zip(&mut readers) {
        for _ in 0..BEFORE {
            stream.push(b"x\n", BEGIN - 2 * GRAIN);
        }
        times(reader);
    }
    // Two reads in a row of one stream share a time; all others are told apart.
    let order = [0, 1, 0, 0, 1, 0, 1, 1, 0];
    for (tick, index) in (0..).zip(order) {
        streams[index].push(b"x\n", BEGIN + tick);
    }
    let expected = |reads: &[(u64, u64)]| -> Vec<(u64, u64)> {
        reads.iter().map(|(line, tick)| ((BEFORE + line) * 2, BEGIN + tick)).collect()
    };
    let [out, err] = readers.each_mut().map(times);
    assert_eq!(out, expected(&[(0, 0), (1, 2), (3, 5), (4, 8)]));
    assert_eq!(err, expected(&[(0, 1), (1, 4), (2, 6)]));
}
