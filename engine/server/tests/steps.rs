//! The step of a reader in the engine's process, which the capture thread does while the reader
//! sleeps.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::io::Write;
use std::thread;

use iof_engine::{BackendKind, Grant, JobSpec};
use iof_testing::engine::{adopt_pipe, engine_on, nspace, puller, shell};
use iof_testing::wait_for;
use iof_tool::{BatchReader, Peeked, PollReady};

const LINE: &[u8] = b"0123456\n";

/// Reads a stream to its end. Returns how it has ended, and the number of bytes.
fn read_all(mut reader: BatchReader) -> (Peeked, usize) {
    let (mut streams, mut length, mut end) = (Vec::new(), 0, Peeked::Nothing);
    while reader.poll_ready(None, &mut streams).unwrap() != PollReady::Done {
        for &stream in &streams {
            match reader.peek(stream) {
                Peeked::Bytes => {
                    let bytes = reader.bytes(stream).unwrap();
                    let whole = LINE.iter().cycle().skip(length % LINE.len());
                    assert!(bytes.as_slice().iter().eq(whole.take(bytes.len())));
                    let count = bytes.len();
                    reader.consume(stream, count);
                    length += count;
                }
                Peeked::Nothing => {}
                other => end = other,
            }
        }
    }
    (end, length)
}

#[test]
fn after_a_step_that_panics_all_bytes_that_were_read_arrive_and_the_job_ends() {
    for backend in [None, Some(BackendKind::Epoll)] {
        let engine = engine_on(backend);
        let reader = BatchReader::new(puller(&engine, Grant::Block, Vec::new()));
        reader.stepper().unwrap().set(|| panic!("as the test requires"));
        let (job, mut rank) = adopt_pipe(&engine, &[]);
        let reading = thread::spawn(move || read_all(reader));
        // Until the step has found the reader asleep.
        let writing = thread::spawn(move || while rank.write_all(LINE).is_ok() {});
        wait_for("the end of the stream", || reading.is_finished().then_some(()));
        let (end, length) = reading.join().unwrap();
        let Peeked::Broken { counts, .. } = end else { panic!("{end:?}") };
        assert_eq!((counts.produced, counts.lost), (length.try_into().unwrap(), 0));
        writing.join().unwrap();
        // Tells that the rank may have written more.
        assert_eq!(job.endings().count(), 1);
        let again = JobSpec::new(nspace(), vec![shell("true")]);
        assert!(engine.spawn(&again).is_err());
    }
}
