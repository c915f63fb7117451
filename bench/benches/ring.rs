//! Publishing and consuming through a ring, in one run with its baselines: a bare copy of the same
//! bytes, rtrb (one reader, one process) and shmem-ipc (one reader, shared memory).
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a benchmark may panic")]

use std::fs::File;
use std::hint::black_box;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use iof_shm_ring::{
    Attached, Peek, Policy, Reader, ReaderPage, Ring, Start, Stream, StreamConfig, doorbell, notify,
};
use shmem_ipc::sharedring;

const CAPACITY: u64 = 1 << 20;
const SIZES: [usize; 3] = [64, 4096, 65536];
const READERS: [usize; 3] = [1, 4, 16];

type Group<'a> = BenchmarkGroup<'a, WallTime>;

/// The mapping through which a reader reads. On one core, stores through one mapping are not
/// forwarded to loads through another. That costs some nanoseconds in a benchmark that alternates
/// between writing and reading.
#[derive(Clone, Copy, PartialEq)]
enum Map {
    /// The writer's mapping, as in rtrb.
    Same,
    /// A separate read-only mapping, as in another process.
    Own,
}

fn stream(readers: usize, map: Map) -> (Stream, Vec<Reader>, Vec<Arc<ReaderPage>>) {
    let config = StreamConfig { capacity: CAPACITY, policy: Policy::DropNewest };
    let mut stream = Stream::create(config, "bench").unwrap();
    let pages: Vec<_> =
        (0..readers).map(|_| Arc::new(ReaderPage::create(doorbell().unwrap().0).unwrap())).collect();
    let readers = pages
        .iter()
        .map(|page| {
            let page = Arc::clone(page);
            let attached = stream.attach(&page, page.take_slot().unwrap(), Start::Oldest, false).unwrap();
            let ring = match map {
                Map::Same => Arc::clone(&attached.ring),
                Map::Own => {
                    let file = attached.ring.as_fd().unwrap().try_clone_to_owned().unwrap();
                    Arc::new(Ring::open(file).unwrap())
                }
            };
            // SAFETY: the readers are never detached or moved.
            unsafe { Reader::new(Attached { ring, ..attached }, page, Start::Oldest) }.unwrap()
        })
        .collect();
    (stream, readers, pages)
}

fn consume_all(readers: &mut [Reader]) {
    for reader in readers {
        assert_eq!(reader.peek(), Peek::Bytes);
        black_box(reader.bytes());
        reader.consume(usize::MAX);
    }
}

/// Copies the same bytes into a buffer of the same size.
fn memcpy(group: &mut Group, bytes: &[u8]) {
    let mut memory = vec![0u8; CAPACITY as usize];
    let mut offset = 0;
    group.bench_function("memcpy", |b| {
        b.iter(|| {
            memory[offset..offset + bytes.len()].copy_from_slice(black_box(bytes));
            black_box(&mut memory);
            offset = (offset + bytes.len()) % CAPACITY as usize;
        });
    });
}

fn iof_ring(group: &mut Group, bytes: &[u8], readers: usize, map: Map) {
    let (mut stream, mut all, _) = stream(readers, map);
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

/// A ring in shared memory for one reader in another process, with its own mapping.
fn shmem_ipc(group: &mut Group, bytes: &[u8]) {
    let mut sender = sharedring::Sender::<u8>::new(CAPACITY as usize).unwrap();
    let file = |fd: BorrowedFd<'_>| File::from(fd.try_clone_to_owned().unwrap());
    let (memory, empty, full) =
        (sender.memfd().as_file().as_fd(), sender.empty_signal().as_fd(), sender.full_signal().as_fd());
    let mut receiver =
        sharedring::Receiver::<u8>::open(CAPACITY as usize, file(memory), file(empty), file(full)).unwrap();
    group.bench_function("shmem-ipc/1", |b| {
        b.iter(|| {
            // Bytes that wrap around the end of the ring take two calls.
            let mut rest = black_box(bytes);
            while !rest.is_empty() {
                let sent = |to: *mut u8, room: usize| {
                    let (now, later) = rest.split_at(room.min(rest.len()));
                    // SAFETY: `to` is valid for writes of `room` bytes, and `now` is not longer.
                    unsafe { to.copy_from_nonoverlapping(now.as_ptr(), now.len()) };
                    rest = later;
                    now.len()
                };
                sender.sender_mut().send(sent).unwrap();
                receiver.receiver_mut().recv(|from, len| black_box((from, len)).1).unwrap();
            }
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
        shmem_ipc(&mut group, &bytes);
        for readers in READERS {
            iof_ring(&mut group, &bytes, readers, Map::Same);
            iof_ring(&mut group, &bytes, readers, Map::Own);
        }
        group.finish();
    }
}

/// The writer's cost of having readers: publishing a batch and notifying the readers once. The
/// readers' own time is not counted. They are awake, and take their ready bits after each batch.
fn writer_cost(c: &mut Criterion) {
    const BATCH: usize = 8;
    for size in SIZES {
        let bytes = vec![7u8; size];
        let mut group = c.benchmark_group(format!("writer/{size}"));
        group.throughput(Throughput::Bytes((BATCH * size) as u64)).measurement_time(Duration::from_secs(3));
        for readers in READERS {
            let (mut stream, mut all, pages) = stream(readers, Map::Own);
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
                        pages.iter().for_each(|page| page.take_ready(1, |_| {}));
                        consume_all(&mut all);
                    }
                    spent
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, publish_and_consume, writer_cost);
criterion_main!(benches);
