//! A process of the tests, and how it talks with them: datagrams of numbers and descriptors.

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

/// Names the role of a process that the tests started.
pub const ROLE: &str = "IOF_KILL_ROLE";

pub struct Message {
    pub words: Vec<u64>,
    pub fds: Vec<OwnedFd>,
}

/// One end of a connection.
pub struct Link(OwnedFd);

pub enum Heard {
    Message(Message),
    Nothing,
    /// The other side is no more.
    Gone,
}

impl Link {
    /// The end that this process was started with.
    pub fn inherited() -> Link {
        use std::os::fd::AsFd;
        Link(std::io::stdin().as_fd().try_clone_to_owned().unwrap())
    }

    /// Sends, unless the other side is gone.
    pub fn send(&self, words: &[u64], fds: &[BorrowedFd<'_>]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let control: &[_] = if fds.is_empty() { &[] } else { &[ControlMessage::ScmRights(&fds)] };
        let to = self.0.as_raw_fd();
        match sendmsg::<UnixAddr>(to, &[IoSlice::new(&bytes)], control, MsgFlags::MSG_NOSIGNAL, None) {
            Ok(_) | Err(Errno::EPIPE | Errno::ECONNRESET) => {}
            Err(errno) => panic!("sendmsg: {errno}"),
        }
    }

    /// What was sent, if anything was.
    pub fn hear(&self) -> Heard {
        self.receive(MsgFlags::MSG_DONTWAIT)
    }

    /// What is sent next; `None` if the other side is gone.
    pub fn wait(&self) -> Option<Message> {
        match self.receive(MsgFlags::empty()) {
            Heard::Message(message) => Some(message),
            _ => None,
        }
    }

    fn receive(&self, flags: MsgFlags) -> Heard {
        let (mut bytes, mut room) = ([0u8; 128], nix::cmsg_space!([RawFd; 4]));
        let mut into = [IoSliceMut::new(&mut bytes)];
        let flags = flags | MsgFlags::MSG_CMSG_CLOEXEC;
        let received = match recvmsg::<UnixAddr>(self.0.as_raw_fd(), &mut into, Some(&mut room), flags) {
            Ok(received) => received,
            Err(Errno::EAGAIN) => return Heard::Nothing,
            Err(Errno::ECONNRESET) => return Heard::Gone,
            Err(errno) => panic!("recvmsg: {errno}"),
        };
        let mut fds = Vec::new();
        for control in received.cmsgs().unwrap() {
            if let ControlMessageOwned::ScmRights(raw) = control {
                // SAFETY: the kernel just made these descriptors for us.
                fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        let n = received.bytes;
        if n == 0 {
            return Heard::Gone;
        }
        let words = bytes[..n].as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        Heard::Message(Message { words, fds })
    }
}

impl std::os::fd::AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sleeps until one of `on` has something to say.
pub fn sleep(on: &[BorrowedFd<'_>]) {
    let mut fds: Vec<PollFd<'_>> = on.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    // No promise about time: whoever sleeps for so long was never woken.
    assert_ne!(poll(&mut fds, PollTimeout::from(60_000u16)).unwrap(), 0, "a lost wake-up");
}

/// This test's program once more, in another role.
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
    /// Ends it wherever it is.
    pub fn kill(mut self) {
        self.0.kill().unwrap();
        assert_eq!(self.0.wait().unwrap().signal(), Some(9), "it had failed by itself");
    }

    /// Waits until it has ended well.
    pub fn join(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}
