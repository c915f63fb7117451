//! Tests of descriptor passing. They are one test function because it counts the descriptors of its
//! process.
#![allow(clippy::unwrap_used, reason = "a test, helpers included, fails by panicking")]

use std::collections::VecDeque;
use std::fs;
use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use iof_proto::socket::{receive, send, unacknowledged, unread};
use iof_proto::{Decoder, EffectiveOptions, Message, ToTool, encode};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

fn open_fds() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn descriptors_arrive_with_their_frame_or_are_closed() {
    let before = open_fds();
    descriptors_arrive_in_order_with_their_frames();
    assert_eq!(open_fds(), before);
    unaccepted_descriptors_are_closed();
    assert_eq!(open_fds(), before);
    too_many_descriptors_are_an_error_and_are_closed();
    assert_eq!(open_fds(), before);
    a_full_socket_accepts_no_bytes_and_no_descriptors();
    assert_eq!(open_fds(), before);
    the_number_of_unread_messages_is_bounded_from_above();
    a_peer_that_reads_nothing_acknowledges_what_it_was_sent();
    assert_eq!(open_fds(), before);
}

fn descriptors_arrive_in_order_with_their_frames() {
    let (engine, tool) = UnixStream::pair().unwrap();
    let mut pipes: Vec<_> = (0..3).map(|_| io::pipe().unwrap()).collect();
    let sent = [
        ToTool::Welcome { version: 1, engine_pid: 1, may_block: false },
        ToTool::Announced { handler: 1 },
        ToTool::Ring {
            handler: 1,
            source: iof_proto::Proc::new(iof_proto::Nspace::new("job").unwrap(), iof_proto::Rank(0)),
            channel: iof_proto::Channel::Stdout,
            logged: false,
            run: 1,
            slot: 0,
            follows: None,
            start: 0,
            dropped: 0,
            non_gating: false,
            options: EffectiveOptions::default(),
        },
    ];
    let mut writers = pipes.iter().map(|(_, writer)| writer.as_fd());
    for message in &sent {
        let frame = encode(message).unwrap();
        let fds: Vec<_> = writers.by_ref().take(message.fds().into()).collect();
        // A full socket can cut a frame like this: the descriptors go with the first byte.
        assert_eq!(send(&engine, &frame[..1], &fds).unwrap(), 1);
        assert_eq!(send(&engine, &frame[1..], &[]).unwrap(), frame.len() - 1);
    }
    drop(writers);

    let (mut decoder, mut fds, mut arrived) = (Decoder::<ToTool>::new(), VecDeque::new(), 0);
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    while received.len() < sent.len() {
        let count = receive(&tool, &mut buffer, &mut fds, true, true).unwrap();
        let mut bytes = &buffer[..count];
        while let Some(message) = decoder.decode(&mut bytes).unwrap() {
            for fd in fds.drain(..usize::from(message.fds())) {
                assert!(fcntl(&fd, FcntlArg::F_GETFD).unwrap() & FdFlag::FD_CLOEXEC.bits() != 0);
                fs::File::from(fd).write_all(&[b'0' + arrived]).unwrap();
                arrived += 1;
            }
            received.push(message);
        }
    }
    assert_eq!(received, sent);
    assert!(fds.is_empty());
    for (expected, (mut reader, writer)) in "012".chars().zip(pipes.drain(..)) {
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, expected.to_string());
    }
}

fn unaccepted_descriptors_are_closed() {
    let (tool, engine) = UnixStream::pair().unwrap();
    let (mut reader, writer) = io::pipe().unwrap();
    assert_eq!(send(&tool, b"x", &[writer.as_fd(), writer.as_fd()]).unwrap(), 1);
    drop(writer);
    let before = open_fds();
    let (mut fds, mut buffer) = (VecDeque::<OwnedFd>::new(), [0; 8]);
    assert_eq!(receive(&engine, &mut buffer, &mut fds, false, false).unwrap(), 1);
    assert!(fds.is_empty());
    assert_eq!(open_fds(), before);
    // The pipe is at its end of file, so no process holds the writer.
    assert_eq!(reader.read(&mut buffer).unwrap(), 0);
}

fn too_many_descriptors_are_an_error_and_are_closed() {
    let (engine, tool) = UnixStream::pair().unwrap();
    let (mut reader, writer) = io::pipe().unwrap();
    let raw = [writer.as_raw_fd(); 4];
    assert_eq!(send(&engine, b"x", &[writer.as_fd(); 4]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert_eq!(send(&engine, b"", &[writer.as_fd()]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    let rights = [ControlMessage::ScmRights(&raw)];
    sendmsg::<()>(engine.as_raw_fd(), &[IoSlice::new(b"x")], &rights, MsgFlags::empty(), None).unwrap();
    drop(writer);
    let (mut fds, mut buffer) = (VecDeque::new(), [0; 8]);
    let error = receive(&tool, &mut buffer, &mut fds, true, false).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(fds.is_empty());
    assert_eq!(reader.read(&mut buffer).unwrap(), 0);
}

fn a_full_socket_accepts_no_bytes_and_no_descriptors() {
    let (engine, tool) = UnixStream::pair().unwrap();
    let (mut fds, mut buffer) = (VecDeque::new(), vec![0; 1 << 16]);
    let nothing = receive(&tool, &mut buffer, &mut fds, true, false).unwrap_err();
    assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    let full = loop {
        if let Err(error) = send(&engine, &buffer, &[]) {
            break error;
        }
    };
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    assert!(send(&engine, b"x", &[engine.as_fd()]).is_err());
    drop(engine);
    while receive(&tool, &mut buffer, &mut fds, true, false).unwrap() > 0 {}
    assert!(fds.is_empty());
}

fn a_peer_that_reads_nothing_acknowledges_what_it_was_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let _peer = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    // Until its window is closed.
    while stream.write(&[0; 4096]).is_ok() {}
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(unacknowledged(&stream).unwrap(), Duration::ZERO);
    assert!(unacknowledged(UnixStream::pair().unwrap().0).is_err());
}

fn the_number_of_unread_messages_is_bounded_from_above() {
    let (engine, tool) = UnixStream::pair().unwrap();
    let (mut fds, mut buffer) = (VecDeque::new(), [0; 8]);
    assert_eq!(unread(&engine).unwrap(), 0);
    for sent in 1..=40 {
        assert_eq!(send(&engine, b"x", &[engine.as_fd()]).unwrap(), 1);
        assert!(unread(&engine).unwrap() >= sent, "{sent} messages are unread");
    }
    for left in (0..40).rev() {
        assert_eq!(receive(&tool, &mut buffer, &mut fds, true, false).unwrap(), 1);
        let bound = unread(&engine).unwrap();
        assert!(bound >= left && bound <= 4 * left, "{left} messages are unread, and the bound is {bound}");
    }
    send(&engine, b"x", &[engine.as_fd()]).unwrap();
    drop(tool);
    assert_eq!(unread(&engine).unwrap(), 0, "bytes that can no longer be received do not count");
}
