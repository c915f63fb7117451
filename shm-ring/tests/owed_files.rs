//! Files are kept for streams that have no memory yet. The limit on open files applies to the whole
//! process, so this test has a file of its own.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use iof_shm_ring::{
    CacheBudget, Growth, Policy, Reader, ReaderPage, Reserve, Start, Stream, StreamConfig, doorbell,
    maps_in_use,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

const CAPACITY: u64 = 64 * 1024;

#[test]
fn all_other_rings_leave_files_to_streams_without_memory() {
    let budget = Arc::new(CacheBudget::new(u64::MAX));
    let growth = Growth { first: CAPACITY, budget: Arc::clone(&budget) };
    let config = |policy| StreamConfig { capacity: CAPACITY, policy };
    let create = |policy| Stream::create_growing(config(policy), &growth, "test").unwrap();
    let page = Arc::new(ReaderPage::create(doorbell().unwrap().0).unwrap());
    let mut moving = create(Policy::DropOldest);
    let maps = maps_in_use();
    moving.allocate().unwrap();
    assert_eq!(maps_in_use(), maps + 2);
    Stream::create(config(Policy::Block), "test").unwrap();
    assert_eq!(maps_in_use(), maps + 2, "those of the other one are gone");
    let mut silent: Vec<Stream> = (0..8).map(|_| create(Policy::Block)).collect();
    let (before, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let next = File::open("/dev/null").unwrap().as_raw_fd() as u64;
    setrlimit(Resource::RLIMIT_NOFILE, next + 18, hard).unwrap();
    // Each reader that borrows bytes keeps a generation.
    let mut readers = Vec::new();
    for _ in 0..10 {
        let id = page.take_slot().unwrap();
        let attached = moving.attach(&page, id, Start::Now, false).unwrap();
        // SAFETY: the reader is neither moved nor detached.
        let mut reader = unsafe { Reader::new(attached, Arc::clone(&page), Start::Now) }.unwrap();
        moving.push(b"borrowed", 1);
        reader.peek();
        readers.push(reader);
        moving.push(&[1; 3 * CAPACITY as usize], 1);
    }
    let stats = moving.stats();
    let mut ended = create(Policy::Block);
    ended.complete();
    let refused = ended.allocate();
    let delivered = Stream::create_beside(config(Policy::Block), "test", &budget);
    let allocated = silent.iter_mut().try_for_each(Stream::allocate);
    setrlimit(Resource::RLIMIT_NOFILE, before, hard).unwrap();
    allocated.unwrap();
    assert!(refused.is_err() && delivered.is_err(), "{refused:?}, {delivered:?}");
    ended.allocate().unwrap();
    // Eight more are left to files that the process has inherited.
    assert!((1..=2).contains(&stats.generation), "2 files were free for {stats:?}");
    assert_eq!(stats.produced, 10 * (8 + 3 * CAPACITY));
    // Then there are files again.
    assert!(matches!(moving.reserve(CAPACITY as usize), Reserve::Ready(_)));
}
