//! Processes that hold the locks of their pipes, and sources that have threads of their own because
//! of it.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use iof_capture::{Capture, Event, PipeId, PushId, SourceId, TargetId};
use iof_shm_ring::{Inlet, Policy};
use iof_stalled_memory::StalledPage;

use super::{held_back_by_its_reader, rig};
use crate::common::{Rig, next, pattern, pipe, stream, tool, wait_closed, wait_end, wait_until};

const KIB: u64 = 1024;
const ID: SourceId = SourceId(1);
const OTHER: SourceId = SourceId(2);

/// These tests count threads, and so come one after the other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stalled_page() -> Option<Arc<StalledPage>> {
    let refused = |error| eprintln!("not tested: this user may not stall a system call ({error})");
    StalledPage::new().map_err(refused).ok().map(Arc::new)
}

/// Waits until so many sources have a thread of their own.
fn wait_for_threads(count: usize) {
    let begun = Instant::now();
    loop {
        let names = fs::read_dir("/proc/self/task").unwrap();
        let names = names.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
        if names.filter(|name| name == "iof-isolated\n").count() == count {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "there are never {count} threads");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Begins to write 100 bytes to `pipe` from `page`, and holds its lock until the page is resolved.
fn hold(pipe: &File, page: &Arc<StalledPage>) -> thread::JoinHandle<()> {
    let (pipe, writers) = (pipe.try_clone().unwrap(), Arc::clone(page));
    let holder = thread::spawn(move || assert_eq!(writers.write_to(pipe, 100).unwrap(), 100));
    page.wait_for_use().unwrap();
    holder
}

/// Waits until the capture thread has handed in what it was asked for up to now.
fn wait_for_turn(rig: &Rig) {
    // The first answer ends a turn, and the second comes in a later one.
    for _ in 0..2 {
        rig.capture.deliver(SourceId(99), Vec::new(), None).unwrap();
        let answer = next(&rig.events);
        assert!(matches!(answer, Event::Delivered { source: SourceId(99), .. }), "{answer:?}");
    }
}

/// Adds a source that has a thread of its own.
fn add_isolated(capture: &Capture, id: SourceId, pipe: OwnedFd, stream: iof_shm_ring::Stream) {
    capture.add(id, pipe, stream).unwrap();
    capture.isolate(id).unwrap();
    wait_for_threads(1);
}

#[test]
fn a_writer_that_stalls_the_capture_is_named_while_it_does_and_can_be_isolated() {
    let _alone = alone();
    let (Some(first), Some(second)) = (stalled_page(), stalled_page()) else { return };
    let rig = rig();
    let (read, mut write) = pipe();
    // The capture's first read finds a byte, and the lock taken.
    write.write_all(b"x").unwrap();
    let holder = hold(&write, &first);
    rig.capture.add(ID, read, stream(64 * KIB, Policy::DropNewest)).unwrap();
    let named = next(&rig.events);
    assert!(matches!(named, Event::Stalled { pipe: PipeId::Source(ID) }), "{named:?}");
    rig.capture.isolate(ID).unwrap();
    first.resolve(b"").unwrap();
    holder.join().unwrap();
    wait_for_threads(1);
    // From now on, others go on while it stalls.
    write.write_all(b"x").unwrap();
    let holder = hold(&write, &second);
    let (read, mut other) = pipe();
    rig.capture.add(OTHER, read, stream(64 * KIB, Policy::DropNewest)).unwrap();
    other.write_all(b"line\n").unwrap();
    wait_until(&rig.capture, OTHER, |stats| stats.produced == 5);
    drop(other);
    wait_end(&rig.events, OTHER);
    second.resolve(b"").unwrap();
    holder.join().unwrap();
    drop(write);
    let end = wait_end(&rig.events, ID);
    assert_eq!((end.produced, end.dropped, end.closed, end.error.is_none()), (202, 0, false, true));
    wait_for_threads(0);
}

#[test]
fn all_writers_that_hold_their_pipes_are_named_whichever_stalls_the_capture() {
    let _alone = alone();
    let pages: Vec<_> = (0..4).map_while(|_| stalled_page()).collect();
    if pages.len() < 4 {
        return;
    }
    let rig = rig();
    let pipes: Vec<_> = (0..4).map(|_| pipe()).collect();
    let mut holders = Vec::new();
    let mut writers = Vec::new();
    let named = |count: usize| {
        let stalled = (0..count).map(|_| match next(&rig.events) {
            Event::Stalled { pipe: PipeId::Source(id) } => id.0,
            other => panic!("{other:?}"),
        });
        let mut stalled: Vec<_> = stalled.collect();
        stalled.sort_unstable();
        stalled
    };
    for (id, ((read, mut write), page)) in (0..).map(SourceId).zip(pipes.into_iter().zip(&pages)) {
        let add = |read| rig.capture.add(id, read, stream(64 * KIB, Policy::DropNewest)).unwrap();
        if id.0 < 2 {
            // The capture waits for bytes of these, and does not touch them when they are locked.
            add(read);
            wait_for_turn(&rig);
            holders.push(hold(&write, page));
        } else {
            // The capture's first read finds a byte, and the lock taken.
            write.write_all(b"x").unwrap();
            holders.push(hold(&write, page));
            add(read);
            let new = if id.0 == 2 { vec![0, 1, 2] } else { vec![3] };
            assert_eq!(named(new.len()), new);
            page.resolve(b"").unwrap();
            wait_until(&rig.capture, id, |stats| stats.produced == 101);
        }
        writers.push(write);
    }
    pages.iter().take(2).for_each(|page| page.resolve(b"").unwrap());
    holders.into_iter().for_each(|holder| holder.join().unwrap());
}

#[test]
fn a_reader_of_stdin_that_stalls_the_capture_is_named() {
    let _alone = alone();
    let Some(page) = stalled_page() else { return };
    let rig = rig();
    let (read, mut write) = pipe();
    write.write_all(b"x").unwrap();
    let readers = Arc::clone(&page);
    let reader = thread::spawn(move || {
        assert_eq!(readers.read_from(&read, 1).unwrap(), 1);
        read
    });
    page.wait_for_use().unwrap();
    rig.capture.add_target(TargetId(1), write.into()).unwrap();
    let inlet = Arc::new(Inlet::create(4096, "test").unwrap());
    rig.capture.begin_push(PushId(1), inlet, vec![TargetId(1)], true).unwrap();
    rig.capture.fill(PushId(1), 1, true).unwrap();
    let named = next(&rig.events);
    assert!(matches!(named, Event::Stalled { pipe: PipeId::Target(TargetId(1)) }), "{named:?}");
    page.resolve(b"").unwrap();
    drop(reader.join().unwrap());
}

#[test]
fn every_byte_of_an_isolated_source_arrives_through_a_ring_much_smaller_than_they() {
    let _alone = alone();
    let rig = rig();
    let (mut tool, stream, mut reader) = held_back_by_its_reader(&rig, 64 * KIB);
    let (read, mut write) = pipe();
    let bytes = pattern(1 << 20, 1);
    add_isolated(&rig.capture, ID, read, stream);
    let written = bytes.clone();
    let writer = thread::spawn(move || write.write_all(&written).unwrap());
    let (got, gaps) = tool.read_to_end(&rig.capture, ID, &mut reader);
    writer.join().unwrap();
    assert!(got == bytes && gaps.is_empty());
    let end = wait_end(&rig.events, ID);
    assert_eq!((end.produced, end.dropped, end.closed), (1 << 20, 0, false));
    wait_for_threads(0);
}

#[test]
fn an_isolated_source_drops_by_its_policy() {
    let _alone = alone();
    let rig = rig();
    let mut tool = tool();
    let mut stream = stream(64 * KIB, Policy::DropNewest);
    let mut reader = tool.attach_first(&mut stream, false);
    let (read, mut write) = pipe();
    let bytes = pattern(1 << 20, 2);
    add_isolated(&rig.capture, ID, read, stream);
    write.write_all(&bytes).unwrap();
    drop(write);
    assert_eq!(wait_end(&rig.events, ID).dropped, (1 << 20) - 64 * KIB);
    let (got, _) = tool.read_to_end(&rig.capture, ID, &mut reader);
    assert!(got == bytes[..64 << 10]);
}

#[test]
fn an_isolated_source_is_finished_with_what_its_pipe_has() {
    let _alone = alone();
    for (held_open, before) in [(true, 100_000), (false, 100_000), (true, 0), (false, 0)] {
        let rig = rig();
        let (read, mut write) = pipe();
        nix::fcntl::fcntl(&write, nix::fcntl::FcntlArg::F_SETPIPE_SZ(1 << 20)).unwrap();
        write.write_all(&vec![b'x'; before]).unwrap();
        add_isolated(&rig.capture, ID, read, stream(1024 * KIB, Policy::DropNewest));
        let keep = held_open.then(|| write.try_clone().unwrap());
        drop(write);
        rig.capture.finish(ID).unwrap();
        let end = wait_end(&rig.events, ID);
        assert_eq!((end.produced, end.closed), (before as u64, held_open));
        drop(keep);
    }
}

#[test]
fn an_isolated_source_takes_no_deliveries() {
    let _alone = alone();
    let rig = rig();
    let (read, mut write) = pipe();
    add_isolated(&rig.capture, ID, read, stream(64 * KIB, Policy::DropNewest));
    rig.capture.deliver(ID, b"strange".to_vec(), None).unwrap();
    let refused = next(&rig.events);
    assert!(matches!(refused, Event::Delivered { source: ID, deliveries: 1, bytes: 7 }), "{refused:?}");
    write.write_all(b"own").unwrap();
    drop(write);
    assert_eq!(wait_end(&rig.events, ID).produced, 3);
}

#[test]
fn nothing_waits_for_the_thread_of_a_source_that_is_closed_while_it_is_stuck() {
    let _alone = alone();
    let Some(page) = stalled_page() else { return };
    let rig = rig();
    let (read, mut write) = pipe();
    add_isolated(&rig.capture, ID, read, stream(64 * KIB, Policy::DropNewest));
    let holder = hold(&write, &page);
    // The thread asks how much there is, and is stuck.
    rig.capture.finish(ID).unwrap();
    rig.capture.close(ID).unwrap();
    assert!(wait_end(&rig.events, ID).closed);
    drop(rig);
    page.resolve(b"").unwrap();
    holder.join().unwrap();
    wait_for_threads(0);
    wait_closed(&mut write);
}
