//! The files by which PMIx tools find a server, and the users of tools that connect.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::Path;
use std::time::SystemTime;

use crate::directory::PrivateDirectory;
use crate::error::StartError;

/// The files by which PMIx tools find a server, each under a name. They are removed when this is
/// dropped.
#[derive(Debug)]
pub(crate) struct RendezvousFiles {
    directory: PrivateDirectory,
    /// The content of each.
    text: String,
}

impl RendezvousFiles {
    /// Creates a directory for the files of a server. It is named `nspace`, listens at `address`,
    /// and has `version` (as [`PmixServer::version`](crate::PmixServer::version) returns it).
    pub(crate) fn create(
        nspace: &str,
        address: SocketAddr,
        version: &str,
    ) -> Result<RendezvousFiles, StartError> {
        let directory = PrivateDirectory::create()?;
        let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let version = number(version);
        let pid = std::process::id();
        let family = if address.is_ipv4() { "tcp4" } else { "tcp6" };
        // libpmix reads the first two lines.
        let text = format!("{nspace}.0;{family}://{address}\n{version}\n{pid}\n{uid}:{gid}\n{since}\n");
        Ok(RendezvousFiles { directory, text })
    }

    /// Lets tools find the server under a name, which it has not yet. Leaves no file on an error.
    pub(crate) fn add(&self, name: &str) -> Result<(), StartError> {
        self.add_files(files_of(name))
    }

    fn add_files(&self, files: impl Iterator<Item = String>) -> Result<(), StartError> {
        let mut written = Vec::new();
        for file in files {
            if let Err(error) = self.directory.write(&file, &self.text) {
                written.iter().for_each(|file: &String| self.directory.remove_file(file));
                return Err(error);
            }
            written.push(file);
        }
        Ok(())
    }

    /// Removes a name.
    pub(crate) fn remove(&self, name: &str) {
        files_of(name).for_each(|file| self.directory.remove_file(&file));
    }

    /// Returns the directory of the files. What other processes create in it is removed with it.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }
}

/// Returns the names of the files under a name; none if files cannot have it.
fn files_of(name: &str) -> impl Iterator<Item = String> {
    let hosts = host_names().into_iter().filter(|_| !name.contains('/'));
    hosts.map(move |host| format!("pmix.{host}.tool.{name}"))
}

/// Returns the number of a version, such as `4.2.2` of `OpenPMIx 4.2.2 (PMIx Standard: ...)`.
fn number(version: &str) -> &str {
    let is_number = |word: &&str| word.starts_with(|letter: char| letter.is_ascii_digit());
    version.split([' ', ',']).find(is_number).unwrap_or(version)
}

/// Returns the name of this host, and the name without its domain. libpmix uses one of them.
fn host_names() -> Vec<String> {
    let name = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
    let short = name.split('.').next().unwrap_or_default().to_owned();
    if short == name { vec![name] } else { vec![short, name] }
}

/// Returns the user whose socket has connected to a socket of this host by TCP on the loopback
/// interface, as the kernel knows it. `None` if the socket is closed, or if its user may be one
/// that this user namespace does not have.
///
/// # Errors
/// The table of the kernel cannot be read.
pub(crate) fn user_of_peer(local: SocketAddrV4, peer: SocketAddrV4) -> io::Result<Option<u32>> {
    let find = || find_user(BufReader::new(File::open("/proc/net/tcp")?), local, peer);
    // The kernel writes the state and the user of a row one after the other: a socket that is
    // closed in between has another user in the second table.
    let first = find()?;
    let user = find()?.filter(|user| first == Some(*user));
    Ok(user.filter(|user| *user != overflow_user() || has_all_users(&proc_text("self/uid_map"))))
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

/// The state of a connected socket in the table.
const ESTABLISHED: &str = "01";

/// Finds the user in a table, see proc_net_tcp.rst of the kernel.
fn find_user(table: impl BufRead, local: SocketAddrV4, peer: SocketAddrV4) -> io::Result<Option<u32>> {
    // The peer's socket has the addresses the other way round.
    let (from, to) = (field(peer), field(local));
    for line in table.lines() {
        let line = line?;
        let mut fields = line.split_ascii_whitespace().skip(1);
        if fields.next() == Some(&from) && fields.next() == Some(&to) {
            return Ok(user(fields));
        }
    }
    Ok(None)
}

/// Returns the user of a row, whose fields after the addresses are given. `None` if the socket is
/// closed.
fn user<'a>(mut fields: impl Iterator<Item = &'a str>) -> Option<u32> {
    fields.next().filter(|state| *state == ESTABLISHED)?;
    // The fields between: queues, timer, retransmissions; and after the user: timeouts. A socket
    // that its process has closed has no inode, and the user is 0 then.
    let user = fields.nth(3)?.parse().ok()?;
    fields.nth(1).filter(|inode| *inode != "0").map(|_| user)
}

/// Returns an address as the table has it.
fn field(address: SocketAddrV4) -> String {
    let ip: &Ipv4Addr = address.ip();
    format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), address.port())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn v4(address: SocketAddr) -> SocketAddrV4 {
        match address {
            SocketAddr::V4(address) => address,
            SocketAddr::V6(address) => panic!("{address}"),
        }
    }

    #[test]
    fn a_name_that_cannot_be_added_leaves_nothing_and_may_be_added_later() {
        let files = RendezvousFiles::create("iof-1", "127.0.0.1:1".parse().unwrap(), "4.2.2").unwrap();
        let names = || ["one", "two"].map(str::to_owned).into_iter();
        let exist = || ["one", "two"].map(|name| files.directory().join(name).exists());
        files.directory.write("two", "of another name").unwrap();
        assert!(files.add_files(names()).is_err());
        assert_eq!(exist(), [false, true]);
        files.directory.remove_file("two");
        files.add_files(names()).unwrap();
        assert!(files.add_files(names()).is_err());
        assert_eq!(exist(), [true, true]);
    }

    #[test]
    fn a_socket_that_is_closed_has_no_user_and_not_root() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, peer) = listener.accept().unwrap();
        let local = v4(accepted.local_addr().unwrap());
        client.write_all(b"request").unwrap();
        drop(client);
        assert_eq!(user_of_peer(local, v4(peer)).unwrap(), None);
    }

    #[test]
    fn the_kernel_knows_the_user_of_a_connected_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, peer) = listener.accept().unwrap();
        let local = v4(accepted.local_addr().unwrap());
        let user = user_of_peer(local, v4(peer)).unwrap();
        assert_eq!(user, Some(nix::unistd::geteuid().as_raw()));
        let other = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1);
        assert_eq!(user_of_peer(local, other).unwrap(), None);
        drop(client);
    }

    #[test]
    fn the_socket_of_another_connection_is_not_taken_for_the_peer() {
        let at = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let (ours, theirs) = (field(at(80)), field(at(9000)));
        let row = |from: &str, to: &str, user| {
            format!("  0: {from} {to} 01 00000000:00000000 00:00000000 00000000 {user} 0 7\n")
        };
        let table = format!("  sl  local_address\n{}{}", row(&ours, &theirs, 5), row(&theirs, &ours, 1000));
        assert_eq!(find_user(table.as_bytes(), at(80), at(9000)).unwrap(), Some(1000));
        assert_eq!(find_user(table.as_bytes(), at(81), at(9000)).unwrap(), None);
        assert_eq!(find_user(&b"0: \n\n garbage"[..], at(80), at(9000)).unwrap(), None);
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

    #[test]
    fn the_number_of_a_version_is_found_in_its_text() {
        assert_eq!(number("OpenPMIx 4.2.2 (PMIx Standard: 4.1)"), "4.2.2");
        assert_eq!(number("OpenPMIx 5.0.11rc1, repo rev: v5"), "5.0.11rc1");
    }
}
