//! The bytes of a stream, which the kernel writes and readers read, in a form that loom can track.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use iof_shm_ring::StreamStats;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The way in which readers access bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracking {
    /// In place: each access must be ordered after or before the writer's, or the model fails.
    Ordered,
    /// By a copy, which may get any values, in any order.
    Racy,
}

/// The payload of a stream: one cell for each byte of each generation. A byte's value is its number
/// in the source, drops included. So a reader that gets the right byte knows that every gap before
/// it was reported exactly.
pub struct Payload {
    tracking: Tracking,
    /// Capacity of the first generation, and of all others.
    first: usize,
    capacity: usize,
    /// Loom does not track this lock; no switch between threads happens while it is held.
    generations: Mutex<HashMap<u64, Arc<Cells>>>,
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payload")
            .field("tracking", &self.tracking)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

struct Cells {
    /// Address of the byte at a multiple of the capacity.
    base: usize,
    cells: Vec<Cell>,
}

enum Cell {
    Ordered(UnsafeCell<u64>),
    Racy(AtomicU64),
}

impl Cell {
    fn read(&self) -> u64 {
        match self {
            // SAFETY: loom fails the model if the writer accesses this cell at the same time.
            Cell::Ordered(cell) => cell.with(|byte| unsafe { *byte }),
            Cell::Racy(cell) => cell.load(Relaxed),
        }
    }
}

// SAFETY: loom checks that two threads never access a cell at once.
unsafe impl Sync for Cell {}
// SAFETY: as above.
unsafe impl Send for Cell {}

impl Cells {
    fn new(base: usize, capacity: usize, tracking: Tracking) -> Cells {
        let cell = |_| match tracking {
            Tracking::Ordered => Cell::Ordered(UnsafeCell::new(u64::MAX)),
            Tracking::Racy => Cell::Racy(AtomicU64::new(u64::MAX)),
        };
        Cells { base, cells: (0..capacity).map(cell).collect() }
    }

    /// Returns the byte at `address`, in either half of the double map.
    fn cell(&self, address: usize) -> &Cell {
        &self.cells[address.wrapping_sub(self.base) % self.cells.len()]
    }
}

impl Payload {
    /// Creates the payload of rings with `capacity` bytes.
    pub(crate) fn new(capacity: u64, tracking: Tracking) -> Payload {
        Payload::growing(capacity, capacity, tracking)
    }

    /// Creates the payload of rings: the first has `first` bytes, and each other `capacity`.
    pub(crate) fn growing(first: u64, capacity: u64, tracking: Tracking) -> Payload {
        let (first, capacity) = (first as usize, capacity as usize);
        Payload { tracking, first, capacity, generations: Mutex::default() }
    }

    fn capacity(&self, generation: u64) -> usize {
        if generation == 0 { self.first } else { self.capacity }
    }

    fn generation(&self, generation: u64) -> Arc<Cells> {
        Arc::clone(&self.generations.lock().unwrap()[&generation])
    }

    /// Stores the next byte of the source at `address`, as the writer.
    pub(crate) fn write(&self, stats: &StreamStats, address: usize) {
        let tail = (stats.produced - stats.dropped) as usize;
        let capacity = self.capacity(stats.generation);
        let new = || Arc::new(Cells::new(address - tail % capacity, capacity, self.tracking));
        let cells = Arc::clone(self.generations.lock().unwrap().entry(stats.generation).or_insert_with(new));
        match cells.cell(address) {
            // SAFETY: loom fails the model if another thread accesses this cell at the same time.
            Cell::Ordered(cell) => cell.with_mut(|byte| unsafe { *byte = stats.produced }),
            Cell::Racy(cell) => cell.store(stats.produced, Relaxed),
        }
    }

    /// Reads `len` bytes from `address` on, as a reader, and checks that they follow the first
    /// `produced` bytes of the source.
    pub(crate) fn check(&self, generation: u64, produced: u64, address: usize, len: usize) {
        let cells = self.generation(generation);
        for i in 0..len {
            assert_belongs(cells.cell(address + i).read(), produced + i as u64);
        }
    }

    /// Copies `len` bytes from `position` on, without checking them.
    pub(crate) fn copy(&self, generation: u64, position: u64, len: usize) -> Vec<u64> {
        let cells = self.generation(generation);
        let capacity = self.capacity(generation);
        (position..).take(len).map(|position| cells.cells[position as usize % capacity].read()).collect()
    }
}

/// Fails the model if the byte found at number `expected` is another one.
pub(crate) fn assert_belongs(found: u64, expected: u64) {
    assert_eq!(found, expected, "a byte has the wrong number");
}
