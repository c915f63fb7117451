//! Publishing and consuming through a ring, beside a bare copy of the same bytes and rtrb (one reader, one process), in
//! one run.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a bench is run by people who read it")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use iof_shm_ring::{Area, Peek, Policy, Reader, Ring, Start, Stream, StreamConfig, doorbell, notify};

const CAPACITY: u64 = 1 << 20;
const SIZES: [usize; 3] = [64, 4096, 65536];
const READERS: [usize; 3] = [1, 4, 16];

type Group<'a> = BenchmarkGroup<'a, WallTime>;

/// Through whose map a reader reads: on one core, stores through one map are not forwarded to loads through another, so
/// that alone costs some nanoseconds in a bench that writes and reads in turn.
#[derive(Clone, Copy, PartialEq)]
enum Map {
    /// The writer's, as rtrb's reader does.
    Same,
    /// Its own, read-only, as in another process.
    Own,
}

fn stream(readers: usize, map: Map) -> (Stream, Vec<Reader>) {
    let config = StreamConfig { capacity: CAPACITY, policy: Policy::DropNewest };
    let mut stream = Stream::create(config, "bench").unwrap();
    let readers = (0..readers)
        .map(|_| {
            let area = Arc::new(Area::create(doorbell().unwrap().0).unwrap());
            let attached = stream.attach(&area, area.take_slot().unwrap(), Start::Oldest, false).unwrap();
            let ring = match map {
                Map::Same => attached.ring,
                Map::Own => {
                    let file = attached.ring.as_fd().unwrap().try_clone_to_owned().unwrap();
                    Arc::new(Ring::open(file).unwrap())
                }
            };
            // SAFETY: the stream is this test's, which moves and detaches readers only when they are done.
            unsafe { Reader::new(ring, area, attached.slot, attached.start, Start::Oldest) }.unwrap()
        })
        .collect();
    (stream, readers)
}

fn consume_all(readers: &mut [Reader]) {
    for reader in readers {
        assert_eq!(reader.peek(), Peek::Bytes);
        black_box(reader.bytes());
        reader.consume(usize::MAX);
    }
}

/// The same bytes into as much memory, and nothing around it.
fn memcpy(group: &mut Group, bytes: &[u8]) {
    let mut memory = vec![0u8; CAPACITY as usize];
    let mut at = 0;
    group.bench_function("memcpy", |b| {
        b.iter(|| {
            memory[at..at + bytes.len()].copy_from_slice(black_box(bytes));
            black_box(&mut memory);
            at = (at + bytes.len()) % CAPACITY as usize;
        });
    });
}

fn ours(group: &mut Group, bytes: &[u8], readers: usize, map: Map) {
    let (mut stream, mut all) = stream(readers, map);
    let name = if map == Map::Same { "iof" } else { "iof-own-map" };
    group.bench_function(BenchmarkId::new(name, readers), |b| {
        b.iter(|| {
            stream.push(black_box(bytes), 0);
            consume_all(&mut all);
        });
    });
}

fn rtrb(group: &mut Group, bytes: &[u8]) {
    let (mut producer, mut consumer) = rtrb::RingBuffer::<u8>::new(CAPACITY as usize);
    group.bench_function("rtrb/1", |b| {
        b.iter(|| {
            let mut chunk = producer.write_chunk(bytes.len()).unwrap();
            let (first, second) = chunk.as_mut_slices();
            let (now, later) = black_box(bytes).split_at(first.len());
            first.copy_from_slice(now);
            second.copy_from_slice(later);
            chunk.commit_all();
            let chunk = consumer.read_chunk(bytes.len()).unwrap();
            black_box(chunk.as_slices());
            chunk.commit_all();
        });
    });
}

fn publish_and_consume(c: &mut Criterion) {
    for size in SIZES {
        let bytes = vec![7u8; size];
        let mut group = c.benchmark_group(format!("publish+consume/{size}"));
        group.throughput(Throughput::Bytes(size as u64)).measurement_time(Duration::from_secs(3));
        memcpy(&mut group, &bytes);
        rtrb(&mut group, &bytes);
        for readers in READERS {
            ours(&mut group, &bytes, readers, Map::Same);
            ours(&mut group, &bytes, readers, Map::Own);
        }
        group.finish();
    }
}

/// What the writer alone pays for readers: a batch of publishing and one round of wake-ups, readers' time left out.
fn writers_share(c: &mut Criterion) {
    const BATCH: usize = 8;
    for size in SIZES {
        let bytes = vec![7u8; size];
        let mut group = c.benchmark_group(format!("writer/{size}"));
        group.throughput(Throughput::Bytes((BATCH * size) as u64)).measurement_time(Duration::from_secs(3));
        for readers in READERS {
            let (mut stream, mut all) = stream(readers, Map::Own);
            group.bench_function(BenchmarkId::new("readers", readers), |b| {
                b.iter_custom(|rounds| {
                    let mut spent = Duration::ZERO;
                    for _ in 0..rounds {
                        let start = std::time::Instant::now();
                        for _ in 0..BATCH {
                            stream.push(black_box(&bytes), 0);
                        }
                        notify([&stream]);
                        spent += start.elapsed();
                        consume_all(&mut all);
                    }
                    spent
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, publish_and_consume, writers_share);
criterion_main!(benches);
