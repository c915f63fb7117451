use std::sync::Arc;
use std::time::Duration;

use iof_shm_ring::{Area, Grouping, Policy, Start, Stream, StreamConfig, bell, notify};

use super::*;

/// A target of a stream with `policy`, and the other end of its pipe.
fn target(policy: Policy) -> (Target, Stream, Arc<Area>, OwnedFd) {
    let (read, write) = nix::unistd::pipe().unwrap();
    let mut stream = stream(policy);
    let area = Arc::new(Area::create(bell().unwrap().0).unwrap());
    let reader = reader(&mut stream, &area);
    (Target::new(TargetId(1), write, reader), stream, area, read)
}

fn stream(policy: Policy) -> Stream {
    Stream::create(StreamConfig { capacity: 4096, policy }, "test").unwrap()
}

fn reader(stream: &mut Stream, area: &Arc<Area>) -> Reader {
    let at = stream.attach(area, area.take_slot().unwrap(), Start::Oldest, false).unwrap();
    // SAFETY: nobody detaches it, and it moves when it is sealed.
    unsafe { Reader::new(at, Arc::clone(area), Start::Oldest) }.unwrap()
}

fn errno(errno: i32) -> io::Result<usize> {
    Err(io::Error::from_raw_os_error(errno))
}

#[test]
fn what_is_in_flight_is_asked_for_once_and_a_partial_write_goes_on_behind_it() {
    let (mut target, mut stream, _area, _read) = target(Policy::DropNewest);
    assert!(matches!(target.next(), Next::Nothing));
    stream.push(b"abcdef", 0);
    assert!(matches!(target.next(), Next::Write(_, b"abcdef")));
    stream.push(b"ghi", 0);
    assert!(matches!(target.next(), Next::Nothing));
    assert!(target.done(Ok(4)).is_none());
    assert!(matches!(target.next(), Next::Write(_, b"efghi")));
    assert!(target.done(errno(libc::EINTR)).is_none());
    assert!(matches!(target.next(), Next::Write(_, b"efghi")));
    assert!(target.done(Ok(5)).is_none());
    assert_eq!(target.reader().delivered(), 9);
    assert!(matches!(target.next(), Next::Nothing));
    stream.complete();
    assert!(matches!(target.next(), Next::End(FeedEnd::Complete)));
}

#[test]
fn bytes_are_written_as_they_come_though_the_reader_had_them_grouped() {
    for time in [None, Some(Duration::from_secs(1000))] {
        let mut stream = stream(Policy::DropNewest);
        let area = Arc::new(Area::create(bell().unwrap().0).unwrap());
        let mut reader = reader(&mut stream, &area);
        reader.group(Some(Grouping { bytes: 1000, time }));
        stream.push(b"abc", 0);
        assert_eq!(reader.peek(), Peek::Empty);
        let (_read, write) = nix::unistd::pipe().unwrap();
        let mut target = Target::new(TargetId(1), write, reader);
        assert!(matches!(target.next(), Next::Write(_, b"abc")));
        assert!(target.done(Ok(3)).is_none());
        assert!(matches!(target.next(), Next::Nothing));
        area.take_ready(1, |_| ());
        stream.push(b"d", 0);
        notify([&stream]);
        let mut ready = false;
        area.take_ready(1, |_| ready = true);
        assert!(ready, "one byte is news");
        assert!(matches!(target.next(), Next::Write(_, b"d")));
    }
}

#[test]
fn a_pipe_that_takes_nothing_now_is_polled() {
    let (mut target, mut stream, _area, _read) = target(Policy::DropNewest);
    stream.push(b"abc", 0);
    assert!(matches!(target.next(), Next::Write(..)));
    assert!(target.done(errno(libc::EAGAIN)).is_none());
    assert!(matches!(target.next(), Next::Poll(_)));
    assert!(matches!(target.next(), Next::Nothing));
    assert!(target.done(Ok(1)).is_none());
    assert!(matches!(target.next(), Next::Write(_, b"abc")));
    assert_eq!(target.reader().delivered(), 0);
}

#[test]
fn errors_end_it_and_a_closed_stdin_is_not_called_one() {
    for (code, closed) in [(libc::EPIPE, true), (libc::EIO, false)] {
        let (mut target, mut stream, _area, _read) = target(Policy::DropNewest);
        stream.push(b"abc", 0);
        assert!(matches!(target.next(), Next::Write(..)));
        let end = target.done(errno(code));
        assert!(if closed {
            matches!(end, Some(FeedEnd::Closed))
        } else {
            matches!(end, Some(FeedEnd::Error(_)))
        });
    }
}

#[test]
fn bytes_that_were_written_when_the_cancellation_came_count() {
    let (mut target, mut stream, _area, _read) = target(Policy::DropNewest);
    stream.push(b"abc", 0);
    assert!(matches!(target.next(), Next::Write(..)));
    assert!(matches!(target.close(), Close::Cancel));
    assert!(matches!(target.done(Ok(2)), Some(FeedEnd::Stopped)));
    assert_eq!(target.reader().delivered(), 2);
}

#[test]
fn gaps_are_counted_and_passed() {
    let (mut target, mut stream, _area, _read) = target(Policy::DropNewest);
    stream.push(&[1; 5000], 0);
    let Next::Write(_, bytes) = target.next() else { panic!() };
    assert_eq!(bytes.len(), 4096);
    assert!(target.done(Ok(4096)).is_none());
    assert!(matches!(target.next(), Next::Nothing));
    stream.push(b"abc", 0);
    assert!(matches!(target.next(), Next::Write(_, b"abc")));
    assert_eq!(target.reader().lost(), 5000 - 4096);
}

#[test]
fn a_sealed_one_waits_for_its_owner_who_brings_it_along_or_cuts_it_off() {
    for follows in [true, false] {
        let (mut target, mut stream, area, _read) = target(Policy::DropNewest);
        let mut quick = reader(&mut stream, &area);
        stream.push(&[1; 4096], 0);
        assert_eq!(quick.peek(), Peek::Bytes);
        quick.consume(4096);
        stream.push(b"abc", 0);
        assert!(matches!(target.next(), Next::Write(..)));
        assert!(target.done(Ok(4096)).is_none());
        assert!(matches!(target.next(), Next::Sealed));
        assert!(matches!(target.next(), Next::Nothing), "said once");
        if follows {
            let given = stream.follow(&area, target.reader().slot(), target.reader().slot()).unwrap();
            assert_eq!(given.start, given.ring.base());
            // SAFETY: it is for this reader, which was sealed.
            assert!(unsafe { target.follow(given) }.is_none());
            assert!(matches!(target.next(), Next::Write(_, b"abc")));
        } else {
            assert!(matches!(target.close(), Close::Now(FeedEnd::CutOff)));
        }
    }
}
