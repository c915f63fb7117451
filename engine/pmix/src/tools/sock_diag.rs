//! The users of TCP sockets from the kernel, see `sock_diag`(7). Unlike a look into `/proc/net/tcp`,
//! a question takes the same time however many sockets the host has.

use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::{fs, io};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

/// `SOCK_DIAG_BY_FAMILY`: the type of a request, and of its answer.
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// The sizes of the head of a message (`nlmsghdr`), and of the whole request.
const HEAD: usize = 16;
const REQUEST_BYTES: u32 = 72;
/// The places of the state, the user and the inode in the answer (`inet_diag_msg`).
const STATE: usize = HEAD + 1;
const USER: usize = HEAD + 64;
const INODE: usize = HEAD + 68;
/// `AF_INET` and `IPPROTO_TCP`.
const IPV4: u8 = 2;
const TCP: u8 = 6;
/// The state of a connected socket.
const ESTABLISHED: u8 = 1;

/// A socket for questions to the kernel.
#[derive(Debug)]
pub(crate) struct SockDiag(OwnedFd);

impl SockDiag {
    /// Opens the socket.
    ///
    /// # Errors
    /// The error of socket(2).
    pub(crate) fn open() -> io::Result<SockDiag> {
        let (kind, flags) = (SockType::Raw, SockFlag::SOCK_CLOEXEC);
        Ok(SockDiag(socket(AddressFamily::Netlink, kind, flags, SockProtocol::NetlinkSockDiag)?))
    }

    /// Returns the user of the socket that is connected from `from` to `to`. `None` if its process
    /// has closed it, if the kernel has no module for TCP, or if the user may be one that this user
    /// namespace does not have.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub(crate) fn user(&self, from: SocketAddrV4, to: SocketAddrV4) -> io::Result<Option<u32>> {
        let answer = self.ask(from, to)?;
        // The kernel writes the inode after the user. It is 0 if the socket was closed before, and
        // then the user may be 0 as well.
        let is_open = answer.get(4..6) == Some(&BY_FAMILY.to_ne_bytes())
            && answer.get(STATE) == Some(&ESTABLISHED)
            && number(&answer, INODE) != Some(0);
        let user = number(&answer, USER).filter(|_| is_open);
        Ok(user.filter(|user| *user != overflow_user() || has_all_users(&proc_text("self/uid_map"))))
    }

    /// Asks for the socket with these addresses (`inet_diag_req_v2`).
    fn ask(&self, from: SocketAddrV4, to: SocketAddrV4) -> io::Result<Vec<u8>> {
        let mut request = Vec::new();
        request.extend(REQUEST_BYTES.to_ne_bytes());
        request.extend([BY_FAMILY.to_ne_bytes(), REQUEST.to_ne_bytes()].concat());
        // The number of the request, which its answer repeats, no sender, and all states.
        let ports = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
        request.extend(&ports);
        request.extend([0; 4]);
        request.extend([IPV4, TCP, 0, 0]);
        request.extend(u32::MAX.to_ne_bytes());
        request.extend(&ports);
        for address in [from.ip(), to.ip()] {
            request.extend(address.octets());
            request.extend([0; 12]);
        }
        // Any interface, and no cookie (INET_DIAG_NOCOOKIE).
        request.extend([0; 4]);
        request.extend([u8::MAX; 8]);
        send(self.0.as_raw_fd(), &request, MsgFlags::empty())?;
        // The kernel has answered when send(2) returns. Answers to requests that failed may precede.
        loop {
            let mut answer = vec![0; 1024];
            let count = recv(self.0.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT)?;
            answer.truncate(count);
            if answer.get(8..12) == Some(&ports) {
                return Ok(answer);
            }
        }
    }
}

/// Returns a number of a message.
fn number(message: &[u8], offset: usize) -> Option<u32> {
    message.get(offset..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

/// Returns the number that stands for all users that a user namespace does not have, see
/// user_namespaces(7).
fn overflow_user() -> u32 {
    /// `DEFAULT_OVERFLOWUID` of the kernel.
    const DEFAULT: u32 = 65534;
    proc_text("sys/kernel/overflowuid").trim().parse().unwrap_or(DEFAULT)
}

/// Returns whether the user namespace with this table of users has all of them, as the first one
/// has.
fn has_all_users(table: &str) -> bool {
    table.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// Returns the text of a file in /proc; nothing if it cannot be read.
fn proc_text(name: &str) -> String {
    fs::read_to_string(Path::new("/proc").join(name)).unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

    use super::*;

    fn v4(address: SocketAddr) -> SocketAddrV4 {
        match address {
            SocketAddr::V4(address) => address,
            SocketAddr::V6(address) => panic!("{address}"),
        }
    }

    #[test]
    fn the_kernel_knows_the_user_of_a_socket_until_it_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = v4(listener.local_addr().unwrap());
        let diag = SockDiag::open().unwrap();
        let client = TcpStream::connect(address).unwrap();
        let (_accepted, peer) = listener.accept().unwrap();
        let user = || diag.user(v4(peer), address).unwrap();
        assert_eq!(user(), Some(nix::unistd::geteuid().as_raw()));
        // A socket that only listens is not connected.
        assert_eq!(diag.user(address, v4(peer)).unwrap(), user());
        assert_eq!(diag.user(address, SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1)).unwrap(), None);
        drop(client);
        assert_eq!(user(), None);
    }

    #[test]
    fn only_a_namespace_with_all_users_knows_that_a_number_stands_for_one() {
        for (table, has_all) in [
            ("         0          0 4294967295\n", true),
            ("         0       1000          1\n", false),
            ("         0       1000          1\n         1     100000      65536\n", false),
            ("", false),
        ] {
            assert_eq!(has_all_users(table), has_all, "{table}");
        }
    }
}
