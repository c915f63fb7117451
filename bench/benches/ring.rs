//! Publishing and consuming through a ring, beside a bare copy of the same bytes.
#![allow(missing_docs, clippy::unwrap_used, reason = "a bench is run by people who read it")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use iof_shm_ring::{Area, Peek, Policy, Reader, Start, Stream, StreamConfig, doorbell};

const CAPACITY: u64 = 1 << 20;

/// A stream and readers that keep up.
fn stream(readers: usize) -> (Stream, Vec<Reader>) {
    let mut stream =
        Stream::create(StreamConfig { capacity: CAPACITY, policy: Policy::DropNewest }, "test").unwrap();
    let reader = |_| {
        let area = Arc::new(Area::create(doorbell().unwrap().0).unwrap());
        let slot = area.take_slot().unwrap();
        let attached = stream.attach(&area, slot, Start::Oldest, false).unwrap();
        Reader::new(attached.ring, area, slot, attached.start, Start::Oldest).unwrap()
    };
    let readers = (0..readers).map(reader).collect();
    (stream, readers)
}

fn publish_and_consume(c: &mut Criterion) {
    for size in [64, 4096, 65536] {
        let mut group = c.benchmark_group(format!("ring/{size}"));
        group.throughput(Throughput::Bytes(size as u64));
        let bytes = vec![7u8; size];

        // The same bytes into as much memory, without anything around it.
        let mut memory = vec![0u8; CAPACITY as usize];
        let mut at = 0;
        group.bench_function("memcpy", |b| {
            b.iter(|| {
                memory[at..at + size].copy_from_slice(black_box(&bytes));
                at = (at + size) % (CAPACITY as usize);
                black_box(&memory[at]);
            });
        });
        for readers in [1, 4, 16] {
            let (mut stream, mut readers_of) = stream(readers);
            group.bench_function(BenchmarkId::new("readers", readers), |b| {
                b.iter(|| {
                    stream.push(black_box(&bytes), 0);
                    for reader in &mut readers_of {
                        assert_eq!(reader.peek(), Peek::Bytes);
                        black_box(reader.bytes());
                        reader.consume(size);
                    }
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, publish_and_consume);
criterion_main!(benches);
