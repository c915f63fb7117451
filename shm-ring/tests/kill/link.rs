//! A process of the tests and its connection with them: datagrams of numbers and descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, recvmsg,
    sendmsg, socketpair,
};

/// Environment variable with the role of a process that the tests started.
pub const ROLE: &str = "IOF_KILL_ROLE";

pub struct Message {
    pub words: Vec<u64>,
    pub fds: Vec<OwnedFd>,
}

/// One end of a connection.
pub struct Link(OwnedFd);

pub enum Received {
    Message(Message),
    Nothing,
    /// The other side is gone.
    Gone,
}

impl Link {
    /// Returns the end with which this process was started.
    pub fn inherited() -> Link {
        use std::os::fd::AsFd;
        Link(std::io::stdin().as_fd().try_clone_to_owned().unwrap())
    }

    /// Sends a message, unless the other side is gone.
    pub fn send(&self, words: &[u64], fds: &[BorrowedFd<'_>]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let control: &[_] = if fds.is_empty() { &[] } else { &[ControlMessage::ScmRights(&fds)] };
        let socket = self.0.as_raw_fd();
        match sendmsg::<UnixAddr>(socket, &[IoSlice::new(&bytes)], control, MsgFlags::MSG_NOSIGNAL, None) {
            Ok(_) | Err(Errno::EPIPE | Errno::ECONNRESET) => {}
            Err(errno) => panic!("sendmsg: {errno}"),
        }
    }

    /// Receives a message, if there is one, without blocking.
    pub fn try_receive(&self) -> Received {
        self.receive(MsgFlags::MSG_DONTWAIT)
    }

    /// Blocks until there is a message; `None` if the other side is gone.
    pub fn wait(&self) -> Option<Message> {
        match self.receive(MsgFlags::empty()) {
            Received::Message(message) => Some(message),
            _ => None,
        }
    }

    fn receive(&self, flags: MsgFlags) -> Received {
        let (mut bytes, mut room) = ([0u8; 128], nix::cmsg_space!([RawFd; 4]));
        let mut buffer = [IoSliceMut::new(&mut bytes)];
        let flags = flags | MsgFlags::MSG_CMSG_CLOEXEC;
        let received = match recvmsg::<UnixAddr>(self.0.as_raw_fd(), &mut buffer, Some(&mut room), flags) {
            Ok(received) => received,
            Err(Errno::EAGAIN) => return Received::Nothing,
            Err(Errno::ECONNRESET) => return Received::Gone,
            Err(errno) => panic!("recvmsg: {errno}"),
        };
        let mut fds = Vec::new();
        for control in received.cmsgs().unwrap() {
            if let ControlMessageOwned::ScmRights(raw) = control {
                // SAFETY: the kernel just created these descriptors for this process.
                fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        let n = received.bytes;
        if n == 0 {
            return Received::Gone;
        }
        let words = bytes[..n].as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        Received::Message(Message { words, fds })
    }
}

impl std::os::fd::AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sleeps until one of `fds` is readable.
pub fn sleep(fds: &[BorrowedFd<'_>]) {
    let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    // This is not a promise about time: a process that sleeps this long lost its wake-up.
    assert_ne!(poll(&mut fds, PollTimeout::from(60_000u16)).unwrap(), 0, "a lost wake-up");
}

/// Starts this test's program again, in another role.
pub fn start(role: &str) -> (Process, Link) {
    let (ours, theirs) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["process_of_the_tests", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .stdin(theirs)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    (Process(child), Link(ours))
}

pub struct Process(Child);

impl Process {
    /// Kills the process, wherever it is.
    pub fn kill(mut self) {
        self.0.kill().unwrap();
        assert_eq!(self.0.wait().unwrap().signal(), Some(9), "the process failed before it was killed");
    }

    /// Waits for the end of the process, which must be successful.
    pub fn join(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}
