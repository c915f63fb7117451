//! Processes that hold the locks of their pipes, and sources that are therefore isolated: read by
//! threads of their own.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use iof_capture::{Capture, Command, Event, PipeId, PushId, SourceId, TargetId};
use iof_shm_ring::{Inlet, Policy};
use iof_testing::capture::{
    add, deliver, next, stream, tool, wait_closed, wait_end, wait_for_end_of_file, wait_for_turn, wait_until,
};
use iof_testing::noise::seeded_pattern;
use iof_testing::pipes::pipe;
use iof_testing::stalled::StalledPage;

use super::{blocking_stream, rig};

const KIB: u64 = 1024;
const ID: SourceId = SourceId(1);
const OTHER: SourceId = SourceId(2);

/// Lets these tests run one after the other, because they count threads.
fn run_alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a stalled page, or `None` if this user may not create one.
fn stalled_page() -> Option<Arc<StalledPage>> {
    let refused = |error| eprintln!("not tested: this user may not stall a system call ({error})");
    StalledPage::new().map_err(refused).ok().map(Arc::new)
}

/// Waits until `count` sources have a thread of their own.
fn wait_for_threads(count: usize) {
    let start = Instant::now();
    loop {
        let names = fs::read_dir("/proc/self/task").unwrap();
        let names = names.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
        if names.filter(|name| name == "iof-isolated\n").count() == count {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "expected {count} threads");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Starts a thread that writes 100 bytes from `page` to `pipe`. It holds the pipe's lock until the
/// page is resolved.
fn hold_lock(pipe: &File, page: &Arc<StalledPage>) -> thread::JoinHandle<()> {
    let (pipe, writer_page) = (pipe.try_clone().unwrap(), Arc::clone(page));
    let holder = thread::spawn(move || assert_eq!(writer_page.write_to(pipe, 100).unwrap(), 100));
    page.wait_for_use().unwrap();
    holder
}

/// Adds an isolated source and waits for its thread.
fn add_isolated(capture: &Capture, id: SourceId, pipe: OwnedFd, stream: iof_shm_ring::Stream) {
    capture.send([add(id, pipe, stream)]).unwrap();
    capture.send([Command::Isolate(id)]).unwrap();
    wait_for_threads(1);
}

#[test]
fn a_writer_that_stalls_the_capture_is_reported_meanwhile_and_can_be_isolated() {
    let _alone = run_alone();
    let (Some(first), Some(second)) = (stalled_page(), stalled_page()) else { return };
    let rig = rig();
    let (read, mut write) = pipe();
    // The capture's first read finds a byte and must wait for the lock.
    write.write_all(b"x").unwrap();
    let holder = hold_lock(&write, &first);
    rig.capture.send([add(ID, read, stream(64 * KIB, Policy::DropNewest))]).unwrap();
    let event = next(&rig.events);
    assert!(matches!(event, Event::Stalled { pipe: PipeId::Source(ID) }), "{event:?}");
    rig.capture.send([Command::Isolate(ID)]).unwrap();
    first.resolve(b"").unwrap();
    holder.join().unwrap();
    wait_for_threads(1);
    // From now on, a stall of this source does not stop the others.
    write.write_all(b"x").unwrap();
    let holder = hold_lock(&write, &second);
    let (read, mut other) = pipe();
    rig.capture.send([add(OTHER, read, stream(64 * KIB, Policy::DropNewest))]).unwrap();
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
fn all_writers_that_hold_pipe_locks_are_reported_whichever_stalls_the_capture() {
    let _alone = run_alone();
    let pages: Vec<_> = (0..4).map_while(|_| stalled_page()).collect();
    if pages.len() < 4 {
        return;
    }
    let rig = rig();
    let pipes: Vec<_> = (0..4).map(|_| pipe()).collect();
    let mut holders = Vec::new();
    let mut writers = Vec::new();
    let wait_stalled = |count: usize| {
        let stalled = (0..count).map(|_| match next(&rig.events) {
            Event::Stalled { pipe: PipeId::Source(id) } => id.0,
            other => panic!("{other:?}"),
        });
        let mut stalled: Vec<_> = stalled.collect();
        stalled.sort_unstable();
        stalled
    };
    for (id, ((read, mut write), page)) in (0..).map(SourceId).zip(pipes.into_iter().zip(&pages)) {
        let add = |read| rig.capture.send([add(id, read, stream(64 * KIB, Policy::DropNewest))]).unwrap();
        if id.0 < 2 {
            // The capture waits for bytes of these pipes. It does not access them while they are
            // locked.
            add(read);
            wait_for_turn(&rig);
            holders.push(hold_lock(&write, page));
        } else {
            // The capture's first read finds a byte and must wait for the lock.
            write.write_all(b"x").unwrap();
            holders.push(hold_lock(&write, page));
            add(read);
            let expected = if id.0 == 2 { vec![0, 1, 2] } else { vec![3] };
            assert_eq!(wait_stalled(expected.len()), expected);
            page.resolve(b"").unwrap();
            wait_until(&rig.capture, id, |stats| stats.produced == 101);
        }
        writers.push(write);
    }
    pages.iter().take(2).for_each(|page| page.resolve(b"").unwrap());
    holders.into_iter().for_each(|holder| holder.join().unwrap());
}

#[test]
fn a_reader_of_stdin_that_stalls_the_capture_is_reported() {
    let _alone = run_alone();
    let Some(page) = stalled_page() else { return };
    let rig = rig();
    let (read, mut write) = pipe();
    write.write_all(b"x").unwrap();
    let reader_page = Arc::clone(&page);
    let reader = thread::spawn(move || {
        assert_eq!(reader_page.read_from(&read, 1).unwrap(), 1);
        read
    });
    page.wait_for_use().unwrap();
    rig.capture.send([Command::AddTarget { target: TargetId(1), pipe: write.into() }]).unwrap();
    let inlet = Arc::new(Inlet::create(4096, "test").unwrap());
    rig.capture
        .send([Command::BeginPush { push: PushId(1), inlet, targets: vec![TargetId(1)], closes: true }])
        .unwrap();
    rig.capture.send([Command::Fill { push: PushId(1), bytes: 1, last: true }]).unwrap();
    let event = next(&rig.events);
    assert!(matches!(event, Event::Stalled { pipe: PipeId::Target(TargetId(1)) }), "{event:?}");
    page.resolve(b"").unwrap();
    drop(reader.join().unwrap());
}

#[test]
fn every_byte_of_an_isolated_source_arrives_through_a_much_smaller_ring() {
    let _alone = run_alone();
    let rig = rig();
    let (mut tool, stream, mut reader) = blocking_stream(&rig, 64 * KIB);
    let (read, mut write) = pipe();
    let bytes = seeded_pattern(1 << 20, 1);
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
    let _alone = run_alone();
    let rig = rig();
    let mut tool = tool();
    let mut stream = stream(64 * KIB, Policy::DropNewest);
    let mut reader = tool.attach_first(&mut stream, false);
    let (read, mut write) = pipe();
    let bytes = seeded_pattern(1 << 20, 2);
    add_isolated(&rig.capture, ID, read, stream);
    write.write_all(&bytes).unwrap();
    drop(write);
    assert_eq!(wait_end(&rig.events, ID).dropped, (1 << 20) - 64 * KIB);
    let (got, _) = tool.read_to_end(&rig.capture, ID, &mut reader);
    assert!(got == bytes[..64 << 10]);
}

#[test]
fn finishing_an_isolated_source_reads_the_bytes_in_its_pipe() {
    let _alone = run_alone();
    for (held_open, before) in [(true, 100_000), (false, 100_000), (true, 0), (false, 0)] {
        let rig = rig();
        let (read, mut write) = pipe();
        nix::fcntl::fcntl(&write, nix::fcntl::FcntlArg::F_SETPIPE_SZ(1 << 20)).unwrap();
        write.write_all(&vec![b'x'; before]).unwrap();
        let same_pipe = read.try_clone().unwrap();
        add_isolated(&rig.capture, ID, read, stream(1024 * KIB, Policy::DropNewest));
        let keep = held_open.then(|| write.try_clone().unwrap());
        drop(write);
        if !held_open {
            wait_for_end_of_file(&same_pipe);
        }
        rig.capture.send([Command::Finish(ID)]).unwrap();
        let end = wait_end(&rig.events, ID);
        assert_eq!((end.produced, end.closed), (before as u64, held_open));
        drop(keep);
    }
}

#[test]
fn an_isolated_source_takes_no_deliveries() {
    let _alone = run_alone();
    let rig = rig();
    let (read, mut write) = pipe();
    add_isolated(&rig.capture, ID, read, stream(64 * KIB, Policy::DropNewest));
    rig.capture.send([deliver(ID, b"refused".to_vec())]).unwrap();
    let refused = next(&rig.events);
    assert!(matches!(refused, Event::Delivered { source: ID, deliveries: 1, bytes: 7 }), "{refused:?}");
    write.write_all(b"own").unwrap();
    drop(write);
    assert_eq!(wait_end(&rig.events, ID).produced, 3);
}

#[test]
fn closing_a_source_does_not_wait_for_its_stuck_thread() {
    let _alone = run_alone();
    let Some(page) = stalled_page() else { return };
    let rig = rig();
    let (read, mut write) = pipe();
    add_isolated(&rig.capture, ID, read, stream(64 * KIB, Policy::DropNewest));
    let holder = hold_lock(&write, &page);
    // The thread asks for the number of unread bytes, and must wait for the lock.
    rig.capture.send([Command::Finish(ID)]).unwrap();
    rig.capture.send([Command::Close(ID)]).unwrap();
    assert!(wait_end(&rig.events, ID).closed);
    drop(rig);
    page.resolve(b"").unwrap();
    holder.join().unwrap();
    wait_for_threads(0);
    wait_closed(&mut write);
}
