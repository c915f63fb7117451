//! The bytes of a stream, which the kernel writes and readers look at, as loom can track them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use iof_shm_ring::StreamStats;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How readers look at bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracking {
    /// In place: each access must be ordered after or before the writer's, or the model fails.
    Ordered,
    /// By a copy, which may find anything, in any order.
    Racy,
}

/// The payload of a stream: for each generation one cell for each byte. A byte's value is its
/// number in the source, drops counted, so that a reader that finds the right one knows that every
/// gap before it was told exactly.
pub struct Payload {
    tracking: Tracking,
    capacity: usize,
    /// Loom does not know this lock; nothing that loom switches at happens under it.
    generations: Mutex<HashMap<u64, Arc<Cells>>>,
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
            // SAFETY: loom fails the model if the writer is at this cell.
            Cell::Ordered(cell) => cell.with(|byte| unsafe { *byte }),
            Cell::Racy(cell) => cell.load(Relaxed),
        }
    }
}

// SAFETY: that its cells are never touched by two threads at once is what loom checks.
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

    /// The byte at `address`, in whichever half of the double map.
    fn at(&self, address: usize) -> &Cell {
        &self.cells[address.wrapping_sub(self.base) % self.cells.len()]
    }
}

impl Payload {
    /// Of rings that hold `capacity` bytes.
    pub(crate) fn new(capacity: u64, tracking: Tracking) -> Payload {
        Payload { tracking, capacity: capacity as usize, generations: Mutex::default() }
    }

    fn generation(&self, generation: u64) -> Arc<Cells> {
        Arc::clone(&self.generations.lock().unwrap()[&generation])
    }

    /// The writer stores the next byte of the source at `address`.
    pub(crate) fn write(&self, stats: &StreamStats, address: usize) {
        let tail = (stats.produced - stats.dropped) as usize;
        let new = || Arc::new(Cells::new(address - tail % self.capacity, self.capacity, self.tracking));
        let cells = Arc::clone(self.generations.lock().unwrap().entry(stats.generation).or_insert_with(new));
        match cells.at(address) {
            // SAFETY: loom fails the model if anybody else is at this cell.
            Cell::Ordered(cell) => cell.with_mut(|byte| unsafe { *byte = stats.produced }),
            Cell::Racy(cell) => cell.store(stats.produced, Relaxed),
        }
    }

    /// A reader looks at `len` bytes from `address` on, which must be those that follow the first
    /// `produced` of the source.
    pub(crate) fn check(&self, generation: u64, produced: u64, address: usize, len: usize) {
        let cells = self.generation(generation);
        for i in 0..len {
            assert_belongs(cells.at(address + i).read(), produced + i as u64);
        }
    }

    /// Copies `len` bytes from `position` on, whatever they are.
    pub(crate) fn copy(&self, generation: u64, position: u64, len: usize) -> Vec<u64> {
        let cells = self.generation(generation);
        (position..).take(len).map(|at| cells.cells[at as usize % self.capacity].read()).collect()
    }
}

/// Fails the model if the byte that was found at the place of number `expected` is another.
pub(crate) fn assert_belongs(found: u64, expected: u64) {
    assert_eq!(found, expected, "a byte is not the one that belongs here");
}
