//! A growing stream has no memory until its first byte, and counts what it drops for lack of it.

use std::sync::Arc;

use iof_shm_ring::{
    CacheBudget, Gap, Growth, HeapMemory, Peek, Policy, Reader, ReaderPage, Reserve, Start, Stream,
    StreamConfig, doorbell,
};

use crate::tool::Tool;

const CAPACITY: u64 = 64 * 1024;

/// Memory for rings that runs out, and is there again when it is dropped.
struct NoMemory(HeapMemory);

impl NoMemory {
    fn begin() -> NoMemory {
        let memory = HeapMemory::of_this_thread();
        memory.refuse_rings(true);
        NoMemory(memory)
    }
}

impl Drop for NoMemory {
    fn drop(&mut self) {
        self.0.refuse_rings(false);
    }
}

fn stream(policy: Policy) -> (Stream, Arc<CacheBudget>) {
    let budget = Arc::new(CacheBudget::new(u64::MAX));
    let growth = Growth { first: CAPACITY, budget: Arc::clone(&budget) };
    (Stream::growing_on_heap(StreamConfig { capacity: CAPACITY, policy }, &growth).unwrap(), budget)
}

fn page() -> Arc<ReaderPage> {
    Arc::new(ReaderPage::create(doorbell().unwrap().0).unwrap())
}

/// Attaches a reader in the process of the stream.
fn attach(page: &Arc<ReaderPage>, stream: &mut Stream, may_block: bool) -> Reader {
    let given = stream.attach(page, page.take_slot().unwrap(), Start::Oldest, may_block).unwrap();
    // SAFETY: this test owns the stream, and moves and detaches readers only when they are done.
    unsafe { Reader::new(given, Arc::clone(page), Start::Oldest) }.unwrap()
}

fn follow(page: &Arc<ReaderPage>, stream: &mut Stream, reader: &mut Reader) {
    let given = stream.follow(page, reader.id(), reader.id()).unwrap();
    // SAFETY: as above.
    unsafe { reader.follow(given) }.unwrap();
}

#[test]
fn a_stream_has_no_memory_until_its_first_byte_and_its_reader_finds_that_byte() {
    let ((mut stream, budget), page) = (stream(Policy::Block), page());
    let mut reader = attach(&page, &mut stream, true);
    assert_eq!((reader.peek(), budget.used()), (Peek::Empty, 0));
    assert_eq!(stream.push(b"first", 1), 5);
    assert_eq!((reader.peek(), budget.used()), (Peek::Bytes, CAPACITY));
    assert_eq!((reader.bytes(), reader.time()), (&b"first"[..], Some(1)));
    reader.consume(5);
    stream.complete();
    assert_eq!((reader.peek(), reader.ring().generation()), (Peek::Ended, 0));
}

#[test]
fn a_stream_that_grows_before_its_first_byte_begins_in_a_ring_of_its_full_size_within_the_budget() {
    const FULL: u64 = 4 * CAPACITY;
    let budget = Arc::new(CacheBudget::new(FULL + CAPACITY));
    let growth = Growth { first: CAPACITY, budget: Arc::clone(&budget) };
    let config = StreamConfig { capacity: FULL, policy: Policy::Block };
    let page = page();
    let mut streams = [(); 3].map(|()| Stream::growing_on_heap(config, &growth).unwrap());
    let mut readers = streams.each_mut().map(|stream| {
        let reader = attach(&page, stream, true);
        stream.grow();
        reader
    });
    assert_eq!(budget.used(), 0, "streams without bytes leave the budget to others");
    let sizes: Vec<u64> = streams
        .iter_mut()
        .zip(&mut readers)
        .map(|(stream, reader)| {
            assert_eq!(stream.push(b"first", 1), 5);
            assert_eq!((reader.peek(), reader.bytes()), (Peek::Bytes, &b"first"[..]));
            assert_eq!(stream.stats().generation, 0, "no reader has to follow");
            reader.ring().capacity()
        })
        .collect();
    assert_eq!(sizes, [FULL, CAPACITY, CAPACITY]);
    assert!(!streams[0].may_grow() && streams[1].may_grow());
}

#[test]
fn a_ring_is_owed_until_it_is_allocated_or_the_stream_ends() {
    let budget = Arc::new(CacheBudget::new(u64::MAX));
    let growth = Growth { first: CAPACITY, budget: Arc::clone(&budget) };
    let config = StreamConfig { capacity: CAPACITY, policy: Policy::DropNewest };
    let mut streams: Vec<_> = (0..5).map(|_| Stream::growing_on_heap(config, &growth).unwrap()).collect();
    assert_eq!((budget.owed_rings(), streams[0].owed_rings()), (5, 5));
    streams[0].push(b"first", 1);
    streams[1].allocate().unwrap();
    streams[2].complete();
    drop(streams.pop());
    assert_eq!(budget.owed_rings(), 1);
    let no_memory = NoMemory::begin();
    streams[3].push(b"lost", 1);
    assert_eq!(budget.owed_rings(), 1, "it continues as soon as there is memory");
    drop(no_memory);
    streams[3].push(b"stored", 1);
    assert_eq!(budget.owed_rings(), 0);
}

#[test]
fn the_first_refusal_of_memory_is_reported_once() {
    let growth = Growth { first: CAPACITY, budget: Arc::new(CacheBudget::new(u64::MAX)) };
    let config = StreamConfig { capacity: CAPACITY, policy: Policy::DropNewest };
    let mut streams = [(); 2].map(|()| Stream::growing_on_heap(config, &growth).unwrap());
    assert!(streams[0].take_refusal().is_none());
    let _no_memory = NoMemory::begin();
    for _ in 0..2 {
        for stream in &mut streams {
            assert!(matches!(stream.reserve(10), Reserve::Discard));
        }
    }
    assert!(streams[0].take_refusal().is_some());
    assert!(streams.iter_mut().all(|stream| stream.take_refusal().is_none()));
}

#[test]
fn a_first_ring_of_full_size_that_is_refused_is_a_small_one_until_the_stream_grows() {
    const FULL: u64 = 4 * CAPACITY;
    let growth = Growth { first: CAPACITY, budget: Arc::new(CacheBudget::new(u64::MAX)) };
    let config = StreamConfig { capacity: FULL, policy: Policy::Block };
    let (page, no_memory) = (page(), NoMemory::begin());
    no_memory.0.refuse_rings_above(CAPACITY);
    let mut stream = Stream::growing_on_heap(config, &growth).unwrap();
    let mut reader = attach(&page, &mut stream, false);
    assert_eq!((stream.push(b"first", 1), reader.peek()), (5, Peek::Bytes));
    assert_eq!((reader.ring().capacity(), stream.may_grow()), (CAPACITY, true));
    drop(no_memory);
    stream.grow();
    assert_eq!(stream.push(b"second", 2), 6);
    reader.consume(5);
    assert_eq!(reader.peek(), Peek::Sealed);
    follow(&page, &mut stream, &mut reader);
    assert_eq!(
        (reader.peek(), reader.bytes(), reader.ring().capacity()),
        (Peek::Bytes, &b"second"[..], FULL)
    );
}

#[test]
fn a_stream_that_ends_without_a_byte_needs_no_memory() {
    let ((mut stream, budget), page) = (stream(Policy::DropNewest), page());
    let mut before = attach(&page, &mut stream, false);
    stream.complete();
    let mut after = attach(&page, &mut stream, false);
    assert_eq!((before.peek(), after.peek(), budget.used()), (Peek::Ended, Peek::Ended, 0));
    assert_eq!(stream.stats().generation, 0);
}

#[test]
fn a_reader_in_another_process_finds_a_file_before_the_first_byte_and_after_the_end() {
    for ends in [false, true] {
        let budget = Arc::new(CacheBudget::new(u64::MAX));
        let growth = Growth { first: CAPACITY, budget };
        let config = StreamConfig { capacity: CAPACITY, policy: Policy::Block };
        let mut stream = Stream::create_growing(config, &growth, "test").unwrap();
        let (page, tool) = (page(), Tool::new());
        let mut local = attach(&page, &mut stream, true);
        if ends {
            stream.complete();
        }
        let mut remote = tool.attach(&mut stream, Start::Oldest, true);
        if !ends {
            assert_eq!(stream.push(b"first", 1), 5);
            for reader in [&mut local, &mut remote] {
                assert_eq!((reader.peek(), reader.bytes()), (Peek::Bytes, &b"first"[..]));
                reader.consume(5);
            }
            stream.complete();
        }
        assert_eq!((local.peek(), remote.peek()), (Peek::Ended, Peek::Ended));
    }
}

#[test]
fn a_blocking_reader_loses_nothing_without_memory_for_the_first_ring() {
    let ((mut stream, _), page) = (stream(Policy::Block), page());
    let mut reader = attach(&page, &mut stream, true);
    let no_memory = NoMemory::begin();
    assert!(matches!(stream.reserve(10), Reserve::Later));
    assert_eq!((stream.push(b"first", 1), stream.stats().dropped), (0, 0));
    assert!(stream.allocate().is_err());
    drop(no_memory);
    assert_eq!(stream.push(b"first", 1), 5);
    assert_eq!((reader.peek(), reader.bytes()), (Peek::Bytes, &b"first"[..]));
}

#[test]
fn bytes_that_are_dropped_without_memory_for_the_first_ring_are_a_gap() {
    for policy in [Policy::DropNewest, Policy::DropOldest, Policy::Block] {
        for ends in [false, true] {
            let ((mut stream, budget), page) = (stream(policy), page());
            let mut reader = attach(&page, &mut stream, false);
            let no_memory = NoMemory::begin();
            assert_eq!((stream.push(b"lost", 1), stream.push(b"too", 2)), (4, 3));
            assert_eq!((stream.stats().produced, stream.stats().dropped, budget.used()), (7, 7, 0));
            assert_eq!(reader.peek(), Peek::Gap(Gap { offset: 0, lost: 7 }));
            let mut late = attach(&page, &mut stream, false);
            drop(no_memory);
            if !ends {
                assert_eq!(stream.push(b"first", 3), 5);
                assert_eq!(reader.peek(), Peek::Sealed);
                follow(&page, &mut stream, &mut reader);
                assert_eq!((reader.peek(), reader.bytes()), (Peek::Bytes, &b"first"[..]));
                reader.consume(5);
            }
            stream.complete();
            assert_eq!(reader.peek(), Peek::Ended);
            assert_eq!(late.peek(), Peek::Gap(Gap { offset: 0, lost: 7 }));
            if !ends {
                assert_eq!(late.peek(), Peek::Sealed);
                follow(&page, &mut stream, &mut late);
                assert_eq!(late.peek(), Peek::Bytes);
                late.consume(5);
            }
            assert_eq!(late.peek(), Peek::Ended);
            for reader in [&reader, &late] {
                assert_eq!(reader.delivered() + reader.lost(), stream.stats().produced);
            }
        }
    }
}

#[test]
fn a_stream_broken_off_without_a_byte_tells_local_and_remote_readers_what_is_missing() {
    let growth = Growth { first: CAPACITY, budget: Arc::new(CacheBudget::new(u64::MAX)) };
    let config = StreamConfig { capacity: CAPACITY, policy: Policy::Block };
    let mut stream = Stream::create_growing(config, &growth, "test").unwrap();
    let (page, tool) = (page(), Tool::new());
    let mut early = attach(&page, &mut stream, true);
    stream.break_off(9);
    let mut local = attach(&page, &mut stream, true);
    let mut remote = tool.attach(&mut stream, Start::Oldest, true);
    for reader in [&mut early, &mut local, &mut remote] {
        assert_eq!(reader.peek(), Peek::Broken { missing: 9 });
    }
}

#[test]
fn a_stream_that_dropped_its_first_bytes_continues_at_once_in_a_ring_of_its_full_size() {
    const FULL: u64 = 4 * CAPACITY;
    let growth = Growth { first: CAPACITY, budget: Arc::new(CacheBudget::new(u64::MAX)) };
    let config = StreamConfig { capacity: FULL, policy: Policy::Block };
    let mut stream = Stream::growing_on_heap(config, &growth).unwrap();
    let (page, no_memory) = (page(), NoMemory::begin());
    let mut reader = attach(&page, &mut stream, false);
    assert_eq!((stream.push(b"lost", 1), stream.stats().dropped), (4, 4));
    drop(no_memory);
    stream.grow();
    assert_eq!((stream.push(b"stored", 2), stream.stats().generation), (6, 1));
    assert_eq!((reader.peek(), reader.peek()), (Peek::Gap(Gap { offset: 0, lost: 4 }), Peek::Sealed));
    follow(&page, &mut stream, &mut reader);
    assert_eq!(reader.ring().capacity(), FULL);
}
