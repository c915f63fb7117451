//! The order in which two pipes of a process are read while one of them collects bytes.

use std::fs::File;
use std::io::Write as _;

use iof_shm_ring::{Peek, Policy, Reader, ReaderPage, Start, StreamConfig};

use crate::backend::{Epoll, Uring};
use crate::thread::driver::*;

/// Writes "late" to a pipe whose readers are behind, then "next" to the other pipe of its process.
/// Checks that "late" is stored first.
fn check_order<B: Backend>(backend: B) {
    let (ringer, driver_bell) = iof_shm_ring::bell().unwrap();
    let (inbox, receiver) = Inbox::new(ringer);
    let mut driver = Driver::new(backend, driver_bell, receiver, inbox, Arc::default(), Arc::new(|_| {}));
    driver.begin();
    let page = Arc::new(ReaderPage::create(iof_shm_ring::bell().unwrap().0).unwrap());
    let config = StreamConfig { capacity: 1 << 16, policy: Policy::Block };
    let mut streams = [(); 2].map(|()| Stream::create(config, "test").unwrap());
    Stream::share_order(&mut streams);
    let mut number = 0;
    let [(first, mut out, mut out_reader), (second, mut err, mut err_reader)] = streams.map(|mut stream| {
        let reader_id = page.take_slot().unwrap();
        let attached = stream.attach(&page, reader_id, Start::Oldest, true).unwrap();
        // SAFETY: the reader is neither detached nor moved to another generation.
        let reader = unsafe { Reader::new(attached, Arc::clone(&page), Start::Oldest) }.unwrap();
        let (pipe, write) = nix::unistd::pipe().unwrap();
        number += 1;
        let source = NewSource { id: SourceId(number), pipe, stream, first: None };
        (driver.add(source, false), File::from(write), reader)
    });
    let produced =
        |driver: &Driver<B>, index| driver.sources.table.source(index).unwrap().stream().stats().produced;
    // Small reads of one pipe, after which all of its readers have a backlog.
    for _ in 0..2 {
        out.write_all(&[0; 2048]).unwrap();
        let before = produced(&driver, first);
        while produced(&driver, first) < before + 2048 {
            assert!(driver.turn());
        }
    }
    assert_eq!(driver.collecting.len(), usize::from(B::HAS_SHORT_PAUSES));
    out.write_all(b"late").unwrap();
    err.write_all(b"next").unwrap();
    while produced(&driver, second) == 0 {
        assert!(driver.turn());
    }
    assert_eq!(out_reader.peek(), Peek::Bytes);
    assert_eq!(&out_reader.bytes()[4096..], b"late");
    assert_eq!(err_reader.peek(), Peek::Bytes);
    let mut times = Vec::new();
    out_reader.times(&mut times);
    err_reader.times(&mut times);
    let [.., (_, late), (_, next)] = times[..] else { panic!("{times:?}") };
    assert!(late < next, "{late} and {next}");
    while !driver.collecting.is_empty() {
        assert!(driver.turn(), "the pause ends");
    }
}

#[test]
fn on_epoll_a_pipe_that_collects_bytes_is_not_overtaken() {
    check_order(Epoll::new().unwrap());
}

#[test]
fn on_io_uring_a_pipe_that_collects_bytes_is_not_overtaken() {
    if let Ok(uring) = Uring::new() {
        check_order(uring);
    }
}
