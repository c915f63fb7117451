//! A reader begins at an offset, at a time or with the last lines: with exactly the bytes from there
//! on, or with the gap of those that are missing.

use iof_shm_ring::{Gap, Peek, Policy, Reader, Start, Stream, StreamConfig};
use proptest::prelude::*;

use crate::tool::{CAPACITY, Tool, stream};

const MILLI: u64 = 1_000_000;
const BEGIN: u64 = 1_700_000_000_000 * MILLI;

/// Returns what a reader finds: its first offset, all bytes, and the gaps.
fn find_all(tool: &Tool, stream: &mut Stream, reader: &mut Reader) -> (Option<u64>, Vec<u8>, Vec<Gap>) {
    let (mut first, mut all, mut gaps) = (None, Vec::new(), Vec::new());
    loop {
        match reader.peek() {
            Peek::Bytes => {
                first.get_or_insert(reader.produced());
                all.extend_from_slice(reader.bytes());
                reader.consume(usize::MAX);
            }
            Peek::Gap(gap) => {
                first.get_or_insert(gap.offset);
                gaps.push(gap);
            }
            Peek::Sealed => tool.follow(stream, reader),
            Peek::Empty | Peek::Ended | Peek::Broken { .. } | Peek::Gone => return (first, all, gaps),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A read of this many bytes, this many nanoseconds after the previous one.
    Push(usize, u64),
    Drop(u64),
    Reconfigure,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pause = prop_oneof![Just(0), 0..MILLI, Just(3 * MILLI)];
    let step = prop_oneof![
        12 => (1usize..3000, pause).prop_map(|(n, pause)| Step::Push(n, pause)),
        1 => (1u64..100).prop_map(Step::Drop),
        1 => Just(Step::Reconfigure),
    ];
    prop::collection::vec(step, 1..120)
}

/// A stream with all that its source produced: the bytes, `None` for dropped ones, and the offset and
/// time of each read.
struct Source {
    stream: Stream,
    produced: Vec<Option<u8>>,
    reads: Vec<(u64, u64)>,
    time: u64,
}

impl Source {
    fn new(policy: Policy) -> Source {
        Source { stream: stream(policy), produced: Vec::new(), reads: Vec::new(), time: BEGIN }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Push(n, pause) => {
                self.time += pause;
                let next = self.produced.len();
                self.reads.push((next as u64, self.time));
                let bytes: Vec<u8> = (next..next + n)
                    .map(|i| if i % 61 == 7 { b'\n' } else { (i % 251) as u8 | 128 })
                    .collect();
                let dropped = self.stream.stats().dropped;
                self.stream.push(&bytes, self.time);
                let kept = n - (self.stream.stats().dropped - dropped) as usize;
                let stored = bytes.into_iter().enumerate().map(|(i, byte)| (i < kept).then_some(byte));
                self.produced.extend(stored);
            }
            Step::Drop(n) => {
                self.stream.discard(n, self.time);
                self.produced.extend((0..n).map(|_| None));
            }
            Step::Reconfigure => {
                let capacity =
                    if self.stream.stats().generation.is_multiple_of(2) { CAPACITY / 2 } else { CAPACITY };
                let config = StreamConfig { capacity, policy: Policy::DropOldest };
                self.stream.reconfigure(config).unwrap();
            }
        }
    }

    /// Checks that what a reader found is all from `from` on.
    fn check(&self, reader: &Reader, from: u64, found: (Option<u64>, Vec<u8>, Vec<Gap>)) {
        let (_, bytes, gaps) = found;
        let produced = self.produced.len() as u64;
        assert_eq!(reader.delivered() + reader.lost(), produced.saturating_sub(from), "from {from}");
        assert_eq!(reader.lost(), gaps.iter().map(|gap| gap.lost).sum::<u64>());
        let (mut offset, mut bytes, mut gaps) = (from, bytes.into_iter(), gaps.into_iter().peekable());
        while offset < produced {
            if let Some(gap) = gaps.next_if(|gap| gap.offset == offset) {
                assert!(gap.lost > 0);
                offset += gap.lost;
            } else {
                assert_eq!(bytes.next(), self.produced[offset as usize], "the byte at {offset}");
                offset += 1;
            }
        }
        assert!(offset == produced.max(from) && bytes.next().is_none() && gaps.next().is_none());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_reader_that_begins_at_an_offset_finds_all_from_there_on_or_its_gaps(
        before in steps(), after in steps(), part in 0u64..130, non_gating: bool,
    ) {
        let (mut source, tool) = (Source::new(Policy::DropOldest), Tool::new());
        before.into_iter().for_each(|step| source.take(step));
        // It may lie before what is cached, in it, or in the future.
        let from = source.produced.len() as u64 * part / 100;
        let mut reader = match non_gating {
            true => tool.attach_non_gating(&mut source.stream, Start::Oldest),
            false => tool.attach(&mut source.stream, Start::Oldest, false),
        };
        reader.begin_at(from);
        after.into_iter().for_each(|step| source.take(step));
        let found = find_all(&tool, &mut source.stream, &mut reader);
        source.check(&reader, from, found);
    }

    #[test]
    fn a_reader_that_begins_at_a_time_never_misses_a_read_since_then(
        before in steps(), after in steps(), part in 0usize..100, exactly: bool,
    ) {
        let (mut source, tool) = (Source::new(Policy::DropOldest), Tool::new());
        before.into_iter().for_each(|step| source.take(step));
        let Some((_, time)) = source.reads.get(source.reads.len() * part / 100).copied() else { return Ok(()) };
        let time = if exactly { time } else { time - 1 };
        let mut reader = tool.attach(&mut source.stream, Start::Oldest, false);
        let mut is_found = reader.begin_since(time);
        after.into_iter().for_each(|step| source.take(step));
        let mut found = (None, Vec::new(), Vec::new());
        while !is_found && reader.newest().is_some() && reader.peek() != Peek::Empty {
            is_found = reader.begin_since(time);
        }
        let rest = find_all(&tool, &mut source.stream, &mut reader);
        found.0 = rest.0;
        found.1.extend(rest.1);
        found.2.extend(rest.2);
        // The first offset that it may not be behind.
        let first = source.reads.iter().find(|(_, read)| *read >= time).map(|(offset, _)| *offset);
        let begin = found.0.unwrap_or(source.produced.len() as u64);
        assert!(first.is_none_or(|first| begin <= first), "{begin} is behind {first:?}");
        source.check(&reader, begin, found);
    }

    #[test]
    fn the_cached_lines_are_those_of_the_bytes(before in steps()) {
        let (mut source, tool) = (Source::new(Policy::DropOldest), Tool::new());
        before.into_iter().filter(|step| !matches!(step, Step::Drop(_))).for_each(|step| source.take(step));
        let mut reader = tool.attach(&mut source.stream, Start::Oldest, false);
        let found: Vec<u64> = reader.cached_lines(u64::MAX).map(|(offset, _)| offset).collect();
        let end = source.produced.len() as u64;
        let (_, bytes, _) = find_all(&tool, &mut source.stream, &mut reader);
        let first = end - bytes.len() as u64;
        let starts = (0..end.saturating_sub(1)).rev().filter(|i| source.produced[*i as usize] == Some(b'\n'));
        let mut wanted: Vec<u64> = starts.map(|i| i + 1).take_while(|start| *start > first).collect();
        wanted.insert(0, end);
        if !bytes.is_empty() {
            wanted.push(0);
        }
        assert_eq!(found, wanted);
    }
}

#[test]
fn a_reader_of_recent_reads_begins_exactly_with_the_first_read_since_a_time() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    for i in 0..100 {
        stream.push(b"line\n", BEGIN + i * MILLI);
    }
    for (time, offset) in [(50 * MILLI, 250), (50 * MILLI - 1, 250), (50 * MILLI + 1, 250), (0, 0)] {
        let mut reader = tool.attach(&mut stream, Start::Oldest, false);
        assert!(reader.begin_since(BEGIN + time));
        reader.peek();
        // A read less than a grain before may have been later than its time.
        assert_eq!(reader.produced(), offset, "since {time}");
        assert_eq!(
            reader.end_before(BEGIN + time + MILLI),
            Some(reader.position() + 5 + 5 * u64::from(time % MILLI == 1))
        );
    }
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    assert!(!reader.begin_since(BEGIN + 100 * MILLI));
    assert_eq!((reader.peek(), reader.delivered(), reader.lost()), (Peek::Empty, 0, 0));
    stream.push(b"early\n", BEGIN + 99 * MILLI + MILLI / 2);
    assert!(!reader.begin_since(BEGIN + 100 * MILLI));
    assert_eq!(reader.peek(), Peek::Empty);
    stream.push(b"late\n", BEGIN + 101 * MILLI);
    assert!(reader.begin_since(BEGIN + 100 * MILLI));
    assert_eq!(reader.peek(), Peek::Bytes);
    assert_eq!(reader.bytes(), b"late\n");
}

#[test]
fn reads_older_than_the_recent_ones_are_found_by_the_index() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    for i in 0..300 {
        stream.push(b"line\n", BEGIN + i * MILLI);
    }
    let begin = |stream: &mut Stream, time| {
        let mut reader = tool.attach(stream, Start::Oldest, false);
        assert!(reader.begin_since(BEGIN + time * MILLI));
        reader.peek();
        reader.produced()
    };
    // A quarter of the index has an entry for each read. Then there is none before the recent ones.
    assert_eq!([2, 5, 20, 150, 188, 189].map(|time| begin(&mut stream, time)), [10, 25, 35, 35, 35, 945]);
}
