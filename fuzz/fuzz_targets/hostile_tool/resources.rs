//! The files, maps and memory of the process, and what the requests of hostile tools account for.

use std::thread;
use std::time::{Duration, Instant};

/// Streams of the job, including those of logged messages: one pull reads each at most once.
const STREAMS: u64 = 6;
/// Files and maps of a connection: its socket, reader page and doorbell.
const PER_CONNECTION: u64 = 8;
/// Files and maps that one more generation, or one inlet, costs the engine. A data area is mapped
/// twice.
const PER_RING: u64 = 6;
/// Files and maps that the engine and the fuzzer may open for themselves: spare rings, a corpus
/// file.
const SLACK: u64 = 64;
/// Greatest size of one ring or inlet in bytes, with its index: the most that a directive may
/// request.
const RING_BYTES: u64 = 17 << 20;
/// Bytes that the fuzzer and the engine may allocate on their heaps.
const HEAP_SLACK: u64 = 512 << 20;

/// The resources that the process uses.
#[derive(Clone, Copy, Debug)]
pub struct Resources {
    files: u64,
    maps: u64,
    /// Resident bytes of shared memory.
    shared: u64,
    /// Resident bytes of the heap.
    heap: u64,
}

impl Resources {
    pub fn now() -> Resources {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let kib = |field| {
            let line: &str = status.lines().find_map(|line: &str| line.strip_prefix(field)).unwrap();
            line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap()
        };
        Resources {
            files: std::fs::read_dir("/proc/self/fd").unwrap().count() as u64,
            maps: std::fs::read_to_string("/proc/self/maps").unwrap().lines().count() as u64,
            shared: kib("RssShmem:") << 10,
            heap: kib("RssAnon:") << 10,
        }
    }

    /// Returns whether this is at most `before` plus what `requested` accounts for.
    pub fn is_within(&self, before: &Resources, requested: &Requested) -> bool {
        let Requested { connections, pulls, pushes } = *requested;
        // A pull has at most one old generation of each of its streams, and may cause a new one for
        // all.
        let rings = pulls * STREAMS * 2 + pushes;
        let files = connections * PER_CONNECTION + rings * PER_RING + SLACK;
        self.files <= before.files + files
            && self.maps <= before.maps + files
            && self.shared <= before.shared + (rings + 8) * RING_BYTES
            && self.heap <= before.heap + HEAP_SLACK
    }
}

/// The requests that the hostile tools of one input have sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Requested {
    pub connections: u64,
    pub pulls: u64,
    pub pushes: u64,
}

/// Waits until the engine has released the resources of closed connections.
pub fn settle(before: &Resources) {
    let start = Instant::now();
    loop {
        let used = Resources::now();
        if used.is_within(before, &Requested::default()) {
            return;
        }
        assert!(
            start.elapsed() < Duration::from_secs(8),
            "used before: {before:?}; after all connections are closed: {used:?}"
        );
        thread::sleep(Duration::from_millis(1));
    }
}
