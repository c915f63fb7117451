//! Finishing a source: it reads the bytes that were written so far, and then ends.

use std::io::Write;
use std::os::fd::AsFd;

use super::{blocking_stream, rig};
use iof_capture::{Command, SourceId};
use iof_shm_ring::{Peek, Policy};
use iof_testing::capture::{
    add, stream, wait_closed, wait_end, wait_for_end_of_file, wait_for_ends, wait_until, write_in_pieces,
};
use iof_testing::noise::seeded_pattern;
use iof_testing::pipes::pipe;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

const KIB: u64 = 1024;
const ID: SourceId = SourceId(1);

#[test]
fn finishing_an_idle_source_completes_it_and_its_writer_gets_an_error() {
    let rig = rig();
    let (read, mut write) = pipe();
    rig.capture.send([add(ID, read, stream(64 * KIB, Policy::DropNewest))]).unwrap();
    write.write_all(b"so far").unwrap();
    wait_until(&rig.capture, ID, |stats| stats.produced == 6);
    rig.capture.send([Command::Finish(ID)]).unwrap();
    rig.capture.send([Command::Finish(ID)]).unwrap();
    rig.capture.send([Command::Finish(SourceId(77))]).unwrap();
    let end = wait_end(&rig.events, ID);
    assert_eq!((end.produced, end.closed, end.error.is_none()), (6, true, true));
    wait_closed(&mut write);
}

#[test]
fn finishing_a_source_that_waits_for_its_reader_loses_no_written_byte() {
    let rig = rig();
    let (mut tool, stream, mut reader) = blocking_stream(&rig, 64 * KIB);
    let (read, mut write) = pipe();
    rig.capture.send([add(ID, read, stream)]).unwrap();
    fcntl(&write, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    let bytes = seeded_pattern(1 << 20, 6);
    let mut written = 0;
    // Writes until the pipe is full and the ring has no room for another read.
    let produced = || rig.capture.with_streams(|streams| streams.get(ID).unwrap().stats().produced).unwrap();
    loop {
        match write.write(&bytes[written..][..1000]) {
            Ok(count) => written += count,
            Err(_) if produced() > 48 * KIB => break,
            Err(_) => std::thread::yield_now(),
        }
    }
    rig.capture.send([Command::Finish(ID)]).unwrap();
    let (got, gaps) = tool.read_to_end(&rig.capture, ID, &mut reader);
    assert!(gaps.is_empty() && got == bytes[..written], "{} of {written}", got.len());
    let end = wait_end(&rig.events, ID);
    assert_eq!((end.produced, end.closed), (written as u64, true));
}

#[test]
fn finishing_a_pipe_without_writers_ends_at_end_of_file_even_with_a_slow_reader() {
    let rig = rig();
    let (mut tool, stream, mut reader) = blocking_stream(&rig, 64 * KIB);
    let (read, write) = pipe();
    let same_pipe = read.try_clone().unwrap();
    rig.capture.send([add(ID, read, stream)]).unwrap();
    let bytes = seeded_pattern(100_000, 6);
    write_in_pieces(write, bytes.clone()).join().unwrap();
    wait_for_end_of_file(&same_pipe);
    rig.capture.send([Command::Finish(ID)]).unwrap();
    let (got, gaps) = tool.read_to_end(&rig.capture, ID, &mut reader);
    assert!(gaps.is_empty() && got == bytes);
    assert!(!wait_end(&rig.events, ID).closed);
}

#[test]
fn finishing_ends_although_the_pipe_is_still_being_written() {
    let rig = rig();
    let (read, mut write) = pipe();
    rig.capture.send([add(ID, read, stream(64 * KIB, Policy::DropOldest))]).unwrap();
    let writer = std::thread::spawn(move || while write.write_all(&[7; 5000]).is_ok() {});
    wait_until(&rig.capture, ID, |stats| stats.produced > 1 << 20);
    rig.capture.send([Command::Finish(ID)]).unwrap();
    assert!(wait_end(&rig.events, ID).closed);
    writer.join().unwrap();
}

#[test]
fn finishing_during_a_read_loses_no_written_byte() {
    const WRITTEN: usize = 1 << 20;
    for round in 0..10 {
        let rig = rig();
        let mut writers = Vec::new();
        for id in (0..8).map(SourceId) {
            let (read, mut write) = pipe();
            // The pipe has room for everything, so the writes end while the capture still reads.
            fcntl(write.as_fd(), FcntlArg::F_SETPIPE_SZ(WRITTEN as i32)).unwrap();
            rig.capture.send([add(id, read, stream(16 * KIB, Policy::DropOldest))]).unwrap();
            write.write_all(&vec![1; WRITTEN]).unwrap();
            rig.capture.send([Command::Finish(id)]).unwrap();
            writers.push(write);
        }
        for (id, end) in wait_for_ends(&rig.events, writers.len(), 0).0 {
            assert_eq!(end.produced, WRITTEN as u64, "source {} in round {round}", id.0);
        }
    }
}

#[test]
fn a_source_that_is_closed_with_bytes_in_its_pipe_has_a_broken_end() {
    let rig = rig();
    let (mut tool, stream, mut reader) = blocking_stream(&rig, 64 * KIB);
    let (read, mut write) = pipe();
    rig.capture.send([add(ID, read, stream)]).unwrap();
    fcntl(&write, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    let mut written = 0;
    let produced = || rig.capture.with_streams(|streams| streams.get(ID).unwrap().stats()).unwrap().produced;
    loop {
        match write.write(&[7; 1000]) {
            Ok(count) => written += count,
            Err(_) if produced() > 48 * KIB => break,
            Err(_) => std::thread::yield_now(),
        }
    }
    rig.capture.send([Command::Close(ID)]).unwrap();
    wait_end(&rig.events, ID);
    let (got, gaps) = tool.read_to_end(&rig.capture, ID, &mut reader);
    assert!(gaps.is_empty() && got.len() < written, "{} of {written}", got.len());
    assert_eq!(reader.peek(), Peek::Broken { missing: (written - got.len()) as u64 });
}
