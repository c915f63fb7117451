//! Many sources, loud and quiet ones.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use iof_capture::{Capture, SourceId, raise_file_limit};
use iof_shm_ring::Policy;

use super::rig;
use crate::common::{pattern, pipe, stream, tool, wait_end, wait_for, wait_until};

const KIB: u64 = 1024;

/// Switches off when it goes, so that nobody waits for a flood to end that nobody ends.
struct Switch<'a>(&'a AtomicBool);

impl Drop for Switch<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[test]
fn a_flood_keeps_nobody_waiting_and_sources_come_and_go_in_it() {
    let rig = rig();
    let on = AtomicBool::new(true);
    let flooders = [Policy::DropOldest, Policy::DropNewest, Policy::DropOldest];
    let (quiet, fleeting) = (SourceId(100), SourceId(101));
    thread::scope(|scope| {
        let _switch = Switch(&on);
        for (at, policy) in (0..).zip(flooders) {
            let (read, mut write) = pipe();
            rig.capture.add(SourceId(at), read, stream(64 * KIB, policy)).unwrap();
            let on = &on;
            scope.spawn(move || {
                while on.load(Ordering::Relaxed) {
                    write.write_all(&[7; 8192]).unwrap();
                }
            });
        }
        for at in 0..3 {
            wait_until(&rig.capture, SourceId(at), |stats| stats.produced > 256 * KIB);
        }
        let (read, mut write) = pipe();
        rig.capture.add(quiet, read, stream(64 * KIB, Policy::DropNewest)).unwrap();
        for line in 1..=50 {
            write.write_all(b"a line\n").unwrap();
            wait_until(&rig.capture, quiet, |stats| stats.produced == line * 7);
            let (read, mut write) = pipe();
            rig.capture.add(fleeting, read, stream(KIB, Policy::Block)).unwrap();
            write.write_all(b"x").unwrap();
            drop(write);
            assert_eq!(wait_end(&rig.events, fleeting).produced, 1);
            rig.capture.remove(fleeting).unwrap();
        }
        let loud = |at| {
            let stats = rig.capture.with_streams(|streams| streams.get_mut(SourceId(at)).unwrap().stats());
            stats.unwrap().produced
        };
        for at in 0..3 {
            let before = loud(at);
            wait_until(&rig.capture, SourceId(at), |stats| stats.produced > before);
        }
    });
}

/// How often the thread `tid` of this process fell asleep, once it sleeps; see proc_pid_status(5).
fn naps(tid: i32) -> u64 {
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

/// Whether the thread `tid`, for which there is nothing to do any more, sleeps longer than who
/// wakes once a second.
///
/// It is given three nights, because it may still have something to do in the first, or wait for a
/// lock of the allocator, say.
pub(super) fn sleeps_well(tid: i32) -> bool {
    (0..3).any(|_| {
        let before = naps(tid);
        thread::sleep(Duration::from_millis(2500));
        naps(tid) == before
    })
}

pub(super) fn thread_of(capture: &Capture) -> i32 {
    capture.with_streams(|_| nix::unistd::gettid().as_raw()).unwrap()
}

#[test]
fn of_thousands_of_sources_the_active_ones_are_heard_and_nobody_wakes_for_the_others() {
    // A quarter of what may be open, at three files each.
    let sources = (raise_file_limit().unwrap() / 12).min(3000);
    let rig = rig();
    let mut tool = tool();
    let mut active = Vec::new();
    let mut idle: Vec<OwnedFd> = Vec::new();
    for at in 0..sources {
        let mut stream = stream(16 * KIB, Policy::DropNewest);
        let (read, write) = pipe();
        if at % 100 == 0 {
            active.push((at, write, tool.attach_first(&mut stream, false)));
        } else {
            idle.push(write.into());
        }
        rig.capture.add(SourceId(at), read, stream).unwrap();
    }
    assert!(sleeps_well(thread_of(&rig.capture)), "it wakes though nothing happens");

    let mut readers = Vec::new();
    for (at, mut write, reader) in active {
        write.write_all(&pattern(3000, at)).unwrap();
        readers.push((at, reader));
    }
    let (ends, _) = wait_for(&rig.events, readers.len(), 0);
    for (at, mut reader) in readers {
        assert_eq!(ends[&SourceId(at)].produced, 3000);
        let (bytes, gaps) = tool.read_to_end(&rig.capture, SourceId(at), &mut reader);
        assert!(bytes == pattern(3000, at) && gaps.is_empty(), "source {at}");
    }
    let rest = idle.len();
    drop(idle);
    let (ends, _) = wait_for(&rig.events, rest, 0);
    assert!(ends.values().all(|end| end.produced == 0 && end.error.is_none()));
}
