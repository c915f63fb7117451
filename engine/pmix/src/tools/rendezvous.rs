//! The files by which PMIx tools find a server.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::{Pid, geteuid};

use crate::error::StartError;
use crate::server::directory::{PrivateDirectory, write_new};

/// The files by which PMIx tools find a server, each under a name. They are removed when this is
/// dropped.
#[derive(Debug)]
pub(crate) struct RendezvousFiles {
    directory: PrivateDirectory,
    /// The files by which tools find it as the server of the system.
    system: Vec<PathBuf>,
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
        Ok(RendezvousFiles { directory, system: Vec::new(), text })
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

    /// Lets tools find the server as that of the system (`PMIX_CONNECT_TO_SYSTEM`), for which they
    /// look in this directory. Replaces files of processes of this user that have ended.
    pub(crate) fn add_system(&mut self, directory: &Path) -> Result<(), StartError> {
        for host in host_names() {
            let path = directory.join(format!("pmix.sys.{host}"));
            let written = write_new(&path, &self.text).or_else(|error| {
                if error.kind() != ErrorKind::AlreadyExists || !is_stale(&path)? {
                    return Err(error);
                }
                fs::remove_file(&path)?;
                write_new(&path, &self.text)
            });
            if let Err(source) = written {
                return Err(StartError::Directory { path, source });
            }
            self.system.push(path);
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

impl Drop for RendezvousFiles {
    fn drop(&mut self) {
        // Another server may have replaced it.
        let is_own = |path: &&PathBuf| fs::read_to_string(path).is_ok_and(|text| text == self.text);
        self.system.iter().filter(is_own).for_each(|path| drop(fs::remove_file(path)));
    }
}

/// Returns whether a file belongs to this user, and the process that it names has ended.
fn is_stale(path: &Path) -> io::Result<bool> {
    if fs::symlink_metadata(path)?.uid() != geteuid().as_raw() {
        return Ok(false);
    }
    let text = fs::read_to_string(path)?;
    let pid = text.lines().nth(2).and_then(|pid| pid.trim().parse().ok()).filter(|pid| *pid > 0);
    Ok(pid.is_some_and(|pid| kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH)))
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

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
    fn the_server_of_the_system_replaces_that_of_a_process_that_has_ended_only() {
        let directory = nix::unistd::mkdtemp(&std::env::temp_dir().join("iof-system-XXXXXX")).unwrap();
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let host = host_names().remove(0);
        let path = directory.join(format!("pmix.sys.{host}"));
        let create = || RendezvousFiles::create("iof-1", "127.0.0.1:1".parse().unwrap(), "4.2.2").unwrap();
        for (pid, is_replaced) in [(ended.id(), true), (std::process::id(), false)] {
            let other = format!("iof-2.0;tcp4://127.0.0.1:2\n4.2.2\n{pid}\n");
            fs::write(&path, &other).unwrap();
            let mut files = create();
            assert_eq!(files.add_system(&directory).is_ok(), is_replaced);
            let text = fs::read_to_string(&path).unwrap();
            assert_eq!(text == files.text, is_replaced);
            assert_eq!(text == other, !is_replaced);
            drop(files);
            // The file of another server stays.
            assert_eq!(path.exists(), !is_replaced);
        }
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn the_number_of_a_version_is_found_in_its_text() {
        assert_eq!(number("OpenPMIx 4.2.2 (PMIx Standard: 4.1)"), "4.2.2");
        assert_eq!(number("OpenPMIx 5.0.11rc1, repo rev: v5"), "5.0.11rc1");
    }
}
