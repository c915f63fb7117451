//! Many sources, busy and idle ones.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use iof_capture::{Capture, Command, SourceId, raise_file_limit};
use iof_shm_ring::Policy;

use super::rig;
use iof_testing::capture::{add, stream, tool, wait_end, wait_for_ends, wait_until};
use iof_testing::noise::seeded_pattern;
use iof_testing::pipes::pipe;

const KIB: u64 = 1024;

/// Clears a flag when it is dropped, so that a failed test does not wait for its flooding threads.
struct ClearOnDrop<'a>(&'a AtomicBool);

impl Drop for ClearOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[test]
fn a_flood_delays_no_other_source_and_sources_can_be_added_during_it() {
    let rig = rig();
    let on = AtomicBool::new(true);
    let flooders = [Policy::DropOldest, Policy::DropNewest, Policy::DropOldest];
    let (quiet, short_lived) = (SourceId(100), SourceId(101));
    thread::scope(|scope| {
        let _clear = ClearOnDrop(&on);
        for (id, policy) in (0..).zip(flooders) {
            let (read, mut write) = pipe();
            rig.capture.send([add(SourceId(id), read, stream(64 * KIB, policy))]).unwrap();
            let on = &on;
            scope.spawn(move || {
                while on.load(Ordering::Relaxed) {
                    write.write_all(&[7; 8192]).unwrap();
                }
            });
        }
        for id in 0..3 {
            wait_until(&rig.capture, SourceId(id), |stats| stats.produced > 256 * KIB);
        }
        let (read, mut write) = pipe();
        rig.capture.send([add(quiet, read, stream(64 * KIB, Policy::DropNewest))]).unwrap();
        for line in 1..=50 {
            write.write_all(b"a line\n").unwrap();
            wait_until(&rig.capture, quiet, |stats| stats.produced == line * 7);
            let (read, mut write) = pipe();
            rig.capture.send([add(short_lived, read, stream(KIB, Policy::Block))]).unwrap();
            write.write_all(b"x").unwrap();
            drop(write);
            assert_eq!(wait_end(&rig.events, short_lived).produced, 1);
            rig.capture.send([Command::Remove(short_lived)]).unwrap();
        }
        let produced = |id| {
            let stats = rig.capture.with_streams(|streams| streams.get(SourceId(id)).unwrap().stats());
            stats.unwrap().produced
        };
        for id in 0..3 {
            let before = produced(id);
            wait_until(&rig.capture, SourceId(id), |stats| stats.produced > before);
        }
    });
}

/// Waits until the thread `tid` of this process sleeps, and returns how often it has gone to sleep,
/// see proc_pid_status(5).
fn sleep_count(tid: i32) -> u64 {
    loop {
        let status = std::fs::read_to_string(format!("/proc/self/task/{tid}/status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().to_owned()
        };
        if field("State:") == "S" {
            return field("voluntary_ctxt_switches:").parse().unwrap();
        }
        thread::yield_now();
    }
}

/// Returns whether the idle thread `tid` sleeps through 2.5 seconds. A thread that wakes once a
/// second fails.
///
/// The thread has three attempts, because in the first it may still have work to do or wait for a
/// lock, such as the allocator's.
pub(super) fn stays_asleep(tid: i32) -> bool {
    (0..3).any(|_| {
        let before = sleep_count(tid);
        thread::sleep(Duration::from_millis(2500));
        sleep_count(tid) == before
    })
}

pub(super) fn thread_of(capture: &Capture) -> i32 {
    capture.with_streams(|_| nix::unistd::gettid().as_raw()).unwrap()
}

#[test]
fn among_thousands_of_sources_only_active_ones_wake_the_capture() {
    // A quarter of the limit on open files, at three files each.
    let sources = (raise_file_limit().unwrap() / 12).min(3000);
    let rig = rig();
    let mut tool = tool();
    let mut active = Vec::new();
    let mut idle: Vec<OwnedFd> = Vec::new();
    for id in 0..sources {
        let mut stream = stream(16 * KIB, Policy::DropNewest);
        let (read, write) = pipe();
        if id % 100 == 0 {
            active.push((id, write, tool.attach_first(&mut stream, false)));
        } else {
            idle.push(write.into());
        }
        rig.capture.send([add(SourceId(id), read, stream)]).unwrap();
    }
    assert!(stays_asleep(thread_of(&rig.capture)), "the capture thread wakes without a cause");

    let mut readers = Vec::new();
    for (id, mut write, reader) in active {
        write.write_all(&seeded_pattern(3000, id)).unwrap();
        readers.push((id, reader));
    }
    let (ends, _) = wait_for_ends(&rig.events, readers.len(), 0);
    for (id, mut reader) in readers {
        assert_eq!(ends[&SourceId(id)].produced, 3000);
        let (bytes, gaps) = tool.read_to_end(&rig.capture, SourceId(id), &mut reader);
        assert!(bytes == seeded_pattern(3000, id) && gaps.is_empty(), "source {id}");
    }
    let rest = idle.len();
    drop(idle);
    let (ends, _) = wait_for_ends(&rig.events, rest, 0);
    assert!(ends.values().all(|end| end.produced == 0 && end.error.is_none()));
}
